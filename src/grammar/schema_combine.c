/* Conjunctions and alternatives of whole schemas: allOf, anyOf, oneOf, if; see schema_internal.h.
 */
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

enum { MAX_STEPS = 600000 };

static bool step(di_schema *s, uint32_t node) {
    return ++s->steps < MAX_STEPS ||
           schema_fail(s, DI_ERR_UNSUPPORTED, node, "too many combinations of alternatives");
}

/* ---- alternatives that others hold already ---- */

/* Below so many it is not worth a look. */
enum { MANY = 48 };

static uint64_t signature(const di_schema *s, const shape *x) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < x->count; i++) {
        bits |= 1ull << (s->rule_list[x->first + i] * 0x9E3779B9u >> 26);
    }
    return bits;
}

static bool has_rule(const di_schema *s, const shape *x, uint32_t id) {
    for (uint32_t i = 0; i < x->count; i++) {
        if (s->rule_list[x->first + i] == id) {
            return true;
        }
    }
    return false;
}

/* Whether b plainly allows all that a does: it has fewer demands. */
static bool holds(const di_schema *s, const shape *b, const shape *a) {
    if (a->types & ~b->types ||
        (a->types & TYPE_STRING && a->string != b->string && b->string != DI_TERM_TEXT) ||
        (a->types & TYPE_NUMBER && a->number != b->number && b->number != s->any_number)) {
        return false;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        if (!has_rule(s, a, s->rule_list[b->first + i])) {
            return false;
        }
    }
    return true;
}

/* Takes out of a long list what another alternative of it holds: without that, contraries of
 * contraries grow beyond all bounds. */
static bool absorb(di_schema *s, shapes *list) {
    if (list->count < MANY) {
        return true;
    }
    uint64_t *bits = di_realloc_array(NULL, list->count, sizeof *bits);
    if (!bits) {
        return schema_no_memory(s);
    }
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        const shape x = list->of[i];
        uint64_t of_x = signature(s, &x);
        size_t k = 0, left = 0;
        while (k < kept && ((bits[k] & ~of_x) != 0 || !holds(s, &list->of[k], &x))) {
            k++;
        }
        if (k < kept) {
            continue;
        }
        for (k = 0; k < kept; k++) {
            if ((of_x & ~bits[k]) != 0 || !holds(s, &x, &list->of[k])) {
                list->of[left] = list->of[k];
                bits[left++] = bits[k];
            }
        }
        list->of[left] = x;
        bits[left] = of_x;
        kept = left + 1;
        s->steps += kept / 64;
    }
    list->count = kept;
    di_free(bits);
    return true;
}

/* Makes room in a list that has reached the bound. */
static bool within_bound(di_schema *s, shapes *list) {
    return list->count <= SCHEMA_MAX_SHAPES ||
           (absorb(s, list) &&
            (list->count <= SCHEMA_MAX_SHAPES / 4 * 3 ||
             schema_fail(s, DI_ERR_UNSUPPORTED, 0, "more than 3000 alternatives")));
}

/* ---- conjunctions ---- */

bool schema_product(di_schema *s, shapes *list, const shapes *with) {
    shapes product = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < list->count; i++) {
        for (size_t k = 0; ok && k < with->count; k++) {
            shape x;
            ok = step(s, 0) && schema_meet(s, &list->of[i], &with->of[k], &x) &&
                 schema_add_shape(s, &product, x) && within_bound(s, &product);
        }
    }
    ok = ok && absorb(s, &product);
    di_free(list->of);
    *list = product;
    return ok;
}

bool schema_and_literal(di_schema *s, shapes *list, lit x) {
    shapes with = {0};
    bool ok = schema_shapes_of(s, x, &with) && schema_product(s, list, &with);
    di_free(with.of);
    return ok;
}

static bool append(di_schema *s, shapes *to, const shapes *from) {
    for (size_t i = 0; i < from->count; i++) {
        if (!schema_add_shape(s, to, from->of[i])) {
            return false;
        }
    }
    return within_bound(s, to);
}

