/* Experts. Which tokens an expert serves is worked out on the card: every use of an expert gets a
 * slot, and tiles (an expert and a run of its slots) are what the products' grid is laid over, so
 * that an expert's weights are read once a tile and the host learns nothing and waits for nothing.
 * The grid is as large as the worst case needs; blocks behind the last tile end at once. Very few
 * tokens need no lists: every use is a tile.
 *
 * A row's result does not depend on the order in which tokens come to stand in a list.
 *
 * ops/ops.h has the formula, product.cuh what bounds the products. With 384 experts of 5120 x 2304,
 * top 6, they reach 60 to 73 % of the bandwidth with 1 to 64 rows, counted over touched experts,
 * and with 8,192 rows 37 % of what cuBLAS FP8 makes of one matrix of as many (docs/cuda.md,
 * bench/cuda). */
#include "ops/cuda/card/product.cuh"

/* ---- lists -----------------------------------------------------------------------------------*/

/* Where among a token's experts the i-th of its list stands. Lists come sorted; be sure. */
static __device__ __forceinline__ int rank_of(const int32_t *list, int top_k, int i) {
    int e = __ldcg(list + i), rank = 0;
    for (int j = 0; j < top_k; j++) {
        int other = __ldcg(list + j);
        rank += other < e || (other == e && j < i);
    }
    return rank;
}

/* One warp: experts in groups of 32, a scan over the group, carried on. counts becomes where each
 * expert's slots begin. */
static __device__ void make_tiles(const dk_moe &c, int32_t *counts) {
    int lane = threadIdx.x, slots = 0, tiles = 0;
    for (int first = 0; first < c.num_experts; first += 32) {
        int e = first + lane, count = e < c.num_experts ? counts[e] : 0;
        int mine = (count + c.tile_rows - 1) / c.tile_rows, taken = (count + 7) / 8 * 8;
        int slots_to = taken, tiles_to = mine;
        for (int step = 1; step < 32; step *= 2) {
            int u = __shfl_up_sync(0xffffffffu, slots_to, step);
            int v = __shfl_up_sync(0xffffffffu, tiles_to, step);
            slots_to += lane >= step ? u : 0;
            tiles_to += lane >= step ? v : 0;
        }
        int begin = slots + slots_to - taken, tile = tiles + tiles_to - mine;
        int rows = mine ? (count + mine - 1) / mine : 0; /* shared out evenly */
        rows = (rows + 7) / 8 * 8;
        for (int i = 0; i < mine; i++) {
            c.tiles[tile + i] = {e, begin + i * rows, min(count - i * rows, rows)};
        }
        if (e < c.num_experts) {
            counts[e] = begin;
        }
        slots += __shfl_sync(0xffffffffu, slots_to, 31);
        tiles += __shfl_sync(0xffffffffu, tiles_to, 31);
    }
    if (lane == 0) {
        *c.num_tiles = tiles;
    }
}

/* 8 values of a token's x through Q8, for the shared expert and for every slot of the token. All
 * lanes of a warp call it; mine: whether there is such a piece. */
static __device__ __forceinline__ void spread_piece(const dk_moe &c, int token, int at, bool mine) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (mine && at < c.d) {
        v = __ldg((const uint4 *)(c.x + (size_t)token * c.d + at));
    }
    v = q8_piece(v);
    if (!mine) {
        return;
    }
    *(uint4 *)(c.x_shared + prepared_at(c.n, token, at)) = v;
    for (int i = 0; i < c.top_k; i++) {
        int slot = c.slot[token * c.top_k + i];
        *(uint4 *)(c.x_routed + prepared_at(c.slots, slot, at)) = v;
    }
}

static __host__ __device__ __forceinline__ int pieces_of(int d) {
    return (d + DK_CHUNK - 1) / DK_CHUNK * 8;
}

/* Grid: tokens, blocks of pieces. */
static __global__ void __launch_bounds__(256) spread(dk_moe c) {
    int piece = blockIdx.y * blockDim.x + threadIdx.x;
    let_successors_begin();
    wait_for_predecessors();
    spread_piece(c, blockIdx.x, piece * 8, piece < pieces_of(c.d));
}

enum { SPREAD_AT_ONCE = 4 /* tokens that make_lists spreads itself: a launch less */ };

