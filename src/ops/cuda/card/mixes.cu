/* Mixes of the streams (hyper-connections). Of few rows they come of one launch: the streams'
 * projection, spread over warps, whose last block makes the coefficients; of many rows of two. Few
 * are bound by latencies (the Sinkhorn rounds are one long chain; a recorded step has them beside
 * the work of the sub-block, which needs them only where it ends), many by the tensor cores' f64.
 *
 * A projection's order, in f64, whatever the number of rows: the width is cut into 128 parts of as
 * many chunks of 32 values; a part is one chain of tensor-core steps of 8 values; eight parts
 * ascending are a slot, 16 slots ascending the sum. Square sums likewise, but that a part has four
 * chains, of eight neighbouring values of each chunk, added as a tree. */
#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

enum {
    MAX_HC = 8,
    THREADS = 256,
    PARTS = THREADS / 32, /* of a slot: a warp's each */
    SLOTS = 16,
    TILE = 16, /* tokens of a tensor-core step; it has eight rows of fn */
    CHUNK = 32,
    CHUNKS = 5, /* of a part of the model's width */
};

/* ---- loading ---------------------------------------------------------------------------------
 *
 * WHOLE: d is a multiple of 8, so that all rows are aligned. */

/* Eight neighbouring values of a row of h and of fn; zeros behind the row's end and the last row.
 */
template <bool WHOLE>
static __device__ __forceinline__ uint4 load_h(const dk_mix &c, int t, int i) {
    const dk_bf16 *p = c.h + (size_t)t * c.width + i;
    [[maybe_unused]] uint32_t v[8] = {};
    if (t >= c.n || i >= c.width) {
        return make_uint4(0, 0, 0, 0);
    }
    if constexpr (WHOLE) {
        return *(const uint4 *)p;
    } else {
        for (int j = 0; j < 8; j++) {
            v[j] = i + j < c.width ? p[j] : 0;
        }
        return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16,
                          v[6] | v[7] << 16);
    }
}

template <bool WHOLE>
static __device__ __forceinline__ void load_fn(const dk_mix &c, int r, int i, float (&v)[8]) {
    const float *p = c.fn + (size_t)r * c.width + i;
    bool in = r < c.mixes && i < c.width;
    if constexpr (WHOLE) {
        float4 low = in ? *(const float4 *)p : make_float4(0, 0, 0, 0);
        float4 high = in ? *(const float4 *)(p + 4) : make_float4(0, 0, 0, 0);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
        for (int j = 0; j < 8; j++) {
            v[j] = in && i + j < c.width ? p[j] : 0;
        }
    }
}

/* ---- projection ------------------------------------------------------------------------------*/

/* acc [16 tokens, 8 rows of fn] += a [16, 8 values] b [8 values, 8]. With g = lane / 4 and t = lane
 * % 4: a has tokens g, g + 8 at value t, then at t + 4; b row g of fn at these; acc token g at rows
 * 2t, 2t + 1, then g + 8. */
static __device__ __forceinline__ void add_products(double (&acc)[4], const double (&a)[4],
                                                    double b0, double b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+d"(acc[0]), "+d"(acc[1]), "+d"(acc[2]), "+d"(acc[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
}

/* One of two neighbouring BF16 values. */
static __device__ __forceinline__ double widen(uint32_t pair, int which) {
    return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
}

/* A chunk of tokens g and g + 8 into the sums of GROUPS times eight rows of fn, and of the squares.
 * Which values are a step's is free, so a lane has eight neighbouring ones of the chunk. */
template <int GROUPS>
static __device__ __forceinline__ void add_chunk(const uint4 (&x)[2], const float (&w)[GROUPS][8],
                                                 double (&acc)[GROUPS][4], double (&squares)[2]) {
    const uint32_t pair[2][4] = {{x[0].x, x[0].y, x[0].z, x[0].w},
                                 {x[1].x, x[1].y, x[1].z, x[1].w}};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const double a[4] = {widen(pair[0][j], 0), widen(pair[1][j], 0), widen(pair[0][j], 1),
                             widen(pair[1][j], 1)};
#pragma unroll
        for (int r = 0; r < GROUPS; r++) { /* products are exact */
            add_products(acc[r], a, w[r][2 * j], w[r][2 * j + 1]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            squares[k % 2] = fma(a[k], a[k], squares[k % 2]);
        }
    }
}

