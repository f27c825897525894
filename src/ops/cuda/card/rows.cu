/* Ops on single rows: embedding, gathering, norm, rotation. Many rows are bound by memory, few by
 * latencies; bench/cuda_rows times them. Of a recorded layer of 171 us the norm of one
 * query of 1,280 values took 2.2 (bench/results/2026-11-30-h200-rows.txt). Sums of squares are
 * formed in f64, whose order (eights of neighbouring values, those of a thread, then a tree)
 * depends on the row's length alone. */
#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

static unsigned blocks_for(long long n, int per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* ---- embedding and gathering -----------------------------------------------------------------*/

/* h[t][s] = table[tokens[t]] for each of hc streams s, pre[t] = (1, 0, ...); h [n, hc, d], rows of
 * so many words. Bound by the writing of h. Grid: tokens. */
template <typename T>
static __global__ void embed(const int32_t *tokens, const T *table, int words, int hc, T *h,
                             float *pre) {
    int t = blockIdx.x;
    begin_overlapped();
    const T *row = table + (size_t)tokens[t] * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
        T v = row[i];
        for (int s = 0; s < hc; s++) {
            h[((size_t)t * hc + s) * words + i] = v;
        }
    }
    if ((int)threadIdx.x < hc) {
        pre[t * hc + threadIdx.x] = threadIdx.x == 0;
    }
}

void dk_embed(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *table, int d, int hc,
              dk_bf16 *h, float *pre) {
    if (d % 8 == 0 && ((size_t)table | (size_t)h) % 16 == 0) {
        launch_overlapped(s, embed<uint4>, dim3(n), 256, 0, 1, tokens, (const uint4 *)table, d / 8,
                          hc, (uint4 *)h, pre);
    } else {
        launch_overlapped(s, embed<dk_bf16>, dim3(n), 256, 0, 1, tokens, table, d, hc, h, pre);
    }
}

/* to[i] = from[rows[i]], rows of so many words. Bound by memory. Grid: rows. */
template <typename T>
static __global__ void gather(const T *from, const int32_t *rows, size_t words, T *to) {
    begin_overlapped();
    const T *row = from + (size_t)rows[blockIdx.x] * words;
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) {
        to[(size_t)blockIdx.x * words + i] = row[i];
    }
}

void dk_gather(cudaStream_t s, const void *from, const int32_t *rows, int n, size_t bytes,
               void *to) {
    size_t all = bytes | (size_t)from | (size_t)to;
    if (all % 16 == 0) {
        launch_overlapped(s, gather<uint4>, dim3(n), 256, 0, 1, (const uint4 *)from, rows,
                          bytes / 16, (uint4 *)to);
    } else if (all % 4 == 0) {
        launch_overlapped(s, gather<uint32_t>, dim3(n), 256, 0, 1, (const uint32_t *)from, rows,
                          bytes / 4, (uint32_t *)to);
    } else {
        launch_overlapped(s, gather<uint8_t>, dim3(n), 256, 0, 1, (const uint8_t *)from, rows,
                          bytes, (uint8_t *)to);
    }
}

/* ---- norm and rotation -----------------------------------------------------------------------*/

/* Values of a row from i on. aligned: eight of them, as one. */
static __device__ __forceinline__ void store_some(dk_bf16 *row, int i, int dim, bool aligned,
                                                  uint4 v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    if (aligned && i < dim) {
        *(uint4 *)(row + i) = v;
    }
#pragma unroll
    for (int j = 0; !aligned && j < 8; j++) {
        if (i + j < dim) {
            row[i + j] = (dk_bf16)(word[j / 2] >> j % 2 * 16);
        }
    }
}

/* y = bf16(w * (x * rho)), rho = 1 / sqrt(mean(x^2) + eps), and q8 = Q8(y); x, y, q8 [n, dim].
 * Bound by memory: x is read twice, the second time from a cache. A thread takes eight
 * neighbouring values at a time. Grid: rows. */
