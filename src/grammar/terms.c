/* The table of terms and the constructors with their simplifications; see terms.h. */
#include "grammar/terms.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* ---- the table ---- */

bool di_terms_charge(di_terms *t, size_t bytes) {
    t->bytes += bytes;
    if (t->bytes > t->max_bytes) {
        di_terms_fail(t, DI_ERR_UNSUPPORTED, "too complex: its automaton needs too much memory");
    }
    return t->fault.code == DI_OK;
}

di_term di_terms_fail(di_terms *t, di_error_code code, const char *message) {
    if (t->fault.code == DI_OK) {
        di_fail(&t->fault, code, "%s", message);
    }
    return DI_TERM_NONE;
}

static di_term no_memory(di_terms *t) {
    return di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
}

/* di_grow, with the bytes counted. */
static void *grow(di_terms *t, void *array, size_t count, size_t *capacity, size_t size) {
    size_t before = *capacity;
    void *moved = di_grow(array, count, capacity, size);
    if (!moved) {
        no_memory(t);
        return NULL;
    }
    /* Handed back even over the limit: the old array is gone, and the fault is set. */
    di_terms_charge(t, (*capacity - before) * size);
    return moved;
}

static uint32_t hash4(uint32_t kind, uint32_t a, uint32_t b, uint32_t c) {
    uint64_t h = kind * 0x9E3779B97F4A7C15ull;
    h = (h ^ a) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ h >> 29 ^ b) * 0x94D049BB133111EBull;
    h = (h ^ h >> 31 ^ c) * 0xD6E8FEB86659FD93ull;
    return (uint32_t)(h >> 32);
}

/* Lists are found by content: their hash stands for offset and length. */
static uint32_t hash_list(uint32_t kind, const di_term *of, uint32_t count) {
    uint32_t h = kind;
    for (uint32_t i = 0; i < count; i++) {
        h = hash4(h, of[i], i, count);
    }
    return h;
}

static uint32_t hash_node(const di_terms *t, const di_term_node *n) {
    if (n->kind == DI_KIND_ALT || n->kind == DI_KIND_AND) {
        return hash_list(n->kind, t->list + n->a, n->b);
    }
    return hash4(n->kind, n->a, n->b, n->c);
}

/* The table widens by one bucket at a time (linear hashing), so that no term waits for all others
 * to be sorted anew. Beyond the largest power of two, `level`, lie the buckets that were split. */
static uint32_t bucket_at(const di_terms *t, uint32_t hash) {
    uint32_t at = hash & (2 * t->level - 1);
    return at < t->num_buckets ? at : hash & (t->level - 1);
}

/* Splits the next bucket in two. */
static bool add_bucket(di_terms *t) {
    uint32_t *buckets = grow(t, t->buckets, t->num_buckets, &t->cap_buckets, sizeof *buckets);
    if (!buckets) {
        return false;
    }
    t->buckets = buckets;
    t->level *= t->num_buckets == 2 * t->level ? 2 : 1;
    uint32_t from = t->num_buckets - t->level, i = buckets[from];
    t->num_buckets++;
    buckets[from] = buckets[t->num_buckets - 1] = UINT32_MAX;
    while (i != UINT32_MAX) {
        uint32_t next = t->nodes[i].hash_next, at = bucket_at(t, hash_node(t, &t->nodes[i]));
        t->nodes[i].hash_next = buckets[at];
        buckets[at] = i;
        i = next;
    }
    return true;
}

/* Sorts all terms into the buckets that there are. */
static void rehash(di_terms *t) {
    memset(t->buckets, 0xFF, t->num_buckets * sizeof *t->buckets);
    for (uint32_t i = 0; i < t->num_nodes; i++) {
        uint32_t at = bucket_at(t, hash_node(t, &t->nodes[i]));
        t->nodes[i].hash_next = t->buckets[at];
        t->buckets[at] = i;
    }
}

