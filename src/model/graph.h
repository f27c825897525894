/* The graph of the V4.1 text model and the buffers it works in. Private to model/ (and its tests).
 */
#ifndef DI_MODEL_GRAPH_H
#define DI_MODEL_GRAPH_H

#include "model/engram.h"
#include "model/model.h"

/* Activations of up to max_rows rows on the device. One owner: di_model. */
typedef struct di_activations {
    di_bf16 *h, *h_kept;         /* [n, hc_mult, hidden_size]; kept: the rows that replay keeps */
    float *pre, *pre_kept;       /* [n, hc_mult] mix that the next sub-block collapses with */
    float *next_pre;             /* [n, hc_mult] */
    float *post, *comb;          /* [n, hc_mult], [n, hc_mult, hc_mult] */
    di_bf16 *x, *y;              /* [n, hidden_size] */
    di_bf16 *qr;                 /* [n, q_lora_rank] */
    di_bf16 *q, *o;              /* [n, heads, head_dim] */
    di_bf16 *kv;                 /* [n, head_dim] */
    uint8_t *records;            /* [n, window record] */
    di_bf16 *u;                  /* [n, o_groups * o_lora_rank] */
    float *group_k, *group_g;    /* [n, head_dim] */
    di_bf16 *latent;             /* [n, head_dim] */
    di_bf16 *key;                /* [n, index_head_dim] */
    di_bf16 *index_q;            /* [n, index_n_heads, index_head_dim] */
    di_bf16 *index_weight;       /* [n, index_n_heads] */
    int32_t *topk;               /* [n, index_topk] */
    int32_t *candidates;         /* [n, candidate_topk_blocks] */
    int32_t *experts;            /* [n, num_experts_per_tok] */
    float *expert_weight;        /* [n, num_experts_per_tok] */
    di_rope_table rope[2];       /* [0] window-only layers, [1] layers with compression */
    di_rope_table entry_rope[3]; /* by ratio: positions of the entries that close */
    di_bf16 *taps;               /* [n, draft targets, hidden_size] with drafts */
    di_bf16 *main_x;             /* [n, hidden_size] what the draft's context keys are made of */
    di_bf16 *g;                  /* [draft rows, hidden_size] hidden before the draft's norm */
    di_bf16 *markov;             /* [sequences, dspark_markov_rank] */
    float *markov_pre, *confidence; /* [sequences] */
    float *logits;                  /* [max(max_logits, draft rows), vocab_size] */
} di_activations;

/* The rows one half of the model works on, as host arrays that live in di_model. The encoder half
 * and, when replay leaves rows out, the decoder half have one each. */
typedef struct di_pass {
    di_step step;
    di_seq_rows *seqs;  /* [max_rows] */
    int32_t *rows;      /* [max_rows] which rows of the call these are */
    int64_t *positions; /* [max_rows] */
    uint8_t *image;     /* [max_rows] */
    bool any_image;
    di_entry *entries[3]; /* by ratio, [max_rows] */
    int num_entries[3];
    int64_t *entry_positions; /* [max_rows] scratch */
} di_pass;

/* Called with every intermediate worth comparing; `data` is on the device and may be changed. */
typedef void (*di_observer)(void *user, const char *name, int layer, void *data, size_t bytes);

struct di_model {
    const di_weights *w;
    const di_config *c;
    di_backend *be;
    di_cache *cache;
    di_model_options o;
    int32_t *token_map;
    di_engram_hasher hasher;
    float *freq[2]; /* [qk_rope_head_dim / 2] each */
    di_activations a;
    void *memory; /* the one device buffer behind `a` */
    di_pass all, kept;
    int32_t *tokens;                        /* [max_rows] */
    int32_t *ids;                           /* [max_rows + look-back] compressed ids of one part */
    int64_t *engram_rows;                   /* [engram layers][max_rows][columns] */
    int32_t *logit_rows;                    /* [max_logits] */
    int32_t *draft_before;                  /* [max_rows] */
    float *draft_logits, *draft_confidence; /* host: [vocab_size], [max_rows] */
    di_observer observer;
    void *observer_user;
};

/* Bytes of one token's streams. */
static inline size_t di_stream_bytes(const di_config *c) {
    return (size_t)c->hc_mult * (size_t)c->hidden_size * sizeof(di_bf16);
}

/* Fills what depends on positions: rotation tables and the entries that close in this pass. */
void di_graph_begin(di_model *m, di_pass *pass);

/* The whole graph: embeds m->tokens, runs m->all through the layers, from the boundary layer on
 * m->kept instead if `replay`, and leaves the last layer's h and pre in m->a. */
void di_graph_run(di_model *m, bool replay);

/* One draft stage on m->a.h and m->a.pre. */
void di_graph_draft_stage(di_model *m, const di_pass *pass, int stage);

/* Logits of rows m->logit_rows[0 .. n) of the last pass into m->a.logits. */
void di_graph_head(di_model *m, int n);

/* For tests: observer is called during forward; NULL switches it off. */
void di_model_observe(di_model *m, di_observer observer, void *user);

#endif
