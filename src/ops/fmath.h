/* exp, log1p, sigmoid and silu of our own: fixed sequences of f64 operations without fused ones, so
 * that every instruction set, vectorised or not, gives the same bits. The result rounded to f32 is
 * within 0.51 ulp of the true value. Plain C on purpose: compilers vectorise loops over these, and
 * kernels of ops/cuda (compiled with -fmad=false) call them as they stand. */
#ifndef DI_OPS_FMATH_H
#define DI_OPS_FMATH_H

#include "base/formats.h"

#ifdef __CUDACC__
#define DI_FMATH static __host__ __device__ __forceinline__
#else
#define DI_FMATH static inline
#endif

DI_FMATH int64_t di_f64_bits(double x) {
    int64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

DI_FMATH double di_f64_from_bits(int64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* exp for arguments that an f32 result can tell apart: clamped to +-200, NaN stays NaN.
 * x = n ln 2 + r, |r| <= 0.347; Taylor to r^9 leaves 2^-37. */
DI_FMATH double di_exp64(double x) {
    const double round = 0x1.8p52; /* adding it leaves the nearest integer in the low bits */
    x = x > 200.0 ? 200.0 : x;
    x = x < -200.0 ? -200.0 : x;
    double shifted = x * 0x1.71547652b82fep+0 + round;
    double n = shifted - round;
    double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    /* times 2^n, by way of the exponent: |n| < 300 */
    return di_f64_from_bits(
        (int64_t)((uint64_t)di_f64_bits(p) + ((uint64_t)di_f64_bits(shifted) << 52)));
}

DI_FMATH float di_expf(float x) {
    return (float)di_exp64((double)x);
}

DI_FMATH float di_sigmoidf(float x) {
    return (float)(1.0 / (1.0 + di_exp64(-(double)x)));
}

/* x * sigmoid(x), rounded once. */
DI_FMATH float di_siluf(float x) {
    return (float)((double)x / (1.0 + di_exp64(-(double)x)));
}

/* log(1 + e) for e >= 0, finite or NaN: 1 + e = 2^n m, m in [sqrt 1/2, sqrt 2);
 * log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.172, series to s^15. What rounding 1 + e lost
 * is put back as a relative correction. */
DI_FMATH double di_log1p64(double e) {
    double u = 1.0 + e;
    double lost = (e - (u - 1.0)) / u;
    int64_t bits = di_f64_bits(u);
    int64_t n = (bits - di_f64_bits(0x1.6a09e667f3bcdp-1)) >> 52;
    double m = di_f64_from_bits((int64_t)((uint64_t)bits - ((uint64_t)n << 52)));
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    p = p * z + 1.0;
    return (double)n * 0x1.62e42fefa39efp-1 + (2.0 * s * p + lost);
}

/* v above 20, else log(1 + exp v). */
DI_FMATH float di_softplusf(float v) {
    return v > 20.0f ? v : (float)di_log1p64(di_exp64((double)v));
}

/* di_round_bf16 without a branch, for loops that should become vectors. */
static inline float di_round_bf16_select(float x) {
    uint32_t u = di_f32_bits(x);
    uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    uint32_t quiet = (u | 0x400000u) & 0xffff0000u;
    return di_f32_from_bits((u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

static inline di_bf16 di_bf16_select(float x) {
    return (di_bf16)(di_f32_bits(di_round_bf16_select(x)) >> 16);
}

#endif
