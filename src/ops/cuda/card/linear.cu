/* Products of activations with stored weights: preparing the activations, and the product itself.
 * kernels.h has formula and shapes, product.cuh the way they take and what bounds them. The five
 * FP8 products of a layer reach 70 % of the bandwidth with a row, 62 with 32, 51 to 53 with 64, and
 * with 8,192 rows 39 to 49 % of cuBLAS FP8 (docs/cuda.md, bench/cuda). */
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
    int k = p->to[0].w.k, pieces = (k + DK_CHUNK - 1) / DK_CHUNK * 8;
    bool whole = k % 8 == 0 && (uintptr_t)p->x % 16 == 0;
    prepare_call c = {p->x, p->n, p->groups, k, p->quantise, whole, p->prepared};
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

struct linear_target {
    dk_matrix w;
    dk_result y;
    int m;     /* rows of a group */
    bool wide; /* 8 results of a row can be written as one */
};

struct linear_call {
    CUtensorMap tensor; /* activations as they lie, if not prepared */
    linear_target to[2];
    int along;        /* blocks along the tiles of the first one's groups */
    const dk_bf16 *x; /* prepared, [groups][n]; or as they lie */
    int n, groups;
    int slices, slice_chunks; /* of all targets */
    bool as_is, own;          /* x is not prepared; blocks bring it themselves */
};

/* A block's place: a target, tiles of its weight's rows from tile0 on, activation rows from col0
 * on. Rows of a group may begin inside a tile. */
struct linear_place {
    int target, group, tile0, col0, count, slice;
};

/* Grid of few rows: slices, tiles of weight rows, tiles of activation rows and groups; of many:
 * tiles of weight rows, tiles of activation rows, groups. Tiles of the second target come behind
 * those of the first. */
template <class S> static __device__ __forceinline__ linear_place place_of(const linear_call &c) {

    linear_place p;
    int tile = S::PAIRED ? blockIdx.x : blockIdx.y;
    p.slice = S::PAIRED ? 0 : blockIdx.x;
    p.group = S::PAIRED ? blockIdx.z : blockIdx.z % c.groups;
    p.col0 = (S::PAIRED ? blockIdx.y : blockIdx.z / c.groups) * S::COLS;
    p.target = tile >= c.along;
    tile -= p.target ? c.along : 0;
    p.tile0 = p.group * c.to[0].m / DK_TILE_ROWS + tile * S::WG;
    p.count = min((int)S::COLS, c.n - p.col0);
    return p;
}

template <class S>
static __device__ __forceinline__ product_job<S> job_of(const linear_call &c,
                                                        const linear_place &p) {

    product_job<S> j;
    const uint8_t *data = c.to[p.target].w.data;
    int last = c.to[p.target].w.tiles - 1;
    size_t bytes = dk_tile_bytes(&c.to[0].w);
#pragma unroll
    for (int wg = 0; wg < S::WG; wg++) { /* behind the last tile: it again, for nothing */
        j.tile[wg] = data + (size_t)min(p.tile0 + wg, last) * bytes;
    }
    j.x = c.x + p.group * dk_prepared_values(c.n, c.to[0].w.k) + (size_t)p.col0 * DK_CHUNK;
    j.plane = (size_t)c.n * DK_CHUNK;
    j.tensor = c.as_is ? &c.tensor : NULL;
    j.group = p.group;
    j.row = p.col0;
    j.count = p.count;
    j.begin = p.slice * c.slice_chunks;
    j.end = S::PAIRED ? c.to[0].w.chunks : min(j.begin + c.slice_chunks, c.to[0].w.chunks);
    j.slice_chunks = c.slice_chunks;
    j.wide = wide_scales(c.to[p.target].w, data);
    return j;
}

/* ---- results ---------------------------------------------------------------------------------
 *
 * A thread has of every eight columns what the tensor core gives it: rows g and g + 8 of its warp's
 * 16, columns 2t and 2t + 1. */