bool schema_any_of(di_schema *s, uint32_t array, lit_kind kind, shapes *out) {
    for (uint32_t i = s->doc.nodes[array].first; i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        shapes branch = {0};
        bool ok = schema_shapes_of(s, LIT(kind, i), &branch) && append(s, out, &branch);
        di_free(branch.of);
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* Whether a shape allows nothing. An error counts as "cannot tell". */
static bool impossible(di_schema *s, const shape *x) {
    if (x->types & ~(TYPE_ARRAY | TYPE_OBJECT)) {
        return false;
    }
    di_error *err = s->err, unused = {0};
    uint32_t table;
    bool possible = false;
    s->err = &unused;
    if (x->types & TYPE_OBJECT) {
        possible = !schema_object(s, x, &table) || schema_object_inhabited(s, table);
    }
    if (!possible && x->types & TYPE_ARRAY) {
        possible = !schema_array(s, x, &table) || schema_array_inhabited(s, table);
    }
    s->err = err;
    return !possible && unused.code == DI_OK;
}

static bool apart(di_schema *s, const shapes *a, const shapes *b) {
    for (size_t i = 0; i < a->count; i++) {
        for (size_t k = 0; k < b->count; k++) {
            shape x;
            if (!step(s, 0) || !schema_meet(s, &a->of[i], &b->of[k], &x)) {
                return false;
            }
            if (x.types != 0 && !impossible(s, &x)) {
                return false;
            }
        }
    }
    return true;
}

/* Branch i of oneOf with the contrary of every other branch that it overlaps with. */
static bool one_branch(di_schema *s, const shapes *branches, const uint32_t *nodes, size_t count,
                       size_t i, shapes *out) {
    shapes list = {0};
    bool ok = append(s, &list, &branches[i]);
    for (size_t k = 0; ok && k < count; k++) {
        if (k == i || apart(s, &list, &branches[k])) {
            continue;
        }
        di_error *err = s->err, why = {0};
        s->err = &why;
        ok = schema_and_literal(s, &list, LIT(LIT_NOT_SCHEMA, nodes[k]));
        s->err = err;
        if (!ok) {
            di_fail(err, why.code, "%s (needed to keep a branch of oneOf apart from others)",
                    why.message);
        }
    }
    ok = ok && append(s, out, &list);
    di_free(list.of);
    return ok;
}

/* Not exactly one: two at once, or none. */
static bool not_one(di_schema *s, const shapes *branches, const uint32_t *nodes, size_t count,
                    shapes *out) {
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        for (size_t k = i + 1; ok && k < count; k++) {
            shapes both = {0};
            ok = append(s, &both, &branches[i]) && schema_product(s, &both, &branches[k]) &&
                 append(s, out, &both);
            di_free(both.of);
        }
    }
    shapes none = {0};
    ok = ok && schema_add_shape(s, &none, schema_any_shape(s));
    for (size_t i = 0; ok && i < count; i++) {
        ok = schema_and_literal(s, &none, LIT(LIT_NOT_SCHEMA, nodes[i]));
    }
    ok = ok && append(s, out, &none);
    di_free(none.of);
    return ok;
}

bool schema_one_of(di_schema *s, uint32_t array, bool negated, shapes *out) {
    size_t count = s->doc.nodes[array].count, n = 0;
    shapes *branches = di_calloc(count + 1, sizeof *branches);
    uint32_t *nodes = di_calloc(count + 1, sizeof *nodes);
    if (!branches || !nodes) {
        di_free(branches);
        di_free(nodes);
        return schema_no_memory(s);
    }
    bool ok = true;
    for (uint32_t i = s->doc.nodes[array].first; ok && i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        nodes[n] = i;
        ok = schema_shapes_of(s, LIT(LIT_SCHEMA, i), &branches[n++]);
    }
    if (negated) {
        ok = ok && not_one(s, branches, nodes, count, out);
    }
    for (size_t i = 0; ok && !negated && i < count; i++) {
        ok = one_branch(s, branches, nodes, count, i, out);
    }
    for (size_t i = 0; i < count; i++) {
        di_free(branches[i].of);
    }
    di_free(branches);
    di_free(nodes);
    return ok;
}

bool schema_if(di_schema *s, uint32_t node, bool negated, shapes *out) {
    uint32_t condition = di_doc_member(&s->doc, node, "if");
    static const char *const keys[] = {"then", "else"};
    for (int side = 0; side < 2; side++) {
        uint32_t branch = di_doc_member(&s->doc, node, keys[side]);
        if (branch == DI_DOC_NONE && negated) {
            continue;
        }
        shapes list = {0};
        bool ok = schema_shapes_of(s, LIT(side ? LIT_NOT_SCHEMA : LIT_SCHEMA, condition), &list);
        if (ok && branch != DI_DOC_NONE) {
            ok = schema_and_literal(s, &list, LIT(negated ? LIT_NOT_SCHEMA : LIT_SCHEMA, branch));
        }
        ok = ok && append(s, out, &list);
        di_free(list.of);
        if (!ok) {
            return false;
        }
    }
    return true;
}
