/* What each keyword says, and what its contrary says, as shapes; see schema_internal.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"
#include "grammar/schema_internal.h"

/* ---- shapes ---- */

shape schema_any_shape(const di_schema *s) {
    return (shape){.types = TYPE_ALL,
                   .string = DI_TERM_TEXT,
                   .number = s->any_number,
                   .object = UINT32_MAX,
                   .array = UINT32_MAX};
}

static shape typed_shape(const di_schema *s, unsigned types) {
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

static bool add_ruled(di_schema *s, shapes *list, unsigned types, const rule *rules, size_t count) {
    shape x = typed_shape(s, types);
    for (size_t i = 0; i < count; i++) {
        if (!schema_add_rule(s, &x, rules[i])) {
            return false;
        }
    }
    return schema_add_shape(s, list, x);
}

/* ---- reading values of keywords ---- */

static const di_doc_node *at(const di_schema *s, uint32_t node) {
    return &s->doc.nodes[node];
}

static bool key_is(const di_doc_node *n, const char *key) {
    return strlen(key) == n->key_size && memcmp(key, n->key, n->key_size) == 0;
}

static bool expect(di_schema *s, uint32_t node, di_doc_type type, const char *what) {
    return at(s, node)->type == type || schema_fail(s, DI_ERR_ARGUMENT, node, what);
}

/* A count, 0 and up; larger ones than fit are as good as the largest. */
static bool read_count(di_schema *s, uint32_t node, uint32_t *out) {
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

static bool read_decimal(di_schema *s, uint32_t node, di_decimal *d) {
    const di_doc_node *n = at(s, node);
    if (n->type != DI_DOC_NUMBER) {
        return schema_fail(s, DI_ERR_ARGUMENT, node, "must be a number");
    }
    return di_decimal_parse(d, n->text, n->size) ||
           schema_fail(s, DI_ERR_UNSUPPORTED, node, "has too many digits");
}

static rule named_rule(const di_schema *s, rule_kind kind, uint32_t node, const char *name,
                       uint32_t size, lit value) {
    (void)s;
    return (rule){.kind = (uint8_t)kind,
                  .node = node,
                  .value = value,
                  .name = name,
                  .name_size = size,
                  .high = DI_TERM_UNBOUNDED};
}

static rule ranged_rule(rule_kind kind, uint32_t node, uint32_t low, uint32_t high) {
    return (rule){.kind = (uint8_t)kind, .node = node, .value = LIT_TRUE, .low = low, .high = high};
}

static bool is_true(const di_schema *s, uint32_t node) {
    const di_doc_node *n = at(s, node);
    return n->type == DI_DOC_TRUE || (n->type == DI_DOC_OBJECT && n->count == 0);
}

bool schema_pattern(di_schema *s, uint32_t node, const char *text, uint32_t size, di_term *out) {
    di_error err = {0};
    if (!di_pattern_compile(s->t, text, size, DI_PATTERN_SEARCH, out, &err)) {
        return schema_fail(s, err.code, node, err.message);
    }
    return true;
}

/* ---- constants ---- */

static bool decimal_of(di_schema *s, uint32_t node, di_decimal *d) {
    return read_decimal(s, node, d);
}

/* The spellings to generate of a number: as the schema has it, and plainly. */
static bool spelt(di_schema *s, uint32_t node, di_term *out) {
    di_decimal d;
    const di_doc_node *n = at(s, node);
    if (!decimal_of(s, node, &d)) {
        return false;
    }
    *out = di_term_alt2(s->t, di_number_spelt(s->t, &d), di_term_literal(s->t, n->text, n->size));
    return true;
}

static bool add_equal(di_schema *s, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    shape x = typed_shape(s, 1u << n->type);
    switch (n->type) {
    case DI_DOC_NUMBER:
        x.types = TYPE_NUMBER;
        return spelt(s, node, &x.number) && schema_add_shape(s, out, x);
    case DI_DOC_STRING:
        x.types = TYPE_STRING;
        x.string = n->size ? di_term_literal(s->t, n->text, n->size) : DI_TERM_EMPTY;
        return schema_add_shape(s, out, x);
    case DI_DOC_ARRAY:
    case DI_DOC_OBJECT:
        break;
    default:
        return schema_add_shape(s, out, x);
    }
    bool object = n->type == DI_DOC_OBJECT;
    x.types = object ? TYPE_OBJECT : TYPE_ARRAY;
    bool ok = schema_add_rule(
        s, &x, ranged_rule(object ? RULE_MEMBERS : RULE_LENGTH, node, n->count, n->count));
    for (uint32_t i = at(s, node)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
        const di_doc_node *c = at(s, i);
        lit value = LIT(LIT_EQUALS, i);
        if (object) {
            ok = schema_add_rule(s, &x,
                                 named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, value)) &&
                 schema_add_rule(s, &x,
                                 named_rule(s, RULE_REQUIRED, i, c->key, c->key_size, LIT_TRUE));
        } else {
            rule r = ranged_rule(RULE_PREFIX, i, c->index, 0);
            r.value = value;
            ok = schema_add_rule(s, &x, r);
        }
    }
    return ok && schema_add_shape(s, out, x);
}

static bool add_compound_unequal(di_schema *s, uint32_t node, shapes *out) {
    uint32_t count = at(s, node)->count;
    bool object = at(s, node)->type == DI_DOC_OBJECT;
    unsigned type = object ? TYPE_OBJECT : TYPE_ARRAY;
    rule_kind kind = object ? RULE_MEMBERS : RULE_LENGTH;
    rule fewer = ranged_rule(kind, node, 0, count - 1);
    rule more = ranged_rule(kind, node, count + 1, DI_TERM_UNBOUNDED);
    if (!add_ruled(s, out, TYPE_ALL & ~type, NULL, 0) ||
        (count > 0 && !add_ruled(s, out, type, &fewer, 1)) || !add_ruled(s, out, type, &more, 1)) {
        return false;
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        const di_doc_node *c = at(s, i);
        rule r[2];
        if (object) {
            r[0] = named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, LIT(LIT_NOT_EQUALS, i));
            r[1] = named_rule(s, RULE_REQUIRED, i, c->key, c->key_size, LIT_TRUE);
            rule without = named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, LIT_FALSE);
            if (!add_ruled(s, out, type, &without, 1)) {
                return false;
            }
        } else {
            r[0] = ranged_rule(RULE_PREFIX, i, c->index, 0);
            r[0].value = LIT(LIT_NOT_EQUALS, i);
            r[1] = ranged_rule(RULE_LENGTH, i, c->index + 1, DI_TERM_UNBOUNDED);
        }
        if (!add_ruled(s, out, type, r, 2)) {
            return false;
        }
    }
    return true;
}