/* Where a warp's sums go, and which of the thread's two rows are NaN. */
struct warp_rows {
    int row, begin, end; /* the warp's first; the group's */
    bool nan[2];
};

template <class S>
static __device__ __forceinline__ warp_rows rows_of_warp(const linear_call &c,
                                                         const linear_place &p) {
    warp_rows w;
    const linear_target &to = c.to[p.target];
    w.row = p.tile0 * DK_TILE_ROWS + threadIdx.x / 32 * 16;
    w.begin = p.group * to.m;
    w.end = w.begin + to.m;
    w.nan[0] = w.nan[1] = false;
    if (to.w.format == DK_FP8 && w.row < w.end) { /* all rows of a tile have a flag */
        const uint8_t *flags = to.w.data + (size_t)to.w.tiles * dk_tile_bytes(&to.w) + w.row;
        w.nan[0] = load_byte_now(flags + threadIdx.x % 32 / 4) != 0;
        w.nan[1] = load_byte_now(flags + threadIdx.x % 32 / 4 + 8) != 0;
    }
    return w;
}

static __device__ __forceinline__ void put(const dk_result &y, int row, int col, float sum) {
    size_t to = (size_t)col * y.ldy + row;
    if (y.yf) {
        y.yf[to] = y.add ? y.yf[to] + sum : sum;
    } else {
        y.yb[to] = to_bf16(sum);
    }
}

/* `count` times eight columns: columns 8 (first + step i) and on. */
struct columns_of_y {
    int first, step, count;
};

/* What a thread has kept at `own`, a block's share apart, to y, one value at a time: any alignment,
 * either type. In a loop: its code is long, and what lies between the pieces of code that a block
 * runs has to be fetched too. */
template <class S>
static __device__ __forceinline__ void put_rest(const linear_call &c, const linear_place &p,
                                                const warp_rows &w, uint32_t own, columns_of_y at) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < at.count; i++) {
        float4 four = load_shared_floats(own + i * S::CONSUMERS * 16);
        const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int row = w.row + lane / 4 + u / 2 * 8;
            int col = (at.first + i * at.step) * 8 + lane % 4 * 2 + u % 2;
            if (row >= w.begin && row < w.end && col < p.count) {
                put(c.to[p.target].y, row, p.col0 + col, v[u]);
            }
        }
    }
}

/* As put_turned, through Q8, whose groups are 32 rows: two warps', which take every other eight
 * columns each. All warps have put theirs there. */
static __device__ __forceinline__ void put_quantised(const linear_call &c, const linear_place &p,
                                                     const warp_rows &w, uint32_t pieces,
                                                     columns_of_y at) {
    const dk_result &y = c.to[p.target].y;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, second = warp % 2;
    int row = w.row - second * 16 + lane % 4 * 8; /* a group is four lanes */
    uint32_t from = pieces + (warp - second + lane % 4 / 2) * at.count * 256 + lane % 2 * 16;
    for (int i = second; i < at.count; i += 2) {
        int col = (at.first + i * at.step) * 8 + lane / 4;
        uint4 v = q8_piece(load_shared(from + i * 256 + lane / 4 * 32));
        if (row >= w.begin && row < w.end && col < p.count) {
            *(uint4 *)(y.yb + (size_t)(p.col0 + col) * y.ldy + row) = v;
        }
    }
}

/* Sums of eight columns on their way to y: to the warp's piece of shared memory (16 rows a column)
 * for put_turned, if they can be written 8 rows at a time; else to a place of the thread's own, for
 * put_rest. */
static __device__ __forceinline__ void keep_eight(bool wide, const warp_rows &w, uint32_t piece,
                                                  uint32_t own, float (&v)[4]) {
#pragma unroll
    for (int u = 0; u < 4; u++) {
        v[u] = w.nan[u / 2] ? __uint_as_float(0x7fc00000u) : v[u];
    }
    if (wide) {
        store_turned(piece, bf16x2_of(v[0], v[1]), bf16x2_of(v[2], v[3]));
    } else {
        store_shared(own, v);
    }
}

