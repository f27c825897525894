/* Sixteen float lanes in plain C: what every function of this little vocabulary means. v16_avx2.h
 * and v16_avx512.h have the same names and give the same bits. Included by kernels_plain.c, before
 * kernels.inc. */
#ifndef DI_OPS_CPU_V16_H
#define DI_OPS_CPU_V16_H

#include <stdbool.h>

#include "base/formats.h"

typedef struct v16 {
    float x[16];
} v16;
typedef struct v16d {
    double x[16];
} v16d;
typedef const uint8_t *v16_codes; /* 32 E4M3 codes */
typedef int v16_flags;            /* have there been NaN codes? */
typedef v16 v16_grid;             /* the 16 values of an E2M1 code, scaled */

/* Sizes that suit the register file: of the tile of accumulators that products of many rows keep
 * (rows x columns), and of the number of activation rows that decoded weights are applied to at
 * once when there are few. */
enum { V16_TILE_ROWS = 2, V16_TILE_COLS = 2, V16_FEW_ROWS = 1 };

static inline v16 v16_load(const float *p) {
    v16 a;
    memcpy(a.x, p, sizeof a.x);
    return a;
}

static inline void v16_store(float *p, v16 a) {
    memcpy(p, a.x, sizeof a.x);
}

static inline v16 v16_set1(float x) {
    v16 a;
    for (int i = 0; i < 16; i++) {
        a.x[i] = x;
    }
    return a;
}

static inline v16 v16_zero(void) {
    return v16_set1(0);
}

/* low in the first 8 lanes, high in the others. */
static inline v16 v16_set2(float low, float high) {
    v16 a;
    for (int i = 0; i < 8; i++) {
        a.x[i] = low;
        a.x[8 + i] = high;
    }
    return a;
}

static inline v16 v16_mul(v16 a, v16 b) {
    for (int i = 0; i < 16; i++) {
        a.x[i] *= b.x[i];
    }
    return a;
}

/* a * b + c for products that are exact in f32: one rounding, whether fused or not. */
static inline v16 v16_muladd(v16 a, v16 b, v16 c) {
    for (int i = 0; i < 16; i++) {
        c.x[i] += a.x[i] * b.x[i];
    }
    return c;
}

/* The fixed tree: lane i + lane i + 8, then + 4, + 2, + 1. */
static inline float v16_sum(v16 a) {
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            a.x[i] += a.x[i + half];
        }
    }
    return a.x[0];
}

static inline v16d v16d_zero(void) {
    return (v16d){{0}};
}

/* a * b + c in f64; products of f32 with BF16 are exact. */
static inline v16d v16d_muladd(v16 a, v16 b, v16d c) {
    for (int i = 0; i < 16; i++) {
        c.x[i] += (double)a.x[i] * (double)b.x[i];
    }
    return c;
}

static inline double v16d_sum(v16d a) {
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            a.x[i] += a.x[i + half];
        }
    }
    return a.x[0];
}

/* 16 BF16 values, in order. */
static inline v16 v16_widen(const di_bf16 *x) {
    v16 a;
    for (int i = 0; i < 16; i++) {
        a.x[i] = di_bf16_to_f32(x[i]);
    }
    return a;
}

/* 32 BF16 values: lane i of *even is value 2i, of *odd value 2i + 1. */
static inline void v16_bf16(const di_bf16 *x, v16 *even, v16 *odd) {
    for (int i = 0; i < 16; i++) {
        even->x[i] = di_bf16_to_f32(x[2 * i]);
        odd->x[i] = di_bf16_to_f32(x[2 * i + 1]);
    }
}

static inline v16_codes v16_codes_load(const uint8_t *p) {
    return p;
}

/* 32 E4M3 codes as even and odd values, each times V16_FP8_UNIT. NaN codes may come out as numbers:
 * they are found by v16_flag_nans. */
static inline void v16_fp8(v16_codes c, v16 *even, v16 *odd) {
    for (int i = 0; i < 16; i++) { /* an f32 pattern of 2^-120 times the value */
        uint32_t e = c[2 * i], o = c[2 * i + 1];
        even->x[i] = di_f32_from_bits((e & 0x7f) << 20 | (e & 0x80) << 24) * 0x1p120f;
        odd->x[i] = di_f32_from_bits((o & 0x7f) << 20 | (o & 0x80) << 24) * 0x1p120f;
    }
}

#define V16_FP8_UNIT 1.0f

static inline v16_flags v16_flags_none(void) {
    return 0;
}

static inline v16_flags v16_flag_nans(v16_flags f, v16_codes c) {
    uint8_t found = 0;
    for (int i = 0; i < 32; i++) {
        found |= (c[i] & 0x7f) == 0x7f;
    }
    return f | found;
}

static inline bool v16_flagged(v16_flags f) {
    return f != 0;
}

static inline v16_grid v16_fp4_grid(float scale) {
    v16_grid g;
    for (int i = 0; i < 16; i++) {
        g.x[i] = di_e2m1_to_f32((uint8_t)i) * scale;
    }
    return g;
}

/* 16 bytes, two E2M1 codes each: the low nibbles' values in *even, the high nibbles' in *odd. */
static inline void v16_fp4(const uint8_t *pairs, v16_grid grid, v16 *even, v16 *odd) {
    for (int i = 0; i < 16; i++) {
        even->x[i] = grid.x[pairs[i] & 15];
        odd->x[i] = grid.x[pairs[i] >> 4];
    }
}

#endif
