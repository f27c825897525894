/* The sampler's arithmetic: one definition of every number that decides a token.
 *
 * float32 products, sums and conversions, each rounded to nearest and none contracted
 * (-ffp-contract=off), else integers; no library function. So any processor, vector width and
 * compiler gives the same bits. docs/sampling.md states the rules. */
#ifndef DI_SAMPLE_ARITHMETIC_H
#define DI_SAMPLE_ARITHMETIC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/formats.h"

#define DI_LOG2_E 0x1.71547652b82fep+0 /* log2(e) in double */
#define DI_LN_2   0x1.62e42fefa39efp-1

enum { DI_WEIGHT_BITS = 46 }; /* the best token weighs 2^46 */

/* Octaves by which a logit's distance counts at a temperature: y = (best - x) * c. */
static inline float di_octaves_per_logit(double temperature) {
    return (float)(DI_LOG2_E / (double)(float)temperature);
}

/* 2^-f for f in [0, 1], relative error below 2^-22. Another order of evaluation would be another
 * sampler. Straight-line, so that loops over it become vectors. */
static inline float di_exp2_fraction(float f) {
    float g = 0x1.c946d2p-14f;
    g = g * f;
    g = g + -0x1.4e2aeap-10f;
    g = g * f;
    g = g + 0x1.39e3fcp-7f;
    g = g * f;
    g = g + -0x1.c6948ep-5f;
    g = g * f;
    g = g + 0x1.ebfacp-3f;
    g = g * f;
    g = g + -0x1.62e42cp-1f;
    g = g * f;
    return g + 1.0f;
}

/* y or 46, whichever is less; y >= +0. Compared as integers: compilers make vectors of that without
 * being allowed to forget floating-point traps. */
static inline float di_clamp_octaves(float y) {
    uint32_t bits = di_f32_bits(y), limit = 0x42380000; /* 46.0f */
    return di_f32_from_bits(bits < limit ? bits : limit);
}

/* floor(2^46 * 2^-y) by the polynomial, 0 from y = 46 on; y >= +0, +infinity allowed. The float is
 * taken apart by hand: g lies in [0.5, 1], and shifting its 24 bits is what g * 2^46 means. */
static inline uint64_t di_weight(float y) {
    float near = di_clamp_octaves(y);
    int32_t n = (int32_t)near; /* truncation is floor */
    uint32_t bits = di_f32_bits(di_exp2_fraction(near - (float)n));
    uint64_t mantissa = (bits & 0x7fffff) | 0x800000;
    uint32_t left = (bits >> 23) - (127 + 23 - DI_WEIGHT_BITS);
    uint64_t w = mantissa << left >> (uint32_t)n;
    return w & ((uint64_t)(n >= DI_WEIGHT_BITS) - 1);
}

/* Orders floats as signed integers; -0 and +0 are one value. NaNs lie outside the infinities. */
static inline int32_t di_key(float x) {
    int32_t b = (int32_t)di_f32_bits(x + 0.0f); /* -0 + 0 = +0 */
    return b ^ (b >> 31 & 0x7fffffff);
}

/* ln(t) for integer t in [1, 2^63) in double arithmetic that every machine rounds alike: t = 2^e z
 * with z in (sqrt(1/2), sqrt(2)], ln z = 2 artanh((z - 1) / (z + 1)). Error below 1e-15. */
static inline double di_log_integer(uint64_t t) {
    int e = 63 - __builtin_clzll(t);
    double z = (double)t;
    for (int i = 0; i < e; i++) {
        z *= 0.5; /* exact */
    }
    if (z > 0x1.6a09e667f3bcdp+0) {
        z *= 0.5;
        e++;
    }
    double s = (z - 1) / (z + 1), square = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2) {
        sum = sum * square;
        sum = sum + 1.0 / k;
    }
    return (double)e * DI_LN_2 + 2 * (s * sum);
}

/* ---- exponential noise of coupled draws -------------------------------------------------------*/

enum { DI_NOISE_BITS = 56 };

/* -ln U in units of 2^-56 for U = (2 * word + 1) / 2^33, relative error below 2^-22 for every word.
 * U = 2^-k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); f is the nearest float32 of the exact
 * difference, so that U next to 1 loses nothing; -ln U = k ln 2 - f q(f). The least value is
 * 2^-33, whose last bit is 2^-56, and the largest below 23: every value is an integer below 2^61.
 */
static inline uint64_t di_noise(uint32_t word) {
    uint64_t t = (uint64_t)word * 2 + 1;
    int k = __builtin_clzll(t) - 31; /* t * 2^k in [2^32, 2^33) */
    int64_t z = (int64_t)(t << k);   /* 2^33 * 2^k * U */
    if (z < 6074001000) {            /* 2^32.5 */
        z = z * 2;
        k = k + 1;
    }
    float f = (float)(z - ((int64_t)1 << 33)) * 0x1p-33f;
    float q = 0x1.66456ep-4f;
    q = q * f;
    q = q + -0x1.2562c2p-3f;
    q = q * f;
    q = q + 0x1.3198b6p-3f;
    q = q * f;
    q = q + -0x1.535278p-3f;
    q = q * f;
    q = q + 0x1.98d016p-3f;
    q = q * f;
    q = q + -0x1.0004c4p-2f;
    q = q * f;
    q = q + 0x1.5556fcp-2f;
    q = q * f;
    q = q + -0x1.fffffap-2f;
    q = q * f;
    q = q + 1.0f;
    float fq = f * q, kl = (float)k * 0x1.62e43p-1f;
    return (uint64_t)(int64_t)((kl - fq) * 0x1p56f);
}

/* A token in the race: the smallest noise / weight wins, the lower id among equals. */
typedef struct di_racer {
    uint64_t noise, weight; /* noise < 2^61, 0 < weight <= 2^46 */
    int32_t id;
} di_racer;

/* Exact: products below 2^107. */
static inline bool di_racer_beats(di_racer a, di_racer b) {
    unsigned __int128 left = (unsigned __int128)a.noise * b.weight;
    unsigned __int128 right = (unsigned __int128)b.noise * a.weight;
    return left < right || (left == right && a.id < b.id);
}

#endif
