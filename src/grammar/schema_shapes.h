/* What the files that turn keywords into shapes share: schema_shapes.c (shapes, statements),
 * schema_constants.c (const, enum), schema_keywords.c (all others) and schema_not.c (their
 * contraries). Functions that return bool leave the reason in the schema. */
#ifndef DI_GRAMMAR_SCHEMA_SHAPES_H
#define DI_GRAMMAR_SCHEMA_SHAPES_H

#include <string.h>

#include "grammar/decimal.h"
#include "grammar/schema_internal.h"

static inline const di_doc_node *at(const di_schema *s, uint32_t node) {
    return &s->doc.nodes[node];
}

static inline bool key_is(const di_doc_node *n, const char *key) {
    return strlen(key) == n->key_size && memcmp(key, n->key, n->key_size) == 0;
}

static inline bool is_true(const di_schema *s, uint32_t node) {
    const di_doc_node *n = at(s, node);
    return n->type == DI_DOC_TRUE || (n->type == DI_DOC_OBJECT && n->count == 0);
}

/* ---- schema_shapes.c ---- */

shape schema_typed_shape(const di_schema *s, unsigned types);
bool schema_add_ruled(di_schema *s, shapes *list, unsigned types, const rule *rules, size_t count);
bool schema_read_count(di_schema *s, uint32_t node, uint32_t *out);
bool schema_read_decimal(di_schema *s, uint32_t node, di_decimal *d);
rule schema_named_rule(const di_schema *s, rule_kind kind, uint32_t node, const char *name,
                       uint32_t size, lit value);
rule schema_ranged_rule(rule_kind kind, uint32_t node, uint32_t low, uint32_t high);

/* ---- schema_constants.c ---- */

bool schema_add_enum(di_schema *s, uint32_t node, shapes *out);
bool schema_add_equal(di_schema *s, uint32_t node, shapes *out);
bool schema_add_unequal(di_schema *s, uint32_t node, shapes *out);
bool schema_add_not_enum(di_schema *s, uint32_t node, shapes *out);

/* ---- schema_keywords.c ---- */

bool schema_read_types(di_schema *s, uint32_t node, unsigned *types, bool *integer);
bool schema_add_types(di_schema *s, uint32_t node, bool negated, shape *x);
bool schema_number_keyword(di_schema *s, uint32_t schema, uint32_t node, bool negated,
                           bool *applies, di_term *out);
bool schema_string_keyword(di_schema *s, uint32_t node, bool negated, bool *applies, di_term *out);
bool schema_texts_of(di_schema *s, lit x, di_term *out);
uint32_t schema_prefix_length(const di_schema *s, uint32_t schema);
bool schema_contains_bounds(di_schema *s, uint32_t schema, uint32_t *low, uint32_t *high);
bool schema_each_dependency(di_schema *s, uint32_t node, bool negated, shapes *list);
bool schema_is_dependency(const di_doc_node *n);
bool schema_is_ref(const di_doc_node *n);
bool schema_positive(di_schema *s, uint32_t schema, shapes *out);

/* ---- schema_unevaluated.c ---- */

/* Multiplies list by what the keyword at node, of the schema, says. */
bool schema_unevaluated(di_schema *s, uint32_t schema, uint32_t node, shapes *list);

/* ---- schema_not.c ---- */

bool schema_negative(di_schema *s, uint32_t schema, shapes *out);

#endif
