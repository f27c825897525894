/* Shapes: making, joining and meeting them, and which a statement about a value becomes; see
 * schema_internal.h and, for who else makes them, schema_shapes.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"
#include "grammar/schema_shapes.h"

/* ---- shapes ---- */

shape schema_any_shape(const di_schema *s) {
    return (shape){.types = TYPE_ALL,
                   .string = DI_TERM_TEXT,
                   .number = s->any_number,
                   .object = UINT32_MAX,
                   .array = UINT32_MAX};
}

shape schema_typed_shape(const di_schema *s, unsigned types) {
    shape x = schema_any_shape(s);
    x.types = (uint8_t)types;
    return x;
}

/* Takes out the types for which nothing is left. */
static void settle_types(di_schema *s, shape *x) {
    if (x->types & TYPE_STRING && !di_term_alive(s->t, x->string)) {
        x->types &= ~TYPE_STRING;
    }
    if (x->types & TYPE_NUMBER && !di_term_alive(s->t, x->number)) {
        x->types &= ~TYPE_NUMBER;
    }
}

bool schema_add_shape(di_schema *s, shapes *list, shape x) {
    settle_types(s, &x);
    if (x.types == 0) {
        return schema_check(s);
    }
    for (size_t i = 0; i < list->count; i++) {
        const shape *y = &list->of[i];
        if (y->types == x.types && y->string == x.string && y->number == x.number &&
            y->count == x.count &&
            (x.count == 0 || memcmp(s->rule_list + y->first, s->rule_list + x.first,
                                    x.count * sizeof *s->rule_list) == 0)) {
            return true;
        }
    }
    shape *of = di_grow(list->of, list->count, &list->capacity, sizeof *of);
    if (!of) {
        return schema_no_memory(s);
    }
    list->of = of;
    list->of[list->count++] = x;
    return true;
}

static bool list_rule(di_schema *s, uint32_t r) {
    uint32_t *list = di_grow(s->rule_list, s->num_rule_list, &s->cap_rule_list, sizeof *list);
    if (!list) {
        return schema_no_memory(s);
    }
    s->rule_list = list;
    s->rule_list[s->num_rule_list++] = r;
    return true;
}

/* The list of a shape under construction lies at the end; else it is copied there. */
static bool own_rules(di_schema *s, shape *x) {
    if (x->first + x->count == s->num_rule_list) {
        return true;
    }
    uint32_t from = x->first;
    x->first = (uint32_t)s->num_rule_list;
    for (uint32_t i = 0; i < x->count; i++) {
        if (!list_rule(s, s->rule_list[from + i])) {
            return false;
        }
    }
    return true;
}

bool schema_add_rule(di_schema *s, shape *x, rule r) {
    rule *rules = di_grow(s->rules, s->num_rules, &s->cap_rules, sizeof *rules);
    if (!rules) {
        return schema_no_memory(s);
    }
    s->rules = rules;
    s->rules[s->num_rules++] = r;
    if (!own_rules(s, x) || !list_rule(s, (uint32_t)s->num_rules - 1)) {
        return false;
    }
    x->count++;
    return true;
}

di_term schema_number_and(di_schema *s, di_term a, di_term b) {
    return a == s->any_number ? b : b == s->any_number ? a : di_term_and2(s->t, a, b);
}

bool schema_meet(di_schema *s, const shape *a, const shape *b, shape *out) {
    *out = (shape){.types = a->types & b->types,
                   .string = a->string == DI_TERM_TEXT   ? b->string
                             : b->string == DI_TERM_TEXT ? a->string
                                                         : di_term_and2(s->t, a->string, b->string),
                   .number = schema_number_and(s, a->number, b->number),
                   .first = a->first,
                   .count = a->count,
                   .object = UINT32_MAX,
                   .array = UINT32_MAX};
    settle_types(s, out);
    if (!(out->types & (TYPE_OBJECT | TYPE_ARRAY))) {
        out->count = 0;
        return schema_check(s);
    }
    if (a->count == 0) {
        out->first = b->first;
        out->count = b->count;
        return schema_check(s);
    }
    for (uint32_t i = 0; i < b->count; i++) {
        uint32_t r = s->rule_list[b->first + i];
        bool have = false;
        for (uint32_t k = 0; k < a->count && !have; k++) {
            have = s->rule_list[a->first + k] == r;
        }
        if (!have) {
            if (!own_rules(s, out) || !list_rule(s, r)) {
                return false;
            }
            out->count++;
        }
    }
    return schema_check(s);
}

