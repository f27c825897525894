/* What the contrary of each keyword says, as shapes; see schema_shapes.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"
#include "grammar/schema_shapes.h"

/* ---- the contrary of a schema: the contrary of one of its keywords ---- */

static bool not_properties(di_schema *s, uint32_t node, shapes *out) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        const di_doc_node *c = at(s, i);
        rule r[] = {
            schema_named_rule(s, RULE_REQUIRED, i, c->key, c->key_size, LIT_TRUE),
            schema_named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, LIT(LIT_NOT_SCHEMA, i))};
        if (!is_true(s, i) && !schema_add_ruled(s, out, TYPE_OBJECT, r, 2)) {
            return false;
        }
    }
    return true;
}

static bool not_patterns(di_schema *s, uint32_t node, shapes *out) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r = schema_named_rule(s, RULE_EXISTS, i, NULL, 0, LIT(LIT_NOT_SCHEMA, i));
        if (!is_true(s, i) && (!schema_pattern(s, i, at(s, i)->key, at(s, i)->key_size, &r.text) ||
                               !schema_add_ruled(s, out, TYPE_OBJECT, &r, 1))) {
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
        rule r = schema_ranged_rule(RULE_LENGTH, node, from + 1, DI_TERM_UNBOUNDED);
        return schema_add_ruled(s, out, TYPE_ARRAY, &r, 1);
    }
    if (from > 0) {
        return schema_unsupported(s, node, "cannot be negated behind other elements");
    }
    rule r = schema_ranged_rule(RULE_CONTAINS, node, 1, DI_TERM_UNBOUNDED);
    r.value = LIT(LIT_NOT_SCHEMA, node);
    return schema_add_ruled(s, out, TYPE_ARRAY, &r, 1);
}

static bool not_prefix(di_schema *s, uint32_t node, shapes *out) {
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        rule r[] = {schema_ranged_rule(RULE_PREFIX, i, at(s, i)->index, 0),
                    schema_ranged_rule(RULE_LENGTH, i, at(s, i)->index + 1, DI_TERM_UNBOUNDED)};
        r[0].value = LIT(LIT_NOT_SCHEMA, i);
        if (!is_true(s, i) && !schema_add_ruled(s, out, TYPE_ARRAY, r, 2)) {
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
    return (low == 0 || schema_add_ruled(s, out, type, &fewer, 1)) &&
           (high == DI_TERM_UNBOUNDED || schema_add_ruled(s, out, type, &more, 1));
}

static bool not_object_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    if (key_is(n, "properties")) {
        return not_properties(s, node, out);
    }
    if (key_is(n, "required") && n->type == DI_DOC_ARRAY) {
        for (uint32_t i = n->first; i != DI_DOC_NONE; i = at(s, i)->next) {
            rule r =
                schema_named_rule(s, RULE_PROPERTY, i, at(s, i)->text, at(s, i)->size, LIT_FALSE);
            if (!schema_add_ruled(s, out, TYPE_OBJECT, &r, 1)) {
                return false;
            }
        }
        return true;
    }
    if (key_is(n, "patternProperties")) {
        return not_patterns(s, node, out);
    }
    if (key_is(n, "additionalProperties") && !is_true(s, node)) {
        rule r = schema_named_rule(s, RULE_EXISTS, schema, NULL, 0, LIT(LIT_NOT_SCHEMA, node));
        return schema_add_ruled(s, out, TYPE_OBJECT, &r, 1);
    }
    if (key_is(n, "propertyNames") && !is_true(s, node)) {
        rule r = schema_named_rule(s, RULE_EXISTS, node, NULL, 0, LIT_TRUE);
        if (!schema_texts_of(s, LIT(LIT_SCHEMA, node), &r.text)) {
            return false;
        }
        r.text = di_term_text_without(s->t, r.text);
        return !di_term_alive(s->t, r.text) || schema_add_ruled(s, out, TYPE_OBJECT, &r, 1);
    }
    if (key_is(n, "minProperties") || key_is(n, "maxProperties")) {
        bool min = key_is(n, "minProperties");
        return schema_read_count(s, node, &count) &&
               not_range(s, TYPE_OBJECT, schema_ranged_rule(RULE_MEMBERS, node, 0, 0),
                         min ? count : 0, min ? DI_TERM_UNBOUNDED : count, out);
    }
    return true;
}

static bool not_array_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    uint32_t count;
    if (key_is(n, "minItems") || key_is(n, "maxItems")) {
        bool min = key_is(n, "minItems");
        return schema_read_count(s, node, &count) &&
               not_range(s, TYPE_ARRAY, schema_ranged_rule(RULE_LENGTH, node, 0, 0),
                         min ? count : 0, min ? DI_TERM_UNBOUNDED : count, out);
    }
    if (key_is(n, "prefixItems") || (key_is(n, "items") && n->type == DI_DOC_ARRAY)) {
        return not_prefix(s, node, out);
    }
    if (key_is(n, "items")) {
        return not_items(s, schema, node, schema_prefix_length(s, schema), out);
    }
    if (key_is(n, "additionalItems")) {
        uint32_t items = di_doc_member(&s->doc, schema, "items");
        return items == DI_DOC_NONE || at(s, items)->type != DI_DOC_ARRAY ||
               not_items(s, schema, node, at(s, items)->count, out);
    }
    if (key_is(n, "contains")) {
        rule r = schema_ranged_rule(RULE_CONTAINS, node, 0, 0);
        uint32_t low, high;
        r.value = LIT(LIT_SCHEMA, node);
        return schema_contains_bounds(s, schema, &low, &high) &&
               not_range(s, TYPE_ARRAY, r, low, high, out);
    }
    if (key_is(n, "uniqueItems") && n->type == DI_DOC_TRUE) {
        return schema_unsupported(s, node, "cannot be negated");
    }
    return true;
}

static bool not_branching_keyword(di_schema *s, uint32_t schema, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    if (schema_is_ref(n)) {
        uint32_t target;
        return schema_resolve(s, node, &target) &&
               schema_shapes_of(s, LIT(LIT_NOT_SCHEMA, target), out);
    }
    if (key_is(n, "const")) {
        return schema_add_unequal(s, node, out);
    }
    if (key_is(n, "enum")) {
        return schema_add_not_enum(s, node, out);
    }
    if (key_is(n, "not")) {
        return schema_shapes_of(s, LIT(LIT_SCHEMA, node), out);
    }
    if (schema_is_dependency(n)) {
        return schema_each_dependency(s, node, true, out);
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

bool schema_negative(di_schema *s, uint32_t schema, shapes *out) {
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
            if (!schema_read_types(s, i, &types, &integer)) {
                return false;
            }
            /* Other types, and numbers that are not whole. */
            if (!schema_add_types(s, i, true, &x) || !schema_add_shape(s, out, x)) {
                return false;
            }
            continue;
        }
        if (!schema_number_keyword(s, schema, i, true, &applies, &x.number)) {
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
        if (!schema_string_keyword(s, i, true, &applies, &x.string)) {
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
