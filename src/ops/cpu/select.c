/* The k best of many scores, as integers whose order is total: no tie is left to chance. */
#include <string.h>

#include "ops/cpu/internal.h"

uint32_t di_cpu_score_key(float score) {
    uint32_t u = di_f32_bits(score + 0.0f); /* -0 becomes +0 */
    if ((u & 0x7f800000u) == 0x7f800000u) {
        return 0;
    }
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k-th largest key, found digit by digit (11, 11, 10 bits) from the top: each pass counts the
 * keys that agree with the digits settled so far. *above: how many keys are larger. k >= 1, and at
 * least k keys are not 0. */
static uint32_t kth_largest(const uint32_t *keys, int64_t n, int64_t k, int64_t *above) {
    static const int shifts[3] = {21, 10, 0};
    uint32_t settled = 0, mask = 0;
    *above = 0;
    for (int pass = 0; pass < 3; pass++) {
        int shift = shifts[pass];
        uint32_t digits = pass < 2 ? 0x7ff : 0x3ff;
        int64_t count[2048] = {0};
        for (int64_t i = 0; i < n; i++) {
            count[keys[i] >> shift & digits] += (keys[i] & mask) == settled;
        }
        uint32_t digit = digits;
        while (*above + count[digit] < k) {
            *above += count[digit--];
        }
        settled |= digit << shift;
        mask |= digits << shift;
    }
    return settled;
}

void di_cpu_select(const uint32_t *keys, int64_t n, int k, int32_t *chosen) {
    int64_t valid = 0, fill = 0, above = 0;
    for (int64_t i = 0; i < n; i++) {
        valid += keys[i] != 0;
    }
    uint32_t least = 1; /* keys above `least` are in, */
    int64_t equals = n; /* and so many of those equal to it */
    if (valid > k && k > 0) {
        least = kth_largest(keys, n, k, &above);
        equals = k - above;
    }
    for (int64_t i = 0; i < n && fill < k; i++) {
        if (keys[i] > least || (keys[i] == least && equals-- > 0)) {
            chosen[fill++] = (int32_t)i;
        }
    }
    while (fill < k) {
        chosen[fill++] = -1;
    }
}
