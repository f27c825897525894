/* Sixteen float lanes as one AVX-512 register. Same names in v16_avx2.h and v16_plain.h; included
 * by one kernels_*.c file each, before kernels.inc. v16_plain.h says what each function gives. */
#ifndef DI_OPS_CPU_V16_H
#define DI_OPS_CPU_V16_H

#include <immintrin.h>
#include <stdbool.h>

#include "base/formats.h"
#include "ops/cpu/v16_codes.h"

typedef __m512 v16;
typedef struct v16d {
    __m512d lo, hi;
} v16d;
typedef __m512 v16_grid;

#define V16_NATIVE_BYTES 64 /* of a register */

enum {
    V16_TILE_ROWS = 4,
    V16_TILE_COLS = 6,
    V16_ONE_COLS = 8,
    V16_FEW_ROWS = 4,
    V16_FEW_COLS = 4,
};

static inline v16 v16_load(const float *p) {
    return _mm512_loadu_ps(p);
}

static inline void v16_store(float *p, v16 a) {
    _mm512_storeu_ps(p, a);
}

static inline v16 v16_zero(void) {
    return _mm512_setzero_ps();
}

static inline v16 v16_set1(float x) {
    return _mm512_set1_ps(x);
}

static inline v16 v16_set2(float low, float high) {
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(low), _mm512_set1_ps(high));
}

static inline v16 v16_mul(v16 a, v16 b) {
    return _mm512_mul_ps(a, b);
}

static inline v16 v16_muladd(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline float v16_sum(v16 a) {
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

/* v16_sum of four at once: the same additions, side by side. */
static inline void v16_sum4(v16 a, v16 b, v16 c, v16 d, float *y) {
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 s4 =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    __m512 s2 = _mm512_add_ps(s4, _mm512_permute_ps(s4, 0x4e));
    __m512 s1 = _mm512_add_ps(s2, _mm512_permute_ps(s2, 0xb1));
    _mm_storeu_ps(y, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s1)));
}

static inline v16d v16d_zero(void) {
    return (v16d){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

static inline v16d v16d_muladd(v16 a, v16 b, v16d c) {
    c.lo = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                           _mm512_cvtps_pd(_mm512_castps512_ps256(b)), c.lo);
    c.hi = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)),
                           _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)), c.hi);
    return c;
}

static inline double v16d_sum(v16d a) {
    __m512d s8 = _mm512_add_pd(a.lo, a.hi);
    __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

static inline v16 v16_widen(const di_bf16 *x) {
    __m256i half = _mm256_loadu_si256((const __m256i *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline void v16_bf16(const di_bf16 *x, v16 *even, v16 *odd) {
    __m512i pairs = _mm512_loadu_si512(x);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

static inline void v16_fp8(v16_codes c, v16 *even, v16 *odd) {
    *even = _mm512_cvtph_ps(v16_even_f16(c));
    *odd = _mm512_cvtph_ps(v16_odd_f16(c));
}

static inline v16_grid v16_fp4_grid(float scale) {
    const __m512 grid =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_mul_ps(grid, _mm512_set1_ps(scale));
}

static inline void v16_fp4(const uint8_t *pairs, v16_grid grid, v16 *even, v16 *odd) {
    __m512i index = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)pairs));
    *even = _mm512_permutexvar_ps(index, grid); /* looks at the low 4 bits only */
    *odd = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), grid);
}

#endif
