/* A backend that passes every op on to another and keeps how long each kind took. Exact where ops
 * are done when they return (CPU); on a device with a stream it would time the queueing. */
#ifndef DI_OPS_TIMED_H
#define DI_OPS_TIMED_H

#include <stdio.h>

#include "ops/ops.h"

/* Owns `inner`: destroyed with it. NULL without memory (inner is then still the caller's). */
di_backend *di_timed_create(di_backend *inner, di_error *err);

/* A table by seconds: op, calls, seconds, share. `be` must be a timed backend. */
void di_timed_print(const di_backend *be, FILE *out);

#endif
