/* What kernels share: number formats, the functions of docs/numerics.md, reductions, the
 * tensor-core instruction. Kernel files are compiled with -fmad=false: nothing is fused unless it
 * says fmaf. Formats follow base/formats.h, whose scalar forms the op tests hold them against. */
#ifndef DI_OPS_CUDA_COMMON_CUH
#define DI_OPS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/card/kernels.h"
#include "ops/fmath.h"

/* ---- formats ---------------------------------------------------------------------------------*/

__device__ __forceinline__ float bf16_value(dk_bf16 v) {
    return __uint_as_float((uint32_t)v << 16);
}

__device__ __forceinline__ dk_bf16 to_bf16(float x) {
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (dk_bf16)(u >> 16 | 0x40);
    }
    return (dk_bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

__device__ __forceinline__ float round_bf16(float x) {
    return bf16_value(to_bf16(x));
}

__device__ __forceinline__ float e8m0_value(uint32_t byte) {
    uint32_t u = byte == 255 ? 0x7fc00000u : byte ? byte << 23 : 0x00400000u;
    return __uint_as_float(u);
}

__device__ __forceinline__ float e4m3_value(uint32_t byte) {
    uint32_t magnitude = byte & 0x7f;
    float v = __uint_as_float(magnitude << 20) * 0x1p120f;
    v = magnitude == 0x7f ? __uint_as_float(0x7fc00000u) : v;
    return __uint_as_float(__float_as_uint(v) | (byte & 0x80) << 24);
}

__device__ __forceinline__ uint32_t to_e4m3(float x) {
    uint32_t u = __float_as_uint(x), sign = u >> 24 & 0x80;
    float a = fabsf(x);
    if (!(a < 448.0f)) {
        return isnan(x) ? 0x7f : sign | 0x7e;
    }
    if (a < 0x1p-6f) {
        return sign | (__float_as_uint(a + 0x1.8p14f) & 0xff);
    }
    u = __float_as_uint(a);
    u += 0x7ffff + (u >> 20 & 1);
    return sign | ((u >> 20) - ((127 - 7) << 3));
}

__device__ __forceinline__ uint32_t to_e2m1(float x) {
    float a = fabsf(x);
    uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                    (a >= 3.5f) + (a > 5.0f);
    return (__float_as_uint(x) >> 28 & 8) | code;
}

__device__ __forceinline__ float e2m1_value(uint32_t code) {
    /* as bits of an f32: 2^-126 times the value, subnormal included */
    float v = __uint_as_float((code & 7) << 22) * 0x1p126f;
    return __uint_as_float(__float_as_uint(v) | (code & 8) << 28);
}

__device__ __forceinline__ uint32_t pow2_ceil_e8m0(float t) {
    uint32_t u = __float_as_uint(t);
    return ((u >> 23 & 255) + ((u & 0x7fffff) != 0)) & 255;
}

#define INV448 0x1.24924ap-9f
#define INV6   0x1.555556p-3f

__device__ __forceinline__ uint32_t q8_scale(float amax) {
    return pow2_ceil_e8m0(fmaxf(amax, 1e-4f) * INV448);
}

__device__ __forceinline__ uint32_t q4i_scale(float amax) {
    return pow2_ceil_e8m0(fmaxf(amax, 6 * 0x1p-126f) * INV6);
}

__device__ __forceinline__ uint32_t q4k_scale(float amax) {
    return to_e4m3(fmaxf(amax, 6 * 0x1p-9f) / 6.0f);
}

/* Magnitude of a BF16 for amax: a NaN does not count. */
__device__ __forceinline__ uint32_t magnitude_bits(dk_bf16 v) {
    uint32_t m = v & 0x7fff;
    return m > 0x7f80 ? 0 : m;
}

/* Largest of the `lanes` neighbouring lanes (a power of two). */
__device__ __forceinline__ uint32_t group_max(uint32_t v, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
        v = max(v, __shfl_xor_sync(0xffffffffu, v, step));
    }
    return v;
}

