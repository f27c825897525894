/* uniqueItems over strings: no element may be one that has come. The next element is a KEY term, as
 * names of objects are: it knows which texts have come and how far its own has got, and ends with
 * the number of the set that holds both. What the text may be is a regular term without the texts
 * of the set, so that no beginning is let in that leads to them alone. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

enum { NUM_BUCKETS = 1024, MAX_DEPTH = 64, MAX_LOOKS = 100000, NO_SET = 0, NO_TEXT = 0 };

/* A text is its last byte and what comes before it; number 0 is the empty one. */
typedef struct unique_text {
    uint32_t before, length, hash_next;
    uint8_t byte;
} unique_text;

/* A set is the text that came last and the set before it; number 0 is the empty one. */
typedef struct unique_set {
    uint32_t before, text, count, hash_next;
} unique_set;

struct unique_tables {
    unique_text *texts;
    size_t num_texts, cap_texts;
    unique_set *sets;
    size_t num_sets, cap_sets;
    uint32_t text_buckets[NUM_BUCKETS], set_buckets[NUM_BUCKETS];
};

static uint32_t bucket_of(uint32_t a, uint32_t b) {
    uint32_t hash = a * 0x9E3779B9u ^ b * 0x85EBCA6Bu;
    return (hash ^ hash >> 15) % NUM_BUCKETS;
}

static struct unique_tables *tables(di_schema *s) {
    if (s->unique) {
        return s->unique;
    }
    struct unique_tables *u = di_calloc(1, sizeof *u);
    unique_text *texts = u ? di_grow(NULL, 0, &u->cap_texts, sizeof *texts) : NULL;
    unique_set *sets = texts ? di_grow(NULL, 0, &u->cap_sets, sizeof *sets) : NULL;
    if (!sets || !di_terms_charge(s->t, sizeof *u)) {
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        di_free(texts);
        di_free(sets);
        di_free(u);
        return NULL;
    }
    texts[0] = (unique_text){0};
    sets[0] = (unique_set){0};
    u->texts = texts;
    u->sets = sets;
    u->num_texts = u->num_sets = 1;
    memset(u->text_buckets, 0xFF, sizeof u->text_buckets);
    memset(u->set_buckets, 0xFF, sizeof u->set_buckets);
    s->unique = u;
    return u;
}

void schema_free_unique(di_schema *s) {
    if (s->unique) {
        di_free(s->unique->texts);
        di_free(s->unique->sets);
        di_free(s->unique);
    }
}

