/* Ops on single rows: embedding, gathering, norm, rotation, hyper-connections.
 * Each is bound by memory. Sums of squares and the hyper-connection projection are formed in f64,
 * whose order (thread by thread, then a tree) depends on the row's length alone. */
#include "common.cuh"

static unsigned blocks_for(long long n, int per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* ---- embedding and gathering -----------------------------------------------------------------*/

static __global__ void embed(const int32_t *tokens, const dk_bf16 *table, size_t pitch, int d,
                             int hc, dk_bf16 *h, float *pre) {
    int t = blockIdx.x;
    const dk_bf16 *row = table + (size_t)tokens[t] * pitch;
    for (int i = threadIdx.x; i < hc * d; i += blockDim.x) {
        h[(size_t)t * hc * d + i] = row[i % d];
    }
    if ((int)threadIdx.x < hc) {
        pre[t * hc + threadIdx.x] = threadIdx.x == 0;
    }
}

void dk_embed(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *table, size_t pitch,
              int d, int hc, dk_bf16 *h, float *pre) {
    embed<<<n, 256, 0, s>>>(tokens, table, pitch, d, hc, h, pre);
}

template <typename T>
static __global__ void gather(const T *from, const int32_t *rows, size_t words, T *to) {
    const T *row = from + (size_t)rows[blockIdx.x] * words;
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) {
        to[(size_t)blockIdx.x * words + i] = row[i];
    }
}

void dk_gather(cudaStream_t s, const void *from, const int32_t *rows, int n, size_t bytes,
               void *to) {
    size_t all = bytes | (size_t)from | (size_t)to;
    if (all % 16 == 0) {
        gather<<<n, 256, 0, s>>>((const uint4 *)from, rows, bytes / 16, (uint4 *)to);
    } else if (all % 4 == 0) {
        gather<<<n, 256, 0, s>>>((const uint32_t *)from, rows, bytes / 4, (uint32_t *)to);
    } else {
        gather<<<n, 256, 0, s>>>((const uint8_t *)from, rows, bytes, (uint8_t *)to);
    }
}

/* ---- norm and rotation -----------------------------------------------------------------------*/

/* A thread takes eight neighbouring values at a time. */
static __global__ void rms_norm(const dk_bf16 *x, const dk_bf16 *w, float eps, int dim,
                                dk_bf16 *y) {
    __shared__ double scratch[32];
    x += (size_t)blockIdx.x * dim;
    y += (size_t)blockIdx.x * dim;
    bool aligned = dim % 8 == 0 && ((size_t)x | (size_t)y | (size_t)w) % 16 == 0;
    double sum = 0;
    for (int i = threadIdx.x * 8; i < dim; i += blockDim.x * 8) {
        __align__(16) dk_bf16 v[8] = {};
        for (int j = 0; !aligned && j < 8; j++) {
            v[j] = i + j < dim ? x[i + j] : 0;
        }
        if (aligned) {
            *(uint4 *)v = *(const uint4 *)(x + i);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            double d = bf16_value(v[j]);
            sum = fma(d, d, sum); /* the product is exact */
        }
    }
    sum = block_sum(sum, scratch);
    float rho = (float)(1 / sqrt(sum / dim + (double)eps));
    for (int i = threadIdx.x * 8; i < dim; i += blockDim.x * 8) {
        __align__(16) dk_bf16 v[8], g[8];
        if (aligned) {
            *(uint4 *)v = *(const uint4 *)(x + i);
            *(uint4 *)g = *(const uint4 *)(w + i);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j] = to_bf16(bf16_value(g[j]) * (bf16_value(v[j]) * rho));
            }
            *(uint4 *)(y + i) = *(const uint4 *)v;
            continue;
        }
        for (int j = i; j < i + 8 && j < dim; j++) {
            y[j] = to_bf16(bf16_value(w[j]) * (bf16_value(x[j]) * rho));
        }
    }
}

void dk_rms_norm(cudaStream_t s, const dk_bf16 *x, const dk_bf16 *w, float eps, int n, int dim,
                 dk_bf16 *y) {
    rms_norm<<<n, 256, 0, s>>>(x, w, eps, dim, y);
}

static __global__ void rope_table(const int64_t *positions, int n, const float *freq, int half,
                                  float *cosine, float *sine) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
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
    rope_table<<<blocks_for((long long)n * half, 128), 128, 0, s>>>(positions, n, freq, half,
                                                                    cosine, sine);
}

static __global__ void rope(dk_bf16 *x, long long pairs, int heads, int dim, const float *cosine,
                            const float *sine, int half, float sign) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
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
    rope<<<blocks_for(pairs, 256), 256, 0, s>>>(x, pairs, heads, dim, cosine, sine, half,
                                                inverse ? -1.0f : 1.0f);
}