static bool add_unequal(di_schema *s, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    shape x = schema_any_shape(s);
    di_decimal d;
    switch (n->type) {
    case DI_DOC_NUMBER:
        if (!decimal_of(s, node, &d)) {
            return false;
        }
        x.number =
            di_term_and2(s->t, s->plain_number, di_term_not(s->t, di_number_equal(s->t, &d)));
        break;
    case DI_DOC_STRING:
        x.string = di_term_text_without(s->t, n->size ? di_term_literal(s->t, n->text, n->size)
                                                      : DI_TERM_EMPTY);
        break;
    case DI_DOC_ARRAY:
    case DI_DOC_OBJECT:
        return add_compound_unequal(s, node, out);
    default:
        x.types = (uint8_t)(TYPE_ALL & ~(1u << n->type));
    }
    return schema_add_shape(s, out, x);
}

/* The strings among the elements of an enum. */
static di_term enum_words(di_schema *s, uint32_t node) {
    uint32_t count = 0;
    di_word *words = di_realloc_array(NULL, at(s, node)->count + 1u, sizeof *words);
    if (!words) {
        return di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for an enum");
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        if (at(s, i)->type == DI_DOC_STRING) {
            words[count++] = (di_word){at(s, i)->text, at(s, i)->size};
        }
    }
    di_term x = di_term_words(s->t, words, count);
    di_free(words);
    return x;
}

static bool add_enum(di_schema *s, uint32_t node, shapes *out) {
    shape x = typed_shape(s, 0);
    x.string = enum_words(s, node);
    x.number = DI_TERM_NONE;
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        uint8_t type = at(s, i)->type;
        di_term number;
        if (type >= DI_DOC_ARRAY) {
            if (!add_equal(s, i, out)) {
                return false;
            }
        } else if (type == DI_DOC_NUMBER) {
            if (!spelt(s, i, &number)) {
                return false;
            }
            x.number = di_term_alt2(s->t, x.number, number);
            x.types |= TYPE_NUMBER;
        } else {
            x.types |= type == DI_DOC_STRING ? TYPE_STRING : 1u << type;
        }
    }
    return schema_add_shape(s, out, x);
}

static bool add_not_enum(di_schema *s, uint32_t node, shapes *out) {
    shape x = schema_any_shape(s);
    x.string = di_term_text_without(s->t, enum_words(s, node));
    shapes list = {0};
    bool ok = true;
    di_decimal d;
    for (uint32_t i = at(s, node)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
        if (at(s, i)->type == DI_DOC_NUMBER) {
            ok = decimal_of(s, i, &d);
            x.number =
                ok ? di_term_and(s->t,
                                 (di_term[]){s->plain_number,
                                             x.number == s->any_number ? s->plain_number : x.number,
                                             di_term_not(s->t, di_number_equal(s->t, &d))},
                                 3)
                   : x.number;
        } else if (at(s, i)->type < DI_DOC_NUMBER) {
            x.types &= (uint8_t) ~(1u << at(s, i)->type);
        }
    }
    ok = ok && schema_add_shape(s, &list, x);
    for (uint32_t i = at(s, node)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
        if (at(s, i)->type >= DI_DOC_ARRAY) {
            ok = schema_and_literal(s, &list, LIT(LIT_NOT_EQUALS, i));
        }
    }
    for (size_t i = 0; ok && i < list.count; i++) {
        ok = schema_add_shape(s, out, list.of[i]);
    }
    di_free(list.of);
    return ok;
}

/* ---- keywords that narrow one shape ---- */

