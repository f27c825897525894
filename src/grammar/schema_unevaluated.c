/* unevaluatedProperties and unevaluatedItems: what no keyword beside them, and no schema that those
 * apply, has spoken of; see schema_shapes.h.
 *
 * Which schemas apply depends on the value. So the value's possibilities are told apart: each is a
 * set of statements that decide all branches (this one of anyOf holds and that one not, the
 * condition holds or not, the member is there or not), and with them the list of schemas that have
 * spoken. In each the keyword is a plain rule over that list. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_shapes.h"

enum {
    MAX_STATEMENTS = 24,
    MAX_NODES = 48,
    MAX_CASES = 256,
    MAX_BRANCHES = 5,
    MAX_DEPTH = 32,
    MAX_CONTAINS = 8
};

/* A possibility. */
typedef struct situation {
    lit statements[MAX_STATEMENTS];
    uint32_t num_statements;
    struct {
        uint32_t entry; /* of dependentSchemas */
        bool present;
    } members[4];
    uint32_t num_members;
    uint32_t nodes[MAX_NODES]; /* schemas that speak */
    uint32_t num_nodes;
    uint32_t prefix;                 /* elements that they speak of */
    uint32_t contains[MAX_CONTAINS]; /* schemas whose elements they speak of, too */
    uint32_t num_contains;
    bool all; /* of everything */
} situation;

typedef struct situations {
    situation *of;
    size_t count, capacity;
} situations;

typedef struct reading {
    di_schema *s;
    uint32_t node; /* of the keyword, for messages */
    bool items;
    int depth;
} reading;

static bool evaluate(reading *r, uint32_t schema, bool top, situations *list);

static bool too_many(const reading *r) {
    return schema_unsupported(r->s, r->node, "beside so many branches is not supported") && false;
}

static bool add(reading *r, situations *list, const situation *x) {
    situation *of = di_grow(list->of, list->count, &list->capacity, sizeof *of);
    if (!of) {
        return schema_no_memory(r->s);
    }
    list->of = of;
    list->of[list->count++] = *x;
    return list->count <= MAX_CASES || too_many(r);
}

static bool state(const reading *r, situations *list, lit x) {
    for (size_t i = 0; i < list->count; i++) {
        situation *e = &list->of[i];
        if (e->num_statements == MAX_STATEMENTS) {
            return too_many(r);
        }
        e->statements[e->num_statements++] = x;
    }
    return true;
}

/* A copy of the list, for one branch. */
static bool fork_list(reading *r, const situations *list, situations *out) {
    for (size_t i = 0; i < list->count; i++) {
        if (!add(r, out, &list->of[i])) {
            return false;
        }
    }
    return true;
}

/* Moves what a branch has become to the others, or drops it. */
static bool join(reading *r, bool ok, situations *branch, situations *out) {
    for (size_t i = 0; ok && i < branch->count; i++) {
        ok = add(r, out, &branch->of[i]);
    }
    di_free(branch->of);
    return ok;
}

static bool replace(bool ok, situations *list, situations *with) {
    di_free(list->of);
    *list = *with;
    return ok;
}

/* ---- keywords that apply schemas ---- */

static bool any_of(reading *r, uint32_t array, situations *list) {
    di_schema *s = r->s;
    situations out = {0};
    uint32_t count = at(s, array)->count;
    bool ok = count <= MAX_BRANCHES || too_many(r);
    for (unsigned set = 1; ok && set < 1u << count; set++) {
        situations branch = {0};
        ok = fork_list(r, list, &branch);
        for (uint32_t i = at(s, array)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            bool in = set >> at(s, i)->index & 1;
            ok = state(r, &branch, LIT(in ? LIT_SCHEMA : LIT_NOT_SCHEMA, i)) &&
                 (!in || evaluate(r, i, false, &branch));
        }
        ok = join(r, ok, &branch, &out);
    }
    return replace(ok, list, &out);
}

/* oneOf itself sees to it that no other branch holds. */
static bool one_of(reading *r, uint32_t array, situations *list) {
    di_schema *s = r->s;
    situations out = {0};
    bool ok = true;
    for (uint32_t i = at(s, array)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
        situations branch = {0};
        ok = fork_list(r, list, &branch) && state(r, &branch, LIT(LIT_SCHEMA, i)) &&
             evaluate(r, i, false, &branch);
        ok = join(r, ok, &branch, &out);
    }
    return replace(ok, list, &out);
}

