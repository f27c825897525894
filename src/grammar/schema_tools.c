/* Calls of tools, as the model writes them; see schema.h. A block holds one call after the other:
 *
 *   <M calls>\n
 *   <M invoke name="NAME">\n
 *   <M parameter name="KEY" string="true">text as it is</M parameter>\n
 *   <M parameter name="KEY" string="false">JSON</M parameter>\n
 *   </M invoke>\n
 *   </M calls>
 *
 * M being a control token, DI_VOCAB_DSML here, that no text can hold; a call without parameters has
 * an empty line. The parameters are the members of an object that the tool's schema allows, so the
 * states of objects serve (schema_members.c): what is required, bounded, forbidden or depends on
 * each other is so here too.
 *
 * An answer that has a format of its own beside tools is either such a block or a text of that
 * format, never both: what a client reads as content always has the format. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/pattern.h"
#include "grammar/schema_internal.h"
#include "grammar/vocab.h"

enum { MAX_TOOLS = 1000, MAX_NAME = 256 };

static di_term literal(di_schema *s, const char *text) {
    return di_term_literal(s->t, text, strlen(text));
}

/* ---- values ---- */

di_term schema_markup_value(di_schema *s, demand d) {
    di_term strings = DI_TERM_NONE, end = literal(s, "</" MARK " parameter>\n");
    if (!schema_know(s, d)) {
        return DI_TERM_NONE;
    }
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        const shape *x = &s->shapes[s->demands[d].shape_first + i];
        if (x->types & TYPE_STRING) {
            strings = di_term_alt2(s->t, strings, x->string);
        }
    }
    di_term text = di_term_cat3(s->t, literal(s, "\" string=\"true\">"), strings, end);
    di_term json =
        di_term_cat3(s->t, literal(s, "\" string=\"false\">"), schema_value_but_strings(s, d), end);
    return di_term_alt2(s->t, text, json);
}

/* Names that are not declared: what would break the tag is left out. */
static di_term parameter_names(di_schema *s) {
    static const uint32_t ranges[] = {0x20, 0x21, 0x23, 0x3B, 0x3D,
                                      0x3D, 0x3F, 0x7E, 0xA0, 0x10FFFF};
    return di_term_repeat(s->t, di_term_characters(s->t, ranges, 5), 1, DI_TERM_UNBOUNDED);
}

/* ---- one tool ---- */

typedef struct tool {
    uint32_t name, parameters; /* nodes; DI_DOC_NONE = no parameters */
    bool strict;
} tool;

/* {"name", "parameters", "strict"}, or that as "function" of {"type": "function"}. */
static bool read_tool(di_schema *s, uint32_t node, tool *t) {
    uint32_t function = di_doc_member(&s->doc, node, "function");
    node = function != DI_DOC_NONE ? function : node;
    uint32_t name = di_doc_member(&s->doc, node, "name");
    if (s->doc.nodes[node].type != DI_DOC_OBJECT || name == DI_DOC_NONE ||
        s->doc.nodes[name].type != DI_DOC_STRING) {
        return schema_fail(s, DI_ERR_ARGUMENT, node, "a tool needs a name");
    }
    const di_doc_node *n = &s->doc.nodes[name];
    if (n->size == 0 || n->size > MAX_NAME || memchr(n->text, '"', n->size) ||
        memchr(n->text, '\n', n->size)) {
        return schema_fail(s, DI_ERR_ARGUMENT, name,
                           "a tool's name has 1 to 256 bytes, no quote and no end of line");
    }
    uint32_t strict = di_doc_member(&s->doc, node, "strict");
    uint32_t parameters = di_doc_member(&s->doc, node, "parameters");
    if (parameters == DI_DOC_NONE) {
        parameters = di_doc_member(&s->doc, node, "input_schema"); /* Anthropic's name of it */
    }
    bool none = parameters == DI_DOC_NONE || s->doc.nodes[parameters].type == DI_DOC_NULL;
    *t = (tool){.name = name,
                .parameters = none ? DI_DOC_NONE : parameters,
                .strict = strict != DI_DOC_NONE && s->doc.nodes[strict].type == DI_DOC_TRUE};
    return true;
}

static bool same_name(const di_schema *s, uint32_t a, uint32_t b) {
    const di_doc_node *x = &s->doc.nodes[a], *y = &s->doc.nodes[b];
    return x->size == y->size && memcmp(x->text, y->text, x->size) == 0;
}

