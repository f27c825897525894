/* What answers the server's requests: the engine, or whatever stands in for it. A table of
 * functions, so that the front end can be measured and tested without a model. */
#ifndef DI_SERVER_ANSWERER_H
#define DI_SERVER_ANSWERER_H

#include "deepinfer/deepinfer.h"
#include "text/chat.h"

/* Functions are those of deepinfer.h, with `self` for the engine and its queue; any thread may call
 * them, wait only one. */
typedef struct di_answerer {
    void *self;
    const di_chat_tokens *chat; /* and in it the tokenizer */
    int vocab_size;
    int64_t max_model_len;
    int64_t max_tokens; /* prompt and answer that the cache can hold at most */
    di_engine *engine;  /* for its counters; NULL: there are none */
    void (*params)(void *self, di_request_params *params); /* the model's defaults */
    uint64_t (*submit)(void *self, const di_prompt *prompt, const di_request_params *params,
                       void *tag, di_error *err);
    bool (*cancel)(void *self, uint64_t request);
    di_output *(*wait)(void *self, int timeout_ms);
    void (*release)(void *self, di_output *out);
    void (*wake)(void *self);
} di_answerer;

/* An engine as one; it stays the caller's and is closed after di_answerer_close. Fails for a model
 * without a tokenizer. */
bool di_answerer_open(di_answerer *a, di_engine *engine, di_error *err);
void di_answerer_close(di_answerer *a);

#endif