static bool type_bits(di_schema *s, uint32_t node, unsigned *types, bool *integer) {
    static const struct {
        const char *name;
        unsigned types;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_FALSE | TYPE_TRUE},
                 {"number", TYPE_NUMBER}, {"integer", 0},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}, {"any", TYPE_ALL}};
    const di_doc_node *n = at(s, node);
    for (size_t i = 0; n->type == DI_DOC_STRING && i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].name) == n->size && memcmp(names[i].name, n->text, n->size) == 0) {
            *types |= names[i].types;
            *integer |= names[i].types == 0;
            return true;
        }
    }
    return schema_fail(s, DI_ERR_ARGUMENT, node, "is not a type of JSON Schema");
}

static bool read_types(di_schema *s, uint32_t node, unsigned *types, bool *integer) {
    *types = 0;
    *integer = false;
    if (at(s, node)->type != DI_DOC_ARRAY) {
        return type_bits(s, node, types, integer);
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        if (!type_bits(s, i, types, integer)) {
            return false;
        }
    }
    return true;
}

static bool add_types(di_schema *s, uint32_t node, bool negated, shape *x) {
    unsigned types;
    bool integer;
    if (!read_types(s, node, &types, &integer)) {
        return false;
    }
    integer &= !(types & TYPE_NUMBER);
    if (integer) {
        di_term whole = di_number_integer(s->t, !s->draft4);
        x->number = schema_number_and(
            s, x->number,
            negated ? di_term_and2(s->t, s->plain_number, di_term_not(s->t, whole)) : whole);
    }
    types = negated ? TYPE_ALL & ~types : types | (integer ? TYPE_NUMBER : 0);
    x->types &= (uint8_t)types;
    return true;
}

static bool has_true(const di_schema *s, uint32_t schema, const char *key) {
    uint32_t node = di_doc_member(&s->doc, schema, key);
    return node != DI_DOC_NONE && at(s, node)->type == DI_DOC_TRUE;
}

/* The bound a keyword sets; *none if it is draft 4's exclusiveMinimum: true. */
static bool read_bound(di_schema *s, uint32_t schema, uint32_t node, di_number_bound *bound,
                       di_decimal *d, bool *none) {
    const di_doc_node *n = at(s, node);
    *none = n->type == DI_DOC_TRUE || n->type == DI_DOC_FALSE;
    if (key_is(n, "minimum")) {
        *bound = has_true(s, schema, "exclusiveMinimum") ? DI_NUMBER_ABOVE : DI_NUMBER_AT_LEAST;
        *none = false;
    } else if (key_is(n, "maximum")) {
        *bound = has_true(s, schema, "exclusiveMaximum") ? DI_NUMBER_BELOW : DI_NUMBER_AT_MOST;
        *none = false;
    } else {
        *bound = key_is(n, "exclusiveMinimum") ? DI_NUMBER_ABOVE : DI_NUMBER_BELOW;
    }
    return *none || read_decimal(s, node, d);
}

static di_number_bound contrary(di_number_bound bound) {
    static const di_number_bound of[] = {DI_NUMBER_BELOW, DI_NUMBER_AT_MOST, DI_NUMBER_ABOVE,
                                         DI_NUMBER_AT_LEAST};
    return of[bound];
}

/* The numbers (texts) that a keyword allows; *applies is false for other keywords. */
static bool number_keyword(di_schema *s, uint32_t schema, uint32_t node, bool negated,
                           bool *applies, di_term *out) {
    const di_doc_node *n = at(s, node);
    di_decimal d;
    *applies = true;
    if (key_is(n, "multipleOf")) {
        if (!read_decimal(s, node, &d)) {
            return false;
        }
        if (d.negative || d.size == 0) {
            return schema_fail(s, DI_ERR_ARGUMENT, node, "must be above 0");
        }
        if (!di_number_multiple(s->t, &d, out)) {
            *applies = false;
            return schema_unsupported(s, node, "has more than nine digits");
        }
        if (negated) {
            *out = di_term_and2(s->t, s->plain_number, di_term_not(s->t, *out));
        }
        return true;
    }
    if (key_is(n, "minimum") || key_is(n, "maximum") || key_is(n, "exclusiveMinimum") ||
        key_is(n, "exclusiveMaximum")) {
        di_number_bound bound;
        bool none;
        if (!read_bound(s, schema, node, &bound, &d, &none)) {
            return false;
        }
        *applies = !none;
        *out = none ? DI_TERM_NONE : di_number_bounded(s->t, negated ? contrary(bound) : bound, &d);
        return true;
    }
    *applies = false;
    return true;
}

static bool string_keyword(di_schema *s, uint32_t node, bool negated, bool *applies, di_term *out) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    *applies = true;
    if (key_is(n, "minLength")) {
        if (!read_count(s, node, &count)) {
            return false;
        }
        *out = negated ? (count ? di_term_repeat(s->t, DI_TERM_CHAR, 0, count - 1) : DI_TERM_NONE)
                       : di_term_repeat(s->t, DI_TERM_CHAR, count, DI_TERM_UNBOUNDED);
        return true;
    }
    if (key_is(n, "maxLength")) {
        if (!read_count(s, node, &count)) {
            return false;
        }
        *out = negated ? di_term_repeat(s->t, DI_TERM_CHAR, count + 1, DI_TERM_UNBOUNDED)
                       : di_term_repeat(s->t, DI_TERM_CHAR, 0, count);
        return true;
    }
    bool known = false;
    if (key_is(n, "pattern")) {
        if (!expect(s, node, DI_DOC_STRING, "must be a string")) {
            return false;
        }
        known = true;
        if (!schema_pattern(s, node, n->text, n->size, out)) {
            *applies = false;
            return s->options.lenient && s->err && s->err->code == DI_ERR_UNSUPPORTED &&
                   schema_unsupported(s, node, "is not supported");
        }
    } else if (key_is(n, "format") && n->type == DI_DOC_STRING) {
        if (!schema_format(s, node, &known, out)) {
            *applies = false;
            return s->options.lenient && schema_unsupported(s, node, "is not supported");
        }
    }
    *applies = known;
    if (known && negated) {
        *out = di_term_text_without(s->t, *out);
    }
    return true;
}

