/* Number formats of the checkpoint and of the caches, one value at a time (spec: "E4M3", "E8M0",
 * "E2M1", BF16). These scalar forms define the values; vector forms elsewhere are tested against
 * them over all inputs. All arithmetic is float32 with round-to-nearest. */
#ifndef DI_BASE_FORMATS_H
#define DI_BASE_FORMATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t di_bf16;

static inline uint32_t di_f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float di_f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float di_bf16_to_f32(di_bf16 v) {
    return di_f32_from_bits((uint32_t)v << 16);
}

/* Round to nearest, ties to even; NaN stays NaN (quiet). */
static inline di_bf16 di_bf16_from_f32(float x) {
    uint32_t u = di_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (di_bf16)(u >> 16 | 0x40);
    }
    return (di_bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float di_round_bf16(float x) {
    return di_bf16_to_f32(di_bf16_from_f32(x));
}

/* 2^(byte - 127); byte 0 is the subnormal 2^-127, byte 255 NaN. */
static inline float di_e8m0_to_f32(uint8_t byte) {
    if (byte == 255) {
        return NAN;
    }
    return di_f32_from_bits(byte ? (uint32_t)byte << 23 : 0x00400000u);
}

static inline float di_e4m3_to_f32(uint8_t byte) {
    uint32_t magnitude = byte & 0x7f, sign = (uint32_t)(byte & 0x80) << 24;
    if (magnitude == 0x7f) {
        return NAN;
    }
    /* As an f32 pattern the code reads 2^-120 times its value, subnormals included. */
    float v = di_f32_from_bits(magnitude << 20) * 0x1p120f;
    return di_f32_from_bits(di_f32_bits(v) | sign);
}

/* Clamp to +-448, then nearest E4M3, ties to even, subnormals included. NaN gives 0x7f. */
static inline uint8_t di_e4m3_from_f32(float x) {
    uint8_t sign = (uint8_t)(di_f32_bits(x) >> 24 & 0x80);
    float a = fabsf(x);
    if (isnan(x)) {
        return 0x7f;
    }
    if (a >= 448.0f) {
        return sign | 0x7e;
    }
    if (a < 0x1p-6f) { /* subnormal step 2^-9; adding 1.5 * 2^14 leaves that step's integer */
        float shifted = a + 0x1.8p14f;
        return sign | (uint8_t)(di_f32_bits(shifted) & 0xff);
    }
    uint32_t u = di_f32_bits(a);
    u += 0x7ffff + (u >> 20 & 1); /* keep 3 mantissa bits */
    return sign | (uint8_t)((u >> 20) - ((127 - 7) << 3));
}

/* |x| <= 6 expected (larger saturates): nearest, ties to the even code, sign kept also of zero. */
static inline uint8_t di_e2m1_from_f32(float x) {
    uint8_t sign = (uint8_t)(di_f32_bits(x) >> 28 & 8);
    float a = fabsf(x);
    uint8_t code = 0;
    code += a > 0.25f;
    code += a >= 0.75f;
    code += a > 1.25f;
    code += a >= 1.75f;
    code += a > 2.5f;
    code += a >= 3.5f;
    code += a > 5.0f;
    return sign | code;
}

static inline float di_e2m1_to_f32(uint8_t code) {
    static const float grid[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return grid[code & 15];
}

/* The smallest power of two >= t as an E8M0 byte; t a positive normal f32. */
static inline uint8_t di_pow2_ceil_e8m0(float t) {
    uint32_t u = di_f32_bits(t);
    return (uint8_t)((u >> 23 & 255) + ((u & 0x7fffff) != 0));
}

#define DI_INV448 0x1.24924ap-9f /* bits 0x3B124925 */
#define DI_INV6   0x1.555556p-3f /* bits 0x3E2AAAAB */

/* Scale bytes of the three activation quantisers from a group's largest magnitude. */
static inline uint8_t di_q8_scale(float amax) { /* E8M0, groups of 32 */
    return di_pow2_ceil_e8m0(fmaxf(amax, 1e-4f) * DI_INV448);
}

static inline uint8_t di_q4i_scale(float amax) { /* E8M0, groups of 32 */
    return di_pow2_ceil_e8m0(fmaxf(amax, 6 * 0x1p-126f) * DI_INV6);
}

static inline uint8_t di_q4k_scale(float amax) { /* E4M3, groups of 16 */
    return di_e4m3_from_f32(fmaxf(amax, 6 * 0x1p-9f) / 6.0f);
}

#endif