/* Parts of the sums of a tile of tokens and of GROUPS times eight rows of fn, and, last, of the
 * squares. */
template <int GROUPS> struct tile_parts {
    enum { COLUMNS = GROUPS * 8 + 1 };
    double v[PARTS][TILE][COLUMNS];
};

/* A warp's part. */
template <int GROUPS>
static __device__ __forceinline__ void
put_part(tile_parts<GROUPS> *parts, const double (&acc)[GROUPS][4], const double (&squares)[2]) {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        double *to = parts->v[warp][g + 8 * h];
#pragma unroll
        for (int r = 0; r < GROUPS; r++) {
            to[r * 8 + 2 * t] = acc[r][2 * h];
            to[r * 8 + 2 * t + 1] = acc[r][2 * h + 1];
        }
        double sum = squares[h] + __shfl_xor_sync(0xffffffffu, squares[h], 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        to[GROUPS * 8] = sum; /* the same in four lanes */
    }
}

/* A slot, by the block: its parts, to c.sums. The groups are fn's from `group` on. */
template <int GROUPS>
static __device__ __forceinline__ void add_parts(const dk_mix &c, const tile_parts<GROUPS> *parts,
                                                 int group, int t0, int slot) {
    enum { COLUMNS = tile_parts<GROUPS>::COLUMNS };
    for (int i = threadIdx.x; i < TILE * COLUMNS; i += THREADS) {
        int token = i / COLUMNS, column = i % COLUMNS;
        int row = column < GROUPS * 8 ? group * 8 + column : c.mixes;
        double sum = parts->v[0][token][column];
#pragma unroll
        for (int p = 1; p < PARTS; p++) {
            sum += parts->v[p][token][column];
        }
        if (t0 + token < c.n && (column < GROUPS * 8 ? row < c.mixes : group == 0)) {
            c.sums[((size_t)(t0 + token) * (c.mixes + 1) + row) * SLOTS + slot] = sum;
        }
    }
}

/* ---- few tokens ------------------------------------------------------------------------------*/

/* A warp's part of the sums of a tile and eight rows of fn. */
template <bool WHOLE>
static __device__ __forceinline__ void project(const dk_mix &c, int group, int t0, int part,
                                               double (&acc)[1][4], double (&squares)[2]) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int begin = part * c.part, end = min(begin + c.part, c.width);
    for (int first = begin; first < end; first += CHUNKS * CHUNK) {
        uint4 x[CHUNKS][2];
        float w[CHUNKS][1][8];
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) { /* all under way at once */
            int at = first + u * CHUNK, i = at < end ? at + t * 8 : c.width;
            x[u][0] = load_h<WHOLE>(c, t0 + g, i);
            x[u][1] = load_h<WHOLE>(c, t0 + g + 8, i);
            load_fn<WHOLE>(c, group * 8 + g, i, w[u][0]);
        }
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) {
            add_chunk<1>(x[u], w[u], acc, squares);
        }
    }
}

/* ---- coefficients ----------------------------------------------------------------------------*/

/* Each element divided by the sum of its row (or column) + sum_eps, which runs upwards, + eps. By
 * one warp. */
static __device__ __forceinline__ void normalise(float *comb, int hc, bool rows, float sum_eps,
                                                 float eps) {
    float value[2]; /* a lane has elements lane and lane + 32 */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int i = threadIdx.x % 32 + 32 * e;
        if (i < hc * hc) {
            const float *from = comb + (rows ? i / hc * hc : i % hc);
            float sum = 0;
#pragma unroll 1
            for (int j = 0; j < hc; j++) {
                sum += from[j * (rows ? 1 : hc)];
            }
            value[e] = comb[i] / (sum + sum_eps) + eps;
        }
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int i = threadIdx.x % 32 + 32 * e;
        if (i < hc * hc) {
            comb[i] = value[e];
        }
    }
    __syncwarp();
}

