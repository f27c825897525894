/* What a step writes into the state of sequences: window records, open groups, compressed entries
 * and their index keys. Each reads and writes some KB a row: few rows are bound by latencies, many
 * by memory. bench/cuda_state times them; those that can stand on a branch of a recorded step
 * (model/v41.c). */
#include "ops/cuda/card/launch.cuh"
#include "ops/cuda/card/state.cuh"

/* ---- window ----------------------------------------------------------------------------------*/

/* Record = Q8(rope(bf16(norm * (x / sqrt(mean(x^2) + eps))))): kv [n, dim] to dim codes E4M3 and
 * dim / 32 scales E8M0 a row. All of a row in one block: a thread has eight neighbouring values
 * at a time, four of them a scale. Grid: rows. */
static __global__ void __launch_bounds__(128)
    window_make(const dk_bf16 *kv, int dim, const dk_bf16 *norm, float eps, const float *cosine,
                const float *sine, int half, uint8_t *records) {
    __shared__ double scratch[32];
    const dk_bf16 *x = kv + (size_t)blockIdx.x * dim;
    uint8_t *record = records + (size_t)blockIdx.x * (dim + dim / 32);
    double sum = 0;
    begin_overlapped();
    for (int i = threadIdx.x * 8; i < dim; i += blockDim.x * 8) {
        for (int j = 0; j < 8; j++) {
            double v = bf16_value(x[i + j]);
            sum = fma(v, v, sum); /* the product is exact */
        }
    }
    float rho = (float)(1 / sqrt(block_sum(sum, scratch) / dim + (double)eps));
    for (int begin = 0; begin < dim; begin += blockDim.x * 8) { /* warps stay together */
        int i = begin + threadIdx.x * 8;
        dk_bf16 v[8] = {};
        uint32_t most = 0;
        for (int j = 0; j < 8 && i < dim; j += 2) {
            float a = round_bf16(bf16_value(norm[i + j]) * (bf16_value(x[i + j]) * rho));
            float b = round_bf16(bf16_value(norm[i + j + 1]) * (bf16_value(x[i + j + 1]) * rho));
            int at = i + j - (dim - 2 * half);
            if (at >= 0) {
                size_t from = (size_t)blockIdx.x * half + at / 2;
                float c = cosine[from], s = sine[from], turned = a * c - b * s;
                b = a * s + b * c;
                a = turned;
            }
            v[j] = to_bf16(a);
            v[j + 1] = to_bf16(b);
            most = max(most, max(magnitude_bits(v[j]), magnitude_bits(v[j + 1])));
        }
        uint32_t byte = q8_scale(bf16_value((dk_bf16)group_max(most, 4)));
        if (i >= dim) {
            continue;
        }
        for (int j = 0; j < 8; j++) {
            record[i + j] = (uint8_t)to_e4m3(bf16_value(v[j]) / e8m0_value(byte));
        }
        if (threadIdx.x % 4 == 0) {
            record[dim + i / 32] = (uint8_t)byte;
        }
    }
}

void dk_window_make(cudaStream_t s, const dk_bf16 *kv, int n, int dim, const dk_bf16 *norm,
                    float eps, const float *cosine, const float *sine, int half, uint8_t *records) {
    launch_overlapped(s, window_make, dim3(n), 128, 0, 1, kv, dim, norm, eps, cosine, sine, half,
                      records);
}

/* Records [rows, window_bytes] to the rings of their sequences, at position modulo the ring's
 * rows. A row that a later row of the step would overwrite is left out. Grid: rows. */
static __global__ void window_store(dk_step step, const uint8_t *records) {
    dk_seq seq = step.seqs[step.row_seq[blockIdx.x]];
    int t = blockIdx.x - seq.row0;
    begin_overlapped();
    if (t < seq.num_rows - step.ring_rows) {
        return;
    }
    uint8_t *to = ring_row(step, seq.slot, seq.pos0 + t);
    const uint8_t *from = records + (size_t)blockIdx.x * step.window_bytes;
    for (size_t i = threadIdx.x; i < step.window_bytes; i += blockDim.x) {
        to[i] = from[i];
    }
}

void dk_window_store(cudaStream_t s, const dk_step *step, const uint8_t *records) {
    launch_overlapped(s, window_store, dim3(step->num_rows), 128, 0, 1, *step, records);
}

/* ---- compressor ------------------------------------------------------------------------------*/

enum { MAX_RATIO = 16 };

/* latent[c] = bf16(sum over the group's `ratio` tokens of k[c] * softmax(g)[c]); with ratio 1
 * bf16(k). k, g [rows, dim], latents [entries, dim]. Grid: entries, channels / 128. Tokens of
 * the group ascending in every sum. */
