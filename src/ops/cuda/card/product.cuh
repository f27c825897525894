/* The product that reads weights once: what linear.cu and moe.cu share.
 *
 * A warp takes MT tiles of 16 weight rows, one slice of k, and up to 8 * NT activation rows. Thread
 * t of a quad reads 16 bytes of a chunk, which are the codes of several tensor-core steps at once:
 * the sum does not care which k a step calls its first, as long as weights and activations agree.
 * So activations are laid out beforehand (dk_prepare) in the order in which decoding yields codes,
 * and nothing is shuffled. What bounds it: reading the weights, as long as there are few rows.
 *
 * A row's sums depend on k and the weights' format alone: steps ascending within a slice, slices
 * ascending. Tiles, grid and company change nothing. */
#ifndef DI_OPS_CUDA_PRODUCT_CUH
#define DI_OPS_CUDA_PRODUCT_CUH

#include "common.cuh"

/* uint4 loads of activations that belong to 16 bytes of weights. */
template <int F> struct operand;
template <> struct operand<DK_BF16> {
    enum { LOADS = 1 };
};
template <> struct operand<DK_FP8> {
    enum { LOADS = 2 };
};
template <> struct operand<DK_FP4> {
    enum { LOADS = 4 };
};

/* 16 bytes of codes of one row -> 4 * LOADS words of two BF16 values. nan collects E4M3 NaNs. */
template <int F>
__device__ __forceinline__ void decode(uint4 codes, uint32_t scale_byte, uint32_t *out,
                                       uint32_t *nan) {
    uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
    if (F == DK_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = w[i];
        }
        return;
    }
    scale_pair s = make_scale(scale_byte, F == DK_FP8 ? 120 : 126);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (F == DK_FP8) {
            fp8_pairs(w[i], &out[2 * i], &out[2 * i + 1]);
            *nan |= fp8_nans(w[i]);
        } else {
            fp4_pairs(w[i], out + 4 * i);
        }
    }
    constexpr int words = F == DK_BF16 ? 4 : F == DK_FP8 ? 8 : 16;
#pragma unroll
    for (int i = 0; i < words; i++) {
        out[i] = mul_bf16x2(out[i], s.first);
    }
    if (s.both) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            out[i] = mul_bf16x2(out[i], s.second);
        }
    }
}

/* The two rows (g and g + 8) of a tile that a thread reads: where its 16 bytes of the first chunk
 * and the row's scales (or its 32 rows') lie. Rows behind a matrix's last one are there, as zeros.
 */
struct weight_rows {
    const uint8_t *codes, *scale; /* of the matrix */
    uint32_t code_at[2], scale_at[2];
};

__device__ __forceinline__ weight_rows rows_of(const dk_matrix &w, const uint8_t *codes,
                                               const uint8_t *scale, int row0) {
    weight_rows r = {codes, scale};
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + lane / 4 + 8 * half;
        r.code_at[half] = (uint32_t)row * (uint32_t)w.pitch + lane % 4 * 16;
        r.scale_at[half] =
            (uint32_t)(w.scale_rows == 1 ? row : row / w.scale_rows) * (uint32_t)w.scale_pitch;
    }
    return r;
}

/* ---- the queue of weights on their way ---------------------------------------------------------
 *
 * Each thread copies its own 16 bytes of a chunk to shared
 * memory a stage (some chunks) ahead and reads them back itself: a queue of its own, without
 * barriers, that keeps enough reads under way whatever the registers hold. */

template <int MT> struct queue {
    enum { STAGES = 2, CHUNKS = MT == 1 ? 4 : MT == 2 ? 2 : 1 };
    struct stage {
        uint4 codes[CHUNKS][MT][2][32];
    };
    stage stages[STAGES];
};