/* What lies there to y, 8 rows at a time. */
static __device__ __forceinline__ void put_turned(const linear_call &c, const linear_place &p,
                                                  const warp_rows &w, uint32_t pieces,
                                                  columns_of_y at) {
    const dk_result &y = c.to[p.target].y;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = w.row + lane % 2 * 8;
    uint32_t piece = pieces + warp * at.count * 256;
    __syncwarp();
    for (int i = lane / 16; i < at.count; i += 2) {
        int col = (at.first + i * at.step) * 8 + lane % 16 / 2;
        if (row >= w.begin && row < w.end && col < p.count) {
            *(uint4 *)(y.yb + (size_t)(p.col0 + col) * y.ldy + row) =
                load_shared(piece + i * 256 + lane % 16 * 16);
        }
    }
}

/* What keep_eight has kept, at `pieces` or by every thread at `own`, to y. */
template <class S>
static __device__ __forceinline__ void put_kept(const linear_call &c, const linear_place &p,
                                                const warp_rows &w, uint32_t pieces, uint32_t own,
                                                columns_of_y at) {
    if (!c.to[p.target].wide) {
        put_rest<S>(c, p, w, own, at);
    } else if (c.to[p.target].y.q8) {
        consumers_sync<S>();
        put_quantised(c, p, w, pieces, at);
    } else {
        put_turned(c, p, w, pieces, at);
    }
}

template <int N, class S>
static __device__ __forceinline__ void put_all(const linear_call &c, const linear_place &p,
                                               const warp_rows &w, const ring &r,
                                               float (&acc)[N / 8][4]) {
    uint32_t piece = r.data + threadIdx.x / 32 * (N / 8 * 256), own = r.data + threadIdx.x * 16;
    bool wide = c.to[p.target].wide;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        keep_eight(wide, w, piece + i * 256, own + i * S::CONSUMERS * 16, acc[i]);
    }
    put_kept<S>(c, p, w, r.data, own, {0, 1, N / 8});
}

/* Where k is cut, columns 8 i .. 8 i + 7 are added up by the block of slice i % slices. It has so
 * many times eight: */
static __device__ __forceinline__ int own_columns(const linear_call &c, const linear_place &p,
                                                  int slice) {
    int all = (p.count + 7) / 8;
    return (all + c.slices - 1 - slice) / c.slices;
}

/* Sends every slice its columns and adds up the block's own, slices ascending. Parts lie where the
 * ring was, [slice][columns][thread]; all rings of the cluster are dry. */
template <int N, class S>
static __device__ __forceinline__ void exchange(const linear_call &c, const linear_place &p,
                                                const warp_rows &w, const ring &r,
                                                float (&acc)[N / 8][4]) {
    enum { PART = S::CONSUMERS * 16 };
    int all = (p.count + 7) / 8, most = own_columns(c, p, 0), own = own_columns(c, p, p.slice);
    uint32_t at = r.data + threadIdx.x * 16;
    int owner = 0, round = 0;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        uint32_t to = at + (p.slice * most + round) * PART;
        if (i < all && owner == p.slice) {
            store_shared(to, acc[i]);
        } else if (i < all) {
            cluster_push(to, r.sums, owner, acc[i]);
        }
        if (++owner == c.slices) {
            owner = 0;
            round++;
        }
    }
    if (own == 0) {
        return;
    }
    barrier_wait(r.sums, 0);
    uint32_t pieces = r.data + c.slices * most * PART;
    uint32_t piece = pieces + threadIdx.x / 32 * (own * 256);
    bool wide = c.to[p.target].wide;