static bool make_buckets(di_terms *t) {
    enum { FIRST = 256 };
    t->buckets = di_alloc(FIRST * sizeof *t->buckets);
    if (!t->buckets) {
        no_memory(t);
        return false;
    }
    t->cap_buckets = t->num_buckets = t->level = FIRST;
    rehash(t);
    return di_terms_charge(t, FIRST * sizeof *t->buckets);
}

static di_term add_node(di_terms *t, di_term_node node, uint32_t hash) {
    if (t->fault.code != DI_OK) {
        return DI_TERM_NONE;
    }
    di_term_node *nodes = grow(t, t->nodes, t->num_nodes, &t->cap_nodes, sizeof *nodes);
    if (!nodes) {
        return DI_TERM_NONE;
    }
    t->nodes = nodes;
    if (t->num_nodes >= t->num_buckets && !add_bucket(t)) {
        return DI_TERM_NONE;
    }
    di_term id = (di_term)t->num_nodes++;
    uint32_t *bucket = &t->buckets[bucket_at(t, hash)];
    node.hash_next = *bucket;
    t->nodes[id] = node;
    *bucket = id;
    return id;
}

/* NONE: there is none yet. */
static di_term find_node(const di_terms *t, di_term_kind kind, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t hash = hash4(kind, a, b, c);
    for (uint32_t i = t->buckets[bucket_at(t, hash)]; i != UINT32_MAX; i = t->nodes[i].hash_next) {
        const di_term_node *n = &t->nodes[i];
        if (n->kind == kind && n->a == a && n->b == b && n->c == c) {
            return i;
        }
    }
    return DI_TERM_NONE;
}

di_term di_term_intern(di_terms *t, di_term_kind kind, unsigned flags, uint32_t a, uint32_t b,
                       uint32_t c) {
    di_term known = find_node(t, kind, a, b, c);
    return known != DI_TERM_NONE
               ? known
               : add_node(
                     t,
                     (di_term_node){
                         .kind = (uint8_t)kind, .flags = (uint8_t)flags, .a = a, .b = b, .c = c},
                     hash4(kind, a, b, c));
}

/* of[]: sorted, unique, not inside t->list. */
static di_term intern_list(di_terms *t, di_term_kind kind, unsigned flags, const di_term *of,
                           uint32_t count) {
    uint32_t hash = hash_list(kind, of, count);
    for (uint32_t i = t->buckets[bucket_at(t, hash)]; i != UINT32_MAX; i = t->nodes[i].hash_next) {
        const di_term_node *n = &t->nodes[i];
        if (n->kind == kind && n->b == count &&
            memcmp(t->list + n->a, of, count * sizeof *of) == 0) {
            return i;
        }
    }
    uint32_t first = (uint32_t)t->num_list;
    for (uint32_t i = 0; i < count; i++) {
        di_term *list = grow(t, t->list, t->num_list, &t->cap_list, sizeof *list);
        if (!list) {
            return DI_TERM_NONE;
        }
        t->list = list;
        t->list[t->num_list++] = of[i];
    }
    return add_node(
        t, (di_term_node){.kind = (uint8_t)kind, .flags = (uint8_t)flags, .a = first, .b = count},
        hash);
}

bool di_terms_push(di_terms *t, di_term x) {
    di_term *scratch = grow(t, t->scratch, t->num_scratch, &t->cap_scratch, sizeof *scratch);
    if (!scratch) {
        return false;
    }
    t->scratch = scratch;
    t->scratch[t->num_scratch++] = x;
    return true;
}

