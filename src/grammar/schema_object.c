/* Objects: the table that a shape's rules become; see schema_internal.h. The states while an object
 * is written are in schema_members.c. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

/* A table under construction: which literals hold for which name. */
typedef struct name_literal {
    uint32_t name;
    lit value;
} name_literal;

typedef struct builder {
    di_schema *s;
    const shape *x;
    object_table *o;
    name_literal *literals;
    size_t num_literals, cap_literals;
    uint32_t *sorted; /* names by their bytes */
    uint32_t *mark;   /* [num_names]: last additional rule that names it, + 1 */
} builder;

static const rule *rule_at(const di_schema *s, const shape *x, uint32_t i) {
    return &s->rules[s->rule_list[x->first + i]];
}

/* ---- names ---- */

static int compare_names(const object_name *a, const char *text, uint32_t size) {
    uint32_t n = a->size < size ? a->size : size;
    int c = n ? memcmp(a->text, text, n) : 0;
    return c ? c : (a->size > size) - (a->size < size);
}

static int by_name_then_order(const void *pa, const void *pb) {
    const object_name *a = pa, *b = pb;
    int c = compare_names(a, b->text, b->size);
    return c ? c : (a->order > b->order) - (a->order < b->order);
}

static int by_order(const void *pa, const void *pb) {
    const object_name *a = pa, *b = pb;
    return (a->order > b->order) - (a->order < b->order);
}

/* Gathers the names of PROPERTY and REQUIRED rules, in the order of their first mention; those that
 * only are required come last. */
static bool gather_names(builder *b) {
    object_table *o = b->o;
    o->names = di_calloc(b->x->count + 1u, sizeof *o->names);
    if (!o->names) {
        return schema_no_memory(b->s);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->x->count; i++) {
        const rule *r = rule_at(b->s, b->x, i);
        if (r->kind == RULE_PROPERTY || r->kind == RULE_REQUIRED) {
            bool required = r->kind == RULE_REQUIRED;
            o->names[n++] = (object_name){.text = r->name,
                                          .size = r->name_size,
                                          .order = i + (required ? b->x->count : 0),
                                          .required = required};
        }
    }
    qsort(o->names, n, sizeof *o->names, by_name_then_order);
    for (uint32_t i = 0; i < n; i++) {
        object_name *last = o->num_names ? &o->names[o->num_names - 1] : NULL;
        if (last && compare_names(last, o->names[i].text, o->names[i].size) == 0) {
            last->required |= o->names[i].required;
        } else {
            o->names[o->num_names++] = o->names[i];
        }
    }
    qsort(o->names, o->num_names, sizeof *o->names, by_order);
    return true;
}

/* The names by bytes, for finding; the array being sorted is of indices. */
static bool sort_names(builder *b) {
    uint32_t n = b->o->num_names;
    object_name *copy = di_realloc_array(NULL, n + 1u, sizeof *copy);
    b->sorted = di_realloc_array(NULL, n + 1u, sizeof *b->sorted);
    b->mark = di_calloc(n + 1u, sizeof *b->mark);
    if (!copy || !b->sorted || !b->mark) {
        di_free(copy);
        return schema_no_memory(b->s);
    }
    for (uint32_t i = 0; i < n; i++) {
        copy[i] = b->o->names[i];
        copy[i].order = i;
    }
    qsort(copy, n, sizeof *copy, by_name_then_order);
    for (uint32_t i = 0; i < n; i++) {
        b->sorted[i] = copy[i].order;
        b->o->names[i].order = i;
    }
    di_free(copy);
    return true;
}

