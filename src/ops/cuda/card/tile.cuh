/* The product of many rows, for prefill (linear.cu). A block makes a tile of 128 weight rows by COLS
 * activation rows. Weights travel to shared memory as stored; while the tensor cores work on one
 * chunk, the next is decoded there for all warps. What bounds it: all warps decode, load and
 * multiply in step, so that these add up (docs/cuda.md).
 *
 * Sums have the bits of product.cuh's: the same steps in the same order, slice by slice. */
#ifndef DI_OPS_CUDA_TILE_CUH
#define DI_OPS_CUDA_TILE_CUH

#include "product.cuh"

/* 16 warps, 4 by 4: each has 32 rows and a quarter of the columns. */
enum { TILE_ROWS = 128, TILE_THREADS = 512 };

/* The i-th 16 bytes of each thread of a quad lie together, so that no two threads of a warp ask the
 * same bank. */
template <int F, int COLS> struct tile_shared {
    enum { LOADS = operand<F>::LOADS, STAGES = F == DK_FP4 ? 3 : 4 };
    uint4 codes[STAGES][TILE_ROWS][4];
    uint4 x[STAGES][LOADS][COLS][4];
    uint4 decoded[2][LOADS][TILE_ROWS][4];
    const dk_bf16 *row[COLS]; /* prepared activation rows; any for those that are not used */
    uint32_t nan[TILE_ROWS];
};

/* Where the tile's weights come from: rows 0 .. 63 and 64 .. 127. */
struct tile_weights {
    const uint8_t *codes[2], *scale[2];
    int row0[2], last; /* rows behind `last` are read as `last` */
};

/* A thread's part of the weights: 16 bytes of a chunk in row threadIdx.x / 4. */
struct tile_part {
    const uint8_t *codes, *scale;
};

static __device__ __forceinline__ tile_part part_of(const dk_matrix &w, const tile_weights &from) {
    int half = threadIdx.x / 256;
    int row = min(from.row0[half] + (int)threadIdx.x / 4 % 64, from.last);
    return {from.codes[half] + (size_t)row * w.pitch + threadIdx.x % 4 * 16,
            from.scale[half] + (size_t)(row / w.scale_rows) * w.scale_pitch};
}

template <int F, int COLS>
__device__ __forceinline__ void fetch_tile(tile_shared<F, COLS> *s, const tile_part &p, int chunk,
                                           int chunks) {
    enum { LOADS = operand<F>::LOADS, UNITS = 4 * LOADS };
    if (chunk < chunks) {
        int stage = chunk % s->STAGES, at = threadIdx.x / 4, unit = threadIdx.x % 4;
        copy_16(&s->codes[stage][at][unit], p.codes + (size_t)chunk * DK_CHUNK_BYTES);
#pragma unroll
        for (int i = 0; i < (COLS * UNITS + TILE_THREADS - 1) / TILE_THREADS; i++) {
            int col = (threadIdx.x + i * TILE_THREADS) / UNITS, u = threadIdx.x % UNITS;
            if (col >= COLS) {
                break;
            }
            copy_16(&s->x[stage][u % LOADS][col][u / LOADS],
                    s->row[col] + (size_t)chunk * (UNITS * 8) + u * 8);
        }
    }
    close_copies();
}

template <int F>
__device__ __forceinline__ uint32_t tile_scale(const tile_part &p, int chunk, int chunks) {
    return F != DK_BF16 && chunk < chunks ? __ldg(p.scale + scale_byte<F>(chunk)) : 127;
}

/* Decodes what this thread has copied itself. */
template <int F, int COLS>
__device__ __forceinline__ void decode_tile(tile_shared<F, COLS> *s, int chunk, int chunks,
                                            uint32_t scale, uint32_t *nan) {
    enum { LOADS = operand<F>::LOADS };
    if (chunk < chunks) {
        int at = threadIdx.x / 4, t = threadIdx.x % 4;
        uint32_t words[4 * LOADS];
        decode<F>(s->codes[chunk % s->STAGES][at][t], scale, words, nan);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            s->decoded[chunk & 1][i][at][t] =
                make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        }
    }
}