/* ---- objects and arrays ---- */

static bool add_properties(di_schema *s, uint32_t node, shape *x) {
    if (!expect(s, node, DI_DOC_OBJECT, "must be an object")) {
        return false;
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        if (!schema_add_rule(s, x,
                             named_rule(s, RULE_PROPERTY, i, at(s, i)->key, at(s, i)->key_size,
                                        LIT(LIT_SCHEMA, i)))) {
            return false;
        }
    }
    return true;
}

static bool add_required(di_schema *s, uint32_t node, shape *x) {
    if (!expect(s, node, DI_DOC_ARRAY, "must be an array")) {
        return false;
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        if (!expect(s, i, DI_DOC_STRING, "must be a string") ||
            !schema_add_rule(
                s, x, named_rule(s, RULE_REQUIRED, i, at(s, i)->text, at(s, i)->size, LIT_TRUE))) {
            return false;
        }
    }
    return true;
}

static bool add_patterns(di_schema *s, uint32_t node, shape *x) {
    if (!expect(s, node, DI_DOC_OBJECT, "must be an object")) {
        return false;
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r = named_rule(s, RULE_PATTERN, i, NULL, 0, LIT(LIT_SCHEMA, i));
        if (!schema_pattern(s, i, at(s, i)->key, at(s, i)->key_size, &r.text) ||
            !schema_add_rule(s, x, r)) {
            return false;
        }
    }
    return true;
}

/* The texts that a schema lets strings be. */
static bool texts_of(di_schema *s, lit x, di_term *out) {
    shapes list = {0};
    bool ok = schema_shapes_of(s, x, &list);
    *out = DI_TERM_NONE;
    for (size_t i = 0; ok && i < list.count; i++) {
        if (list.of[i].types & TYPE_STRING) {
            *out = di_term_alt2(s->t, *out, list.of[i].string);
        }
    }
    di_free(list.of);
    return ok;
}

static bool add_names(di_schema *s, uint32_t node, shape *x) {
    rule r = named_rule(s, RULE_NAMES, node, NULL, 0, LIT_TRUE);
    return texts_of(s, LIT(LIT_SCHEMA, node), &r.text) && schema_add_rule(s, x, r);
}

/* Where elements of `items` begin: behind the ones that have schemas of their own. */
static uint32_t prefix_length(const di_schema *s, uint32_t schema) {
    uint32_t prefix = di_doc_member(&s->doc, schema, "prefixItems");
    uint32_t items = di_doc_member(&s->doc, schema, "items");
    if (items != DI_DOC_NONE && at(s, items)->type == DI_DOC_ARRAY) {
        return at(s, items)->count;
    }
    return prefix != DI_DOC_NONE ? at(s, prefix)->count : 0;
}

static bool add_prefix(di_schema *s, uint32_t node, shape *x) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r = ranged_rule(RULE_PREFIX, i, at(s, i)->index, 0);
        r.value = LIT(LIT_SCHEMA, i);
        if (!schema_add_rule(s, x, r)) {
            return false;
        }
    }
    return true;
}

static bool add_items(di_schema *s, uint32_t schema, uint32_t node, shape *x) {
    if (at(s, node)->type == DI_DOC_ARRAY) {
        return add_prefix(s, node, x);
    }
    rule r = ranged_rule(RULE_ITEMS, node, prefix_length(s, schema), 0);
    r.value = LIT(LIT_SCHEMA, node);
    return schema_add_rule(s, x, r);
}

static bool contains_bounds(di_schema *s, uint32_t schema, uint32_t *low, uint32_t *high) {
    uint32_t min = di_doc_member(&s->doc, schema, "minContains");
    uint32_t max = di_doc_member(&s->doc, schema, "maxContains");
    *low = 1;
    *high = DI_TERM_UNBOUNDED;
    return (min == DI_DOC_NONE || read_count(s, min, low)) &&
           (max == DI_DOC_NONE || read_count(s, max, high));
}