__device__ __forceinline__ void copy_16(void *to, const void *from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void close_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most `left` of the closed groups are under way. */
template <int LEFT> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Byte of a row's scales that the thread's codes of a chunk have. */
template <int F> __device__ __forceinline__ int scale_byte(int chunk) {
    int t = threadIdx.x % 4;
    return F == DK_FP8 ? chunk * 2 + t / 2 : chunk * 4 + t;
}

/* Chunks first .. of a slice that ends at `end`. */
template <int F, int MT>
__device__ __forceinline__ void fetch(typename queue<MT>::stage *to, const weight_rows (&rows)[MT],
                                      int first, int end) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < queue<MT>::CHUNKS; u++) {
        int chunk = first + u;
#pragma unroll
        for (int m = 0; m < MT && chunk < end; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                copy_16(&to->codes[u][m][half][lane],
                        rows[m].codes + (rows[m].code_at[half] + (uint32_t)chunk * DK_CHUNK_BYTES));
            }
        }
    }
    close_copies();
}

/* Their scales, to registers: copying single bytes or words to shared memory is slow. */
template <int F, int MT>
__device__ __forceinline__ void load_scales(uint32_t (&scale)[queue<MT>::CHUNKS][MT][2],
                                            const weight_rows (&rows)[MT], int first, int end) {
#pragma unroll
    for (int u = 0; u < queue<MT>::CHUNKS; u++) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                scale[u][m][half] = 127;
                if (F != DK_BF16 && first + u < end) {
                    scale[u][m][half] = __ldg(rows[m].scale + (rows[m].scale_at[half] +
                                                               (uint32_t)scale_byte<F>(first + u)));
                }
            }
        }
    }
}

/* ---- the product -----------------------------------------------------------------------------*/

/* Prepared values of one chunk for every column tile. */
template <int F, int NT>
__device__ __forceinline__ void load_x(uint4 (&x)[NT][operand<F>::LOADS],
                                       const dk_bf16 *const (&b)[NT], int chunk) {
    enum { LOADS = operand<F>::LOADS };
#pragma unroll
    for (int c = 0; c < NT; c++) {
        const uint4 *from =
            (const uint4 *)(b[c] + (size_t)chunk * (LOADS * 32) + threadIdx.x % 4 * (LOADS * 8));
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            x[c][i] = b[c] ? __ldg(from + i) : make_uint4(0, 0, 0, 0);
        }
    }
}

/* acc += tiles . rows over chunks [begin, end). b[nt]: prepared row of this thread's column
 * (lane / 4) of column tile nt, or NULL for none. q: the warp's queue. */
