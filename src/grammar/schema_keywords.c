/* What each keyword says, as shapes; see schema_shapes.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"
#include "grammar/schema_shapes.h"

/* ---- keywords that narrow one shape ---- */

static bool expect(di_schema *s, uint32_t node, di_doc_type type, const char *what) {
    return at(s, node)->type == type || schema_fail(s, DI_ERR_ARGUMENT, node, what);
}

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

bool schema_read_types(di_schema *s, uint32_t node, unsigned *types, bool *integer) {
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

bool schema_add_types(di_schema *s, uint32_t node, bool negated, shape *x) {
    unsigned types;
    bool integer;
    if (!schema_read_types(s, node, &types, &integer)) {
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
    return *none || schema_read_decimal(s, node, d);
}

static di_number_bound contrary(di_number_bound bound) {
    static const di_number_bound of[] = {DI_NUMBER_BELOW, DI_NUMBER_AT_MOST, DI_NUMBER_ABOVE,
                                         DI_NUMBER_AT_LEAST};
    return of[bound];
}

/* The numbers (texts) that a keyword allows; *applies is false for other keywords. */
bool schema_number_keyword(di_schema *s, uint32_t schema, uint32_t node, bool negated,
                           bool *applies, di_term *out) {
    const di_doc_node *n = at(s, node);
    di_decimal d;
    *applies = true;
    if (key_is(n, "multipleOf")) {
        if (!schema_read_decimal(s, node, &d)) {
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

bool schema_string_keyword(di_schema *s, uint32_t node, bool negated, bool *applies, di_term *out) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    *applies = true;
    if (key_is(n, "minLength")) {
        if (!schema_read_count(s, node, &count)) {
            return false;
        }
        *out = negated ? (count ? di_term_repeat(s->t, DI_TERM_CHAR, 0, count - 1) : DI_TERM_NONE)
                       : di_term_repeat(s->t, DI_TERM_CHAR, count, DI_TERM_UNBOUNDED);
        return true;
    }
    if (key_is(n, "maxLength")) {
        if (!schema_read_count(s, node, &count)) {
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
                             schema_named_rule(s, RULE_PROPERTY, i, at(s, i)->key,
                                               at(s, i)->key_size, LIT(LIT_SCHEMA, i)))) {
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
                s, x,
                schema_named_rule(s, RULE_REQUIRED, i, at(s, i)->text, at(s, i)->size, LIT_TRUE))) {
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
        rule r = schema_named_rule(s, RULE_PATTERN, i, NULL, 0, LIT(LIT_SCHEMA, i));
        if (!schema_pattern(s, i, at(s, i)->key, at(s, i)->key_size, &r.text) ||
            !schema_add_rule(s, x, r)) {
            return false;
        }
    }
    return true;
}

/* The texts that a schema lets strings be. */
bool schema_texts_of(di_schema *s, lit x, di_term *out) {
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
    rule r = schema_named_rule(s, RULE_NAMES, node, NULL, 0, LIT_TRUE);
    return schema_texts_of(s, LIT(LIT_SCHEMA, node), &r.text) && schema_add_rule(s, x, r);
}

/* Where elements of `items` begin: behind the ones that have schemas of their own. */
uint32_t schema_prefix_length(const di_schema *s, uint32_t schema) {
    uint32_t prefix = di_doc_member(&s->doc, schema, "prefixItems");
    uint32_t items = di_doc_member(&s->doc, schema, "items");
    if (items != DI_DOC_NONE && at(s, items)->type == DI_DOC_ARRAY) {
        return at(s, items)->count;
    }
    return prefix != DI_DOC_NONE ? at(s, prefix)->count : 0;
}

static bool add_prefix(di_schema *s, uint32_t node, shape *x) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r = schema_ranged_rule(RULE_PREFIX, i, at(s, i)->index, 0);
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
    rule r = schema_ranged_rule(RULE_ITEMS, node, schema_prefix_length(s, schema), 0);
    r.value = LIT(LIT_SCHEMA, node);
    return schema_add_rule(s, x, r);
}

bool schema_contains_bounds(di_schema *s, uint32_t schema, uint32_t *low, uint32_t *high) {
    uint32_t min = di_doc_member(&s->doc, schema, "minContains");
    uint32_t max = di_doc_member(&s->doc, schema, "maxContains");
    *low = 1;
    *high = DI_TERM_UNBOUNDED;
    return (min == DI_DOC_NONE || schema_read_count(s, min, low)) &&
           (max == DI_DOC_NONE || schema_read_count(s, max, high));
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
        rule r = schema_named_rule(s, RULE_ADDITIONAL, schema, NULL, 0, LIT(LIT_SCHEMA, node));
        return schema_add_rule(s, x, r);
    }
    if (key_is(n, "propertyNames")) {
        return add_names(s, node, x);
    }
    if (key_is(n, "minProperties") || key_is(n, "maxProperties")) {
        bool min = key_is(n, "minProperties");
        return schema_read_count(s, node, &count) &&
               schema_add_rule(s, x,
                               schema_ranged_rule(RULE_MEMBERS, node, min ? count : 0,
                                                  min ? DI_TERM_UNBOUNDED : count));
    }
    if (key_is(n, "minItems") || key_is(n, "maxItems")) {
        bool min = key_is(n, "minItems");
        return schema_read_count(s, node, &count) &&
               schema_add_rule(s, x,
                               schema_ranged_rule(RULE_LENGTH, node, min ? count : 0,
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
        rule r = schema_ranged_rule(RULE_ITEMS, node, at(s, items)->count, 0);
        r.value = LIT(LIT_SCHEMA, node);
        return schema_add_rule(s, x, r);
    }
    if (key_is(n, "contains")) {
        rule r = schema_ranged_rule(RULE_CONTAINS, node, 0, 0);
        r.value = LIT(LIT_SCHEMA, node);
        return schema_contains_bounds(s, schema, &r.low, &r.high) && schema_add_rule(s, x, r);
    }
    if (key_is(n, "uniqueItems") && n->type == DI_DOC_TRUE) {
        return schema_add_rule(s, x, schema_ranged_rule(RULE_UNIQUE, node, 0, 0));
    }
    return true;
}

/* A member of that name brings demands with it: dependentRequired, dependentSchemas and draft 7's
 * dependencies, entry by entry. */
static bool add_dependency(di_schema *s, uint32_t entry, bool negated, shapes *list) {
    const di_doc_node *n = at(s, entry);
    rule present = schema_named_rule(s, RULE_REQUIRED, entry, n->key, n->key_size, LIT_TRUE);
    rule absent = schema_named_rule(s, RULE_PROPERTY, entry, n->key, n->key_size, LIT_FALSE);
    shapes with = {0}, all = {0};
    bool ok = schema_add_ruled(s, &with, TYPE_OBJECT, &present, 1);
    if (n->type != DI_DOC_ARRAY) {
        ok = ok && schema_and_literal(s, &with, LIT(negated ? LIT_NOT_SCHEMA : LIT_SCHEMA, entry));
    } else if (!negated) {
        ok = ok && add_required(s, entry, &with.of[0]);
    } else {
        shapes without = {0};
        for (uint32_t i = n->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            rule r =
                schema_named_rule(s, RULE_PROPERTY, i, at(s, i)->text, at(s, i)->size, LIT_FALSE);
            ok = schema_add_ruled(s, &without, TYPE_OBJECT, &r, 1);
        }
        ok = ok && schema_product(s, &with, &without);
        di_free(without.of);
    }
    ok = ok && (negated || schema_add_ruled(s, &all, TYPE_ALL, &absent, 1));
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

/* In strict mode what `properties` or `prefixItems` do not name is forbidden. */
static bool add_strict(di_schema *s, uint32_t schema, shape *x) {
    bool named = di_doc_member(&s->doc, schema, "properties") != DI_DOC_NONE;
    bool open = di_doc_member(&s->doc, schema, "additionalProperties") != DI_DOC_NONE ||
                di_doc_member(&s->doc, schema, "unevaluatedProperties") != DI_DOC_NONE;
    if (named && !open &&
        !schema_add_rule(s, x, schema_named_rule(s, RULE_ADDITIONAL, schema, NULL, 0, LIT_FALSE))) {
        return false;
    }
    uint32_t prefix = schema_prefix_length(s, schema);
    uint32_t items = di_doc_member(&s->doc, schema, "items");
    bool more = di_doc_member(&s->doc, schema, "additionalItems") != DI_DOC_NONE ||
                di_doc_member(&s->doc, schema, "unevaluatedItems") != DI_DOC_NONE ||
                (items != DI_DOC_NONE && at(s, items)->type != DI_DOC_ARRAY);
    if (prefix > 0 && !more) {
        rule r = schema_ranged_rule(RULE_ITEMS, schema, prefix, 0);
        r.value = LIT_FALSE;
        return schema_add_rule(s, x, r);
    }
    return true;
}

/* All keywords that do not branch, in one shape. */
static bool simple_keywords(di_schema *s, uint32_t schema, shape *x) {
    for (uint32_t i = at(s, schema)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        bool applies = false;
        di_term set = DI_TERM_NONE;
        if (key_is(at(s, i), "type")) {
            if (!schema_add_types(s, i, false, x)) {
                return false;
            }
            continue;
        }
        if (key_is(at(s, i), "$recursiveRef") && !schema_unsupported(s, i, "is not supported")) {
            return false;
        }
        if (!schema_number_keyword(s, schema, i, false, &applies, &set)) {
            return false;
        }
        if (applies) {
            x->number = schema_number_and(s, x->number, set);
            continue;
        }
        if (!schema_string_keyword(s, i, false, &applies, &set)) {
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

bool schema_each_dependency(di_schema *s, uint32_t node, bool negated, shapes *list) {
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

bool schema_is_dependency(const di_doc_node *n) {
    return key_is(n, "dependentRequired") || key_is(n, "dependentSchemas") ||
           key_is(n, "dependencies");
}

bool schema_is_ref(const di_doc_node *n) {
    return (key_is(n, "$ref") || key_is(n, "$dynamicRef")) && n->type == DI_DOC_STRING;
}

/* Multiplies list by what a keyword that branches says. */
static bool branching_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *list) {
    const di_doc_node *n = at(s, node);
    shapes other = {0};
    bool ok = true;
    if (schema_is_ref(n)) {
        uint32_t target;
        return schema_resolve(s, node, &target) &&
               schema_and_literal(s, list, LIT(LIT_SCHEMA, target));
    }
    if (key_is(n, "const")) {
        return schema_and_literal(s, list, LIT(LIT_EQUALS, node));
    }
    if (key_is(n, "unevaluatedProperties") || key_is(n, "unevaluatedItems")) {
        return is_true(s, node) || schema_unevaluated(s, schema, node, list);
    }
    if (key_is(n, "not")) {
        return schema_and_literal(s, list, LIT(LIT_NOT_SCHEMA, node));
    }
    if (schema_is_dependency(n)) {
        return schema_each_dependency(s, node, false, list);
    }
    if (key_is(n, "allOf")) {
        ok = expect(s, node, DI_DOC_ARRAY, "must be an array");
        for (uint32_t i = at(s, node)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            ok = schema_and_literal(s, list, LIT(LIT_SCHEMA, i));
        }
        return ok;
    }
    if (key_is(n, "enum")) {
        ok = expect(s, node, DI_DOC_ARRAY, "must be an array") && schema_add_enum(s, node, &other);
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

bool schema_positive(di_schema *s, uint32_t schema, shapes *out) {
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
