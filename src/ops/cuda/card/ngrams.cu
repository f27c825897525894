/* What tokens look up: feeding of tokens that were just drawn, n-gram hashing, rows of the tables,
 * and the gate through which they join the streams. Few tokens are bound by latencies, many by
 * memory, and by the table's when it is the host's. Hashing takes 2.6 us for a token and 3.8 for
 * 2,048; rows, the product between rows and gate, which is linear.cu's, and gate 51 us for a token
 * (53 with the table in the host's memory), 68 % of the bandwidth (bench/cuda_rows). */
#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"
#include "ops/cuda/card/queue.h"

static unsigned blocks_for(long long n, int per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* ---- tokens ----------------------------------------------------------------------------------*/

/* tokens[i] = drawn[source[i]] where source[i] >= 0; [n]. */
static __global__ void feed(int32_t *tokens, const int32_t *source, int n, const int32_t *drawn) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    begin_overlapped();
    if (i < n && source[i] >= 0) {
        tokens[i] = drawn[source[i]];
    }
}

void dk_feed(cudaStream_t s, int32_t *tokens, const int32_t *source, int n, const int32_t *drawn) {
    launch_overlapped(s, feed, dim3(blocks_for(n, 128)), 128, 0, 1, tokens, source, n, drawn);
}

/* Compressed id of the token `back` places before row i's; -1 if there is none. */
static __device__ int32_t compressed(const dk_ngram_hash &h, int i, int back) {
    int32_t token = h.tokens[i];
    if (back > 0) {
        token = back <= h.look_back ? h.before[(size_t)i * h.look_back + h.look_back - back] : -1;
    } else if (h.image && h.image[i]) {
        token = -1;
    }
    return token >= 0 && token < h.vocab_size ? h.token_map[token] : -1;
}

/* rows[t][column] = offset + (xor over the n-gram's places of id * multiplier) mod prime, in
 * u64; -1 for tokens that look nothing up; [n, columns], a few integer steps each. A thread a
 * column of a token: it hashes the token and those before it that its n takes. */
static __global__ void hash_ngrams(dk_ngram_hash h, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, token = i / h.columns, column = i % h.columns;
    begin_overlapped();
    if (token >= n) {
        return;
    }
    uint64_t r = 0;
    bool blocked = false, none = false;
    for (int back = 0; back <= column / h.heads + 1; back++) {
        int32_t id = blocked ? -1 : compressed(h, token, back);
        blocked = id < 0;
        none = none || (back == 0 && blocked);
        r ^= (uint64_t)(blocked ? h.pad : id) * h.multipliers[back];
    }
    int64_t row = h.offsets[column] + (int64_t)(r % (uint64_t)h.primes[column]);
    h.rows[(size_t)token * h.columns + column] = none ? -1 : row;
}

void dk_hash_ngrams(cudaStream_t s, const dk_ngram_hash *h, int n) {
    launch_overlapped(s, hash_ngrams, dim3(blocks_for((long long)n * h->columns, 32)), 32, 0, 1, *h,
                      n);
}

/* ---- rows of a table -------------------------------------------------------------------------*/

/* A block copies one row's codes and scales, 8 bytes a thread where they lie so, to where those of
 * all tokens lie side by side; a token that looks nothing up gets zeros. Grid: columns, tokens. */
static __global__ void __launch_bounds__(64) gather_ngrams(dk_ngram_rows r) {
    int column = blockIdx.x, token = blockIdx.y, scales = r.width / 32;
    begin_overlapped();
    int64_t row = r.rows[(size_t)token * r.columns + column];
    size_t place = (size_t)token * r.columns + column;
    const uint8_t *data = r.data + (size_t)row * r.width, *scale = r.scale + (size_t)row * scales;
    uint8_t *codes = r.codes + place * r.width, *to = r.scales + place * scales;
    bool none = row < 0;
    if (column == 0 && threadIdx.x == 0) {
        r.tokens[token] = none ? -1 : r.first + token;
    }
    bool whole = (((size_t)r.data | (size_t)r.codes | (size_t)r.width) & 7) == 0;
    for (int i = threadIdx.x; whole && i < r.width / 8; i += blockDim.x) {
        ((uint2 *)codes)[i] = none ? make_uint2(0, 0) : ((const uint2 *)data)[i];
    }
    for (int i = threadIdx.x; !whole && i < r.width; i += blockDim.x) {
        codes[i] = none ? 0 : data[i];
    }
    for (int i = threadIdx.x; i < scales; i += blockDim.x) {
        to[i] = none ? 0 : scale[i];
    }
}

void dk_gather_ngrams(cudaStream_t s, const dk_ngram_rows *r, int n) {
    launch_overlapped(s, gather_ngrams, dim3(r->columns, n), 64, 0, 1, *r);
}