#pragma unroll 2
    for (int i = 0; i < own; i++) {
        float4 part[MAX_SLICES];
#pragma unroll
        for (int s = 0; s < MAX_SLICES; s++) { /* all under way at once */
            if (s < c.slices) {
                part[s] = load_shared_floats(at + (s * most + i) * PART);
            }
        }
        float sum[4] = {part[0].x, part[0].y, part[0].z, part[0].w};
#pragma unroll
        for (int s = 1; s < MAX_SLICES; s++) {
            if (s < c.slices) {
                sum[0] += part[s].x;
                sum[1] += part[s].y;
                sum[2] += part[s].z;
                sum[3] += part[s].w;
            }
        }
        keep_eight(wide, w, piece + i * 256, at + i * PART, sum); /* where part 0 was */
    }
    put_kept<S>(c, p, w, pieces, at, {p.slice, c.slices, own});
}

/* The block's slice of x into its shared memory: [piece of 8 values][row]. */
template <class S>
static __device__ __forceinline__ void fill_rows(const linear_call &c, const linear_place &p,
                                                 const product_job<S> &j, uint8_t *own) {
    int k = c.to[0].w.k, pieces = (j.end - j.begin) * 8, left = k - j.begin * DK_CHUNK;
    for (int row = 0; row < c.n; row++) {
        const dk_bf16 *x = c.x + ((size_t)row * c.groups + p.group) * k + j.begin * DK_CHUNK;
        for (int i = threadIdx.x; i < pieces; i += S::CONSUMERS) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (i * 8 < left) {
                v = __ldg((const uint4 *)x + i);
            }
            *(uint4 *)(own + (i * c.n + row) * 16) = v;
        }
    }
    publish_shared();
    consumers_sync<S>();
}

/* The block's sums, weights having format F. */
template <int F, class S, bool SLICED>
static __device__ __forceinline__ void consume_all(const ring &r, const product_job<S> &j,
                                                   own_rows own, float (&acc)[S::COLS / 8][4]) {
    enum { N = S::COLS };
    if constexpr (SLICED) {
        float part[N / 8][4];
        consume<F, N, S, true>(r, j, own, part, acc);
    } else {
        consume<F, N, S, false>(r, j, own, acc, acc);
    }
}

/* What consumers do. */
template <class S, bool SLICED>
static __device__ __forceinline__ void consume_and_put(const linear_call &c, const linear_place &p,
                                                       const ring &r, const product_job<S> &j,
                                                       int ahead) {
    enum { N = S::COLS };
    float acc[N / 8][4];
    warp_rows w = rows_of_warp<S>(c, p);
    if constexpr (S::OWN_ROWS) {
        wait_for_predecessors();
        fill_rows<S>(c, p, j, r.at - ahead);
        own_rows own = {own_descriptor_of(r.data - ahead, c.n), c.n * 8, c.n};
        consume_all<DK_BF16, S, SLICED>(r, j, own, acc);
    } else if (c.to[0].w.format == DK_FP8) {
        consume_all<DK_FP8, S, SLICED>(r, j, {}, acc);
    } else if (c.to[0].w.format == DK_FP4) {
        consume_all<DK_FP4, S, SLICED>(r, j, {}, acc);
    } else {
        consume_all<DK_BF16, S, SLICED>(r, j, {}, acc);
    }
    wait_for_predecessors();
    if (!S::PAIRED && c.slices > 1) {
        cluster_meet(); /* all rings are dry */
        exchange<N, S>(c, p, w, r, acc);
    } else {
        consumers_sync<S>(); /* the ring is dry */
        put_all<N, S>(c, p, w, r, acc);
    }
}

/* Whether a block asks for all it needs before the next kernel's may ask for their weights: where
 * it brings little more than its ring holds, and would wait for the rest behind them (512 and 1280
 * x 5120: 0.5 to 0.9 us). With few columns it is the next kernel's setting up that counts. */
template <class S>
static __device__ __forceinline__ bool brings_first(const ring &r, const product_job<S> &j) {
    return !S::PAIRED && S::COLS > 16 && loads_of(j) <= r.stages + 4;
}

