/* The tensor-core step: 64 weight rows of four warps by N activation rows by 16 values.
 *
 * On sm_90a it is wgmma, with the weights in registers and the activations in shared memory. What
 * has no wgmma (sm_100a; any with -DDI_CUDA_NO_WGMMA) takes mma of single warps, eight rows at a
 * time. An element's sum has the same bits for every N and either way (tests/ops/test_cuda_bits.c).
 * The sum over a step's 16 products and the accumulator is the hardware's. */
#ifndef DI_OPS_CUDA_MMA_CUH
#define DI_OPS_CUDA_MMA_CUH

#include "common.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(DI_CUDA_NO_WGMMA)
#define DI_CUDA_WGMMA 1
#else
#define DI_CUDA_WGMMA 0
#endif

/* Activations of a chunk in shared memory: rows of 128 bytes, pieces exchanged (common.cuh),
 * 1024-byte aligned. acc[j]: columns 8 j ..; as mma_16x8x16's c in every warp. */

#if DI_CUDA_WGMMA

__device__ __forceinline__ void mma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void mma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most LEFT of the chunks are under way. */
template <int LEFT> __device__ __forceinline__ void mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Rows of a K-major operand in the 128-byte swizzle, groups of eight 1024 bytes apart: the lower
 * half of its descriptor; the upper one is the same for all. */
__device__ __forceinline__ uint32_t descriptor_of(uint32_t address) {
    return 1u << 16 | (address & 0x3ffff) >> 4;
}

/* acc[0 .. N / 8) (+)= a . rows; add: 0 forgets what acc held. */
template <int N>
__device__ __forceinline__ void wgmma(float (*acc)[4], const uint32_t (&a)[4], uint32_t b, int add);

template <>
__device__ __forceinline__ void wgmma<8>(float (*acc)[4], const uint32_t (&a)[4], uint32_t b,
                                         int add) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 d;\n\tsetp.ne.b32 p, %9, 0;\n\t"
                 "mov.b64 d, {%8, 0x40000040};\n\t"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{"
                 "%0, %1, %2, %3"
                 "}, "
                 "{%4, %5, %6, %7}, d, p, 1, 1, 0;\n\t}"
                 : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma<16>(float (*acc)[4], const uint32_t (&a)[4], uint32_t b,
                                          int add) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 d;\n\tsetp.ne.b32 p, %13, 0;\n\t"
                 "mov.b64 d, {%12, 0x40000040};\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, "
                 "{%8, %9, %10, %11}, d, p, 1, 1, 0;\n\t}"
                 : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
                   "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma<32>(float (*acc)[4], const uint32_t (&a)[4], uint32_t b,
                                          int add) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 d;\n\tsetp.ne.b32 p, %21, 0;\n\t"
                 "mov.b64 d, {%20, 0x40000040};\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, "
                 "{%16, %17, %18, %19}, d, p, 1, 1, 0;\n\t}"
                 : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
                   "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]),
                   "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
                   "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma<64>(float (*acc)[4], const uint32_t (&a)[4], uint32_t b,
                                          int add) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 d;\n\tsetp.ne.b32 p, %37, 0;\n\t"
                 "mov.b64 d, {%36, 0x40000040};\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
                 "%30, %31"
                 "}, "
                 "{%32, %33, %34, %35}, d, p, 1, 1, 0;\n\t}"
                 : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
                   "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]),
                   "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
                   "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]),
                   "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
                   "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
                   "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]),
                   "+f"(acc[7][0]), "+f"(acc[7][1]), "+f"(acc[7][2]), "+f"(acc[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

template <>
__device__ __forceinline__ void wgmma<128>(float (*acc)[4], const uint32_t (&a)[4], uint32_t b,
                                           int add) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b64 d;\n\tsetp.ne.b32 p, %69, 0;\n\t"
        "mov.b64 d, {%68, 0x40000040};\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
        "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
        "%58, %59, %60, %61, %62, %63"
        "}, "
        "{%64, %65, %66, %67}, d, p, 1, 1, 0;\n\t}"
        : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]),
          "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]),
          "+f"(acc[2][2]), "+f"(acc[2][3]), "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]),
          "+f"(acc[3][3]), "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
          "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]), "+f"(acc[6][0]),
          "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]), "+f"(acc[7][0]), "+f"(acc[7][1]),
          "+f"(acc[7][2]), "+f"(acc[7][3]), "+f"(acc[8][0]), "+f"(acc[8][1]), "+f"(acc[8][2]),
          "+f"(acc[8][3]), "+f"(acc[9][0]), "+f"(acc[9][1]), "+f"(acc[9][2]), "+f"(acc[9][3]),
          "+f"(acc[10][0]), "+f"(acc[10][1]), "+f"(acc[10][2]), "+f"(acc[10][3]), "+f"(acc[11][0]),
          "+f"(acc[11][1]), "+f"(acc[11][2]), "+f"(acc[11][3]), "+f"(acc[12][0]), "+f"(acc[12][1]),
          "+f"(acc[12][2]), "+f"(acc[12][3]), "+f"(acc[13][0]), "+f"(acc[13][1]), "+f"(acc[13][2]),
          "+f"(acc[13][3]), "+f"(acc[14][0]), "+f"(acc[14][1]), "+f"(acc[14][2]), "+f"(acc[14][3]),
          "+f"(acc[15][0]), "+f"(acc[15][1]), "+f"(acc[15][2]), "+f"(acc[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}

/* All N columns, in pieces that the instruction has. */
template <int N>
__device__ __forceinline__ void wgmma_columns(float (*acc)[4], const uint32_t (&a)[4], uint32_t b,
                                              int add) {
    constexpr int piece = N >= 128 ? 128 : N >= 64 ? 64 : N >= 32 ? 32 : N >= 16 ? 16 : 8;
    wgmma<piece>(acc, a, b, add);
    if constexpr (N > piece) {
        wgmma_columns<N - piece>(acc + piece / 8, a, b + piece * 128 / 16, add);
    }
}

/* One chunk: four steps. */
template <int N>
__device__ __forceinline__ void mma_chunk(float (&acc)[N / 8][4], const uint32_t (&a)[4][4],
                                          uint32_t b, bool first) {
    mma_begin();
#pragma unroll
    for (int step = 0; step < 4; step++) {
        wgmma_columns<N>(acc, a[step], b + step * 2, step > 0 || !first);
    }
    mma_commit();
}

#else

/* Here a descriptor is an address in units of 16 bytes. */
__device__ __forceinline__ uint32_t descriptor_of(uint32_t address) {
    return address >> 4;
}

__device__ __forceinline__ void mma_begin() {}
__device__ __forceinline__ void mma_commit() {}
template <int LEFT> __device__ __forceinline__ void mma_wait() {}

template <int N>
__device__ __forceinline__ void mma_chunk(float (&acc)[N / 8][4], const uint32_t (&a)[4][4],
                                          uint32_t at, bool first) {
    uint32_t rows = at << 4;
    int lane = threadIdx.x % 32, row = lane % 8, piece = lane / 8;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        if (first) {
            acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        }
#pragma unroll
        for (int step = 0; step < 4; step += 2) {
            uint32_t b[4];
            uint32_t from = rows + j * 1024 + row * 128 + ((step * 2 + piece) ^ row) * 16;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(from)
                         : "memory");
            mma_16x8x16(acc[j], a[step], b[0], b[1]);
            mma_16x8x16(acc[j], a[step + 1], b[2], b[3]);
        }
    }
}

#endif

#endif
