/* A step is planned before the step in front of it has been read, so its rows are not all known:
 * not the token that an answer goes on with, nor how many of its drafts were accepted and so where
 * it goes on, nor the drafts that it has now. The device finds out when the step's turn has come.
 *
 * Exactness: how many drafts the step verifies in all is the plan's, made from rounds that have
 * been decided; here they are shared by the survivals of the drafts at hand (sched/price.h). */
#ifndef DI_ENGINE_RESOLVE_H
#define DI_ENGINE_RESOLVE_H

#include "engine/device.h"

/* Working memory. */
typedef struct di_resolver {
    di_price_scratch scratch;
    float *survival;       /* [max_num_seqs, stride] */
    int *limits, *lengths; /* [max_num_seqs] */
    int stride;
} di_resolver;

bool di_resolver_create(di_resolver *r, int max_num_seqs, int num_drafts, di_error *err);
void di_resolver_destroy(di_resolver *r); /* of all zero: nothing */

/* Completes parts, their tokens, and outputs. The step before has been done. */
void di_resolve(di_resolver *r, di_work *w);

/* The same for a work that verifies no drafts; rows whose token the card has (the step before is
 * queued there) are left as they are. */
void di_resolve_plain(di_work *w);

#endif