bool di_terms_create(di_terms *t, size_t max_bytes, di_error *err) {
    *t = (di_terms){.max_bytes = max_bytes, .max_work = UINT64_MAX};
    if (make_buckets(t)) {
        add_node(t, (di_term_node){.kind = DI_KIND_NONE, .flags = DI_TERM_REGULAR},
                 hash4(DI_KIND_NONE, 0, 0, 0));
        di_term_intern(t, DI_KIND_EMPTY, DI_TERM_REGULAR | DI_TERM_NULLABLE, 0, 0, 0);
        /* CHAR and TEXT must have the ids 2 and 3: their nodes are filled when the constructors
         * have found what CHAR is, and the node it was found under is made unfindable. */
        di_term_intern(t, DI_KIND_NONE, 0, DI_TERM_CHAR, 0, 0);
        di_term_intern(t, DI_KIND_NONE, 0, DI_TERM_TEXT, 0, 0);
        di_term_intern(t, DI_KIND_STRING, DI_TERM_REGULAR, DI_TERM_TEXT, 0, 0);
        uint32_t all[] = {0, 0x10FFFF};
        di_term character = t->fault.code == DI_OK ? di_term_characters(t, all, 1) : DI_TERM_NONE;
        if (t->fault.code == DI_OK) {
            t->nodes[DI_TERM_CHAR] = t->nodes[character];
            t->nodes[character] = (di_term_node){.kind = DI_KIND_NONE, .a = UINT32_MAX};
            t->nodes[DI_TERM_TEXT] = (di_term_node){.kind = DI_KIND_REPEAT,
                                                    .flags = DI_TERM_REGULAR | DI_TERM_NULLABLE,
                                                    .a = DI_TERM_CHAR,
                                                    .c = DI_TERM_UNBOUNDED};
            rehash(t);
        }
    }
    if (t->fault.code != DI_OK) {
        if (err) {
            *err = t->fault;
        }
        di_terms_destroy(t);
        return false;
    }
    return true;
}

void di_terms_destroy(di_terms *t) {
    for (size_t i = 0; i < t->num_nodes; i++) {
        di_free(t->nodes[i].row);
    }
    for (size_t i = 0; i < t->num_maps; i++) {
        di_free(t->maps[i]);
    }
    di_free(t->maps);
    di_free(t->nodes);
    di_free(t->buckets);
    di_free(t->list);
    di_free(t->sets);
    di_free(t->words);
    di_free(t->word_buckets);
    di_free(t->edges);
    di_free(t->scratch);
    *t = (di_terms){0};
}

/* ---- constructors ---- */

di_term di_term_bytes(di_terms *t, const di_byte_set *set) {
    if (!(set->words[0] | set->words[1] | set->words[2] | set->words[3])) {
        return DI_TERM_NONE;
    }
    /* Sets are few and small: the table of nodes is keyed by their index, found by a scan that
     * starts at a hash's guess only when there are many. */
    uint32_t index = 0;
    while (index < t->num_sets && memcmp(&t->sets[index], set, sizeof *set) != 0) {
        index++;
    }
    if (index == t->num_sets) {
        di_byte_set *sets = grow(t, t->sets, t->num_sets, &t->cap_sets, sizeof *sets);
        if (!sets) {
            return DI_TERM_NONE;
        }
        t->sets = sets;
        t->sets[t->num_sets++] = *set;
    }
    return di_term_intern(t, DI_KIND_BYTES, DI_TERM_REGULAR, index, 0, 0);
}

di_term di_term_byte(di_terms *t, uint8_t low, uint8_t high) {
    di_byte_set set = {0};
    for (unsigned b = low; b <= high; b++) {
        di_byte_set_add(&set, b);
    }
    return di_term_bytes(t, &set);
}

di_term di_term_cat(di_terms *t, di_term a, di_term b) {
    if (a == DI_TERM_NONE || b == DI_TERM_NONE) {
        return DI_TERM_NONE;
    }
    if (a == DI_TERM_EMPTY) {
        return b;
    }
    if (b == DI_TERM_EMPTY) {
        return a;
    }
    const di_term_node *x = &t->nodes[a], *y = &t->nodes[b];
    if (x->flags & DI_TERM_REGULAR && y->kind == DI_KIND_CAT && !(y->flags & DI_TERM_REGULAR) &&
        t->nodes[y->a].flags & DI_TERM_REGULAR) {
        /* Regular neighbours become one automaton. */
        di_term rest = y->b;
        return di_term_cat(t, di_term_cat(t, a, y->a), rest);
    }
    unsigned flags = x->flags & y->flags & (DI_TERM_NULLABLE | DI_TERM_REGULAR);
    flags |= (x->flags | y->flags) & DI_TERM_INEXACT;
    return di_term_intern(t, DI_KIND_CAT, flags, a, b, 0);
}

