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

/* ---- uniqueItems ---- */

/* The list of values that a schema gives, DI_DOC_NONE if it gives none. */
static uint32_t listed_values(di_schema *s, uint32_t node, int depth) {
    uint32_t found = di_doc_member(&s->doc, node, "enum");
    if (found != DI_DOC_NONE && s->doc.nodes[found].type == DI_DOC_ARRAY) {
        return found;
    }
    uint32_t ref = di_doc_member(&s->doc, node, "$ref"), target;
    if (ref != DI_DOC_NONE && depth < 16 && s->doc.nodes[ref].type == DI_DOC_STRING &&
        schema_resolve(s, ref, &target)) {
        return listed_values(s, target, depth + 1);
    }
    return DI_DOC_NONE;
}

/* Whether two values of a list are one: a demand for both can be met. */
static bool same_value(di_schema *s, uint32_t a, uint32_t b) {
    const di_doc_node *x = &s->doc.nodes[a], *y = &s->doc.nodes[b];
    if (x->type != y->type) {
        return false;
    }
    if (x->type == DI_DOC_STRING) {
        return x->size == y->size && memcmp(x->text, y->text, x->size) == 0;
    }
    lit both[2] = {LIT(LIT_EQUALS, a), LIT(LIT_EQUALS, b)};
    demand d = schema_demand(s, both, 2);
    return d != UINT32_MAX && schema_inhabited(s, d);
}

static bool set_choices(di_schema *s, uint32_t list, array_table *a) {
    a->choices = di_calloc(SCHEMA_MAX_UNIQUE, sizeof *a->choices);
    if (!a->choices) {
        return schema_no_memory(s);
    }
    for (uint32_t i = s->doc.nodes[list].first; i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        bool have = false;
        for (uint32_t k = 0; k < a->num_choices && !have; k++) {
            have = same_value(s, a->choices[k] >> 2, i);
        }
        if (!have) {
            a->choices[a->num_choices++] = LIT(LIT_EQUALS, i);
        }
    }
    return schema_check(s);
}

/* Over a list of values that is not too long the state knows which have come; else elements must be
 * strings, which is known later. */
static bool make_unique(di_schema *s, const shape *x, const rule *unique, array_table *a) {
    uint32_t list = DI_DOC_NONE;
    for (uint32_t i = 0; i < x->count && list == DI_DOC_NONE; i++) {
        const rule *r = rule_at(s, x, i);
        if (r->kind == RULE_ITEMS && r->low == 0 && r->value < LIT_TRUE &&
            (r->value & 3) == LIT_SCHEMA) {
            list = listed_values(s, r->value >> 2, 0);
        }
    }
    if (!schema_check(s)) {
        return false;
    }
    bool finite = list != DI_DOC_NONE && s->doc.nodes[list].count <= SCHEMA_MAX_UNIQUE &&
                  a->num_prefix == 0 && a->num_contains == 0;
    if (finite) {
        return set_choices(s, list, a);
    }
    a->unique = unique->node;
    return true;
}

static bool refuse_unique(di_schema *s, uint32_t table, const char *why) {
    uint32_t node = s->arrays[table].unique;
    s->arrays[table].unique = DI_DOC_NONE;
    return schema_unsupported(s, node, why);
}

/* What elements that must be unlike each other can be. */
static bool find_texts(di_schema *s, uint32_t table) {
    const array_table a = s->arrays[table];
    di_term texts = DI_TERM_NONE;
    bool strings = a.num_prefix == 0 && a.num_contains == 0;
    if (strings && !schema_know(s, a.rest)) {
        return false;
    }
    for (uint32_t i = 0; strings && i < s->demands[a.rest].shape_count; i++) {
        const shape *x = &s->shapes[s->demands[a.rest].shape_first + i];
        strings = x->types == TYPE_STRING;
        texts = di_term_alt2(s->t, texts, x->string);
    }
    bool known = true;
    if (!strings) {
        return refuse_unique(s, table, "is enforced over strings, or an enum of 64 values, alone");
    }
    if (!schema_unique_suffice(s, texts, a.low, &known) && known) {
        s->arrays[table].high = a.low - 1; /* there are too few: no such array */
    }
    s->arrays[table].texts = texts;
    return known || refuse_unique(s, table, "cannot tell whether there are enough strings");
}

/* How many of the choices an element can be. */
static uint32_t possible_choices(di_schema *s, const array_table *a) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->num_choices; i++) {
        demand d = schema_demand_and(s, a->rest, a->choices[i]);
        count += d != UINT32_MAX && schema_inhabited(s, d);
    }
    return count;
}

