/* Names of members while they are written: the KEY terms of objects. Which names may come is asked
 * of schema_members.c; called for each byte that a mask or a text looks at. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

static bool same_key(const di_schema *s, const key_state *a, const key_state *b) {
    return a->table == b->table && a->node == b->node && a->allowed == b->allowed &&
           a->kept == b->kept && a->text == b->text &&
           memcmp(a->patterns, b->patterns,
                  s->objects[a->table].num_patterns * sizeof *a->patterns) == 0;
}

static uint32_t hash_key(const di_schema *s, const key_state *x) {
    uint32_t hash = x->table * 0x9E3779B9u ^ x->node * 0x85EBCA6Bu ^ x->allowed * 0x27D4EB2Fu ^
                    x->text * 0xC2B2AE35u ^ x->kept;
    for (uint32_t p = 0; p < s->objects[x->table].num_patterns; p++) {
        hash = (hash ^ x->patterns[p]) * 0x01000193u;
    }
    return hash ^ hash >> 15;
}

static bool widen_keys(di_schema *s) {
    uint32_t count = s->num_key_buckets ? 4 * s->num_key_buckets : 64;
    uint32_t *buckets = schema_new_buckets(s, &s->key_buckets, &s->num_key_buckets, count);
    for (uint32_t i = 0; buckets && i < s->num_keys; i++) {
        uint32_t at = hash_key(s, &s->keys[i]) % count;
        s->keys[i].hash_next = buckets[at];
        buckets[at] = i;
    }
    return buckets != NULL;
}

static uint32_t intern_key(di_schema *s, const key_state *x) {
    if (s->num_keys >= s->num_key_buckets && !widen_keys(s)) {
        return UINT32_MAX;
    }
    uint32_t bucket = hash_key(s, x) % s->num_key_buckets;
    for (uint32_t i = s->key_buckets[bucket]; i != UINT32_MAX; i = s->keys[i].hash_next) {
        if (same_key(s, &s->keys[i], x)) {
            return i;
        }
    }
    key_state *keys = di_grow(s->keys, s->num_keys, &s->cap_keys, sizeof *keys);
    if (!keys) {
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    s->keys = keys;
    if (!di_terms_charge(s->t, sizeof *keys)) {
        return UINT32_MAX;
    }
    uint32_t id = (uint32_t)s->num_keys++;
    s->keys[id] = *x;
    s->keys[id].hash_next = s->key_buckets[bucket];
    s->key_buckets[bucket] = id;
    return id;
}

di_term schema_key_term(di_schema *s, uint32_t state, const key_state *x) {
    uint32_t key = intern_key(s, x);
    if (key == UINT32_MAX) {
        return DI_TERM_NONE;
    }
    if (x->node == UINT32_MAX) {
        state = UINT32_MAX;
    }
    return di_term_special(s->t, DI_KIND_KEY, state, key, x->table);
}

bool schema_names_allowed(di_schema *s, uint32_t state, uint32_t node) {
    const object_table *o = &s->objects[s->object_states[state].table];
    if (o->trie[node].name != UINT32_MAX && schema_name_allowed(s, state, o->trie[node].name)) {
        return true;
    }
    for (uint32_t c = o->trie[node].first_child; c != UINT32_MAX; c = o->trie[c].next_sibling) {
        if (schema_names_allowed(s, state, c)) {
            return true;
        }
    }
    return false;
}

/* Whether an extra name can come of it, patterns alone considered. */
static bool extra_alive(const di_schema *s, const key_state *x) {
    const object_table *o = &s->objects[x->table];
    bool patterns = false;
    for (uint32_t p = 0; p < o->num_patterns; p++) {
        patterns |= x->patterns[p] != DI_TERM_NONE;
    }
    for (uint32_t i = 0; !patterns && i < o->num_extras; i++) {
        if (o->extras[i].matches == 0) {
            return o->extras[i].possible;
        }
    }
    return patterns;
}

/* Behind an ASCII character that begins no declared name, where any text may follow: the same for
 * all states of an object. */