/* One block. */
static __global__ void __launch_bounds__(1024) make_lists(dk_moe c) {
    extern __shared__ int32_t counts[]; /* [num_experts] */
    int pairs = c.n * c.top_k;
    let_successors_begin();
    for (int e = threadIdx.x; e < c.num_experts; e += blockDim.x) {
        counts[e] = 0;
    }
    wait_for_predecessors();
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        atomicAdd(&counts[c.experts[i]], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        make_tiles(c, counts);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        int token = i / c.top_k;
        int at = atomicAdd(&counts[c.experts[i]], 1);
        c.slot[i] = at;
        c.place[at] =
            token * (c.top_k + 1) + rank_of(c.experts + token * c.top_k, c.top_k, i % c.top_k);
        c.weight[at] = c.weights[i];
    }
    if (c.n > SPREAD_AT_ONCE) {
        return;
    }
    __syncthreads();
    int pieces = pieces_of(c.d);
    for (int first = 0; first < c.n * pieces; first += blockDim.x) {
        int i = first + threadIdx.x;
        bool mine = i < c.n * pieces;
        spread_piece(c, mine ? i / pieces : 0, mine ? i % pieces * 8 : 0, mine);
    }
}

/* ---- products --------------------------------------------------------------------------------*/

typedef block_shape<64, 2, 2> few_uses;
typedef block_shape<256, 2, 1> many_uses;
/* Up to 8 tokens, so that no expert has more uses; and the first product of very few. */
typedef block_shape<8, 2, 3> up_of_8;
typedef block_shape<8, 1, 5> down_of_8;
typedef block_shape<8, 2, 2, true> up_of_few;

/* What a block serves. The first tiles of the grid are the shared expert's, which all tokens use;
 * then come the routed ones'. */
struct uses {
    int first, count; /* slots, or tokens of the shared expert */
    bool shared;
    dk_expert expert;
    const float *weight; /* of the first use, if not shared */
    int place;           /* of the only use, where there are no lists */
};

template <class S> static __host__ __device__ __forceinline__ int shared_tiles(const dk_moe &c) {
    return (c.n + S::COLS - 1) / S::COLS;
}

/* Lists are read past the first cache: a block may have begun before the kernel in front ended.
 * Very few tokens need none: a tile is one use. */
template <class S> static __device__ __forceinline__ uses uses_of(const dk_moe &c) {
    int tile = (int)blockIdx.y - shared_tiles<S>(c);
    const dk_expert *expert = c.shared;
    uses u = {};
    if (tile < 0) {
        u.shared = true;
        u.first = blockIdx.y * S::COLS;
        u.count = min((int)S::COLS, c.n - u.first);
    } else if (c.unlisted) {
        int token = tile / c.top_k, i = tile % c.top_k;
        expert = c.table + __ldcg(c.experts + tile);
        u.first = tile * 8;
        u.count = 1;
        u.weight = c.weights + tile;
        u.place = token * (c.top_k + 1) + rank_of(c.experts + token * c.top_k, c.top_k, i);
    } else if (tile < __ldcg(c.num_tiles)) {
        expert = c.table + __ldcg(&c.tiles[tile].expert);
        u.first = __ldcg(&c.tiles[tile].first);
        u.count = __ldcg(&c.tiles[tile].count);
        u.weight = c.weight + u.first;
    }
    u.expert = *expert;
    return u;
}

/* Columns that a tile of so many uses is computed with. */
template <class S> static __device__ __forceinline__ int columns_for(int count) {
    if (S::PAIRED) {
        return count > 192                  ? 256
               : count > 96 && count <= 160 ? (count + 15) / 16 * 16
                                            : (count + 31) / 32 * 32;
    }
    return S::COLS == 8 || count <= 8 ? 8 : count <= 16 ? 16 : count <= 32 ? 32 : 64;
}

template <int F, class S>
static __device__ __forceinline__ void consume_uses(const ring &r, const product_job<S> &j,
                                                    own_rows own) {
    if constexpr (S::PAIRED) {
        switch (r.columns) {
        case 32:
            return consume_columns<F, 32, S>(r, j);
        case 64:
            return consume_columns<F, 64, S>(r, j);
        case 96:
            return consume_columns<F, 96, S>(r, j);
        case 112:
            return consume_columns<F, 112, S>(r, j);
        case 128:
            return consume_columns<F, 128, S>(r, j);
        case 144:
            return consume_columns<F, 144, S>(r, j);
        case 160:
            return consume_columns<F, 160, S>(r, j);
        case 192:
            return consume_columns<F, 192, S>(r, j);
        default:
            return consume_columns<F, 256, S>(r, j);
        }
    } else if constexpr (S::COLS == 8) {
        consume_columns<F, 8, S>(r, j, own);
    } else {
        switch (r.columns) {
        case 8:
            return consume_columns<F, 8, S>(r, j);
        case 16:
            return consume_columns<F, 16, S>(r, j);
        case 32:
            return consume_columns<F, 32, S>(r, j);
        default:
            return consume_columns<F, 64, S>(r, j);
        }
    }
}