bool schema_add_ruled(di_schema *s, shapes *list, unsigned types, const rule *rules, size_t count) {
    shape x = schema_typed_shape(s, types);
    for (size_t i = 0; i < count; i++) {
        if (!schema_add_rule(s, &x, rules[i])) {
            return false;
        }
    }
    return schema_add_shape(s, list, x);
}

/* ---- reading values of keywords ---- */

/* A count, 0 and up; larger ones than fit are as good as the largest. */
bool schema_read_count(di_schema *s, uint32_t node, uint32_t *out) {
    const di_doc_node *n = at(s, node);
    di_decimal d;
    if (n->type != DI_DOC_NUMBER || !di_decimal_parse(&d, n->text, n->size) || d.negative ||
        !di_decimal_is_integer(&d)) {
        return schema_fail(s, DI_ERR_ARGUMENT, node, "must be a whole number, 0 or more");
    }
    if (!di_decimal_to_u32(&d, out) || *out > 1000000000) {
        *out = 1000000000;
    }
    return true;
}

bool schema_read_decimal(di_schema *s, uint32_t node, di_decimal *d) {
    const di_doc_node *n = at(s, node);
    if (n->type != DI_DOC_NUMBER) {
        return schema_fail(s, DI_ERR_ARGUMENT, node, "must be a number");
    }
    return di_decimal_parse(d, n->text, n->size) ||
           schema_fail(s, DI_ERR_UNSUPPORTED, node, "has too many digits");
}

rule schema_named_rule(const di_schema *s, rule_kind kind, uint32_t node, const char *name,
                       uint32_t size, lit value) {
    (void)s;
    return (rule){.kind = (uint8_t)kind,
                  .node = node,
                  .value = value,
                  .name = name,
                  .name_size = size,
                  .high = DI_TERM_UNBOUNDED};
}

rule schema_ranged_rule(rule_kind kind, uint32_t node, uint32_t low, uint32_t high) {
    return (rule){.kind = (uint8_t)kind, .node = node, .value = LIT_TRUE, .low = low, .high = high};
}

bool schema_pattern(di_schema *s, uint32_t node, const char *text, uint32_t size, di_term *out) {
    di_error err = {0};
    if (!di_pattern_compile(s->t, text, size, DI_PATTERN_SEARCH, out, &err)) {
        return schema_fail(s, err.code, node, err.message);
    }
    return true;
}

/* ---- statements ---- */

bool schema_make_shapes(di_schema *s, lit x, shapes *out) {
    if (x == LIT_FALSE) {
        return true;
    }
    uint32_t node = x >> 2;
    switch (x & 3) {
    case LIT_EQUALS:
        return schema_add_equal(s, node, out) && schema_check(s);
    case LIT_NOT_EQUALS:
        return schema_add_unequal(s, node, out) && schema_check(s);
    default:
        break;
    }
    bool negated = (x & 3) == LIT_NOT_SCHEMA, ok;
    switch (at(s, node)->type) {
    case DI_DOC_TRUE:
    case DI_DOC_FALSE:
        ok = (at(s, node)->type == DI_DOC_TRUE) == negated ||
             schema_add_shape(s, out, schema_any_shape(s));
        break;
    case DI_DOC_OBJECT:
        ok = negated ? schema_negative(s, node, out) : schema_positive(s, node, out);
        break;
    default:
        ok = schema_fail(s, DI_ERR_ARGUMENT, node, "a schema must be an object or a boolean");
    }
    return ok && schema_check(s);
}
