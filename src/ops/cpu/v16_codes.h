/* E4M3 codes, 32 in an AVX register: what v16_avx2.h and v16_avx512.h have in common. */
#ifndef DI_OPS_CPU_V16_CODES_H
#define DI_OPS_CPU_V16_CODES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

typedef __m256i v16_codes;
typedef __m256i v16_flags;

static inline v16_codes v16_codes_load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

#define V16_FP8_UNIT 0x1p-8f

/* A code moved to bits 15 and 13..7 is the F16 pattern of its value times 2^-8; the conversion to
 * f32 takes subnormals in stride, which a multiplication by 2^120 would not. */
static inline __m256i v16_even_f16(v16_codes c) {
    const __m256i mask = _mm256_set1_epi16((short)0xbf80);
    return _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(c, 8), 1), mask);
}

static inline __m256i v16_odd_f16(v16_codes c) {
    const __m256i mask = _mm256_set1_epi16((short)0xbf80);
    return _mm256_and_si256(_mm256_srai_epi16(c, 1), mask);
}

static inline v16_flags v16_flags_none(void) {
    return _mm256_setzero_si256();
}

static inline v16_flags v16_flag_nans(v16_flags f, v16_codes c) {
    return _mm256_max_epu8(f, _mm256_or_si256(c, _mm256_set1_epi8((char)0x80)));
}

static inline bool v16_flagged(v16_flags f) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(f, _mm256_set1_epi8((char)0xff))) != 0;
}

#endif