/* Four rows' sums of a use; NaN where the row holds a NaN code. */
template <class S>
static __device__ __forceinline__ void take_four(const ring &r, int row, int use, uint32_t nans,
                                                 float (&sum)[4]) {
    float4 v = *(const float4 *)((const float *)r.at + use * S::PITCH + row);
    sum[0] = v.x;
    sum[1] = v.y;
    sum[2] = v.z;
    sum[3] = v.w;
#pragma unroll
    for (int i = 0; i < 4 && nans; i++) {
        sum[i] = nans >> 8 * i & 255 ? __uint_as_float(0x7fc00000u) : sum[i];
    }
}

static __device__ __forceinline__ uint32_t nans_of(const dk_matrix &w, const uint8_t *data,
                                                   int row) {
    if (w.format != DK_FP8) {
        return 0;
    }
    return __ldg((const uint32_t *)(data + (size_t)w.tiles * dk_tile_bytes(&w) + row));
}

/* t of 64 of an expert's inner rows (w1's sums in the first half of the block's rows, w3's in the
 * second): SwiGLU, Q8. A warp takes 32 rows of four uses, a thread four rows of one. */
template <class S>
static __device__ __forceinline__ void finish_up(const dk_moe &c, const ring &r, const uses &u,
                                                 const dk_matrix &w) {
    int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, row = half * 32 + lane % 8 * 4;
    int at = blockIdx.x * DK_TILE_ROWS + row, rows = u.shared ? c.n : c.slots;
    dk_bf16 *mid = u.shared ? c.mid_shared : c.mid;
    if ((int)blockIdx.x >= w.tiles) {
        return;
    }
    uint32_t nan1 = nans_of(w, u.expert.w1, at), nan3 = nans_of(w, u.expert.w3, at);
    for (int first = threadIdx.x / 64 * 4; first < u.count; first += S::CONSUMERS / 16) {
        int use = min(first + lane / 8, u.count - 1); /* the last one again, for nothing */
        float a[4], b[4], t[4];
        uint32_t most = 0;
        take_four<S>(r, row, use, nan1, a);
        take_four<S>(r, DK_TILE_ROWS + row, use, nan3, b);
        float weight = u.shared ? 1.0f : __ldcg(u.weight + use);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            dk_bf16 v = swiglu(round_bf16(a[i]), round_bf16(b[i]), weight, c.limit);
            most = max(most, magnitude_bits(v));
            t[i] = bf16_value(v);
        }
        q8_factors f = q8_factors_of(group_max(most, 8));
        *(uint2 *)(mid + prepared_at(rows, u.first + use, at)) = make_uint2(
            q8_pair(t[0], t[1], f.inverse, f.scale), q8_pair(t[2], t[3], f.inverse, f.scale));
    }
}

/* Outputs of an expert, 8 at a time. */
template <class S>
static __device__ __forceinline__ void finish_down(const dk_moe &c, const ring &r, const uses &u,
                                                   const dk_matrix &w) {
    enum { UNITS = S::ROWS / 8 };
    for (int i = threadIdx.x; i < u.count * UNITS; i += S::CONSUMERS) {
        int at = i % UNITS * 8, use = i / UNITS, row = blockIdx.x * S::ROWS + at;
        if (row >= c.d) {
            continue;
        }
        size_t place = u.shared     ? (size_t)(u.first + use) * (c.top_k + 1) + c.top_k
                       : c.unlisted ? (size_t)u.place
                                    : (size_t)__ldcg(c.place + u.first + use);
        eight sum = take_eight<S>(r, at, use);
        spread_nans(nan_rows(w, u.expert.w2, row), &sum);
        *(uint4 *)(c.out + place * c.d + row) = bf16_of(sum);
    }
}

