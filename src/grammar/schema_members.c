/* The states of an object while it is written: which names may come, and what follows each; see
 * schema_internal.h. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

/* ---- states ---- */

static uint32_t seen_words(const object_table *o) {
    return (o->num_names + 31) / 32;
}

static bool has_seen(const di_schema *s, const object_state *x, uint32_t name) {
    return s->options.any_order && s->seen_words[x->seen + name / 32] >> name % 32 & 1;
}

static bool same_state(const di_schema *s, const object_state *a, const object_state *b) {
    return a->table == b->table && a->count == b->count && a->next == b->next &&
           a->exists == b->exists && a->extras == b->extras && a->first == b->first &&
           a->kept == b->kept && a->members == b->members && a->avoid == b->avoid &&
           (!s->options.any_order || s->objects[a->table].num_names == 0 ||
            memcmp(s->seen_words + a->seen, s->seen_words + b->seen,
                   seen_words(&s->objects[a->table]) * sizeof *s->seen_words) == 0);
}

/* Names that still must come, and can. */
static void remaining(const di_schema *s, const object_state *x, uint32_t *required,
                      uint32_t *possible) {
    const object_table *o = &s->objects[x->table];
    *required = *possible = 0;
    if (!s->options.any_order) {
        *required = x->extras ? 0 : o->required_from[x->next];
        *possible = x->extras ? 0 : o->possible_from[x->next];
        return;
    }
    for (uint32_t i = 0; i < o->num_names; i++) {
        if (!has_seen(s, x, i)) {
            *required += o->names[i].required;
            *possible += o->names[i].possible;
        }
    }
}

static uint32_t hash_state(const di_schema *s, const object_state *x) {
    uint32_t hash = x->table * 0x9E3779B9u ^ x->count * 0x85EBCA6Bu ^ x->next * 0xC2B2AE35u ^
                    x->exists * 31 ^ x->extras ^ x->first * 2u;
    hash = (hash ^ x->members * 0x27D4EB2Fu ^ x->kept) * 0x01000193u ^ x->avoid * 0x165667B1u;
    uint32_t words = s->options.any_order ? seen_words(&s->objects[x->table]) : 0;
    for (uint32_t w = 0; w < words; w++) {
        hash = (hash ^ s->seen_words[x->seen + w]) * 0x01000193u;
    }
    return hash ^ hash >> 15;
}

static bool widen_buckets(di_schema *s) {
    uint32_t count = s->num_object_buckets ? 4 * s->num_object_buckets : 64;
    uint32_t *buckets = schema_new_buckets(s, &s->object_buckets, &s->num_object_buckets, count);
    for (uint32_t i = 0; buckets && i < s->num_object_states; i++) {
        uint32_t at = hash_state(s, &s->object_states[i]) % count;
        s->object_states[i].hash_next = buckets[at];
        buckets[at] = i;
    }
    return buckets != NULL;
}

