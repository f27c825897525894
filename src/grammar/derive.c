/* Derivatives of terms, the rows that remember them, and the search that tells whether an
 * intersection or complement denotes anything; see terms.h. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/terms.h"

/* A search that looks at more states than this gives up with a fault. */
enum { MAX_SEARCH = 50000 };

/* ---- classes of bytes ---- */

static void words_boundaries(const di_terms *t, uint32_t node, di_byte_set *starts) {
    const di_word_node *n = &t->words[node];
    for (uint32_t e = 0; e < n->count; e++) {
        unsigned byte = t->edges[n->first + e].byte;
        di_byte_set_cut(starts, byte, byte);
    }
}

static void set_boundaries(const di_byte_set *set, di_byte_set *starts) {
    uint64_t carry = 0;
    for (int w = 0; w < 4; w++) {
        uint64_t before = set->words[w] << 1 | carry;
        carry = set->words[w] >> 63;
        starts->words[w] |= set->words[w] ^ before;
    }
}

void di_terms_boundaries(di_terms *t, di_term x, di_byte_set *starts) {
    const di_term_node *n = &t->nodes[x];
    while (n->kind == DI_KIND_CAT) {
        di_terms_boundaries(t, n->a, starts);
        if (!di_term_nullable(t, n->a)) {
            return;
        }
        x = n->b;
        n = &t->nodes[x];
    }
    switch (n->kind) {
    case DI_KIND_BYTES:
        set_boundaries(&t->sets[n->a], starts);
        break;
    case DI_KIND_ALT:
    case DI_KIND_AND:
        for (uint32_t i = 0; i < n->b; i++) {
            di_terms_boundaries(t, t->list[n->a + i], starts);
        }
        break;
    case DI_KIND_NOT:
    case DI_KIND_REPEAT:
        di_terms_boundaries(t, n->a, starts);
        break;
    case DI_KIND_WORDS:
        words_boundaries(t, n->a, starts);
        break;
    case DI_KIND_STRING:
        di_string_boundaries(t, x, starts);
        break;
    case DI_KIND_MULTIPLE:
        for (unsigned b = '0'; b <= '9'; b++) {
            di_byte_set_cut(starts, b, b);
        }
        di_byte_set_cut(starts, '.', '.');
        break;
    case DI_KIND_KEY:
        t->hooks.boundaries(t->hooks.context, t, x, starts);
        break;
    default:
        break;
    }
}

/* ---- bytes that may come ---- */

/* Alternatives that it is worth asking one by one. */
enum { MAX_FIRST = 32 };

static void add_set(di_byte_set *to, const di_byte_set *set) {
    for (int w = 0; w < 4; w++) {
        to->words[w] |= set->words[w];
    }
}

static void first_of_all(di_terms *t, uint32_t list, uint32_t count, di_byte_set *set) {
    di_byte_set all;
    memset(&all, 0xFF, sizeof all);
    for (uint32_t i = 0; i < count; i++) {
        di_byte_set one = {0};
        di_terms_first(t, t->list[list + i], &one);
        for (int w = 0; w < 4; w++) {
            all.words[w] &= one.words[w];
        }
    }
    add_set(set, &all);
}

void di_terms_first(di_terms *t, di_term x, di_byte_set *set) {
    di_term_node n = t->nodes[x]; /* a copy: a key's hook may make terms */
    while (n.kind == DI_KIND_CAT) {
        di_terms_first(t, n.a, set);
        if (!di_term_nullable(t, n.a)) {
            return;
        }
        n = t->nodes[x = n.b];
    }
    switch (n.kind) {
    case DI_KIND_NONE:
    case DI_KIND_EMPTY:
    case DI_KIND_FINAL:
        break;
    case DI_KIND_BYTES:
        add_set(set, &t->sets[n.a]);
        break;
    case DI_KIND_ALT:
        for (uint32_t i = 0; i < n.b && n.b <= MAX_FIRST; i++) {
            di_terms_first(t, t->list[n.a + i], set);
        }
        if (n.b > MAX_FIRST) {
            memset(set, 0xFF, sizeof *set);
        }
        break;
    case DI_KIND_AND:
        first_of_all(t, n.a, n.b, set);
        break;
    case DI_KIND_REPEAT:
        di_terms_first(t, n.a, set);
        break;
    case DI_KIND_WORDS:
        for (uint32_t e = 0; e < t->words[n.a].count; e++) {
            di_byte_set_add(set, t->edges[t->words[n.a].first + e].byte);
        }
        break;
    case DI_KIND_STRING:
        di_string_first(t, x, set);
        break;
    case DI_KIND_MULTIPLE:
        for (unsigned b = '0'; b <= '9'; b++) {
            di_byte_set_add(set, b);
        }
        di_byte_set_add(set, '.');
        break;
    case DI_KIND_KEY:
        t->hooks.first(t->hooks.context, t, x, set);
        break;
    default:
        memset(set, 0xFF, sizeof *set);
    }
}