/* Softmax of each row, + eps. */
static __device__ __forceinline__ void soften(float *comb, int hc, float eps) {
    float value[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int i = threadIdx.x % 32 + 32 * e;
        if (i < hc * hc) {
            const float *row = comb + i / hc * hc;
            float top = row[0];
#pragma unroll 1
            for (int j = 1; j < hc; j++) {
                top = row[j] > top ? row[j] : top;
            }
            value[e] = di_expf(comb[i] - top);
        }
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int i = threadIdx.x % 32 + 32 * e;
        if (i < hc * hc) {
            comb[i] = value[e];
        }
    }
    __syncwarp();
    normalise(comb, hc, true, 0, eps);
}

/* a / b as the division rounds it, where neither these nor the quotient are far from 1: without
 * the check for that, which takes longer. */
static __device__ __forceinline__ float plain_quotient(float a, float b) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = fmaf(fmaf(-b, r, 1.0f), r, r);
    float q = a * r;
    q = fmaf(fmaf(-b, q, a), r, q);
    return fmaf(fmaf(-b, q, a), r, q);
}

/* Sinkhorn rounds where a lane of the first 16 has an element: hc = 4, no memory between. All
 * elements lie between eps and 1 (or are NaN). */
static __device__ __forceinline__ float rounds_of_four(float value, const dk_mix &c) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int step = 1; step < 2 * c.sinkhorn_iters; step++) { /* columns first, then rows, ... */
        bool rows = step % 2 == 0;
        int first = rows ? lane & ~3 : lane % 4, stride = rows ? 1 : 4;
        float a = __shfl_sync(0xffffffffu, value, first);
        float b = __shfl_sync(0xffffffffu, value, first + stride);
        float d = __shfl_sync(0xffffffffu, value, first + 2 * stride);
        float e = __shfl_sync(0xffffffffu, value, first + 3 * stride);
        value = plain_quotient(value, ((a + b) + d) + e + c.hc_eps);
    }
    return value;
}

/* One warp makes the weights of a token's streams. sum: [mixes + 1]. */
static __device__ __forceinline__ void finish_weights(const dk_mix &c, int t, const double *sum) {
    int lane = threadIdx.x % 32, hc = c.hc;
    double rho = 1 / sqrt(sum[c.mixes] / c.width + (double)c.norm_eps);
    if (lane < 2 * hc) {
        bool pre = lane < hc;
        float x = (float)(sum[lane] * rho) * c.scale[pre ? 0 : 1] + c.base[lane];
        float y = di_sigmoidf(x);
        if (pre) {
            c.pre[t * hc + lane] = y + c.hc_eps;
        } else {
            c.post[t * hc + lane - hc] = 2.0f * y;
        }
    }
}

/* One warp makes a token's matrix. comb: [MAX_HC * MAX_HC]. */
static __device__ __forceinline__ void finish_matrix(const dk_mix &c, int t, const double *sum,
                                                     float *comb) {
    int lane = threadIdx.x % 32, hc = c.hc;
    double rho = 1 / sqrt(sum[c.mixes] / c.width + (double)c.norm_eps);
#pragma unroll 1
    for (int i = lane; i < hc * hc; i += 32) {
        comb[i] = (float)(sum[2 * hc + i] * rho) * c.scale[2] + c.base[2 * hc + i];
    }
    __syncwarp();
    soften(comb, hc, c.hc_eps);
    if (hc == 4) {
        float value = comb[lane % 16]; /* which another lane writes */
        __syncwarp();
        comb[lane] = rounds_of_four(value, c);
        __syncwarp();
    } else {
        normalise(comb, hc, false, c.hc_eps, 0);
#pragma unroll 1
        for (int round = 1; round < c.sinkhorn_iters; round++) {
            normalise(comb, hc, true, c.hc_eps, 0);
            normalise(comb, hc, false, c.hc_eps, 0);
        }
    }
#pragma unroll 1
    for (int i = lane; i < hc * hc; i += 32) {
        c.comb[(size_t)t * hc * hc + i] = comb[i];
    }
}

