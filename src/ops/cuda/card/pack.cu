/* Weights from the order of a checkpoint to that of codes.cuh, once, behind their upload: [rows,
 * k] codes and their scales to tiles of 64 rows, chunks of 64 values, with the values as they
 * are. It runs when a model is opened; what bounds it has not been measured. */
#include "ops/cuda/card/codes.cuh"

struct pack_call {
    dk_matrix w;
    int first, rows; /* tile that the rows begin with; whole rows */
    const uint8_t *codes, *scale;
};

/* Code `at` of a row, 0 outside. */
template <int F>
static __device__ __forceinline__ uint32_t code_of(const pack_call &c, int row, int at) {
    if (row >= c.rows || at >= c.w.k) {
        return 0;
    }
    size_t i = (size_t)row * c.w.k + at;
    if (F == DK_BF16) {
        return ((const uint16_t *)c.codes)[i];
    }
    return F == DK_FP8 ? c.codes[i] : c.codes[i / 2] >> 4 * (i % 2) & 15;
}

/* Scale of a row's block of 32 values, 1 outside. */
template <int F>
static __device__ __forceinline__ uint32_t scale_of(const pack_call &c, int row, int block) {
    if (row >= c.rows || block * 32 >= c.w.k) {
        return 127;
    }
    return c.scale[(size_t)(F == DK_FP8 ? row / 32 : row) * (c.w.k / 32) + block];
}

/* Value of a step's slot 0 .. 3 that thread t has. */
static __device__ __forceinline__ int slot_value(int step, int t, int slot) {
    return step * 16 + 2 * t + slot % 2 + slot / 2 * 8;
}

/* Words of rows g (half 0) and g + 8. */
template <int F>
static __device__ __forceinline__ void pack_row(const pack_call &c, uint8_t *to, int row, int k0,
                                                int half) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    uint32_t *words = (uint32_t *)to;
    for (int step = 0; step < 4; step++) {
        uint32_t code[4];
        for (int slot = 0; slot < 4; slot++) {
            code[slot] = code_of<F>(c, row, k0 + slot_value(step, t, slot));
        }
        if (F == DK_BF16) {
            uint32_t *at = words + (((step / 2 * 2 + half) * 4 + warp) * 32 + lane) * 4;
            at[step % 2 * 2] = code[0] | code[1] << 16;
            at[step % 2 * 2 + 1] = code[2] | code[3] << 16;
        } else if (F == DK_FP8) {
            words[((half * 4 + warp) * 32 + lane) * 4 + step] =
                fp8_word(code[0], code[1], code[2], code[3]);
            for (int i = 0; i < 4; i++) {
                if ((code[i] & 0x7f) == 0x7f) {
                    uint8_t *nan = (uint8_t *)c.w.data + (size_t)c.w.tiles * dk_tile_bytes(&c.w);
                    nan[(size_t)c.first * DK_TILE_ROWS + row] = 1;
                }
            }
        } else if (step % 2 == 0) {
            uint32_t low[4], high[4]; /* of the four pairs of two steps */
            for (int i = 0; i < 4; i++) {
                low[i] = code_of<F>(c, row, k0 + slot_value(step + i / 2, t, i % 2 * 2));
                high[i] = code_of<F>(c, row, k0 + slot_value(step + i / 2, t, i % 2 * 2 + 1));
            }
            words[(warp * 32 + lane) * 4 + half * 2 + step / 2] = fp4_half(low) | fp4_half(high)
                                                                                      << 16;
        }
    }
}

/* Grid: chunks, tiles. */
template <int F> static __global__ void __launch_bounds__(128) pack(pack_call c) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, k0 = blockIdx.x * DK_CHUNK;
    uint8_t *to = (uint8_t *)c.w.data + (size_t)(c.first + blockIdx.y) * dk_tile_bytes(&c.w) +
                  (size_t)blockIdx.x * dk_chunk_bytes((dk_format)F);
    for (int half = 0; half < 2; half++) {
        int row = blockIdx.y * DK_TILE_ROWS + warp * 16 + g + 8 * half;
        pack_row<F>(c, to, row, k0, half);
        for (int i = 0; i < 2 && F != DK_BF16; i++) {
            uint8_t scale = (uint8_t)scale_of<F>(c, row, k0 / 32 + i);
            if (raw_codes<F>::wide(scale)) {
                *((uint8_t *)c.w.data + dk_matrix_wide(&c.w)) = 1;
            }
            if (F == DK_FP8 && lane == 0 && half == 0) {
                to[CODES_FP8_SCALES + warp * 2 + i] = scale;
            } else if (F == DK_FP4 && lane % 4 == 0) {
                to[CODES_FP4_SCALES + (warp * 8 + g) * 4 + half * 2 + i] = scale;
            }
        }
    }
}

void dk_pack(cudaStream_t s, const dk_matrix *w, int first, int rows, const uint8_t *codes,
             const uint8_t *scale) {
    pack_call c = {*w, first, rows, codes, scale};
    dim3 grid(w->chunks, (rows + DK_TILE_ROWS - 1) / DK_TILE_ROWS);
    if (w->format == DK_BF16) {
        pack<DK_BF16><<<grid, 128, 0, s>>>(c);
    } else if (w->format == DK_FP8) {
        pack<DK_FP8><<<grid, 128, 0, s>>>(c);
    } else {
        pack<DK_FP4><<<grid, 128, 0, s>>>(c);
    }
}
