/* Chain hashes and the map from them to blocks: see prefix.h. */
#include "cache/prefix.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/checked.h"

/* ---- hashes ---- */

bool di_hasher_init(di_hasher *h, di_error *err) {
    h->mask = UINT64_MAX;
    if (getrandom(h->secret, sizeof h->secret, 0) != (ssize_t)sizeof h->secret) {
        return di_fail_errno(err, "no random bytes from the system for the prefix cache");
    }
    return true;
}

static di_hash hash_bytes(const di_hasher *h, const void *data, size_t size) {
    XXH128_hash_t x = XXH3_128bits_withSecret(data, size, h->secret, sizeof h->secret);
    return (di_hash){.low = x.low64, .high = x.high64};
}

di_hash di_hasher_next(const di_hasher *h, di_hash previous, const int32_t *tokens) {
    struct {
        di_hash previous;
        int32_t tokens[DI_BLOCK_TOKENS];
    } input = {.previous = previous};
    memcpy(input.tokens, tokens, sizeof input.tokens);
    di_hash hash = hash_bytes(h, &input, sizeof input);
    return (di_hash){.low = hash.low & h->mask, .high = hash.high & h->mask};
}

di_hash di_hasher_all(const di_hasher *h, di_hash salt, const int32_t *tokens, int64_t n) {
    di_hash parts[2] = {salt, hash_bytes(h, tokens, (size_t)n * sizeof *tokens)};
    return hash_bytes(h, parts, sizeof parts);
}

di_hash di_hasher_text(const di_hasher *h, const void *text, size_t size) {
    return hash_bytes(h, text, size);
}

/* ---- the map ---- */

bool di_prefix_map_create(di_prefix_map *m, const di_hash *keys, int count) {
    size_t cells = 2;
    while (cells / 2 < (size_t)count) {
        cells *= 2;
    }
    *m = (di_prefix_map){
        .cells = di_calloc(cells, sizeof *m->cells), .mask = cells - 1, .keys = keys};
    return m->cells;
}

void di_prefix_map_destroy(di_prefix_map *m) {
    di_free(m->cells);
    *m = (di_prefix_map){0};
}

static size_t cell_of(const di_prefix_map *m, int32_t n) {
    size_t i = m->keys[n].low & m->mask;
    while (m->cells[i] != n) {
        assert(m->cells[i] != 0);
        i = (i + 1) & m->mask;
    }
    return i;
}

int32_t di_prefix_map_find(const di_prefix_map *m, di_hash key) {
    for (size_t i = key.low & m->mask; m->cells[i] != 0; i = (i + 1) & m->mask) {
        if (di_hash_equal(m->keys[m->cells[i]], key)) {
            return m->cells[i];
        }
    }
    return 0;
}

void di_prefix_map_insert(di_prefix_map *m, int32_t n) {
    size_t i = m->keys[n].low & m->mask;
    while (m->cells[i] != 0) {
        i = (i + 1) & m->mask;
    }
    m->cells[i] = n;
}

/* Numbers behind the gap move into it unless that would put them in front of where their search
 * begins; so searches need no marks for what was removed. */
void di_prefix_map_remove(di_prefix_map *m, int32_t n) {
    size_t gap = cell_of(m, n);
    for (size_t i = (gap + 1) & m->mask; m->cells[i] != 0; i = (i + 1) & m->mask) {
        size_t home = m->keys[m->cells[i]].low & m->mask;
        if (((i - home) & m->mask) >= ((i - gap) & m->mask)) {
            m->cells[gap] = m->cells[i];
            gap = i;
        }
    }
    m->cells[gap] = 0;
}

void di_prefix_map_replace(di_prefix_map *m, int32_t from, int32_t to) {
    m->cells[cell_of(m, from)] = to;
}

di_hash di_hash_text(const void *text, size_t size) {
    XXH128_hash_t x = XXH3_128bits(text, size);
    return (di_hash){x.low64, x.high64};
}
