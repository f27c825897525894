/* Arrays: what a shape says about elements, and the states while they are written; see
 * schema_internal.h. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

enum { MAX_PREFIX = 10000 };

static const rule *rule_at(const di_schema *s, const shape *x, uint32_t i) {
    return &s->rules[s->rule_list[x->first + i]];
}

/* The demand on element i: of the rules that speak of it. */
static demand element_demand(di_schema *s, const shape *x, uint32_t index) {
    lit literals[SCHEMA_MAX_LITERALS];
    size_t count = 0;
    for (uint32_t i = 0; i < x->count; i++) {
        const rule *r = rule_at(s, x, i);
        bool applies = (r->kind == RULE_PREFIX && r->low == index) ||
                       (r->kind == RULE_ITEMS && r->low <= index);
        if (!applies) {
            continue;
        }
        if (count == SCHEMA_MAX_LITERALS) {
            schema_fail(s, DI_ERR_UNSUPPORTED, r->node, "too many schemas for one element");
            return UINT32_MAX;
        }
        literals[count++] = r->value;
    }
    return schema_demand(s, literals, count);
}

static bool read_rules(di_schema *s, const shape *x, array_table *a, const rule **unique) {
    *unique = NULL;
    for (uint32_t i = 0; i < x->count; i++) {
        const rule *r = rule_at(s, x, i);
        uint32_t prefix = 0;
        switch (r->kind) {
        case RULE_PREFIX:
            prefix = r->low + 1;
            break;
        case RULE_ITEMS:
            prefix = r->low;
            break;
        case RULE_LENGTH:
            a->low = r->low > a->low ? r->low : a->low;
            a->high = r->high < a->high ? r->high : a->high;
            break;
        case RULE_UNIQUE:
            *unique = r;
            break;
        case RULE_CONTAINS:
            if (r->low == 0 && r->high == DI_TERM_UNBOUNDED) {
                break;
            }
            if (a->num_contains == SCHEMA_MAX_CONTAINS) {
                return schema_fail(s, DI_ERR_UNSUPPORTED, r->node, "more than four at once");
            }
            a->contains[a->num_contains].low = r->low;
            a->contains[a->num_contains].high = r->high;
            a->contains[a->num_contains++].value = r->value;
            break;
        default:
            break;
        }
        if (prefix > MAX_PREFIX) {
            return schema_fail(s, DI_ERR_UNSUPPORTED, r->node, "more than 10000 elements");
        }
        a->num_prefix = prefix > a->num_prefix ? prefix : a->num_prefix;
    }
    return true;
}

/* ---- tables ---- */

bool schema_array(di_schema *s, const shape *x, uint32_t *table) {
    array_table a = {.high = DI_TERM_UNBOUNDED, .unique = DI_DOC_NONE};
    const rule *unique;
    if (!read_rules(s, x, &a, &unique)) {
        return false;
    }
    a.unique = unique && a.high > 1 ? unique->node : DI_DOC_NONE;
    array_table *arrays = di_grow(s->arrays, s->num_arrays, &s->cap_arrays, sizeof *arrays);
    a.prefix = di_calloc(a.num_prefix + 1, sizeof *a.prefix);
    if (!arrays || !a.prefix) {
        s->arrays = arrays ? arrays : s->arrays;
        di_free(a.prefix);
        return schema_no_memory(s);
    }
    s->arrays = arrays;
    *table = (uint32_t)s->num_arrays;
    s->arrays[s->num_arrays++] = a; /* owned from here on */
    for (uint32_t i = 0; i <= a.num_prefix; i++) {
        demand d = element_demand(s, x, i);
        if (d == UINT32_MAX) {
            return false;
        }
        *(i == a.num_prefix ? &s->arrays[*table].rest : &a.prefix[i]) = d;
    }
    return true;
}

static demand element(const array_table *a, uint32_t index) {
    return index < a->num_prefix ? a->prefix[index] : a->rest;
}

/* The length that elements allow: up to the first that nothing can be. */
static uint32_t longest(di_schema *s, uint32_t table) {
    array_table a = s->arrays[table];
    uint32_t i = 0;
    while (i < a.num_prefix && i < a.high && schema_inhabited(s, a.prefix[i])) {
        i++;
    }
    if (i == a.num_prefix && i < a.high && schema_inhabited(s, a.rest)) {
        return a.high;
    }
    return i;
}

/* ---- uniqueItems ---- */