static uint32_t hash_set(const di_byte_set *s) {
    uint64_t h = s->words[0] * 0x9E3779B97F4A7C15ull ^ s->words[1];
    h = (h ^ h >> 31) * 0xBF58476D1CE4E5B9ull ^ s->words[2];
    h = (h ^ h >> 29) * 0x94D049BB133111EBull ^ s->words[3];
    return (uint32_t)(h ^ h >> 32);
}

/* Maps are found by a scan backwards: a grammar has few kinds of them, the latest most likely. */
static const di_class_map *class_map(di_terms *t, const di_byte_set *starts) {
    uint32_t hash = hash_set(starts);
    for (size_t i = t->num_maps; i > 0; i--) {
        di_class_map *m = t->maps[i - 1];
        if (m->hash_next == hash && memcmp(&m->starts, starts, sizeof *starts) == 0) {
            return m;
        }
    }
    di_class_map *m = di_calloc(1, sizeof *m);
    di_class_map **maps = m ? di_grow(t->maps, t->num_maps, &t->cap_maps, sizeof *maps) : NULL;
    if (!maps || !di_terms_charge(t, sizeof *m)) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        if (maps) {
            t->maps = maps;
        }
        di_free(m);
        return NULL;
    }
    t->maps = maps;
    t->maps[t->num_maps++] = m;
    m->starts = *starts;
    m->hash_next = hash;
    for (unsigned b = 0; b < 256; b++) {
        if (b == 0 || di_byte_set_has(starts, b)) {
            m->sample[m->count++] = (uint8_t)b;
        }
        m->of[b] = (uint8_t)(m->count - 1);
    }
    return m;
}

