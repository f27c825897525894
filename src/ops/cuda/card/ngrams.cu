/* What tokens look up: feeding of tokens that were just drawn, n-gram hashing, rows of the tables,
 * and the gate through which they join the streams. Bound by memory, and by the table's when it is
 * the host's. */
#include "common.cuh"
#include "launch.cuh"
#include "queue.h"

static unsigned blocks_for(long long n, int per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

/* ---- tokens ----------------------------------------------------------------------------------*/

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

/* One thread a token; columns are few and a token's hash is carried from one n to the next. */
static __global__ void hash_ngrams(dk_ngram_hash h, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    begin_overlapped();
    if (i >= n) {
        return;
    }
    int64_t *rows = h.rows + (size_t)i * h.columns;
    uint64_t r = 0;
    bool blocked = false;
    for (int back = 0; back < h.max_ngram; back++) {
        int32_t id = blocked ? -1 : compressed(h, i, back);
        blocked = id < 0;
        if (back == 0 && blocked) {
            for (int j = 0; j < h.columns; j++) {
                rows[j] = -1;
            }
            return;
        }
        r ^= (uint64_t)(blocked ? h.pad : id) * h.multipliers[back];
        for (int j = 0; back > 0 && j < h.heads; j++) {
            int column = (back - 1) * h.heads + j;
            rows[column] = h.offsets[column] + (int64_t)(r % (uint64_t)h.primes[column]);
        }
    }
}

void dk_hash_ngrams(cudaStream_t s, const dk_ngram_hash *h, int n) {
    launch_overlapped(s, hash_ngrams, dim3(blocks_for(n, 32)), 32, 0, 1, *h, n);
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

/* Rows side by side -> prepared activations. */
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

/* Grid: tokens, streams. */
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
    double hh = 0, kk = 0, dot = 0;
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        float x = bf16_value(h[i]), y = bf16_value(key[i]);
        float w = bf16_value(qw[at + i]) * bf16_value(kw[at + i]);
        hh += (double)x * x;
        kk += (double)y * y;
        dot += (double)(x * w) * y;
    }
    hh = block_sum(hh, scratch) / d;
    kk = block_sum(kk, scratch) / d;
    dot = block_sum(dot, scratch);
    dot = dot / sqrt(hh + (double)eps) / sqrt(kk + (double)eps) / sqrt((double)d);
    double size = fabs(dot) < 1e-6 ? 1e-6 : fabs(dot);
    float gate = (float)(1 / (1 + exp64(-copysign(sqrt(size), dot))));
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        h[i] = to_bf16(bf16_value(h[i]) + gate * bf16_value(value[i]));
    }
}

void dk_engram_gate(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *kv,
                    const dk_bf16 *qw, const dk_bf16 *kw, int hc, int d, float eps, dk_bf16 *h) {
    launch_overlapped(s, engram_gate, dim3(n, hc), 256, 0, 1, tokens, kv, qw, kw, hc, d, eps, h);
}
