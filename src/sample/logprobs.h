/* Natural logarithms of probabilities, from the same integer weights that tokens are drawn from, so
 * they are the same bits on every machine. Called by row.c. */
#ifndef DI_SAMPLE_LOGPROBS_H
#define DI_SAMPLE_LOGPROBS_H

#include "sample/select.h"

/* ln p = -(y ln 2 + ln(sum / 2^46)) for a logit of a row whose (kept) weights sum to `sum`;
 * -infinity for a logit of -infinity. */
double di_logprob(const di_row *row, uint64_t sum, float x);

/* The n likeliest kept tokens and their logarithms; how many there are. cut == NULL: all that can
 * occur. */
int di_top_logprobs(const di_row *row, const di_cut *cut, uint64_t sum, int n, int32_t *ids,
                    double *logprobs, di_select_scratch *s);

#endif