/* x's set of names lies at the end of seen_words; it is dropped if the state is known. */
static uint32_t intern_state(di_schema *s, const object_state *x) {
    if (s->num_object_states >= s->num_object_buckets && !widen_buckets(s)) {
        return UINT32_MAX;
    }
    uint32_t words = s->options.any_order ? seen_words(&s->objects[x->table]) : 0;
    uint32_t bucket = hash_state(s, x) % s->num_object_buckets;
    for (uint32_t i = s->object_buckets[bucket]; i != UINT32_MAX;
         i = s->object_states[i].hash_next) {
        if (same_state(s, &s->object_states[i], x)) {
            s->num_seen = x->seen;
            return i;
        }
    }
    object_state *states =
        di_grow(s->object_states, s->num_object_states, &s->cap_object_states, sizeof *states);
    if (!states) {
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    s->object_states = states;
    if (!di_terms_charge(s->t, sizeof *states + words * 4)) {
        return UINT32_MAX;
    }
    uint32_t id = (uint32_t)s->num_object_states++;
    s->object_states[id] = *x;
    s->object_states[id].term = DI_TERM_NONE;
    s->object_states[id].extra = s->object_states[id].differs = 0;
    s->object_states[id].plain = UINT32_MAX;
    remaining(s, x, &s->object_states[id].required, &s->object_states[id].possible);
    s->object_states[id].hash_next = s->object_buckets[bucket];
    s->object_buckets[bucket] = id;
    return id;
}

/* Room for a set at the end of seen_words, a copy of `from` or empty. */
static bool open_seen(di_schema *s, object_state *x, uint32_t from) {
    uint32_t words = s->options.any_order ? seen_words(&s->objects[x->table]) : 0;
    x->seen = (uint32_t)s->num_seen;
    for (uint32_t w = 0; w < words; w++) {
        uint32_t *grown = di_grow(s->seen_words, s->num_seen, &s->cap_seen, sizeof *grown);
        if (!grown) {
            di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
            return false;
        }
        s->seen_words = grown;
        s->seen_words[s->num_seen++] = from == UINT32_MAX ? 0 : s->seen_words[from + w];
    }
    return true;
}

/* Whether demand `e` for a member can still be fulfilled. */
static bool can_exist(di_schema *s, const object_state *x, uint32_t e) {
    const object_table *o = &s->objects[x->table];
    if (o->extras_possible) {
        return true;
    }
    for (uint32_t i = x->extras ? o->num_names : x->next; i < o->num_names; i++) {
        if (o->names[i].possible && o->names[i].exists >> e & 1 && !has_seen(s, x, i)) {
            return true;
        }
    }
    return false;
}

/* Whether the object can still be completed. */
static bool feasible(di_schema *s, const object_state *x) {
    const object_table *o = &s->objects[x->table];
    uint32_t required, possible;
    remaining(s, x, &required, &possible);
    uint32_t missing = ~x->exists & ((1u << o->num_exists) - 1);
    for (uint32_t e = 0; e < o->num_exists; e++) {
        if (missing >> e & 1 && !can_exist(s, x, e)) {
            return false;
        }
    }
    if (missing && required == 0) {
        required = 1;
    }
    return (o->high == DI_TERM_UNBOUNDED || x->count + required <= o->high) &&
           (o->extras_possible || x->count + possible >= o->low);
}

static uint32_t count_one_more(const object_table *o, uint32_t count) {
    return o->high != DI_TERM_UNBOUNDED || count < o->low ? count + 1 : count;
}

/* The state behind a declared name. UINT32_MAX: it may not come, or an error. */
static uint32_t after_name(di_schema *s, uint32_t from, uint32_t name, uint32_t exists) {
    object_state x = s->object_states[from];
    const object_table *o = &s->objects[x.table];
    if (!o->names[name].possible || has_seen(s, &x, name)) {
        return UINT32_MAX;
    }
    if (!s->options.any_order) {
        if (x.extras || name < x.next || o->required_from[x.next] > o->required_from[name]) {
            return UINT32_MAX;
        }
        x.next = name + 1;
    }
    x.count = count_one_more(o, x.count);
    x.first = false;
    x.exists |= exists;
    if (!open_seen(s, &x, x.seen)) {
        return UINT32_MAX;
    }
    if (s->options.any_order) {
        s->seen_words[x.seen + name / 32] |= 1u << name % 32;
    }
    if (!feasible(s, &x)) {
        s->num_seen = x.seen;
        return UINT32_MAX;
    }
    return intern_state(s, &x);
}

/* The state behind a name that is not declared. */
static uint32_t after_extra(di_schema *s, uint32_t from, uint32_t exists) {
    object_state x = s->object_states[from];
    const object_table *o = &s->objects[x.table];
    if (!s->options.any_order) {
        if (o->required_from[x.next] > 0 && !x.extras) {
            return UINT32_MAX;
        }
        x.extras = true;
        x.next = o->num_names;
    }
    x.count = count_one_more(o, x.count);
    x.first = false;
    x.exists |= exists;
    if (!open_seen(s, &x, x.seen)) {
        return UINT32_MAX;
    }
    if (!feasible(s, &x)) {
        s->num_seen = x.seen;
        return UINT32_MAX;
    }
    return intern_state(s, &x);
}

bool schema_extras_allowed(di_schema *s, uint32_t state) {
    object_state *x = &s->object_states[state];
    if (x->extra == 0) {
        bool allowed =
            s->objects[x->table].extras_possible && after_extra(s, state, UINT32_MAX) != UINT32_MAX;
        s->object_states[state].extra = allowed ? 2 : 1;
    }
    return s->object_states[state].extra == 2;
}

/* Whether a declared name may come, whatever is to be avoided: as after_name, without making the
 * state behind it. */
static bool name_possible(di_schema *s, uint32_t state, uint32_t name) {
    const object_state *x = &s->object_states[state];
    const object_table *o = &s->objects[x->table];
    const object_name *n = &o->names[name];
    if (o->num_exists > 0) {
        return after_name(s, state, name, UINT32_MAX) != UINT32_MAX;
    }
    uint32_t required = x->required - n->required, possible = x->possible - 1;
    if (!n->possible || has_seen(s, x, name)) {
        return false;
    }
    if (!s->options.any_order) {
        if (x->extras || name < x->next || o->required_from[x->next] > o->required_from[name]) {
            return false;
        }
        required = o->required_from[name + 1];
        possible = o->possible_from[name + 1];
    }
    uint32_t count = count_one_more(o, x->count);
    return (o->high == DI_TERM_UNBOUNDED || count + required <= o->high) &&
           (o->extras_possible || count + possible >= o->low);
}

/* ---- kept objects, which must not become some that have been ---- */

static bool complete(const di_schema *s, const object_state *x) {
    const object_table *o = &s->objects[x->table];
    uint32_t required, possible;
    remaining(s, x, &required, &possible);
    return required == 0 && x->count >= o->low && x->exists == (1u << o->num_exists) - 1;
}

/* Whether it may end here. */
static bool may_close(di_schema *s, const object_state *x) {
    return complete(s, x) &&
           (x->avoid == 0 || !schema_set_has(s, x->avoid, schema_record_object(s, x->members)));
}

/* The state behind a member's value, `state` being that behind its name. */
static uint32_t after_value(di_schema *s, uint32_t state, record name, record value) {
    object_state x = s->object_states[state];
    x.members = schema_record(s, RECORD_MEMBER, x.members, name, value);
    x.avoid = schema_set_by_member(s, x.avoid, name, value);
    if (x.members == RECORD_NONE || x.avoid == RECORD_NONE || !open_seen(s, &x, x.seen)) {
        return UINT32_MAX;
    }
    return intern_state(s, &x);
}

static record name_record(di_schema *s, const object_state *x, uint32_t name) {
    const object_name *n = &s->objects[x->table].names[name];
    return schema_record_text(s, n->text, n->size);
}

/* Whether the object can still become one that need not be avoided. */
static bool can_differ(di_schema *s, uint32_t state);

/* The values of a member, `state` being that behind its name, that leave no way out: of those in
 * what is to be avoided, for any other is one. */
static record dead_values(di_schema *s, uint32_t state, record name) {
    record dead = 0, avoid = s->object_states[state].avoid;
    if (avoid == 0 || schema_object_roomy(s, s->object_states[state].table)) {
        return 0;
    }
    for (record i = avoid; i && dead != RECORD_NONE; i = schema_record_at(s, i)->before) {
        record value = schema_record_member(s, schema_record_at(s, i)->a, name);
        if (value == RECORD_NONE || schema_set_has(s, dead, value)) {
            continue;
        }
        uint32_t next = after_value(s, state, name, value);
        if (next == UINT32_MAX || !can_differ(s, next)) {
            dead = schema_set_with(s, dead, value);
        }
    }
    return dead;
}

/* Whether some value of what is to be avoided lets the member's object go on to another. */
static bool value_differs(di_schema *s, uint32_t state, record name, demand d) {
    record avoid = s->object_states[state].avoid;
    for (record i = avoid; i; i = schema_record_at(s, i)->before) {
        record value = schema_record_member(s, schema_record_at(s, i)->a, name);
        if (value != RECORD_NONE && schema_record_meets(s, value, d)) {
            uint32_t next = after_value(s, state, name, value);
            if (next != UINT32_MAX && can_differ(s, next)) {
                return true;
            }
        }
    }
    return false;
}

static record values_at(di_schema *s, record avoid, record name) {
    record values = 0;
    for (record i = avoid; i && values != RECORD_NONE; i = schema_record_at(s, i)->before) {
        record value = schema_record_member(s, schema_record_at(s, i)->a, name);
        values = value == RECORD_NONE ? values : schema_set_with(s, values, value);
    }
    return values;
}

/* A member counts for none of the demands that it could fulfil (bits), or for one, or for all: the
 * e-th way, e from 0 to the number of demands and one more. False: it is none of its own. */
static bool claim_of(uint32_t num_exists, uint32_t exists, uint32_t e, uint32_t *claim) {
    *claim = e == 0 ? 0 : e <= num_exists ? exists & 1u << (e - 1) : exists;
    return e == 0 || (*claim != 0 && (e <= num_exists || (*claim & (*claim - 1)) != 0));
}

/* What a member's value must be to count so. */
static demand claimed(di_schema *s, uint32_t table, demand d, uint32_t claim) {
    for (uint32_t k = 0; claim >> k && d != UINT32_MAX; k++) {
        d = claim >> k & 1 ? schema_demand_and(s, d, s->objects[table].exists[k].value) : d;
    }
    return d;
}

/* Whether a declared name may come next and leaves a way to an object that need not be avoided, in
 * one of the ways it can count; `test` says so of one. */
typedef bool (*name_test)(di_schema *s, uint32_t next, record name, demand d);

static bool some_way(di_schema *s, uint32_t state, uint32_t i, name_test test) {
    const object_state x = s->object_states[state];
    const object_table o = s->objects[x.table];
    record name = name_record(s, &x, i);
    uint32_t exists = o.names[i].exists & ~x.exists, claim;
    for (uint32_t e = 0; e <= o.num_exists + 1; e++) {
        if (!claim_of(o.num_exists, exists, e, &claim)) {
            continue;
        }
        uint32_t next = after_name(s, state, i, claim);
        demand d = claimed(s, x.table, o.names[i].value, claim);
        if (next != UINT32_MAX && d != UINT32_MAX && test(s, next, name, d)) {
            return true;
        }
    }
    return false;
}

static bool value_or_other_differs(di_schema *s, uint32_t next, record name, demand d) {
    record values = values_at(s, s->object_states[next].avoid, name);
    return schema_inhabited_without(s, d, values) || value_differs(s, next, name, d);
}

static bool has_live_value(di_schema *s, uint32_t next, record name, demand d) {
    return schema_inhabited_without(s, d, dead_values(s, next, name));
}

static bool search_difference(di_schema *s, uint32_t state) {
    const object_state x = s->object_states[state];
    if (!schema_may_search(s)) {
        return false;
    }
    bool found = may_close(s, &x);
    uint32_t num_names = x.extras ? 0 : s->objects[x.table].num_names;
    for (uint32_t i = 0; i < num_names && !found && s->t->fault.code == DI_OK; i++) {
        found = name_possible(s, state, i) && some_way(s, state, i, value_or_other_differs);
    }
    return found;
}

static bool can_differ(di_schema *s, uint32_t state) {
    const object_state x = s->object_states[state];
    if (x.avoid == 0 || schema_object_roomy(s, x.table)) {
        return true;
    }
    if (x.differs == 0) {
        bool differs = search_difference(s, state);
        s->object_states[state].differs = differs ? 2 : 1;
    }
    return s->object_states[state].differs == 2;
}

bool schema_name_allowed(di_schema *s, uint32_t state, uint32_t name) {
    if (!name_possible(s, state, name)) {
        return false;
    }
    const object_state x = s->object_states[state];
    return x.avoid == 0 || schema_object_roomy(s, x.table) ||
           some_way(s, state, name, has_live_value);
}

/* Whether what is to be avoided keeps no name from coming. */
static bool possible_are_allowed(di_schema *s, uint32_t state) {
    const object_state x = s->object_states[state];
    if (x.avoid == 0 || schema_object_roomy(s, x.table)) {
        return true;
    }
    for (uint32_t i = 0; i < s->objects[x.table].num_names; i++) {
        if (name_possible(s, state, i) && !schema_name_allowed(s, state, i)) {
            return false;
        }
    }
    return true;
}

uint32_t schema_plain_state(di_schema *s, uint32_t state) {
    object_state x = s->object_states[state];
    if (x.plain == UINT32_MAX) {
        uint32_t plain = state;
        object_state y = x;
        y.kept = false;
        y.members = y.avoid = 0;
        if (x.kept && possible_are_allowed(s, state) && open_seen(s, &y, y.seen)) {
            plain = intern_state(s, &y);
        }
        s->object_states[state].plain = x.plain = plain;
    }
    return x.plain;
}

/* ---- terms ---- */

static di_term lazy_object(di_schema *s, uint32_t state) {
    return state == UINT32_MAX ? DI_TERM_NONE
                               : di_term_special(s->t, DI_KIND_LAZY, LAZY_OBJECT, state, 0);
}

/* UINT32_MAX: no such object, or an error. */
static uint32_t start_state(di_schema *s, uint32_t table, bool kept, record avoid) {
    object_state x = {.table = table, .first = true, .kept = kept, .avoid = avoid};
    if (!schema_object_settle(s, table) || !open_seen(s, &x, UINT32_MAX) || !feasible(s, &x)) {
        return UINT32_MAX;
    }
    uint32_t state = intern_state(s, &x);
    return state == UINT32_MAX || !can_differ(s, state) ? UINT32_MAX : state;
}

di_term schema_object_start(di_schema *s, uint32_t table) {
    return lazy_object(s, start_state(s, table, false, 0));
}

di_term schema_object_start_kept(di_schema *s, uint32_t table, record avoid) {
    return lazy_object(s, start_state(s, table, true, avoid));
}

bool schema_object_differs(di_schema *s, uint32_t table, record avoid) {
    return start_state(s, table, true, avoid) != UINT32_MAX;
}

/* Of an object that is complete. A call without parameters has an empty line. */
static di_term object_end(di_schema *s, const object_state *x) {
    if (!s->objects[x->table].markup) {
        return di_term_byte(s->t, '}', '}');
    }
    const char *end = x->first ? "\n" MARKUP_CALL_END : MARKUP_CALL_END;
    return di_term_literal(s->t, end, strlen(end));
}

/* What stands before a member's name. */
static di_term name_begin(di_schema *s, const object_state *x) {
    if (s->objects[x->table].markup) {
        return di_term_literal(s->t, MARKUP_PARAMETER, strlen(MARKUP_PARAMETER));
    }
    return x->first ? s->quote
                    : di_term_cat3(s->t, di_term_byte(s->t, ',', ','), s->space, s->quote);
}

/* In a kept object no name comes twice, so that it is plain what it is. */
static void leave_out_names(di_schema *s, const object_state *x, key_state *k) {
    k->kept = x->kept && s->objects[x->table].extras_possible;
    if (!k->kept || x->members == 0 || !(x->extras || s->options.any_order)) {
        return;
    }
    di_term others = di_term_text_without(s->t, schema_set_strings(s, x->members, true));
    k->allowed = di_term_and2(s->t, k->allowed, others);
    for (uint32_t p = 0; p < s->objects[x->table].num_patterns; p++) {
        k->patterns[p] = di_term_and2(s->t, k->patterns[p], others);
    }
}

di_term schema_object_expand(di_schema *s, uint32_t id) {
    if (s->object_states[id].term != DI_TERM_NONE) {
        return s->object_states[id].term;
    }
    object_state x = s->object_states[id];
    const object_table *o = &s->objects[x.table];
    di_terms *t = s->t;
    di_term close = DI_TERM_NONE, member = DI_TERM_NONE;
    if (may_close(s, &x)) {
        close = di_term_cat(t, object_end(s, &x), di_term_final(t, TAG_CLOSE));
    }
    bool extra = schema_extras_allowed(s, id);
    if (extra || schema_names_allowed(s, id, 0)) {
        key_state k = {
            .table = x.table, .node = o->num_names ? 0 : UINT32_MAX, .allowed = o->allowed_names};
        memcpy(k.patterns, o->patterns, sizeof k.patterns);
        leave_out_names(s, &x, &k);
        o = &s->objects[x.table];
        di_term key = schema_key_term(s, id, &k);
        member = di_term_cat(t, name_begin(s, &x), o->markup ? key : di_term_string(t, key));
    }
    di_term rest = di_term_cat3(t, s->objects[x.table].markup ? DI_TERM_EMPTY : s->space,
                                di_term_alt2(t, close, member),
                                di_term_special(t, DI_KIND_RESUME, LAZY_MEMBER, id, 0));
    s->object_states[id].term = rest;
    return rest;
}

/* A value, and the rest of the object. */
static di_term value_then(di_schema *s, demand d, uint32_t state, record name) {
    if (d == UINT32_MAX || state == UINT32_MAX || !schema_inhabited(s, d)) {
        return DI_TERM_NONE;
    }
    if (s->object_states[state].kept) {
        return di_term_cat(s->t, schema_kept_value(s, d, dead_values(s, state, name)),
                           di_term_special(s->t, DI_KIND_RESUME, LAZY_WRITTEN, state, name));
    }
    bool markup = s->objects[s->object_states[state].table].markup;
    di_term value = markup ? schema_markup_value(s, d) : schema_value(s, d);
    return di_term_cat(s->t, value, lazy_object(s, state));
}

di_term schema_object_written(di_schema *s, uint32_t state, record name, record value) {
    return value == RECORD_NONE ? DI_TERM_NONE : lazy_object(s, after_value(s, state, name, value));
}

/* A colon, unless it is the parameter of a call. */
bool schema_behind_key(void *schema, di_term resume, di_byte_set *set) {
    di_schema *s = schema;
    const di_term_node *n = &s->t->nodes[resume];
    if (n->a != LAZY_MEMBER || s->objects[s->object_states[n->b].table].markup) {
        return false;
    }
    di_byte_set_add(set, ':');
    di_terms_first(s->t, s->space, set);
    return true;
}

di_term schema_object_resume(di_schema *s, uint32_t id, uint32_t tag) {
    object_state x = s->object_states[id];
    if (tag == TAG_CLOSE) {
        record value = x.kept ? schema_record_object(s, x.members) : RECORD_NONE;
        return value == RECORD_NONE ? DI_TERM_EMPTY : di_term_final(s->t, value);
    }
    if (tag == DI_NO_TAG) {
        return DI_TERM_NONE;
    }
    object_table o = s->objects[x.table];
    bool extra = tag >= o.num_names;
    uint32_t exists = 0;
    record name = 0;
    demand d;
    if (extra) {
        uint32_t bits = tag - o.num_names;
        if (x.kept) {
            name = schema_record_at(s, bits)->a;
            bits = schema_record_at(s, bits)->b;
        }
        d = schema_extra_demand(s, x.table, bits);
        for (uint32_t e = 0; e < o.num_exists; e++) {
            bool hit = bits & o.exists[e].patterns;
            exists |= (uint32_t)(o.exists[e].additional ? !hit : hit) << e;
        }
    } else {
        d = o.names[tag].value;
        name = x.kept ? name_record(s, &x, tag) : 0;
        exists = o.names[tag].exists;
    }
    exists &= ~x.exists;
    di_term result = DI_TERM_NONE;
    for (uint32_t e = 0; e <= o.num_exists + 1; e++) {
        uint32_t claim;
        if (!claim_of(o.num_exists, exists, e, &claim)) {
            continue;
        }
        demand both = claimed(s, x.table, d, claim);
        uint32_t state = extra ? after_extra(s, id, claim) : after_name(s, id, tag, claim);
        result = di_term_alt2(s->t, result, value_then(s, both, state, name));
    }
    if (o.markup) {
        return result;
    }
    return di_term_cat3(s->t, s->space, di_term_byte(s->t, ':', ':'),
                        di_term_cat(s->t, s->space, result));
}
