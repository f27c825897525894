/* Products of activations with stored weights: preparing the activations, and the product itself.
 * product.cuh has the inner loop for few rows and says why it looks as it does, tile.cuh that for
 * many. */
#include "tile.cuh"

/* ---- activations -----------------------------------------------------------------------------*/

/* A warp takes 32 values of one row. */
static __global__ void prepare(const dk_bf16 *x, int n, int groups, int k, int kp, dk_format format,
                               bool quantise, dk_bf16 *out) {
    int blocks = kp / 32, lane = threadIdx.x % 32;
    long long task = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (task >= (long long)n * groups * blocks) {
        return;
    }
    int block = (int)(task % blocks);
    long long row = task / blocks; /* t * groups + g */
    int at = block * 32 + lane;
    dk_bf16 v = at < k ? x[row * k + at] : 0;
    if (quantise) {
        v = to_bf16(q8_round_trip(v));
    }
    long long to = (row % groups) * n + row / groups;
    out[to * kp + prepared_place(format, at)] = v;
}

void dk_prepare(cudaStream_t s, const dk_bf16 *x, int n, int groups, int k, int kp,
                dk_format format, bool quantise, dk_bf16 *out) {
    long long warps = (long long)n * groups * (kp / 32);
    prepare<<<(unsigned)((warps + 7) / 8), 256, 0, s>>>(x, n, groups, k, kp, format, quantise, out);
}

/* ---- the product -----------------------------------------------------------------------------*/

struct linear_call {
    dk_matrix w;
    const dk_bf16 *x; /* prepared, [groups, n, kp] */
    int n, m, groups; /* m: rows of a group */
    dk_result y;
};

static __device__ __forceinline__ void put(const linear_call &c, int row, int col, float sum) {
    size_t to = (size_t)col * c.y.ldy + row;
    if (c.y.yf) {
        c.y.yf[to] = c.y.add ? c.y.yf[to] + sum : sum;
    } else {
        c.y.yb[to] = to_bf16(sum);
    }
}

/* Grid: tiles of weight rows, tiles of activation rows, groups. Warps: slices. */
template <int F, int MT, int NT>
static __global__ void __launch_bounds__(256, NT == 1 ? 3 : 1) few_rows(linear_call c) {
    extern __shared__ __align__(16) float shared[];
    int slice = threadIdx.x / 32, g = threadIdx.x % 32 / 4, group = blockIdx.z;
    int row0 = group * c.m + blockIdx.x * MT * 16, last = group * c.m + c.m - 1;
    int col0 = blockIdx.y * NT * 8;
    weight_rows rows[MT];
    const dk_bf16 *b[NT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        rows[m] = rows_of(c.w, c.w.data, c.w.scale, row0 + m * 16);
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        int col = col0 + t * 8 + g;
        b[t] = col < c.n ? c.x + ((size_t)group * c.n + col) * c.w.kp : NULL;
    }
    float acc[MT][NT][4];
    int begin = slice * c.w.slice_chunks;
    slice_product<F, MT, NT>((queue<MT> *)shared + slice, rows, b, begin,
                             min(begin + c.w.slice_chunks, c.w.chunks), acc);
    put_slice<MT, NT>(acc, shared, slice, c.w.slices);
    __syncthreads();
    for (int i = threadIdx.x; i < MT * 16 * NT * 8; i += blockDim.x) {
        int row = i % (MT * 16), col = i / (MT * 16);
        if (row0 + row > last || col0 + col >= c.n) {
            continue;
        }
        float sum = take_cell<MT, NT>(shared, c.w.slices, row, col);
        put(c, row0 + row, col0 + col, sum);
    }
}

template <int F, int MT, int NT> static void launch(cudaStream_t s, const linear_call &c) {
    dim3 grid((c.m + MT * 16 - 1) / (MT * 16), (c.n + NT * 8 - 1) / (NT * 8), c.groups);
    size_t shared = product_bytes<MT, NT>(c.w.slices);
    if (shared > 48 * 1024) {
        cudaFuncSetAttribute(few_rows<F, MT, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared);
    }
    few_rows<F, MT, NT><<<grid, 32 * c.w.slices, shared, s>>>(c);
}

