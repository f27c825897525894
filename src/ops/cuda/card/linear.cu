/* Products of activations with stored weights: preparing the activations, and the product itself.
 * product.cuh has the way they take. */
#include "product.cuh"

/* ---- activations -----------------------------------------------------------------------------*/

struct prepare_call {
    const dk_bf16 *x; /* [n, groups, k] */
    int n, groups, k;
    bool quantise, whole; /* whole: pieces can be read as 16 bytes */
    dk_bf16 *out;
};

/* 8 values of a row from `at` on; zeros behind k. */
static __device__ __forceinline__ uint4 read_piece(const dk_bf16 *row, int at, int k, bool whole) {
    if (whole && at + 8 <= k) {
        return __ldg((const uint4 *)(row + at));
    }
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = at + 2 * i < k ? row[at + 2 * i] : 0;
        uint32_t high = at + 2 * i + 1 < k ? row[at + 2 * i + 1] : 0;
        w[i] = low | high << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Grid: rows, blocks of pieces. A thread takes 8 values, a group of the quantiser four threads. */
static __global__ void __launch_bounds__(256) prepare(prepare_call c) {
    int piece = blockIdx.y * blockDim.x + threadIdx.x, at = piece * 8;
    size_t row = blockIdx.x; /* t * groups + g */
    int t = blockIdx.x / c.groups, group = blockIdx.x % c.groups;
    let_successors_begin();
    wait_for_predecessors();
    uint4 v = read_piece(c.x + row * c.k, at, c.k, c.whole);
    if (c.quantise) {
        v = q8_piece(v);
    }
    if (at < (c.k + DK_CHUNK - 1) / DK_CHUNK * DK_CHUNK) {
        dk_bf16 *out = c.out + group * dk_prepared_values(c.n, c.k);
        *(uint4 *)(out + prepared_at(c.n, t, at)) = v;
    }
}

void dk_prepare(cudaStream_t s, const dk_bf16 *x, int n, int groups, int k, bool quantise,
                dk_bf16 *out) {
    bool whole = k % 8 == 0 && (uintptr_t)x % 16 == 0;
    prepare_call c = {x, n, groups, k, quantise, whole, out};
    int pieces = (k + DK_CHUNK - 1) / DK_CHUNK * 8;
    launch_overlapped(s, prepare, dim3(n * groups, (pieces + 255) / 256), 256, 0, 1, c);
}

/* ---- the product -----------------------------------------------------------------------------*/

enum { MAX_SLICES = 8 }; /* blocks of a cluster */

struct linear_call {
    dk_matrix w;
    const dk_bf16 *x; /* prepared, [groups][n] */
    int n, m, groups; /* m: rows of a group */
    int slices, slice_chunks;
    dk_result y;
    bool wide; /* 8 results of a row can be written as one */
};

/* A block's place: tiles of weight rows from tile0 on, activation rows from col0 on. Rows of a
 * group may begin inside a tile. */
struct linear_place {
    int group, tile0, col0, count, slice;
};

/* Grid of few rows: slices, tiles of weight rows, tiles of activation rows and groups; of many:
 * tiles of weight rows, tiles of activation rows, groups. */
template <class S> static __device__ __forceinline__ linear_place place_of(const linear_call &c) {

    linear_place p;
    int tile = S::PAIRED ? blockIdx.x : blockIdx.y;
    p.slice = S::PAIRED ? 0 : blockIdx.x;
    p.group = S::PAIRED ? blockIdx.z : blockIdx.z % c.groups;
    p.col0 = (S::PAIRED ? blockIdx.y : blockIdx.z / c.groups) * S::COLS;
    p.tile0 = p.group * c.m / DK_TILE_ROWS + tile * S::WG;
    p.count = min((int)S::COLS, c.n - p.col0);
    return p;
}

template <class S>
static __device__ __forceinline__ product_job<S> job_of(const linear_call &c,
                                                        const linear_place &p) {

    product_job<S> j;
#pragma unroll
    for (int wg = 0; wg < S::WG; wg++) { /* behind the last tile: it again, for nothing */
        j.tile[wg] = c.w.data + (size_t)min(p.tile0 + wg, c.w.tiles - 1) * dk_tile_bytes(&c.w);
    }
    j.x = c.x + p.group * dk_prepared_values(c.n, c.w.k) + (size_t)p.col0 * DK_CHUNK;
    j.plane = (size_t)c.n * DK_CHUNK;
    j.count = p.count;
    j.begin = p.slice * c.slice_chunks;
    j.end = S::PAIRED ? c.w.chunks : min(j.begin + c.slice_chunks, c.w.chunks);
    j.slice_chunks = c.slice_chunks;
    return j;
}

static __device__ __forceinline__ void put(const linear_call &c, int row, int col, float sum) {
    size_t to = (size_t)col * c.y.ldy + row;
    if (c.y.yf) {
        c.y.yf[to] = c.y.add ? c.y.yf[to] + sum : sum;
    } else {
        c.y.yb[to] = to_bf16(sum);
    }
}

/* 8 sums; where k is cut, those of the cluster's slices, ascending. */
template <class S>
static __device__ __forceinline__ eight take(const ring &r, int slices, int row, int col) {
    if (S::PAIRED || slices == 1) {
        return take_eight<S>(r, row, col);
    }
    uint32_t at = r.data + (col * S::PITCH + row) * 4;
    eight part[MAX_SLICES], sum;
#pragma unroll
    for (int s = 0; s < MAX_SLICES; s++) { /* all under way at once */
        if (s < slices) {
            part[s] = eight_of(cluster_load(at, s), cluster_load(at + 16, s));
        }
    }
    sum = part[0];
#pragma unroll
    for (int s = 1; s < MAX_SLICES; s++) {
#pragma unroll
        for (int u = 0; u < 8 && s < slices; u++) {
            sum.v[u] += part[s].v[u];
        }
    }
    return sum;
}

/* Results from shared memory to y, 8 rows of a column at a time; each slice's block does a share.
 */
template <class S>
static __device__ __forceinline__ void write_results(const linear_call &c, const linear_place &p,
                                                     const ring &r) {
    enum { UNITS = S::ROWS / 8 };
    int parts = S::PAIRED ? 1 : c.slices, begin = p.group * c.m, end = begin + c.m;
    int step = parts * S::CONSUMERS;
    for (int i = p.slice * S::CONSUMERS + threadIdx.x; i < p.count * UNITS; i += step) {
        int at = i % UNITS * 8, col = i / UNITS, row = p.tile0 * DK_TILE_ROWS + at;
        if (row >= end) {
            continue;
        }
        eight sum = take<S>(r, c.slices, at, col);
        spread_nans(c.w, c.w.data, row, &sum);
        if (c.wide && row >= begin && row + 8 <= end) {
            *(uint4 *)(c.y.yb + (size_t)(p.col0 + col) * c.y.ldy + row) = bf16_of(sum);
            continue;
        }
#pragma unroll
        for (int u = 0; u < 8; u++) {
            if (row + u >= begin && row + u < end) {
                put(c, row + u, p.col0 + col, sum.v[u]);
            }
        }
    }
}

template <class S, bool SLICED>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) linear(linear_call c) {

    linear_place p = place_of<S>(c);
    product_job<S> j = job_of<S>(c, p);
    ring r = open_ring<S>(c.w.format, S::COLS);
    bool split = !S::PAIRED && c.slices > 1;
    let_successors_begin();
    if (threadIdx.x >= S::CONSUMERS) {
        share_registers<S>(false);
        if (threadIdx.x == S::CONSUMERS) {
            produce<S>(r, j, c.w.format);
        }
        __syncwarp();
        if (split) {
            cluster_sync();
        }
    } else {
        share_registers<S>(true);
        if (c.w.format == DK_FP8) {
            consume_columns<DK_FP8, S::COLS, S, SLICED>(r, j);
        } else if (c.w.format == DK_FP4) {
            consume_columns<DK_FP4, S::COLS, S, SLICED>(r, j);
        } else {
            consume_columns<DK_BF16, S::COLS, S, SLICED>(r, j);
        }
        wait_for_predecessors();
        if (split) {
            cluster_sync();
        } else {
            consumers_sync<S>();
        }
        write_results<S>(c, p, r);
    }
    if (split || S::PAIRED) {
        cluster_meet(); /* what the others of the cluster may still touch stays until then */
    }
}