/* Q8 there and back for one value of a group of 32 lanes. */
__device__ __forceinline__ float q8_round_trip(dk_bf16 v) {
    float amax = bf16_value((dk_bf16)group_max(magnitude_bits(v), 32));
    uint32_t byte = q8_scale(amax);
    float inverse = __uint_as_float((byte < 254 ? 254 - byte : 0) << 23);
    return e4m3_value(to_e4m3(bf16_value(v) * inverse)) * e8m0_value(byte);
}

/* Q8 there and back for two values whose scale is `scale`, 1 / scale inverse: two BF16. What comes
 * out is a BF16 value as it stands, so that its upper half is cut off. */
__device__ __forceinline__ uint32_t q8_pair(float low, float high, float inverse, float scale) {
    uint16_t codes;
    uint32_t halves;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(high * inverse), "f"(low * inverse));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    float2 v = __half22float2(*(__half2 *)&halves);
    return __byte_perm(__float_as_uint(v.x * scale), __float_as_uint(v.y * scale), 0x7632);
}

/* Q8 of a group whose largest magnitude is `amax` (bits of a BF16). */
struct q8_factors {
    float inverse, scale;
};

__device__ __forceinline__ q8_factors q8_factors_of(uint32_t amax) {
    uint32_t byte = q8_scale(bf16_value((dk_bf16)amax));
    return {__uint_as_float((byte < 254 ? 254 - byte : 0) << 23), e8m0_value(byte)};
}

/* The same for 8 values of a thread, a group being four lanes. */
__device__ __forceinline__ uint4 q8_piece(uint4 v) {
    uint32_t w[4] = {v.x, v.y, v.z, v.w}, most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        most = max(most, magnitude_bits((dk_bf16)w[i]));
        most = max(most, magnitude_bits((dk_bf16)(w[i] >> 16)));
    }
    q8_factors f = q8_factors_of(group_max(most, 4));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = q8_pair(__uint_as_float(w[i] << 16), __uint_as_float(w[i] & 0xffff0000u), f.inverse,
                       f.scale);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* ---- codes to BF16, two at a time --------------------------------------------------------------
 *
 * Codes moved to their places in a BF16 read 2^-120 (E4M3) or 2^-126 (E2M1) times their value,
 * subnormals included; the product with a power of two is exact. NaN codes of E4M3 are looked for
 * apart. */

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t twice(uint32_t half) {
    return half | half << 16;
}

/* Bytes 0 and 2, and 1 and 3. */
__device__ __forceinline__ void fp8_pairs(uint32_t w, uint32_t *even, uint32_t *odd) {
    *even = (w << 8 & 0x80008000u) | (w << 4 & 0x07f007f0u);
    *odd = (w & 0x80008000u) | (w >> 4 & 0x07f007f0u);
}

/* Nibbles j and j + 4, j = 0..3. */
__device__ __forceinline__ void fp4_pairs(uint32_t w, uint32_t p[4]) {
    p[0] = (w << 12 & 0x80008000u) | (w << 6 & 0x01c001c0u);
    p[1] = (w << 8 & 0x80008000u) | (w << 2 & 0x01c001c0u);
    p[2] = (w << 4 & 0x80008000u) | (w >> 2 & 0x01c001c0u);
    p[3] = (w & 0x80008000u) | (w >> 6 & 0x01c001c0u);
}

/* Does not vanish under 0x80808080 if one of four E4M3 codes is a NaN. */
__device__ __forceinline__ uint32_t fp8_nans(uint32_t w) {
    return (w & 0x7f7f7f7fu) + 0x01010101u;
}

__device__ __forceinline__ uint32_t e8m0_bf16(uint32_t byte) {
    return byte == 255 ? 0x7fc0u : byte ? byte << 7 : 0x0040u;
}

/* A power-of-two scale and the formats' own factor (2^bias) as one or two BF16 factors: one is
 * enough unless it would be out of range. */
struct scale_pair {
    uint32_t first, second;
    bool both;
};