/* UINT32_MAX after a fault. */
static uint32_t longer_text(di_schema *s, uint32_t before, uint8_t byte) {
    struct unique_tables *u = tables(s);
    if (!u) {
        return UINT32_MAX;
    }
    uint32_t bucket = bucket_of(before, byte);
    for (uint32_t i = u->text_buckets[bucket]; i != UINT32_MAX; i = u->texts[i].hash_next) {
        if (u->texts[i].before == before && u->texts[i].byte == byte) {
            return i;
        }
    }
    unique_text *texts = di_grow(u->texts, u->num_texts, &u->cap_texts, sizeof *texts);
    if (!texts || !di_terms_charge(s->t, sizeof *texts)) {
        u->texts = texts ? texts : u->texts;
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    u->texts = texts;
    uint32_t id = (uint32_t)u->num_texts++;
    texts[id] = (unique_text){before, texts[before].length + 1, u->text_buckets[bucket], byte};
    u->text_buckets[bucket] = id;
    return id;
}

static uint32_t larger_set(di_schema *s, uint32_t before, uint32_t text) {
    struct unique_tables *u = tables(s);
    if (!u) {
        return DI_NO_TAG;
    }
    uint32_t bucket = bucket_of(before, text);
    for (uint32_t i = u->set_buckets[bucket]; i != UINT32_MAX; i = u->sets[i].hash_next) {
        if (u->sets[i].before == before && u->sets[i].text == text) {
            return i;
        }
    }
    unique_set *sets = di_grow(u->sets, u->num_sets, &u->cap_sets, sizeof *sets);
    if (!sets || !di_terms_charge(s->t, sizeof *sets)) {
        u->sets = sets ? sets : u->sets;
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return DI_NO_TAG;
    }
    u->sets = sets;
    uint32_t id = (uint32_t)u->num_sets++;
    sets[id] = (unique_set){before, text, sets[before].count + 1, u->set_buckets[bucket]};
    u->set_buckets[bucket] = id;
    return id;
}

/* The texts of a set as a term. */
static di_term texts_of(di_schema *s, uint32_t set) {
    const struct unique_tables *u = tables(s);
    if (!u || set == NO_SET) {
        return DI_TERM_NONE;
    }
    size_t total = 0, n = 0;
    for (uint32_t i = set; i != NO_SET; i = u->sets[i].before) {
        total += u->texts[u->sets[i].text].length;
    }
    di_word *words = di_realloc_array(NULL, u->sets[set].count, sizeof *words);
    char *bytes = di_alloc(total + 1), *end = bytes;
    di_term x = DI_TERM_NONE;
    if (words && bytes) {
        for (uint32_t i = set; i != NO_SET; i = u->sets[i].before) {
            uint32_t text = u->sets[i].text, length = u->texts[text].length;
            words[n++] = (di_word){end, length};
            for (uint32_t k = length; k-- > 0; text = u->texts[text].before) {
                end[k] = (char)u->texts[text].byte;
            }
            end += length;
        }
        x = di_term_words(s->t, words, n);
    } else {
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    di_free(words);
    di_free(bytes);
    return x;
}

/* ---- KEY terms: a the text so far, b what may still follow it, c the set ---- */

static di_term unique_key(di_schema *s, uint32_t text, di_term rest, uint32_t set) {
    return text == UINT32_MAX
               ? DI_TERM_NONE
               : di_term_special(s->t, DI_KIND_KEY, text, rest, set | SCHEMA_UNIQUE_KEY);
}

di_term schema_unique_element(di_schema *s, di_term texts, uint32_t set) {
    di_term rest = texts;
    if (set != NO_SET) {
        rest = di_term_and2(s->t, texts, di_term_text_without(s->t, texts_of(s, set)));
    }
    return di_term_alive(s->t, rest) ? di_term_string(s->t, unique_key(s, NO_TEXT, rest, set))
                                     : DI_TERM_NONE;
}

di_term schema_unique_derive(di_schema *s, di_term key, uint8_t byte) {
    const di_term_node n = s->t->nodes[key];
    di_term rest = di_term_step(s->t, n.b, byte);
    return rest == DI_TERM_NONE
               ? DI_TERM_NONE
               : unique_key(s, longer_text(s, n.a, byte), rest, n.c & ~SCHEMA_UNIQUE_KEY);
}

uint32_t schema_unique_end(di_schema *s, uint32_t text, di_term rest, uint32_t set) {
    return di_term_nullable(s->t, rest) ? larger_set(s, set & ~SCHEMA_UNIQUE_KEY, text) : DI_NO_TAG;
}

/* ---- how many texts there are ---- */

typedef struct counting {
    uint32_t need;
    uint32_t looks;
    bool cut; /* some text was too long to look at */
} counting;

/* At least so many texts, at most `need`: exactly, unless `cut`. The term is alive. */
static uint32_t count_texts(di_schema *s, counting *c, di_term x, int depth) {
    if (depth == MAX_DEPTH || ++c->looks > MAX_LOOKS) {
        c->cut = true;
        return 1;
    }
    uint64_t sum = di_term_nullable(s->t, x);
    const di_term_row *row = di_term_make_row(s->t, x);
    for (uint32_t k = 0; row && k < row->map->count && sum < c->need; k++) {
        unsigned first = row->map->sample[k];
        unsigned next = k + 1 < row->map->count ? row->map->sample[k + 1] : 256;
        di_term y = di_term_step(s->t, x, (uint8_t)first);
        if (y != DI_TERM_NONE) {
            sum += (uint64_t)(next - first) * count_texts(s, c, y, depth + 1);
        }
    }
    return sum < c->need ? (uint32_t)sum : c->need;
}

bool schema_unique_suffice(di_schema *s, di_term texts, uint32_t need, bool *known) {
    counting c = {.need = need};
    bool enough = need == 0 || (di_term_alive(s->t, texts) && count_texts(s, &c, texts, 0) >= need);
    *known = enough || !c.cut;
    return enough;
}
