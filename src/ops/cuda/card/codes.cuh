/* Weights as they lie on the card, and how a thread makes tensor-core operands of them.
 *
 * A chunk is 64 rows by 64 values: four tensor-core steps of 16. Warp w of the four that share a
 * tile has rows 16 w .. 16 w + 15; thread (g, t) = (lane / 4, lane % 4) has of rows g and g + 8,
 * for every step, values 2t, 2t + 1, 2t + 8, 2t + 9: two pairs, each a register of the A operand.
 * Codes lie in the order in which threads load them, 16 bytes at a time:
 *
 *   BF16  [two steps][g, g + 8][w][lane] of four pairs
 *   FP8   [g, g + 8][w][lane] of four words, one a step; then [w] of two scales (one a 32 values),
 *         and 8 bytes of nothing
 *   FP4   [w][lane] of four words: two of row g, two of g + 8, a word two steps; then [w][g] of
 * four scales: two of row g, two of g + 8
 *
 * Inside a word the codes' bits are where decoding needs them: a pair of BF16 values that hold
 * 2^-120 (E4M3) or 2^-126 (E2M1) times the codes' values is one shift and one mask away, and its
 * product with a power of two is exact. Bitwise instructions are what bounds products of few rows,
 * so their number counts: 1.25 a weight for FP8 and 0.9 for FP4, without the product. */
#ifndef DI_OPS_CUDA_CODES_CUH
#define DI_OPS_CUDA_CODES_CUH

#include "ops/cuda/card/common.cuh"

enum { CODES_FP8_SCALES = 4096, CODES_FP4_SCALES = 2048 };

/* ---- packing ---------------------------------------------------------------------------------*/

/* Four E4M3 codes: (a, b) is the first pair of a step, (c, d) the second. */
__device__ __forceinline__ uint32_t fp8_word(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint32_t first = ((a & 0x80) << 8 | (a & 0x7f) << 4) | ((b & 0x80) << 8 | (b & 0x7f) << 4)
                                                               << 16;
    uint32_t signs = (c >> 7) << 3 | (d >> 7) << 19;
    uint32_t mantissas = (c & 7) | (d & 7) << 16;
    uint32_t exponents = (c >> 3 & 15) << 27 | (d >> 3 & 15) << 11; /* each in the other's half */
    return first | signs | mantissas | exponents;
}

/* 16 bits of four E2M1 codes, one of each pair of two steps. */
__device__ __forceinline__ uint32_t fp4_half(const uint32_t (&code)[4]) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) { /* the first shape, moved down by three bits each time */
        word |= ((code[i] & 8) << 12 | (code[i] & 7) << 6) >> 3 * i;
    }
    uint32_t x = code[3];
    return word | (x >> 1 & 1) << 10 | (x >> 2 & 1) << 11 | (x >> 3 & 1) << 13 | (x & 1) << 14;
}

/* ---- decoding --------------------------------------------------------------------------------*/

__device__ __forceinline__ void fp8_operands(uint32_t w, uint32_t *first, uint32_t *second) {
    *first = w & 0x87f087f0u;
    *second = (__funnelshift_l(w, w, 12) & 0x87808780u) | (w * 16 & 0x00700070u);
}

__device__ __forceinline__ void fp4_operands(uint32_t w, uint32_t (&pair)[4]) {
    pair[0] = w & 0x81c081c0u;
    pair[1] = w * 8 & 0x81c081c0u;
    pair[2] = w * 64 & 0x81c081c0u;
    /* bits 0, 1, 3, 4 go to 7, 8, 15, 6: one product is three shifts, and nothing is carried */
    pair[3] = (w >> 10 & 0x001b001bu) * 0x1084u & 0x81c081c0u;
}

/* A thread's operands of one chunk: a[step][register], in the order the instruction wants. */
typedef uint32_t operands[4][4];

/* What a thread reads of a chunk. decode: with one factor a scale; or, in a matrix that has wide
 * scales (E8M0, 0 or too large for one factor, which is rare), with two. Asking that of every chunk
 * took seven instructions of some hundred. */
template <int F> struct raw_codes;

