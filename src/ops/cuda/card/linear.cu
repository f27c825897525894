/* Products of activations with stored weights: preparing the activations, and the product itself.
 * product.cuh has the way they take. */
#include "ops/cuda/card/product.cuh"

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

/* Grid: rows, blocks of pieces. A thread takes PIECES times 8 values, a group of the quantiser four
 * threads. */
template <int PIECES> static __global__ void __launch_bounds__(256) prepare(prepare_call c) {
    int first = blockIdx.y * blockDim.x * PIECES + threadIdx.x;
    size_t row = blockIdx.x; /* t * groups + g */
    int t = blockIdx.x / c.groups, group = blockIdx.x % c.groups;
    dk_bf16 *out = c.out + group * dk_prepared_values(c.n, c.k);
    uint4 v[PIECES];
    let_successors_begin();
    wait_for_predecessors();
#pragma unroll
    for (int u = 0; u < PIECES; u++) {
        v[u] = read_piece(c.x + row * c.k, (first + u * blockDim.x) * 8, c.k, c.whole);
    }
#pragma unroll
    for (int u = 0; u < PIECES; u++) {
        int at = (first + u * blockDim.x) * 8;
        if (c.quantise) {
            v[u] = q8_piece(v[u]);
        }
        if (at < (c.k + DK_CHUNK - 1) / DK_CHUNK * DK_CHUNK) {
            *(uint4 *)(out + prepared_at(c.n, t, at)) = v[u];
        }
    }
}

static void prepare_rows(cudaStream_t s, const dk_product *p) {
    enum { MANY = 4 /* pieces of a thread where there are many rows */ };
    bool whole = p->w.k % 8 == 0 && (uintptr_t)p->x % 16 == 0;
    prepare_call c = {p->x, p->n, p->groups, p->w.k, p->quantise, whole, p->prepared};
    int pieces = (p->w.k + DK_CHUNK - 1) / DK_CHUNK * 8;
    if (p->n <= 64 || pieces < MANY * 256) {
        launch_overlapped(s, prepare<1>, dim3(p->n * p->groups, (pieces + 255) / 256), 256, 0, 1,
                          c);
    } else {
        launch_overlapped(s, prepare<MANY>,
                          dim3(p->n * p->groups, (pieces + MANY * 256 - 1) / (MANY * 256)), 256, 0,
                          1, c);
    }
}

/* ---- the product -----------------------------------------------------------------------------*/

enum { MAX_SLICES = 8 }; /* blocks of a cluster */