di_term di_term_cat3(di_terms *t, di_term a, di_term b, di_term c) {
    return di_term_cat(t, a, di_term_cat(t, b, c));
}

static int by_id(const void *a, const void *b) {
    di_term x = *(const di_term *)a, y = *(const di_term *)b;
    return (x > y) - (x < y);
}

/* Sorts scratch[mark..] and drops repetitions. */
static void sort_unique(di_terms *t, size_t mark) {
    di_term *of = t->scratch + mark;
    size_t n = t->num_scratch - mark, kept = 0;
    bool sorted = true;
    for (size_t i = 1; sorted && i < n; i++) {
        sorted = of[i - 1] < of[i];
    }
    if (sorted) {
        return;
    }
    qsort(of, n, sizeof *of, by_id);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || of[i] != of[kept - 1]) {
            of[kept++] = of[i];
        }
    }
    t->num_scratch = mark + kept;
}

/* Pushes the operands, those of lists of the same kind themselves. */
static bool flatten(di_terms *t, di_term_kind kind, const di_term *of, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const di_term_node *n = &t->nodes[of[i]];
        if (n->kind != kind) {
            if (!di_terms_push(t, of[i])) {
                return false;
            }
            continue;
        }
        for (uint32_t j = 0, first = n->a, end = n->b; j < end; j++) {
            if (!di_terms_push(t, t->list[first + j])) {
                return false;
            }
        }
    }
    return true;
}

/* Makes one of all byte sets among the regular operands scratch[mark..] of an ALT. */
static void join_bytes(di_terms *t, size_t mark) {
    di_byte_set set = {0};
    size_t kept = mark, found = 0;
    for (size_t i = mark; i < t->num_scratch; i++) {
        const di_term_node *n = &t->nodes[t->scratch[i]];
        if (n->kind == DI_KIND_BYTES) {
            found++;
        }
    }
    if (found < 2) {
        return;
    }
    for (size_t i = mark; i < t->num_scratch; i++) {
        const di_term_node *n = &t->nodes[t->scratch[i]];
        if (n->kind == DI_KIND_BYTES) {
            for (int w = 0; w < 4; w++) {
                set.words[w] |= t->sets[n->a].words[w];
            }
        } else {
            t->scratch[kept++] = t->scratch[i];
        }
    }
    t->num_scratch = kept;
    di_terms_push(t, di_term_bytes(t, &set));
    sort_unique(t, mark);
}

/* Where any text at all may follow, other texts add nothing. (All operands stand at the same place
 * of a text, so none is in the middle of a character.) */
static void absorb_in_text(di_terms *t, size_t mark) {
    bool text = false;
    for (size_t i = mark; i < t->num_scratch; i++) {
        text |= t->scratch[i] == DI_TERM_TEXT;
    }
    size_t kept = mark;
    for (size_t i = mark; text && i < t->num_scratch; i++) {
        di_term x = t->scratch[i];
        const di_term_node *n = &t->nodes[x];
        bool is_text = n->kind <= DI_KIND_WORDS && n->kind != DI_KIND_NOT &&
                       n->flags & DI_TERM_REGULAR && x != DI_TERM_TEXT;
        if (!is_text) {
            t->scratch[kept++] = x;
        }
    }
    if (text) {
        t->num_scratch = kept;
    }
}