__device__ __forceinline__ scale_pair make_scale(uint32_t byte, uint32_t bias) {
    scale_pair s;
    s.both = byte == 0 || byte + bias > 254;
    s.first = twice((s.both ? bias + 127 : byte + bias) << 7);
    s.second = twice(e8m0_bf16(byte));
    return s;
}

/* ---- prepared activations ----------------------------------------------------------------------
 *
 * The place of value `at` of a row among `rows` prepared ones: planes of 64 values, [plane][row],
 * and the 8 pieces of 16 bytes of a plane's row exchanged by row % 8. That is the order in which
 * tensor cores read shared memory ("128-byte swizzle"), so rows are brought there by plain copies;
 * a tile of rows begins at a multiple of 8. */
__device__ __forceinline__ size_t prepared_at(size_t rows, int row, int at) {
    return ((size_t)(at / DK_CHUNK) * rows + row) * DK_CHUNK +
           ((at % 64 / 8 ^ row & 7) * 8 + at % 8);
}

/* ---- functions --------------------------------------------------------------------------------*/

/* t = bf16(weight * (silu(a) * b)), a and b clamped first if limit > 0. NaNs stay. */
__device__ __forceinline__ dk_bf16 swiglu(float a, float b, float weight, float limit) {
    float top = limit > 0 ? limit : INFINITY;
    a = a > top ? top : a;
    b = b > top ? top : b;
    b = b < -top ? -top : b;
    return to_bf16(weight * (di_siluf(a) * b));
}

/* ---- reductions ------------------------------------------------------------------------------*/

__device__ __forceinline__ double warp_sum(double v) {
    for (int step = 16; step > 0; step /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, step);
    }
    return v;
}

/* Sum over a block of at most 1024 threads, the same in every thread: lanes as a tree, then warps
 * ascending. scratch: 32 doubles of shared memory. */
__device__ __forceinline__ double block_sum(double v, double *scratch) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = v;
    }
    __syncthreads();
    double sum = scratch[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) {
        sum += scratch[w];
    }
    return sum;
}

/* ---- tensor cores ----------------------------------------------------------------------------*/

/* c[16 x 8] += a[16 x 16] b[16 x 8]. With g = lane / 4, t = lane % 4: a[0], a[2] hold row g and
 * a[1], a[3] row g + 8, at k = 2t, 2t + 1 (a[0], a[1]) and 8 more; b0, b1 the same k of column g;
 * c[0], c[1] are row g, columns 2t, 2t + 1, and c[2], c[3] row g + 8. */
__device__ __forceinline__ void mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0,
                                            uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* An 8 x 8 matrix of BF16 pairs as that leaves them (rows g, columns 2t), and the one of rows g +
 * 8, to shared memory [column][16 rows]. */
__device__ __forceinline__ void store_turned(uint32_t to, uint32_t first, uint32_t second) {
    uint32_t row = to + threadIdx.x % 8 * 32 + threadIdx.x / 8 % 2 * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row),
                 "r"(first), "r"(second)
                 : "memory");
}

/* The compiler keeps it in a register, rather than make it anew wherever it is used. */
template <class T> __device__ __forceinline__ void keep(T &value) {
    asm volatile("" : "+r"(value));
}

__device__ __forceinline__ uint4 load_shared(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ float4 load_shared_floats(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t to, const float (&v)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]),
                 "f"(v[2]), "f"(v[3])
                 : "memory");
}

__device__ __forceinline__ uint32_t load_shared_half(uint32_t from) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t load_shared_word(uint32_t from) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

/* Both rounded as to_bf16 does it (a NaN comes out as 0x7fff). */
__device__ __forceinline__ uint32_t bf16x2_of(float low, float high) {
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

/* A byte that is needed much later: the load stays where it is written. */
__device__ __forceinline__ uint32_t load_byte_now(const uint8_t *p) {
    uint32_t v;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

/* 16 bytes that are read once: past the first cache. */
__device__ __forceinline__ uint4 load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

#endif
