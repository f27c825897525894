/* The oracle: index scores, selection, candidates, and the attention core. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/address.h"
#include "ops/ref/internal.h"

/* ---- selection --------------------------------------------------------------------------------*/

bool di_ref_best(di_backend *be, const float *scores, int64_t n, int k, int32_t *out) {
    uint8_t *taken = di_ref_scratch(be, (size_t)n, 1);
    int32_t fill = 0;
    if (!taken) {
        return false;
    }
    for (int i = 0; i < k; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n; e++) {
            if (!taken[e] && isfinite(scores[e]) && (best < 0 || scores[e] > scores[best])) {
                best = e;
            }
        }
        if (best < 0) {
            break;
        }
        taken[best] = 1;
    }
    for (int64_t e = 0; e < n; e++) {
        if (taken[e]) {
            out[fill++] = (int32_t)e;
        }
    }
    while (fill < k) {
        out[fill++] = -1;
    }
    di_free(taken);
    return true;
}

static void choose_blocks(di_backend *be, const float *scores, int64_t n, int max_blocks,
                          int block_size, int32_t *out) {
    int64_t blocks = (n + block_size - 1) / block_size;
    float *top = di_ref_scratch(be, (size_t)blocks, sizeof *top);
    if (!top) {
        return;
    }
    for (int64_t b = 0; b < blocks; b++) {
        top[b] = -INFINITY;
        for (int64_t e = b * block_size; e < n && e < (b + 1) * block_size; e++) {
            top[b] = fmaxf(top[b], scores[e]);
        }
    }
    if (blocks > 0) {
        top[blocks - 1] = 0x1.fffffep127f; /* the newest visible entry's block is always in */
    }
    di_ref_best(be, top, blocks, max_blocks, out);
    di_free(top);
}

static void forbid_others(float *scores, int64_t n, const int32_t *blocks, int max_blocks,
                          int block_size) {
    int at = 0;
    for (int64_t e = 0; e < n; e++) {
        while (at < max_blocks && blocks[at] >= 0 && blocks[at] < e / block_size) {
            at++;
        }
        if (at == max_blocks || blocks[at] != e / block_size) {
            scores[e] = -INFINITY;
        }
    }
}

/* Q4I round trip of one head's query. */
static void round_trip_q4i(const di_bf16 *x, int dim, float *out) {
    for (int b = 0; b < dim; b += 32) {
        float amax = 0;
        for (int j = b; j < b + 32; j++) {
            amax = fmaxf(amax, fabsf(di_bf16_to_f32(x[j])));
        }
        float s = di_e8m0_to_f32(di_q4i_scale(amax));
        for (int j = b; j < b + 32; j++) {
            out[j] = di_e2m1_to_f32(di_e2m1_from_f32(di_bf16_to_f32(x[j]) / s)) * s;
        }
    }
}

/* q f32 [heads, dim] after its round trip, weight f32 [heads]. The head sum is float32, ascending:
 * its order decides ties, so it is part of the op. */
static float index_score(const float *q, const float *weight, int heads, int dim,
                         const float *key) {
    float score = 0;
    for (int h = 0; h < heads; h++) {
        double dot = 0;
        for (int j = 0; j < dim; j++) {
            dot += (double)q[h * dim + j] * key[j];
        }
        score = score + fmaxf((float)dot, 0) * weight[h];
    }
    return score;
}

void di_ref_index_topk(di_backend *be, const di_step *step, int source, int ratio, const di_bf16 *q,
                       const di_bf16 *weights, int heads, int key_dim, int k, int32_t *candidates,
                       bool build, int max_blocks, int block_size, int32_t *topk) {
    float factor = (float)(1 / sqrt((double)key_dim) / sqrt((double)heads));
    float *query = di_ref_scratch(be, (size_t)heads * (size_t)key_dim, sizeof *query);
    float *weight = di_ref_scratch(be, (size_t)heads + (size_t)key_dim, sizeof *weight);
    float *key = weight ? weight + heads : NULL;
    for (int i = 0; query && weight && i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        for (int64_t t = 0; t < s->num_rows; t++) {
            size_t row = (size_t)(s->row0 + t);
            int64_t n = (s->pos0 + t + 1) / ratio;
            float *scores = di_ref_scratch(be, (size_t)n, sizeof *scores);
            if (!scores) {
                break;
            }
            for (int h = 0; h < heads; h++) {
                size_t at = row * (size_t)heads + (size_t)h;
                round_trip_q4i(q + at * (size_t)key_dim, key_dim, query + h * key_dim);
                weight[h] = di_bf16_to_f32(weights[at]) * factor;
            }
            for (int64_t e = 0; e < n; e++) {
                di_ref_read_key(di_key_row(&step->pool, s->blocks, source, ratio, e), key_dim, key);
                scores[e] = index_score(query, weight, heads, key_dim, key);
            }
            int32_t *blocks = candidates ? candidates + row * (size_t)max_blocks : NULL;
            if (blocks && build) {
                choose_blocks(be, scores, n, max_blocks, block_size, blocks);
            } else if (blocks) {
                forbid_others(scores, n, blocks, max_blocks, block_size);
            }
            di_ref_best(be, scores, n, k, topk + row * (size_t)k);
            di_free(scores);
        }
    }
    di_free(query);
    di_free(weight);
}