/* The ALT of scratch[mark..], all regular or none, and takes them off. */
static di_term alt_of_scratch(di_terms *t, size_t mark) {
    sort_unique(t, mark);
    absorb_in_text(t, mark);
    size_t kept = mark;
    bool nullable = false, other_nullable = false;
    for (size_t i = mark; i < t->num_scratch; i++) {
        di_term x = t->scratch[i];
        if (x != DI_TERM_NONE) {
            nullable |= di_term_nullable(t, x);
            other_nullable |= x != DI_TERM_EMPTY && di_term_nullable(t, x);
            t->scratch[kept++] = x;
        }
    }
    t->num_scratch = kept;
    if (other_nullable && kept > mark && t->scratch[mark] == DI_TERM_EMPTY) {
        memmove(t->scratch + mark, t->scratch + mark + 1, (--kept - mark) * sizeof *t->scratch);
        t->num_scratch = kept;
    }
    join_bytes(t, mark);
    size_t count = t->num_scratch - mark;
    di_term result = count ? t->scratch[mark] : DI_TERM_NONE;
    if (count > 1) {
        unsigned flags = DI_TERM_REGULAR | (nullable ? DI_TERM_NULLABLE : 0);
        unsigned inexact = DI_TERM_INEXACT;
        for (size_t i = mark; i < t->num_scratch; i++) {
            unsigned f = t->nodes[t->scratch[i]].flags;
            flags &= f | ~(unsigned)DI_TERM_REGULAR;
            inexact &= f;
        }
        result = intern_list(t, DI_KIND_ALT, flags | inexact, t->scratch + mark, (uint32_t)count);
    }
    t->num_scratch = mark;
    return result;
}

di_term di_term_alt(di_terms *t, const di_term *of, size_t count) {
    size_t mark = t->num_scratch;
    if (!flatten(t, DI_KIND_ALT, of, count)) {
        t->num_scratch = mark;
        return DI_TERM_NONE;
    }
    /* The regular operands become one, so that a state of the machine holds one automaton. */
    size_t middle = mark, end = t->num_scratch;
    for (size_t i = mark; i < end; i++) {
        if (!di_term_regular(t, t->scratch[i])) {
            di_term other = t->scratch[i];
            memmove(t->scratch + middle + 1, t->scratch + middle,
                    (i - middle) * sizeof *t->scratch);
            t->scratch[middle++] = other;
        }
    }
    if (middle == mark) {
        return alt_of_scratch(t, mark);
    }
    if (middle < end) {
        di_term regular = alt_of_scratch(t, middle);
        di_terms_push(t, regular);
    }
    return alt_of_scratch(t, mark);
}

di_term di_terms_take_alt(di_terms *t, size_t mark) {
    size_t count = t->num_scratch - mark;
    di_term result = count == 1 ? t->scratch[mark] : DI_TERM_NONE;
    if (count > 1) {
        /* A copy, for the stack moves while it grows. */
        di_term *of = di_alloc(count * sizeof *of);
        if (of) {
            memcpy(of, t->scratch + mark, count * sizeof *of);
            result = di_term_alt(t, of, count);
            di_free(of);
        } else {
            no_memory(t);
        }
    }
    t->num_scratch = mark;
    return result;
}

di_term di_term_alt2(di_terms *t, di_term a, di_term b) {
    if (a == b || b == DI_TERM_NONE) {
        return a;
    }
    if (a == DI_TERM_NONE) {
        return b;
    }
    return di_term_alt(t, (di_term[]){a, b}, 2);
}

/* CHAR repeated: its bounds. */
static bool text_bounds(const di_terms *t, di_term x, uint32_t *low, uint32_t *high) {
    const di_term_node *n = &t->nodes[x];
    if (n->kind != DI_KIND_REPEAT || n->a != DI_TERM_CHAR) {
        return false;
    }
    *low = n->b;
    *high = n->c;
    return true;
}

/* Joins all repeats of CHAR in scratch[mark..] to one, and drops TEXT beside another operand that
 * holds well-formed text only. */
static void join_lengths(di_terms *t, size_t mark) {
    uint32_t low = 0, high = DI_TERM_UNBOUNDED, l, h;
    size_t kept = mark, found = 0;
    bool positive = false;
    for (size_t i = mark; i < t->num_scratch; i++) {
        if (text_bounds(t, t->scratch[i], &l, &h)) {
            low = l > low ? l : low;
            high = h < high ? h : high;
            found++;
        } else {
            positive |= t->nodes[t->scratch[i]].kind != DI_KIND_NOT;
            t->scratch[kept++] = t->scratch[i];
        }
    }
    if (found == 0) {
        return;
    }
    t->num_scratch = kept;
    if (low > high) {
        di_terms_push(t, DI_TERM_NONE);
    } else if (low > 0 || high != DI_TERM_UNBOUNDED || !positive) {
        di_terms_push(t, di_term_repeat(t, DI_TERM_CHAR, low, high));
    }
}