/* Grid: tiles of activation rows, tiles of weight rows, groups. */
template <int F, int COLS>
static __global__ void __launch_bounds__(TILE_THREADS, 1) many_rows(linear_call c) {
    extern __shared__ __align__(16) unsigned char base[];
    tile_shared<F, COLS> *shared = (tile_shared<F, COLS> *)base;
    int col0 = blockIdx.x * COLS, group = blockIdx.z, row0 = group * c.m + blockIdx.y * TILE_ROWS;
    int last = group * c.m + c.m - 1;
    for (int i = threadIdx.x; i < COLS; i += TILE_THREADS) {
        int col = min(col0 + i, c.n - 1);
        shared->row[i] = c.x + ((size_t)group * c.n + col) * c.w.kp;
    }
    __syncthreads();
    tile_weights from = {{c.w.data, c.w.data}, {c.w.scale, c.w.scale}, {row0, row0 + 64}, last};
    float total[2][COLS / 32][4];
    tile_product<F, COLS>(shared, c.w, from, total);
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int t = 0; t < COLS / 32; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = row0 + tile_row(m, i), col = col0 + tile_col<COLS>(t, i);
                if (row <= last && col < c.n) {
                    put(c, row, col, total[m][t][i]);
                }
            }
        }
    }
}

enum { TILE_COLS = 128, WORTH_TILES = 256 /* fewer leave too many multiprocessors idle */ };

static long long tiles_of(const linear_call &c) {
    return (long long)((c.n + TILE_COLS - 1) / TILE_COLS) * ((c.m + TILE_ROWS - 1) / TILE_ROWS) *
           c.groups;
}

template <int F> static void launch_many(cudaStream_t s, const linear_call &c) {
    enum { COLS = TILE_COLS };
    dim3 grid((c.n + COLS - 1) / COLS, (c.m + TILE_ROWS - 1) / TILE_ROWS, c.groups);
    size_t bytes = sizeof(tile_shared<F, COLS>);
    cudaFuncSetAttribute(many_rows<F, COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    many_rows<F, COLS><<<grid, TILE_THREADS, bytes, s>>>(c);
}

template <int F> static void launch_format(cudaStream_t s, const linear_call &c) {
    if (c.n <= 8) {
        launch<F, 1, 1>(s, c);
    } else if (c.n <= 16) {
        launch<F, 1, 2>(s, c);
    } else if (c.n <= 32) {
        launch<F, 2, 4>(s, c);
    } else if (c.n <= 64 || tiles_of(c) < WORTH_TILES) {
        launch<F, 2, 8>(s, c);
    } else {
        launch_many<F>(s, c);
    }
}

void dk_linear(cudaStream_t s, const dk_matrix *w, const dk_bf16 *prepared, int n, int groups,
               dk_result y) {
    linear_call c = {*w, prepared, n, w->rows / groups, groups, y};
    switch (w->format) {
    case DK_BF16:
        launch_format<DK_BF16>(s, c);
        break;
    case DK_FP8:
        launch_format<DK_FP8>(s, c);
        break;
    default:
        launch_format<DK_FP4>(s, c);
        break;
    }
}

/* ---- measuring -------------------------------------------------------------------------------*/

static __global__ void read_all(const uint4 *from, size_t n, uint32_t *sink) {
    uint32_t sum = 0;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            v[u] = load_once(from + i + u * stride);
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
    }
    for (; i < n; i += stride) {
        uint4 v = load_once(from + i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u) {
        *sink = sum;
    }
}

void dk_read_all(cudaStream_t s, const void *from, size_t bytes, uint32_t *sink) {
    read_all<<<132 * 8, 512, 0, s>>>((const uint4 *)from, bytes / 16, sink);
}