di_term_row *di_term_make_row(di_terms *t, di_term x) {
    if (t->nodes[x].row) {
        return t->nodes[x].row;
    }
    di_byte_set starts = {0};
    di_terms_boundaries(t, x, &starts);
    const di_class_map *map = class_map(t, &starts);
    if (!map) {
        return NULL;
    }
    size_t bytes = sizeof(di_term_row) + map->count * sizeof(di_term);
    di_term_row *row = di_alloc(bytes);
    if (!row || !di_terms_charge(t, bytes)) {
        di_free(row);
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    row->map = map;
    memset(row->to, 0xFF, map->count * sizeof(di_term));
    t->nodes[x].row = row;
    return row;
}

void di_terms_drop_rows(di_terms *t) {
    for (size_t i = 0; i < t->num_nodes; i++) {
        di_term_row *row = t->nodes[i].row;
        if (row) {
            t->bytes -= sizeof *row + row->map->count * sizeof(di_term);
            di_free(row);
            t->nodes[i].row = NULL;
        }
    }
}

/* ---- derivatives ---- */

static bool count_work(di_terms *t) {
    if (++t->work > t->max_work) {
        di_terms_fail(t, DI_ERR_UNSUPPORTED, "too complex: takes too long to compile");
        return false;
    }
    return true;
}

/* The derivative by way of the row; may denote nothing without being NONE. */
static di_term remembered(di_terms *t, di_term x, uint8_t byte) {
    uint8_t flags = t->nodes[x].flags;
    if (flags & DI_TERM_FLEETING) {
        return di_term_derive(t, x, byte);
    }
    if (!(flags & DI_TERM_TOUCHED) && !t->nodes[x].row) {
        t->nodes[x].flags |= DI_TERM_TOUCHED;
        return count_work(t) ? di_term_derive(t, x, byte) : DI_TERM_NONE;
    }
    di_term_row *row = di_term_make_row(t, x);
    if (!row) {
        return DI_TERM_NONE;
    }
    uint8_t class = row->map->of[byte];
    if (row->to[class] == UINT32_MAX) {
        if (!count_work(t)) {
            return DI_TERM_NONE;
        }
        di_term y = di_term_derive(t, x, byte);
        if (t->fault.code != DI_OK) {
            return DI_TERM_NONE;
        }
        row->to[class] = y;
    }
    return row->to[class];
}

static di_term derive_cat(di_terms *t, di_term x, uint8_t byte) {
    size_t mark = t->num_scratch;
    for (;;) {
        di_term a = t->nodes[x].a, b = t->nodes[x].b;
        di_term d = di_term_cat(t, di_term_derive(t, a, byte), b);
        if (d != DI_TERM_NONE && !di_terms_push(t, d)) {
            break;
        }
        if (!di_term_nullable(t, a)) {
            break;
        }
        if (t->nodes[b].kind != DI_KIND_CAT) {
            d = di_term_derive(t, b, byte);
            if (d != DI_TERM_NONE) {
                di_terms_push(t, d);
            }
            break;
        }
        x = b;
    }
    return di_terms_take_alt(t, mark);
}

static di_term derive_list(di_terms *t, di_term x, uint8_t byte) {
    bool all = t->nodes[x].kind == DI_KIND_AND;
    uint32_t first = t->nodes[x].a, count = t->nodes[x].b, kept = 0;
    di_term few[16];
    di_term *of = count <= 16 ? few : di_alloc(count * sizeof *of);
    if (!of) {
        return di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    bool none = false;
    for (uint32_t i = 0; i < count && !none; i++) {
        di_term y = t->list[first + i];
        di_term d = all ? remembered(t, y, byte) : di_term_derive(t, y, byte);
        if (d != DI_TERM_NONE) {
            of[kept++] = d;
        } else {
            none = all;
        }
    }
    di_term result = none || kept == 0 ? DI_TERM_NONE
                     : kept == 1       ? of[0]
                     : all             ? di_term_and(t, of, kept)
                                       : di_term_alt(t, of, kept);
    if (of != few) {
        di_free(of);
    }
    return result;
}

/* State of MULTIPLE: b = remainder (UINT32_MAX: no digit yet), c = decimals left << 2 | point seen
 * << 1 | a digit behind it seen. A decimal's value counts up to the last decimal; the ones behind
 * must be zeros. */
static di_term multiple_at(di_terms *t, uint32_t m, uint32_t remainder, uint32_t phase) {
    uint64_t scale = 1, rest = remainder;
    uint32_t left = phase >> 2;
    assert(m > 0);
    for (uint32_t i = 0; i < left; i++) {
        scale = scale > m ? scale : scale * 10;
        rest = rest * 10 % m;
    }
    if (phase & 2 && rest != 0 && m - rest >= scale) {
        return DI_TERM_NONE; /* the decimals left cannot make up the remainder */
    }
    bool whole = rest == 0 && (!(phase & 2) || phase & 1);
    return di_term_intern(t, DI_KIND_MULTIPLE, DI_TERM_REGULAR | (whole ? DI_TERM_NULLABLE : 0u), m,
                          remainder, phase);
}

static di_term derive_multiple(di_terms *t, di_term x, uint8_t byte) {
    uint32_t m = t->nodes[x].a, remainder = t->nodes[x].b, phase = t->nodes[x].c;
    if (byte == '.' && !(phase & 2) && remainder != UINT32_MAX) {
        return multiple_at(t, m, remainder, phase | 2);
    }
    if (byte < '0' || byte > '9') {
        return DI_TERM_NONE;
    }
    uint32_t digit = byte - '0';
    if (phase & 2 && phase >> 2 == 0) {
        return digit == 0 ? multiple_at(t, m, remainder, phase | 1) : DI_TERM_NONE;
    }
    uint64_t before = remainder == UINT32_MAX ? 0 : remainder;
    return multiple_at(t, m, (uint32_t)((before * 10 + digit) % m),
                       phase & 2 ? (phase - 4) | 1 : phase);
}

di_term di_term_derive(di_terms *t, di_term x, uint8_t byte) {
    const di_term_node *n = &t->nodes[x];
    switch (n->kind) {
    case DI_KIND_BYTES:
        return di_byte_set_has(&t->sets[n->a], byte) ? DI_TERM_EMPTY : DI_TERM_NONE;
    case DI_KIND_CAT:
        return derive_cat(t, x, byte);
    case DI_KIND_ALT:
    case DI_KIND_AND:
        return derive_list(t, x, byte);
    case DI_KIND_NOT:
        return di_term_not(t, remembered(t, n->a, byte));
    case DI_KIND_REPEAT: {
        uint32_t body = n->a, low = n->b, high = n->c;
        di_term d = di_term_derive(t, body, byte);
        if (d == DI_TERM_NONE) {
            return DI_TERM_NONE;
        }
        return di_term_cat(t, d,
                           di_term_repeat(t, body, low ? low - 1 : 0,
                                          high == DI_TERM_UNBOUNDED ? high : high - 1));
    }
    case DI_KIND_WORDS: {
        bool found;
        uint32_t node = di_word_step(t, n->a, byte, &found);
        if (!found) {
            return DI_TERM_NONE;
        }
        const di_word_node *w = &t->words[node];
        if (w->count == 0) {
            return DI_TERM_EMPTY;
        }
        return di_term_intern(t, DI_KIND_WORDS,
                              DI_TERM_REGULAR | (w->final ? DI_TERM_NULLABLE : 0u), node, 0, 0);
    }
    case DI_KIND_STRING:
        return di_string_derive(t, x, byte);
    case DI_KIND_MULTIPLE:
        return derive_multiple(t, x, byte);
    case DI_KIND_KEY:
        return t->hooks.derive(t->hooks.context, t, x, byte);
    default:
        return DI_TERM_NONE;
    }
}

di_term di_term_step_slow(di_terms *t, di_term x, uint8_t byte) {
    di_term y = remembered(t, x, byte);
    if (y != DI_TERM_NONE && !di_term_alive(t, y)) {
        if (t->fault.code == DI_OK && t->nodes[x].row) {
            t->nodes[x].row->to[t->nodes[x].row->map->of[byte]] = DI_TERM_NONE;
        }
        return DI_TERM_NONE;
    }
    return y;
}

/* ---- whether a term denotes anything ---- */

/* A search's queue: terms, and for each the entry it was reached from. Searches nest: a derivative
 * of a JSON string asks whether its text can go on. */
typedef struct live_queue {
    struct {
        di_term term;
        uint32_t from;
    } * entries;
    size_t count, capacity;
    uint32_t epoch;
} live_queue;

static bool enqueue(di_terms *t, live_queue *q, di_term x, uint32_t from) {
    void *entries = di_grow(q->entries, q->count, &q->capacity, sizeof *q->entries);
    if (!entries) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return false;
    }
    q->entries = entries;
    q->entries[q->count].term = x;
    q->entries[q->count++].from = from;
    t->nodes[x].mark = q->epoch;
    return true;
}

/* 1 = denotes something, 0 = nothing, -1 = must be searched. */
static int known(di_terms *t, di_term x) {
    const di_term_node *n = &t->nodes[x];
    if (x == DI_TERM_NONE || n->flags & DI_TERM_DEAD) {
        return 0;
    }
    if (n->flags & (DI_TERM_LIVE | DI_TERM_NULLABLE) || !(n->flags & DI_TERM_INEXACT)) {
        return 1;
    }
    if (n->kind == DI_KIND_STRING) {
        return di_string_alive(t, x);
    }
    return -1;
}

/* Looks at what follows entry i: 1 = that denotes something, 0 = go on, -1 = fault. */
static int look(di_terms *t, live_queue *q, size_t i) {
    di_term at = q->entries[i].term;
    di_term_row *row = di_term_make_row(t, at);
    for (uint32_t k = 0; row && k < row->map->count; k++) {
        di_term y = remembered(t, at, row->map->sample[k]);
        int alive = y == DI_TERM_NONE || t->nodes[y].mark == q->epoch ? 0 : known(t, y);
        if (t->fault.code != DI_OK) {
            return -1;
        }
        if (alive > 0) {
            return 1;
        }
        if (alive < 0 && !enqueue(t, q, y, (uint32_t)i)) {
            return -1;
        }
    }
    return row ? 0 : -1;
}

/* Breadth-first over derivatives until something known to denote something; the path there is
 * marked, or, if there is no way on, all that was seen is dead. */
static bool search(di_terms *t, di_term x) {
    live_queue q = {.epoch = ++t->epoch};
    int found = enqueue(t, &q, x, 0) ? 0 : -1;
    size_t i = 0;
    for (; found == 0 && i < q.count; i++) {
        found = look(t, &q, i);
        if (q.count > MAX_SEARCH) {
            di_terms_fail(t, DI_ERR_UNSUPPORTED,
                          "too complex: cannot tell whether its parts can hold at once");
            found = -1;
        }
    }
    if (found > 0) {
        for (size_t j = i - 1;; j = q.entries[j].from) {
            t->nodes[q.entries[j].term].flags |= DI_TERM_LIVE;
            if (j == 0) {
                break;
            }
        }
    }
    for (size_t j = 0; found == 0 && j < q.count; j++) {
        t->nodes[q.entries[j].term].flags |= DI_TERM_DEAD;
    }
    di_free(q.entries);
    return found > 0;
}

bool di_term_alive(di_terms *t, di_term x) {
    int alive = known(t, x);
    bool lives = (alive > 0 || (alive < 0 && search(t, x))) && t->fault.code == DI_OK;
    t->nodes[x].flags |= lives ? DI_TERM_LIVE : 0;
    return lives;
}