/* The parameters of a call behind the line that names the tool, with the end of the call. */
static bool add_parameters(di_schema *s, demand d) {
    di_term names = parameter_names(s);
    bool any = false;
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        shape x = s->shapes[s->demands[d].shape_first + i];
        uint32_t table;
        if (!(x.types & TYPE_OBJECT)) {
            continue;
        }
        if (!schema_markup_object(s, &x, names, &table)) {
            return false;
        }
        if (schema_object_inhabited(s, table)) {
            any = true;
            di_terms_push(s->t, schema_object_start(s, table));
        }
    }
    return any;
}

/* A call of the tool: the rest of the line with its name, and what follows. Pushed. */
static bool push_tool(di_schema *s, const tool *t) {
    const di_doc_node *name = &s->doc.nodes[t->name];
    di_term line =
        di_term_cat(s->t, di_term_literal(s->t, name->text, name->size), literal(s, "\">\n"));
    if (t->parameters == DI_DOC_NONE) {
        di_terms_push(s->t, di_term_cat(s->t, line, literal(s, "\n" MARKUP_CALL_END)));
        return schema_check(s);
    }
    lit root = LIT(LIT_SCHEMA, t->parameters);
    bool strict = s->options.strict, lenient = s->options.lenient;
    s->options.strict = strict || t->strict;
    s->options.lenient = lenient || !t->strict;
    schema_read_draft(s, t->parameters);
    demand d = schema_read_ids_at(s, t->parameters) ? schema_demand(s, &root, 1) : UINT32_MAX;
    bool ok = d != UINT32_MAX && schema_know(s, d) && schema_visit_all(s, d);
    size_t mark = s->t->num_scratch;
    if (ok && !add_parameters(s, d)) {
        ok = schema_check(s) &&
             schema_fail(s, DI_ERR_ARGUMENT, t->parameters, "the schema allows no object at all");
    }
    s->options.strict = strict;
    s->options.lenient = lenient;
    if (ok) {
        di_term rest = di_terms_take_alt(s->t, mark);
        di_terms_push(s->t, di_term_cat(s->t, line, rest));
    }
    return ok && schema_check(s);
}

/* ---- all of them ---- */

static bool push_tools(di_schema *s, uint32_t node) {
    const di_doc_node *list = &s->doc.nodes[node];
    if (list->type != DI_DOC_ARRAY || list->count == 0 || list->count > MAX_TOOLS) {
        return schema_fail(s, DI_ERR_ARGUMENT, node, "must be an array of 1 to 1000 tools");
    }
    tool *tools = di_calloc(list->count, sizeof *tools);
    if (!tools) {
        return schema_no_memory(s);
    }
    bool ok = true;
    uint32_t count = 0;
    for (uint32_t i = list->first; ok && i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        ok = read_tool(s, i, &tools[count]);
        for (uint32_t k = 0; ok && k < count; k++) {
            if (same_name(s, tools[k].name, tools[count].name)) {
                ok = schema_fail(s, DI_ERR_ARGUMENT, tools[count].name, "two tools have this name");
            }
        }
        ok = ok && push_tool(s, &tools[count++]);
    }
    di_free(tools);
    return ok;
}

/* The block of calls of the tools at a node. */
static bool make_block(di_schema *s, uint32_t node, di_calls_from from, di_term *block) {
    static const char *const begins[] = {"\n\n<" MARK " calls>\n", " calls>\n", ""};
    size_t mark = s->t->num_scratch;
    if (!push_tools(s, node)) {
        return false;
    }
    di_term call =
        di_term_cat(s->t, literal(s, "<" MARK " invoke name=\""), di_terms_take_alt(s->t, mark));
    di_term calls = di_term_repeat(s->t, call, 1, DI_TERM_UNBOUNDED);
    *block = di_term_cat3(s->t, literal(s, begins[from]), calls, literal(s, "</" MARK " calls>"));
    return schema_check(s);
}

/* ---- tools, or else content ---- */

/* What stands in {"tools", "schema" or "regex", "lenient"}. */
typedef struct choice {
    uint32_t tools, schema, regex; /* nodes, DI_DOC_NONE = not given */
    bool lenient;
} choice;