/* ---- tables ---- */

bool schema_array(di_schema *s, const shape *x, uint32_t *table) {
    array_table a = {.high = DI_TERM_UNBOUNDED, .unique = DI_DOC_NONE};
    const rule *unique;
    if (!read_rules(s, x, &a, &unique)) {
        return false;
    }
    if (unique && a.high > 1 && !make_unique(s, x, unique, &a)) {
        di_free(a.choices);
        return false;
    }
    array_table *arrays = di_grow(s->arrays, s->num_arrays, &s->cap_arrays, sizeof *arrays);
    a.prefix = di_calloc(a.num_prefix + 1, sizeof *a.prefix);
    if (!arrays || !a.prefix) {
        s->arrays = arrays ? arrays : s->arrays;
        di_free(a.prefix);
        di_free(a.choices);
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
    if (a.choices) {
        uint32_t most = possible_choices(s, &a);
        return a.high < most ? a.high : most;
    }
    if (i == a.num_prefix && i < a.high && schema_inhabited(s, a.rest)) {
        return a.high;
    }
    return i;
}

bool schema_array_inhabited(di_schema *s, uint32_t table) {
    if (s->arrays[table].unique != DI_DOC_NONE && s->arrays[table].low > 1 &&
        s->arrays[table].texts == DI_TERM_NONE && s->demands[s->arrays[table].rest].known != 1 &&
        !find_texts(s, table)) {
        return false;
    }
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
    if (longest(s, table) < least) {
        return false;
    }
    for (uint32_t c = 0; c < a.num_contains; c++) {
        uint32_t places = 0;
        for (uint32_t i = 0; i <= a.num_prefix && i < a.high; i++) {
            demand d = schema_demand_and(s, element(&a, i), a.contains[c].value);
            if (d != UINT32_MAX && schema_inhabited(s, d)) {
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
        if (s->arrays[table].unique != DI_DOC_NONE && s->arrays[table].texts == DI_TERM_NONE &&
            !find_texts(s, table)) {
            return false;
        }
        uint32_t high = longest(s, table);
        s->arrays[table].high = high;
        s->arrays[table].settled = true;
    }
    return s->t->fault.code == DI_OK;
}

bool schema_array_demands(di_schema *s, uint32_t table, demand_fn f, void *context) {
    if (!settle(s, table)) {
        return false;
    }
    array_table a = s->arrays[table];
    for (uint32_t i = 0; i < a.num_choices; i++) {
        demand d = schema_demand_and(s, a.rest, a.choices[i]);
        if (d == UINT32_MAX || !f(s, d, context)) {
            return false;
        }
    }
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
    return a->table == b->table && a->count == b->count && a->used == b->used &&
           memcmp(a->found, b->found, sizeof a->found) == 0;
}

/* UINT32_MAX after an error. */
static uint32_t intern_state(di_schema *s, const array_state *x) {
    uint32_t hash = x->table * 0x9E3779B9u ^ x->count * 0x85EBCA6Bu ^
                    (uint32_t)((x->used ^ x->used >> 32) * 0xC2B2AE35u);
    for (int c = 0; c < SCHEMA_MAX_CONTAINS; c++) {
        hash = hash * 31 + x->found[c];
    }
    uint32_t bucket = (hash ^ hash >> 16) % 1024;
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
    s->array_states[id].term = DI_TERM_NONE;
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

/* The next element, with the choices (bits) of what it is to count for. */
static di_term element_term(di_schema *s, const array_state *x, unsigned choices) {
    const array_table a = s->arrays[x->table];
    array_state next = *x;
    uint32_t cap = a.low > a.num_prefix ? a.low : a.num_prefix;
    if (a.high != DI_TERM_UNBOUNDED || next.count < cap) {
        next.count++;
    }
    demand d = element(&a, x->count);
    for (uint32_t c = 0; c < a.num_contains && d != UINT32_MAX; c++) {
        bool bounded = a.contains[c].high != DI_TERM_UNBOUNDED;
        if (choices >> c & 1) {
            if (x->found[c] >= (bounded ? a.contains[c].high : a.contains[c].low)) {
                return DI_TERM_NONE;
            }
            next.found[c]++;
            d = schema_demand_and(s, d, a.contains[c].value);
        } else if (bounded) {
            lit value = a.contains[c].value;
            d = schema_demand_and(s, d,
                                  value == LIT_TRUE    ? LIT_FALSE
                                  : value == LIT_FALSE ? LIT_TRUE
                                                       : value ^ 1);
        }
    }
    if (d == UINT32_MAX || !feasible(&a, &next) || !schema_inhabited(s, d)) {
        return DI_TERM_NONE;
    }
    uint32_t state = intern_state(s, &next);
    if (state == UINT32_MAX) {
        return DI_TERM_NONE;
    }
    return di_term_cat(s->t, schema_value(s, d),
                       di_term_special(s->t, DI_KIND_LAZY, LAZY_ARRAY, state, 0));
}

/* The next element, one of the choices that have not come. */
static di_term unique_term(di_schema *s, const array_state *x) {
    const array_table a = s->arrays[x->table];
    size_t mark = s->t->num_scratch;
    for (uint32_t i = 0; i < a.num_choices; i++) {
        demand d = x->used >> i & 1 ? UINT32_MAX : schema_demand_and(s, a.rest, a.choices[i]);
        if (d == UINT32_MAX || !schema_inhabited(s, d)) {
            continue;
        }
        array_state next = *x;
        next.count++;
        next.used |= 1ull << i;
        uint32_t state = intern_state(s, &next);
        if (state != UINT32_MAX) {
            di_term rest = di_term_special(s->t, DI_KIND_LAZY, LAZY_ARRAY, state, 0);
            di_terms_push(s->t, di_term_cat(s->t, schema_value(s, d), rest));
        }
    }
    return di_terms_take_alt(s->t, mark);
}

/* The next element, a string that has not come. */
static di_term unlike_term(di_schema *s, uint32_t id, const array_state *x) {
    di_term texts = s->arrays[x->table].texts;
    return di_term_cat3(s->t, s->quote, schema_unique_element(s, texts, (uint32_t)x->used),
                        di_term_special(s->t, DI_KIND_RESUME, LAZY_ELEMENT, id, 0));
}

/* Behind such an element, which has made the set. */
di_term schema_array_resume(di_schema *s, uint32_t id, uint32_t set) {
    array_state next = s->array_states[id];
    const array_table *a = &s->arrays[next.table];
    if (a->high != DI_TERM_UNBOUNDED || next.count < a->low) {
        next.count++;
    }
    next.used = set;
    uint32_t state = intern_state(s, &next);
    return state == UINT32_MAX ? DI_TERM_NONE
                               : di_term_special(s->t, DI_KIND_LAZY, LAZY_ARRAY, state, 0);
}

di_term schema_array_start(di_schema *s, uint32_t table) {
    if (!settle(s, table)) {
        return DI_TERM_NONE;
    }
    array_state x = {.table = table};
    uint32_t state = intern_state(s, &x);
    return state == UINT32_MAX ? DI_TERM_NONE
                               : di_term_special(s->t, DI_KIND_LAZY, LAZY_ARRAY, state, 1);
}

/* c of the LAZY term: 1 before the first element. */
di_term schema_array_expand(di_schema *s, uint32_t id, bool first) {
    array_state x = s->array_states[id];
    array_table a = s->arrays[x.table];
    di_terms *t = s->t;
    di_term space = s->space, elements = DI_TERM_NONE, close = DI_TERM_NONE;
    bool complete = x.count >= a.low;
    for (uint32_t c = 0; c < a.num_contains; c++) {
        complete &= x.found[c] >= a.contains[c].low;
    }
    if (complete) {
        close = di_term_cat(t, space, di_term_byte(t, ']', ']'));
    }
    if (a.high == DI_TERM_UNBOUNDED || x.count < a.high) {
        bool unlike = a.unique != DI_DOC_NONE, plain = !a.choices && !unlike;
        for (unsigned choices = 0; plain && choices < 1u << a.num_contains; choices++) {
            elements = di_term_alt2(t, elements, element_term(s, &x, choices));
        }
        elements = a.choices ? unique_term(s, &x) : unlike ? unlike_term(s, id, &x) : elements;
        di_term before = first ? space : di_term_cat3(t, space, di_term_byte(t, ',', ','), space);
        elements = di_term_cat(t, before, elements);
    }
    return di_term_alt2(t, close, elements);
}

void schema_free_arrays(di_schema *s) {
    for (size_t i = 0; i < s->num_arrays; i++) {
        di_free(s->arrays[i].prefix);
        di_free(s->arrays[i].choices);
    }
    di_free(s->arrays);
    di_free(s->array_states);
}