static bool refuse_unique(di_schema *s, uint32_t table, const char *why) {
    uint32_t node = s->arrays[table].unique;
    s->arrays[table].unique = DI_DOC_NONE;
    return schema_unsupported(s, node, why);
}

/* Whether each element can be one of so many values that those before it leave some. *known is
 * false if that cannot be told. */
static bool values_suffice(di_schema *s, uint32_t table, bool *known) {
    array_table a = s->arrays[table];
    *known = true;
    for (uint32_t i = 0; i <= a.num_prefix && i < a.low && a.low > 1; i++) {
        bool exact;
        if (schema_count_values(s, element(&a, i), a.low, &exact) < a.low) {
            *known = exact && a.num_prefix == 0;
            return false;
        }
    }
    return true;
}

/* Whether elements of either kind, such as contains has in mind or not, are without end. */
static bool contains_suffices(di_schema *s, uint32_t table) {
    array_table a = s->arrays[table];
    for (uint32_t c = 0; c < a.num_contains; c++) {
        lit value = a.contains[c].value;
        for (int other = 0; other < 2; other++) {
            if (other && a.contains[c].high == DI_TERM_UNBOUNDED) {
                continue;
            }
            demand d =
                value >= LIT_TRUE ? a.rest : schema_demand_and(s, a.rest, value ^ (lit)other);
            bool exact;
            if (d == UINT32_MAX ||
                schema_count_values(s, d, SCHEMA_ENDLESS, &exact) < SCHEMA_ENDLESS) {
                return false;
            }
        }
    }
    return a.num_contains == 0 || a.num_prefix == 0;
}

static bool settle_unique(di_schema *s, uint32_t table) {
    bool known;
    const char *why = NULL;
    if (!values_suffice(s, table, &known)) {
        return known || refuse_unique(s, table, "cannot tell whether there are enough values");
    }
    if (!contains_suffices(s, table)) {
        return refuse_unique(s, table, "is not enforced beside contains of few values");
    }
    for (uint32_t i = 0; i <= s->arrays[table].num_prefix && !why; i++) {
        if (!schema_can_keep(s, element(&s->arrays[table], i), &why)) {
            return false;
        }
    }
    return !why || refuse_unique(s, table, why);
}

bool schema_array_roomy(di_schema *s, uint32_t table) {
    array_table a = s->arrays[table];
    if (a.roomy == 0) {
        bool exact, roomy = a.high == DI_TERM_UNBOUNDED && schema_inhabited(s, a.rest);
        for (uint32_t c = 0; c < a.num_contains; c++) {
            roomy = roomy && a.contains[c].high == DI_TERM_UNBOUNDED;
        }
        roomy = roomy && (a.unique == DI_DOC_NONE ||
                          schema_count_values(s, a.rest, SCHEMA_ENDLESS, &exact) == SCHEMA_ENDLESS);
        s->arrays[table].roomy = roomy ? 2 : 1;
    }
    return s->arrays[table].roomy == 2;
}

/* ---- what values there are ---- */

/* The contrary of a statement. */
static lit contrary(lit value) {
    return value == LIT_TRUE ? LIT_FALSE : value == LIT_FALSE ? LIT_TRUE : value ^ 1;
}

/* Whether an element can count for rule c of contains, whatever it is to the others. */
static bool can_count(di_schema *s, const array_table *a, demand element, uint32_t c) {
    for (unsigned choices = 0; choices < 1u << a->num_contains; choices++) {
        demand d = choices >> c & 1 ? element : UINT32_MAX;
        for (uint32_t k = 0; k < a->num_contains && d != UINT32_MAX; k++) {
            if (choices >> k & 1) {
                d = a->contains[k].high > 0 ? schema_demand_and(s, d, a->contains[k].value)
                                            : UINT32_MAX;
            } else if (a->contains[k].high != DI_TERM_UNBOUNDED) {
                d = schema_demand_and(s, d, contrary(a->contains[k].value));
            }
        }
        if (d != UINT32_MAX && schema_inhabited(s, d)) {
            return true;
        }
    }
    return false;
}

bool schema_array_inhabited(di_schema *s, uint32_t table) {
    array_table a = s->arrays[table];
    if (a.low > a.high) {
        return false;
    }
    uint32_t least = a.low;
    for (uint32_t c = 0; c < a.num_contains; c++) {
        if (a.contains[c].low > a.contains[c].high) {
            return false;
        }
        least = a.contains[c].low > least ? a.contains[c].low : least;
    }
    if (least == 0) {
        return true;
    }
    bool known = true;
    if (longest(s, table) < least ||
        (a.unique != DI_DOC_NONE && !values_suffice(s, table, &known) && known)) {
        return false;
    }
    for (uint32_t c = 0; c < a.num_contains; c++) {
        uint32_t places = 0;
        for (uint32_t i = 0; i <= a.num_prefix && i < a.high; i++) {
            if (can_count(s, &a, element(&a, i), c)) {
                places += i == a.num_prefix ? a.high - a.num_prefix : 1;
            }
        }
        if (places < a.contains[c].low) {
            return false;
        }
    }
    return true;
}