/* Whether this is the last of `count` blocks to come here; the others' results are then seen. */
static __device__ bool last_to_come(unsigned *ticket, unsigned count) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1) == count - 1;
        if (last) {
            *ticket = 0; /* for the next launch */
        }
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* ---- mixes -----------------------------------------------------------------------------------*/

/* What a block makes coefficients of up to TILE tokens in. */
struct finish_room {
    double sums[TILE][(2 + MAX_HC) * MAX_HC + 1];
    float comb[THREADS / 32][MAX_HC * MAX_HC];
};

/* The coefficients of `count` tokens from t0 on, whose slots are all there, by a block. */
static __device__ __forceinline__ void finish(const dk_mix &c, finish_room *room, int t0,
                                              int count) {
    int warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < count * (c.mixes + 1); i += THREADS) {
        int t = i / (c.mixes + 1), at = i % (c.mixes + 1);
        const double *from = c.sums + ((size_t)(t0 + t) * (c.mixes + 1) + at) * SLOTS;
        double v[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            v[s] = __ldcg(from + s);
        }
        double sum = v[0];
#pragma unroll
        for (int s = 1; s < SLOTS; s++) {
            sum += v[s];
        }
        room->sums[t][at] = sum;
    }
    __syncthreads();
    for (int job = warp; job < 2 * count; job += THREADS / 32) { /* the long ones first */
        if (job < count) {
            finish_matrix(c, t0 + job, room->sums[job], room->comb[warp]);
        } else {
            finish_weights(c, t0 + job - count, room->sums[job - count]);
        }
    }
}

/* x = (h[t] . fn[r]) * scale / sqrt(mean(h[t]^2) + eps) + base, for h [n, hc * d] and fn's (2 +
 * hc) * hc rows; pre = sigmoid(x) + eps, post = 2 sigmoid(x), comb = Sinkhorn rounds on
 * softmax(x). With hc 4 and d 5120: 8.4 us for a row, 257 us for 8,192, 29 % of the bandwidth
 * (bench/cuda_rows).
 *
 * Few tokens, one launch. Grid: tiles of tokens; slots of each eight rows of fn. */
template <bool WHOLE> static __global__ void __launch_bounds__(THREADS, 1) mix_few(dk_mix c) {
    __shared__ union {
        tile_parts<1> parts;
        finish_room finish;
    } room;
    int t0 = blockIdx.x * TILE, group = blockIdx.y / SLOTS, slot = blockIdx.y % SLOTS;
    double acc[1][4] = {}, squares[2] = {};
    begin_overlapped();
    project<WHOLE>(c, group, t0, slot * PARTS + threadIdx.x / 32, acc, squares);
    put_part<1>(&room.parts, acc, squares);
    __syncthreads();
    add_parts<1>(c, &room.parts, group, t0, slot);
    if (last_to_come(c.tickets + blockIdx.x, gridDim.y)) {
        finish(c, &room.finish, t0, min((int)TILE, c.n - t0));
    }
}

/* Many tokens: the sums of all tiles, each block with a slot of fn in its shared memory and one
 * tile after the other, the next one's values under way. Grid: what shares the tiles; slots. */
enum { MANY_GROUPS = 3, MANY_FN = PARTS * CHUNKS * MANY_GROUPS * 2 * 32 * 16 /* bytes */ };

