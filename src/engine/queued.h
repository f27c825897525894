/* Steps that a card does whole: forward pass and draw are queued at once, and the step behind may
 * be queued before anything of this one has come back. Called by device.c, by the step thread
 * alone, while the device's thread has nothing to do. */
#ifndef DI_ENGINE_QUEUED_H
#define DI_ENGINE_QUEUED_H

#include "engine/device.h"
#include "engine/masks.h"

typedef struct di_queued di_queued;

/* The options' model can queue (di_model_can_queue); masks is borrowed. */
di_queued *di_queued_create(const di_device_options *o, di_masks *masks, di_error *err);
void di_queued_destroy(di_queued *q); /* NULL is allowed */

/* False: the work has something that is done on the host (moves of state, prompt log-probabilities,
 * bad words, drafts that are verified or made). Looks at nothing that the device's thread changes.
 */
bool di_queued_suits(const di_work *w);

/* Queues a work that suits. False, and nothing is queued: its lists are beyond what there is room
 * for; di_work.queued tells afterwards. */
bool di_queued_begin(di_queued *q, di_work *w);

/* For the device's thread: the next of the places between which steps on the card alternate
 * (ops/queue.h). */
int di_queued_place(di_queued *q);

/* Waits for it and reads its results. Draws of the work behind that waited for them are queued. */
void di_queued_end(di_queued *q, di_work *w);

#endif