static __global__ void compress(dk_step step, int ratio, const float *k, const float *g,
                                const dk_entry *entries, int dim, dk_bf16 *latents) {
    dk_entry entry = entries[blockIdx.x];
    dk_seq seq = step.seqs[entry.seq];
    int c = blockIdx.y * blockDim.x + threadIdx.x;
    int64_t first = entry.entry * ratio;
    begin_overlapped();
    if (c >= dim) {
        return;
    }
    dk_bf16 *to = latents + (size_t)blockIdx.x * dim + c;
    if (ratio == 1) {
        *to = to_bf16(k[(size_t)(seq.row0 + (first - seq.pos0)) * dim + c]);
        return;
    }
    float kc[MAX_RATIO], gc[MAX_RATIO], top = 0, sum = 0, pooled = 0;
    for (int i = 0; i < ratio; i++) {
        int64_t p = first + i;
        if (p >= seq.pos0) {
            size_t at = (size_t)(seq.row0 + (p - seq.pos0)) * dim + c;
            kc[i] = k[at];
            gc[i] = g[at];
        } else {
            const float *record = group_row(step, seq.slot, p);
            kc[i] = record[c];
            gc[i] = record[dim + c];
        }
        top = i == 0 || gc[i] > top ? gc[i] : top;
    }
    for (int i = 0; i < ratio; i++) {
        gc[i] = di_expf(gc[i] - top);
        sum += gc[i];
    }
    for (int i = 0; i < ratio; i++) {
        pooled += kc[i] * (gc[i] / sum);
    }
    *to = to_bf16(pooled);
}

/* k and g of a step's last rows to the ring of open groups, after `compress` has read that. Grid:
 * rows. */
static __global__ void keep_open_groups(dk_step step, const float *k, const float *g, int dim) {
    dk_seq seq = step.seqs[step.row_seq[blockIdx.x]];
    int t = blockIdx.x - seq.row0;
    begin_overlapped();
    if (t < seq.num_rows - step.group_rows) {
        return;
    }
    float *to = group_row(step, seq.slot, seq.pos0 + t);
    for (int c = threadIdx.x; c < dim; c += blockDim.x) {
        to[c] = k[(size_t)blockIdx.x * dim + c];
        to[dim + c] = g[(size_t)blockIdx.x * dim + c];
    }
}

void dk_compress(cudaStream_t s, const dk_step *step, int ratio, const float *k, const float *g,
                 const dk_entry *entries, int m, int dim, dk_bf16 *latents) {
    if (m > 0) {
        launch_overlapped(s, compress, dim3(m, (dim + 127) / 128), 128, 0, 1, *step, ratio, k, g,
                          entries, dim, latents);
    }
    if (ratio > 1) {
        launch_overlapped(s, keep_open_groups, dim3(step->num_rows), 128, 0, 1, *step, k, g, dim);
    }
}

/* ---- entries ---------------------------------------------------------------------------------*/

/* Q4K of latents [entries, dim], Q4I of keys [entries, key_dim]: codes E2M1, two a byte, then
 * scales, to the entries' places in blocks. One warp a group: 32 latents (two scales of 16) or
 * 32 keys. Grid: entries, groups / 4. */
static __global__ void entry_store(dk_step step, int ratio, const dk_entry *entries,
                                   const dk_bf16 *latents, int dim, const dk_bf16 *keys,
                                   int key_dim) {
    int group = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    dk_entry entry = entries[blockIdx.x];
    dk_seq seq = step.seqs[entry.seq];
    bool key = group >= dim / 32;
    begin_overlapped();
    group -= key ? dim / 32 : 0;
    if (key && group >= key_dim / 32) {
        return;
    }
    int width = key ? key_dim : dim, at = group * 32 + lane;
    dk_bf16 v = (key ? keys : latents)[(size_t)blockIdx.x * width + at];
    float amax = bf16_value((dk_bf16)group_max(magnitude_bits(v), key ? 32 : 16)), x;
    uint32_t byte;
    uint8_t *record;
    if (key) {
        byte = q4i_scale(amax);
        x = bf16_value(v) / e8m0_value(byte);
        record = key_row(step, seq, ratio, entry.entry);
    } else { /* Q4K as docs/numerics.md has it: times the rounded reciprocal */
        byte = q4k_scale(amax);
        x = bf16_value(v) * (1.0f / e4m3_value(byte));
        record = latent_row(step, seq, ratio, entry.entry);
    }
    uint32_t code = to_e2m1(x), next = __shfl_down_sync(0xffffffffu, code, 1);
    if (lane % 2 == 0) {
        record[at / 2] = (uint8_t)(code | next << 4);
    }
    if (lane % (key ? 32 : 16) == 0) {
        record[width / 2 + at / (key ? 32 : 16)] = (uint8_t)byte;
    }
}

void dk_entry_store(cudaStream_t s, const dk_step *step, int ratio, const dk_entry *entries, int m,
                    const dk_bf16 *latents, int dim, const dk_bf16 *keys, int key_dim) {
    int groups = dim / 32 + key_dim / 32;
    if (m > 0) {
        launch_overlapped(s, entry_store, dim3(m, (groups + 3) / 4), 128, 0, 1, *step, ratio,
                          entries, latents, dim, keys, key_dim);
    }
}