template <class S, bool SLICED>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    linear(const __grid_constant__ linear_call c) {

    linear_place p = place_of<S>(c);
    product_job<S> j = job_of<S>(c, p);
    int ahead = S::OWN_ROWS ? own_bytes(c.slice_chunks, c.n) : 0;
    ring r = place_ring<S>(c.to[0].w.format, S::COLS, ahead);
    bool split = !S::PAIRED && c.slices > 1;
    if (threadIdx.x == S::CONSUMERS) {
        if (c.as_is && !S::OWN_ROWS) {
            tensor_prefetch(&c.tensor);
        }
        init_ring<S>(r);
        if (split) {
            barrier_init(r.sums, 1);
            barriers_ready();
            barrier_expect(r.sums, (c.slices - 1) * own_columns(c, p, p.slice) * S::CONSUMERS * 16);
        }
        produce_early<S>(r, j, c.to[0].w.format);
    }
    __syncwarp();
    bool first = brings_first<S>(r, j);
    if (!first) {
        let_successors_begin();
    }
    share_ring<S>();
    if (threadIdx.x >= S::CONSUMERS) {
        share_registers<S>(false);
        if (threadIdx.x == S::CONSUMERS) {
            produce<S>(r, j, c.to[0].w.format);
            if (first) {
                let_successors_begin();
            }
        }
        __syncwarp();
        if (split) {
            cluster_meet();
        }
    } else {
        share_registers<S>(true);
        consume_and_put<S, SLICED>(c, p, r, j, ahead);
    }
    if (S::PAIRED) {
        cluster_meet(); /* what the other one may still write to stays until then */
    }
}

/* ---- launches --------------------------------------------------------------------------------*/

/* Rows of y, k values long, through Q8, where the product's own blocks cannot do that: groups of
 * weight rows that are no multiple of 32. Grid: rows, blocks of pieces. */
static __global__ void quantise_rows(dk_bf16 *y, int k) {
    int at = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    dk_bf16 *row = y + (size_t)blockIdx.x * k;
    begin_overlapped();
    uint4 v = make_uint4(0, 0, 0, 0);
    if (at < k) { /* plain reads: the same addresses are written */
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            word[i] = row[at + 2 * i] | (uint32_t)row[at + 2 * i + 1] << 16;
        }
        v = make_uint4(word[0], word[1], word[2], word[3]);
    }
    v = q8_piece(v);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8 && at < k; i++) {
        row[at + i] = (dk_bf16)(word[i / 2] >> i % 2 * 16);
    }
}

/* For an H200, and the same on every card. */
enum { MULTIPROCESSORS = 132, ENOUGH_BLOCKS = 400 };

/* Slices: as many as give every multiprocessor three blocks of 64 rows. There is room for more; but
 * a cluster's blocks are placed together, in one part of the chip, and the last cluster to find its
 * place must not have to wait for another one's end. A property of the weight, whatever it is
 * multiplied with. */
struct slices {
    int count, chunks; /* chunks: of one */
};

static slices cut(const dk_matrix &w, int groups) {
    int blocks = (w.rows / groups + DK_TILE_ROWS - 1) / DK_TILE_ROWS * groups;
    int count = min(max(ENOUGH_BLOCKS / blocks, 1), (int)MAX_SLICES);
    int chunks = (w.chunks + count - 1) / count;
    chunks += chunks % 2;
    return {(w.chunks + chunks - 1) / chunks, chunks};
}

/* Whether one launch can do both products. */
static bool joined(const dk_product *p) {
    slices a = cut(p->to[0].w, 1), b = cut(p->to[1].w, 1);
    return a.count == b.count && a.chunks == b.chunks;
}

