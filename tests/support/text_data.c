/* Test data for src/text, see text_data.h. */
#include "support/text_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "support/cmocka.h"

static void data_path(char out[512], const char *name) {
    const char *folder = getenv("TESTDATA");
    snprintf(out, 512, "%s/%s", folder ? folder : "build/testdata", name);
}

di_tokenizer *open_test_tokenizer(const char *name) {
    char path[512];
    di_error err = {0};
    data_path(path, name);
    di_tokenizer *tok = di_tokenizer_open(path, &err);
    if (!tok) {
        fail_msg("%s", err.message);
    }
    return tok;
}

char *read_test_file(const char *name, size_t *size) {
    char path[512], *text = NULL;
    di_error err = {0};
    data_path(path, name);
    if (!di_file_read(path, (size_t)1 << 30, &text, size, &err)) {
        fail_msg("%s", err.message);
    }
    return text;
}

json_t *read_test_rows(const char *name) {
    size_t size;
    char *text = read_test_file(name, &size);
    json_t *rows = json_array();
    for (char *line = text; line < text + size;) {
        char *end = memchr(line, '\n', (size_t)(text + size - line));
        assert_non_null(end);
        json_error_t e;
        json_t *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &e);
        if (!row) {
            fail_msg("%s: %s", name, e.text);
        }
        json_array_append_new(rows, row);
        line = end + 1;
    }
    di_free(text);
    assert_true(json_array_size(rows) > 0);
    return rows;
}

void assert_ids(const di_ids *ids, const json_t *expected, const char *text) {
    bool same = ids->count == json_array_size(expected);
    for (size_t i = 0; same && i < ids->count; i++) {
        same = ids->data[i] == json_integer_value(json_array_get(expected, i));
    }
    if (same) {
        return;
    }
    print_error("text: %s\ngot:", text);
    for (size_t i = 0; i < ids->count; i++) {
        print_error(" %d", (int)ids->data[i]);
    }
    char *wanted = json_dumps(expected, JSON_COMPACT);
    fail_msg("\nwanted: %s", wanted);
}

/* SHA-256 as in FIPS 180-4. Its constants are the first bits of the fractional parts of roots of
 * the first primes, so they are computed: cube roots for the rounds, square roots for the start. */
static uint32_t root_bits(uint32_t prime, int power) {
    unsigned __int128 low = 0, high = (unsigned __int128)1 << 37;
    while (high - low > 1) { /* root * 2^32 by bisection, exact integers */
        unsigned __int128 mid = (low + high) / 2, value = mid * mid, limit = prime;
        if (power == 3) { /* mid <= 2^35 here, so mid^3 fits in 105 bits */
            value *= mid;
            limit <<= 96;
        } else {
            limit <<= 64;
        }
        if (value <= limit) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return (uint32_t)low;
}

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t h[8], const uint32_t k[64], const unsigned char *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t1 = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += v[i];
    }
}

void sha256_hex(const void *data, size_t size, char out[65]) {
    uint32_t h[8], k[64];
    int count = 0;
    for (uint32_t n = 2; count < 64; n++) {
        uint32_t d = 2;
        while (d * d <= n && n % d != 0) {
            d++;
        }
        if (d * d > n) {
            k[count] = root_bits(n, 3);
            if (count < 8) {
                h[count] = root_bits(n, 2);
            }
            count++;
        }
    }
    const unsigned char *p = data;
    size_t whole = size / 64;
    for (size_t i = 0; i < whole; i++) {
        sha256_block(h, k, p + 64 * i);
    }
    unsigned char tail[128] = {0};
    size_t rest = size % 64, blocks = rest < 56 ? 1 : 2;
    memcpy(tail, p + 64 * whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) {
        tail[64 * blocks - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
    }
    for (size_t i = 0; i < blocks; i++) {
        sha256_block(h, k, tail + 64 * i);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(out + 8 * i, 9, "%08x", h[i]);
    }
}
