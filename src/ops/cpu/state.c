/* What a step writes into the state of sequences: window records, open groups, compressed entries
 * and their index keys. Addresses: ops/address.h. */
#include <assert.h>
#include <string.h>

#include "ops/address.h"
#include "ops/cpu/internal.h"
#include "ops/fmath.h"

/* ---- window -----------------------------------------------------------------------------------*/

/* Largest magnitude of n values; NaNs do not count. */
static float largest(const di_bf16 *x, int n) {
    uint16_t top = 0;
    for (int i = 0; i < n; i++) {
        uint16_t m = x[i] & 0x7fff;
        m = m > 0x7f80 ? 0 : m;
        top = m > top ? m : top;
    }
    return di_bf16_to_f32(top);
}

static void window_record(const di_bf16 *x, int dim, uint8_t *record) {
    for (int b = 0; b < dim; b += 32) {
        uint8_t byte = di_q8_scale(largest(x + b, 32));
        float scale = di_e8m0_to_f32(byte);
        record[dim + b / 32] = byte;
        for (int i = 0; i < 32; i++) {
            record[b + i] = di_e4m3_from_f32(di_bf16_to_f32(x[b + i]) / scale);
        }
    }
}

typedef struct window_loop {
    const di_bf16 *kv;
    int dim;
    uint8_t *records;
} window_loop;

static void window_records(void *arg, int64_t begin, int64_t end, int member) {
    const window_loop *c = arg;
    size_t dim = (size_t)c->dim, bytes = dim + dim / 32;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        window_record(c->kv + t * dim, c->dim, c->records + t * bytes);
    }
}

void di_cpu_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                        float eps, di_rope_table table, uint8_t *records) {
    di_cpu *cpu = di_cpu_of(be);
    di_cpu_rms_norm(be, kv, norm, eps, n, dim, kv, NULL);
    di_cpu_rope(be, kv, n, 1, dim, table, false);
    if (!cpu->failed) {
        window_loop loop = {kv, dim, records};
        di_cpu_for(cpu, (double)n * dim * 8, n, window_records, &loop);
    }
}

void di_cpu_window_store(di_backend *be, const di_step *step, int layer, const uint8_t *records) {
    const di_state_layout *l = step->pool.layout;
    if (di_cpu_of(be)->failed) {
        return;
    }
    for (int s = 0; s < step->num_seqs; s++) {
        const di_seq_rows *seq = &step->seqs[s];
        int first = seq->num_rows > l->ring_rows ? seq->num_rows - l->ring_rows : 0;
        for (int i = first; i < seq->num_rows; i++) {
            uint8_t *to = di_ring_row(&step->pool, seq->slot, layer, seq->pos0 + i);
            memcpy(to, records + (size_t)(seq->row0 + i) * l->window_bytes, l->window_bytes);
        }
    }
}

/* ---- compressor -------------------------------------------------------------------------------*/

/* Where k and g of one token of a group lie: in this step's rows or in the open-group ring. */
typedef struct group_token {
    const float *k, *g;
} group_token;

static group_token find_token(const di_step *step, const di_seq_rows *seq, int layer,
                              int64_t position, const float *k, const float *g, int dim) {
    if (position >= seq->pos0) {
        size_t row = (size_t)(seq->row0 + (position - seq->pos0)) * (size_t)dim;
        return (group_token){k + row, g + row};
    }
    const float *record = di_group_row(&step->pool, seq->slot, layer, position);
    return (group_token){record, record + dim};
}

enum { MAX_RATIO = 16 };

/* Per channel: weights softmax of g over the group, tokens ascending in every sum. */
static void pool_group(const group_token *token, int ratio, int dim, di_bf16 *latent) {
    for (int c = 0; c < dim; c++) {
        float top = token[0].g[c], weight[MAX_RATIO], sum = 0, pooled = 0;
        for (int i = 1; i < ratio; i++) {
            top = token[i].g[c] > top ? token[i].g[c] : top;
        }
        for (int i = 0; i < ratio; i++) {
            weight[i] = di_expf(token[i].g[c] - top);
            sum += weight[i];
        }
        for (int i = 0; i < ratio; i++) {
            pooled += token[i].k[c] * (weight[i] / sum);
        }
        latent[c] = di_bf16_from_f32(pooled);
    }
}

static void keep_open_groups(const di_step *step, int layer, const float *k, const float *g,
                             int dim) {
    const di_state_layout *l = step->pool.layout;
    for (int s = 0; s < step->num_seqs; s++) {
        const di_seq_rows *seq = &step->seqs[s];
        int first = seq->num_rows > l->group_rows ? seq->num_rows - l->group_rows : 0;
        for (int i = first; i < seq->num_rows; i++) {
            float *to = di_group_row(&step->pool, seq->slot, layer, seq->pos0 + i);
            size_t row = (size_t)(seq->row0 + i) * (size_t)dim;
            memcpy(to, k + row, (size_t)dim * sizeof *k);
            memcpy(to + dim, g + row, (size_t)dim * sizeof *g);
        }
    }
}