/* Blocks along the tiles of weight rows that a group may touch. */
template <class S> static int blocks_along(const linear_target &to, int groups) {
    int tiles = (to.m + DK_TILE_ROWS - 1) / DK_TILE_ROWS + (groups > 1 && to.m % DK_TILE_ROWS != 0);
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
    const cuuint64_t k = (cuuint64_t)c->to[0].w.k, groups = (cuuint64_t)c->groups;
    const cuuint64_t dims[] = {k, groups, (cuuint64_t)c->n};
    const cuuint64_t pitches[] = {k * sizeof *c->x, k * groups * sizeof *c->x};
    const cuuint32_t box[] = {DK_CHUNK, 1, (cuuint32_t)box_rows}, step[] = {1, 1, 1};
    encoder()(&c->tensor, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)c->x, dims, pitches, box,
              step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Shared memory of a block. Where few rows are multiplied by no more blocks than there are
 * multiprocessors, so much that no two stand on one while others have none; but so little that one
 * of the next kernel's fits beside it, which takes no more than whole stages. */
template <class S> static size_t shared_for(const linear_call &c, int blocks) {
    enum { ALONE = 122 << 10 };
    size_t chunk_bytes = dk_chunk_bytes(c.to[0].w.format);
    int ahead = S::OWN_ROWS ? own_bytes(c.slice_chunks, c.n) : 0;
    size_t most = shared_bytes<S>(chunk_bytes, ahead);
    if (S::COLS > 64 || S::OWN_ROWS) {
        return most;
    }
    if (S::COLS > 16 && blocks <= MULTIPROCESSORS) {
        return ALONE;
    }
    size_t stage = stage_bytes<S>(S::COLS, chunk_bytes);
    size_t used = (most - RING_ALIGNMENT) / stage * stage + 2 * RING_ALIGNMENT;
    return used < most ? used : most;
}

template <class S, bool SLICED> static void launch(cudaStream_t s, linear_call *c) {
    if (c->as_is && !S::OWN_ROWS) {
        describe(c, S::PAIRED ? S::COLS / 2 : S::COLS);
    }
    int columns = (c->n + S::COLS - 1) / S::COLS;
    int along = blocks_along<S>(c->to[0], c->groups);
    c->along = along + 1; /* one for nothing, which a pair may need */
    if (c->to[1].m > 0) {
        c->along = along;
        along += blocks_along<S>(c->to[1], 1);
    }
    dim3 grid(c->slices, along, columns * c->groups);
    if (S::PAIRED) {
        grid = dim3(along + along % 2, columns, c->groups);
    }
    size_t shared = shared_for<S>(*c, grid.x * grid.y * grid.z);
    cudaFuncSetAttribute(linear<S, SLICED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)shared);
    launch_overlapped(s, linear<S, SLICED>, grid, S::THREADS, shared, S::PAIRED ? 2 : c->slices,
                      *c);
}

/* Blocks of 128 weight rows for one tile of columns, k uncut. */
static long long blocks_of_128(const linear_call &c) {
    return (long long)((c.to[0].m + 127) / 128 + (c.to[1].m + 127) / 128) * c.groups;
}

/* Whether tiles of 128 rows by 128 leave no multiprocessor idle. */
static bool worth_large_tiles(const linear_call &c) {
    return c.n > 64 && (c.n + 127) / 128 * blocks_of_128(c) >= MULTIPROCESSORS;
}

/* Whether blocks of 128 rows leave none idle. Two places of a multiprocessor are filled more evenly
 * than four, and the fullest one decides. */
static bool worth_wide_blocks(const linear_call &c) {
    return blocks_of_128(c) * c.slices > MULTIPROCESSORS;
}

/* So few rows are brought by every block for itself where weights are BF16: their chunks are large,
 * and stages without activations have room for more of them before the kernel in front has ended.
 * At most OWN_ROWS, of so many chunks in all. */
enum { OWN_ROWS = 2, OWN_CHUNKS = 128 };

