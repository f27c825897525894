/* What the files of the engine share: the engine itself. Nothing outside src/engine includes it. */
#ifndef DI_ENGINE_INTERNAL_H
#define DI_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "cache/cache.h"
#include "deepinfer/deepinfer.h"
#include "model/model.h"
#include "ops/ops.h"
#include "sample/row.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "weights/weights.h"

struct di_engine {
    /* fixed once opened */
    di_weights *weights;
    di_tokenizer *tokenizer; /* NULL: the folder has none */
    di_chat_tokens chat;     /* its control tokens */
    di_backend *backend;
    di_cache *cache;
    di_model *model;
    int64_t max_model_len;
    int max_rows;         /* prompt tokens a step */
    int max_logits;       /* rows of logits a step */
    di_sampling defaults; /* generation_config.json */

    /* of the step */
    float *logits; /* [max_logits, vocab_size] */
    di_sample_scratch *scratch;

    /* The last request's sequence stays, so that a conversation's next turn, which begins with the
     * same tokens, goes on from it. held[i] is the token whose state is at position i; their number
     * is seq.len. */
    di_seq seq;
    di_ids held;

    atomic_bool cancelled;
};

/* Copies a caller's struct over one of ours: as many bytes as both have. False if the caller's was
 * not initialised. */
bool di_struct_read(void *ours, size_t our_bytes, const void *theirs, const char *name,
                    di_error *err);

/* Reads FOLDER/generation_config.json if there is one. */
bool di_defaults_read(di_sampling *defaults, const char *folder, di_error *err);

/* A checked copy of the caller's parameters. */
bool di_params_read(di_request_params *ours, const di_request_params *theirs, di_error *err);

/* The prompt's ids, at least one, all within the vocabulary and no more than max_model_len. */
bool di_prompt_encode(const di_engine *e, const di_prompt *prompt, di_ids *out, di_error *err);

/* Empties e->seq and opens it again: no state of an earlier request is left. */
bool di_engine_restart_sequence(di_engine *e, di_error *err);

/* Runs the next tokens of e->seq, at most max_rows; logits of the last num_logits go to e->logits.
 * On failure the sequence is closed. */
bool di_engine_step(di_engine *e, const int32_t *tokens, int num_tokens, int num_logits,
                    di_error *err);

#endif