static di_term key_of_others(di_schema *s, uint32_t state, const key_state *x) {
    uint32_t table = x->table;
    key_state y = {.table = table, .node = UINT32_MAX, .allowed = DI_TERM_TEXT};
    bool extra = (state == UINT32_MAX || schema_extras_allowed(s, state)) && extra_alive(s, &y);
    if (extra && s->objects[table].others == DI_TERM_NONE) {
        s->objects[table].others = schema_key_term(s, UINT32_MAX, &y);
    }
    return extra ? s->objects[table].others : DI_TERM_NONE;
}

di_term schema_key_derive(void *schema, di_terms *t, di_term key, uint8_t byte) {
    di_schema *s = schema;
    if (t->nodes[key].c & SCHEMA_UNIQUE_KEY) {
        return schema_unique_derive(s, key, byte);
    }
    uint32_t state = t->nodes[key].a;
    const key_state *from = &s->keys[t->nodes[key].b];
    const object_table *o = &s->objects[from->table];
    uint32_t child = from->node == UINT32_MAX ? UINT32_MAX : o->trie[from->node].first_child;
    while (child != UINT32_MAX && o->trie[child].byte != byte) {
        child = o->trie[child].next_sibling;
    }
    uint32_t num_patterns = o->num_patterns;
    if (child == UINT32_MAX && num_patterns == 0 && !from->kept && byte < 0x80 &&
        from->allowed == DI_TERM_TEXT) {
        return key_of_others(s, state, from);
    }
    key_state x = *from;
    x.node = child;
    x.text = x.kept ? schema_record(s, RECORD_BYTE, x.text, byte, 0) : 0;
    x.allowed = x.text == RECORD_NONE ? DI_TERM_NONE : di_term_step(t, x.allowed, byte);
    for (uint32_t p = 0; p < num_patterns; p++) {
        x.patterns[p] = x.patterns[p] ? di_term_step(t, x.patterns[p], byte) : DI_TERM_NONE;
    }
    if (x.allowed == DI_TERM_NONE) {
        return DI_TERM_NONE;
    }
    bool extra = (state == UINT32_MAX || schema_extras_allowed(s, state)) && extra_alive(s, &x);
    bool named = x.node != UINT32_MAX && schema_names_allowed(s, state, x.node);
    if (!named && !extra) {
        return DI_TERM_NONE;
    }
    di_term to = schema_key_term(s, state, &x);
    if (named && x.allowed == DI_TERM_TEXT && to != DI_TERM_NONE) {
        t->nodes[to].flags |= DI_TERM_LIVE; /* by that name */
    }
    return to;
}

void schema_key_boundaries(void *schema, di_terms *t, di_term key, di_byte_set *starts) {
    di_schema *s = schema;
    if (t->nodes[key].c & SCHEMA_UNIQUE_KEY) {
        memset(starts, 0xFF, sizeof *starts); /* the text tells all bytes apart */
        return;
    }
    key_state x = s->keys[t->nodes[key].b];
    const object_table *o = &s->objects[x.table];
    if (x.kept) {
        memset(starts, 0xFF, sizeof *starts);
        return;
    }
    if (x.node != UINT32_MAX) {
        for (uint32_t c = o->trie[x.node].first_child; c != UINT32_MAX;
             c = o->trie[c].next_sibling) {
            di_byte_set_cut(starts, o->trie[c].byte, o->trie[c].byte);
        }
    }
    di_terms_boundaries(t, x.allowed, starts);
    for (uint32_t p = 0; p < o->num_patterns; p++) {
        di_terms_boundaries(t, x.patterns[p], starts);
    }
}

void schema_key_first(void *schema, di_terms *t, di_term key, di_byte_set *set) {
    di_schema *s = schema;
    if (t->nodes[key].c & SCHEMA_UNIQUE_KEY) {
        memset(set, 0xFF, sizeof *set);
        return;
    }
    uint32_t state = t->nodes[key].a, index = t->nodes[key].b;
    bool extra = state == UINT32_MAX || schema_extras_allowed(s, state);
    const key_state *x = &s->keys[index];
    const object_table *o = &s->objects[x->table];
    if (extra) {
        di_terms_first(t, x->allowed, set);
        return;
    }
    for (uint32_t c = x->node == UINT32_MAX ? x->node : o->trie[x->node].first_child;
         c != UINT32_MAX; c = o->trie[c].next_sibling) {
        di_byte_set_add(set, o->trie[c].byte);
    }
}