static __global__ void rms_norm(const dk_bf16 *x, const dk_bf16 *w, float eps, int dim, dk_bf16 *y,
                                dk_bf16 *q8) {
    __shared__ double scratch[32];
    x += (size_t)blockIdx.x * dim;
    y += y ? (size_t)blockIdx.x * dim : 0;
    q8 += q8 ? (size_t)blockIdx.x * dim : 0;
    bool aligned = dim % 8 == 0 && ((size_t)x | (size_t)y | (size_t)q8 | (size_t)w) % 16 == 0;
    double sum = 0;
    begin_overlapped();
    for (int i = threadIdx.x * 8; i < dim; i += blockDim.x * 8) {
        __align__(16) dk_bf16 v[8] = {};
        for (int j = 0; !aligned && j < 8; j++) {
            v[j] = i + j < dim ? x[i + j] : 0;
        }
        if (aligned) {
            *(uint4 *)v = *(const uint4 *)(x + i);
        }
        double part = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            double d = bf16_value(v[j]);
            part = fma(d, d, part); /* the product is exact */
        }
        sum += part;
    }
    sum = block_sum(sum, scratch);
    float rho = (float)(1 / sqrt(sum / dim + (double)eps));
    for (int at = 0; at < dim; at += blockDim.x * 8) { /* all lanes: four have a group of Q8's */
        __align__(16) dk_bf16 v[8] = {}, g[8] = {};
        int i = at + threadIdx.x * 8;
        if (aligned && i < dim) {
            *(uint4 *)v = *(const uint4 *)(x + i);
            *(uint4 *)g = *(const uint4 *)(w + i);
        }
        for (int j = 0; !aligned && j < 8; j++) {
            v[j] = i + j < dim ? x[i + j] : 0;
            g[j] = i + j < dim ? w[i + j] : 0;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] = to_bf16(bf16_value(g[j]) * (bf16_value(v[j]) * rho));
        }
        if (y) {
            store_some(y, i, dim, aligned, *(const uint4 *)v);
        }
        if (q8) {
            store_some(q8, i, dim, aligned, q8_piece(*(const uint4 *)v));
        }
    }
}

void dk_rms_norm(cudaStream_t s, const dk_bf16 *x, const dk_bf16 *w, float eps, int n, int dim,
                 dk_bf16 *y, dk_bf16 *q8) {
    launch_overlapped(s, rms_norm, dim3(n), 256, 0, 1, x, w, eps, dim, y, q8);
}

/* cosine, sine [n, half] of f32(position) * freq[i]. Bound by the f64 sine and cosine, once a
 * step. A thread a pair. */
static __global__ void rope_table(const int64_t *positions, int n, const float *freq, int half,
                                  float *cosine, float *sine) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    begin_overlapped();
    if (i < (long long)n * half) {
        float angle = (float)positions[i / half] * freq[i % half];
        double s, c;
        sincos((double)angle, &s, &c);
        cosine[i] = (float)c;
        sine[i] = (float)s;
    }
}

void dk_rope_table(cudaStream_t s, const int64_t *positions, int n, const float *freq, int half,
                   float *cosine, float *sine) {
    launch_overlapped(s, rope_table, dim3(blocks_for((long long)n * half, 128)), 128, 0, 1,
                      positions, n, freq, half, cosine, sine);
}

/* (a, b) -> (a c - b s, a s + b c) for the last `half` pairs of each of x's [n, heads] vectors
 * of dim values. Bound by memory. A thread a pair. */
static __global__ void rope(dk_bf16 *x, long long pairs, int heads, int dim, const float *cosine,
                            const float *sine, int half, float sign) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    begin_overlapped();
    if (i >= pairs) {
        return;
    }
    int at = (int)(i % half);
    long long vector = i / half, row = vector / heads;
    dk_bf16 *p = x + (vector + 1) * dim - 2 * half + 2 * at;
    float c = cosine[row * half + at], s = sign * sine[row * half + at];
    float a = bf16_value(p[0]), b = bf16_value(p[1]);
    p[0] = to_bf16(a * c - b * s);
    p[1] = to_bf16(a * s + b * c);
}

void dk_rope(cudaStream_t s, dk_bf16 *x, int n, int heads, int dim, const float *cosine,
             const float *sine, int half, bool inverse) {
    long long pairs = (long long)n * heads * half;
    launch_overlapped(s, rope, dim3(blocks_for(pairs, 256)), 256, 0, 1, x, pairs, heads, dim,
                      cosine, sine, half, inverse ? -1.0f : 1.0f);
}