static bool read_choice(di_schema *s, choice *c) {
    static const char *const names[] = {"tools", "schema", "regex", "lenient"};
    const di_doc_node *root = &s->doc.nodes[0];
    if (root->type != DI_DOC_OBJECT) {
        return schema_fail(s, DI_ERR_ARGUMENT, 0, "must be an object with tools and a schema");
    }
    for (uint32_t i = root->first; i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        const di_doc_node *n = &s->doc.nodes[i];
        bool known = false;
        for (size_t k = 0; k < sizeof names / sizeof *names && !known; k++) {
            known = n->key_size == strlen(names[k]) && memcmp(n->key, names[k], n->key_size) == 0;
        }
        if (!known) {
            return schema_fail(s, DI_ERR_ARGUMENT, i,
                               "is none of \"tools\", \"schema\", \"regex\" and \"lenient\"");
        }
    }
    uint32_t lenient = di_doc_member(&s->doc, 0, names[3]);
    *c = (choice){.tools = di_doc_member(&s->doc, 0, names[0]),
                  .schema = di_doc_member(&s->doc, 0, names[1]),
                  .regex = di_doc_member(&s->doc, 0, names[2]),
                  .lenient = lenient != DI_DOC_NONE && s->doc.nodes[lenient].type == DI_DOC_TRUE};
    if (lenient != DI_DOC_NONE && !c->lenient && s->doc.nodes[lenient].type != DI_DOC_FALSE) {
        return schema_fail(s, DI_ERR_ARGUMENT, lenient, "must be true or false");
    }
    if (c->tools == DI_DOC_NONE) {
        return schema_fail(s, DI_ERR_ARGUMENT, 0, "\"tools\" is missing");
    }
    if ((c->schema == DI_DOC_NONE) == (c->regex == DI_DOC_NONE)) {
        return schema_fail(s, DI_ERR_ARGUMENT, 0, "needs one of \"schema\" and \"regex\"");
    }
    return c->regex == DI_DOC_NONE || s->doc.nodes[c->regex].type == DI_DOC_STRING ||
           schema_fail(s, DI_ERR_ARGUMENT, c->regex, "must be a string");
}

static bool make_regex(di_schema *s, uint32_t node, di_term *content) {
    const di_doc_node *n = &s->doc.nodes[node];
    return di_pattern_compile(s->t, n->text, n->size, DI_PATTERN_WHOLE, content, s->err)
               ? schema_check(s)
               : di_fail_prefix(s->err, "#/regex");
}

static bool make_json(di_schema *s, const choice *c, di_term *content) {
    bool lenient = s->options.lenient;
    s->options.lenient = lenient || c->lenient;
    lit root = LIT(LIT_SCHEMA, c->schema);
    schema_read_draft(s, c->schema);
    demand d = schema_read_ids_at(s, c->schema) ? schema_demand(s, &root, 1) : UINT32_MAX;
    bool ok = d != UINT32_MAX && schema_know(s, d) && schema_visit_all(s, d);
    if (ok && !schema_inhabited(s, d)) {
        ok = schema_check(s) &&
             schema_fail(s, DI_ERR_ARGUMENT, c->schema, "the schema allows no value at all");
    }
    *content = ok ? schema_value(s, d) : DI_TERM_NONE;
    s->options.lenient = lenient;
    return ok && schema_check(s);
}

/* Behind a block that has been opened nothing else can come, so there the content is only
 * checked. */
static bool make_choice(di_schema *s, di_calls_from from) {
    choice c = {0};
    di_term block = DI_TERM_NONE, content = DI_TERM_NONE;
    if (!read_choice(s, &c) || !make_block(s, c.tools, from, &block) ||
        !(c.regex != DI_DOC_NONE ? make_regex(s, c.regex, &content) : make_json(s, &c, &content))) {
        return false;
    }
    s->m->root = from == DI_CALLS_FROM_BLOCK ? di_term_alt2(s->t, block, content) : block;
    return schema_check(s);
}

static bool compile(di_schema *s, const char *text, size_t size, bool or_content,
                    di_calls_from from) {
    if (!di_doc_parse(&s->doc, text, size, s->err)) {
        return di_fail_prefix(s->err, or_content ? "the tools and the schema are no JSON"
                                                 : "the list of tools is no JSON");
    }
    schema_make_terms(s);
    schema_demand(s, NULL, 0);
    if (!schema_check(s) || !schema_open_ids(s)) {
        return false;
    }
    return or_content ? make_choice(s, from) : make_block(s, 0, from, &s->m->root);
}

di_schema *di_tools_compile(di_machine *m, const char *text, size_t size, bool or_content,
                            di_calls_from from, const di_schema_options *options, di_error *err) {
    di_error why = {0};
    di_schema *s = schema_create(m, options, err);
    if (!s) {
        return NULL;
    }
    s->err = &why;
    if (!compile(s, text, size, or_content, from)) {
        di_schema_destroy(s);
        if (err) {
            *err = why;
        }
        return NULL;
    }
    s->err = NULL;
    return s;
}
