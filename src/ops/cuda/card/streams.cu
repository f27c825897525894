/* Hyper-connections. Mixes come of one launch: the streams' projection, spread over warps, whose
 * last block makes the coefficients. Few rows are bound by latencies (the Sinkhorn rounds are one
 * long chain; a recorded step has them beside the work of the sub-block, which needs them only
 * where it ends), many by conversions to f64. Where a sub-block ends and the next begins is one
 * launch too: a cluster of blocks takes a row, each with 1024 of its columns.
 *
 * A projection's or square sum's order, in f64, whatever the number of rows: 512 partial sums, the
 * i-th taking values 4i .. 4i + 3 of every 2048; 32 of them as a tree; those 16 ascending. The
 * norm's is that of rms_norm (rows.cu). */
#include <cooperative_groups.h>

#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

namespace cg = cooperative_groups;

enum { MAX_HC = 8, LANES = 512 /* partial sums */, SLOTS = LANES / 32, THREADS = 256 };

/* ---- loading ---------------------------------------------------------------------------------
 *
 * WHOLE: d is a multiple of 8, so that all rows are aligned. */

/* Four neighbouring values of a row of h and of fn; zeros behind the row's end and the last row. */
template <bool WHOLE>
static __device__ __forceinline__ uint2 load_h(const dk_mix &c, int t, int i) {
    const dk_bf16 *p = c.h + (size_t)t * c.width + i;
    [[maybe_unused]] uint32_t v[4] = {};
    if (t >= c.n || i >= c.width) {
        return make_uint2(0, 0);
    }
    if constexpr (WHOLE) {
        return *(const uint2 *)p;
    } else {
        for (int j = 0; j < 4; j++) {
            v[j] = i + j < c.width ? p[j] : 0;
        }
        return make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16);
    }
}

template <bool WHOLE>
static __device__ __forceinline__ float4 load_fn(const dk_mix &c, int r, int i) {
    const float *p = c.fn + (size_t)r * c.width + i;
    [[maybe_unused]] float v[4] = {};
    if (r >= c.mixes || i >= c.width) {
        return make_float4(0, 0, 0, 0);
    }
    if constexpr (WHOLE) {
        return *(const float4 *)p;
    } else {
        for (int j = 0; j < 4; j++) {
            v[j] = i + j < c.width ? p[j] : 0;
        }
        return make_float4(v[0], v[1], v[2], v[3]);
    }
}

static __device__ __forceinline__ void widen(uint2 v, double x[4]) {
    x[0] = __uint_as_float(v.x << 16);
    x[1] = __uint_as_float(v.x & 0xffff0000u);
    x[2] = __uint_as_float(v.y << 16);
    x[3] = __uint_as_float(v.y & 0xffff0000u);
}