/* One chunk: a warp has the tiles of 16 rows `warp % 4` and 4 more. */
template <int F, int COLS>
__device__ __forceinline__ void tile_step(const tile_shared<F, COLS> *s, int chunk,
                                          float (&acc)[2][COLS / 32][4]) {
    enum { LOADS = operand<F>::LOADS, NT = COLS / 32 };
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, stage = chunk % s->STAGES;
    int m0 = threadIdx.x / 32 % 4 * 16 + g, col0 = threadIdx.x / 128 * (COLS / 4) + g;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        uint4 x[NT], lo[2], hi[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            lo[m] = s->decoded[chunk & 1][i][m0 + m * 64][t];
            hi[m] = s->decoded[chunk & 1][i][m0 + m * 64 + 8][t];
        }
#pragma unroll
        for (int c = 0; c < NT; c++) {
            x[c] = s->x[stage][i][col0 + c * 8][t];
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t a0[4] = {lo[m].x, hi[m].x, lo[m].y, hi[m].y};
            uint32_t a1[4] = {lo[m].z, hi[m].z, lo[m].w, hi[m].w};
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

/* Row (of 128) and column (of COLS) of total[m][c][i]. */
__device__ __forceinline__ int tile_row(int m, int i) {
    return threadIdx.x / 32 % 4 * 16 + m * 64 + threadIdx.x % 32 / 4 + i / 2 * 8;
}

template <int COLS> __device__ __forceinline__ int tile_col(int c, int i) {
    return threadIdx.x / 128 * (COLS / 4) + c * 8 + threadIdx.x % 4 * 2 + i % 2;
}

/* A NaN code makes all of its row's sums NaN. */
template <int F, int COLS>
__device__ __forceinline__ void spread_nans(tile_shared<F, COLS> *s, uint32_t nan,
                                            float (&total)[2][COLS / 32][4]) {
    if (nan & 0x80808080u) {
        s->nan[threadIdx.x / 4] = 1;
    }
    __syncthreads();
    for (int m = 0; m < 2; m++) {
        for (int half = 0; half < 2; half++) {
            if (s->nan[tile_row(m, 2 * half)]) {
#pragma unroll
                for (int c = 0; c < COLS / 32; c++) {
                    total[m][c][2 * half] = total[m][c][2 * half + 1] =
                        __uint_as_float(0x7fc00000u);
                }
            }
        }
    }
}

/* The whole tile. s->row must be filled before, with a barrier behind. */
template <int F, int COLS>
__device__ __forceinline__ void tile_product(tile_shared<F, COLS> *s, const dk_matrix &w,
                                             const tile_weights &from,
                                             float (&total)[2][COLS / 32][4]) {
    enum { NT = COLS / 32, STAGES = tile_shared<F, COLS>::STAGES };
    uint32_t nan = 0, scale;
    tile_part p = part_of(w, from);
    if (threadIdx.x < TILE_ROWS) {
        s->nan[threadIdx.x] = 0;
    }
    for (int chunk = 0; chunk < STAGES - 1; chunk++) {
        fetch_tile(s, p, chunk, w.chunks);
    }
    scale = tile_scale<F>(p, 0, w.chunks);
    wait_copies<STAGES - 2>();
    decode_tile(s, 0, w.chunks, scale, &nan);
    scale = tile_scale<F>(p, 1, w.chunks);
    int chunk = 0;
    for (int slice = 0; slice < w.slices; slice++) {
        float acc[2][NT][4] = {};
        int end = min(chunk + w.slice_chunks, w.chunks);
        for (; chunk < end; chunk++) {
            wait_copies<STAGES - 3>(); /* the next chunk is here, too */
            __syncthreads();
            fetch_tile(s, p, chunk + STAGES - 1, w.chunks);
            decode_tile(s, chunk + 1, w.chunks, scale, &nan);
            scale = tile_scale<F>(p, chunk + 2, w.chunks);
            tile_step(s, chunk, acc);
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
        spread_nans(s, nan, total);
    }
}

#endif
