/* Sixteen float lanes as two AVX registers; needs AVX2, FMA and F16C. Same names in v16_avx512.h
 * and v16_plain.h; v16_plain.h says what each function gives. */
#ifndef DI_OPS_CPU_V16_H
#define DI_OPS_CPU_V16_H

#include <immintrin.h>
#include <stdbool.h>

#include "base/formats.h"
#include "ops/cpu/v16_codes.h"

typedef struct v16 {
    __m256 lo, hi;
} v16;
typedef struct v16d {
    __m256d q[4];
} v16d;
typedef struct v16_grid {
    __m256 half_scale;
} v16_grid;

#define V16_NATIVE_BYTES 32 /* of a register */

enum {
    V16_TILE_ROWS = 2,
    V16_TILE_COLS = 3,
    V16_ONE_COLS = 4,
    V16_FEW_ROWS = 2,
    V16_FEW_COLS = 2,
};

static inline v16 v16_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void v16_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

static inline v16 v16_zero(void) {
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline v16 v16_set1(float x) {
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline v16 v16_set2(float low, float high) {
    return (v16){_mm256_set1_ps(low), _mm256_set1_ps(high)};
}

static inline v16 v16_mul(v16 a, v16 b) {
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline v16 v16_muladd(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static inline float v16_sum(v16 a) {
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

static inline void v16_sum4(v16 a, v16 b, v16 c, v16 d, float *y) {
    y[0] = v16_sum(a);
    y[1] = v16_sum(b);
    y[2] = v16_sum(c);
    y[3] = v16_sum(d);
}

static inline v16d v16d_zero(void) {
    __m256d z = _mm256_setzero_pd();
    return (v16d){{z, z, z, z}};
}

static inline v16d v16d_muladd(v16 a, v16 b, v16d c) {
    __m128 x[4] = {_mm256_castps256_ps128(a.lo), _mm256_extractf128_ps(a.lo, 1),
                   _mm256_castps256_ps128(a.hi), _mm256_extractf128_ps(a.hi, 1)};
    __m128 y[4] = {_mm256_castps256_ps128(b.lo), _mm256_extractf128_ps(b.lo, 1),
                   _mm256_castps256_ps128(b.hi), _mm256_extractf128_ps(b.hi, 1)};
    for (int i = 0; i < 4; i++) {
        c.q[i] = _mm256_fmadd_pd(_mm256_cvtps_pd(x[i]), _mm256_cvtps_pd(y[i]), c.q[i]);
    }
    return c;
}

static inline double v16d_sum(v16d a) {
    __m256d s4 = _mm256_add_pd(_mm256_add_pd(a.q[0], a.q[2]), _mm256_add_pd(a.q[1], a.q[3]));
    __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

static inline v16 v16_widen(const di_bf16 *x) {
    __m128i low = _mm_loadu_si128((const __m128i *)x);
    __m128i high = _mm_loadu_si128((const __m128i *)(x + 8));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))};
}

static inline void v16_bf16(const di_bf16 *x, v16 *even, v16 *odd) {
    const __m256i mask = _mm256_set1_epi32((int)0xffff0000);
    __m256i low = _mm256_loadu_si256((const __m256i *)x);
    __m256i high = _mm256_loadu_si256((const __m256i *)(x + 16));
    *even = (v16){_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
    *odd = (v16){_mm256_castsi256_ps(_mm256_and_si256(low, mask)),
                 _mm256_castsi256_ps(_mm256_and_si256(high, mask))};
}

static inline v16 v16_from_f16(__m256i x) {
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}

static inline void v16_fp8(v16_codes c, v16 *even, v16 *odd) {
    *even = v16_from_f16(v16_even_f16(c));
    *odd = v16_from_f16(v16_odd_f16(c));
}

static inline v16_grid v16_fp4_grid(float scale) {
    return (v16_grid){_mm256_set1_ps(0.5f * scale)};
}

static inline v16 v16_from_i8(__m128i x, __m256 scale) {
    __m256i low = _mm256_cvtepi8_epi32(x), high = _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8));
    return (v16){_mm256_mul_ps(_mm256_cvtepi32_ps(low), scale),
                 _mm256_mul_ps(_mm256_cvtepi32_ps(high), scale)};
}

/* By way of small integers: twice each grid value. */
static inline void v16_fp4(const uint8_t *pairs, v16_grid grid, v16 *even, v16 *odd) {
    const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i p = _mm_loadu_si128((const __m128i *)pairs);
    __m128i high = _mm_and_si128(_mm_srli_epi16(p, 4), nibble);
    *even = v16_from_i8(_mm_shuffle_epi8(twice, _mm_and_si128(p, nibble)), grid.half_scale);
    *odd = v16_from_i8(_mm_shuffle_epi8(twice, high), grid.half_scale);
}

#endif
