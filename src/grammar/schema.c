/* Compiling a JSON Schema: demands, values, and the walk that makes everything that can be met so
 * that what is not supported is found now; see schema.h and schema_internal.h. */
#include "grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/schema_internal.h"

enum { MAX_SEARCH_STEPS = 600000, MAX_NESTING = 500 };

/* ---- errors ---- */

bool schema_fail(di_schema *s, di_error_code code, uint32_t node, const char *why) {
    char pointer[200];
    di_doc_pointer(&s->doc, node, pointer, sizeof pointer);
    return di_fail(s->err, code, "%s: %s", pointer, why);
}

bool schema_unsupported(di_schema *s, uint32_t node, const char *why) {
    if (!s->options.lenient) {
        return schema_fail(s, DI_ERR_UNSUPPORTED, node, why);
    }
    if (!s->ignored[0]) {
        char pointer[100];
        di_doc_pointer(&s->doc, node, pointer, sizeof pointer);
        snprintf(s->ignored, sizeof s->ignored, "%s: %.50s", pointer, why);
    }
    return true;
}

bool schema_no_memory(di_schema *s) {
    return di_fail(s->err, DI_ERR_NO_MEMORY, "no memory for a schema");
}

bool schema_check(di_schema *s) {
    if (s->t->fault.code != DI_OK) {
        return di_fail(s->err, s->t->fault.code, "%s", s->t->fault.message);
    }
    return !s->err || s->err->code == DI_OK;
}

uint32_t *schema_new_buckets(di_schema *s, uint32_t **old, uint32_t *count, uint32_t wanted) {
    uint32_t *buckets = di_realloc_array(NULL, wanted, sizeof *buckets);
    if (!buckets || !di_terms_charge(s->t, (wanted - *count) * sizeof *buckets)) {
        di_free(buckets);
        di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    memset(buckets, 0xFF, wanted * sizeof *buckets);
    di_free(*old);
    *old = buckets;
    *count = wanted;
    return buckets;
}

/* ---- demands ---- */

static int by_value(const void *pa, const void *pb) {
    lit a = *(const lit *)pa, b = *(const lit *)pb;
    return (a > b) - (a < b);
}

static demand intern_demand(di_schema *s, const lit *literals, uint32_t count) {
    uint32_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ literals[i]) * 0x01000193u;
    }
    uint32_t bucket = (hash ^ hash >> 16) % 1024;
    for (uint32_t i = s->demand_buckets[bucket]; i != UINT32_MAX; i = s->demands[i].hash_next) {
        const demand_node *d = &s->demands[i];
        if (d->count == count && (count == 0 || memcmp(s->literals + d->first, literals,
                                                       count * sizeof *literals) == 0)) {
            return i;
        }
    }
    if (s->num_demands >= SCHEMA_MAX_DEMANDS) {
        schema_fail(s, DI_ERR_UNSUPPORTED, 0, "more than 50000 combinations of subschemas");
        return UINT32_MAX;
    }
    demand_node *demands = di_grow(s->demands, s->num_demands, &s->cap_demands, sizeof *demands);
    if (!demands) {
        schema_no_memory(s);
        return UINT32_MAX;
    }
    s->demands = demands;
    uint32_t first = (uint32_t)s->num_literals;
    for (uint32_t i = 0; i < count; i++) {
        lit *grown = di_grow(s->literals, s->num_literals, &s->cap_literals, sizeof *grown);
        if (!grown) {
            schema_no_memory(s);
            return UINT32_MAX;
        }
        s->literals = grown;
        s->literals[s->num_literals++] = literals[i];
    }
    demand id = (demand)s->num_demands++;
    s->demands[id] =
        (demand_node){.first = first, .count = count, .hash_next = s->demand_buckets[bucket]};
    s->demand_buckets[bucket] = id;
    return id;
}