/* Takes the contrary of nothing out of a conjunction that has more: it demands nothing. */
static void drop_all(di_terms *t, size_t mark) {
    size_t kept = mark;
    for (size_t i = mark; i < t->num_scratch; i++) {
        const di_term_node *n = &t->nodes[t->scratch[i]];
        bool last = i + 1 == t->num_scratch && kept == mark;
        if (n->kind != DI_KIND_NOT || n->a != DI_TERM_NONE || last) {
            t->scratch[kept++] = t->scratch[i];
        }
    }
    t->num_scratch = kept;
}

di_term di_term_and(di_terms *t, const di_term *of, size_t count) {
    size_t mark = t->num_scratch;
    if (!flatten(t, DI_KIND_AND, of, count)) {
        t->num_scratch = mark;
        return DI_TERM_NONE;
    }
    drop_all(t, mark);
    sort_unique(t, mark);
    join_lengths(t, mark);
    sort_unique(t, mark);
    size_t n = t->num_scratch - mark;
    bool nullable = true, none = n == 0, empty = false;
    for (size_t i = mark; i < t->num_scratch; i++) {
        di_term x = t->scratch[i];
        none |= x == DI_TERM_NONE;
        empty |= x == DI_TERM_EMPTY;
        nullable &= di_term_nullable(t, x);
        if (t->nodes[x].kind == DI_KIND_NOT) {
            for (size_t j = mark; j < t->num_scratch; j++) {
                none |= t->scratch[j] == t->nodes[x].a;
            }
        }
    }
    di_term result;
    if (none || (empty && !nullable)) {
        result = DI_TERM_NONE;
    } else if (empty) {
        result = DI_TERM_EMPTY;
    } else if (n == 1) {
        result = t->scratch[mark];
    } else {
        result = intern_list(t, DI_KIND_AND,
                             DI_TERM_REGULAR | DI_TERM_INEXACT | (nullable ? DI_TERM_NULLABLE : 0),
                             t->scratch + mark, (uint32_t)n);
    }
    t->num_scratch = mark;
    return result;
}

di_term di_term_and2(di_terms *t, di_term a, di_term b) {
    return a == b ? a : di_term_and(t, (di_term[]){a, b}, 2);
}

di_term di_term_not(di_terms *t, di_term a) {
    if (t->nodes[a].kind == DI_KIND_NOT) {
        return t->nodes[a].a;
    }
    return di_term_intern(t, DI_KIND_NOT,
                          DI_TERM_REGULAR | DI_TERM_INEXACT |
                              (di_term_nullable(t, a) ? 0 : DI_TERM_NULLABLE),
                          a, 0, 0);
}

di_term di_term_text_without(di_terms *t, di_term a) {
    return a == DI_TERM_NONE ? DI_TERM_TEXT : di_term_and2(t, DI_TERM_TEXT, di_term_not(t, a));
}

/* Whether (x{a,b}){m,n} is x{am,bn}: the intervals for m, m + 1, ... leave no gap. */
static bool tiles(uint32_t a, uint32_t b, uint32_t m, uint32_t n) {
    if (m == n) {
        return true;
    }
    if (b == DI_TERM_UNBOUNDED) {
        return m > 0 || a <= 1;
    }
    return (uint64_t)(m + 1) * a <= (uint64_t)m * b + 1;
}

