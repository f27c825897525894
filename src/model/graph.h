/* The graph of the V4.1 text model and the buffers it works in. Private to model/ (and its tests).
 */
#ifndef DI_MODEL_GRAPH_H
#define DI_MODEL_GRAPH_H

#include "model/draft.h"
#include "model/engram.h"
#include "model/model.h"

/* Activations of up to max_rows rows on the device. One owner: di_model. */
typedef struct di_activations {
    di_bf16 *h, *h_kept;         /* [n, hc_mult, hidden_size]; kept: the rows that replay keeps */
    float *pre, *pre_kept;       /* [n, hc_mult] mix that the next sub-block collapses with */
    float *next_pre;             /* [n, hc_mult] */
    float *post, *comb;          /* [n, hc_mult], [n, hc_mult, hc_mult] */
    di_bf16 *x, *y;              /* [n, hidden_size] */
    di_bf16 *x8;                 /* [n, hidden_size] x as DI_Q8, where attention begins */
    di_bf16 *qr;                 /* [n, q_lora_rank], DI_Q8 behind its norm */
    di_bf16 *q, *o;              /* [n, heads, head_dim] */
    di_bf16 *kv;                 /* [n, head_dim] */
    uint8_t *records;            /* [n, window record] */
    di_bf16 *u;                  /* [n, o_groups * o_lora_rank], DI_Q8 */
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
    di_bf16 *main_x;             /* [n, hidden_size] what the draft's context keys are made of;
                                    DI_Q8 behind its norm */
    di_bf16 *g;                  /* [draft rows, hidden_size] hidden before the draft's norm;
                                    draft rows: a block for each of di_draft_seqs sequences */
    di_bf16 *markov;             /* [sequences, dspark_markov_rank] */
    float *markov_pre;           /* [sequences] */
    float *confidence;           /* [block size, di_draft_stride] */
    float *logits;               /* [max(max_logits, draft rows), vocab_size] */
} di_activations;

/* The rows one half of the model works on. The encoder half and, when replay leaves rows out, the
 * decoder half have one each. Arrays but seqs lie in di_inputs' memory. */
typedef struct di_pass {
    di_step step;
    di_seq_rows *seqs;  /* [max_rows + 1] */
    int32_t *rows;      /* [max_rows] which rows of the call these are */
    int64_t *positions; /* [max_rows] */
    uint8_t *image;     /* [max_rows] */
    bool any_image;
    di_entry *entries[3]; /* by ratio, [max_rows] */
    int num_entries[3];
    int64_t *entry_positions[3]; /* by ratio, [max_rows] */
} di_pass;

/* What a step gives the ops, in one piece of host memory, so that a backend with a queue can be
 * sent all of it at once (ops/queue.h). The model has two: for calls of any kind, and a small one
 * for steps in which every row has logits (queue.c); recorded rounds of drafts have another. */
typedef struct di_inputs {
    int max_rows, max_logits;
    int room; /* rows that the memory has room for */
    di_pass all, kept;
    int32_t *tokens;       /* [max_rows] */
    int32_t *before;       /* [max_rows, DI_MODEL_LOOK_BACK] tokens in front, -1: none */
    int32_t *source;       /* [max_rows] place of the drawn token that is the row's; -1: none is */
    int32_t *logit_rows;   /* [max(max_logits, max_rows)] */
    int32_t *draft_before; /* [max_rows] */
    float *freq[2];        /* [qk_rope_head_dim / 2] each */
    int64_t *engram_rows;  /* [engram layers][max_rows][columns] */
    char *memory;          /* argument memory, else the heap's */
    size_t bytes;          /* of it that a step sends: without engram_rows if the device hashes */
} di_inputs;

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
    di_activations a;
    void *memory; /* the one device buffer behind `a` */
    di_inputs any, small;
    di_inputs *in;                /* the one in use */
    int32_t *ids;                 /* [max_rows + look-back] compressed ids of one part */
    float *draft_logits;          /* host: [vocab_size] */
    float *draft_confidence;      /* host: [di_draft_stride] */
    const di_queue_ops *queue;    /* the backend's; NULL: it has none */
    bool device_hash;             /* n-grams are hashed on the device */
    bool branches;                /* being recorded: ops may run beside each other */
    bool context;                 /* this call keeps the draft model's context */
    struct di_programs *programs; /* queue.c; NULL: none */
    di_observer observer;
    void *observer_user;
};

