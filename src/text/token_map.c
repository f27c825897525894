/* Token compression, see token_map.h.
 *
 * Each id gets a key, each new key the next compressed id. The key is the token's text made plain:
 * NFKC, NFD, marks dropped, lower case, white space folded. A token that is no whole text (or has
 * U+FFFD in it) keeps its spelling in the file as its key. */
#include "text/token_map.h"

#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "base/utf8.h"
#include "text/unicode.h"

typedef struct key_slot {
    size_t at, size; /* of the key, in key_table.texts */
    int32_t number;  /* id + 1; 0: empty */
} key_slot;

/* Keys seen so far, by open addressing. */
typedef struct key_table {
    key_slot *slots;
    size_t mask;
    int32_t count;
    di_buffer texts;
} key_table;

static uint64_t hash_text(const char *p, size_t size) {
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) {
        h = (h ^ (unsigned char)p[i]) * 0x100000001B3u;
    }
    return h ^ h >> 32;
}

/* Id of a key (never empty), a new one if it was not seen before; -1 if memory is short. */
static int32_t intern(key_table *t, const char *key, size_t size, di_error *err) {
    size_t i = hash_text(key, size) & t->mask;
    for (; t->slots[i].number != 0; i = (i + 1) & t->mask) {
        if (t->slots[i].size == size && memcmp(t->texts.data + t->slots[i].at, key, size) == 0) {
            return t->slots[i].number - 1;
        }
    }
    key_slot slot = {t->texts.size, size, t->count + 1};
    if (!di_buffer_append(&t->texts, key, size, err)) {
        return -1;
    }
    t->slots[i] = slot;
    return t->count++;
}

static bool is_blank(uint32_t c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* NFKD of valid UTF-8, as code points. That is NFKC followed by NFD, since composing changes
 * nothing that decomposing does not undo. NULL if memory is short. */
static utf8proc_int32_t *decompose(const char *text, size_t size, size_t *count) {
    const utf8proc_option_t nfkd = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT | UTF8PROC_STABLE;
    size_t capacity = size + 16;
    utf8proc_int32_t *points = NULL;
    for (;;) {
        utf8proc_int32_t *moved = di_realloc_array(points, capacity, sizeof *points);
        if (!moved) {
            break;
        }
        points = moved;
        utf8proc_ssize_t n =
            utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, points,
                               (utf8proc_ssize_t)capacity, nfkd);
        if (n < 0) {
            break; /* text too long for utf8proc's counters */
        }
        if ((size_t)n <= capacity) {
            *count = (size_t)n;
            return points;
        }
        capacity = (size_t)n;
    }
    di_free(points);
    return NULL;
}

/* Drops marks, lowers case, folds runs of blanks; works in place and returns the new length. */
static size_t simplify(utf8proc_int32_t *points, size_t count) {
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t c = (uint32_t)points[i];
        if (di_is_mark(c)) {
            continue;
        }
        /* The one letter whose lower case is two characters, U+0130, was decomposed before. */
        c = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
        if (is_blank(c)) {
            if (n > 0 && points[n - 1] == ' ') {
                continue;
            }
            c = ' ';
        }
        points[n++] = (utf8proc_int32_t)c;
    }
    return n;
}

/* Appends the key of a token's text (valid UTF-8) to *key: the text made plain, or the text itself
 * if nothing is left of it. */
static bool make_key(const char *text, size_t size, di_buffer *key, di_error *err) {
    size_t count;
    utf8proc_int32_t *points = decompose(text, size, &count);
    if (!points) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the token map");
    }
    count = simplify(points, count);
    size_t begin = 0;
    if (!(count == 1 && points[0] == ' ')) { /* a lone space stays a space */
        while (begin < count && di_is_white_space((uint32_t)points[begin])) {
            begin++;
        }
        while (count > begin && di_is_white_space((uint32_t)points[count - 1])) {
            count--;
        }
    }
    bool ok = count > begin || di_buffer_append(key, text, size, err);
    for (; ok && begin < count; begin++) {
        char c[4];
        int length = di_utf8_encode((uint32_t)points[begin], c);
        ok = di_buffer_append(key, c, (size_t)length, err);
    }
    di_free(points);
    return ok;
}

/* True if the text is whole characters, none of them U+FFFD. */
static bool is_whole_text(const char *bytes, size_t size) {
    return di_utf8_valid(bytes, size, NULL) && !memmem(bytes, size, "\xEF\xBF\xBD", 3);
}

static bool map_token(const di_tokenizer *tok, int32_t id, key_table *table, di_buffer *key,
                      int32_t *map, di_error *err) {
    size_t size;
    const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
    if (size == 0) {
        return di_fail(err, DI_ERR_FORMAT, "tokenizer.json has no token %d, which Engram needs",
                       (int)id);
    }
    key->size = 0;
    if (!(is_whole_text(bytes, size) ? make_key(bytes, size, key, err)
                                     : di_tokenizer_token_string(tok, id, key, err))) {
        return false;
    }
    map[id] = intern(table, key->data, key->size, err);
    return map[id] >= 0;
}

bool di_token_map_build(const di_tokenizer *tok, int32_t vocab_size, int32_t *map, int32_t *classes,
                        di_error *err) {
    size_t slots = 16;
    while (slots < 2 * (size_t)vocab_size) {
        slots *= 2;
    }
    key_table table = {.slots = di_calloc(slots, sizeof *table.slots), .mask = slots - 1};
    if (!table.slots) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the token map");
    }
    di_buffer key = {0};
    bool ok = di_buffer_append_text(&table.texts, "", err) && di_buffer_append_text(&key, "", err);
    for (int32_t id = 0; ok && id < vocab_size; id++) {
        ok = map_token(tok, id, &table, &key, map, err);
    }
    *classes = table.count;
    di_buffer_free(&key);
    di_buffer_free(&table.texts);
    di_free(table.slots);
    return ok;
}

void di_token_map_synthetic(int32_t vocab_size, int32_t classes, int32_t *map) {
    for (int32_t id = 0; id < vocab_size; id++) {
        map[id] = (int32_t)((int64_t)id * classes / vocab_size);
    }
}
