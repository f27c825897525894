/* The V4.1 text model on one backend: tokens of any sequences in, logits out.
 *
 * Prefill in chunks of any size, decode and verification of drafts are the same call with other
 * lengths. The same tokens give the same logits, to the bit, however they are cut into calls and
 * whatever other sequences share a call. */
#ifndef DI_MODEL_MODEL_H
#define DI_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cache/cache.h"
#include "ops/ops.h"
#include "weights/weights.h"

enum {
    DI_MODEL_LOOK_BACK = DI_MAX_NGRAM - 1,
    DI_MODEL_MAX_DRAFT_SEQS = 256, /* most sequences of a round of drafts */
};

typedef struct di_model di_model;

typedef struct di_model_options {
    int max_rows;             /* tokens per forward call, all sequences together; >= 1 */
    int max_logits;           /* rows of logits per forward call; >= 1 */
    const int32_t *token_map; /* token id -> compressed id (engram), [vocab_size]; copied */
    /* Bounded replay by masking instead of leaving rows out: slower, for checking. */
    bool replay_by_mask;
    /* Keep the draft model's context too (draft.h): the checkpoint has its weights and the cache
     * was made with its layers. */
    bool drafts;
    /* With drafts: sequences of a round (draft.h), each of which takes a block of rows of logits;
     * 0 = as many as there can be: DI_MODEL_MAX_DRAFT_SEQS, and whole blocks of max_rows. */
    int max_draft_seqs;
} di_model_options;

/* Borrows weights, backend and cache (which must be on that backend); all must outlive it. One
 * thread at a time. All memory of the step is taken here: the forward call allocates nothing. */
di_model *di_model_create(const di_weights *w, di_backend *be, di_cache *cache,
                          const di_model_options *o, di_error *err);
void di_model_destroy(di_model *m);

/* Another cache on the same backend, laid out alike; sequences of the old one are none of it. */
void di_model_set_cache(di_model *m, di_cache *cache);

/* Bytes that di_model_create takes for activations with these options. */
size_t di_model_activation_bytes(const di_config *c, const di_model_options *o);

/* One sequence's part of a forward call: its next num_tokens tokens. */
typedef struct di_model_rows {
    int64_t pos0;          /* position of tokens[0]: so many tokens' state is stored */
    int32_t slot;          /* of the sequence */
    const int32_t *blocks; /* its block table, long enough for pos0 + num_tokens tokens */
    int num_blocks;
    const int32_t *tokens;
    int num_tokens;       /* >= 1 */
    const uint8_t *image; /* [num_tokens] 1 = slot of an image span, or NULL */
    /* The tokens in front, for Engram's look-back: min(pos0, DI_MODEL_LOOK_BACK) of them count, the
     * newest last, at before[DI_MODEL_LOOK_BACK - 1]. An id of -1 is an image slot. */
    int32_t before[DI_MODEL_LOOK_BACK];
    int num_logits; /* logits are wanted for the last num_logits tokens; 0 = none */
    /* Bounded replay: the decoder half runs only for positions >= replay_from, whose windows start
     * there too. 0 = exact. Rows before it have no logits. Callers must see to it that
     * replay_from <= prompt length - (sliding_window + B). */
    int64_t replay_from;
    /* With drafts: nothing of the draft model's context is wanted of these rows. It is left out
     * where no part of the call wants it. */
    bool no_context;
} di_model_rows;

/* The next num_tokens tokens of a sequence; `all` are its tokens from position 0 on. */
di_model_rows di_model_next_rows(const di_seq *seq, const int32_t *all, int num_tokens);

/* Runs the parts (no sequence twice). The model keeps nothing of a sequence: what it reads and
 * writes lies in the sequence's blocks and slot. logits: host f32 [sum of num_logits, vocab_size]
 * in order of parts, or NULL if none are wanted. Token ids out of range, too many rows, or a
 * missing block are DI_ERR_ARGUMENT before anything runs; after another failure the state of the
 * sequences in the call is undefined: close them. */
bool di_model_forward(di_model *m, const di_model_rows *parts, int num_parts, float *logits,
                      di_error *err);

#endif