/* Bytes of one token's streams. */
static inline size_t di_stream_bytes(const di_config *c) {
    return (size_t)c->hc_mult * (size_t)c->hidden_size * sizeof(di_bf16);
}

/* Most sequences of a round of drafts; with drafts only. */
static inline int di_draft_seqs(const di_config *c, const di_model_options *o) {
    int fit = o->max_rows / c->dspark_block_size, most = DI_MODEL_MAX_DRAFT_SEQS;
    most = o->max_draft_seqs > 0 && o->max_draft_seqs < most ? o->max_draft_seqs : most;
    return fit < most ? fit : most;
}

/* The same in whole lines of memory. */
static inline size_t di_draft_stride(const di_config *c, const di_model_options *o) {
    return ((size_t)di_draft_seqs(c, o) + 15) / 16 * 16;
}

/* Makes room for steps of so many rows. */
bool di_inputs_create(di_model *m, di_inputs *in, int max_rows, int max_logits);
/* Lays the memory out anew for steps of so many rows, at most `room`, and logits of as many, so
 * that small steps send little. Its contents are void, but for freq. */
void di_inputs_shape(di_model *m, di_inputs *in, int rows);
void di_inputs_destroy(di_model *m, di_inputs *in);
/* Rows of n-gram tables are the device's to fill from now on (or not), in both inputs. */
void di_inputs_hash_on_device(di_model *m, bool on);
/* Sends a range of m->in's memory to the device, if that has its own copy. */
void di_inputs_send(di_model *m, const void *from, size_t bytes);

/* model.c: checks a call; lays it out and runs it, returning rows of logits. source, drawn: see
 * di_model_queue. */
bool di_model_check(const di_model *m, const di_model_rows *parts, int count, bool want_logits,
                    di_error *err);
int di_model_run(di_model *m, const di_model_rows *parts, int num_parts, const int32_t *source,
                 const int32_t *drawn);

/* queue.c */
void di_programs_destroy(di_model *m);

/* Sizes for which there are programs, ascending. */
typedef struct di_buckets {
    int count, sizes[96];
} di_buckets;
void di_buckets_choose(di_buckets *b, int most);
int di_buckets_find(const di_buckets *b, int size); /* index of the first that is not smaller */

/* Ops that a program is recorded of. */
typedef void (*di_program_fn)(di_model *m, void *arg);
/* NULL: that cannot be, and will not be tried again. branches: as di_model.branches. */
di_program *di_program_record(di_model *m, bool branches, di_program_fn ops, void *arg);
/* Queues *at, recorded anew if it is NULL or its scratch memory has moved. False: the ops have been
 * queued one by one. */
bool di_program_run(di_model *m, di_program **at, bool branches, di_program_fn ops, void *arg);
void di_program_count_round(di_model *m, bool recorded);

/* draft.c: the confidence head's weights as they are used. */
void di_draft_confidence_parts(const di_config *c, const di_tensor *proj, di_tensor *by_hidden,
                               di_tensor *by_token);

/* The parts of a round, on the rows of m->in. */
bool di_draft_check(const di_model *m, const di_draft_rows *parts, int n, di_error *err);
/* Rows and arguments of n sequences, and of as many as are missing to `filled` that are nobody's:
 * in slot 0, with one token in front. */
void di_draft_fill(di_model *m, const di_draft_rows *parts, int n, int filled);
/* Stages and head: logits of every row before the correction. */
void di_draft_stages(di_model *m);
/* Column j of n sequences: its logits corrected by the tokens before, and its confidence. */
void di_draft_correct(di_model *m, int n, int j, const int32_t *before);

/* Fills the entries that close in this pass, and their positions. */
void di_graph_fill(di_pass *pass);
/* Queues what depends on positions: the step itself, rotation tables. */
void di_graph_begin(di_model *m, di_pass *pass);

/* The whole graph: embeds the tokens of m->in, runs its pass `all` through the layers, from the
 * boundary layer on `kept` instead if `replay`, and leaves the last layer's h and pre in m->a. */
void di_graph_run(di_model *m, bool replay);

/* One draft stage on m->a.h and m->a.pre. */
void di_graph_draft_stage(di_model *m, const di_pass *pass, int stage);

/* Logits of the last pass' rows m->in->logit_rows[0 .. n) into m->a.logits. */
void di_graph_head(di_model *m, int n);

/* For tests: observer is called during forward; NULL switches it off. */
void di_model_observe(di_model *m, di_observer observer, void *user);

#endif
