/* A conversation with the model on this terminal or pipe: its history, and one streamed answer. */
#ifndef DI_CLI_ANSWER_H
#define DI_CLI_ANSWER_H

#include <jansson.h>

#include "cli/options.h"
#include "deepinfer/deepinfer.h"

typedef struct di_conversation {
    di_engine *engine;
    di_request_params params;
    int effort; /* of reasoning, 0 = none */
    bool quiet;
    json_t *messages; /* owned; the system message, if any, is the first */
} di_conversation;

/* `system` may be NULL. The engine is borrowed. */
bool di_conversation_begin(di_conversation *c, di_engine *engine, const di_options *o,
                           const char *system, di_error *err);
void di_conversation_end(di_conversation *c);

/* Forgets everything; `system` (or NULL) begins anew. */
bool di_conversation_clear(di_conversation *c, const char *system, di_error *err);

/* Asks and streams the answer to standard output, statistics to standard error. The answer, also
 * one that Ctrl-C cut off, joins the history; after a failure the question does not either. False
 * with *err; *reason (may be NULL) says how the answer ended. */
bool di_conversation_ask(di_conversation *c, const char *question, size_t size,
                         di_finish_reason *reason, di_error *err);

#endif
