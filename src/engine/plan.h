/* A card's memory, planned once: weights, activations, scratch memory for the largest step, and
 * what is left for the state of sequences. Called by parts.c. */
#ifndef DI_ENGINE_PLAN_H
#define DI_ENGINE_PLAN_H

#include "engine/parts.h"

enum { DI_OPEN_STEPS = 4 }; /* of progress without a card */

/* Further steps of progress with this backend option: loading and recording, if it may be a card.
 */
int di_plan_progress_steps(const char *backend);

/* What was free before anything was taken; nothing without a queue. */
typedef struct di_plan_start {
    size_t free_bytes, total_bytes;
} di_plan_start;
/* Also what is planned as far as it is known: the parts have a backend, and tell weight and work
 * bytes. */
void di_plan_begin(di_parts *p, const di_parts_options *o, di_plan_start *start);

/* Puts the plan behind the message of an error that says that memory is short, unless it is there.
 * Always false. */
bool di_plan_failed(const di_parts *p, di_error *err);

/* The parts have a model and the smallest cache. Loads the weights, makes the cache as large as the
 * rest allows, and records programs if the options ask for it. DI_ERR_NO_MEMORY tells the plan. */
bool di_plan_card(di_parts *p, const di_parts_options *o, const di_plan_start *start,
                  di_error *err);

#endif
