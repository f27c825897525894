/* Rounds of drafts on a card as they are run: drawn there in draw memory, recorded, waited for
 * once. For the engine, and for whoever measures what rounds cost. One thread at a time. */
#ifndef DI_ENGINE_DRAFT_ROUND_H
#define DI_ENGINE_DRAFT_ROUND_H

#include "engine/draw_memory.h"
#include "model/draft.h"

typedef struct di_draft_round {
    di_model *model;       /* borrowed, with draws */
    di_draw_memory *draws; /* of di_model_draft_seqs * columns draws at least */
    di_draft_rounds *programs;
    int columns;
    int filled; /* sequences of the round at hand, those that fill it up included */
} di_draft_round;

/* The model can queue (di_model_can_queue). */
bool di_draft_round_create(di_draft_round *r, di_model *m, di_draw_memory *draws, int columns,
                           di_error *err);
void di_draft_round_destroy(di_draft_round *r); /* of all zero: nothing */

/* Begins a round of n sequences; then the draws of each are to be filled, but for the row of logits
 * that they read, with lists in the draw memory. */
void di_draft_round_begin(di_draft_round *r, int n);
di_draw *di_draft_round_draw(di_draft_round *r, int i, int j); /* of sequence i's draft j */

/* Runs it and waits. confidence: as di_model_draft's, with `columns` columns filled. */
bool di_draft_round_run(di_draft_round *r, const di_draft_rows *parts, int n, float *confidence,
                        di_error *err);
const di_drawn *di_draft_round_drawn(const di_draft_round *r, int i, int j);

#endif