static bool object_or_array_keyword(di_schema *s, uint32_t schema, uint32_t node, shape *x) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    if (key_is(n, "properties")) {
        return add_properties(s, node, x);
    }
    if (key_is(n, "required")) {
        if (n->type == DI_DOC_TRUE || n->type == DI_DOC_FALSE) {
            return schema_unsupported(s, node, "draft 3's boolean form is not supported");
        }
        return add_required(s, node, x);
    }
    if (key_is(n, "patternProperties")) {
        return add_patterns(s, node, x);
    }
    if (key_is(n, "additionalProperties")) {
        rule r = named_rule(s, RULE_ADDITIONAL, schema, NULL, 0, LIT(LIT_SCHEMA, node));
        return schema_add_rule(s, x, r);
    }
    if (key_is(n, "propertyNames")) {
        return add_names(s, node, x);
    }
    if (key_is(n, "minProperties") || key_is(n, "maxProperties")) {
        bool min = key_is(n, "minProperties");
        return read_count(s, node, &count) &&
               schema_add_rule(s, x,
                               ranged_rule(RULE_MEMBERS, node, min ? count : 0,
                                           min ? DI_TERM_UNBOUNDED : count));
    }
    if (key_is(n, "minItems") || key_is(n, "maxItems")) {
        bool min = key_is(n, "minItems");
        return read_count(s, node, &count) &&
               schema_add_rule(s, x,
                               ranged_rule(RULE_LENGTH, node, min ? count : 0,
                                           min ? DI_TERM_UNBOUNDED : count));
    }
    if (key_is(n, "items")) {
        return add_items(s, schema, node, x);
    }
    if (key_is(n, "prefixItems")) {
        return expect(s, node, DI_DOC_ARRAY, "must be an array") && add_prefix(s, node, x);
    }
    if (key_is(n, "additionalItems")) {
        uint32_t items = di_doc_member(&s->doc, schema, "items");
        if (items == DI_DOC_NONE || at(s, items)->type != DI_DOC_ARRAY) {
            return true;
        }
        rule r = ranged_rule(RULE_ITEMS, node, at(s, items)->count, 0);
        r.value = LIT(LIT_SCHEMA, node);
        return schema_add_rule(s, x, r);
    }
    if (key_is(n, "contains")) {
        rule r = ranged_rule(RULE_CONTAINS, node, 0, 0);
        r.value = LIT(LIT_SCHEMA, node);
        return contains_bounds(s, schema, &r.low, &r.high) && schema_add_rule(s, x, r);
    }
    if (key_is(n, "uniqueItems") && n->type == DI_DOC_TRUE) {
        return schema_add_rule(s, x, ranged_rule(RULE_UNIQUE, node, 0, 0));
    }
    return true;
}

/* A member of that name brings demands with it: dependentRequired, dependentSchemas and draft 7's
 * dependencies, entry by entry. */
static bool add_dependency(di_schema *s, uint32_t entry, bool negated, shapes *list) {
    const di_doc_node *n = at(s, entry);
    rule present = named_rule(s, RULE_REQUIRED, entry, n->key, n->key_size, LIT_TRUE);
    rule absent = named_rule(s, RULE_PROPERTY, entry, n->key, n->key_size, LIT_FALSE);
    shapes with = {0}, all = {0};
    bool ok = add_ruled(s, &with, TYPE_OBJECT, &present, 1);
    if (n->type != DI_DOC_ARRAY) {
        ok = ok && schema_and_literal(s, &with, LIT(negated ? LIT_NOT_SCHEMA : LIT_SCHEMA, entry));
    } else if (!negated) {
        ok = ok && add_required(s, entry, &with.of[0]);
    } else {
        shapes without = {0};
        for (uint32_t i = n->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            rule r = named_rule(s, RULE_PROPERTY, i, at(s, i)->text, at(s, i)->size, LIT_FALSE);
            ok = add_ruled(s, &without, TYPE_OBJECT, &r, 1);
        }
        ok = ok && schema_product(s, &with, &without);
        di_free(without.of);
    }
    ok = ok && (negated || add_ruled(s, &all, TYPE_ALL, &absent, 1));
    for (size_t i = 0; ok && i < with.count; i++) {
        ok = schema_add_shape(s, &all, with.of[i]);
    }
    if (ok && negated) {
        for (size_t i = 0; ok && i < all.count; i++) {
            ok = schema_add_shape(s, list, all.of[i]);
        }
    } else if (ok) {
        ok = schema_product(s, list, &all);
    }
    di_free(with.of);
    di_free(all.of);
    return ok;
}

/* ---- a schema ---- */

static bool unevaluated(di_schema *s, uint32_t schema, uint32_t node, shape *x) {
    static const char *const others[] = {
        "allOf", "anyOf",   "oneOf", "if", "$ref", "$dynamicRef", "dependentSchemas",
        "not",   "contains"};
    if (is_true(s, node)) {
        return true;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (di_doc_member(&s->doc, schema, others[i]) != DI_DOC_NONE) {
            char why[80];
            snprintf(why, sizeof why, "beside \"%s\" is not supported", others[i]);
            return schema_unsupported(s, node, why);
        }
    }
    /* Alone it is what `additionalProperties` or `items` would be, if they are not there. */
    if (key_is(at(s, node), "unevaluatedProperties")) {
        return di_doc_member(&s->doc, schema, "additionalProperties") != DI_DOC_NONE ||
               schema_add_rule(
                   s, x, named_rule(s, RULE_ADDITIONAL, schema, NULL, 0, LIT(LIT_SCHEMA, node)));
    }
    uint32_t items = di_doc_member(&s->doc, schema, "items");
    if (items != DI_DOC_NONE && at(s, items)->type != DI_DOC_ARRAY) {
        return true;
    }
    rule r = ranged_rule(RULE_ITEMS, node, prefix_length(s, schema), 0);
    r.value = LIT(LIT_SCHEMA, node);
    return schema_add_rule(s, x, r);
}