template <> struct raw_codes<DK_BF16> {
    uint4 q[2][2]; /* [two steps][row] */
    typedef uint32_t place;
    static __device__ __forceinline__ place place_of(uint32_t chunk, int warp, int lane) {
        place p = chunk + (warp * 32 + lane) * 16;
        keep(p);
        return p;
    }
    __device__ __forceinline__ void load(place p, int at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                q[i][h] = load_shared(p + at + (i * 2 + h) * 2048);
            }
        }
    }
    static __device__ __forceinline__ bool wide(uint32_t) {
        return false;
    }
    __device__ __forceinline__ void decode(operands &a, bool) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * i][h] = q[i][h].x;
                a[2 * i][2 + h] = q[i][h].y;
                a[2 * i + 1][h] = q[i][h].z;
                a[2 * i + 1][2 + h] = q[i][h].w;
            }
        }
    }
};

template <> struct raw_codes<DK_FP8> {
    uint4 q[2]; /* [row] */
    uint32_t scales;
    struct place {
        uint32_t codes, scales;
    };
    static __device__ __forceinline__ place place_of(uint32_t chunk, int warp, int lane) {
        place p = {chunk + (warp * 32 + lane) * 16, chunk + CODES_FP8_SCALES + warp * 2};
        keep(p.codes);
        keep(p.scales);
        return p;
    }
    __device__ __forceinline__ void load(place p, int at) {
        q[0] = load_shared(p.codes + at);
        q[1] = load_shared(p.codes + at + 2048);
        scales = load_shared_half(p.scales + at);
    }
    static __device__ __forceinline__ bool wide(uint32_t scale) {
        return scale - 1 > 133;
    }
    __device__ __forceinline__ void decode(operands &a, bool wide) const {
        if (wide) {
            uint32_t byte[2] = {scales & 255, scales >> 8};
            decode_with(a, 0x7b807b80u, 0x7b807b80u);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    a[i][r] = mul_bf16x2(a[i][r], twice(e8m0_bf16(byte[i / 2])));
                }
            }
            return;
        }
        decode_with(a, __byte_perm(scales, 0, 0x4040) * 0x80 + 0x3c003c00u,
                    __byte_perm(scales, 0, 0x4141) * 0x80 + 0x3c003c00u);
    }
    __device__ __forceinline__ void decode_with(operands &a, uint32_t low, uint32_t high) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t factor = i < 2 ? low : high;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t w = i == 0 ? q[h].x : i == 1 ? q[h].y : i == 2 ? q[h].z : q[h].w;
                fp8_operands(w, &a[i][h], &a[i][2 + h]);
                a[i][h] = mul_bf16x2(a[i][h], factor);
                a[i][2 + h] = mul_bf16x2(a[i][2 + h], factor);
            }
        }
    }
};

template <> struct raw_codes<DK_FP4> {
    uint4 q;
    uint32_t scales;
    struct place {
        uint32_t codes, scales;
    };
    static __device__ __forceinline__ place place_of(uint32_t chunk, int warp, int lane) {
        place p = {chunk + (warp * 32 + lane) * 16,
                   chunk + CODES_FP4_SCALES + (warp * 8 + lane / 4) * 4};
        keep(p.codes);
        keep(p.scales);
        return p;
    }
    __device__ __forceinline__ void load(place p, int at) {
        q = load_shared(p.codes + at);
        scales = load_shared_word(p.scales + at);
    }
    static __device__ __forceinline__ bool wide(uint32_t scale) {
        return scale - 1 > 127;
    }
    __device__ __forceinline__ void decode(operands &a, bool wide) const {
        if (wide) {
            const uint32_t bias[4] = {0x7e807e80u, 0x7e807e80u, 0x7e807e80u, 0x7e807e80u};
            decode_with(a, bias);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    uint32_t byte = scales >> 8 * (2 * (r & 1) + i / 2) & 255;
                    a[i][r] = mul_bf16x2(a[i][r], twice(e8m0_bf16(byte)));
                }
            }
            return;
        }
        uint32_t factor[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            factor[i] = __byte_perm(scales, 0, 0x4040 + 0x0101 * i) * 0x80 + 0x3f003f00u;
        }
        decode_with(a, factor);
    }
    /* factor: of row g's two blocks, then of row g + 8's */
    __device__ __forceinline__ void decode_with(operands &a, const uint32_t (&factor)[4]) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t w = h ? (i ? q.w : q.z) : (i ? q.y : q.x), pair[4];
                fp4_operands(w, pair);
                a[2 * i][h] = mul_bf16x2(pair[0], factor[2 * h + i]);
                a[2 * i][2 + h] = mul_bf16x2(pair[1], factor[2 * h + i]);
                a[2 * i + 1][h] = mul_bf16x2(pair[2], factor[2 * h + i]);
                a[2 * i + 1][2 + h] = mul_bf16x2(pair[3], factor[2 * h + i]);
            }
        }
    }
};

#endif