static bool condition(reading *r, uint32_t schema, uint32_t node, situations *list) {
    di_schema *s = r->s;
    situations out = {0};
    uint32_t then = di_doc_member(&s->doc, schema, "then"),
             otherwise = di_doc_member(&s->doc, schema, "else");
    bool ok = true;
    for (int holds = 1; ok && holds >= 0; holds--) {
        situations branch = {0};
        uint32_t next = holds ? then : otherwise;
        ok = fork_list(r, list, &branch) &&
             state(r, &branch, LIT(holds ? LIT_SCHEMA : LIT_NOT_SCHEMA, node)) &&
             (!holds || evaluate(r, node, false, &branch)) &&
             (next == DI_DOC_NONE || evaluate(r, next, false, &branch));
        ok = join(r, ok, &branch, &out);
    }
    return replace(ok, list, &out);
}

static bool dependent(reading *r, uint32_t entry, situations *list) {
    situations out = {0};
    bool ok = true;
    for (int present = 1; ok && present >= 0; present--) {
        situations branch = {0};
        ok = fork_list(r, list, &branch);
        for (size_t i = 0; ok && i < branch.count; i++) {
            situation *e = &branch.of[i];
            ok = e->num_members < 4 || too_many(r);
            if (ok) {
                e->members[e->num_members].entry = entry;
                e->members[e->num_members++].present = present;
            }
        }
        ok = ok && (!present || evaluate(r, entry, false, &branch));
        ok = join(r, ok, &branch, &out);
    }
    return replace(ok, list, &out);
}

/* Elements that `contains` has found are spoken of. */
static bool note_contains(const reading *r, uint32_t node, situations *list) {
    for (size_t i = 0; i < list->count; i++) {
        situation *e = &list->of[i];
        if (e->num_contains == MAX_CONTAINS) {
            return too_many(r);
        }
        e->contains[e->num_contains++] = node;
    }
    return true;
}

static bool applicator(reading *r, uint32_t schema, uint32_t node, situations *list) {
    di_schema *s = r->s;
    const di_doc_node *n = at(s, node);
    uint32_t target;
    if (schema_is_ref(n)) {
        return schema_resolve(s, node, &target) && evaluate(r, target, false, list);
    }
    if (key_is(n, "allOf")) {
        bool ok = true;
        for (uint32_t i = n->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            ok = evaluate(r, i, false, list);
        }
        return ok;
    }
    if (key_is(n, "anyOf")) {
        return any_of(r, node, list);
    }
    if (key_is(n, "oneOf")) {
        return one_of(r, node, list);
    }
    if (key_is(n, "if")) {
        return condition(r, schema, node, list);
    }
    if (key_is(n, "dependentSchemas")) {
        bool ok = true;
        for (uint32_t i = n->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
            ok = dependent(r, i, list);
        }
        return ok;
    }
    bool contains = r->items && key_is(n, "contains") && !s->draft2019;
    return !contains || note_contains(r, node, list);
}

/* ---- what a schema speaks of ---- */

static bool speaks_of_all(const reading *r, uint32_t schema, bool top) {
    static const char *const members[] = {"additionalProperties", "unevaluatedProperties"};
    static const char *const elements[] = {"items", "unevaluatedItems"};
    for (int i = 0; i < 2; i++) {
        const char *key = r->items ? elements[i] : members[i];
        uint32_t node = di_doc_member(&r->s->doc, schema, key);
        bool list = node != DI_DOC_NONE && at(r->s, node)->type == DI_DOC_ARRAY;
        if (node != DI_DOC_NONE && !list && !(top && i == 1)) {
            return true;
        }
    }
    return false;
}

static bool evaluate(reading *r, uint32_t schema, bool top, situations *list) {
    di_schema *s = r->s;
    if (at(s, schema)->type != DI_DOC_OBJECT) {
        return true;
    }
    if (r->depth == MAX_DEPTH) {
        return schema_fail(s, DI_ERR_UNSUPPORTED, r->node, "beside schemas that refer too deep");
    }
    bool all = speaks_of_all(r, schema, top);
    uint32_t prefix = schema_prefix_length(s, schema);
    for (size_t i = 0; i < list->count; i++) {
        situation *e = &list->of[i];
        if (e->num_nodes == MAX_NODES) {
            return too_many(r);
        }
        e->nodes[e->num_nodes++] = schema;
        e->prefix = prefix > e->prefix ? prefix : e->prefix;
        e->all |= all;
    }
    r->depth++;
    bool ok = true;
    for (uint32_t i = at(s, schema)->first; ok && i != DI_DOC_NONE; i = at(s, i)->next) {
        ok = applicator(r, schema, i, list);
    }
    r->depth--;
    return ok;
}

/* ---- to shapes ---- */