/* Rows side by side -> prepared activations: bf16(code * scale), [n, k]. A thread a value. */
static __global__ void engram_rows(const uint8_t *codes, const uint8_t *scales, int n, int k,
                                   long long cells, dk_bf16 *out) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    begin_overlapped();
    if (i >= cells) {
        return;
    }
    long long t = i % n;
    int at = (int)(i / n);
    float v = 0;
    if (at < k) {
        v = e4m3_value(codes[t * k + at]) * e8m0_value(scales[t * (k / 32) + at / 32]);
    }
    out[prepared_at(n, (int)t, at)] = to_bf16(v);
}

void dk_engram_rows(cudaStream_t s, const uint8_t *codes, const uint8_t *scales, int n, int k,
                    dk_bf16 *out) {
    long long cells = (long long)dk_prepared_values((size_t)n, k);
    launch_overlapped(s, engram_rows, dim3(blocks_for(cells, 256)), 256, 0, 1, codes, scales, n, k,
                      cells, out);
}

/* ---- the gate --------------------------------------------------------------------------------*/

/* Eight neighbouring values, zeros behind d. whole: they can be read as 16 bytes. */
static __device__ __forceinline__ void take_eight(const dk_bf16 *from, int i, int d, bool whole,
                                                  float v[8]) {
    __align__(16) dk_bf16 raw[8];
    if (whole) {
        *(uint4 *)raw = *(const uint4 *)(from + i);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (!whole) {
            raw[j] = i + j < d ? from[i + j] : 0;
        }
        v[j] = bf16_value(raw[j]);
    }
}

/* h += sigmoid(sign(u) sqrt(max(|u|, 1e-6))) * value, u = norm(h, qw) . norm(key, kw) / sqrt(d),
 * by stream; kv [n, hc + 1, d]: a key for each stream, then the value. Reads h and key twice,
 * the second time from a cache. Grid: tokens, streams. A thread takes eight neighbouring values
 * at a time. */
static __global__ void engram_gate(const int32_t *tokens, const dk_bf16 *kv, const dk_bf16 *qw,
                                   const dk_bf16 *kw, int hc, int d, float eps, dk_bf16 *h) {
    __shared__ double scratch[32];
    int stream = blockIdx.y;
    begin_overlapped();
    if (tokens[blockIdx.x] < 0) {
        return;
    }
    size_t at = (size_t)stream * d;
    const dk_bf16 *key = kv + (size_t)blockIdx.x * (hc + 1) * d + at;
    const dk_bf16 *value = kv + ((size_t)blockIdx.x * (hc + 1) + hc) * d;
    h += ((size_t)tokens[blockIdx.x] * hc + stream) * d;
    bool whole = d % 8 == 0 && ((size_t)kv | (size_t)qw | (size_t)kw | (size_t)h) % 16 == 0;
    double hh = 0, kk = 0, dot = 0;
    for (int i = threadIdx.x * 8; i < d; i += blockDim.x * 8) {
        float x[8], y[8], a[8], b[8];
        take_eight(h, i, d, whole, x);
        take_eight(key, i, d, whole, y);
        take_eight(qw + at, i, d, whole, a);
        take_eight(kw + at, i, d, whole, b);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float w = a[j] * b[j];
            hh += (double)x[j] * x[j];
            kk += (double)y[j] * y[j];
            dot += (double)(x[j] * w) * y[j];
        }
    }
    hh = block_sum(hh, scratch) / d;
    kk = block_sum(kk, scratch) / d;
    dot = block_sum(dot, scratch);
    dot = dot / sqrt(hh + (double)eps) / sqrt(kk + (double)eps) / sqrt((double)d);
    double size = fabs(dot) < 1e-6 ? 1e-6 : fabs(dot);
    float gate = (float)(1 / (1 + di_exp64(-copysign(sqrt(size), dot))));
    for (int i = threadIdx.x * 8; i < d; i += blockDim.x * 8) {
        __align__(16) dk_bf16 sum[8];
        float x[8], y[8];
        take_eight(h, i, d, whole, x);
        take_eight(value, i, d, whole, y);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum[j] = to_bf16(x[j] + gate * y[j]);
        }
        if (whole) {
            *(uint4 *)(h + i) = *(const uint4 *)sum;
        }
        for (int j = 0; !whole && j < 8 && i + j < d; j++) {
            h[i + j] = sum[j];
        }
    }
}

void dk_engram_gate(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *kv,
                    const dk_bf16 *qw, const dk_bf16 *kw, int hc, int d, float eps, dk_bf16 *h) {
    launch_overlapped(s, engram_gate, dim3(n, hc), 256, 0, 1, tokens, kv, qw, kw, hc, d, eps, h);
}
