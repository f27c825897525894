/* Logits of every position of a prompt: a tool for checking, beside the engine, not in it. */
#ifndef DI_ENGINE_LOGITS_H
#define DI_ENGINE_LOGITS_H

#include "engine/parts.h"

/* One sequence on its way through the model. */
typedef struct di_scorer {
    di_parts *parts; /* borrowed; nobody else has a sequence in them */
    di_seq seq;
    int chunk;     /* most tokens of a step; <= the parts' max_rows and max_logits */
    float *logits; /* [num_rows, vocab_size] of the last step */
    int num_rows;
} di_scorer;

bool di_scorer_open(di_scorer *s, di_parts *parts, int chunk, di_error *err);
void di_scorer_close(di_scorer *s); /* of all zero: nothing */

/* Computes ids[seq.len .. upto), at most `chunk` of them, ids being the sequence's tokens from
 * position 0. With bounded replay only rows from replay_from on have logits; 0 = exact. */
bool di_scorer_step(di_scorer *s, const int32_t *ids, int64_t upto, int64_t replay_from,
                    di_error *err);

/* Refuses ids out of range and more of them than the context holds. */
bool di_scorer_check(const di_parts *p, const int32_t *ids, int64_t n, di_error *err);

/* logits f32 [num_rows, vocab_size] of the next positions; false ends the run, *err being the
 * callee's. */
typedef bool (*di_logits_fn)(void *user, const float *logits, int num_rows, di_error *err);

/* Checks and feeds ids in steps of at most `chunk` tokens. */
bool di_logits_run(di_parts *p, const int32_t *ids, int64_t n, int chunk, int64_t replay_from,
                   di_logits_fn rows, void *user, di_error *err);

#endif
