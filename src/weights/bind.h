/* Fitting a checkpoint to a model, between checkpoint.h and inventory.h. Opening and inspecting
 * share this; nobody else needs it. */
#ifndef DI_WEIGHTS_BIND_H
#define DI_WEIGHTS_BIND_H

#include "weights/checkpoint.h"
#include "weights/inventory.h"

/* With w->config read: allocates w's arrays and points every slot at its data in c, giving each
 * tensor its part. Faults: a parameter missing, of another dtype or shape; a tensor that no
 * parameter wants and that is not an image part. False when faults end it; w is to be released
 * either way. The draft (w->draft) is bound if the checkpoint has any mtp.* tensor. */
bool di_weights_bind(di_weights *w, di_checkpoint *c, di_faults *faults);

/* How much di_check_values reads. */
typedef enum di_check_depth {
    DI_CHECK_QUICK, /* scales other than of experts and engram tables, and tensors up to 64 KiB */
    DI_CHECK_ALL,   /* every byte */
} di_check_depth;

/* Looks for values no arithmetic survives: NaN codes and scales, infinities. One fault a tensor,
 * with the first one's offset in the file. False when faults end it. */
bool di_check_values(const di_checkpoint *c, di_check_depth depth, di_faults *faults);

#endif
