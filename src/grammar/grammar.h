/* Structured output: grammars compiled once, matchers that follow one sequence, masks of the tokens
 * that may come next. What the rooms above use; docs/grammar.md tells the rest.
 *
 *   text of a schema, regex or grammar --di_grammar_compile--> di_grammar
 *   di_grammar --di_matcher_create--> di_matcher: mask, push, rollback, fork
 *
 * A grammar is made as far as texts get, anew when it has become too large, and is shared: any
 * number of threads may use its matchers at once (one thread a matcher); each call holds the
 * grammar's lock for its own time, a few microseconds. */
#ifndef DI_GRAMMAR_GRAMMAR_H
#define DI_GRAMMAR_GRAMMAR_H

#include "base/buffer.h"
#include "grammar/vocab.h"

typedef enum di_grammar_type {
    DI_GRAMMAR_JSON_SCHEMA,
    DI_GRAMMAR_REGEX,
    DI_GRAMMAR_EBNF,
    DI_GRAMMAR_TOOLS,            /* calls of the tools in a JSON array */
    DI_GRAMMAR_GBNF,             /* EBNF as llama.cpp reads it */
    DI_GRAMMAR_TOOLS_OR_CONTENT, /* calls of tools, or else a text that a schema or regex allows */
} di_grammar_type;

/* "json_schema", "regex", "ebnf", "tools", "gbnf" or "tools_or_content". */
bool di_grammar_type_parse(const char *name, di_grammar_type *type);

/* Where the text of a tools grammar begins. */
typedef enum di_tools_from {
    DI_TOOLS_FROM_BLOCK, /* with the blank line before the block of calls */
    DI_TOOLS_FROM_MARK,  /* behind the control token that opens the block's first tag */
    DI_TOOLS_FROM_CALL,  /* inside the block, with the first call */
} di_tools_from;

typedef struct di_grammar_options {
    bool any_order;     /* JSON: declared properties in any order; else in the schema's */
    bool strict;        /* JSON: only what `properties` and `prefixItems` name is allowed */
    bool lenient;       /* JSON: leave out what cannot be enforced instead of refusing the schema */
    int max_whitespace; /* JSON: characters between two tokens of the text */
    const char *root;   /* EBNF: the start rule */
    di_tools_from tools_from;
    size_t max_text;  /* bytes of the grammar's own text */
    size_t max_bytes; /* memory of one grammar, automata included */
} di_grammar_options;

void di_grammar_options_default(di_grammar_options *o);

typedef struct di_grammar di_grammar;

/* The vocabulary must outlive the grammar. NULL with an error: DI_ERR_ARGUMENT for what is wrong or
 * allows nothing, DI_ERR_UNSUPPORTED for what is not supported or too complex; both say where. */
di_grammar *di_grammar_compile(const di_vocab *vocab, di_grammar_type type, const char *text,
                               size_t size, const di_grammar_options *options, di_error *err);

/* Grammars are counted: compile gives the first reference, every matcher holds one. */
di_grammar *di_grammar_retain(di_grammar *g);
void di_grammar_release(di_grammar *g); /* NULL is allowed */

/* What `lenient` left out first, "" if nothing. */
const char *di_grammar_ignored(const di_grammar *g);

typedef struct di_grammar_size {
    size_t bytes;  /* held now */
    size_t states; /* of the machine */
    size_t terms;
} di_grammar_size;
di_grammar_size di_grammar_measure(di_grammar *g);

typedef struct di_matcher di_matcher;

di_matcher *di_matcher_create(di_grammar *g, di_error *err);
di_matcher *di_matcher_fork(const di_matcher *m, di_error *err);
void di_matcher_destroy(di_matcher *m); /* NULL is allowed */

/* Takes a token. Refused (false, the state unchanged) if the grammar does not allow it here: then
 * the error has DI_ERR_ARGUMENT; other codes mean that the grammar cannot follow this text (too
 * ambiguous, or even alone beyond the grammar's memory). A stop token is taken exactly where the
 * text may end. */
bool di_matcher_push(di_matcher *m, int32_t token, di_error *err);

/* Undoes the last k tokens, stop tokens too. False, and nothing undone, if there are fewer. */
bool di_matcher_rollback(di_matcher *m, size_t k);

size_t di_matcher_length(const di_matcher *m); /* tokens taken and not undone */
bool di_matcher_may_end(di_matcher *m);        /* the text so far is complete */
bool di_matcher_ended(const di_matcher *m);    /* a stop token was taken */

/* Writes [vocab->num_words]: bit id % 32 of word id / 32 is set if the token may come. Never all
 * zero without an error; behind a stop token the stop tokens alone. */
bool di_matcher_mask(di_matcher *m, uint32_t *words, di_error *err);

/* Writes the bytes that must come next because nothing else can, at most `limit`. */
bool di_matcher_forced(di_matcher *m, size_t limit, di_buffer *out, di_error *err);

#endif