/* ---- hyper-connections -----------------------------------------------------------------------*/

enum { MAX_HC = 8, MIX_THREADS = 512 };

/* Four neighbouring values of a row of h and of fn as f64; zeros behind the row's end. */
static __device__ __forceinline__ void load_h(const dk_mhc &c, int t, int i, double x[4]) {
    const dk_bf16 *p = c.h + (size_t)t * c.width + i;
    if (c.width % 4 == 0) {
        uint2 v = *(const uint2 *)p;
        x[0] = __uint_as_float(v.x << 16);
        x[1] = __uint_as_float(v.x & 0xffff0000u);
        x[2] = __uint_as_float(v.y << 16);
        x[3] = __uint_as_float(v.y & 0xffff0000u);
        return;
    }
    for (int j = 0; j < 4; j++) {
        x[j] = i + j < c.width ? bf16_value(p[j]) : 0;
    }
}

static __device__ __forceinline__ void load_fn(const dk_mhc &c, int r, int i, double w[4]) {
    const float *p = c.fn + (size_t)r * c.width + i;
    if (c.width % 4 == 0) {
        float4 v = *(const float4 *)p;
        w[0] = v.x;
        w[1] = v.y;
        w[2] = v.z;
        w[3] = v.w;
        return;
    }
    for (int j = 0; j < 4; j++) {
        w[j] = i + j < c.width ? p[j] : 0;
    }
}

/* Dots of TOKENS rows of h with ROWS rows of fn; the group behind fn's last row makes the sums of
 * squares. A thread takes four neighbouring values at a time. Grid: groups of rows + 1, groups of
 * tokens. */
template <int ROWS, int TOKENS>
static __global__ void __launch_bounds__(MIX_THREADS) mhc_dots(dk_mhc c, int mixes) {
    __shared__ double scratch[32];
    int row0 = blockIdx.x * ROWS, t0 = blockIdx.y * TOKENS;
    bool squares = row0 >= mixes;
    double acc[ROWS][TOKENS] = {};
#pragma unroll(ROWS *TOKENS == 1 ? 5 : 1)
    for (int i = threadIdx.x * 4; i < c.width; i += MIX_THREADS * 4) {
        double x[TOKENS][4] = {}, w[4] = {};
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t0 + t < c.n) {
                load_h(c, t0 + t, i, x[t]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row0 + r < mixes) {
                load_fn(c, row0 + r, i, w);
            }
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
#pragma unroll
                for (int j = 0; j < 4; j++) { /* products are exact */
                    acc[r][t] = fma(x[t][j], squares ? x[t][j] : w[j], acc[r][t]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            int to = squares ? mixes + r : row0 + r;
            if (to > mixes || (!squares && to == mixes)) {
                continue;
            }
            double sum = block_sum(acc[r][t], scratch);
            if (threadIdx.x == 0 && t0 + t < c.n) {
                c.dots[(size_t)(t0 + t) * (mixes + 1) + to] = sum;
            }
        }
    }
}

/* Every element by a thread of its own: divided by the sum of its row (or column) + eps, which runs
 * upwards. */
static __device__ void normalise(float *comb, int hc, int first, int step, float eps) {
    int i = threadIdx.x;
    float value = 0;
    if (i < hc * hc) {
        float sum = 0;
        for (int j = 0; j < hc; j++) {
            sum += comb[first + j * step];
        }
        value = comb[i] / (sum + eps);
    }
    __syncthreads();
    if (i < hc * hc) {
        comb[i] = value;
    }
    __syncthreads();
}

/* One block of 64 threads a token. */
static __global__ void __launch_bounds__(MAX_HC *MAX_HC) mhc_finish(dk_mhc c, int mixes) {
    __shared__ float comb[MAX_HC * MAX_HC];
    int t = blockIdx.x, hc = c.hc, i = threadIdx.x, row = i / hc * hc, column = i % hc;
    const double *dot = c.dots + (size_t)t * (mixes + 1);
    double rho = 1 / sqrt(dot[mixes] / c.width + (double)c.norm_eps);
    if (i < hc) {
        float pre = (float)(dot[i] * rho), post = (float)(dot[hc + i] * rho);
        c.pre[t * hc + i] = sigmoid32(pre * c.scale[0] + c.base[i]) + c.hc_eps;
        c.post[t * hc + i] = 2.0f * sigmoid32(post * c.scale[1] + c.base[hc + i]);
    }
    if (i < hc * hc) {
        comb[i] = (float)(dot[2 * hc + i] * rho) * c.scale[2] + c.base[2 * hc + i];
    }
    __syncthreads();
    float value = 0;
    if (i < hc * hc) { /* softmax of the rows */
        float top = comb[row];
        for (int j = 1; j < hc; j++) {
            top = comb[row + j] > top ? comb[row + j] : top;
        }
        value = exp32(comb[i] - top);
    }
    __syncthreads();
    if (i < hc * hc) {
        comb[i] = value;
    }
    __syncthreads();
    if (i < hc * hc) {
        float sum = 0;
        for (int j = 0; j < hc; j++) {
            sum += comb[row + j];
        }
        value = value / sum + c.hc_eps;
    }
    __syncthreads();
    if (i < hc * hc) {
        comb[i] = value;
    }
    __syncthreads();
    normalise(comb, hc, column, hc, c.hc_eps);
    for (int round = 1; round < c.sinkhorn_iters; round++) {
        normalise(comb, hc, row, 1, c.hc_eps);
        normalise(comb, hc, column, hc, c.hc_eps);
    }
    if (i < hc * hc) {
        c.comb[(size_t)t * hc * hc + i] = comb[i];
    }
}

void dk_mhc_coeffs(cudaStream_t s, const dk_mhc *m) {
    int mixes = (2 + m->hc) * m->hc;
    if (m->n < 32) {
        mhc_dots<1, 1><<<dim3(mixes + 1, m->n), MIX_THREADS, 0, s>>>(*m, mixes);
    } else {
        mhc_dots<4, 4>
            <<<dim3((mixes + 3) / 4 + 1, blocks_for(m->n, 4)), MIX_THREADS, 0, s>>>(*m, mixes);
    }
    mhc_finish<<<m->n, MAX_HC * MAX_HC, 0, s>>>(*m, mixes);
}

static __global__ void mhc_pre(const dk_bf16 *h, const float *pre, long long cells, int hc, int d,
                               dk_bf16 *out) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= cells) {
        return;
    }
    long long t = i / d;
    const dk_bf16 *from = h + t * hc * d + i % d;
    float sum = pre[t * hc] * bf16_value(from[0]);
    for (int s = 1; s < hc; s++) {
        sum += pre[t * hc + s] * bf16_value(from[(size_t)s * d]);
    }
    out[i] = to_bf16(sum);
}