template <class S, bool DOWN>
static __device__ __forceinline__ product_job<S> job_of(const dk_moe &c, const uses &u,
                                                        const dk_matrix &w) {
    size_t tile_bytes = dk_tile_bytes(&w), rows = u.shared ? c.n : c.slots;
    product_job<S> j;
    j.wide = 0;
#pragma unroll
    for (int wg = 0; wg < S::WG; wg++) { /* behind the last tile: it again, for nothing */
        int tile = min(DOWN ? (int)blockIdx.x * S::WG + wg : (int)blockIdx.x, w.tiles - 1);
        const uint8_t *matrix = DOWN ? u.expert.w2 : wg ? u.expert.w3 : u.expert.w1;
        j.tile[wg] = matrix + tile * tile_bytes;
        j.wide |= wide_scales(w, matrix);
    }
    if (DOWN) {
        j.x = u.shared ? c.mid_shared : c.mid;
    } else {
        j.x = u.shared ? c.x_shared : c.x_routed;
    }
    j.x += (size_t)u.first * DK_CHUNK;
    j.plane = rows * DK_CHUNK;
    j.tensor = NULL;
    j.group = j.row = 0;
    j.count = u.count;
    j.begin = 0;
    j.end = j.slice_chunks = w.chunks;
    return j;
}

/* x of `rows` tokens through Q8 into the block's shared memory: [piece of 8 values][row]. */
template <class S>
static __device__ __forceinline__ void fill_rows(const dk_moe &c, int first, int rows,
                                                 uint8_t *own) {
    int pieces = pieces_of(c.d);
    for (int row = 0; row < rows; row++) {
        const uint4 *x = (const uint4 *)(c.x + (size_t)(first + row) * c.d);
        for (int at = 0; at < pieces; at += S::CONSUMERS) {
            int i = at + threadIdx.x;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (i * 8 < c.d) {
                v = __ldg(x + i);
            }
            v = q8_piece(v);
            if (i < pieces) {
                *(uint4 *)(own + (i * rows + row) * 16) = v;
            }
        }
    }
    publish_shared();
    consumers_sync<S>();
}

/* y = bf16(routed ones in ascending expert number, then the shared one), 8 values of a token. */
static __device__ __forceinline__ void combine_piece(const dk_moe &c, size_t token, size_t at) {
    float sum[8] = {};
#pragma unroll 7
    for (int j = 0; j <= c.top_k; j++) {
        uint4 v = __ldcg((const uint4 *)(c.out + (token * (c.top_k + 1) + j) * c.d + at));
        uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            sum[2 * p] += __uint_as_float(w[p] << 16);
            sum[2 * p + 1] += __uint_as_float(w[p] & 0xffff0000u);
        }
    }
    uint32_t w[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        w[p] = to_bf16(sum[2 * p]) | (uint32_t)to_bf16(sum[2 * p + 1]) << 16;
    }
    *(uint4 *)(c.y + token * c.d + at) = make_uint4(w[0], w[1], w[2], w[3]);
}

/* Few tokens: the last of the blocks that have a tile of rows adds the experts up, which saves a
 * launch. */
template <class S> static __device__ __forceinline__ void combine_last(const dk_moe &c) {
    static_assert(S::WG == 1, "one warp group");
    unsigned all = (c.unlisted ? c.n * c.top_k : __ldcg(c.num_tiles)) + shared_tiles<S>(c);
    if (!last_to_come(c.tickets + blockIdx.x, all)) {
        return;
    }
    for (int i = threadIdx.x; i < c.n * DK_TILE_ROWS / 8; i += S::CONSUMERS) {
        int at = blockIdx.x * DK_TILE_ROWS + i % 8 * 8;
        if (at < c.d) {
            combine_piece(c, i / 8, at);
        }
    }
}

/* Grid: tiles of rows, tiles of uses. Up: a tile of w1 and the same of w3; down: tiles of w2. The
 * down product's blocks read weights while the up product still runs: its lists were ready before
 * that began. */
