/* `const` and `enum`, and their contraries, as shapes; see schema_shapes.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/pattern.h"
#include "grammar/schema_shapes.h"

/* ---- constants ---- */

static bool decimal_of(di_schema *s, uint32_t node, di_decimal *d) {
    return schema_read_decimal(s, node, d);
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

bool schema_add_equal(di_schema *s, uint32_t node, shapes *out) {
    const di_doc_node *n = at(s, node);
    shape x = schema_typed_shape(s, 1u << n->type);
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
        s, &x, schema_ranged_rule(object ? RULE_MEMBERS : RULE_LENGTH, node, n->count, n->count));
    for (uint32_t i = at(s, node)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
        const di_doc_node *c = at(s, i);
        lit value = LIT(LIT_EQUALS, i);
        if (object) {
            ok = schema_add_rule(
                     s, &x, schema_named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, value)) &&
                 schema_add_rule(
                     s, &x, schema_named_rule(s, RULE_REQUIRED, i, c->key, c->key_size, LIT_TRUE));
        } else {
            rule r = schema_ranged_rule(RULE_PREFIX, i, c->index, 0);
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
    rule fewer = schema_ranged_rule(kind, node, 0, count - 1);
    rule more = schema_ranged_rule(kind, node, count + 1, DI_TERM_UNBOUNDED);
    if (!schema_add_ruled(s, out, TYPE_ALL & ~type, NULL, 0) ||
        (count > 0 && !schema_add_ruled(s, out, type, &fewer, 1)) ||
        !schema_add_ruled(s, out, type, &more, 1)) {
        return false;
    }
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        const di_doc_node *c = at(s, i);
        rule r[2];
        if (object) {
            r[0] =
                schema_named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, LIT(LIT_NOT_EQUALS, i));
            r[1] = schema_named_rule(s, RULE_REQUIRED, i, c->key, c->key_size, LIT_TRUE);
            rule without = schema_named_rule(s, RULE_PROPERTY, i, c->key, c->key_size, LIT_FALSE);
            if (!schema_add_ruled(s, out, type, &without, 1)) {
                return false;
            }
        } else {
            r[0] = schema_ranged_rule(RULE_PREFIX, i, c->index, 0);
            r[0].value = LIT(LIT_NOT_EQUALS, i);
            r[1] = schema_ranged_rule(RULE_LENGTH, i, c->index + 1, DI_TERM_UNBOUNDED);
        }
        if (!schema_add_ruled(s, out, type, r, 2)) {
            return false;
        }
    }
    return true;
}

bool schema_add_unequal(di_schema *s, uint32_t node, shapes *out) {
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

bool schema_add_enum(di_schema *s, uint32_t node, shapes *out) {
    shape x = schema_typed_shape(s, 0);
    x.string = enum_words(s, node);
    x.number = DI_TERM_NONE;
    for (uint32_t i = at(s, node)->first; i != DI_DOC_NONE; i = at(s, i)->next) {
        uint8_t type = at(s, i)->type;
        di_term number;
        if (type >= DI_DOC_ARRAY) {
            if (!schema_add_equal(s, i, out)) {
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

bool schema_add_not_enum(di_schema *s, uint32_t node, shapes *out) {
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