/* ---- launches --------------------------------------------------------------------------------*/

/* For an H200, and the same on every card. */
enum { MULTIPROCESSORS = 132, ENOUGH_BLOCKS = 160 };

/* Slices: a power of two that lets every multiprocessor have about one block of 128 rows. More, or
 * other numbers, would not fit at once: a cluster's blocks are placed together, in one part of the
 * chip. A property of the weight, whatever it is multiplied with. */
static void cut(linear_call *c) {
    int blocks = (c->m + 127) / 128 * c->groups, slices = 1;
    while (slices < MAX_SLICES && blocks * slices * 2 <= ENOUGH_BLOCKS) {
        slices *= 2;
    }
    c->slice_chunks = (c->w.chunks + slices - 1) / slices;
    c->slice_chunks += c->slice_chunks % 2;
    c->slices = (c->w.chunks + c->slice_chunks - 1) / c->slice_chunks;
}

/* Blocks along the tiles of weight rows that a group may touch. */
template <class S> static int blocks_along(const linear_call &c) {
    int tiles = (c.m + DK_TILE_ROWS - 1) / DK_TILE_ROWS + (c.groups > 1 && c.m % DK_TILE_ROWS != 0);
    return (tiles + S::WG - 1) / S::WG;
}

template <class S, bool SLICED> static void launch(cudaStream_t s, const linear_call &c) {

    size_t shared = shared_bytes<S>(dk_chunk_bytes(c.w.format));
    int along = blocks_along<S>(c), columns = (c.n + S::COLS - 1) / S::COLS;
    dim3 grid(c.slices, along, columns * c.groups);
    if (S::PAIRED) {
        grid = dim3(along + along % 2, columns, c.groups);
    }
    cudaFuncSetAttribute(linear<S, SLICED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    launch_overlapped(s, linear<S, SLICED>, grid, S::THREADS, shared, S::PAIRED ? 2 : c.slices, c);
}

/* Whether tiles of 128 rows by 128 leave no multiprocessor idle. */
static bool worth_large_tiles(const linear_call &c) {
    long long blocks = (long long)(c.n + 127) / 128 * ((c.m + 127) / 128) * c.groups;
    return c.n > 64 && blocks >= MULTIPROCESSORS;
}

void dk_linear(cudaStream_t s, const dk_matrix *w, const dk_bf16 *prepared, int n, int groups,
               dk_result y) {
    linear_call c = {*w, prepared, n, w->rows / groups, groups, 0, 0, y};
    c.wide = y.yb && y.ldy % 8 == 0 && (uintptr_t)y.yb % 16 == 0;
    cut(&c);
    if (worth_large_tiles(c)) {
        if (c.slices > 1) {
            launch<block_shape<128, 2>, true>(s, c);
        } else {
            launch<block_shape<256, 2>, false>(s, c);
        }
    } else if (c.n <= 8) {
        launch<block_shape<8, 1>, false>(s, c);
    } else if (c.n <= 16) {
        launch<block_shape<16, 1>, false>(s, c);
    } else if (c.n <= 32) {
        launch<block_shape<32, 2>, false>(s, c);
    } else {
        launch<block_shape<64, 2>, false>(s, c);
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
