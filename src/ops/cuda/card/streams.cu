/* Streams of hyper-connections: weighed and added up, and a sub-block's result spread over them.
 * Where a sub-block ends and the next begins is one launch: a cluster of blocks takes a row, each
 * with 1024 of its columns. The norm's order is that of rms_norm (rows.cu). mixes.cu makes the
 * weights. */
#include <cooperative_groups.h>

#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

namespace cg = cooperative_groups;

enum { MAX_HC = 8 };

/* WHOLE: d is a multiple of 8, so that all rows are aligned. */

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

/* h[j] = bf16(post[j] * y + sum_i comb[i][j] * h[i]) by stream, then x = norm(bf16(sum_j pre[j]
 * h[j])) and Q8(x); h [n, hc, d], y, x [n, d]. A row is bound by latencies, 3.8 us; 8,192 rows of 4
 * * 5120 by memory: 368 us, 50 % of the bandwidth (bench/results/2026-11-30-h200-rows.txt). Grid:
 * shares of a row (a cluster), rows. It lets the next kernels begin late, as the router does: these
 * take all there is and would keep other branches of a recorded step waiting. */
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