static bool settle(di_schema *s, uint32_t table) {
    if (!s->arrays[table].settled) {
        uint32_t high = longest(s, table);
        s->arrays[table].high = high;
        s->arrays[table].settled = true;
        if (s->arrays[table].unique != DI_DOC_NONE && !settle_unique(s, table)) {
            return false;
        }
    }
    return s->t->fault.code == DI_OK;
}

bool schema_array_demands(di_schema *s, uint32_t table, demand_fn f, void *context) {
    if (!settle(s, table)) {
        return false;
    }
    array_table a = s->arrays[table];
    for (uint32_t i = 0; i <= a.num_prefix && i < a.high; i++) {
        if (!f(s, element(&a, i), context)) {
            return false;
        }
        for (uint32_t c = 0; c < a.num_contains; c++) {
            demand d = schema_demand_and(s, element(&a, i), a.contains[c].value);
            demand e = a.contains[c].high == DI_TERM_UNBOUNDED || a.contains[c].value >= LIT_TRUE
                           ? d
                           : schema_demand_and(s, element(&a, i), a.contains[c].value ^ 1);
            if (d == UINT32_MAX || e == UINT32_MAX || !f(s, d, context) || !f(s, e, context)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- states ---- */

static bool same_state(const array_state *a, const array_state *b) {
    return a->table == b->table && a->count == b->count && a->list == b->list &&
           a->kept == b->kept && a->avoid == b->avoid &&
           memcmp(a->found, b->found, sizeof a->found) == 0;
}

static uint32_t hash_state(const array_state *x) {
    uint32_t hash = x->table * 0x9E3779B9u ^ x->count * 0x85EBCA6Bu ^ x->list * 0xC2B2AE35u ^
                    x->avoid * 0x27D4EB2Fu ^ x->kept;
    for (int c = 0; c < SCHEMA_MAX_CONTAINS; c++) {
        hash = hash * 31 + x->found[c];
    }
    return hash ^ hash >> 16;
}

static bool widen_buckets(di_schema *s) {
    uint32_t count = s->num_array_buckets ? 4 * s->num_array_buckets : 64;
    uint32_t *buckets = schema_new_buckets(s, &s->array_buckets, &s->num_array_buckets, count);
    for (uint32_t i = 0; buckets && i < s->num_array_states; i++) {
        uint32_t at = hash_state(&s->array_states[i]) % count;
        s->array_states[i].hash_next = buckets[at];
        buckets[at] = i;
    }
    return buckets != NULL;
}

/* UINT32_MAX after an error. */
static uint32_t intern_state(di_schema *s, const array_state *x) {
    if (s->num_array_states >= s->num_array_buckets && !widen_buckets(s)) {
        return UINT32_MAX;
    }
    uint32_t bucket = hash_state(x) % s->num_array_buckets;
    for (uint32_t i = s->array_buckets[bucket]; i != UINT32_MAX; i = s->array_states[i].hash_next) {
        if (same_state(&s->array_states[i], x)) {
            return i;
        }
    }
    array_state *states =
        di_grow(s->array_states, s->num_array_states, &s->cap_array_states, sizeof *states);
    if (!states) {
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    s->array_states = states;
    if (!di_terms_charge(s->t, sizeof *states)) {
        return UINT32_MAX;
    }
    uint32_t id = (uint32_t)s->num_array_states++;
    s->array_states[id] = *x;
    s->array_states[id].differs = 0;
    s->array_states[id].hash_next = s->array_buckets[bucket];
    s->array_buckets[bucket] = id;
    return id;
}

/* Whether the elements still possible suffice for what must be contained. */
static bool feasible(const array_table *a, const array_state *x) {
    uint32_t need = 0;
    for (uint32_t c = 0; c < a->num_contains; c++) {
        uint32_t missing = a->contains[c].low > x->found[c] ? a->contains[c].low - x->found[c] : 0;
        need = missing > need ? missing : need;
    }
    return a->high == DI_TERM_UNBOUNDED || x->count + need <= a->high;
}

/* ---- arrays whose elements are kept ---- */

static bool keeps(const di_schema *s, const array_state *x) {
    return x->kept || s->arrays[x->table].unique != DI_DOC_NONE;
}

/* How many elements there are; of those that are kept all count. */
static uint32_t position(const di_schema *s, const array_state *x) {
    return keeps(s, x) ? schema_record_length(s, x->list) : x->count;
}

static bool complete(const di_schema *s, const array_state *x) {
    const array_table *a = &s->arrays[x->table];
    bool enough = x->count >= a->low;
    for (uint32_t c = 0; c < a->num_contains; c++) {
        enough &= x->found[c] >= a->contains[c].low;
    }
    return enough;
}

/* Whether it may end here. */
static bool may_close(di_schema *s, const array_state *x) {
    return complete(s, x) &&
           (x->avoid == 0 ||
            !schema_set_has(s, x->avoid, schema_record(s, RECORD_ARRAY, 0, x->list, 0)));
}

/* The state behind an element's value, `state` counting it already. */
static uint32_t after_value(di_schema *s, uint32_t state, record value) {
    array_state x = s->array_states[state];
    uint32_t index = position(s, &x);
    x.list = x.kept ? schema_record(s, RECORD_LIST, x.list, value, 0)
                    : schema_set_with(s, x.list, value);
    x.avoid = schema_set_by_element(s, x.avoid, index, value);
    return x.list == RECORD_NONE || x.avoid == RECORD_NONE ? UINT32_MAX : intern_state(s, &x);
}

/* Whether the array can still become one that need not be avoided. */
static bool can_differ(di_schema *s, uint32_t state);

/* What the next element must not be, `state` counting it: what has come, and of what is to be
 * avoided the elements that leave no way out. */
static record dead_values(di_schema *s, uint32_t state) {
    const array_state x = s->array_states[state];
    record dead = s->arrays[x.table].unique != DI_DOC_NONE ? x.list : 0;
    if (x.avoid == 0 || schema_array_roomy(s, x.table)) {
        return dead;
    }
    for (record i = x.avoid; i && dead != RECORD_NONE; i = schema_record_at(s, i)->before) {
        record value = schema_record_element(s, schema_record_at(s, i)->a, position(s, &x));
        if (value == RECORD_NONE || schema_set_has(s, dead, value)) {
            continue;
        }
        uint32_t next = after_value(s, state, value);
        if (next == UINT32_MAX || !can_differ(s, next)) {
            dead = schema_set_with(s, dead, value);
        }
    }
    return dead;
}

/* The state that counts one more element, which is to be contained for these rules (bits), and the
 * demand on it; UINT32_MAX = there can be none. */
static uint32_t after_element(di_schema *s, const array_state *x, unsigned choices, demand *d) {
    const array_table a = s->arrays[x->table];
    array_state next = *x;
    uint32_t cap = a.low > a.num_prefix ? a.low : a.num_prefix;
    if (a.high != DI_TERM_UNBOUNDED || next.count < cap) {
        next.count++;
    }
    *d = element(&a, x->count);
    for (uint32_t c = 0; c < a.num_contains && *d != UINT32_MAX; c++) {
        bool bounded = a.contains[c].high != DI_TERM_UNBOUNDED;
        if (choices >> c & 1) {
            if (x->found[c] >= (bounded ? a.contains[c].high : a.contains[c].low)) {
                return UINT32_MAX;
            }
            next.found[c]++;
            *d = schema_demand_and(s, *d, a.contains[c].value);
        } else if (bounded) {
            *d = schema_demand_and(s, *d, contrary(a.contains[c].value));
        }
    }
    bool possible = *d != UINT32_MAX && feasible(&a, &next) && schema_inhabited(s, *d);
    return possible ? intern_state(s, &next) : UINT32_MAX;
}

static bool search_difference(di_schema *s, uint32_t state) {
    const array_state x = s->array_states[state];
    const array_table a = s->arrays[x.table];
    if (!schema_may_search(s)) {
        return false;
    }
    if (may_close(s, &x)) {
        return true;
    }
    demand d;
    uint32_t next = x.count < a.high ? after_element(s, &x, 0, &d) : UINT32_MAX;
    if (next == UINT32_MAX) {
        return false;
    }
    record taken = a.unique != DI_DOC_NONE ? x.list : 0, values = taken;
    for (record i = x.avoid; i && values != RECORD_NONE; i = schema_record_at(s, i)->before) {
        record value = schema_record_element(s, schema_record_at(s, i)->a, position(s, &x));
        values = value == RECORD_NONE ? values : schema_set_with(s, values, value);
    }
    if (schema_inhabited_without(s, d, values)) {
        return true;
    }
    for (record i = x.avoid; i; i = schema_record_at(s, i)->before) {
        record value = schema_record_element(s, schema_record_at(s, i)->a, position(s, &x));
        if (value != RECORD_NONE && !schema_set_has(s, taken, value) &&
            schema_record_meets(s, value, d)) {
            uint32_t behind = after_value(s, next, value);
            if (behind != UINT32_MAX && can_differ(s, behind)) {
                return true;
            }
        }
    }
    return false;
}

static bool can_differ(di_schema *s, uint32_t state) {
    const array_state x = s->array_states[state];
    if (x.avoid == 0 || schema_array_roomy(s, x.table)) {
        return true;
    }
    if (x.differs == 0) {
        bool differs = search_difference(s, state);
        s->array_states[state].differs = differs ? 2 : 1;
    }
    return s->array_states[state].differs == 2;
}

/* ---- terms ---- */

static di_term lazy_array(di_schema *s, uint32_t state, bool first) {
    return state == UINT32_MAX ? DI_TERM_NONE
                               : di_term_special(s->t, DI_KIND_LAZY, LAZY_ARRAY, state, first);
}

/* The next element, with the choices (bits) of what it is to count for, and the rest. */
static di_term element_term(di_schema *s, const array_state *x, unsigned choices) {
    demand d;
    uint32_t state = after_element(s, x, choices, &d);
    if (state == UINT32_MAX) {
        return DI_TERM_NONE;
    }
    if (!keeps(s, x)) {
        return di_term_cat(s->t, schema_value(s, d), lazy_array(s, state, false));
    }
    record dead = dead_values(s, state);
    if (!schema_inhabited_without(s, d, dead)) {
        return DI_TERM_NONE;
    }
    return di_term_cat(s->t, schema_kept_value(s, d, dead),
                       di_term_special(s->t, DI_KIND_RESUME, LAZY_ELEMENT, state, 0));
}

di_term schema_array_resume(di_schema *s, uint32_t state, record value) {
    return value == RECORD_NONE ? DI_TERM_NONE : lazy_array(s, after_value(s, state, value), false);
}

/* UINT32_MAX: no such array, or an error. */
static uint32_t start_state(di_schema *s, uint32_t table, bool kept, record avoid) {
    array_state x = {.table = table, .kept = kept, .avoid = avoid};
    uint32_t state = settle(s, table) ? intern_state(s, &x) : UINT32_MAX;
    return state == UINT32_MAX || !can_differ(s, state) ? UINT32_MAX : state;
}

di_term schema_array_start(di_schema *s, uint32_t table) {
    return lazy_array(s, start_state(s, table, false, 0), true);
}

di_term schema_array_start_kept(di_schema *s, uint32_t table, record avoid) {
    return lazy_array(s, start_state(s, table, true, avoid), true);
}

bool schema_array_differs(di_schema *s, uint32_t table, record avoid) {
    return start_state(s, table, true, avoid) != UINT32_MAX;
}

/* c of the LAZY term: 1 before the first element. */
di_term schema_array_expand(di_schema *s, uint32_t id, bool first) {
    array_state x = s->array_states[id];
    const array_table a = s->arrays[x.table];
    di_terms *t = s->t;
    di_term elements = DI_TERM_NONE, close = DI_TERM_NONE;
    if (may_close(s, &x)) {
        record value = x.kept ? schema_record(s, RECORD_ARRAY, 0, x.list, 0) : RECORD_NONE;
        close = di_term_cat3(t, s->space, di_term_byte(t, ']', ']'),
                             value == RECORD_NONE ? DI_TERM_EMPTY : di_term_final(t, value));
    }
    if (a.high == DI_TERM_UNBOUNDED || x.count < a.high) {
        for (unsigned choices = 0; choices < 1u << a.num_contains; choices++) {
            elements = di_term_alt2(t, elements, element_term(s, &x, choices));
        }
        di_term before =
            first ? s->space : di_term_cat3(t, s->space, di_term_byte(t, ',', ','), s->space);
        elements = di_term_cat(t, before, elements);
    }
    return di_term_alt2(t, close, elements);
}

void schema_free_arrays(di_schema *s) {
    for (size_t i = 0; i < s->num_arrays; i++) {
        di_free(s->arrays[i].prefix);
    }
    di_free(s->arrays);
    di_free(s->array_states);
    di_free(s->array_buckets);
}