/* In strict mode what `properties` or `prefixItems` do not name is forbidden. */
static bool add_strict(di_schema *s, uint32_t schema, shape *x) {
    bool named = di_doc_member(&s->doc, schema, "properties") != DI_DOC_NONE;
    bool open = di_doc_member(&s->doc, schema, "additionalProperties") != DI_DOC_NONE ||
                di_doc_member(&s->doc, schema, "unevaluatedProperties") != DI_DOC_NONE;
    if (named && !open &&
        !schema_add_rule(s, x, named_rule(s, RULE_ADDITIONAL, schema, NULL, 0, LIT_FALSE))) {
        return false;
    }
    uint32_t prefix = prefix_length(s, schema);
    uint32_t items = di_doc_member(&s->doc, schema, "items");
    bool more = di_doc_member(&s->doc, schema, "additionalItems") != DI_DOC_NONE ||
                di_doc_member(&s->doc, schema, "unevaluatedItems") != DI_DOC_NONE ||
                (items != DI_DOC_NONE && at(s, items)->type != DI_DOC_ARRAY);
    if (prefix > 0 && !more) {
        rule r = ranged_rule(RULE_ITEMS, schema, prefix, 0);
        r.value = LIT_FALSE;
        return schema_add_rule(s, x, r);
    }
    return true;
}

/* All keywords that do not branch, in one shape. */
static bool simple_keywords(di_schema *s, uint32_t schema, shape *x) {
    for (uint32_t i = at(s, schema)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        bool applies;
        di_term set;
        if (key_is(at(s, i), "type")) {
            if (!add_types(s, i, false, x)) {
                return false;
            }
            continue;
        }
        if (key_is(at(s, i), "unevaluatedProperties") || key_is(at(s, i), "unevaluatedItems")) {
            if (!unevaluated(s, schema, i, x)) {
                return false;
            }
            continue;
        }
        if (key_is(at(s, i), "$recursiveRef") && !schema_unsupported(s, i, "is not supported")) {
            return false;
        }
        if (!number_keyword(s, schema, i, false, &applies, &set)) {
            return false;
        }
        if (applies) {
            x->number = schema_number_and(s, x->number, set);
            continue;
        }
        if (!string_keyword(s, i, false, &applies, &set)) {
            return false;
        }
        if (applies) {
            x->string = x->string == DI_TERM_TEXT ? set : di_term_and2(s->t, x->string, set);
            continue;
        }
        if (!object_or_array_keyword(s, schema, i, x)) {
            return false;
        }
    }
    return !s->options.strict || add_strict(s, schema, x);
}

static bool each_dependency(di_schema *s, uint32_t node, bool negated, shapes *list) {
    if (!expect(s, node, DI_DOC_OBJECT, "must be an object")) {
        return false;
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        if (!add_dependency(s, i, negated, list)) {
            return false;
        }
    }
    return true;
}

static bool is_dependency(const di_doc_node *n) {
    return key_is(n, "dependentRequired") || key_is(n, "dependentSchemas") ||
           key_is(n, "dependencies");
}

static bool is_ref(const di_doc_node *n) {
    return (key_is(n, "$ref") || key_is(n, "$dynamicRef")) && n->type == DI_DOC_STRING;
}

/* Multiplies list by what a keyword that branches says. */
static bool branching_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *list) {
    const di_doc_node *n = at(s, node);
    shapes other = {0};
    bool ok = true;
    if (is_ref(n)) {
        uint32_t target;
        return schema_resolve(s, node, &target) &&
               schema_and_literal(s, list, LIT(LIT_SCHEMA, target));
    }
    if (key_is(n, "const")) {
        return schema_and_literal(s, list, LIT(LIT_EQUALS, node));
    }
    if (key_is(n, "not")) {
        return schema_and_literal(s, list, LIT(LIT_NOT_SCHEMA, node));
    }
    if (is_dependency(n)) {
        return each_dependency(s, node, false, list);
    }
    if (key_is(n, "allOf")) {
        ok = expect(s, node, DI_DOC_ARRAY, "must be an array");
        for (uint32_t i = at(s, node)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            ok = schema_and_literal(s, list, LIT(LIT_SCHEMA, i));
        }
        return ok;
    }
    if (key_is(n, "enum")) {
        ok = expect(s, node, DI_DOC_ARRAY, "must be an array") && add_enum(s, node, &other);
    } else if (key_is(n, "anyOf")) {
        ok = expect(s, node, DI_DOC_ARRAY, "must be an array") &&
             schema_any_of(s, node, LIT_SCHEMA, &other);
    } else if (key_is(n, "oneOf")) {
        ok = expect(s, node, DI_DOC_ARRAY, "must be an array") &&
             schema_one_of(s, node, false, &other);
    } else if (key_is(n, "if")) {
        ok = schema_if(s, schema, false, &other);
    } else {
        return true;
    }
    ok = ok && schema_product(s, list, &other);
    di_free(other.of);
    return ok;
}