template <class S, bool DOWN>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) experts(dk_moe c) {
    if (!DOWN) {
        wait_for_predecessors();
    }
    let_successors_begin();
    uses u = uses_of<S>(c);
    const dk_matrix &w = DOWN ? u.shared ? c.shared_down : c.down : u.shared ? c.shared_up : c.up;
    if (u.count <= 0) { /* all blocks of a cluster */
        return;
    }
    int rows = u.shared ? c.n : 1, ahead = S::OWN_ROWS ? own_bytes(w.chunks, rows) : 0;
    ring r = place_ring<S>(w.format, columns_for<S>(u.count), ahead);
    product_job<S> j = job_of<S, DOWN>(c, u, w);
    if (threadIdx.x == S::CONSUMERS) {
        init_ring<S>(r);
        produce_early<S>(r, j, w.format);
    }
    __syncwarp();
    share_ring<S>();
    if (threadIdx.x >= S::CONSUMERS) {
        share_registers<S>(false);
        if (threadIdx.x == S::CONSUMERS) {
            produce<S>(r, j, w.format);
        }
        __syncwarp();
    } else {
        share_registers<S>(true);
        own_rows own = {};
        if (S::OWN_ROWS) {
            int first = u.shared ? 0 : ((int)blockIdx.y - shared_tiles<S>(c)) / c.top_k;
            fill_rows<S>(c, first, rows, r.at - ahead);
            own = {own_descriptor_of(r.data - ahead, rows), rows * 8, rows};
        }
        if (w.format == DK_FP4) {
            consume_uses<DK_FP4, S>(r, j, own);
        } else {
            consume_uses<DK_FP8, S>(r, j, own);
        }
        wait_for_predecessors();
        consumers_sync<S>();
        if (DOWN) {
            finish_down<S>(c, r, u, w);
        } else {
            finish_up<S>(c, r, u, w);
        }
        if constexpr (DOWN && S::COLS == 8) {
            combine_last<S>(c);
        }
    }
    if (S::PAIRED) {
        cluster_meet();
    }
}

/* A thread takes 8 values. */
static __global__ void __launch_bounds__(256) combine(dk_moe c) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    let_successors_begin();
    wait_for_predecessors();
    if (i < (size_t)c.n * c.d) {
        combine_piece(c, i / c.d, i % c.d);
    }
}

/* ---- launches --------------------------------------------------------------------------------*/

template <class S, bool DOWN> static void launch(cudaStream_t s, const dk_moe &c) {
    const dk_matrix &routed = DOWN ? c.down : c.up, &shared = DOWN ? c.shared_down : c.shared_up;
    int tiles = max(routed.tiles, shared.tiles);
    int along = DOWN ? (tiles + S::WG - 1) / S::WG : tiles;
    along += S::PAIRED ? along % 2 : 0;
    size_t bytes =
        shared_bytes<S>(max(dk_chunk_bytes(routed.format), dk_chunk_bytes(shared.format)),
                        S::OWN_ROWS ? own_bytes(c.up.chunks, c.n) : 0);
    cudaFuncSetAttribute(experts<S, DOWN>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_overlapped(s, experts<S, DOWN>,
                      dim3(along, shared_tiles<S>(c) + (c.unlisted ? c.n * c.top_k : c.max_tiles)),
                      S::THREADS, bytes, S::PAIRED ? 2 : 1, c);
}

static void make_uses(cudaStream_t s, const dk_moe &c) {
    launch_overlapped(s, make_lists, dim3(1), 1024, (size_t)c.num_experts * sizeof(int32_t), 1, c);
    if (c.n > SPREAD_AT_ONCE) {
        launch_overlapped(s, spread, dim3(c.n, (pieces_of(c.d) + 255) / 256), 256, 0, 1, c);
    }
}

/* So few tokens seldom share an expert: every use reads it. Their x fits beside the ring. */
enum { UNLISTED = 4, OWN_VALUES = 20480 };

/* Routed experts are FP4 or FP8 matrices, and so is the shared one. */
void dk_moe_run(cudaStream_t s, const dk_moe *m) {
    dk_moe c = *m;
    c.unlisted = c.n <= UNLISTED && c.n * c.top_k <= c.num_experts && c.n * c.d <= OWN_VALUES;
    if (!c.unlisted) {
        make_uses(s, c);
    }
    if (c.n <= up_of_8::COLS && c.down.tiles <= DK_MOE_TICKETS) {
        if (c.unlisted) {
            launch<up_of_few, false>(s, c);
        } else {
            launch<up_of_8, false>(s, c);
        }
        launch<down_of_8, true>(s, c);
        return;
    }
    if (c.tile_rows == many_uses::COLS) {
        launch<many_uses, false>(s, c);
        launch<many_uses, true>(s, c);
    } else {
        launch<few_uses, false>(s, c);
        launch<few_uses, true>(s, c);
    }
    size_t cells = (size_t)c.n * c.d;
    launch_overlapped(s, combine, dim3((unsigned)((cells / 8 + 255) / 256)), 256, 0, 1, c);
}