/* The schema {"anyOf": [what the keyword says, the schemas of contains ...]}, added to the
 * document; DI_DOC_NONE after a fault. */
static uint32_t spoken_of_or(di_schema *s, const reading *r, const situation *e) {
    static const char key[] = "anyOf";
    di_doc_node schema = *at(s, r->node);
    schema.type = DI_DOC_OBJECT;
    schema.count = 1;
    schema.first = schema.next = DI_DOC_NONE;
    uint32_t id = schema_add_node(s, schema);
    uint32_t any = id == DI_DOC_NONE
                       ? DI_DOC_NONE
                       : schema_add_node(s, (di_doc_node){.type = DI_DOC_ARRAY,
                                                          .parent = id,
                                                          .first = DI_DOC_NONE,
                                                          .next = DI_DOC_NONE,
                                                          .count = e->num_contains + 1,
                                                          .key = key,
                                                          .key_size = sizeof key - 1});
    if (any == DI_DOC_NONE) {
        return DI_DOC_NONE;
    }
    s->doc.nodes[id].first = any;
    for (uint32_t i = 0; i <= e->num_contains; i++) { /* the last one first */
        uint32_t index = e->num_contains - i;
        di_doc_node branch = *at(s, index ? e->contains[index - 1] : r->node);
        branch.parent = any;
        branch.index = index;
        branch.next = s->doc.nodes[any].first;
        branch.key = NULL;
        uint32_t one = schema_add_node(s, branch);
        if (one == DI_DOC_NONE) {
            return DI_DOC_NONE;
        }
        s->doc.nodes[any].first = one;
    }
    return id;
}

static bool add_situation_rule(di_schema *s, const reading *r, const situation *e, shape *x) {
    if (e->all) {
        return true;
    }
    if (r->items) {
        rule rest = schema_ranged_rule(RULE_ITEMS, r->node, e->prefix, 0);
        uint32_t value = e->num_contains ? spoken_of_or(s, r, e) : r->node;
        rest.value = LIT(LIT_SCHEMA, value);
        return value != DI_DOC_NONE && schema_add_rule(s, x, rest);
    }
    rule rest =
        schema_named_rule(s, RULE_ADDITIONAL, e->nodes[0], NULL, 0, LIT(LIT_SCHEMA, r->node));
    rest.low = (uint32_t)s->num_node_list;
    rest.high = e->num_nodes;
    for (uint32_t i = 0; i < e->num_nodes; i++) {
        uint32_t *grown = di_grow(s->node_list, s->num_node_list, &s->cap_node_list, sizeof *grown);
        if (!grown) {
            return schema_no_memory(s);
        }
        s->node_list = grown;
        s->node_list[s->num_node_list++] = e->nodes[i];
    }
    return schema_add_rule(s, x, rest);
}

static bool add_situation(di_schema *s, const reading *r, const situation *e, shapes *out) {
    shapes one = {0};
    shape x = schema_any_shape(s);
    bool ok = add_situation_rule(s, r, e, &x);
    for (uint32_t i = 0; ok && i < e->num_members; i++) {
        const di_doc_node *n = at(s, e->members[i].entry);
        bool present = e->members[i].present;
        ok = schema_add_rule(s, &x,
                             schema_named_rule(s, present ? RULE_REQUIRED : RULE_PROPERTY,
                                               e->members[i].entry, n->key, n->key_size,
                                               present ? LIT_TRUE : LIT_FALSE));
    }
    ok = ok && schema_add_shape(s, &one, x);
    for (uint32_t i = 0; ok && i < e->num_statements; i++) {
        ok = schema_and_literal(s, &one, e->statements[i]);
    }
    for (size_t i = 0; ok && i < one.count; i++) {
        ok = schema_add_shape(s, out, one.of[i]);
    }
    di_free(one.of);
    return ok;
}

bool schema_unevaluated(di_schema *s, uint32_t schema, uint32_t node, shapes *list) {
    reading r = {.s = s, .node = node, .items = key_is(at(s, node), "unevaluatedItems")};
    situations all = {0};
    situation none = {0};
    shapes with = {0};
    bool ok = add(&r, &all, &none) && evaluate(&r, schema, true, &all);
    for (size_t i = 0; ok && i < all.count; i++) {
        ok = add_situation(s, &r, &all.of[i], &with);
    }
    di_free(all.of);
    if (ok) {
        ok = schema_product(s, list, &with);
    } else if (s->options.lenient && s->err && s->err->code == DI_OK) {
        ok = true; /* noted as left out */
    }
    di_free(with.of);
    return ok;
}