template <int F, int MT, int NT>
__device__ __forceinline__ void slice_product(queue<MT> *q, const weight_rows (&rows)[MT],
                                              const dk_bf16 *const (&b)[NT], int begin, int end,
                                              float (&acc)[MT][NT][4]) {
    enum {
        LOADS = operand<F>::LOADS,
        STAGES = queue<MT>::STAGES,
        CHUNKS = queue<MT>::CHUNKS,
        AHEAD = NT == 1 ? CHUNKS : 1 /* chunks whose activations are loaded together */
    };
    const int lane = threadIdx.x % 32;
    uint32_t nan[MT][2];
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
        fetch<F, MT>(&q->stages[s], rows, begin + s * CHUNKS, end);
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        nan[m][0] = nan[m][1] = 0;
#pragma unroll
        for (int c = 0; c < NT; c++) {
            acc[m][c][0] = acc[m][c][1] = acc[m][c][2] = acc[m][c][3] = 0;
        }
    }
    int stage = 0;
    uint32_t scale[CHUNKS][MT][2], next_scale[CHUNKS][MT][2];
    load_scales<F, MT>(next_scale, rows, begin, end);
    for (int first = begin; first < end; first += CHUNKS) {
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                scale[u][m][0] = next_scale[u][m][0];
                scale[u][m][1] = next_scale[u][m][1];
            }
        }
        load_scales<F, MT>(next_scale, rows, first + CHUNKS, end);
        typename queue<MT>::stage *from = &q->stages[stage];
        uint4 x[AHEAD][NT][LOADS];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (first + u < end) {
                load_x<F, NT>(x[u], b, first + u);
            }
        }
        wait_copies<STAGES - 1>();
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) {
            int chunk = first + u;
            if (chunk >= end) {
                break;
            }
            if (AHEAD < CHUNKS && u > 0) {
                load_x<F, NT>(x[0], b, chunk);
            }
            uint4(&xu)[NT][LOADS] = x[AHEAD < CHUNKS ? 0 : u];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t lo[4 * LOADS], hi[4 * LOADS];
                decode<F>(from->codes[u][m][0][lane], scale[u][m][0], lo, &nan[m][0]);
                decode<F>(from->codes[u][m][1][lane], scale[u][m][1], hi, &nan[m][1]);
#pragma unroll
                for (int i = 0; i < LOADS; i++) {
                    uint32_t a0[4] = {lo[4 * i], hi[4 * i], lo[4 * i + 1], hi[4 * i + 1]};
                    uint32_t a1[4] = {lo[4 * i + 2], hi[4 * i + 2], lo[4 * i + 3], hi[4 * i + 3]};
#pragma unroll
                    for (int c = 0; c < NT; c++) {
                        mma_16x8x16(acc[m][c], a0, xu[c][i].x, xu[c][i].y);
                        mma_16x8x16(acc[m][c], a1, xu[c][i].z, xu[c][i].w);
                    }
                }
            }
        }
        fetch<F, MT>(from, rows, first + STAGES * CHUNKS, end);
        stage ^= 1;
    }
    if (F == DK_FP8) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t any = nan[m][half];
                any |= __shfl_xor_sync(0xffffffffu, any, 1);
                any |= __shfl_xor_sync(0xffffffffu, any, 2);
#pragma unroll
                for (int c = 0; c < NT && (any & 0x80808080u); c++) {
                    acc[m][c][2 * half] = acc[m][c][2 * half + 1] = __uint_as_float(0x7fc00000u);
                }
            }
        }
    }
}

/* Shared memory of a block: the queues first, then, when all have run dry, the slices' sums. */
template <int MT, int NT> static size_t product_bytes(int slices) {
    size_t queues = (size_t)slices * sizeof(queue<MT>);
    size_t sums = (size_t)slices * MT * 16 * (NT * 8 + 1) * sizeof(float);
    return queues > sums ? queues : sums;
}

/* One warp's sums to shared memory, [slices][MT * 16][NT * 8 + 1]. */
template <int MT, int NT>
__device__ __forceinline__ void put_slice(float (&acc)[MT][NT][4], float *shared, int slice,
                                          int slices) {
    enum { COLS = NT * 8 + 1 };
    __syncthreads(); /* the queues are dry */
    if (slice >= slices) {
        return;
    }
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *to = shared + (size_t)slice * MT * 16 * COLS;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int c = 0; c < NT; c++) {
            float *cell = to + (m * 16 + g) * COLS + c * 8 + 2 * t;
            cell[0] = acc[m][c][0];
            cell[1] = acc[m][c][1];
            cell[8 * COLS] = acc[m][c][2];
            cell[8 * COLS + 1] = acc[m][c][3];
        }
    }
}

/* The whole sum of one cell: slices ascending. */
template <int MT, int NT>
__device__ __forceinline__ float take_cell(const float *shared, int slices, int row, int col) {
    enum { COLS = NT * 8 + 1 };
    float sum = shared[row * COLS + col];
    for (int s = 1; s < slices; s++) {
        sum += shared[(size_t)s * MT * 16 * COLS + row * COLS + col];
    }
    return sum;
}

/* Where value v of a row stands among its neighbours in prepared activations. */
__device__ __forceinline__ int prepared_place(dk_format f, int v) {
    if (f == DK_FP8) {
        return (v & ~3) | (v & 1) << 1 | (v >> 1 & 1);
    }
    return f == DK_FP4 ? (v & ~7) | (v & 3) << 1 | (v >> 2 & 1) : v;
}

#endif
