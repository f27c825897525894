/* What a configuration's fields must be to one another, and what follows from them: each layer's
 * attention mode and sources, the boundary between encoder and decoder half, the engram primes. */
#include "weights/config_plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool refuse(const char *where, di_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(const char *where, di_error *err, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return di_fail(err, DI_ERR_FORMAT, "%s: %s", where, text);
}

static bool contains(const int *ids, int count, int id) {
    for (int i = 0; i < count; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* ---- widths ---------------------------------------------------------------------------------- */

/* Every input of a quantised product and every quantised vector is cut in groups of 32. */
static bool check_groups(const di_config *c, const char *where, di_error *err) {
    const struct {
        const char *what;
        int64_t value;
    } widths[] = {
        {"hidden_size", c->hidden_size},
        {"moe_intermediate_size", c->moe_intermediate_size},
        {"head_dim", c->head_dim},
        {"q_lora_rank", c->q_lora_rank},
        {"num_attention_heads * head_dim / o_groups",
         (int64_t)c->num_attention_heads * c->head_dim / c->o_groups},
        {"o_groups * o_lora_rank", (int64_t)c->o_groups * c->o_lora_rank},
        {"index_head_dim", c->index_head_dim},
        {"engram_head_dim", c->engram_head_dim},
    };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (widths[i].value % 32) {
            return refuse(where, err, "%s is %lld, not a multiple of 32", widths[i].what,
                          (long long)widths[i].value);
        }
    }
    return true;
}

static bool check_heads(const di_config *c, const char *where, di_error *err) {
    if (c->num_attention_heads % c->o_groups) {
        return refuse(where, err, "num_attention_heads is %d, not a multiple of o_groups, %d",
                      c->num_attention_heads, c->o_groups);
    }
    if (c->qk_rope_head_dim % 2 || c->qk_rope_head_dim > c->head_dim ||
        c->qk_rope_head_dim > c->index_head_dim) {
        return refuse(where, err,
                      "qk_rope_head_dim is %d, but must be even and at most head_dim, %d, and "
                      "index_head_dim, %d",
                      c->qk_rope_head_dim, c->head_dim, c->index_head_dim);
    }
    if (c->num_experts_per_tok > c->n_routed_experts) {
        return refuse(where, err, "num_experts_per_tok is %d, more than n_routed_experts, %d",
                      c->num_experts_per_tok, c->n_routed_experts);
    }
    return true;
}

static bool check_token_ids(const di_config *c, const char *where, di_error *err) {
    const struct {
        const char *key;
        int id;
    } tokens[] = {
        {"bos_token_id", c->bos_token_id},
        {"eos_token_id", c->eos_token_id},
        {"pad_token_id", c->pad_token_id},
        {"image_token_id", c->image_token_id},
        {"dspark_noise_token_id", c->dspark_noise_token_id},
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        if (tokens[i].id >= c->vocab_size) {
            return refuse(where, err, "%s is %d, outside the vocabulary of %d", tokens[i].key,
                          tokens[i].id, c->vocab_size);
        }
    }
    return true;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static bool check_sources(const di_config *c, const char *where, di_error *err) {
    for (int i = 0; i < c->num_kv_sources; i++) {
        int l = c->kv_source_layer_ids[i];
        if (!contains(c->index_source_layer_ids, c->num_index_sources, l)) {
            return refuse(where, err,
                          "kv_source_layer_ids names layer %d, which index_source_layer_ids "
                          "does not",
                          l);
        }
    }
    for (int i = 0; i < c->num_index_sources; i++) {
        int l = c->index_source_layer_ids[i];
        if (c->layers[l].ratio == 0) {
            return refuse(where, err,
                          "index_source_layer_ids names layer %d, whose compress_ratios entry is 0",
                          l);
        }
    }
    return true;
}

/* Layers in order: a layer with a ratio reads from the last source at or before it. */
static bool plan_layers(di_config *c, const char *where, di_error *err) {
    int kv_source = -1, index_source = -1;
    for (int l = 0; l < c->num_hidden_layers; l++) {
        di_layer_plan *p = &c->layers[l];
        bool owns_kv = contains(c->kv_source_layer_ids, c->num_kv_sources, l);
        bool owns_index = contains(c->index_source_layer_ids, c->num_index_sources, l);
        kv_source = owns_kv ? l : kv_source;
        index_source = owns_index ? l : index_source;
        p->kv_source = p->index_source = p->engram = -1;
        if (p->ratio == 0) {
            continue;
        }
        if (kv_source < 0 || c->layers[kv_source].ratio != p->ratio) {
            return refuse(where, err,
                          "layer %d has compress_ratios entry %d, but no layer of "
                          "kv_source_layer_ids at or before it has the same",
                          l, p->ratio);
        }
        p->mode = owns_kv ? DI_LAYER_FULL : owns_index ? DI_LAYER_REINDEX : DI_LAYER_REUSE;
        p->kv_source = kv_source;
        p->index_source = index_source;
    }
    return true;
}

/* The decoder half begins at the last KV source; all of it must read that one's entries. */
static bool plan_boundary(di_config *c, const char *where, di_error *err) {
    c->boundary_layer =
        c->num_kv_sources ? c->kv_source_layer_ids[c->num_kv_sources - 1] : c->num_hidden_layers;
    for (int l = c->boundary_layer; l < c->num_hidden_layers; l++) {
        if (c->layers[l].ratio != c->layers[c->boundary_layer].ratio) {
            return refuse(where, err,
                          "compress_ratios[%d] is %d, but must be %d as at layer %d, the last of "
                          "kv_source_layer_ids",
                          l, c->layers[l].ratio, c->layers[c->boundary_layer].ratio,
                          c->boundary_layer);
        }
    }
    return true;
}

static bool plan_candidates(di_config *c, const char *where, di_error *err) {
    int source = c->candidate_source_layer_id;
    if (source < 0) {
        return true;
    }
    if (!contains(c->index_source_layer_ids, c->num_index_sources, source)) {
        return refuse(where, err,
                      "candidate_source_layer_id is %d, which index_source_layer_ids does not name",
                      source);
    }
    c->layers[source].builds_candidates = true;
    for (int i = 0; i < c->num_index_sources; i++) {
        int l = c->index_source_layer_ids[i];
        if (l <= source) {
            continue;
        }
        if (c->layers[l].kv_source != c->layers[source].kv_source) {
            return refuse(where, err,
                          "layer %d would use the candidates of layer %d, but they read different "
                          "entries (of layers %d and %d)",
                          l, source, c->layers[l].kv_source, c->layers[source].kv_source);
        }
        c->layers[l].uses_candidates = true;
    }
    /* The newest block may hold a single entry; what is left must still fill the selection. */
    int64_t least = (int64_t)(c->candidate_topk_blocks - 1) * c->candidate_block_size + 1;
    if (least < c->index_topk) {
        return refuse(where, err,
                      "candidate_topk_blocks %d of candidate_block_size %d may hold only %lld "
                      "entries, fewer than index_topk, %d",
                      c->candidate_topk_blocks, c->candidate_block_size, (long long)least,
                      c->index_topk);
    }
    return true;
}

static bool check_draft(const di_config *c, const char *where, di_error *err) {
    if (c->num_nextn_predict_layers == 0) {
        return true;
    }
    if (c->dspark_num_experts_per_tok > c->dspark_n_routed_experts) {
        return refuse(where, err,
                      "dspark_num_experts_per_tok is %d, more than dspark_n_routed_experts, %d",
                      c->dspark_num_experts_per_tok, c->dspark_n_routed_experts);
    }
    int first = c->dspark_target_layer_ids[0];
    int last = c->dspark_target_layer_ids[c->num_dspark_targets - 1];
    if (first < c->boundary_layer && last >= c->boundary_layer) {
        return refuse(where, err,
                      "dspark_target_layer_ids names layers %d and %d, which lie on both sides of "
                      "layer %d, where the decoder half begins",
                      first, last, c->boundary_layer);
    }
    return true;
}

/* ---- engram ---------------------------------------------------------------------------------- */

static bool is_prime(int64_t n) {
    if (n < 4) {
        return n >= 2;
    }
    if (n % 2 == 0 || n % 3 == 0) {
        return false;
    }
    for (int64_t d = 5; d * d <= n; d += 6) {
        if (n % d == 0 || n % (d + 2) == 0) {
            return false;
        }
    }
    return true;
}

/* Every (layer, size) starts its search at engram_vocab_size again but passes over primes that are
 * taken, and those are all from the start on: so one walk over consecutive primes does it. */
void di_engram_primes(const di_config *c, int64_t primes[][DI_MAX_ENGRAM_COLUMNS]) {
    int64_t candidate = c->engram_vocab_size;
    for (int layer = 0; layer < c->num_engram_layers; layer++) {
        for (int column = 0; column < c->engram_columns; column++) {
            while (!is_prime(candidate)) {
                candidate++;
            }
            primes[layer][column] = candidate++;
        }
    }
}

static bool plan_engram(di_config *c, const char *where, di_error *err) {
    int64_t primes[DI_MAX_ENGRAM_LAYERS][DI_MAX_ENGRAM_COLUMNS];
    if (c->num_engram_layers == 0) {
        return true;
    }
    c->engram_columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    if (c->engram_columns > DI_MAX_ENGRAM_COLUMNS) {
        return refuse(where, err,
                      "(engram_max_ngram_size - 1) * engram_n_heads is %d, at most %d are allowed",
                      c->engram_columns, DI_MAX_ENGRAM_COLUMNS);
    }
    if (c->engram_compressed_vocab_size > c->vocab_size) {
        return refuse(where, err, "engram_compressed_vocab_size is %d, more than vocab_size, %d",
                      c->engram_compressed_vocab_size, c->vocab_size);
    }
    di_engram_primes(c, primes);
    for (int i = 0; i < c->num_engram_layers; i++) {
        int l = c->engram_layer_ids[i];
        int64_t rows = 0;
        if (l >= c->boundary_layer) {
            return refuse(where, err,
                          "engram_layer_ids names layer %d, but must stay before layer %d, where "
                          "the decoder half begins",
                          l, c->boundary_layer);
        }
        for (int column = 0; column < c->engram_columns; column++) {
            rows += primes[i][column];
        }
        if (rows != c->engram_num_embeddings[i]) {
            return refuse(where, err,
                          "engram_num_embeddings[%d] is %lld, but the %d primes from "
                          "engram_vocab_size on add up to %lld",
                          i, (long long)c->engram_num_embeddings[i], c->engram_columns,
                          (long long)rows);
        }
        c->layers[l].engram = i;
    }
    return true;
}

bool di_config_plan(di_config *c, const char *where, di_error *err) {
    c->hc_mixes = (2 + c->hc_mult) * c->hc_mult;
    return check_groups(c, where, err) && check_heads(c, where, err) &&
           check_token_ids(c, where, err) && check_sources(c, where, err) &&
           plan_layers(c, where, err) && plan_boundary(c, where, err) &&
           plan_candidates(c, where, err) && check_draft(c, where, err) &&
           plan_engram(c, where, err);
}
