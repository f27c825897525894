/* What tokens add to a string; see string_set.h. Called once a vocabulary, and for the sets of
 * bounded strings. */
#include "grammar/string_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static size_t skip_hex(const char *bytes, size_t size, size_t at, unsigned *value) {
    *value = 0;
    for (size_t end = at + 4; at < size && at < end; at++) {
        char c = bytes[at];
        *value = *value << 4 | (unsigned)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return at;
}

/* Characters that a beginning of a string begins, up to its closing quote if it has one; escapes
 * that stand for one character count once. The bytes are those of a string. */
static uint32_t count_characters(const char *bytes, size_t size, bool *closed) {
    uint32_t count = 0;
    *closed = false;
    for (size_t i = 0; i < size && !*closed;) {
        if (bytes[i] == '"') {
            *closed = true;
        } else if (bytes[i] != '\\') {
            count += ((uint8_t)bytes[i++] & 0xC0) != 0x80;
        } else {
            count++;
            unsigned unit = 0;
            bool wide = i + 1 < size && bytes[i + 1] == 'u';
            i = wide ? skip_hex(bytes, size, i + 2, &unit) : i + 2;
            if (unit >= 0xD800 && unit <= 0xDBFF) {
                i = skip_hex(bytes, size, i + 2, &unit);
            }
        }
    }
    return count;
}

static int most_first(const void *pa, const void *pb) {
    const di_string_mark *a = pa, *b = pb;
    return a->characters != b->characters ? (a->characters < b->characters ? 1 : -1)
                                          : (a->token > b->token) - (a->token < b->token);
}

/* The tokens of the set of strings that are not plain. */
static void mark_tokens(const di_vocab *v, const uint32_t *words, di_string_marks *m) {
    for (int32_t w = 0; w < v->num_words; w++) {
        for (uint32_t bits = words[w] & ~v->plain[DI_VOCAB_PLAIN_CHARS][w]; bits;
             bits &= bits - 1) {
            int32_t id = w * 32 + __builtin_ctz(bits);
            bool closed;
            uint32_t count = count_characters(v->tokens[id].bytes, v->tokens[id].size, &closed);
            di_string_mark *to =
                closed ? &m->closing[m->num_closing++] : &m->inside[m->num_inside++];
            *to = (di_string_mark){id, count};
            m->most_closed = closed && count > m->most_closed ? count : m->most_closed;
        }
    }
    if (m->num_inside > 1) {
        qsort(m->inside, m->num_inside, sizeof *m->inside, most_first);
    }
}

static void mark_points(const di_vocab *v, di_string_marks *m) {
    const di_token_set *strings = v->strings;
    for (uint32_t p = 0; p < strings->num_points; p++) {
        const di_trie *trie = &v->tries[strings->points[p].trie];
        const di_trie_node *n = &trie->nodes[strings->points[p].node];
        const char *bytes = v->tokens[trie->order[n->before]].bytes; /* of one behind it */
        bool closed;
        m->points[p] = count_characters(bytes, n->depth + 1u, &closed);
        m->most_closed = m->points[p] > m->most_closed ? m->points[p] : m->most_closed;
    }
}

bool di_string_marks_make(di_vocab *v, di_error *err) {
    di_string_marks *m = di_calloc(1, sizeof *m);
    uint32_t *words = di_calloc((size_t)v->num_words, sizeof *words);
    size_t most = (size_t)v->num_bits + 1;
    v->marks = m;
    if (m && words) {
        m->inside = di_realloc_array(NULL, most, sizeof *m->inside);
        m->closing = di_realloc_array(NULL, most, sizeof *m->closing);
        m->points = di_calloc(v->strings->num_points + 1u, sizeof *m->points);
    }
    bool ok = m && words && m->inside && m->closing && m->points;
    if (ok) {
        di_kept_mask_write(v->strings->tokens, words);
        mark_tokens(v, words, m);
        mark_points(v, m);
    }
    di_free(words);
    return ok || di_fail(err, DI_ERR_NO_MEMORY, "no memory for the tokens of strings");
}

void di_string_marks_destroy(di_string_marks *m) {
    if (m) {
        di_free(m->inside);
        di_free(m->closing);
        di_free(m->points);
        di_free(m);
    }
}

static void forbid(int32_t id, uint32_t *words) {
    words[id / 32] &= ~(1u << id % 32);
}

bool di_string_set_of_length(const di_vocab *v, uint32_t low, uint32_t high, uint32_t *words,
                             di_token_set *set) {
    const di_string_marks *m = v->marks;
    di_kept_mask_write(v->strings->tokens, words);
    if (high < DI_VOCAB_PLAIN_CHARS) {
        const uint32_t *all = v->plain[DI_VOCAB_PLAIN_CHARS], *some = v->plain[high];
        for (int32_t w = 0; w < v->num_words; w++) {
            words[w] &= ~all[w] | some[w];
        }
    }
    for (uint32_t i = 0; i < m->num_inside && m->inside[i].characters > high; i++) {
        forbid(m->inside[i].token, words);
    }
    for (uint32_t i = 0; i < m->num_closing; i++) {
        if (m->closing[i].characters < low || m->closing[i].characters > high) {
            forbid(m->closing[i].token, words);
        }
    }
    uint32_t count = v->strings->num_points;
    set->points = di_realloc_array(NULL, count + 1u, sizeof *set->points);
    for (uint32_t p = 0; set->points && p < count; p++) {
        if (m->points[p] >= low && m->points[p] <= high) {
            set->points[set->num_points++] = v->strings->points[p];
        }
    }
    return set->points != NULL;
}
