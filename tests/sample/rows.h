/* What the sampler's tests share: random numbers, one draw in a line, a scratch for any size. */
#ifndef TESTS_SAMPLE_ROWS_H
#define TESTS_SAMPLE_ROWS_H

#include <math.h>

#include "sample/philox.h"
#include "sample/row.h"
#include "support/cmocka.h"

/* One scratch, made anew when the vocabulary's size changes; size 0 frees it. */
static inline di_sample_scratch *scratch_of(int size) {
    static di_sample_scratch *scratch;
    static int made;
    if (size != made) {
        di_sample_scratch_destroy(scratch);
        scratch = size ? di_sample_scratch_create(size, NULL) : NULL;
        made = size;
    }
    return scratch;
}

static inline di_sample_params default_params(void) {
    di_sample_params p;
    di_sample_params_init(&p);
    return p;
}

/* Checks the parameters and draws; any error fails the test. */
static inline di_sampled sample(const di_sample_params *p, const di_sample_input *in, int size) {
    di_error err = {0};
    di_sampled out = {0};
    if (!di_sample_params_check(p, size, &err) ||
        !di_sample_row(p, in, scratch_of(size), &out, &err)) {
        fail_msg("%s", err.message);
    }
    return out;
}

/* A stream of random words that has nothing to do with a sampler's seeds. */
typedef struct dice {
    uint64_t key, count;
} dice;

static inline uint32_t roll(dice *d) {
    uint32_t counter[4] = {(uint32_t)d->count++, 0, 77, 0}, words[4];
    di_philox(d->key, counter, words);
    return words[0];
}

static inline int roll_below(dice *d, int n) {
    return (int)(roll(d) % (uint32_t)n);
}

static inline double roll_unit(dice *d) {
    return (roll(d) + 0.5) * 0x1p-32;
}

#endif