/* ---- attention core ---------------------------------------------------------------------------*/

/* Values of the key in list slot `slot` of the query at p, or false for an empty slot. */
static bool list_key(const di_step *step, const di_seq_rows *s, int64_t p, int slot, int layer,
                     int window, int source, int ratio, const uint8_t *records, const int32_t *topk,
                     int dim, float *out) {
    if (s->draft && slot >= window) {
        size_t row = (size_t)(s->row0 + slot - window);
        di_ref_read_window(records + row * step->pool.layout->window_bytes, dim, out);
        return true;
    }
    p = s->draft ? s->pos0 - 1 : p; /* what the window ends with */
    if (slot < window) {
        int64_t first = p - window + 1 > s->window_start ? p - window + 1 : s->window_start;
        int64_t pos = first + slot;
        if (pos > p) {
            return false;
        }
        size_t row = (size_t)(s->row0 + (pos - s->pos0));
        di_ref_read_window(pos >= s->pos0 ? records + row * step->pool.layout->window_bytes
                                          : di_ring_row(&step->pool, s->slot, layer, pos),
                           dim, out);
        return true;
    }
    int32_t entry = topk ? topk[slot - window] : -1;
    if (entry < 0) {
        return false;
    }
    di_ref_read_latent(di_latent_row(&step->pool, s->blocks, source, ratio, entry), dim, out);
    return true;
}

/* One head. keys f32 [slots, dim], filled [slots]: online softmax over blocks of 64 slots. */
static void attend(const di_bf16 *q, const float *keys, const uint8_t *filled, int slots, int dim,
                   float sink, double *acc, di_bf16 *out) {
    double peak = -1e30, total = 0;
    float scale = (float)(1 / sqrt((double)dim));
    memset(acc, 0, (size_t)dim * sizeof *acc);
    for (int begin = 0; begin < slots; begin += 64) {
        int end = begin + 64 < slots ? begin + 64 : slots;
        double score[64], new_peak = peak;
        for (int j = begin; j < end; j++) {
            double dot = 0;
            for (int c = 0; filled[j] && c < dim; c++) {
                dot += (double)di_bf16_to_f32(q[c]) * keys[(size_t)j * (size_t)dim + (size_t)c];
            }
            score[j - begin] = filled[j] ? dot * scale : -INFINITY;
            new_peak = fmax(new_peak, score[j - begin]);
        }
        double fade = exp(peak - new_peak);
        total *= fade;
        for (int c = 0; c < dim; c++) {
            acc[c] *= fade;
        }
        for (int j = begin; j < end; j++) {
            float p = (float)exp(score[j - begin] - new_peak);
            total += p;
            for (int c = 0; filled[j] && c < dim; c++) {
                acc[c] += (double)di_round_bf16(p) * keys[(size_t)j * (size_t)dim + (size_t)c];
            }
        }
        peak = new_peak;
    }
    total += exp(sink - peak);
    for (int c = 0; c < dim; c++) {
        out[c] = di_bf16_from_f32((float)(acc[c] / total));
    }
}

void di_ref_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                      int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                      const uint8_t *records, const int32_t *topk, int k, const di_tensor *sink,
                      di_bf16 *out) {
    int slots = window + k;
    be->ops->rope(be, q, step->num_rows, heads, dim, table, false);
    for (int i = 0; i < step->num_seqs; i++) {
        bool longer = step->seqs[i].draft && window + step->seqs[i].num_rows > slots;
        slots = longer ? window + step->seqs[i].num_rows : slots;
    }
    float *keys = di_ref_scratch(be, (size_t)slots * (size_t)dim, sizeof *keys);
    uint8_t *filled = di_ref_scratch(be, (size_t)slots, 1);
    double *acc = di_ref_scratch(be, (size_t)dim, sizeof *acc);
    for (int i = 0; keys && filled && acc && i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        for (int64_t t = 0; t < s->num_rows; t++) {
            size_t row = (size_t)(s->row0 + t);
            int listed = s->draft ? window + s->num_rows : window + k;
            for (int j = 0; j < listed; j++) {
                filled[j] = list_key(step, s, s->pos0 + t, j, layer, window, source, ratio, records,
                                     topk ? topk + row * (size_t)k : NULL, dim,
                                     keys + (size_t)j * (size_t)dim);
            }
            for (int h = 0; h < heads; h++) {
                size_t at = (row * (size_t)heads + (size_t)h) * (size_t)dim;
                attend(q + at, keys, filled, listed, dim, ((const float *)sink->data)[h], acc,
                       out + at);
            }
        }
    }
    be->ops->rope(be, out, step->num_rows, heads, dim, table, true);
    di_free(keys);
    di_free(filled);
    di_free(acc);
}