demand schema_demand(di_schema *s, const lit *literals, size_t count) {
    lit sorted[SCHEMA_MAX_LITERALS + 1];
    uint32_t kept = 0;
    if (count > 0) {
        memcpy(sorted, literals, count * sizeof *sorted);
    }
    qsort(sorted, count, sizeof *sorted, by_value);
    for (size_t i = 0; i < count; i++) {
        lit x = sorted[i];
        if (x == LIT_FALSE) {
            return intern_demand(s, &x, 1);
        }
        bool any = x == LIT_TRUE || ((x & 3) == LIT_SCHEMA && s->doc.nodes[x >> 2].count == 0 &&
                                     (s->doc.nodes[x >> 2].type == DI_DOC_TRUE ||
                                      s->doc.nodes[x >> 2].type == DI_DOC_OBJECT));
        if (!any && (kept == 0 || sorted[kept - 1] != x)) {
            sorted[kept++] = x;
        }
    }
    return intern_demand(s, sorted, kept);
}

demand schema_demand_and(di_schema *s, demand a, lit x) {
    lit literals[SCHEMA_MAX_LITERALS + 1];
    const demand_node *d = &s->demands[a];
    if (d->count >= SCHEMA_MAX_LITERALS) {
        schema_fail(s, DI_ERR_UNSUPPORTED, 0, "too many schemas for one value");
        return UINT32_MAX;
    }
    memcpy(literals, s->literals + d->first, d->count * sizeof *literals);
    literals[d->count] = x;
    return schema_demand(s, literals, d->count + 1u);
}

bool schema_know(di_schema *s, demand d) {
    if (s->demands[d].known) {
        return s->demands[d].known == 2;
    }
    s->demands[d].known = 1;
    s->making++;
    shapes list = {0};
    uint32_t first = s->demands[d].first, count = s->demands[d].count;
    bool ok = count == 1 ? schema_make_shapes(s, s->literals[first], &list)
                         : schema_add_shape(s, &list, schema_any_shape(s));
    for (uint32_t i = 0; ok && count > 1 && i < count; i++) {
        ok = schema_and_literal(s, &list, s->literals[first + i]);
    }
    uint32_t at = (uint32_t)s->num_shapes;
    for (size_t i = 0; ok && i < list.count; i++) {
        shape *grown = di_grow(s->shapes, s->num_shapes, &s->cap_shapes, sizeof *grown);
        if (!grown) {
            ok = schema_no_memory(s);
            break;
        }
        s->shapes = grown;
        s->shapes[s->num_shapes++] = list.of[i];
    }
    s->demands[d].shape_first = at;
    s->demands[d].shape_count = (uint32_t)list.count;
    s->demands[d].known = ok ? 2 : 0;
    s->making--;
    di_free(list.of);
    return ok;
}

bool schema_shapes_of(di_schema *s, lit x, shapes *out) {
    demand d = schema_demand(s, &x, 1);
    if (d == UINT32_MAX) {
        return false;
    }
    if (s->demands[d].known == 1) {
        return schema_fail(s, DI_ERR_UNSUPPORTED, x >> 2, "refers to itself without end");
    }
    if (++s->depth > MAX_NESTING) {
        return schema_fail(s, DI_ERR_UNSUPPORTED, x >> 2, "schemas refer to each other too deep");
    }
    bool ok = schema_know(s, d);
    s->depth--;
    for (uint32_t i = 0; ok && i < s->demands[d].shape_count; i++) {
        ok = schema_add_shape(s, out, s->shapes[s->demands[d].shape_first + i]);
    }
    return ok;
}

bool schema_object_of(di_schema *s, uint32_t shape_index, uint32_t *table) {
    if (s->shapes[shape_index].object == UINT32_MAX) {
        shape x = s->shapes[shape_index];
        if (!schema_object(s, &x, table)) {
            return false;
        }
        s->shapes[shape_index].object = *table;
    }
    *table = s->shapes[shape_index].object;
    return true;
}

