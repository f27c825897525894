/* Compiled grammars, kept by content, and the threads that compile them.
 *
 * A request asks for its grammar when it is made and goes on; some milliseconds later the grammar
 * is there, or the reason why not. The same content compiles once, also when many ask at once. What
 * nobody uses is kept until others need the memory, the least recently used going first. */
#ifndef DI_ENGINE_GRAMMARS_H
#define DI_ENGINE_GRAMMARS_H

#include "grammar/grammar.h"
#include "text/tokenizer.h"

typedef struct di_grammars di_grammars;
typedef struct di_compiled di_compiled; /* one content, compiled or on the way */

typedef struct di_grammars_options {
    const di_tokenizer *tokenizer; /* borrowed */
    int32_t num_bits, stop;        /* of masks; the token that ends a text */
    size_t max_bytes;              /* of grammars that are kept */
    void (*ready)(void *user);     /* called by a compiling thread: something is done */
    void *user;
} di_grammars_options;

/* Starts nothing yet: the vocabulary is sorted and threads start with the first grammar. */
di_grammars *di_grammars_create(const di_grammars_options *o, di_error *err);
void di_grammars_destroy(di_grammars *g); /* every di_compiled has been released; NULL is allowed */

/* The grammar of a text with these options; the text is copied. Any thread. NULL without memory. */
di_compiled *di_grammars_get(di_grammars *g, di_grammar_type type, const char *text, size_t size,
                             const di_grammar_options *options, di_error *err);
void di_compiled_release(di_compiled *c); /* NULL is allowed */

/* Waits for the outcome, at most that long. True: it is there. */
bool di_compiled_wait(di_compiled *c, double seconds);

/* When it is there: the grammar, the entry's own; or NULL with the reason. */
di_grammar *di_compiled_grammar(const di_compiled *c, di_error *err);

typedef struct di_grammars_stats {
    uint64_t compiled, failed, hits; /* hits: asked for again while it was kept */
    double compile_seconds;          /* of the threads */
    size_t count, bytes;             /* kept now */
} di_grammars_stats;
di_grammars_stats di_grammars_measure(di_grammars *g);

/* Of all grammars; NULL until something was compiled. */
const di_vocab *di_grammars_vocab(const di_grammars *g);

#endif
