/* The tensor-core step: 64 weight rows of four warps by N activation rows by 16 values.
 *
 * On sm_90a it is wgmma, with the weights in registers and the activations in shared memory. What
 * has no wgmma (sm_100a; any with -DDI_CUDA_NO_WGMMA) takes mma of single warps, eight rows at a
 * time. An element's sum has the same bits for every N and either way (tests/ops/test_cuda_bits.c).
 * The sum over a step's 16 products and the accumulator is the hardware's. */
#ifndef DI_OPS_CUDA_MMA_CUH
#define DI_OPS_CUDA_MMA_CUH

#include "ops/cuda/card/common.cuh"

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

/* All of it, the same in every lane as far as the compiler can see: it stays in uniform registers,
 * and its steps cost nothing that lanes have to do. */
__device__ __forceinline__ uint64_t whole_descriptor(uint32_t low, uint32_t high) {
    return (uint64_t)high << 32 | __shfl_sync(0xffffffffu, low, 0);
}

/* acc[0 .. N / 8) (+)= a . rows; add: 0 forgets what acc held. */
template <int N>
__device__ __forceinline__ void wgmma(float (*acc)[4], const uint32_t (&a)[4], uint64_t b, int add);

/* Operands of 16 columns: %0 .. %7 are the first. */
#define MMA_REGS_0     "%0, %1, %2, %3, %4, %5, %6, %7"
#define MMA_REGS_1     ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MMA_REGS_2     ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MMA_REGS_3     ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MMA_REGS_4     ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MMA_REGS_5     ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MMA_REGS_6     ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MMA_REGS_7     ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MMA_REGS_8     ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MMA_REGS_9     ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MMA_REGS_10    ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MMA_REGS_11    ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MMA_SUMS_1(i)  "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3])
#define MMA_SUMS_2(i)  MMA_SUMS_1(i), MMA_SUMS_1((i) + 1)
#define MMA_SUMS_4(i)  MMA_SUMS_2(i), MMA_SUMS_2((i) + 2)
#define MMA_SUMS_8(i)  MMA_SUMS_4(i), MMA_SUMS_4((i) + 4)
#define MMA_SUMS_16(i) MMA_SUMS_8(i), MMA_SUMS_8((i) + 8)

/* A, B, P: names of the operands behind the sums: the weights, the descriptor, whether to add. */
#define MMA_COLUMNS(N, REGS, A, B, P, ...)                                                         \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma<N>(float(*acc)[4], const uint32_t(&a)[4], uint64_t b,    \
                                             int add) {                                            \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " P ", 0;\n\t"                          \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "                   \
                     "{" REGS "}, {" A "}, " B ", p, 1, 1, 0;\n\t}"                                \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }

MMA_COLUMNS(8, "%0, %1, %2, %3", "%4, %5, %6, %7", "%8", "%9", MMA_SUMS_1(0))
MMA_COLUMNS(16, MMA_REGS_0, "%8, %9, %10, %11", "%12", "%13", MMA_SUMS_2(0))
MMA_COLUMNS(32, MMA_REGS_0 MMA_REGS_1, "%16, %17, %18, %19", "%20", "%21", MMA_SUMS_4(0))
MMA_COLUMNS(64, MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3, "%32, %33, %34, %35", "%36", "%37",
            MMA_SUMS_8(0))
MMA_COLUMNS(96, MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3 MMA_REGS_4 MMA_REGS_5,
            "%48, %49, %50, %51", "%52", "%53", MMA_SUMS_8(0), MMA_SUMS_4(8))
MMA_COLUMNS(112, MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3 MMA_REGS_4 MMA_REGS_5 MMA_REGS_6,
            "%56, %57, %58, %59", "%60", "%61", MMA_SUMS_8(0), MMA_SUMS_4(8), MMA_SUMS_2(12))
MMA_COLUMNS(128,
            MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3 MMA_REGS_4 MMA_REGS_5 MMA_REGS_6 MMA_REGS_7,
            "%64, %65, %66, %67", "%68", "%69", MMA_SUMS_16(0))
MMA_COLUMNS(144,
            MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3 MMA_REGS_4 MMA_REGS_5 MMA_REGS_6 MMA_REGS_7
                MMA_REGS_8,
            "%72, %73, %74, %75", "%76", "%77", MMA_SUMS_16(0), MMA_SUMS_2(16))