bool schema_array_of(di_schema *s, uint32_t shape_index, uint32_t *table) {
    if (s->shapes[shape_index].array == UINT32_MAX) {
        shape x = s->shapes[shape_index];
        if (!schema_array(s, &x, table)) {
            return false;
        }
        s->shapes[shape_index].array = *table;
    }
    *table = s->shapes[shape_index].array;
    return true;
}

static bool shape_inhabited(di_schema *s, uint32_t i) {
    uint32_t table;
    uint8_t types = s->shapes[i].types;
    return types & ~(TYPE_ARRAY | TYPE_OBJECT) ||
           (types & TYPE_OBJECT && schema_object_of(s, i, &table) &&
            schema_object_inhabited(s, table)) ||
           (types & TYPE_ARRAY && schema_array_of(s, i, &table) &&
            schema_array_inhabited(s, table));
}

/* The least solution: a demand met again while it is being searched counts as not inhabited. A
 * "no" that rests on that is not kept. While a demand's shapes are being made it counts as
 * inhabited, and nothing that rests on that is kept either. */
bool schema_inhabited(di_schema *s, demand d) {
    if (d == 0 || s->demands[d].inhabited >= 2) {
        return d == 0 || s->demands[d].inhabited == 3;
    }
    if (s->demands[d].known == 1 || s->demands[d].inhabited == 1) {
        s->assumed = true;
        return s->demands[d].known == 1;
    }
    if (++s->steps > MAX_SEARCH_STEPS || s->t->fault.code != DI_OK) {
        di_terms_fail(s->t, DI_ERR_UNSUPPORTED, "too complex: cannot tell what values there are");
        return false;
    }
    bool before = s->assumed, found = false;
    s->assumed = false;
    s->demands[d].inhabited = 1;
    bool ok = schema_know(s, d);
    for (uint32_t i = 0; ok && !found && i < s->demands[d].shape_count; i++) {
        found = shape_inhabited(s, s->demands[d].shape_first + i);
    }
    bool keep = ok && (!s->assumed || (found && s->making == 0));
    s->demands[d].inhabited = !keep ? 0 : found ? 3 : 2;
    s->assumed |= before;
    return found;
}

/* ---- values ---- */

/* The numbers and words among the shapes and, if they are wanted, the strings, as one regular term.
 */
static di_term scalars(di_schema *s, demand d, bool with_strings) {
    static const char *const words[] = {"null", "false", "true"};
    di_term strings = DI_TERM_NONE, numbers = DI_TERM_NONE;
    unsigned types = 0;
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        const shape *x = &s->shapes[s->demands[d].shape_first + i];
        types |= x->types;
        if (x->types & TYPE_STRING && with_strings) {
            strings = di_term_alt2(s->t, strings, x->string);
        }
        if (x->types & TYPE_NUMBER) {
            numbers = di_term_alt2(s->t, numbers, x->number);
        }
    }
    size_t mark = s->t->num_scratch;
    di_terms_push(s->t, numbers);
    di_terms_push(s->t, di_term_cat(s->t, s->quote, di_term_string(s->t, strings)));
    for (int w = 0; w < 3; w++) {
        if (types >> w & 1) {
            di_terms_push(s->t, di_term_literal(s->t, words[w], strlen(words[w])));
        }
    }
    return di_terms_take_alt(s->t, mark);
}

static bool is_scalar(const di_schema *s, demand d) {
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        if (s->shapes[s->demands[d].shape_first + i].types & (TYPE_ARRAY | TYPE_OBJECT)) {
            return false;
        }
    }
    return true;
}

di_term schema_value(di_schema *s, demand d) {
    if (s->demands[d].value == DI_TERM_NONE && schema_know(s, d)) {
        s->demands[d].value = is_scalar(s, d)
                                  ? scalars(s, d, true)
                                  : di_term_special(s->t, DI_KIND_LAZY, LAZY_VALUE, d, 0);
    }
    return s->demands[d].value;
}

