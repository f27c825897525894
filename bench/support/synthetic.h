/* Random weights and activations that are spread as the released model's are (normal, with the
 * deviations that its tensors have), so that kernels meet the bits, and draw the power, that they
 * do in use. For one thread; the same in every run. */
#ifndef BENCH_SUPPORT_SYNTHETIC_H
#define BENCH_SUPPORT_SYNTHETIC_H

#include <stddef.h>
#include <stdint.h>

uint64_t synthetic_random(void); /* 64 bits */

typedef enum synthetic_kind {
    SYNTHETIC_E4M3, /* codes; see synthetic_scale */
    SYNTHETIC_E2M1, /* the same, two a byte */
    SYNTHETIC_BF16,
    SYNTHETIC_F32,
    SYNTHETIC_Q8, /* BF16 that Q8 changes nothing of */
} synthetic_kind;

/* n bytes of that kind. mean and deviation: of BF16 and F32. */
void synthetic_fill(void *to, size_t n, synthetic_kind kind, double mean, double deviation);

/* The E8M0 scale with which such codes (E4M3 or E2M1) come nearest to a deviation. A block's scale
 * is so that its largest value is among the upper half of what codes can say: of 1,024 values
 * (E4M3) or 32 (E2M1). */
uint8_t synthetic_scale(synthetic_kind kind, double deviation);

#endif