static bool own_rows_fit(const linear_call &c) {
    return c.to[0].w.format == DK_BF16 && c.n <= OWN_ROWS && c.slice_chunks * c.n <= OWN_CHUNKS;
}

/* The product of all targets of p, which have one cut. */
static linear_call call_of(const dk_product *p) {
    linear_call c = {};
    slices s = cut(p->to[0].w, p->groups);
    c.n = p->n;
    c.groups = p->groups;
    c.slices = s.count;
    c.slice_chunks = s.chunks;
    for (int i = 0; i < p->targets; i++) {
        linear_target *to = &c.to[i];
        const dk_result &y = to->y = p->to[i].y;
        to->w = p->to[i].w;
        to->m = to->w.rows / p->groups;
        to->wide = y.yb && to->m % 8 == 0 && y.ldy % 8 == 0 && (uintptr_t)y.yb % 16 == 0;
        to->y.q8 = y.q8 && to->wide && to->m % 32 == 0;
    }
    if (p->x && !p->quantise && p->to[0].w.k % 8 == 0 && (uintptr_t)p->x % 16 == 0) {
        c.own = own_rows_fit(c);
        c.as_is = c.own || encoder();
    }
    c.x = c.as_is ? p->x : p->prepared;
    return c;
}

/* That of one of them. */
static dk_product single(const dk_product *p, int target) {
    dk_product one = *p;
    one.to[0] = p->to[target];
    one.targets = 1;
    return one;
}

bool dk_prepares(const dk_product *p) {
    bool prepares = false;
    for (int i = 0; p->x && i < p->targets; i++) {
        dk_product one = single(p, i);
        prepares = prepares || !call_of(&one).as_is;
    }
    return prepares;
}

/* One launch. */
static void multiply(cudaStream_t s, const dk_product *p) {
    linear_call c = call_of(p);
    if (c.own) {
        launch<block_shape<8, 1, 4, true>, false>(s, &c);
    } else if (worth_large_tiles(c)) {
        if (c.slices > 1 && (!p->free_order || c.n <= 128)) {
            launch<block_shape<128, 2, 1>, true>(s, &c);
        } else {
            launch<block_shape<256, 2, 1>, false>(s, &c);
        }
    } else if (c.n <= 8 && worth_wide_blocks(c)) {
        launch<block_shape<8, 2, 2>, false>(s, &c);
    } else if (c.n <= 8) {
        launch<block_shape<8, 1, 4>, false>(s, &c);
    } else if (c.n <= 16 && worth_wide_blocks(c)) {
        launch<block_shape<16, 2, 2>, false>(s, &c);
    } else if (c.n <= 16) {
        launch<block_shape<16, 1, 4>, false>(s, &c);
    } else if (c.n <= 32) {
        launch<block_shape<32, 2, 2>, false>(s, &c);
    } else {
        launch<block_shape<64, 2, 2>, false>(s, &c);
    }
    const dk_result &y = p->to[0].y;
    if (y.q8 && !c.to[0].y.q8) {
        int k = (int)y.ldy;
        launch_overlapped(s, quantise_rows, dim3(p->n, (k + 2047) / 2048), 256, 0, 1, y.yb, k);
    }
}

void dk_multiply(cudaStream_t s, const dk_product *p) {
    if (dk_prepares(p)) {
        prepare_rows(s, p);
    }
    if (p->targets == 2 && joined(p)) {
        multiply(s, p);
        return;
    }
    for (int i = 0; i < p->targets; i++) {
        dk_product one = single(p, i);
        multiply(s, &one);
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

static __global__ void nothing() {
    begin_overlapped();
}

void dk_read_all(cudaStream_t s, const void *from, size_t bytes, uint32_t *sink) {
    if (bytes == 0) {
        launch_overlapped(s, nothing, dim3(1), 32, 0, 1);
        return;
    }
    read_all<<<132 * 8, 512, 0, s>>>((const uint4 *)from, bytes / 16, sink);
}