di_term schema_value_but_strings(di_schema *s, demand d) {
    if (!schema_know(s, d)) {
        return DI_TERM_NONE;
    }
    return is_scalar(s, d) ? scalars(s, d, false)
                           : di_term_special(s->t, DI_KIND_LAZY, LAZY_VALUE, d, 1);
}

static di_term expand_value(di_schema *s, demand d, bool with_strings) {
    if (s->demands[d].expanded != DI_TERM_NONE && with_strings) {
        return s->demands[d].expanded;
    }
    size_t mark = s->t->num_scratch;
    di_terms_push(s->t, scalars(s, d, with_strings));
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        uint32_t at = s->demands[d].shape_first + i, table;
        uint8_t types = s->shapes[at].types;
        if (types & TYPE_OBJECT && schema_object_of(s, at, &table) &&
            schema_object_inhabited(s, table)) {
            di_term rest = schema_object_start(s, table);
            di_terms_push(s->t, di_term_cat(s->t, di_term_byte(s->t, '{', '{'), rest));
        }
        if (types & TYPE_ARRAY && schema_array_of(s, at, &table) &&
            schema_array_inhabited(s, table)) {
            di_term rest = schema_array_start(s, table);
            di_terms_push(s->t, di_term_cat(s->t, di_term_byte(s->t, '[', '['), rest));
        }
    }
    di_term x = di_terms_take_alt(s->t, mark);
    s->demands[d].expanded = with_strings ? x : s->demands[d].expanded;
    return x;
}

static di_term expand(void *context, di_terms *t, di_term lazy, uint32_t tag) {
    di_schema *s = context;
    const di_term_node n = t->nodes[lazy];
    s->searches = 0;
    switch (n.a) {
    case LAZY_VALUE:
        return expand_value(s, n.b, n.c == 0);
    case LAZY_OBJECT:
        return schema_object_expand(s, n.b);
    case LAZY_ARRAY:
        return schema_array_expand(s, n.b, n.c);
    case LAZY_ELEMENT:
        return schema_array_resume(s, n.b, tag);
    case LAZY_KEPT:
        return schema_kept_expand(s, n.b, n.c);
    case LAZY_WRITTEN:
        return schema_object_written(s, n.b, n.c, tag);
    default:
        return schema_object_resume(s, n.b, tag);
    }
}

/* ---- compiling ---- */

typedef struct visit_queue {
    demand *of;
    size_t count, capacity;
} visit_queue;

static bool visit(di_schema *s, demand d, void *context) {
    visit_queue *q = context;
    if (s->demands[d].visited) {
        return true;
    }
    demand *of = di_grow(q->of, q->count, &q->capacity, sizeof *of);
    if (!of) {
        return schema_no_memory(s);
    }
    q->of = of;
    q->of[q->count++] = d;
    s->demands[d].visited = true;
    return true;
}

static bool visit_shape(di_schema *s, uint32_t i, visit_queue *q) {
    uint32_t table;
    uint8_t types = s->shapes[i].types;
    if (types & TYPE_OBJECT) {
        if (!schema_object_of(s, i, &table)) {
            return false;
        }
        if (schema_object_inhabited(s, table) && !schema_object_demands(s, table, visit, q)) {
            return false;
        }
    }
    if (types & TYPE_ARRAY) {
        if (!schema_array_of(s, i, &table)) {
            return false;
        }
        if (schema_array_inhabited(s, table) && !schema_array_demands(s, table, visit, q)) {
            return false;
        }
    }
    return schema_check(s);
}

bool schema_visit_all(di_schema *s, demand root) {
    visit_queue q = {0};
    bool ok = visit(s, root, &q);
    for (size_t i = 0; ok && i < q.count; i++) {
        demand d = q.of[i];
        ok = schema_know(s, d) && schema_check(s);
        for (uint32_t k = 0; ok && k < s->demands[d].shape_count; k++) {
            ok = visit_shape(s, s->demands[d].shape_first + k, &q);
        }
    }
    di_free(q.of);
    return ok;
}

