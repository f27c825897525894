/* Logarithms of weights. See logprobs.h. */
#include "sample/logprobs.h"

#include <math.h>

#include "sample/arithmetic.h"

double di_logprob(const di_row *row, uint64_t sum, float x) {
    if (x == -INFINITY) {
        return -INFINITY;
    }
    double y = (double)((row->best - x) * row->c) * DI_LN_2;
    return DI_WEIGHT_BITS * DI_LN_2 - di_log_integer(sum) - y;
}

int di_top_logprobs(const di_row *row, const di_cut *cut, uint64_t sum, int n, int32_t *ids,
                    double *logprobs, di_select_scratch *s) {
    int found = di_row_top(row, n, ids, s), count = 0;
    for (int i = 0; i < found; i++) {
        float x = row->x[ids[i]];
        if (cut && !di_cut_keeps(cut, x, ids[i], di_weight((row->best - x) * row->c))) {
            break; /* the kept ones are a prefix of this order */
        }
        logprobs[count++] = di_logprob(row, sum, x);
    }
    return count;
}
