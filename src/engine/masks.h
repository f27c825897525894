/* Makes the masks of a step beside its forward pass: what comes next is known when the pass begins,
 * for the tokens of the step before have been drawn. Used by the device's thread. */
#ifndef DI_ENGINE_MASKS_H
#define DI_ENGINE_MASKS_H

#include "engine/device.h"

typedef struct di_masks di_masks;

/* Up to `threads` share a step's rows; none is started before it is needed. */
di_masks *di_masks_create(int threads, di_error *err);
void di_masks_destroy(di_masks *m); /* NULL is allowed */

/* Between begin and wait the guides of the work's rows are not to be touched. Without such rows
 * both do nothing. */
void di_masks_begin(di_masks *m, const di_work *w);
void di_masks_wait(di_masks *m);

#endif