uint32_t schema_key_end(void *schema, di_terms *t, uint32_t a, uint32_t b, uint32_t c) {
    di_schema *s = schema;
    if (c & SCHEMA_UNIQUE_KEY) {
        return schema_unique_end(s, a, b, c);
    }
    key_state x = s->keys[b];
    if (!di_term_nullable(t, x.allowed)) {
        return DI_NO_TAG;
    }
    const object_table *o = &s->objects[x.table];
    if (x.node != UINT32_MAX && o->trie[x.node].name != UINT32_MAX) {
        uint32_t name = o->trie[x.node].name;
        return schema_name_allowed(s, a, name) ? name : DI_NO_TAG;
    }
    if (a != UINT32_MAX && !schema_extras_allowed(s, a)) {
        return DI_NO_TAG;
    }
    uint32_t bits = 0;
    for (uint32_t p = 0; p < o->num_patterns; p++) {
        bits |= (uint32_t)(x.patterns[p] && di_term_nullable(t, x.patterns[p])) << p;
    }
    demand d = schema_extra_demand(s, x.table, bits);
    if (d == UINT32_MAX || !schema_inhabited(s, d)) {
        return DI_NO_TAG;
    }
    uint32_t of = x.kept ? schema_record(s, RECORD_NAME, 0, x.text, bits) : bits;
    return of == RECORD_NONE ? DI_NO_TAG : s->objects[x.table].num_names + of;
}

bool schema_key_open(void *schema, di_term key) {
    di_schema *s = schema;
    uint32_t state = s->t->nodes[key].a;
    const key_state *x = &s->keys[s->t->nodes[key].b];
    return s->objects[x->table].any_extra && x->allowed == DI_TERM_TEXT &&
           (state == UINT32_MAX || schema_extras_allowed(s, state));
}

/* Whether names must match the one pattern that there is, for no other may come. */
static bool all_match_pattern(const object_table *o) {
    if (o->num_patterns != 1 || !o->settled) {
        return false;
    }
    bool matching = false, other = false;
    for (uint32_t i = 0; i < o->num_extras; i++) {
        *(o->extras[i].matches ? &matching : &other) |= o->extras[i].possible;
    }
    return matching && !other;
}

/* Whether it is settled which patterns (bits) a name matches, whatever follows. */
static bool patterns_settled(const object_table *o, const key_state *x, uint32_t *bits) {
    *bits = 0;
    for (uint32_t p = 0; p < o->num_patterns; p++) {
        if (x->patterns[p] != DI_TERM_NONE && x->patterns[p] != DI_TERM_TEXT) {
            return false;
        }
        *bits |= (uint32_t)(x->patterns[p] == DI_TERM_TEXT) << p;
    }
    return true;
}

/* Where no declared name is possible any more, and all others, which match the same patterns, or
 * those of the pattern alone;
 * of values that are kept, each of which ends differently; and of kept names, which do so, too. */
bool schema_key_text(void *schema, uint32_t a, uint32_t b, uint32_t c, di_term *text,
                     uint32_t *tag) {
    di_schema *s = schema;
    if (c & SCHEMA_UNIQUE_KEY) {
        if (text) {
            *text = schema_unique_text(s, a, b, c);
        }
        *tag = DI_NO_TAG;
        return true;
    }
    const key_state *x = &s->keys[b];
    const object_table *o = &s->objects[x->table];
    bool undeclared = x->node == UINT32_MAX;
    uint32_t bits;
    bool is_text = undeclared && o->any_extra && patterns_settled(o, x, &bits);
    bool is_pattern = undeclared && x->allowed == DI_TERM_TEXT && all_match_pattern(o);
    *tag = x->kept ? DI_NO_TAG : o->num_names + (is_text ? bits : is_pattern);
    if (text && (is_text || is_pattern)) {
        *text = is_text ? x->allowed : x->patterns[0];
    } else if (text && x->kept) {
        key_state plain = *x;
        plain.kept = false;
        plain.text = 0;
        *text = schema_key_term(s, a == UINT32_MAX ? a : schema_plain_state(s, a), &plain);
    }
    return is_text || is_pattern || *tag == DI_NO_TAG;
}