static bool positive(di_schema *s, uint32_t schema, shapes *out) {
    const di_doc_node *n = at(s, schema);
    uint32_t ref = di_doc_member(&s->doc, schema, "$ref");
    if (s->old_refs && ref != DI_DOC_NONE && at(s, ref)->type == DI_DOC_STRING) {
        uint32_t target;
        return schema_resolve(s, ref, &target) && schema_shapes_of(s, LIT(LIT_SCHEMA, target), out);
    }
    shape x = schema_any_shape(s);
    if (!simple_keywords(s, schema, &x) || !schema_add_shape(s, out, x)) {
        return false;
    }
    for (uint32_t i = n->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        if (!branching_keyword(s, schema, i, out)) {
            return false;
        }
    }
    return true;
}

/* ---- the contrary of a schema: the contrary of one of its keywords ---- */

static bool not_properties(di_schema *s, uint32_t node, shapes *out) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        const di_doc_node *c = at(s, i);
        rule r[] = {named_rule(s, RULE_REQUIRED, i, c->key, c->key_size, LIT_TRUE),
                    named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, LIT(LIT_NOT_SCHEMA, i))};
        if (!is_true(s, i) && !add_ruled(s, out, TYPE_OBJECT, r, 2)) {
            return false;
        }
    }
    return true;
}

static bool not_patterns(di_schema *s, uint32_t node, shapes *out) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r = named_rule(s, RULE_EXISTS, i, NULL, 0, LIT(LIT_NOT_SCHEMA, i));
        if (!is_true(s, i) && (!schema_pattern(s, i, at(s, i)->key, at(s, i)->key_size, &r.text) ||
                               !add_ruled(s, out, TYPE_OBJECT, &r, 1))) {
            return false;
        }
    }
    return true;
}

static bool not_items(di_schema *s, uint32_t schema, uint32_t node, uint32_t from, shapes *out) {
    if (is_true(s, node)) {
        return true;
    }
    (void)schema;
    if (at(s, node)->type == DI_DOC_FALSE) {
        rule r = ranged_rule(RULE_LENGTH, node, from + 1, DI_TERM_UNBOUNDED);
        return add_ruled(s, out, TYPE_ARRAY, &r, 1);
    }
    if (from > 0) {
        return schema_unsupported(s, node, "cannot be negated behind other elements");
    }
    rule r = ranged_rule(RULE_CONTAINS, node, 1, DI_TERM_UNBOUNDED);
    r.value = LIT(LIT_NOT_SCHEMA, node);
    return add_ruled(s, out, TYPE_ARRAY, &r, 1);
}

static bool not_prefix(di_schema *s, uint32_t node, shapes *out) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r[] = {ranged_rule(RULE_PREFIX, i, at(s, i)->index, 0),
                    ranged_rule(RULE_LENGTH, i, at(s, i)->index + 1, DI_TERM_UNBOUNDED)};
        r[0].value = LIT(LIT_NOT_SCHEMA, i);
        if (!is_true(s, i) && !add_ruled(s, out, TYPE_ARRAY, r, 2)) {
            return false;
        }
    }
    return true;
}

/* Fewer than low or more than high, in steps of a rule with bounds. */
static bool not_range(di_schema *s, unsigned type, rule r, uint32_t low, uint32_t high,
                      shapes *out) {
    rule fewer = r, more = r;
    fewer.low = 0;
    fewer.high = low - 1;
    more.low = high + 1;
    more.high = DI_TERM_UNBOUNDED;
    return (low == 0 || add_ruled(s, out, type, &fewer, 1)) &&
           (high == DI_TERM_UNBOUNDED || add_ruled(s, out, type, &more, 1));
}

static bool not_object_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    if (key_is(n, "properties")) {
        return not_properties(s, node, out);
    }
    if (key_is(n, "required") && n->type == DI_DOC_ARRAY) {
        for (uint32_t i = n->first; i != DI_DOC_NONE; i = at(s, i)->next) {
            rule r = named_rule(s, RULE_PROPERTY, i, at(s, i)->text, at(s, i)->size, LIT_FALSE);
            if (!add_ruled(s, out, TYPE_OBJECT, &r, 1)) {
                return false;
            }
        }
        return true;
    }
    if (key_is(n, "patternProperties")) {
        return not_patterns(s, node, out);
    }
    if (key_is(n, "additionalProperties") && !is_true(s, node)) {
        rule r = named_rule(s, RULE_EXISTS, schema, NULL, 0, LIT(LIT_NOT_SCHEMA, node));
        return add_ruled(s, out, TYPE_OBJECT, &r, 1);
    }
    if (key_is(n, "propertyNames") && !is_true(s, node)) {
        rule r = named_rule(s, RULE_EXISTS, node, NULL, 0, LIT_TRUE);
        if (!texts_of(s, LIT(LIT_SCHEMA, node), &r.text)) {
            return false;
        }
        r.text = di_term_text_without(s->t, r.text);
        return !di_term_alive(s->t, r.text) || add_ruled(s, out, TYPE_OBJECT, &r, 1);
    }
    if (key_is(n, "minProperties") || key_is(n, "maxProperties")) {
        bool min = key_is(n, "minProperties");
        return read_count(s, node, &count) &&
               not_range(s, TYPE_OBJECT, ranged_rule(RULE_MEMBERS, node, 0, 0), min ? count : 0,
                         min ? DI_TERM_UNBOUNDED : count, out);
    }
    return true;
}