MMA_COLUMNS(160,
            MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3 MMA_REGS_4 MMA_REGS_5 MMA_REGS_6 MMA_REGS_7
                MMA_REGS_8 MMA_REGS_9,
            "%80, %81, %82, %83", "%84", "%85", MMA_SUMS_16(0), MMA_SUMS_4(16))
MMA_COLUMNS(192,
            MMA_REGS_0 MMA_REGS_1 MMA_REGS_2 MMA_REGS_3 MMA_REGS_4 MMA_REGS_5 MMA_REGS_6 MMA_REGS_7
                MMA_REGS_8 MMA_REGS_9 MMA_REGS_10 MMA_REGS_11,
            "%96, %97, %98, %99", "%100", "%101", MMA_SUMS_16(0), MMA_SUMS_8(16))

/* 8 columns whose pieces of 8 values are not exchanged; step: from one piece to the next. */
__device__ __forceinline__ uint32_t own_descriptor_of(uint32_t address, int step) {
    return (uint32_t)step << 16 | (address & 0x3ffff) >> 4;
}

__device__ __forceinline__ void wgmma_own(float (*acc)[4], const uint32_t (&a)[4], uint64_t b,
                                          int add) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %9, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n\t}"
                 : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* One chunk of up to 8 columns: its pieces of 16 bytes stand `step` apart, rows side by side. What
 * stands behind the last row is multiplied too, and nobody looks at it. */
__device__ __forceinline__ void mma_own_chunk(float (&acc)[1][4], const uint32_t (&a)[4][4],
                                              uint32_t b, int step, bool first) {
    uint64_t rows = whole_descriptor(b, 8);
    mma_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        wgmma_own(acc, a[i], rows + i * 2 * step, i > 0 || !first);
    }
    mma_commit();
}

/* All N columns, in pieces that the instruction has. */
template <int N>
__device__ __forceinline__ void wgmma_columns(float (*acc)[4], const uint32_t (&a)[4], uint64_t b,
                                              int add) {
    constexpr int piece = N > 192 ? 128 : N; /* 256 are two of 128 */
    wgmma<piece>(acc, a, b, add);
    if constexpr (N > piece) {
        wgmma_columns<N - piece>(acc + piece / 8, a, b + piece * 128 / 16, add);
    }
}

/* Where a chunk's activations lie. Made before the weights are decoded, as it takes its time; the
 * next chunk of N rows is N * 8 further on. */
typedef uint64_t chunk_rows;

__device__ __forceinline__ chunk_rows chunk_rows_at(uint32_t descriptor) {
    return whole_descriptor(descriptor, 0x40000040);
}

/* One chunk: four steps. */
template <int N>
__device__ __forceinline__ void mma_chunk(float (&acc)[N / 8][4], const uint32_t (&a)[4][4],
                                          chunk_rows rows, bool first) {
    mma_begin();
#pragma unroll
    for (int step = 0; step < 4; step++) {
        wgmma_columns<N>(acc, a[step], rows + step * 2, step > 0 || !first);
    }
    mma_commit();
}

#else

/* Here a descriptor is an address in units of 16 bytes. */
__device__ __forceinline__ uint32_t descriptor_of(uint32_t address) {
    return address >> 4;
}

__device__ __forceinline__ uint32_t own_descriptor_of(uint32_t address, int) {
    return address >> 4;
}

__device__ __forceinline__ void mma_begin() {}
__device__ __forceinline__ void mma_commit() {}
template <int LEFT> __device__ __forceinline__ void mma_wait() {}

typedef uint32_t chunk_rows;

__device__ __forceinline__ chunk_rows chunk_rows_at(uint32_t descriptor) {
    return descriptor;
}

template <int N>
__device__ __forceinline__ void mma_chunk(float (&acc)[N / 8][4], const uint32_t (&a)[4][4],
                                          chunk_rows at, bool first) {
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

__device__ __forceinline__ void mma_own_chunk(float (&acc)[1][4], const uint32_t (&a)[4][4],
                                              uint32_t at, int piece_step, bool first) {
    int lane = threadIdx.x % 32, row = lane % 8, piece = lane / 8;
    if (first) {
        acc[0][0] = acc[0][1] = acc[0][2] = acc[0][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < 4; step += 2) {
        uint32_t b[4], from = (at + (step * 2 + piece) * piece_step + row) << 4;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(from)
                     : "memory");
        mma_16x8x16(acc[0], a[step], b[0], b[1]);
        mma_16x8x16(acc[0], a[step + 1], b[2], b[3]);
    }
}

#endif

#endif
