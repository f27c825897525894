/* The V4.1 text model on one backend: tokens of any sequences in, logits out.
 *
 * Prefill in chunks of any size, decode and (later) verification of drafts are the same call with
 * other lengths. The same tokens give the same logits, to the bit, however they are cut into calls
 * and whatever other sequences share a call. */
#ifndef DI_MODEL_MODEL_H
#define DI_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cache/cache.h"
#include "ops/ops.h"
#include "weights/weights.h"

typedef struct di_model di_model;

typedef struct di_model_options {
    int max_rows;             /* tokens per forward call, all sequences together; >= 1 */
    int max_logits;           /* rows of logits per forward call; >= 1 */
    const int32_t *token_map; /* token id -> compressed id (engram), [vocab_size]; copied */
    /* Bounded replay by masking instead of leaving rows out: slower, for checking. */
    bool replay_by_mask;
} di_model_options;

/* Borrows weights, backend and cache (which must be on that backend); all must outlive it. One
 * thread at a time. All memory of the step is taken here: the forward call allocates nothing. */
di_model *di_model_create(const di_weights *w, di_backend *be, di_cache *cache,
                          const di_model_options *o, di_error *err);
void di_model_destroy(di_model *m);

/* Bytes that di_model_create takes for activations with these options. */
size_t di_model_activation_bytes(const di_config *c, const di_model_options *o);

/* One sequence's part of a forward call: its next num_tokens tokens. */
typedef struct di_model_rows {
    di_seq *seq; /* blocks reserved for len + num_tokens */
    const int32_t *tokens;
    int num_tokens;       /* >= 1 */
    const uint8_t *image; /* [num_tokens] 1 = slot of an image span, or NULL */
    int num_logits;       /* logits are wanted for the last num_logits tokens; 0 = none */
    /* Bounded replay: the decoder half runs only for positions >= replay_from, whose windows start
     * there too. 0 = exact. Rows before it have no logits. Callers must see to it that
     * replay_from <= prompt length - (sliding_window + B). */
    int64_t replay_from;
} di_model_rows;

/* Runs the parts (no sequence twice) and advances every seq->len. logits: host f32
 * [sum of num_logits, vocab_size] in order of parts, or NULL if none are wanted. On failure no
 * sequence has advanced, but the state of those in the call is undefined: close them. Token ids out
 * of range, too many rows, or a missing block are DI_ERR_ARGUMENT before anything runs. */
bool di_model_forward(di_model *m, di_model_rows *parts, int num_parts, float *logits,
                      di_error *err);

#endif