static uint32_t find_name(const builder *b, const char *text, uint32_t size) {
    uint32_t low = 0, high = b->o->num_names;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (compare_names(&b->o->names[b->sorted[middle]], text, size) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < b->o->num_names && compare_names(&b->o->names[b->sorted[low]], text, size) == 0
               ? b->sorted[low]
               : UINT32_MAX;
}

/* Adds a name to the trie: its bytes one by one, children found by a scan. */
static bool add_to_trie(builder *b, uint32_t name) {
    object_table *o = b->o;
    uint32_t node = 0;
    for (uint32_t i = 0; i < o->names[name].size; i++) {
        uint8_t byte = (uint8_t)o->names[name].text[i];
        uint32_t child = o->trie[node].first_child;
        while (child != UINT32_MAX && o->trie[child].byte != byte) {
            child = o->trie[child].next_sibling;
        }
        if (child == UINT32_MAX) {
            size_t capacity = o->cap_nodes;
            name_node *trie = di_grow(o->trie, o->num_nodes, &capacity, sizeof *trie);
            if (!trie) {
                return schema_no_memory(b->s);
            }
            o->trie = trie;
            o->cap_nodes = (uint32_t)capacity;
            child = o->num_nodes++;
            trie[child] = (name_node){UINT32_MAX, trie[node].first_child, UINT32_MAX, byte};
            trie[node].first_child = child;
        }
        node = child;
    }
    o->trie[node].name = name;
    return true;
}

static bool build_trie(builder *b) {
    object_table *o = b->o;
    size_t capacity = 0;
    o->trie = di_grow(NULL, 0, &capacity, sizeof *o->trie);
    if (!o->trie) {
        return schema_no_memory(b->s);
    }
    o->cap_nodes = (uint32_t)capacity;
    o->trie[0] = (name_node){UINT32_MAX, UINT32_MAX, UINT32_MAX, 0};
    o->num_nodes = 1;
    for (uint32_t i = 0; i < o->num_names; i++) {
        if (!add_to_trie(b, i)) {
            return false;
        }
    }
    return true;
}

/* ---- patterns ---- */

static bool add_pattern(builder *b, const rule *r, di_term text, uint32_t *index) {
    object_table *o = b->o;
    uint32_t i = 0;
    while (i < o->num_patterns && o->patterns[i] != text) {
        i++;
    }
    if (i == SCHEMA_MAX_PATTERNS) {
        return schema_fail(b->s, DI_ERR_UNSUPPORTED, r->node,
                           "more than 24 patterns of names for one object");
    }
    if (i == o->num_patterns) {
        o->patterns[o->num_patterns] = text;
        for (int k = 0; k < 4; k++) {
            o->pattern_values[o->num_patterns][k] = LIT_TRUE;
        }
        o->num_patterns++;
    }
    *index = i;
    return true;
}

static bool matches(di_schema *s, di_term x, const object_name *name) {
    for (uint32_t i = 0; i < name->size && x != DI_TERM_NONE; i++) {
        x = di_term_step(s->t, x, (uint8_t)name->text[i]);
    }
    return x != DI_TERM_NONE && di_term_nullable(s->t, x);
}

/* How many schemas an ADDITIONAL rule speaks of together, and which. */
static uint32_t num_nodes(const rule *r) {
    return r->kind == RULE_ADDITIONAL && r->high != DI_TERM_UNBOUNDED ? r->high : 0;
}

/* The bits of the patterns that the patternProperties of a schema have. */
static bool schema_patterns(builder *b, const rule *r, uint32_t schema, uint32_t *bits) {
    di_schema *s = b->s;
    uint32_t node = di_doc_member(&s->doc, schema, "patternProperties");
    if (node == DI_DOC_NONE || s->doc.nodes[node].type != DI_DOC_OBJECT) {
        return true;
    }
    for (uint32_t i = s->doc.nodes[node].first; i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        di_term text;
        uint32_t index = 0;
        const di_doc_node *n = &s->doc.nodes[i];
        if (!schema_pattern(s, i, n->key, n->key_size, &text) || !add_pattern(b, r, text, &index)) {
            return false;
        }
        *bits |= 1u << index;
    }
    return true;
}

static bool add_literal(builder *b, uint32_t name, lit value) {
    name_literal *literals =
        di_grow(b->literals, b->num_literals, &b->cap_literals, sizeof *literals);
    if (!literals) {
        return schema_no_memory(b->s);
    }
    b->literals = literals;
    b->literals[b->num_literals++] = (name_literal){name, value};
    return true;
}

static bool read_pattern(builder *b, const rule *r) {
    uint32_t index = 0;
    if (!add_pattern(b, r, r->text, &index)) {
        return false;
    }
    lit *values = b->o->pattern_values[index];
    int k = 0;
    while (k < 4 && values[k] != LIT_TRUE && values[k] != r->value) {
        k++;
    }
    if (k == 4) {
        return schema_fail(b->s, DI_ERR_UNSUPPORTED, r->node,
                           "one pattern of names has more than four schemas");
    }
    values[k] = r->value;
    return true;
}

static bool read_additional(builder *b, const rule *r) {
    object_table *o = b->o;
    void *grown = di_realloc_array(o->additional, o->num_additional + 1u, sizeof *o->additional);
    if (!grown) {
        return schema_no_memory(b->s);
    }
    o->additional = grown;
    uint32_t bits = 0, count = num_nodes(r);
    bool ok = count > 0 || schema_patterns(b, r, r->node, &bits);
    for (uint32_t i = 0; ok && i < count; i++) {
        ok = schema_patterns(b, r, b->s->node_list[r->low + i], &bits);
    }
    o->additional[o->num_additional] = (struct additional){r->node, r->low, count, bits, r->value};
    o->num_additional += ok;
    return ok;
}

static bool read_exists(builder *b, const rule *r) {
    object_table *o = b->o;
    if (o->num_exists == 8) {
        return schema_fail(b->s, DI_ERR_UNSUPPORTED, r->node,
                           "more than eight demands that some member exists");
    }
    o->exists[o->num_exists].additional = r->text == DI_TERM_NONE;
    o->exists[o->num_exists].node = r->node;
    o->exists[o->num_exists].value = r->value;
    uint32_t bits = 0, index = 0;
    bool ok = r->text == DI_TERM_NONE ? schema_patterns(b, r, r->node, &bits)
                                      : add_pattern(b, r, r->text, &index);
    o->exists[o->num_exists++].patterns = r->text == DI_TERM_NONE ? bits : 1u << index;
    return ok;
}

/* Everything but names. */
static bool read_rules(builder *b) {
    object_table *o = b->o;
    for (uint32_t i = 0; i < b->x->count; i++) {
        rule r = *rule_at(b->s, b->x, i);
        bool ok = true;
        switch (r.kind) {
        case RULE_PATTERN:
            ok = read_pattern(b, &r);
            break;
        case RULE_ADDITIONAL:
            ok = read_additional(b, &r);
            break;
        case RULE_EXISTS:
            ok = read_exists(b, &r);
            break;
        case RULE_NAMES:
            o->allowed_names = o->allowed_names == DI_TERM_TEXT
                                   ? r.text
                                   : di_term_and2(b->s->t, o->allowed_names, r.text);
            break;
        case RULE_MEMBERS:
            o->low = r.low > o->low ? r.low : o->low;
            o->high = r.high < o->high ? r.high : o->high;
            break;
        case RULE_PROPERTY:
            ok = add_literal(b, find_name(b, r.name, r.name_size), r.value);
            break;
        default:
            break;
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* Marks the names that a schema's `properties` has, with `stamp`. */
static void mark_named(builder *b, uint32_t node, uint32_t stamp) {
    const di_doc *doc = &b->s->doc;
    uint32_t properties = di_doc_member(doc, node, "properties");
    if (properties == DI_DOC_NONE) {
        return;
    }
    for (uint32_t i = doc->nodes[properties].first; i != DI_DOC_NONE; i = doc->nodes[i].next) {
        uint32_t name = find_name(b, doc->nodes[i].key, doc->nodes[i].key_size);
        if (name != UINT32_MAX) {
            b->mark[name] = stamp;
        }
    }
}

/* What patterns, additional rules and demands for existence say about the declared names. */
static bool apply_to_names(builder *b) {
    object_table *o = b->o;
    uint32_t *bits = di_calloc(o->num_names + 1u, sizeof *bits);
    if (!bits) {
        return schema_no_memory(b->s);
    }
    bool ok = true;
    for (uint32_t i = 0; ok && i < o->num_names; i++) {
        for (uint32_t p = 0; ok && p < o->num_patterns; p++) {
            if (!matches(b->s, o->patterns[p], &o->names[i])) {
                continue;
            }
            bits[i] |= 1u << p;
            for (int k = 0; ok && k < 4 && o->pattern_values[p][k] != LIT_TRUE; k++) {
                ok = add_literal(b, i, o->pattern_values[p][k]);
            }
        }
        if (ok && o->allowed_names != DI_TERM_TEXT &&
            !matches(b->s, o->allowed_names, &o->names[i])) {
            ok = add_literal(b, i, LIT_FALSE);
        }
    }
    uint32_t stamp = 0;
    for (uint32_t a = 0; ok && a < o->num_additional; a++) {
        mark_named(b, o->additional[a].node, ++stamp);
        for (uint32_t k = 0; k < o->additional[a].count; k++) {
            mark_named(b, b->s->node_list[o->additional[a].first + k], stamp);
        }
        for (uint32_t i = 0; ok && i < o->num_names; i++) {
            if (b->mark[i] != stamp && !(bits[i] & o->additional[a].patterns)) {
                ok = add_literal(b, i, o->additional[a].value);
            }
        }
    }
    for (uint32_t e = 0; ok && e < o->num_exists; e++) {
        mark_named(b, o->exists[e].node, ++stamp);
        for (uint32_t i = 0; i < o->num_names; i++) {
            bool hit = bits[i] & o->exists[e].patterns;
            bool in = o->exists[e].additional ? b->mark[i] != stamp && !hit : hit;
            o->names[i].exists |= (uint32_t)in << e;
        }
    }
    di_free(bits);
    return ok;
}

static int by_literal_name(const void *pa, const void *pb) {
    const name_literal *a = pa, *b = pb;
    if (a->name != b->name) {
        return a->name < b->name ? -1 : 1;
    }
    return (a->value > b->value) - (a->value < b->value);
}

static bool demand_names(builder *b) {
    if (b->num_literals > 1) {
        qsort(b->literals, b->num_literals, sizeof *b->literals, by_literal_name);
    }
    for (size_t i = 0; i < b->num_literals;) {
        lit literals[SCHEMA_MAX_LITERALS];
        size_t count = 0;
        uint32_t name = b->literals[i].name;
        for (; i < b->num_literals && b->literals[i].name == name; i++) {
            if (count == SCHEMA_MAX_LITERALS) {
                return schema_fail(b->s, DI_ERR_UNSUPPORTED, 0, "too many schemas for a property");
            }
            literals[count++] = b->literals[i].value;
        }
        demand d = schema_demand(b->s, literals, count);
        if (d == UINT32_MAX) {
            return false;
        }
        b->o->names[name].value = d;
    }
    return true;
}

static void free_table(object_table *o) {
    di_free(o->names);
    di_free(o->trie);
    di_free(o->additional);
    di_free(o->extras);
    di_free(o->required_from);
    di_free(o->possible_from);
}

static bool add_object(di_schema *s, const shape *x, bool markup, di_term names, uint32_t *table) {
    object_table o = {
        .low = 0, .high = DI_TERM_UNBOUNDED, .allowed_names = names, .markup = markup};
    builder b = {.s = s, .x = x, .o = &o};
    bool ok = gather_names(&b) && sort_names(&b) && build_trie(&b) && read_rules(&b) &&
              apply_to_names(&b) && demand_names(&b) && schema_check(s);
    di_free(b.literals);
    di_free(b.sorted);
    di_free(b.mark);
    object_table *objects =
        ok ? di_grow(s->objects, s->num_objects, &s->cap_objects, sizeof *objects) : NULL;
    if (!objects) {
        free_table(&o);
        return ok ? schema_no_memory(s) : false;
    }
    s->objects = objects;
    *table = (uint32_t)s->num_objects;
    s->objects[s->num_objects++] = o;
    return true;
}

bool schema_object(di_schema *s, const shape *x, uint32_t *table) {
    return add_object(s, x, false, DI_TERM_TEXT, table);
}

bool schema_markup_object(di_schema *s, const shape *x, di_term names, uint32_t *table) {
    return add_object(s, x, true, names, table);
}

/* ---- members without a declared name ---- */

/* The demand on a member whose name matches these patterns. */
demand schema_extra_demand(di_schema *s, uint32_t table, uint32_t bits) {
    object_table *o = &s->objects[table];
    for (uint32_t i = 0; i < o->num_extras; i++) {
        if (o->extras[i].matches == bits) {
            return o->extras[i].value;
        }
    }
    lit literals[SCHEMA_MAX_LITERALS];
    size_t count = 0;
    for (uint32_t p = 0; p < o->num_patterns; p++) {
        for (int k = 0; bits >> p & 1 && k < 4 && o->pattern_values[p][k] != LIT_TRUE; k++) {
            if (count < SCHEMA_MAX_LITERALS) {
                literals[count++] = o->pattern_values[p][k];
            }
        }
    }
    for (uint32_t a = 0; a < o->num_additional; a++) {
        if (!(bits & o->additional[a].patterns) && count < SCHEMA_MAX_LITERALS) {
            literals[count++] = o->additional[a].value;
        }
    }
    if (count == SCHEMA_MAX_LITERALS) {
        schema_fail(s, DI_ERR_UNSUPPORTED, 0, "too many schemas for an additional property");
        return UINT32_MAX;
    }
    demand d = schema_demand(s, literals, count);
    size_t capacity = o->cap_extras;
    struct extra_demand *extras = di_grow(o->extras, o->num_extras, &capacity, sizeof *extras);
    if (!extras || d == UINT32_MAX) {
        schema_no_memory(s);
        return UINT32_MAX;
    }
    o->extras = extras;
    o->cap_extras = (uint32_t)capacity;
    extras[o->num_extras++] = (struct extra_demand){.matches = bits, .value = d};
    return d;
}

/* The names that match this set of patterns and no others. Which sets can be matched: all that the
 * product of their automata reaches would be exact; here every one counts that holds a name. */
static di_term names_with(di_schema *s, uint32_t table, uint32_t bits) {
    const object_table *o = &s->objects[table];
    di_term parts[SCHEMA_MAX_PATTERNS + 2];
    size_t n = 0;
    parts[n++] = o->allowed_names;
    for (uint32_t p = 0; p < o->num_patterns; p++) {
        parts[n++] = bits >> p & 1 ? o->patterns[p] : di_term_not(s->t, o->patterns[p]);
    }
    return di_term_and(s->t, parts, n);
}

bool schema_extra_sets(di_schema *s, uint32_t table, extra_fn f, void *context) {
    uint32_t n = s->objects[table].num_patterns;
    for (uint32_t bits = 0; bits < (n > 10 ? 1u << 10 : 1u << n); bits++) {
        if (n > 0 && !di_term_alive(s->t, names_with(s, table, bits))) {
            continue;
        }
        demand d = schema_extra_demand(s, table, bits);
        if (d == UINT32_MAX || !f(s, d, bits, context)) {
            return false;
        }
    }
    return s->t->fault.code == DI_OK;
}

static bool note_inhabited(di_schema *s, demand d, uint32_t bits, void *context) {
    (void)bits;
    bool *any = context;
    *any = *any || schema_inhabited(s, d);
    return !*any;
}

/* ---- whether an object is possible at all ---- */

bool schema_object_inhabited(di_schema *s, uint32_t table) {
    object_table o = s->objects[table];
    if (o.low > o.high) {
        return false;
    }
    uint32_t required = 0, possible = 0;
    for (uint32_t i = 0; i < o.num_names; i++) {
        if (o.names[i].required) {
            required++;
            if (!schema_inhabited(s, o.names[i].value)) {
                return false;
            }
        }
    }
    if (required > o.high) {
        return false;
    }
    for (uint32_t e = 0; e < o.num_exists; e++) {
        if (!schema_exists_possible(s, table, e)) {
            return false;
        }
    }
    if (o.low <= required) {
        return true;
    }
    for (uint32_t i = 0; i < o.num_names && possible < o.low; i++) {
        possible += schema_inhabited(s, o.names[i].value);
    }
    bool extras = false;
    if (possible < o.low) {
        schema_extra_sets(s, table, note_inhabited, &extras);
    }
    return possible >= o.low || extras;
}

typedef struct exists_search {
    uint32_t table, index;
    bool found;
} exists_search;

static bool extra_fulfils(di_schema *s, demand d, uint32_t bits, void *context) {
    exists_search *x = context;
    const object_table *o = &s->objects[x->table];
    bool hit = bits & o->exists[x->index].patterns;
    if (o->exists[x->index].additional ? !hit : hit) {
        demand both = schema_demand_and(s, d, o->exists[x->index].value);
        x->found |= both != UINT32_MAX && schema_inhabited(s, both);
    }
    return !x->found;
}

bool schema_exists_possible(di_schema *s, uint32_t table, uint32_t index) {
    object_table o = s->objects[table];
    for (uint32_t i = 0; i < o.num_names; i++) {
        if (o.names[i].exists >> index & 1) {
            demand both = schema_demand_and(s, o.names[i].value, o.exists[index].value);
            if (both != UINT32_MAX && schema_inhabited(s, both)) {
                return true;
            }
        }
    }
    exists_search x = {table, index, false};
    schema_extra_sets(s, table, extra_fulfils, &x);
    return x.found;
}

/* Whether one set of patterns alone allows names without end. */
static bool note_endless(di_schema *s, demand d, uint32_t bits, void *context) {
    exists_search *x = context;
    if (schema_inhabited(s, d)) {
        x->found = schema_endless_texts(s, names_with(s, x->table, bits));
    }
    return !x->found;
}

bool schema_object_roomy(di_schema *s, uint32_t table) {
    if (s->objects[table].roomy == 0) {
        exists_search x = {table, 0, false};
        if (s->objects[table].high == DI_TERM_UNBOUNDED) {
            schema_extra_sets(s, table, note_endless, &x);
        }
        if (!s->objects[table].settled) {
            return x.found; /* it may rest on what is only assumed as yet */
        }
        s->objects[table].roomy = x.found ? 2 : 1;
    }
    return s->objects[table].roomy == 2;
}

typedef struct settle_search {
    uint32_t table;
    bool any, all;
} settle_search;

static bool settle_extra(di_schema *s, demand d, uint32_t bits, void *context) {
    settle_search *x = context;
    bool possible = schema_inhabited(s, d);
    object_table *o = &s->objects[x->table];
    for (uint32_t i = 0; i < o->num_extras; i++) {
        if (o->extras[i].matches == bits) {
            o->extras[i].possible = possible;
        }
    }
    x->any |= possible;
    x->all &= possible;
    return true;
}

bool schema_object_settle(di_schema *s, uint32_t table) {
    if (s->objects[table].settled) {
        return true;
    }
    uint32_t n = s->objects[table].num_names;
    uint32_t *required = di_calloc(n + 1u, sizeof *required);
    uint32_t *possible = di_calloc(n + 1u, sizeof *possible);
    if (!required || !possible) {
        di_free(required);
        di_free(possible);
        return schema_no_memory(s);
    }
    for (uint32_t i = n; i > 0; i--) {
        bool can = schema_inhabited(s, s->objects[table].names[i - 1].value);
        object_name *name = &s->objects[table].names[i - 1];
        name->possible = can;
        required[i - 1] = required[i] + name->required;
        possible[i - 1] = possible[i] + can;
    }
    settle_search x = {table, false, true};
    bool ok = schema_extra_sets(s, table, settle_extra, &x);
    object_table *o = &s->objects[table];
    o->required_from = required;
    o->possible_from = possible;
    o->extras_possible = x.any;
    o->any_extra = x.all && o->allowed_names == DI_TERM_TEXT;
    o->settled = true;
    return ok;
}

typedef struct demand_visit {
    demand_fn f;
    void *context;
    uint32_t table;
} demand_visit;

static bool visit_extra(di_schema *s, demand d, uint32_t bits, void *context) {
    const demand_visit *v = context;
    const object_table o = s->objects[v->table];
    if (!v->f(s, d, v->context)) {
        return false;
    }
    for (uint32_t e = 0; e < o.num_exists; e++) {
        bool hit = bits & o.exists[e].patterns;
        if (o.exists[e].additional ? !hit : hit) {
            demand both = schema_demand_and(s, d, o.exists[e].value);
            if (both == UINT32_MAX || !v->f(s, both, v->context)) {
                return false;
            }
        }
    }
    return true;
}

bool schema_object_demands(di_schema *s, uint32_t table, demand_fn f, void *context) {
    if (!schema_object_settle(s, table)) {
        return false;
    }
    object_table o = s->objects[table];
    for (uint32_t i = 0; i < o.num_names; i++) {
        if (o.names[i].possible && !f(s, o.names[i].value, context)) {
            return false;
        }
        for (uint32_t e = 0; e < o.num_exists; e++) {
            if (o.names[i].exists >> e & 1) {
                demand both = schema_demand_and(s, o.names[i].value, o.exists[e].value);
                if (both == UINT32_MAX || !f(s, both, context)) {
                    return false;
                }
            }
        }
    }
    demand_visit v = {f, context, table};
    return schema_extra_sets(s, table, visit_extra, &v);
}

void schema_free_objects(di_schema *s) {
    for (size_t i = 0; i < s->num_objects; i++) {
        free_table(&s->objects[i]);
    }
    di_free(s->objects);
    di_free(s->object_states);
    di_free(s->object_buckets);
    di_free(s->keys);
    di_free(s->key_buckets);
    di_free(s->seen_words);
}
