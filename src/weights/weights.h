/* A checkpoint's parameters, bound to the model by name. The data stay where they are, in mapped
 * files; only a tensor that its file has at an odd address is copied. Nothing is converted. */
#ifndef DI_WEIGHTS_WEIGHTS_H
#define DI_WEIGHTS_WEIGHTS_H

#include "base/tensor.h"
#include "weights/config.h"

typedef struct di_hc_weights {
    di_tensor fn;    /* F32 [hc_mixes, hc_mult * hidden_size] */
    di_tensor base;  /* F32 [hc_mixes] */
    di_tensor scale; /* F32 [3] */
} di_hc_weights;

typedef struct di_attention_weights {
    di_tensor wq_a;      /* FP8 [q_lora_rank, hidden_size] */
    di_tensor q_norm;    /* BF16 [q_lora_rank] */
    di_tensor wq_b;      /* FP8 [num_attention_heads * head_dim, q_lora_rank] */
    di_tensor wkv;       /* FP8 [head_dim, hidden_size] */
    di_tensor kv_norm;   /* BF16 [head_dim] */
    di_tensor wo_a;      /* FP8 [o_groups * o_lora_rank, heads * head_dim / o_groups] */
    di_tensor wo_b;      /* FP8 [hidden_size, o_groups * o_lora_rank] */
    di_tensor attn_sink; /* F32 [num_attention_heads] */
} di_attention_weights;

typedef struct di_moe_weights {
    di_tensor gate;          /* BF16 [experts, hidden_size] */
    di_tensor bias, bias_vl; /* F32 [experts] */
    di_expert *experts;      /* [num_experts], owned by di_weights; routed ones are FP4 */
    int num_experts;
    di_expert shared; /* FP8 */
} di_moe_weights;

/* What a layer and a draft stage have in common. */
typedef struct di_block_weights {
    di_tensor attn_norm, ffn_norm; /* BF16 [hidden_size] */
    di_attention_weights attn;
    di_hc_weights hc_attn, hc_ffn;
    di_moe_weights moe;
} di_block_weights;

typedef struct di_compressor_weights { /* FULL layers */
    di_tensor wkv;                     /* BF16 [head_dim, hidden_size] */
    di_tensor wgate;                   /* BF16 the same; absent (DI_DTYPE_NONE) at ratio 1 */
    di_tensor norm;                    /* BF16 [head_dim] */
} di_compressor_weights;

typedef struct di_indexer_weights { /* FULL and REINDEX layers; wk and k_norm FULL only */
    di_tensor wq_b;                 /* FP8 [index_n_heads * index_head_dim, q_lora_rank] */
    di_tensor weights_proj;         /* BF16 [index_n_heads, hidden_size] */
    di_tensor wk;                   /* BF16 [index_head_dim, head_dim] */
    di_tensor k_norm;               /* BF16 [index_head_dim] */
} di_indexer_weights;

typedef struct di_engram_weights {
    di_tensor embed; /* FP8 rows [engram_num_embeddings, engram_head_dim], scale_block {1, 32} */
    di_tensor wkv;   /* FP8 [(hc_mult + 1) * hidden_size, engram_columns * engram_head_dim] */
    di_tensor q_weight, k_weight; /* BF16 [hc_mult, hidden_size] */
} di_engram_weights;

typedef struct di_layer_weights {
    di_block_weights block;
    di_compressor_weights compressor;
    di_indexer_weights indexer;
    di_engram_weights engram;
} di_layer_weights;

typedef struct di_draft_weights { /* mtp.{s}; the lower tensors only on stage 0 or the last one */
    di_block_weights block;
    di_tensor main_proj;       /* stage 0: FP8 [hidden_size, targets * hidden_size] */
    di_tensor main_norm;       /* stage 0: BF16 [hidden_size] */
    di_tensor norm;            /* last: BF16 [hidden_size] */
    di_tensor markov_embed;    /* last: BF16 [vocab_size, dspark_markov_rank] */
    di_tensor markov_head;     /* last: BF16 [vocab_size, dspark_markov_rank] */
    di_tensor confidence_proj; /* last: BF16 [1, hidden_size + dspark_markov_rank] */
} di_draft_weights;

typedef struct di_weights {
    di_config config;
    di_tensor embed;          /* BF16 [vocab_size, hidden_size] */
    di_tensor norm;           /* BF16 [hidden_size] */
    di_tensor head;           /* BF16 [vocab_size, hidden_size] */
    di_layer_weights *layers; /* [num_hidden_layers] */
    di_draft_weights *draft;  /* [num_nextn_predict_layers], NULL when the file has no mtp.* */
    struct di_checkpoint *checkpoint; /* owns the mapped files */
} di_weights;

/* Opens FOLDER (config.json; model.safetensors.index.json and its shards, or model.safetensors),
 * checks the inventory name by name and binds it. Values are checked for NaN too: all of them in a
 * checkpoint of up to 64 MB, else the scales (not of experts and engram tables) and small tensors.
 * NULL with *err on the first fault. Thread-safe; the result is immutable. */
di_weights *di_weights_open(const char *folder, di_error *err);
void di_weights_close(di_weights *w);

#endif
