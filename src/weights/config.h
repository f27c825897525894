/* config.json of DeepseekV41ForCausalLM: the fields the engine reads, checked and with what follows
 * from them. Field names are the released ones. Everything here is host memory, immutable after
 * di_config_read, and safe to share between threads. */
#ifndef DI_WEIGHTS_CONFIG_H
#define DI_WEIGHTS_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    DI_MAX_LAYERS = 256,
    DI_MAX_STAGES = 16,
    DI_MAX_HC = 8,
    DI_MAX_ENGRAM_LAYERS = 16,
    DI_MAX_NGRAM = 8,
    DI_MAX_ENGRAM_COLUMNS = 128,
};

/* How a layer's attention finds compressed entries (model.md 1.3). */
typedef enum di_layer_mode {
    DI_LAYER_SWA,     /* ratio 0: window only */
    DI_LAYER_FULL,    /* owns a compressor and an indexer */
    DI_LAYER_REINDEX, /* owns an indexer, reads another layer's entries and keys */
    DI_LAYER_REUSE,   /* reads another layer's entries and another layer's selection */
} di_layer_mode;

typedef struct di_layer_plan {
    int ratio; /* compress_ratios[l]: 0, 1 or 2 */
    di_layer_mode mode;
    int kv_source;    /* layer whose entries and index keys are read; -1 for SWA */
    int index_source; /* layer whose selection is used; -1 for SWA */
    bool builds_candidates, uses_candidates;
    int engram; /* index into engram_layer_ids, -1 = none */
} di_layer_plan;

typedef struct di_config {
    /* top level */
    int bos_token_id, eos_token_id, pad_token_id, image_token_id;

    /* text_config */
    int vocab_size, hidden_size, moe_intermediate_size, num_hidden_layers;
    int num_attention_heads, head_dim, qk_rope_head_dim, q_lora_rank, o_lora_rank, o_groups;
    float swiglu_limit; /* 0 = off */
    float rms_norm_eps;
    int max_position_embeddings;
    double rope_theta, compress_rope_theta;
    bool yarn; /* rope_scaling present */
    double yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int yarn_original_max_position_embeddings;
    int n_routed_experts, n_shared_experts, num_experts_per_tok;
    bool norm_topk_prob;
    float routed_scaling_factor, gate_temp;
    int sliding_window;
    int num_kv_sources, kv_source_layer_ids[DI_MAX_LAYERS];
    int num_index_sources, index_source_layer_ids[DI_MAX_LAYERS];
    int index_n_heads, index_head_dim, index_topk;
    int candidate_source_layer_id; /* -1 = off */
    int candidate_topk_blocks, candidate_block_size;
    int hc_mult, hc_sinkhorn_iters;
    float hc_eps;
    int num_engram_layers, engram_layer_ids[DI_MAX_ENGRAM_LAYERS];
    int64_t engram_num_embeddings[DI_MAX_ENGRAM_LAYERS];
    int engram_max_ngram_size, engram_n_heads, engram_head_dim, engram_pad_token_id;
    int64_t engram_vocab_size;
    int engram_compressed_vocab_size;
    int num_nextn_predict_layers, dspark_block_size, dspark_noise_token_id, dspark_markov_rank;
    int dspark_n_routed_experts, dspark_num_experts_per_tok; /* 0 in the file = the target's */
    int num_dspark_targets, dspark_target_layer_ids[DI_MAX_LAYERS];

    /* derived */
    di_layer_plan layers[DI_MAX_LAYERS];
    int boundary_layer; /* first layer of the decoder half = last kv source; num_hidden_layers if
                           none */
    int engram_columns; /* (engram_max_ngram_size - 1) * engram_n_heads */
    int hc_mixes;       /* (2 + hc_mult) * hc_mult */
} di_config;

/* Parses and checks a config.json value; `where` names the file in messages. Refuses by name
 * everything that is not this model (architecture, a V4 checkpoint's keys, other quantisation,
 * other scoring, ...) and everything out of range or inconsistent. Unknown keys pass. */
bool di_config_parse(di_config *c, const json_t *root, const char *where, di_error *err);

/* Reads FOLDER/config.json. */
bool di_config_read(di_config *c, const char *folder, di_error *err);

/* The primes of the engram tables, [num_engram_layers][engram_columns], size-major and head-minor:
 * those from engram_vocab_size on, in order. di_config_parse has checked that a layer's add up to
 * its engram_num_embeddings. */
void di_engram_primes(const di_config *c, int64_t primes[][DI_MAX_ENGRAM_COLUMNS]);

#endif
