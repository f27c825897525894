/* The two searches behind priced drafts: how many drafts a step should verify in all, and whose.
 * Pure functions of their arguments; pricer.h feeds them.
 *
 * What makes the result exact is which survivals go into which. A draft's survival is the
 * probability that it and all before it in its block are accepted. The confidence of a draft
 * depends on the drafts before it, so nothing that decides whether a draft is verified may depend
 * on the confidences behind it (or a draft would be kept because of what it is, and the answer's
 * law would not be the target's). The budget is therefore made from survivals of rounds whose
 * drafts have been decided, and shared by the survivals of the drafts at hand: those never rise
 * along a block, so taking the largest is the same as admitting one draft after the other, each
 * before it is looked at. */
#ifndef DI_SCHED_PRICE_H
#define DI_SCHED_PRICE_H

#include <stdint.h>

#include "base/error.h"

/* Drafts of n answers: row r has limits[r] of them (0 .. stride), survival[r * stride + j] in
 * [0, 1], never rising with j. */
typedef struct di_slots {
    const float *survival;
    const int *limits;
    int n, stride;
} di_slots;

/* Working memory for so many drafts in all. */
typedef struct di_price_scratch {
    uint32_t *keys, *spare; /* [capacity] */
    int capacity;
} di_price_scratch;

bool di_price_scratch_create(di_price_scratch *s, int capacity, di_error *err);
void di_price_scratch_destroy(di_price_scratch *s);

/* The number b of drafts, 0 .. most, for which (certain + the b largest survivals) / (seconds[b] +
 * more) is largest; of equal ones the least. seconds[0 .. most] + more > 0: of a step with b
 * drafts. *rate: that quotient. Every b is tried, for time may rise in stairs. */
int di_price_budget(const di_slots *slots, double certain, const double *seconds, double more,
                    int most, di_price_scratch *s, double *rate);

/* Shares `budget` among the rows: the largest survivals get it, of equal ones the earlier place in
 * the block and then the earlier row. lengths[r]: how many of row r, which are its first. */
void di_price_share(const di_slots *slots, int budget, di_price_scratch *s, int *lengths);

#endif