static __global__ void __launch_bounds__(THREADS, 1) project_many(dk_mix c) {
    extern __shared__ __align__(16) uint8_t shared[];
    tile_parts<MANY_GROUPS> *parts = (tile_parts<MANY_GROUPS> *)(shared + MANY_FN);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int slot = blockIdx.y, begin = (slot * PARTS + warp) * c.part;
    float4 *fn = (float4 *)shared + warp * (CHUNKS * MANY_GROUPS * 2 * 32) + lane;
    let_successors_begin();
#pragma unroll
    for (int u = 0; u < CHUNKS; u++) { /* a lane keeps what it needs itself */
        int i = u * CHUNK < c.part ? begin + u * CHUNK + t * 8 : c.width;
#pragma unroll
        for (int r = 0; r < MANY_GROUPS; r++) {
            float v[8];
            load_fn<true>(c, r * 8 + g, i, v);
            fn[(u * MANY_GROUPS + r) * 64] = make_float4(v[0], v[1], v[2], v[3]);
            fn[(u * MANY_GROUPS + r) * 64 + 32] = make_float4(v[4], v[5], v[6], v[7]);
        }
    }
    wait_for_predecessors();
    uint4 next[CHUNKS][2] = {};
    for (int t0 = blockIdx.x * TILE, last = -1, buffer = 0; last < c.n;
         last = t0, t0 += gridDim.x * TILE, buffer ^= 1) {
        uint4 x[CHUNKS][2];
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) { /* of the tile that is next, zeros behind the last one */
            int i = u * CHUNK < c.part ? begin + u * CHUNK + t * 8 : c.width;
            x[u][0] = next[u][0];
            x[u][1] = next[u][1];
            next[u][0] = load_h<true>(c, t0 + g, i);
            next[u][1] = load_h<true>(c, t0 + g + 8, i);
        }
        if (last < 0) {
            continue;
        }
        double acc[MANY_GROUPS][4] = {}, squares[2] = {};
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) {
            float w[MANY_GROUPS][8];
#pragma unroll
            for (int r = 0; r < MANY_GROUPS; r++) {
                float4 low = fn[(u * MANY_GROUPS + r) * 64];
                float4 high = fn[(u * MANY_GROUPS + r) * 64 + 32];
                w[r][0] = low.x, w[r][1] = low.y, w[r][2] = low.z, w[r][3] = low.w;
                w[r][4] = high.x, w[r][5] = high.y, w[r][6] = high.z, w[r][7] = high.w;
            }
            add_chunk<MANY_GROUPS>(x[u], w, acc, squares);
        }
        put_part<MANY_GROUPS>(parts + buffer, acc, squares);
        __syncthreads(); /* and the other buffer is done with */
        add_parts<MANY_GROUPS>(c, parts + buffer, 0, last, slot);
    }
}

/* Behind it. Grid: eights of tokens. */
enum { FINISHED = 8 };

static __global__ void __launch_bounds__(THREADS) finish_many(dk_mix c) {
    __shared__ finish_room room;
    int t0 = blockIdx.x * FINISHED;
    begin_overlapped();
    finish(c, &room, t0, min((int)FINISHED, c.n - t0));
}

static void mix_many(cudaStream_t s, const dk_mix &c) {
    enum { BLOCKS = 8 /* to a slot: 128 in all, one a multiprocessor */ };
    int tiles = (c.n + TILE - 1) / TILE, bytes = MANY_FN + 2 * (int)sizeof(tile_parts<MANY_GROUPS>);
    cudaFuncSetAttribute(project_many, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    launch_overlapped(s, project_many, dim3(min(tiles, (int)BLOCKS), SLOTS), THREADS, bytes, 1, c);
    launch_overlapped(s, finish_many, dim3((c.n + FINISHED - 1) / FINISHED), THREADS, 0, 1, c);
}

void dk_mhc_mix(cudaStream_t s, const dk_mix *m) {
    enum { FEW = 32, ALL = SLOTS * PARTS * CHUNK };
    bool whole = m->width / m->hc % 8 == 0;
    dk_mix c = *m;
    c.part = (c.width + ALL - 1) / ALL * CHUNK;
    if (c.n > FEW && whole && c.mixes <= 8 * MANY_GROUPS && c.part <= CHUNKS * CHUNK) {
        mix_many(s, c);
        return;
    }
    dim3 grid((c.n + TILE - 1) / TILE, SLOTS * ((c.mixes + 7) / 8));
    launch_overlapped(s, whole ? mix_few<true> : mix_few<false>, grid, THREADS, 0, 1, c);
}
