/* Budget and shares of drafts: see price.h. Survivals are sorted as integers: the bits of floats
 * from 0 to 1 have their order, and 30 of them are in use. */
#include "sched/price.h"

#include <string.h>

#include "base/alloc.h"
#include "base/formats.h"

enum { DIGIT_BITS = 10, DIGITS = 1 << DIGIT_BITS, PASSES = 3 };

bool di_price_scratch_create(di_price_scratch *s, int capacity, di_error *err) {
    size_t n = (size_t)capacity;
    *s = (di_price_scratch){.capacity = capacity};
    s->keys = di_calloc(n, sizeof *s->keys);
    s->spare = di_calloc(n, sizeof *s->spare);
    if (!s->keys || !s->spare) {
        di_price_scratch_destroy(s);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to price %d drafts", capacity);
    }
    return true;
}

void di_price_scratch_destroy(di_price_scratch *s) {
    di_free(s->keys);
    di_free(s->spare);
    *s = (di_price_scratch){0};
}

/* Collects the keys of all drafts and counts their digits. */
static int collect(const di_slots *slots, uint32_t *keys, uint32_t counts[PASSES][DIGITS]) {
    int count = 0;
    memset(counts, 0, PASSES * sizeof *counts);
    for (int r = 0; r < slots->n; r++) {
        for (int j = 0; j < slots->limits[r]; j++) {
            uint32_t key = di_f32_bits(slots->survival[r * slots->stride + j]);
            keys[count++] = key;
            counts[0][key & (DIGITS - 1)]++;
            counts[1][key >> DIGIT_BITS & (DIGITS - 1)]++;
            counts[2][key >> 2 * DIGIT_BITS & (DIGITS - 1)]++;
        }
    }
    return count;
}

/* Sorts descending, from s->keys; returns where the result lies. Digits that all keys share are
 * passed over. */
static const uint32_t *sort(const di_slots *slots, di_price_scratch *s, int *count) {
    uint32_t counts[PASSES][DIGITS];
    uint32_t *from = s->keys, *to = s->spare;
    int n = *count = collect(slots, from, counts);
    for (int pass = 0; pass < PASSES && n > 0; pass++) {
        int shift = pass * DIGIT_BITS;
        uint32_t *at = counts[pass], next = 0;
        if (at[from[0] >> shift & (DIGITS - 1)] == (uint32_t)n) {
            continue;
        }
        for (int d = DIGITS - 1; d >= 0; d--) {
            uint32_t size = at[d];
            at[d] = next;
            next += size;
        }
        for (int i = 0; i < n; i++) {
            to[at[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        }
        uint32_t *other = from;
        from = to;
        to = other;
    }
    return from;
}

int di_price_budget(const di_slots *slots, double certain, const double *seconds, double more,
                    int most, di_price_scratch *s, double *rate) {
    int count, best = 0;
    const uint32_t *keys = sort(slots, s, &count);
    double tokens = certain;
    *rate = tokens / (seconds[0] + more);
    for (int b = 1; b <= most && b <= count; b++) {
        tokens += (double)di_f32_from_bits(keys[b - 1]);
        double r = tokens / (seconds[b] + more);
        if (r > *rate) {
            *rate = r;
            best = b;
        }
    }
    return best;
}

/* The budget-th largest key, and how many of the drafts that have it are within the budget. */
static uint32_t find_threshold(const di_slots *slots, int budget, di_price_scratch *s, int *ties) {
    uint32_t counts[PASSES][DIGITS], prefix = 0, left = (uint32_t)budget;
    int n = collect(slots, s->keys, counts);
    for (int pass = PASSES - 1; pass >= 0; pass--) {
        int shift = pass * DIGIT_BITS, d = DIGITS - 1, kept = 0;
        if (pass < PASSES - 1) {
            memset(counts[pass], 0, sizeof counts[pass]);
            for (int i = 0; i < n; i++) {
                counts[pass][s->keys[i] >> shift & (DIGITS - 1)]++;
            }
        }
        while (counts[pass][d] < left) {
            left -= counts[pass][d--];
        }
        prefix |= (uint32_t)d << shift;
        for (int i = 0; i < n; i++) { /* only keys with this digit can be at the threshold */
            if ((int)(s->keys[i] >> shift & (DIGITS - 1)) == d) {
                s->keys[kept++] = s->keys[i];
            }
        }
        n = kept;
    }
    *ties = (int)left;
    return prefix;
}

void di_price_share(const di_slots *slots, int budget, di_price_scratch *s, int *lengths) {
    int all = 0, ties;
    for (int r = 0; r < slots->n; r++) {
        all += slots->limits[r];
        lengths[r] = budget > 0 ? slots->limits[r] : 0;
    }
    if (budget <= 0 || budget >= all) {
        return;
    }
    float least = di_f32_from_bits(find_threshold(slots, budget, s, &ties));
    for (int r = 0; r < slots->n; r++) {
        lengths[r] = 0;
        while (lengths[r] < slots->limits[r] &&
               slots->survival[r * slots->stride + lengths[r]] > least) {
            lengths[r]++;
        }
    }
    for (int j = 0; j < slots->stride && ties > 0; j++) {
        for (int r = 0; r < slots->n && ties > 0; r++) {
            if (lengths[r] == j && j < slots->limits[r] &&
                slots->survival[r * slots->stride + j] == least) {
                lengths[r]++;
                ties--;
            }
        }
    }
}