/* Eight neighbouring values from column i on, zeros behind d. */
template <bool WHOLE>
static __device__ __forceinline__ void load_eight(const dk_bf16 *row, int i, int d, float v[8]) {
    __align__(16) dk_bf16 raw[8] = {};
    if (WHOLE) {
        *(uint4 *)raw = *(const uint4 *)(row + i);
    } else {
        for (int j = 0; j < 8; j++) {
            raw[j] = i + j < d ? row[i + j] : 0;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = bf16_value(raw[j]);
    }
}

template <bool WHOLE>
static __device__ __forceinline__ void store_eight(dk_bf16 *row, int i, int d, const float v[8]) {
    __align__(16) dk_bf16 raw[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        raw[j] = to_bf16(v[j]);
    }
    if (WHOLE) {
        *(uint4 *)(row + i) = *(const uint4 *)raw;
    } else {
        for (int j = 0; j < 8 && i + j < d; j++) {
            row[i + j] = raw[j];
        }
    }
}

/* ---- projection ------------------------------------------------------------------------------*/

/* One warp's 32 of the partial sums of ROWS rows of fn and TOKENS rows of h, added up. The group
 * behind fn's last row makes the sums of squares. */
template <int ROWS, int TOKENS, bool WHOLE>
static __device__ __forceinline__ void project(const dk_mix &c, int row0, int t0, int slot) {
    enum { AHEAD = ROWS * TOKENS == 1 ? 10 : 1 }; /* loads under way */
    int lane = threadIdx.x % 32, mixes = c.mixes;
    bool squares = row0 >= mixes;
    double acc[ROWS][TOKENS] = {};
    for (int first = (slot * 32 + lane) * 4; first < c.width; first += AHEAD * LANES * 4) {
        uint2 x[AHEAD][TOKENS];
        float4 w[AHEAD][ROWS];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int i = first + u * LANES * 4;
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                x[u][t] = load_h<WHOLE>(c, t0 + t, i);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                w[u][r] = load_fn<WHOLE>(c, row0 + r, i);
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            double y[TOKENS][4];
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                widen(x[u][t], y[t]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                double v[4] = {w[u][r].x, w[u][r].y, w[u][r].z, w[u][r].w};
#pragma unroll
                for (int t = 0; t < TOKENS; t++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) { /* products are exact */
                        acc[r][t] = fma(y[t][j], squares ? y[t][j] : v[j], acc[r][t]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            int to = squares ? mixes + r : row0 + r;
            double sum = warp_sum(acc[r][t]);
            if (lane == 0 && t0 + t < c.n && (to < mixes || (squares && r == 0))) {
                c.sums[((size_t)(t0 + t) * (mixes + 1) + to) * SLOTS + slot] = sum;
            }
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

/* x = (h[t] . fn[r]) * scale / sqrt(mean(h[t]^2) + eps) + base, for h [n, hc * d] and fn's (2 +
 * hc) * hc rows; pre = sigmoid(x) + eps, post = 2 sigmoid(x), comb = Sinkhorn rounds on
 * softmax(x). With hc 4 and d 5120: 9.0 us for a row, 1,133 us for 8,192, which is 298 GB/s or
 * 6.6 % of the bandwidth, as f64 bounds it (bench/results/2026-11-30-h200-rows.txt). Grid: two
 * blocks for each group of fn's rows; groups of tokens. */
template <int ROWS, int TOKENS, bool WHOLE>
static __global__ void __launch_bounds__(THREADS) mix(dk_mix c) {
    __shared__ double sums[TOKENS][(2 + MAX_HC) * MAX_HC + 1];
    __shared__ float comb[TOKENS][MAX_HC * MAX_HC];
    int t0 = blockIdx.y * TOKENS, warp = threadIdx.x / 32, block = blockIdx.x;
    begin_overlapped();
    project<ROWS, TOKENS, WHOLE>(c, block / 2 * ROWS, t0, block % 2 * (SLOTS / 2) + warp);
    if (!last_to_come(c.tickets + blockIdx.y, gridDim.x)) {
        return;
    }
    for (int i = threadIdx.x; i < TOKENS * (c.mixes + 1); i += THREADS) {
        int t = i / (c.mixes + 1), at = i % (c.mixes + 1);
        if (t0 + t < c.n) {
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
            sums[t][at] = sum;
        }
    }
    __syncthreads();
    int t = warp % TOKENS;
    if (warp < TOKENS && t0 + t < c.n) {
        finish_matrix(c, t0 + t, sums[t], comb[t]);
    } else if (warp < 2 * TOKENS && t0 + t < c.n) {
        finish_weights(c, t0 + t, sums[t]);
    }
}

template <int ROWS, int TOKENS> static void launch_mix(cudaStream_t s, const dk_mix &c) {
    int groups = (c.mixes + ROWS - 1) / ROWS + 1;
    dim3 grid(2 * groups, (c.n + TOKENS - 1) / TOKENS);
    if (c.width / c.hc % 8 == 0) {
        launch_overlapped(s, mix<ROWS, TOKENS, true>, grid, THREADS, 0, 1, c);
    } else {
        launch_overlapped(s, mix<ROWS, TOKENS, false>, grid, THREADS, 0, 1, c);
    }
}

void dk_mhc_mix(cudaStream_t s, const dk_mix *m) {
    if (m->n < 8) {
        launch_mix<1, 1>(s, *m);
    } else {
        launch_mix<4, 4>(s, *m);
    }
}

/* ---- streams ---------------------------------------------------------------------------------*/

/* out = bf16(sum of the streams, each with its weight, or with `share`); h [n, hc, d], out [n,
 * d]. Bound by the reading of h. Grid: eights of columns, rows. */
template <bool WHOLE>
static __global__ void weigh_streams(const dk_bf16 *h, const float *weights, float share, int hc,
                                     int d, dk_bf16 *out, size_t ldo) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    size_t t = blockIdx.y;
    begin_overlapped();
    if (i >= d) {
        return;
    }
    float sum[8], v[8];
    for (int s = 0; s < hc; s++) {
        float weight = weights ? weights[t * hc + s] : share;
        load_eight<WHOLE>(h + (t * hc + s) * d, i, d, v);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum[j] = s == 0 ? weight * v[j] : sum[j] + weight * v[j];
        }
    }
    if (ldo % 8 == 0 || !WHOLE) {
        store_eight<WHOLE>(out + t * ldo, i, d, sum);
    } else {
        for (int j = 0; j < 8; j++) {
            out[t * ldo + i + j] = to_bf16(sum[j]);
        }
    }
}

static dim3 eights(int d, int n) {
    return dim3((d + 8 * 128 - 1) / (8 * 128), n);
}

static void weigh(cudaStream_t s, const dk_bf16 *h, const float *weights, float share, int n,
                  int hc, int d, dk_bf16 *out, size_t ldo) {
    if (d % 8 == 0) {
        launch_overlapped(s, weigh_streams<true>, eights(d, n), 128, 0, 1, h, weights, share, hc, d,
                          out, ldo);
    } else {
        launch_overlapped(s, weigh_streams<false>, eights(d, n), 128, 0, 1, h, weights, share, hc,
                          d, out, ldo);
    }
}

void dk_mhc_pre(cudaStream_t s, const dk_bf16 *h, const float *pre, int n, int hc, int d,
                dk_bf16 *out) {
    weigh(s, h, pre, 0, n, hc, d, out, d);
}

void dk_stream_mean(cudaStream_t s, const dk_bf16 *h, int n, int hc, int d, dk_bf16 *out,
                    size_t ldo) {
    weigh(s, h, NULL, 1.0f / (float)hc, n, hc, d, out, ldo);
}

/* ---- from one sub-block to the next ----------------------------------------------------------*/

enum { EXPAND_THREADS = 128, EXPAND_COLUMNS = 8 * EXPAND_THREADS, VIRTUAL = 256 };

/* Eight columns of the streams: expanded, stored, and collapsed with `pre` if there is one. HC: all
 * streams there can be. */
template <bool WHOLE, int HC, bool NORM>
static __device__ __forceinline__ void expand_eight(const dk_expand &e, size_t t, int i,
                                                    float collapsed[8]) {
    int hc = HC == MAX_HC ? e.hc : HC;
    float old[HC][8], value[8];
    dk_bf16 *row = e.h + t * hc * e.d;
    load_eight<WHOLE>(e.y + t * e.d, i, e.d, value);
#pragma unroll
    for (int s = 0; s < HC; s++) {
        if (s < hc) {
            load_eight<WHOLE>(row + (size_t)s * e.d, i, e.d, old[s]);
        }
    }
#pragma unroll
    for (int j = 0; j < HC; j++) {
        if (j >= hc) {
            break;
        }
        const float *weight = e.comb + t * hc * hc + j;
        float sum[8], own = e.post[t * hc + j], share = NORM ? e.pre[t * hc + j] : 0;
#pragma unroll
        for (int s = 0; s < HC; s++) {
            if (s < hc) {
                float w = weight[s * hc];
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    sum[c] = s == 0 ? w * old[0][c] : sum[c] + w * old[s][c];
                }
            }
        }
#pragma unroll
        for (int c = 0; c < 8; c++) {
            sum[c] = round_bf16(own * value[c] + sum[c]);
            if (NORM) {
                collapsed[c] = j == 0 ? share * sum[c] : collapsed[c] + share * sum[c];
            }
        }
        store_eight<WHOLE>(row + (size_t)j * e.d, i, e.d, sum);
    }
}

/* The sum of all blocks' parts as rms_norm forms it with VIRTUAL threads: its thread v takes eights
 * v, v + VIRTUAL, ... of a row. */
static __device__ __forceinline__ double sum_of_row(double part) {
    __shared__ double parts[EXPAND_THREADS], sums[VIRTUAL / 32];
    enum { HALVES = VIRTUAL / EXPAND_THREADS, MOST = 8 };
    cg::cluster_group cluster = cg::this_cluster();
    int size = gridDim.x;
    double all[HALVES] = {}, v[MOST];
    parts[threadIdx.x] = part;
    if (size > 1) {
        cluster.sync();
    } else {
        __syncthreads();
    }
#pragma unroll
    for (int b = 0; b < MOST; b++) { /* all on their way at once */
        const double *from = size > 1 && b < size ? cluster.map_shared_rank(parts, b) : parts;
        v[b] = b < size ? from[threadIdx.x] : 0;
    }
#pragma unroll
    for (int b = 0; b < MOST; b++) {
        all[b % HALVES] += v[b];
    }
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        double sum = warp_sum(all[half]);
        if (threadIdx.x % 32 == 0) {
            sums[half * (EXPAND_THREADS / 32) + threadIdx.x / 32] = sum;
        }
    }
    __syncthreads();
    double sum = sums[0];
#pragma unroll
    for (int w = 1; w < VIRTUAL / 32; w++) {
        sum += sums[w];
    }
    return sum;
}

/* h[j] = bf16(post[j] * y + sum_i comb[i][j] * h[i]) by stream, then x = norm(bf16(sum_j pre[j] h[j]))
 * and Q8(x); h [n, hc, d], y, x [n, d]. A row is bound by latencies, 3.8 us; 8,192 rows
 * of 4 * 5120 by memory: 368 us, 50 % of the bandwidth (bench/results/2026-11-30-h200-rows.txt).
 * Grid: shares of a row (a cluster), rows. It lets the next kernels begin late, as the router
 * does: these take all there is and would keep other branches of a recorded step waiting. */
template <bool WHOLE, int HC, bool NORM>
static __global__ void __launch_bounds__(EXPAND_THREADS) expand(dk_expand e) {
    int i = blockIdx.x * EXPAND_COLUMNS + threadIdx.x * 8;
    size_t t = blockIdx.y;
    float x[8] = {}, norm[8] = {};
    bool mine = i < e.d;
    if (NORM && mine) {
        load_eight<WHOLE>(e.norm, i, e.d, norm);
    }
    wait_for_predecessors();
    let_successors_begin();
    if (mine) {
        expand_eight<WHOLE, HC, NORM>(e, t, i, x);
    }
    if constexpr (NORM) {
        double part = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            x[c] = round_bf16(x[c]);
            part = fma((double)x[c], (double)x[c], part); /* the product is exact */
        }
        float rho = (float)(1 / sqrt(sum_of_row(part) / e.d + (double)e.norm_eps));
        if (mine) {
#pragma unroll
            for (int c = 0; c < 8; c++) {
                x[c] = norm[c] * (x[c] * rho);
            }
            store_eight<WHOLE>(e.x + t * e.d, i, e.d, x);
        }
        if (e.q8) { /* all lanes: four have a group of Q8's */
            uint4 v = q8_piece(make_uint4(bf16x2_of(x[0], x[1]), bf16x2_of(x[2], x[3]),
                                          bf16x2_of(x[4], x[5]), bf16x2_of(x[6], x[7])));
            if (mine) {
                *(uint4 *)(e.q8 + t * e.d + i) = v;
            }
        }
        if (gridDim.x > 1) {
            cg::this_cluster().sync(); /* others still read this block's part */
        }
    }
}

template <bool WHOLE, bool NORM>
static void launch_expand(cudaStream_t s, const dk_expand &e, int cluster) {
    dim3 grid((e.d + EXPAND_COLUMNS - 1) / EXPAND_COLUMNS, e.n);
    if (e.hc == 4) {
        launch_overlapped(s, expand<WHOLE, 4, NORM>, grid, EXPAND_THREADS, 0, cluster, e);
    } else {
        launch_overlapped(s, expand<WHOLE, MAX_HC, NORM>, grid, EXPAND_THREADS, 0, cluster, e);
    }
}

void dk_mhc_post(cudaStream_t s, const dk_expand *e) {
    int blocks = (e->d + EXPAND_COLUMNS - 1) / EXPAND_COLUMNS;
    if (e->norm && e->d % 8 == 0 && blocks <= 8) {
        launch_expand<true, true>(s, *e, blocks);
        return;
    }
    if (e->d % 8 == 0) {
        launch_expand<true, false>(s, *e, 1);
    } else {
        launch_expand<false, false>(s, *e, 1);
    }
    if (e->norm) {
        dk_mhc_pre(s, e->h, e->pre, e->n, e->hc, e->d, e->x);
        dk_rms_norm(s, e->x, e->norm, e->norm_eps, e->n, e->d, e->x, e->q8);
    }
}
