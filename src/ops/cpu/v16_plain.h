/* Sixteen float lanes as four of the compiler's own vectors, for any processor: what every function
 * of this little vocabulary means. v16_avx2.h and v16_avx512.h have the same names and give the
 * same bits. Included by kernels_plain.c, before kernels.inc. */
#ifndef DI_OPS_CPU_V16_H
#define DI_OPS_CPU_V16_H

#include <stdbool.h>

#include "base/formats.h"

typedef float v4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
typedef uint16_t h4 __attribute__((vector_size(8)));
typedef struct v16 {
    v4 q[4];
} v16;
typedef struct v16d {
    double x[16];
} v16d;
typedef const uint8_t *v16_codes; /* 32 E4M3 codes */
typedef int v16_flags;            /* have there been NaN codes? */
typedef struct v16_grid {         /* the 16 values of an E2M1 code, scaled */
    float x[16];
} v16_grid;

/* Sizes that suit the register file. TILE: accumulators of a product of many rows, activation rows
 * x weight rows. ONE: weight rows taken at once for a single activation row. FEW: for up to that
 * many activation rows. Enough sums to hide an addition's latency, few enough for the registers. */
#define V16_NATIVE_BYTES 16 /* of a register */

enum {
    V16_TILE_ROWS = 1,
    V16_TILE_COLS = 3,
    V16_ONE_COLS = 1,
    V16_FEW_ROWS = 1,
    V16_FEW_COLS = 1,
};

static inline v16 v16_load(const float *p) {
    v16 a;
    memcpy(&a, p, sizeof a);
    return a;
}

static inline void v16_store(float *p, v16 a) {
    memcpy(p, &a, sizeof a);
}

/* low in the first 8 lanes, high in the others. */
static inline v16 v16_set2(float low, float high) {
    v4 l = {low, low, low, low}, h = {high, high, high, high};
    return (v16){{l, l, h, h}};
}

static inline v16 v16_set1(float x) {
    return v16_set2(x, x);
}

static inline v16 v16_zero(void) {
    return v16_set1(0);
}

static inline v16 v16_mul(v16 a, v16 b) {
    return (v16){{a.q[0] * b.q[0], a.q[1] * b.q[1], a.q[2] * b.q[2], a.q[3] * b.q[3]}};
}

/* a * b + c for products that are exact in f32: one rounding, whether fused or not. */
static inline v16 v16_muladd(v16 a, v16 b, v16 c) {
    return (v16){{a.q[0] * b.q[0] + c.q[0], a.q[1] * b.q[1] + c.q[1], a.q[2] * b.q[2] + c.q[2],
                  a.q[3] * b.q[3] + c.q[3]}};
}

/* The fixed tree: lane i + lane i + 8, then + 4, + 2, + 1. */
static inline float v16_sum(v16 a) {
    v4 s = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* y[0..3] = v16_sum of each. */
static inline void v16_sum4(v16 a, v16 b, v16 c, v16 d, float *y) {
    y[0] = v16_sum(a);
    y[1] = v16_sum(b);
    y[2] = v16_sum(c);
    y[3] = v16_sum(d);
}

static inline v16d v16d_zero(void) {
    return (v16d){{0}};
}

/* a * b + c in f64; products of f32 with BF16 are exact. */
static inline v16d v16d_muladd(v16 a, v16 b, v16d c) {
    for (int i = 0; i < 16; i++) {
        c.x[i] += (double)a.q[i / 4][i % 4] * (double)b.q[i / 4][i % 4];
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

/* Four 16-bit words as integers. */
static inline u4 v4_words(const void *p) {
    h4 words;
    memcpy(&words, p, sizeof words);
    return __builtin_convertvector(words, u4);
}

/* 16 BF16 values, in order. */
static inline v16 v16_widen(const di_bf16 *x) {
    v16 a;
    for (int i = 0; i < 4; i++) {
        a.q[i] = (v4)(v4_words(x + 4 * i) << 16);
    }
    return a;
}

/* 32 BF16 values: lane i of *even is value 2i, of *odd value 2i + 1. */
static inline void v16_bf16(const di_bf16 *x, v16 *even, v16 *odd) {
    for (int i = 0; i < 4; i++) {
        u4 pairs;
        memcpy(&pairs, x + 8 * i, sizeof pairs);
        even->q[i] = (v4)(pairs << 16);
        odd->q[i] = (v4)(pairs & 0xffff0000u);
    }
}

static inline v16_codes v16_codes_load(const uint8_t *p) {
    return p;
}

/* 32 E4M3 codes as even and odd values, each times V16_FP8_UNIT. NaN codes may come out as numbers:
 * they are found by v16_flag_nans. */
static inline void v16_fp8(v16_codes c, v16 *even, v16 *odd) {
    for (int i = 0; i < 4; i++) { /* as an f32 pattern, a code is 2^-120 times its value */
        u4 pairs = v4_words(c + 8 * i);
        even->q[i] = (v4)((pairs & 0x7f) << 20 | (pairs & 0x80) << 24) * 0x1p120f;
        odd->q[i] = (v4)((pairs & 0x7f00) << 12 | (pairs & 0x8000) << 16) * 0x1p120f;
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
    float e[16], o[16];
    for (int i = 0; i < 16; i++) {
        e[i] = grid.x[pairs[i] & 15];
        o[i] = grid.x[pairs[i] >> 4];
    }
    *even = v16_load(e);
    *odd = v16_load(o);
}

#endif