di_term di_term_repeat(di_terms *t, di_term a, uint32_t low, uint32_t high) {
    if (high == 0 || a == DI_TERM_EMPTY || (a == DI_TERM_NONE && low == 0)) {
        return DI_TERM_EMPTY;
    }
    if (a == DI_TERM_NONE || low > high) {
        return DI_TERM_NONE;
    }
    const di_term_node *n = &t->nodes[a];
    if (n->flags & DI_TERM_NULLABLE && n->flags & DI_TERM_REGULAR) {
        low = 0;
    }
    if (low == 1 && high == 1) {
        return a;
    }
    if (n->kind == DI_KIND_REPEAT && tiles(n->b, n->c, low, high)) {
        uint64_t least = (uint64_t)n->b * low;
        uint64_t most = n->c == DI_TERM_UNBOUNDED || high == DI_TERM_UNBOUNDED
                            ? DI_TERM_UNBOUNDED
                            : (uint64_t)n->c * high;
        if (least < DI_TERM_UNBOUNDED && most <= DI_TERM_UNBOUNDED) {
            return di_term_repeat(t, n->a, (uint32_t)least, (uint32_t)most);
        }
    }
    if (a == DI_TERM_CHAR && low == 0 && high == DI_TERM_UNBOUNDED) {
        return DI_TERM_TEXT;
    }
    unsigned flags =
        (n->flags & (DI_TERM_REGULAR | DI_TERM_INEXACT)) | (low ? 0 : DI_TERM_NULLABLE);
    if (low == 0) {
        flags &= ~(unsigned)DI_TERM_INEXACT;
    }
    return di_term_intern(t, DI_KIND_REPEAT, flags, a, low, high);
}

di_term di_term_optional(di_terms *t, di_term a) {
    return di_term_alt2(t, a, DI_TERM_EMPTY);
}

di_term di_term_string(di_terms *t, di_term text) {
    return di_string_make(t, text, 0, 0);
}

di_term di_term_multiple(di_terms *t, uint32_t multiple, uint32_t decimals) {
    /* Phase: bit 0 = behind the point, the rest = decimals that still count. */
    return di_term_intern(t, DI_KIND_MULTIPLE, DI_TERM_REGULAR, multiple, UINT32_MAX,
                          decimals << 2);
}

di_term di_term_final(di_terms *t, uint32_t tag) {
    return di_term_intern(t, DI_KIND_FINAL, DI_TERM_REGULAR | DI_TERM_NULLABLE, tag, 0, 0);
}

di_term di_term_special(di_terms *t, di_term_kind kind, uint32_t a, uint32_t b, uint32_t c) {
    di_term known = find_node(t, kind, a, b, c);
    if (known != DI_TERM_NONE || kind != DI_KIND_KEY) {
        return known != DI_TERM_NONE ? known : di_term_intern(t, kind, 0, a, b, c);
    }
    uint32_t tag;
    bool text = t->hooks.text(t->hooks.context, a, b, c, NULL, &tag);
    unsigned flags = DI_TERM_REGULAR | (text ? 0 : DI_TERM_INEXACT);
    flags |= text && tag == DI_NO_TAG ? DI_TERM_FLEETING : 0;
    if (t->hooks.end(t->hooks.context, t, a, b, c) != DI_NO_TAG) {
        flags |= DI_TERM_NULLABLE;
    }
    return di_term_intern(t, kind, flags, a, b, c);
}

uint32_t di_term_tag(const di_terms *t, di_term x) {
    for (;;) {
        const di_term_node *n = &t->nodes[x];
        switch (n->kind) {
        case DI_KIND_FINAL:
            return n->a;
        case DI_KIND_KEY:
            return t->hooks.end(t->hooks.context, (di_terms *)t, n->a, n->b, n->c);
        case DI_KIND_CAT:
            x = n->b;
            break;
        case DI_KIND_ALT:
            for (uint32_t i = 0; i < n->b; i++) {
                di_term y = t->list[n->a + i];
                uint32_t tag = di_term_nullable(t, y) ? di_term_tag(t, y) : DI_NO_TAG;
                if (tag != DI_NO_TAG) {
                    return tag;
                }
            }
            return DI_NO_TAG;
        default:
            return DI_NO_TAG;
        }
    }
}
