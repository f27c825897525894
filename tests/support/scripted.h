/* An engine that needs no model: what it answers is written in the prompt. For tests and benchmarks
 * of the server.
 *
 * It looks at the text of the last user turn (or the whole prompt if there is none). Words that
 * begin with @ at its beginning are orders, each ended by a space:
 *   @say         the rest of the text is the answer; control tokens written in it become tokens
 *   @count=N     N tokens
 *   @delay=MS    between two tokens
 *   @hold        no answer ever, until it is cancelled
 *   @fail        it ends with an error; @fail=N after N tokens
 *   @burst       all tokens at once
 * Without orders the answer is the text itself. */
#ifndef DI_TESTS_SCRIPTED_H
#define DI_TESTS_SCRIPTED_H

#include "server/answerer.h"

typedef struct di_scripted di_scripted;

typedef struct di_scripted_options {
    int64_t max_model_len; /* 0: 4096 */
    int max_queue;         /* 0: no limit */
    int fixed_tokens;      /* > 0: this many tokens for every prompt, which is not looked at */
} di_scripted_options;

/* The tokenizer of a model's folder; NULL with an error. */
di_scripted *di_scripted_open(const char *folder, const di_scripted_options *o, di_error *err);
void di_scripted_close(di_scripted *s);

di_answerer di_scripted_answerer(di_scripted *s);

typedef struct di_scripted_stats {
    uint64_t submitted, finished, cancelled; /* requests; finished ones include cancelled ones */
    int running;
    double last_cancel; /* di_now() of the last one */
} di_scripted_stats;

void di_scripted_get_stats(di_scripted *s, di_scripted_stats *stats);

/* What the last request came with. */
void di_scripted_get_params(di_scripted *s, di_request_params *params);

#endif
