/* Finite sets of strings as a minimal acyclic automaton whose nodes all such sets share, so that
 * ten thousand words cost no more than their letters. Called by the constructors of terms.h. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/terms.h"

enum { MAX_WORD_BYTES = 1 << 16 };

static uint32_t hash_edges(const di_word_edge *edges, uint32_t count, bool final) {
    uint32_t h = final ? 0x9E3779B9u : 1;
    for (uint32_t i = 0; i < count; i++) {
        h = (h ^ edges[i].byte) * 0x01000193u;
        h = (h ^ edges[i].node) * 0x85EBCA6Bu;
        h ^= h >> 15;
    }
    return h;
}

/* More buckets once there are as many nodes. */
static bool widen_buckets(di_terms *t) {
    if (t->num_words < t->num_word_buckets) {
        return true;
    }
    uint32_t count = t->num_word_buckets ? 2 * t->num_word_buckets : 256;
    uint32_t *buckets = di_realloc_array(NULL, count, sizeof *buckets);
    if (!buckets || !di_terms_charge(t, (count - t->num_word_buckets) * sizeof *buckets)) {
        di_free(buckets);
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return false;
    }
    memset(buckets, 0xFF, count * sizeof *buckets);
    for (uint32_t i = 0; i < t->num_words; i++) {
        di_word_node *n = &t->words[i];
        uint32_t at = hash_edges(t->edges + n->first, n->count, n->final) % count;
        n->hash_next = buckets[at];
        buckets[at] = i;
    }
    di_free(t->word_buckets);
    t->word_buckets = buckets;
    t->num_word_buckets = count;
    return true;
}

/* The node of these edges (sorted by byte), UINT32_MAX after a fault. */
static uint32_t intern_node(di_terms *t, const di_word_edge *edges, uint32_t count, bool final) {
    if (!widen_buckets(t)) {
        return UINT32_MAX;
    }
    uint32_t bucket = hash_edges(edges, count, final) % t->num_word_buckets;
    for (uint32_t i = t->word_buckets[bucket]; i != UINT32_MAX; i = t->words[i].hash_next) {
        const di_word_node *n = &t->words[i];
        bool same = n->count == count && n->final == final;
        for (uint32_t e = 0; same && e < count; e++) {
            const di_word_edge *have = &t->edges[n->first + e];
            same = have->byte == edges[e].byte && have->node == edges[e].node;
        }
        if (same) {
            return i;
        }
    }
    if (!di_terms_charge(t, sizeof *t->words + count * sizeof *t->edges)) {
        return UINT32_MAX;
    }
    di_word_node *words = di_grow(t->words, t->num_words, &t->cap_words, sizeof *words);
    if (!words) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    t->words = words;
    uint32_t first = (uint32_t)t->num_edges;
    for (uint32_t e = 0; e < count; e++) {
        di_word_edge *grown = di_grow(t->edges, t->num_edges, &t->cap_edges, sizeof *grown);
        if (!grown) {
            di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
            return UINT32_MAX;
        }
        t->edges = grown;
        t->edges[t->num_edges++] = edges[e];
    }
    uint32_t id = (uint32_t)t->num_words++;
    t->words[id] = (di_word_node){first, count, t->word_buckets[bucket], final};
    t->word_buckets[bucket] = id;
    return id;
}

static di_term term_of(di_terms *t, uint32_t node) {
    if (node == UINT32_MAX) {
        return DI_TERM_NONE;
    }
    const di_word_node *n = &t->words[node];
    if (n->count == 0) {
        return n->final ? DI_TERM_EMPTY : DI_TERM_NONE;
    }
    return di_term_intern(t, DI_KIND_WORDS, DI_TERM_REGULAR | (n->final ? DI_TERM_NULLABLE : 0u),
                          node, 0, 0);
}

/* Backwards, one node a byte. */
static uint32_t chain(di_terms *t, const char *bytes, size_t size) {
    uint32_t node = intern_node(t, NULL, 0, true);
    for (size_t i = size; i > 0 && node != UINT32_MAX; i--) {
        di_word_edge edge = {node, (uint8_t)bytes[i - 1]};
        node = intern_node(t, &edge, 1, false);
    }
    return node;
}

di_term di_term_literal(di_terms *t, const char *bytes, size_t size) {
    if (size == 1) {
        return di_term_byte(t, (uint8_t)bytes[0], (uint8_t)bytes[0]);
    }
    return term_of(t, chain(t, bytes, size));
}

static int compare(const void *pa, const void *pb) {
    const di_word *a = pa, *b = pb;
    size_t n = a->size < b->size ? a->size : b->size;
    int c = n ? memcmp(a->bytes, b->bytes, n) : 0;
    return c ? c : (a->size > b->size) - (a->size < b->size);
}

/* A branch of the automaton under construction: the edges of a node on the current word's path. */
typedef struct open_node {
    di_word_edge edges[256];
    uint32_t count;
    bool final;
} open_node;

/* Words that share at least `depth` bytes, sorted and unique. Recursion goes only as deep as words
 * branch: a run of bytes that all share is a chain. */
static uint32_t build(di_terms *t, const di_word *words, size_t count, size_t depth) {
    size_t run = depth;
    while (run < words[0].size && words[count - 1].size > run &&
           words[0].bytes[run] == words[count - 1].bytes[run]) {
        run++;
    }
    open_node *open = di_calloc(1, sizeof *open);
    if (!open) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    size_t i = 0;
    if (words[0].size == run) {
        open->final = true;
        i = 1;
    }
    while (i < count && t->fault.code == DI_OK) {
        uint8_t byte = (uint8_t)words[i].bytes[run];
        size_t end = i + 1;
        while (end < count && (uint8_t)words[end].bytes[run] == byte) {
            end++;
        }
        uint32_t child = end == i + 1 ? chain(t, words[i].bytes + run + 1, words[i].size - run - 1)
                                      : build(t, words + i, end - i, run + 1);
        open->edges[open->count++] = (di_word_edge){child, byte};
        i = end;
    }
    uint32_t node =
        t->fault.code == DI_OK ? intern_node(t, open->edges, open->count, open->final) : UINT32_MAX;
    di_free(open);
    for (size_t k = run; k > depth && node != UINT32_MAX; k--) {
        di_word_edge edge = {node, (uint8_t)words[0].bytes[k - 1]};
        node = intern_node(t, &edge, 1, false);
    }
    return node;
}

di_term di_term_words(di_terms *t, di_word *words, size_t count) {
    if (count == 0) {
        return DI_TERM_NONE;
    }
    qsort(words, count, sizeof *words, compare);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (words[i].size > MAX_WORD_BYTES) {
            return di_terms_fail(t, DI_ERR_UNSUPPORTED, "a literal is longer than 65536 bytes");
        }
        if (i == 0 || compare(&words[i], &words[kept - 1]) != 0) {
            words[kept++] = words[i];
        }
    }
    if (kept == 1) {
        return words[0].size ? di_term_literal(t, words[0].bytes, words[0].size) : DI_TERM_EMPTY;
    }
    return term_of(t, build(t, words, kept, 0));
}

di_term di_word_step(const di_terms *t, uint32_t node, uint8_t byte, bool *found) {
    const di_word_node *n = &t->words[node];
    uint32_t low = 0, high = n->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (t->edges[n->first + middle].byte < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *found = low < n->count && t->edges[n->first + low].byte == byte;
    return *found ? t->edges[n->first + low].node : 0;
}
