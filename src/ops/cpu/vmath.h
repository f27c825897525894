/* The functions of fmath.h on the compiler's vectors, a register at a time: the same operations in
 * the same order, so the same bits. Left to itself the compiler makes branches of their selections,
 * and then no vectors. Included by kernels.inc, after a v16_*.h. */
#ifndef DI_OPS_CPU_VMATH_H
#define DI_OPS_CPU_VMATH_H

#include "base/formats.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { VEC = V16_NATIVE_BYTES / 4 }; /* floats in a register */

typedef float fvec __attribute__((vector_size(V16_NATIVE_BYTES)));
typedef int32_t ivec __attribute__((vector_size(V16_NATIVE_BYTES)));
typedef uint32_t uvec __attribute__((vector_size(V16_NATIVE_BYTES)));
typedef double dvec __attribute__((vector_size(V16_NATIVE_BYTES)));
typedef int64_t lvec __attribute__((vector_size(V16_NATIVE_BYTES)));
typedef uint64_t ulvec __attribute__((vector_size(V16_NATIVE_BYTES)));
typedef float fhalf __attribute__((vector_size(V16_NATIVE_BYTES / 2)));
typedef uint16_t hvec __attribute__((vector_size(V16_NATIVE_BYTES / 2)));

ALWAYS_INLINE ivec choose(ivec mask, ivec yes, ivec no) {
    return (mask & yes) | (~mask & no);
}

ALWAYS_INLINE fvec choose_f(ivec mask, fvec yes, fvec no) {
    return (fvec)choose(mask, (ivec)yes, (ivec)no);
}

ALWAYS_INLINE fvec fvec_load(const float *p) {
    fvec v;
    memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE void fvec_store(float *p, fvec v) {
    memcpy(p, &v, sizeof v);
}

ALWAYS_INLINE fvec fvec_bf16(const di_bf16 *p) {
    hvec v;
    memcpy(&v, p, sizeof v);
    return (fvec)(__builtin_convertvector(v, uvec) << 16);
}

/* di_round_bf16_select. */
ALWAYS_INLINE fvec round_bf16_vec(fvec x) {
    uvec u = (uvec)x, nearest = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    uvec quiet = (u | 0x400000u) & 0xffff0000u;
    return (fvec)choose((u & 0x7fffffffu) > 0x7f800000u, (ivec)quiet, (ivec)nearest);
}

ALWAYS_INLINE void fvec_store_bf16(di_bf16 *p, fvec v) {
    hvec h = __builtin_convertvector((uvec)round_bf16_vec(v) >> 16, hvec);
    memcpy(p, &h, sizeof h);
}

/* di_exp64. */
ALWAYS_INLINE dvec exp64_vec(dvec x) {
    const dvec high = (dvec){0} + 200.0, low = (dvec){0} - 200.0, round = (dvec){0} + 0x1.8p52;
    lvec above = x > high;
    x = (dvec)((above & (lvec)high) | (~above & (lvec)x));
    lvec below = x < low;
    x = (dvec)((below & (lvec)low) | (~below & (lvec)x));
    dvec shifted = x * 0x1.71547652b82fep+0 + round;
    dvec n = shifted - round;
    dvec r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    dvec p = (dvec){0} + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return (dvec)((ulvec)p + ((ulvec)shifted << 52));
}

/* A register of floats as two of doubles and back. */
ALWAYS_INLINE void to_f64(fvec x, dvec *low, dvec *high) {
    fhalf half[2];
    memcpy(half, &x, sizeof x);
    *low = __builtin_convertvector(half[0], dvec);
    *high = __builtin_convertvector(half[1], dvec);
}

ALWAYS_INLINE fvec from_f64(dvec low, dvec high) {
    fhalf half[2] = {__builtin_convertvector(low, fhalf), __builtin_convertvector(high, fhalf)};
    fvec x;
    memcpy(&x, half, sizeof x);
    return x;
}

/* di_expf */
ALWAYS_INLINE fvec expf_vec(fvec x) {
    dvec low, high;
    to_f64(x, &low, &high);
    return from_f64(exp64_vec(low), exp64_vec(high));
}

/* di_sigmoidf */
ALWAYS_INLINE fvec sigmoidf_vec(fvec x) {
    dvec low, high;
    to_f64(x, &low, &high);
    return from_f64(1.0 / (1.0 + exp64_vec(-low)), 1.0 / (1.0 + exp64_vec(-high)));
}

/* di_siluf */
ALWAYS_INLINE fvec siluf_vec(fvec x) {
    dvec low, high;
    to_f64(x, &low, &high);
    return from_f64(low / (1.0 + exp64_vec(-low)), high / (1.0 + exp64_vec(-high)));
}

#endif