void schema_read_draft(di_schema *s, uint32_t schema) {
    uint32_t node = di_doc_member(&s->doc, schema, "$schema");
    s->old_refs = s->draft4 = s->draft2019 = false; /* what the text held before it was another's */
    if (node == DI_DOC_NONE || s->doc.nodes[node].type != DI_DOC_STRING) {
        return;
    }
    static const char *const old[] = {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        bool is = memmem(s->doc.nodes[node].text, s->doc.nodes[node].size, old[i],
                         strlen(old[i])) != NULL;
        s->old_refs |= is;
        s->draft4 |= is && i < 2;
    }
    s->draft2019 = memmem(s->doc.nodes[node].text, s->doc.nodes[node].size, "2019-09", 7) != NULL;
}

void schema_make_terms(di_schema *s) {
    di_byte_set space = {0}, quote = {0};
    di_byte_set_add(&space, ' ');
    di_byte_set_add(&space, '\t');
    di_byte_set_add(&space, '\n');
    di_byte_set_add(&space, '\r');
    di_byte_set_add(&quote, '"');
    s->space =
        di_term_repeat(s->t, di_term_bytes(s->t, &space), 0, (uint32_t)s->options.max_whitespace);
    s->quote = di_term_bytes(s->t, &quote);
    s->any_number = di_number_any(s->t);
    s->plain_number = di_number_plain(s->t);
}

static bool compile(di_schema *s, const char *text, size_t size) {
    if (!di_doc_parse(&s->doc, text, size, s->err)) {
        return di_fail_prefix(s->err, "the schema is no JSON");
    }
    schema_read_draft(s, 0);
    schema_make_terms(s);
    if (!schema_check(s) || !schema_read_ids(s)) {
        return false;
    }
    schema_demand(s, NULL, 0);
    lit root = LIT(LIT_SCHEMA, 0);
    demand d = schema_demand(s, &root, 1);
    if (d == UINT32_MAX || !schema_know(s, d) || !schema_visit_all(s, d)) {
        return false;
    }
    if (!schema_inhabited(s, d)) {
        return schema_check(s) && s->err->code == DI_OK &&
               schema_fail(s, DI_ERR_ARGUMENT, 0, "the schema allows no value at all");
    }
    s->m->root = schema_value(s, d);
    return schema_check(s);
}

di_schema *schema_create(di_machine *m, const di_schema_options *options, di_error *err) {
    di_schema *s = di_calloc(1, sizeof *s);
    if (!s) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a schema");
        return NULL;
    }
    s->m = m;
    s->t = &m->terms;
    s->options = *options;
    memset(s->demand_buckets, 0xFF, sizeof s->demand_buckets);
    m->terms.hooks = (di_term_hooks){s,
                                     schema_key_derive,
                                     schema_key_boundaries,
                                     schema_key_first,
                                     schema_key_end,
                                     schema_key_open,
                                     schema_key_text,
                                     schema_behind_key,
                                     expand};
    return s;
}

di_schema *di_schema_compile(di_machine *m, const char *text, size_t size,
                             const di_schema_options *options, di_error *err) {
    di_error why = {0};
    di_schema *s = schema_create(m, options, err);
    if (!s) {
        return NULL;
    }
    s->err = &why;
    if (!compile(s, text, size)) {
        di_schema_destroy(s);
        if (err) {
            *err = why;
        }
        return NULL;
    }
    s->err = NULL;
    return s;
}

void di_schema_destroy(di_schema *s) {
    if (!s) {
        return;
    }
    schema_free_objects(s);
    schema_free_arrays(s);
    schema_free_records(s);
    schema_free_ids(s);
    di_free(s->demands);
    di_free(s->literals);
    di_free(s->shapes);
    di_free(s->rules);
    di_free(s->rule_list);
    di_free(s->node_list);
    di_doc_free(&s->doc);
    di_free(s);
}

const char *di_schema_ignored(const di_schema *s) {
    return s->ignored;
}
