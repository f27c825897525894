/* DSpark's draft model: proposes the next tokens of a sequence in one parallel block.
 *
 * A round for a sequence whose tokens up to p are in: the anchor x0 (sampled, not yet computed)
 * stands at p + 1, and `dspark_block_size` rows [x0, noise, ...] run through the draft stages at
 * once. Row j predicts the token behind it, sequentially: its logits get a correction by the token
 * before (the Markov head), the caller draws from them, and so on. What a round computes leaves no
 * state. */
#ifndef DI_MODEL_DRAFT_H
#define DI_MODEL_DRAFT_H

#include "model/model.h"

/* One sequence of a round. The model was made with drafts, and every token before the anchor has
 * been through di_model_forward, those from context_from on not with no_context. */
typedef struct di_draft_rows {
    int64_t pos0; /* of the anchor: so many tokens' state is stored */
    int32_t slot;
    int32_t anchor; /* x0 */
    int64_t context_from;
} di_draft_rows;

/* Most sequences of a round; 0: the model was made without drafts. */
int di_model_draft_seqs(const di_model *m);

int di_model_draft_size(const di_model *m); /* rows of a block */

/* Draws token j (0 .. block size - 1) of sequence i from its logits f32 [vocab_size]. -1: no more
 * drafts of this sequence are wanted (its later rows get a token all the same). */
typedef int32_t (*di_draft_fn)(void *user, int i, int j, const float *logits);

/* tokens i32 and confidence f32 [n, dspark_block_size]: the drafts, and the head's estimate (before
 * its sigmoid) that each is accepted given those before it are. n: 1 to
 * di_model_draft_seqs. DI_ERR_ARGUMENT for what is out of range. */
bool di_model_draft(di_model *m, const di_draft_rows *parts, int n, di_draft_fn draw, void *user,
                    int32_t *tokens, float *confidence, di_error *err);

/* ---- on a backend with a queue ----------------------------------------------------------------
 *
 * Rounds of up to `columns` drafts that are drawn there, each a program: recorded once for each
 * bucket of sequences. A round of n sequences is filled up to its bucket. */
typedef struct di_draft_rounds di_draft_rounds;

/* Queues the draw of column j of a round of n sequences: logits of sequence i are row i * block
 * size + j of di_model_logits, its token goes to tokens[j * n + i]. As it is recorded, all that
 * differs from round to round must lie in argument memory. */
typedef void (*di_draft_queue_fn)(void *user, int n, int j);

typedef struct di_draft_rounds_options {
    int columns; /* 1 .. block size */
    di_draft_queue_fn draw;
    void *user;            /* both outlive the rounds */
    const int32_t *tokens; /* argument memory [columns * di_model_draft_seqs] */
} di_draft_rounds_options;

/* The model can queue (di_model_can_queue). Programs are recorded here: later ones only when
 * scratch memory has moved. */
di_draft_rounds *di_draft_rounds_create(di_model *m, const di_draft_rounds_options *o,
                                        di_error *err);
void di_draft_rounds_destroy(di_draft_rounds *r); /* NULL is allowed */

/* How many sequences a round of n is filled up to: those that `draw` is told. */
int di_draft_rounds_filled(const di_draft_rounds *r, int n);

/* Queues a round. What it is drawn by has been sent. Arguments as di_model_draft's. */
bool di_draft_rounds_queue(di_draft_rounds *r, const di_draft_rows *parts, int n, di_error *err);

/* Waits for all that is queued; confidence as di_model_draft's, with `columns` columns filled. */
bool di_draft_rounds_wait(di_draft_rounds *r, int n, float *confidence, di_error *err);

#endif
