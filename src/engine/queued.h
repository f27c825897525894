/* Steps that a card does whole: forward pass and draw are queued at once, and the step behind may
 * be queued before anything of this one has come back. Called by device.c, by the step thread
 * alone. */
#ifndef DI_ENGINE_QUEUED_H
#define DI_ENGINE_QUEUED_H

#include "engine/device.h"
#include "engine/masks.h"

typedef struct di_queued di_queued;

/* The options' model can queue (di_model_can_queue); masks is borrowed. */
di_queued *di_queued_create(const di_device_options *o, di_masks *masks, di_error *err);
void di_queued_destroy(di_queued *q); /* NULL is allowed */

/* Queues the work. False, and nothing is queued: it has something that is done on the host (moves
 * of state, prompt log-probabilities, bad words, drafts, or lists beyond what there is room for);
 * di_work.queued tells afterwards. */
bool di_queued_begin(di_queued *q, di_work *w);

/* Waits for it and reads its results. Draws of the work behind that waited for them are queued. */
void di_queued_end(di_queued *q, di_work *w);

#endif
