/* A model folder opened: weights, tokenizer, backend, cache and model together, as the engine and
 * the logits command need them. No threads, no requests. */
#ifndef DI_ENGINE_PARTS_H
#define DI_ENGINE_PARTS_H

#include <stdio.h>

#include "cache/cache.h"
#include "model/model.h"
#include "ops/ops.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "weights/weights.h"

/* Whether the draft model's context is kept. ON is refused if the folder has no mtp.* tensors. */
typedef enum di_drafts_wanted { DI_DRAFTS_OFF, DI_DRAFTS_ON, DI_DRAFTS_IF_ANY } di_drafts_wanted;

typedef struct di_parts_options {
    const char *model;        /* folder */
    const char *backend;      /* "cpu" (also if NULL), "cuda", "cuda:N", "auto" or "ref" */
    int threads;              /* 0 = one for each core */
    int64_t max_model_len;    /* 0 = what the model allows */
    int max_num_seqs;         /* slots */
    int max_rows, max_logits; /* of a step */
    int most_drafts;          /* of an answer that a step verifies, if there are drafts */
    int64_t kv_memory;        /* bytes for cached state; 0 = a quarter of what is free */
    /* On a card: bytes of its memory for everything, or 0 and a share of what is free; 0 = most. */
    int64_t gpu_memory;
    double gpu_memory_share;
    bool queue_steps; /* make ready for di_model_queue, if the backend can */
    bool free_order;  /* on a card: sums in the order that is fastest (ops/cuda/cuda.h) */
    bool no_prefix_cache, replay_by_mask;
    di_drafts_wanted drafts;
    bool time_ops; /* the backend keeps times (ops/timed.h); printed by di_parts_print_times */
    void (*progress)(void *user, int done, int total);
    void *user;
} di_parts_options;

typedef struct di_parts {
    di_weights *weights;
    di_tokenizer *tokenizer; /* NULL: the folder has none */
    di_chat_tokens chat;     /* its control tokens */
    di_backend *backend;
    di_cache *cache;
    di_model *model;
    int64_t max_model_len;
    int64_t num_blocks;
    int num_slots, num_snapshots;
    bool drafts; /* the draft model's context is kept */
    bool batch_invariant;
    bool time_ops;
    bool queues_steps;               /* with queue_steps, if it came to that */
    size_t weight_bytes, work_bytes; /* as di_engine_info's */
    /* What computes, in words: tells any two apart whose steps may take other times. */
    char device[512];
    char plan[320]; /* of a card's memory, for messages (plan.h); "" without a queue */
} di_parts;

/* Layout of a sequence's state with these options, and a cache of `budget` bytes: slots for all
 * sequences first, an eighth of the rest for snapshots, blocks for what is left, but with `capped`
 * no more than all sequences could ever fill. For plan.c. */
void di_parts_layout(const di_parts *p, di_state_layout *l);
bool di_parts_size_cache(di_parts *p, const di_parts_options *o, size_t budget, bool capped,
                         di_cache_options *c, di_error *err);
di_cache_options di_parts_least_cache(const di_parts *p);

/* Is it one of those words? NULL is. */
bool di_parts_backend_known(const char *name);

/* On failure nothing is left open. */
bool di_parts_open(di_parts *p, const di_parts_options *o, di_error *err);
/* The table of ops by time; nothing unless time_ops was set. */
void di_parts_print_times(const di_parts *p, FILE *out);

void di_parts_close(di_parts *p); /* of all zero: nothing */

#endif