static bool not_array_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    if (key_is(n, "minItems") || key_is(n, "maxItems")) {
        bool min = key_is(n, "minItems");
        return read_count(s, node, &count) &&
               not_range(s, TYPE_ARRAY, ranged_rule(RULE_LENGTH, node, 0, 0), min ? count : 0,
                         min ? DI_TERM_UNBOUNDED : count, out);
    }
    if (key_is(n, "prefixItems") || (key_is(n, "items") && n->type == DI_DOC_ARRAY)) {
        return not_prefix(s, node, out);
    }
    if (key_is(n, "items")) {
        return not_items(s, schema, node, prefix_length(s, schema), out);
    }
    if (key_is(n, "additionalItems")) {
        uint32_t items = di_doc_member(&s->doc, schema, "items");
        return items == DI_DOC_NONE || at(s, items)->type != DI_DOC_ARRAY ||
               not_items(s, schema, node, at(s, items)->count, out);
    }
    if (key_is(n, "contains")) {
        rule r = ranged_rule(RULE_CONTAINS, node, 0, 0);
        uint32_t low, high;
        r.value = LIT(LIT_SCHEMA, node);
        return contains_bounds(s, schema, &low, &high) &&
               not_range(s, TYPE_ARRAY, r, low, high, out);
    }
    if (key_is(n, "uniqueItems") && n->type == DI_DOC_TRUE) {
        return schema_unsupported(s, node, "cannot be negated");
    }
    return true;
}

static bool not_branching_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    if (is_ref(n)) {
        uint32_t target;
        return schema_resolve(s, node, &target) &&
               schema_shapes_of(s, LIT(LIT_NOT_SCHEMA, target), out);
    }
    if (key_is(n, "const")) {
        return add_unequal(s, node, out);
    }
    if (key_is(n, "enum")) {
        return add_not_enum(s, node, out);
    }
    if (key_is(n, "not")) {
        return schema_shapes_of(s, LIT(LIT_SCHEMA, node), out);
    }
    if (is_dependency(n)) {
        return each_dependency(s, node, true, out);
    }
    if (key_is(n, "allOf")) {
        return schema_any_of(s, node, LIT_NOT_SCHEMA, out);
    }
    if (key_is(n, "oneOf")) {
        return schema_one_of(s, node, true, out);
    }
    if (key_is(n, "if")) {
        return schema_if(s, schema, true, out);
    }
    if (key_is(n, "anyOf")) {
        shapes list = {0};
        bool ok = schema_add_shape(s, &list, schema_any_shape(s));
        for (uint32_t i = n->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            ok = schema_and_literal(s, &list, LIT(LIT_NOT_SCHEMA, i));
        }
        for (size_t i = 0; ok && i < list.count; i++) {
            ok = schema_add_shape(s, out, list.of[i]);
        }
        di_free(list.of);
        return ok;
    }
    if ((key_is(n, "unevaluatedProperties") || key_is(n, "unevaluatedItems")) &&
        !is_true(s, node)) {
        return schema_unsupported(s, node, "cannot be negated");
    }
    return true;
}

static bool negative(di_schema *s, uint32_t schema, shapes *out) {
    uint32_t ref = di_doc_member(&s->doc, schema, "$ref");
    if (s->old_refs && ref != DI_DOC_NONE) {
        return not_branching_keyword(s, schema, ref, out);
    }
    for (uint32_t i = at(s, schema)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        shape x = schema_any_shape(s);
        bool applies;
        if (key_is(at(s, i), "type")) {
            unsigned types;
            bool integer;
            if (!read_types(s, i, &types, &integer)) {
                return false;
            }
            /* Other types, and numbers that are not whole. */
            if (!add_types(s, i, true, &x) || !schema_add_shape(s, out, x)) {
                return false;
            }
            continue;
        }
        if (!number_keyword(s, schema, i, true, &applies, &x.number)) {
            return false;
        }
        if (applies) {
            x.types = TYPE_NUMBER;
            if (!schema_add_shape(s, out, x)) {
                return false;
            }
            continue;
        }
        x = schema_any_shape(s);
        if (!string_keyword(s, i, true, &applies, &x.string)) {
            return false;
        }
        if (applies) {
            x.types = TYPE_STRING;
            if (!schema_add_shape(s, out, x)) {
                return false;
            }
            continue;
        }
        if (!not_object_keyword(s, schema, i, out) || !not_array_keyword(s, schema, i, out) ||
            !not_branching_keyword(s, schema, i, out)) {
            return false;
        }
    }
    return true;
}

bool schema_make_shapes(di_schema *s, lit x, shapes *out) {
    if (x == LIT_FALSE) {
        return true;
    }
    uint32_t node = x >> 2;
    switch (x & 3) {
    case LIT_EQUALS:
        return add_equal(s, node, out) && schema_check(s);
    case LIT_NOT_EQUALS:
        return add_unequal(s, node, out) && schema_check(s);
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
        ok = negated ? negative(s, node, out) : positive(s, node, out);
        break;
    default:
        ok = schema_fail(s, DI_ERR_ARGUMENT, node, "a schema must be an object or a boolean");
    }
    return ok && schema_check(s);
}
