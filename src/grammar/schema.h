/* JSON Schema (draft 4 to 2020-12) made into a machine that writes exactly the valid instances.
 *
 *   schema text -> doc.h -> demands (sets of subschemas that must hold at one place)
 *     -> shapes (alternatives, each a conjunction by type) -> terms, made when a text gets there
 *
 * What a generator that goes left to right cannot enforce is an error that names keyword and JSON
 * pointer; nothing is ignored. docs/grammar.md lists what is enforced and the limits. */
#ifndef DI_GRAMMAR_SCHEMA_H
#define DI_GRAMMAR_SCHEMA_H

#include "grammar/machine.h"

typedef struct di_schema_options {
    bool any_order; /* of declared properties; else the schema's order */
    bool strict;    /* what properties and items do not name is forbidden, unless said otherwise */
    bool lenient;   /* what cannot be enforced is left out, and noted in `ignored` */
    int max_whitespace; /* characters between two tokens of JSON; 0 = none */
} di_schema_options;

typedef struct di_schema di_schema;

/* Fills m (root, hooks). The schema must live as long as the machine. */
di_schema *di_schema_compile(di_machine *m, const char *text, size_t size,
                             const di_schema_options *options, di_error *err);
/* Where a text of calls begins: grammar.h's di_tools_from. */
typedef enum di_calls_from {
    DI_CALLS_FROM_BLOCK,
    DI_CALLS_FROM_MARK,
    DI_CALLS_FROM_CALL,
} di_calls_from;

/* The same for a JSON array of tools: a block of calls of them, in the markup that the model was
 * taught (schema_tools.c). or_content: the text is {"tools", "schema" or "regex", "lenient"}, and a
 * text that the schema or the regular expression allows may come in place of the block; "lenient"
 * speaks of that schema alone. */
di_schema *di_tools_compile(di_machine *m, const char *text, size_t size, bool or_content,
                            di_calls_from from, const di_schema_options *options, di_error *err);
void di_schema_destroy(di_schema *s); /* NULL is allowed */

/* The first thing that was left out for `lenient`, "" if nothing was. */
const char *di_schema_ignored(const di_schema *s);

#endif
