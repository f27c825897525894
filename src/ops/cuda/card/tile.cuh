/* The product of many rows: what linear.cu and moe.cu use for prefill. A block makes a tile of 128
 * weight rows by COLS activation rows; weights travel to shared memory as stored and are decoded
 * again by every warp that needs them, which costs less than keeping them decoded would. Bound by
 * the tensor cores' rate of mma.sync.
 *
 * Sums have the bits of product.cuh's: the same steps in the same order, slice by slice. */
#ifndef DI_OPS_CUDA_TILE_CUH
#define DI_OPS_CUDA_TILE_CUH

#include "product.cuh"

enum { TILE_ROWS = 128, TILE_THREADS = 256, TILE_STAGES = 4 };

template <int F, int COLS> struct tile_stage {
    uint4 codes[TILE_ROWS][4];
    uint4 x[operand<F>::LOADS][COLS][4]; /* the i-th 16 bytes of each thread of a quad */
    uint32_t scale[TILE_ROWS];
};

template <int F, int COLS> struct tile_shared {
    tile_stage<F, COLS> stages[TILE_STAGES];
    const dk_bf16 *row[COLS]; /* prepared activation rows; any for those that are not used */
};

/* Where the tile's weights come from: rows 0 .. 63 and 64 .. 127. */
struct tile_weights {
    const uint8_t *codes[2], *scale[2];
    int row0[2], last; /* rows behind `last` are read as `last` */
};

template <int F, int COLS>
__device__ __forceinline__ void fetch_tile(tile_stage<F, COLS> *to, const dk_matrix &w,
                                           const tile_weights &from, const dk_bf16 *const *rows,
                                           int chunk) {
    enum { UNITS = 4 * operand<F>::LOADS };
    int unit = threadIdx.x % 4;
    if (chunk < w.chunks) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = threadIdx.x / 4, row = min(from.row0[half] + at, from.last);
            copy_16(&to->codes[half * 64 + at][unit],
                    from.codes[half] + (size_t)row * w.pitch + chunk * DK_CHUNK_BYTES + unit * 16);
        }
#pragma unroll
        for (int i = threadIdx.x; i < COLS * UNITS; i += TILE_THREADS) {
            int col = i / UNITS, u = i % UNITS, load = u % operand<F>::LOADS;
            copy_16(&to->x[load][col][u / operand<F>::LOADS],
                    rows[col] + (size_t)chunk * (UNITS * 8) + u * 8);
        }
        if (F != DK_BF16 && threadIdx.x < TILE_ROWS) {
            int half = threadIdx.x / 64;
            int row = min(from.row0[half] + (int)threadIdx.x % 64, from.last);
            int first = F == DK_FP8 ? chunk * 2 : chunk * 4;
            copy_4(&to->scale[threadIdx.x],
                   from.scale[half] + (size_t)(row / w.scale_rows) * w.scale_pitch + (first & ~3));
        }
    }
    close_copies();
}

/* One chunk: a warp has the tiles of 16 rows `warp % 4` and 4 more, and half of the columns. */
template <int F, int COLS>
__device__ __forceinline__ void tile_step(const tile_stage<F, COLS> *s, int chunk,
                                          float (&acc)[2][COLS / 16][4], uint32_t (&nan)[2][2]) {
    enum { LOADS = operand<F>::LOADS, NT = COLS / 16 };
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int m0 = threadIdx.x / 32 % 4 * 16, col0 = threadIdx.x / 128 * (COLS / 2);
    uint32_t lo[2][4 * LOADS], hi[2][4 * LOADS];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int row = m0 + m * 64 + g, shift = F == DK_BF16 ? 0 : (scale_byte<F>(chunk) & 3) * 8;
        uint32_t low = F == DK_BF16 ? 0 : s->scale[row] >> shift & 255;
        uint32_t high = F == DK_BF16 ? 0 : s->scale[row + 8] >> shift & 255;
        decode<F>(s->codes[row][t], low, lo[m], &nan[m][0]);
        decode<F>(s->codes[row + 8][t], high, hi[m], &nan[m][1]);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        uint4 x[NT];
#pragma unroll
        for (int c = 0; c < NT; c++) {
            x[c] = s->x[i][col0 + c * 8 + g][t];
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t a0[4] = {lo[m][4 * i], hi[m][4 * i], lo[m][4 * i + 1], hi[m][4 * i + 1]};
            uint32_t a1[4] = {lo[m][4 * i + 2], hi[m][4 * i + 2], lo[m][4 * i + 3],
                              hi[m][4 * i + 3]};
#pragma unroll
            for (int c = 0; c < NT; c++) {
                mma_16x8x16(acc[m][c], a0, x[c].x, x[c].y);
            }
#pragma unroll
            for (int c = 0; c < NT; c++) {
                mma_16x8x16(acc[m][c], a1, x[c].z, x[c].w);
            }
        }
    }
}

/* The whole tile. shared->row must be filled before, with a barrier behind. */
template <int F, int COLS>
__device__ __forceinline__ void tile_product(tile_shared<F, COLS> *shared, const dk_matrix &w,
                                             const tile_weights &from,
                                             float (&total)[2][COLS / 16][4]) {
    enum { NT = COLS / 16 };
    uint32_t nan[2][2] = {};
    for (int s = 0; s < TILE_STAGES - 1; s++) {
        fetch_tile<F, COLS>(&shared->stages[s], w, from, shared->row, s);
    }
    int chunk = 0;
    for (int slice = 0; slice < w.slices; slice++) {
        float acc[2][NT][4] = {};
        int end = min(chunk + w.slice_chunks, w.chunks);
        for (; chunk < end; chunk++) {
            wait_copies<TILE_STAGES - 2>();
            __syncthreads();
            fetch_tile<F, COLS>(&shared->stages[(chunk + TILE_STAGES - 1) % TILE_STAGES], w, from,
                                shared->row, chunk + TILE_STAGES - 1);
            tile_step<F, COLS>(&shared->stages[chunk % TILE_STAGES], chunk, acc, nan);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int c = 0; c < NT; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    total[m][c][i] = slice ? total[m][c][i] + acc[m][c][i] : acc[m][c][i];
                }
            }
        }
    }
    if (F == DK_FP8) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t any = nan[m][half];
                any |= __shfl_xor_sync(0xffffffffu, any, 1);
                any |= __shfl_xor_sync(0xffffffffu, any, 2);
#pragma unroll
                for (int c = 0; c < NT && (any & 0x80808080u); c++) {
                    total[m][c][2 * half] = total[m][c][2 * half + 1] =
                        __uint_as_float(0x7fc00000u);
                }
            }
        }
    }
}

/* Row (of 128) and column (of COLS) of total[m][c][i]. */
__device__ __forceinline__ int tile_row(int m, int i) {
    return threadIdx.x / 32 % 4 * 16 + m * 64 + threadIdx.x % 32 / 4 + i / 2 * 8;
}

template <int COLS> __device__ __forceinline__ int tile_col(int c, int i) {
    return threadIdx.x / 128 * (COLS / 2) + c * 8 + threadIdx.x % 4 * 2 + i % 2;
}

#endif