void dk_mhc_pre(cudaStream_t s, const dk_bf16 *h, const float *pre, int n, int hc, int d,
                dk_bf16 *out) {
    long long cells = (long long)n * d;
    mhc_pre<<<blocks_for(cells, 256), 256, 0, s>>>(h, pre, cells, hc, d, out);
}

static __global__ void stream_mean(const dk_bf16 *h, long long cells, int hc, int d, dk_bf16 *out,
                                   size_t ldo) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= cells) {
        return;
    }
    long long t = i / d;
    const dk_bf16 *from = h + t * hc * d + i % d;
    float share = 1.0f / (float)hc, sum = share * bf16_value(from[0]);
    for (int s = 1; s < hc; s++) {
        sum += share * bf16_value(from[(size_t)s * d]);
    }
    out[t * ldo + i % d] = to_bf16(sum);
}

void dk_stream_mean(cudaStream_t s, const dk_bf16 *h, int n, int hc, int d, dk_bf16 *out,
                    size_t ldo) {
    long long cells = (long long)n * d;
    stream_mean<<<blocks_for(cells, 256), 256, 0, s>>>(h, cells, hc, d, out, ldo);
}

static __global__ void mhc_post(const dk_bf16 *y, const float *post, const float *comb,
                                long long cells, int hc, int d, dk_bf16 *h) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= cells) {
        return;
    }
    long long t = i / d;
    dk_bf16 *at = h + t * hc * d + i % d;
    float old[MAX_HC], value = bf16_value(y[i]);
#pragma unroll
    for (int s = 0; s < MAX_HC; s++) {
        old[s] = s < hc ? bf16_value(at[(size_t)s * d]) : 0;
    }
    for (int j = 0; j < hc; j++) {
        const float *weight = comb + t * hc * hc + j;
        float sum = weight[0] * old[0];
#pragma unroll
        for (int s = 1; s < MAX_HC; s++) {
            if (s < hc) {
                sum += weight[s * hc] * old[s];
            }
        }
        at[(size_t)j * d] = to_bf16(post[t * hc + j] * value + sum);
    }
}

void dk_mhc_post(cudaStream_t s, const dk_bf16 *y, const float *post, const float *comb, int n,
                 int hc, int d, dk_bf16 *h) {
    long long cells = (long long)n * d;
    mhc_post<<<blocks_for(cells, 256), 256, 0, s>>>(y, post, comb, cells, hc, d, h);
}
