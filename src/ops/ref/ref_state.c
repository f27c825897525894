/* The oracle: records of windows, latents and keys, and the compressor. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/address.h"
#include "ops/ref/internal.h"

/* ---- records ----------------------------------------------------------------------------------*/

void di_ref_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                        float eps, di_rope_table table, uint8_t *records) {
    be->ops->rms_norm(be, kv, norm, eps, n, dim, kv, NULL);
    be->ops->rope(be, kv, n, 1, dim, table, false);
    size_t bytes = (size_t)dim + (size_t)dim / 32;
    for (int t = 0; t < n; t++) {
        uint8_t *codes = records + (size_t)t * bytes, *scales = codes + dim;
        const di_bf16 *x = kv + (size_t)t * (size_t)dim;
        for (int b = 0; b < dim / 32; b++) {
            float amax = 0;
            for (int j = 32 * b; j < 32 * b + 32; j++) {
                amax = fmaxf(amax, fabsf(di_bf16_to_f32(x[j])));
            }
            scales[b] = di_q8_scale(amax);
            for (int j = 32 * b; j < 32 * b + 32; j++) {
                codes[j] = di_e4m3_from_f32(di_bf16_to_f32(x[j]) / di_e8m0_to_f32(scales[b]));
            }
        }
    }
}

void di_ref_read_window(const uint8_t *record, int dim, float *out) {
    for (int j = 0; j < dim; j++) {
        out[j] = di_e4m3_to_f32(record[j]) * di_e8m0_to_f32(record[dim + j / 32]);
    }
}

static float group_amax(const di_bf16 *x, int group) {
    float amax = 0;
    for (int j = 0; j < group; j++) {
        amax = fmaxf(amax, fabsf(di_bf16_to_f32(x[j])));
    }
    return amax;
}

static void put_code(uint8_t *codes, int j, uint8_t code) {
    codes[j / 2] = (uint8_t)(j % 2 ? (codes[j / 2] & 15) | code << 4 : code);
}

/* Q4K: codes from x * (1 / s) with the reciprocal rounded to f32. */
static void write_latent(const di_bf16 *x, int dim, uint8_t *record) {
    uint8_t *scales = record + dim / 2;
    for (int j = 0; j < dim; j++) {
        if (j % 16 == 0) {
            scales[j / 16] = di_q4k_scale(group_amax(x + j, 16));
        }
        float inverse = 1.0f / di_e4m3_to_f32(scales[j / 16]);
        put_code(record, j, di_e2m1_from_f32(di_bf16_to_f32(x[j]) * inverse));
    }
}

void di_ref_read_latent(const uint8_t *record, int dim, float *out) {
    const uint8_t *scales = record + dim / 2;
    for (int j = 0; j < dim; j++) {
        uint8_t code = j % 2 ? record[j / 2] >> 4 : record[j / 2];
        out[j] = di_e2m1_to_f32(code) * di_e4m3_to_f32(scales[j / 16]);
    }
}

/* Q4I */
static void write_key(const di_bf16 *x, int dim, uint8_t *record) {
    uint8_t *scales = record + dim / 2;
    for (int j = 0; j < dim; j++) {
        if (j % 32 == 0) {
            scales[j / 32] = di_q4i_scale(group_amax(x + j, 32));
        }
        put_code(record, j,
                 di_e2m1_from_f32(di_bf16_to_f32(x[j]) / di_e8m0_to_f32(scales[j / 32])));
    }
}

void di_ref_read_key(const uint8_t *record, int dim, float *out) {
    const uint8_t *scales = record + dim / 2;
    for (int j = 0; j < dim; j++) {
        uint8_t code = j % 2 ? record[j / 2] >> 4 : record[j / 2];
        out[j] = di_e2m1_to_f32(code) * di_e8m0_to_f32(scales[j / 32]);
    }
}

/* ---- storing ----------------------------------------------------------------------------------*/

void di_ref_window_store(di_backend *be, const di_step *step, int layer, const uint8_t *records) {
    (void)be;
    const di_state_layout *l = step->pool.layout;
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        for (int t = s->num_rows > l->ring_rows ? s->num_rows - l->ring_rows : 0; t < s->num_rows;
             t++) {
            memcpy(di_ring_row(&step->pool, s->slot, layer, s->pos0 + t),
                   records + (size_t)(s->row0 + t) * l->window_bytes, l->window_bytes);
        }
    }
}

/* k or g (which = 0, 1) of the token at position p: from this step, or from the open group. */
static const float *group_value(const di_step *step, const di_seq_rows *s, int layer, int64_t p,
                                const float *now, int which, int dim) {
    if (p >= s->pos0) {
        return now + (size_t)(s->row0 + (p - s->pos0)) * (size_t)dim;
    }
    return di_group_row(&step->pool, s->slot, layer, p) + which * dim;
}

static void pool_group(const di_step *step, const di_entry *e, int layer, int ratio, const float *k,
                       const float *g, int dim, di_bf16 *latent) {
    const di_seq_rows *s = &step->seqs[e->seq];
    for (int c = 0; c < dim; c++) {
        double top = -INFINITY, weights = 0, sum = 0;
        for (int i = 0; i < ratio; i++) {
            int64_t p = e->entry * ratio + i;
            top = fmax(top, group_value(step, s, layer, p, g, 1, dim)[c]);
        }
        for (int i = 0; i < ratio; i++) {
            int64_t p = e->entry * ratio + i;
            double w = exp(group_value(step, s, layer, p, g, 1, dim)[c] - top);
            weights += w;
            sum += w * group_value(step, s, layer, p, k, 0, dim)[c];
        }
        latent[c] = di_bf16_from_f32((float)(sum / weights));
    }
}

void di_ref_compress(di_backend *be, const di_step *step, int layer, int ratio, const float *k,
                     const float *g, const di_entry *entries, int m, int dim, di_bf16 *latents) {
    (void)be;
    size_t width = (size_t)dim;
    for (int i = 0; i < m; i++) {
        if (ratio == 1) {
            const di_seq_rows *s = &step->seqs[entries[i].seq];
            size_t row = (size_t)(s->row0 + (entries[i].entry - s->pos0));
            for (size_t c = 0; c < width; c++) {
                latents[(size_t)i * width + c] = di_bf16_from_f32(k[row * width + c]);
            }
        } else {
            pool_group(step, &entries[i], layer, ratio, k, g, dim, latents + (size_t)i * width);
        }
    }
    for (int i = 0; ratio > 1 && i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        int kept = step->pool.layout->group_rows;
        for (int t = s->num_rows > kept ? s->num_rows - kept : 0; t < s->num_rows; t++) {
            float *row = di_group_row(&step->pool, s->slot, layer, s->pos0 + t);
            memcpy(row, k + (size_t)(s->row0 + t) * width, width * sizeof *k);
            memcpy(row + dim, g + (size_t)(s->row0 + t) * width, width * sizeof *g);
        }
    }
}

void di_ref_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                        const di_entry *entries, int m, const di_bf16 *latents, int dim,
                        const di_bf16 *keys, int key_dim) {
    (void)be;
    for (int i = 0; i < m; i++) {
        const int32_t *blocks = step->seqs[entries[i].seq].blocks;
        int64_t e = entries[i].entry;
        uint8_t *latent = (uint8_t *)di_latent_row(&step->pool, blocks, layer, ratio, e);
        uint8_t *key = (uint8_t *)di_key_row(&step->pool, blocks, layer, ratio, e);
        write_latent(latents + (size_t)i * (size_t)dim, dim, latent);
        write_key(keys + (size_t)i * (size_t)key_dim, key_dim, key);
    }
}