struct linear_call {
    CUtensorMap tensor; /* activations as they lie, if not prepared */
    dk_matrix w;
    const dk_bf16 *x; /* prepared, [groups][n]; or as they lie */
    int n, m, groups; /* m: rows of a group */
    int slices, slice_chunks;
    dk_result y;
    bool wide;          /* 8 results of a row can be written as one */
    bool as_is;         /* x is not prepared */
    bool own, quantise; /* blocks bring x themselves, through Q8 or not */
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
    j.tensor = c.as_is ? &c.tensor : NULL;
    j.group = p.group;
    j.row = p.col0;
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

/* Room for a block's own rows; what is read behind them belongs to nobody. */
static __host__ __device__ __forceinline__ int own_bytes(int chunks, int rows) {
    return chunks * rows * 128 / RING_ALIGNMENT * RING_ALIGNMENT + 2 * RING_ALIGNMENT;
}

/* The block's slice of x into its shared memory: [piece of 8 values][row]. */
template <class S>
static __device__ __forceinline__ void fill_rows(const linear_call &c, const linear_place &p,
                                                 const product_job<S> &j, uint8_t *own) {
    int pieces = (j.end - j.begin) * 8, left = c.w.k - j.begin * DK_CHUNK;
    for (int row = 0; row < c.n; row++) {
        const dk_bf16 *x = c.x + ((size_t)row * c.groups + p.group) * c.w.k + j.begin * DK_CHUNK;
        for (int at = 0; at < pieces; at += S::CONSUMERS) {
            int i = at + threadIdx.x;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (i < pieces && i * 8 < left) {
                v = __ldg((const uint4 *)x + i);
            }
            if (c.quantise) {
                v = q8_piece(v);
            }
            if (i < pieces) {
                *(uint4 *)(own + (i * c.n + row) * 16) = v;
            }
        }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_sync<S>();
}

template <class S, bool SLICED>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    linear(const __grid_constant__ linear_call c) {

    linear_place p = place_of<S>(c);
    product_job<S> j = job_of<S>(c, p);
    int ahead = S::OWN_ROWS ? own_bytes(c.slice_chunks, c.n) : 0;
    ring r = open_ring<S>(c.w.format, S::COLS, ahead);
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
        own_rows own = {};
        if (S::OWN_ROWS) {
            wait_for_predecessors();
            fill_rows<S>(c, p, j, r.at - ahead);
            own = {own_descriptor_of(r.data - ahead, c.n), c.n * 8, c.n};
        }
        if (c.w.format == DK_FP8) {
            consume_columns<DK_FP8, S::COLS, S, SLICED>(r, j, own);
        } else if (c.w.format == DK_FP4) {
            consume_columns<DK_FP4, S::COLS, S, SLICED>(r, j, own);
        } else {
            consume_columns<DK_BF16, S::COLS, S, SLICED>(r, j, own);
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

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn *encoder() {
    static encode_fn *const encode = [] {
        void *found = NULL;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result);
        return (encode_fn *)found;
    }();
    return encode;
}

/* Describes x [n, groups, k] to the copy engine, in boxes of as many rows as a block brings at
 * once. */
static void describe(linear_call *c, int box_rows) {
    const cuuint64_t k = (cuuint64_t)c->w.k, groups = (cuuint64_t)c->groups;
    const cuuint64_t dims[] = {k, groups, (cuuint64_t)c->n};
    const cuuint64_t pitches[] = {k * sizeof *c->x, k * groups * sizeof *c->x};
    const cuuint32_t box[] = {DK_CHUNK, 1, (cuuint32_t)box_rows}, step[] = {1, 1, 1};
    encoder()(&c->tensor, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)c->x, dims, pitches, box,
              step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <class S, bool SLICED> static void launch(cudaStream_t s, linear_call *c) {
    if (c->as_is && !S::OWN_ROWS) {
        describe(c, S::PAIRED ? S::COLS / 2 : S::COLS);
    }
    int ahead = S::OWN_ROWS ? own_bytes(c->slice_chunks, c->n) : 0;
    size_t shared = shared_bytes<S>(dk_chunk_bytes(c->w.format), ahead);
    int along = blocks_along<S>(*c), columns = (c->n + S::COLS - 1) / S::COLS;
    dim3 grid(c->slices, along, columns * c->groups);
    if (S::PAIRED) {
        grid = dim3(along + along % 2, columns, c->groups);
    }
    cudaFuncSetAttribute(linear<S, SLICED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    launch_overlapped(s, linear<S, SLICED>, grid, S::THREADS, shared, S::PAIRED ? 2 : c->slices,
                      *c);
}

/* Whether tiles of 128 rows by 128 leave no multiprocessor idle. */
static bool worth_large_tiles(const linear_call &c) {
    long long blocks = (long long)(c.n + 127) / 128 * ((c.m + 127) / 128) * c.groups;
    return c.n > 64 && blocks >= MULTIPROCESSORS;
}

/* So few rows are brought by every block for itself, which saves a launch or the detour of a tensor
 * map: at most OWN_ROWS of them, of so many chunks in all. */
enum { OWN_ROWS = 2, OWN_CHUNKS = 128 };

static bool own_rows_fit(const linear_call &c) {
    return c.n <= OWN_ROWS && c.slice_chunks * c.n <= OWN_CHUNKS;
}

static linear_call call_of(const dk_product *p) {
    linear_call c = {};
    c.w = p->w;
    c.n = p->n;
    c.groups = p->groups;
    c.m = p->w.rows / p->groups;
    c.y = p->y;
    c.wide = p->y.yb && p->y.ldy % 8 == 0 && (uintptr_t)p->y.yb % 16 == 0;
    cut(&c);
    c.quantise = p->quantise;
    if (p->x && p->w.k % 8 == 0 && (uintptr_t)p->x % 16 == 0) {
        c.own = own_rows_fit(c);
        c.as_is = c.own || (!p->quantise && encoder());
    }
    c.x = c.as_is ? p->x : p->prepared;
    return c;
}

bool dk_prepares(const dk_product *p) {
    return p->x && !call_of(p).as_is;
}

void dk_multiply(cudaStream_t s, const dk_product *p) {
    linear_call c = call_of(p);
    if (p->x && !c.as_is) {
        prepare_rows(s, p);
    }
    if (c.own) {
        launch<block_shape<8, 1, 4, true>, false>(s, &c);
    } else if (worth_large_tiles(c)) {
        if (c.slices > 1) {
            launch<block_shape<128, 2, 1>, true>(s, &c);
        } else {
            launch<block_shape<256, 2, 1>, false>(s, &c);
        }
    } else if (c.n <= 8) {
        launch<block_shape<8, 1, 4>, false>(s, &c);
    } else if (c.n <= 16) {
        launch<block_shape<16, 1, 4>, false>(s, &c);
    } else if (c.n <= 32) {
        launch<block_shape<32, 2, 2>, false>(s, &c);
    } else {
        launch<block_shape<64, 2, 2>, false>(s, &c);
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
