/* The numbers that decide a draw: sample/arithmetic.h and the race of docs/sampling.md on the card,
 * in the same float32 steps and integers. Text that is run once a draw is bound by being fetched,
 * so what matters here is how few instructions there are. */
#ifndef DI_OPS_CUDA_DRAW_CUH
#define DI_OPS_CUDA_DRAW_CUH

#include <stdint.h>

enum { ALL = 0xffffffff };

/* ---- arithmetic (sample/arithmetic.h) --------------------------------------------------------*/

static __device__ __forceinline__ float exp2_fraction(float f) {
    float g = 0x1.c946d2p-14f;
    g = __fadd_rn(__fmul_rn(g, f), -0x1.4e2aeap-10f);
    g = __fadd_rn(__fmul_rn(g, f), 0x1.39e3fcp-7f);
    g = __fadd_rn(__fmul_rn(g, f), -0x1.c6948ep-5f);
    g = __fadd_rn(__fmul_rn(g, f), 0x1.ebfacp-3f);
    g = __fadd_rn(__fmul_rn(g, f), -0x1.62e42cp-1f);
    return __fadd_rn(__fmul_rn(g, f), 1.0f);
}

static __device__ __forceinline__ float octaves_to_46(float y) {
    uint32_t bits = __float_as_uint(y), limit = 0x42380000; /* 46.0f */
    return __uint_as_float(bits < limit ? bits : limit);
}

/* floor(2^46 * 2^-y), 0 from y = 46 on. */
static __device__ __forceinline__ uint64_t weight_of(float y) {
    float near = octaves_to_46(y);
    int32_t n = (int32_t)near;
    uint32_t bits = __float_as_uint(exp2_fraction(__fsub_rn(near, (float)n)));
    uint64_t mantissa = (bits & 0x7fffff) | 0x800000;
    uint32_t left = (bits >> 23) - (127 + 23 - 46);
    return n >= 46 ? 0 : mantissa << left >> (uint32_t)n;
}

/* Larger for larger floats; -0 and +0 are one value. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t b = __float_as_uint(__fadd_rn(x, 0.0f));
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

static __device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffff : ~key);
}

struct words4 {
    uint32_t w[4];
};

/* Philox4x32-10. */
static __device__ words4 random_words(uint64_t seed, uint64_t position, uint32_t kind,
                                      uint32_t index) {
    uint32_t x0 = (uint32_t)position, x1 = (uint32_t)(position >> 32), x2 = kind, x3 = index;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
        uint32_t a_high = __umulhi(0xD2511F53u, x0), a_low = 0xD2511F53u * x0;
        uint32_t b_high = __umulhi(0xCD9E8D57u, x2), b_low = 0xCD9E8D57u * x2;
        x0 = b_high ^ x1 ^ k0;
        x1 = b_low;
        x2 = a_high ^ x3 ^ k1;
        x3 = a_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{x0, x1, x2, x3}};
}

enum { KIND_TARGET = 0, KIND_COUPLED = 4 };

/* -ln((2 word + 1) / 2^33) in units of 2^-56. */
static __device__ uint64_t noise_of(uint32_t word) {
    uint64_t t = (uint64_t)word * 2 + 1;
    int k = __clzll((long long)t) - 31;
    int64_t z = (int64_t)(t << k);
    if (z < 6074001000ll) {
        z = z * 2;
        k = k + 1;
    }
    float f = __fmul_rn((float)(z - (1ll << 33)), 0x1p-33f);
    float q = 0x1.66456ep-4f;
    q = __fadd_rn(__fmul_rn(q, f), -0x1.2562c2p-3f);
    q = __fadd_rn(__fmul_rn(q, f), 0x1.3198b6p-3f);
    q = __fadd_rn(__fmul_rn(q, f), -0x1.535278p-3f);
    q = __fadd_rn(__fmul_rn(q, f), 0x1.98d016p-3f);
    q = __fadd_rn(__fmul_rn(q, f), -0x1.0004c4p-2f);
    q = __fadd_rn(__fmul_rn(q, f), 0x1.5556fcp-2f);
    q = __fadd_rn(__fmul_rn(q, f), -0x1.fffffap-2f);
    q = __fadd_rn(__fmul_rn(q, f), 1.0f);
    float fq = __fmul_rn(f, q), kl = __fmul_rn((float)k, 0x1.62e43p-1f);
    return (uint64_t)(int64_t)__fmul_rn(__fsub_rn(kl, fq), 0x1p56f);
}

/* A token in the race: its noise, and its weight with its id behind it (17 bits: docs/sampling.md
 * allows no larger one), so that it is 16 bytes to hand on. */
struct racer {
    uint64_t noise, mark;
};

enum { ID_BITS = 17 };

static __device__ __forceinline__ racer racer_of(uint64_t noise, uint64_t weight, int32_t id) {
    return {noise, weight << ID_BITS | (uint32_t)id};
}

/* Whom everybody beats. */
static __device__ __forceinline__ racer nobody() {
    return {1, 0};
}

static __device__ __forceinline__ int32_t id_of(const racer &r) {
    return (int32_t)(r.mark & ((1u << ID_BITS) - 1));
}

static __device__ bool beats(const racer &a, const racer &b) {
    uint64_t mine = a.mark >> ID_BITS, others = b.mark >> ID_BITS;
    uint64_t left_high = __umul64hi(a.noise, others), left_low = a.noise * others;
    uint64_t right_high = __umul64hi(b.noise, mine), right_low = b.noise * mine;
    if (left_high != right_high) {
        return left_high < right_high;
    }
    return left_low < right_low || (left_low == right_low && id_of(a) < id_of(b));
}

/* Noise over weight in units of 2^-10, wrong by a few units of 2^-23 of it. */
static __device__ __forceinline__ float ratio_of(const racer &r) {
    return __fdividef((float)r.noise, (float)(r.mark >> ID_BITS));
}

/* 1 - U over weight, in units of 2^-31, can be no more than that in whoever beats or equals this
 * ratio. */
static __device__ __forceinline__ float race_bound(float ratio) {
    return ratio * 0x1p21f * (1 + 0x1p-16f);
}

#endif