typedef struct compress_loop {
    const di_cpu_kernels *kernels;
    const di_step *step;
    int layer, ratio, dim;
    const float *k, *g;
    const di_entry *entries;
    di_bf16 *latents;
} compress_loop;

static void close_groups(void *arg, int64_t begin, int64_t end, int member) {
    const compress_loop *c = arg;
    size_t dim = (size_t)c->dim;
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        const di_seq_rows *seq = &c->step->seqs[c->entries[i].seq];
        int64_t first = c->entries[i].entry * c->ratio;
        di_bf16 *latent = c->latents + (size_t)i * dim;
        group_token token[MAX_RATIO];
        if (c->ratio == 1) { /* a token is its own group, and always one of this step */
            size_t row = (size_t)(seq->row0 + (first - seq->pos0));
            c->kernels->round_row(c->k + row * dim, dim, latent);
            continue;
        }
        assert(c->ratio > 1 && c->ratio <= MAX_RATIO);
        for (int j = 0; j < c->ratio; j++) {
            token[j] = find_token(c->step, seq, c->layer, first + j, c->k, c->g, c->dim);
        }
        pool_group(token, c->ratio, c->dim, latent);
    }
}

void di_cpu_compress(di_backend *be, const di_step *step, int layer, int ratio, const float *k,
                     const float *g, const di_entry *entries, int m, int dim, di_bf16 *latents) {
    di_cpu *cpu = di_cpu_of(be);
    if (cpu->failed) {
        return;
    }
    compress_loop loop = {cpu->k, step, layer, ratio, dim, k, g, entries, latents};
    di_cpu_for(cpu, (double)m * dim * ratio * 16, m, close_groups, &loop);
    if (ratio > 1) {
        keep_open_groups(step, layer, k, g, dim);
    }
}

/* ---- entries ----------------------------------------------------------------------------------*/

/* Q4K as DeepSeek's production engine computes it: x * (1 / s), the reciprocal rounded to f32. */
static void latent_record(const di_bf16 *x, int dim, uint8_t *record) {
    for (int b = 0; b < dim; b += 16) {
        uint8_t byte = di_q4k_scale(largest(x + b, 16));
        float inverse = 1.0f / di_e4m3_to_f32(byte);
        record[dim / 2 + b / 16] = byte;
        for (int i = 0; i < 16; i += 2) {
            uint8_t low = di_e2m1_from_f32(di_bf16_to_f32(x[b + i]) * inverse);
            uint8_t high = di_e2m1_from_f32(di_bf16_to_f32(x[b + i + 1]) * inverse);
            record[(b + i) / 2] = (uint8_t)(low | high << 4);
        }
    }
}

static void key_record(const di_bf16 *x, int dim, uint8_t *record) {
    for (int b = 0; b < dim; b += 32) {
        uint8_t byte = di_q4i_scale(largest(x + b, 32));
        float scale = di_e8m0_to_f32(byte);
        record[dim / 2 + b / 32] = byte;
        for (int i = 0; i < 32; i += 2) {
            uint8_t low = di_e2m1_from_f32(di_bf16_to_f32(x[b + i]) / scale);
            uint8_t high = di_e2m1_from_f32(di_bf16_to_f32(x[b + i + 1]) / scale);
            record[(b + i) / 2] = (uint8_t)(low | high << 4);
        }
    }
}

typedef struct entry_loop {
    const di_step *step;
    int layer, ratio, dim, key_dim;
    const di_entry *entries;
    const di_bf16 *latents, *keys;
} entry_loop;

static void store_entries(void *arg, int64_t begin, int64_t end, int member) {
    const entry_loop *c = arg;
    const di_state_pool *pool = &c->step->pool;
    (void)member;
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        const int32_t *blocks = c->step->seqs[c->entries[i].seq].blocks;
        int64_t e = c->entries[i].entry;
        uint8_t *latent = (uint8_t *)di_latent_row(pool, blocks, c->layer, c->ratio, e);
        uint8_t *key = (uint8_t *)di_key_row(pool, blocks, c->layer, c->ratio, e);
        latent_record(c->latents + i * (size_t)c->dim, c->dim, latent);
        key_record(c->keys + i * (size_t)c->key_dim, c->key_dim, key);
    }
}

void di_cpu_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                        const di_entry *entries, int m, const di_bf16 *latents, int dim,
                        const di_bf16 *keys, int key_dim) {
    di_cpu *cpu = di_cpu_of(be);
    if (!cpu->failed) {
        entry_loop loop = {step, layer, ratio, dim, key_dim, entries, latents, keys};
        di_cpu_for(cpu, (double)m * (dim + key_dim) * 8, m, store_entries, &loop);
    }
}
