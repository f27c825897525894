/* From a row of logits to a token, in arithmetic that gives the same token on every machine.
 *
 * A row x[0..V) becomes integer weights w = floor(2^46 * 2^-y), y = (max - x) * log2(e) / T, by a
 * fixed float32 polynomial; everything after that is integer sums, so neither threads nor vector
 * width nor the order of a sum can change the result. docs/sampling.md states the rules. */
#ifndef DI_SAMPLE_SAMPLER_H
#define DI_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* So that the sum of V weights of at most 2^46 stays below 2^63. */
enum { DI_SAMPLER_MAX_VOCAB = 131071 };

#define DI_GREEDY_TEMPERATURE 1e-5 /* below it: argmax, and no random number is used */
#define DI_MAX_TEMPERATURE    100.0

typedef struct di_sampling {
    double temperature; /* [0, 100]; used as the nearest float32 */
    double top_p;       /* (0, 1]; 1 = off */
    double min_p;       /* [0, 1]; 0 = off */
    int64_t top_k;      /* -1 = off, or >= 1 */
} di_sampling;

/* Refuses by name, value and allowed range; NaN and infinities too. */
bool di_sampling_check(const di_sampling *p, di_error *err);

/* What was drawn, and from what. */
typedef struct di_draw {
    int32_t token;
    int32_t kept;      /* tokens that the filters left, >= 1 */
    uint64_t sum;      /* of all weights; 0 for argmax */
    uint64_t kept_sum; /* of the kept ones; 0 for argmax */
} di_draw;

/* Bytes of scratch, 8-byte aligned, that di_sample and di_token_logprob need for this vocabulary.
 */
size_t di_sampler_scratch_bytes(int vocab_size);

/* Draws the token at `position` of its sequence from logits f32 [vocab_size]. `p` has passed
 * di_sampling_check. False with "bad logits" when the row holds a NaN or +infinity and with "no
 * legal token" when nothing in it is finite. Pure but for scratch; any thread. */
bool di_sample(const float *logits, int vocab_size, const di_sampling *p, uint64_t seed,
               uint64_t position, void *scratch, di_draw *out, di_error *err);

/* Natural logarithm of the token's probability under the whole row at temperature 1, before any
 * filter; -infinity for a token that cannot occur. False as di_sample. */
bool di_token_logprob(const float *logits, int vocab_size, int32_t token, double *out,
                      di_error *err);

#endif
