/* What a backend with a queue of its own (a card) offers beside the ops, so that a step can be
 * queued whole and the host never waits inside it: weights brought over beforehand, host arrays
 * that ops read when they run, programs (ops recorded once and queued again as one), and the draw
 * of tokens. di_ops.queue points here; NULL: ops are done when their call returns, and none of this
 * is needed.
 *
 * Faults are kept and come out of sync() and wait(), as those of ops. */
#ifndef DI_OPS_QUEUE_H
#define DI_OPS_QUEUE_H

#include "base/error.h"
#include "base/tensor.h"

typedef struct di_backend di_backend;
struct di_step;
typedef struct di_program di_program; /* the backend's */

/* n-gram hashing of one table (model/engram.h has the formula). Arrays are host memory that stays
 * where it is, and have been loaded (load_array). */
typedef struct di_ngram_hash {
    int max_ngram, heads, columns, vocab_size;
    int32_t pad;
    const int32_t *token_map;    /* [vocab_size] */
    const int64_t *primes;       /* [columns] */
    const int64_t *offsets;      /* [columns] */
    const uint64_t *multipliers; /* [max_ngram] */
} di_ngram_hash;

enum { DI_QUEUE_BRANCHES = 2 };

/* ---- drawing ----------------------------------------------------------------------------------*/

typedef struct di_draw_pair { /* a token with its bias (f32 bits) or its count */
    int32_t id;
    uint32_t value;
} di_draw_pair;

#define DI_DRAW_IN_PROMPT 0x80000000u /* in a count: the prompt has the token too */

/* One row's draw: what sample/row.h does with a request's parameters, put into numbers. Lists lie
 * in the call's pairs, masks in its masks. */
typedef struct di_draw {
    int32_t logits; /* row of the logits */
    int32_t forced; /* the token, whatever the logits say; or -1 */
    bool greedy;
    bool race; /* the draw of seeded requests (exponential noise), else inverse CDF */
    bool
        logprobs; /* wanted, of so many likeliest tokens beside; processed: of what is drawn from */
    bool processed;
    int32_t num_top;
    float octaves; /* di_octaves_per_logit(temperature) */
    int64_t top_k; /* 0 = off */
    /* top_p = mantissa * 2^-shift exactly, mantissa < 2^53; mantissa 0 = off */
    uint64_t p_mantissa;
    int32_t p_shift;
    int32_t mask;   /* index of the mask, or -1: bit id % 32 of word id / 32 allows the token */
    uint64_t floor; /* least weight that is kept: of min_p, at least 1 */
    uint64_t seed, position;
    int32_t first_bias, num_bias;
    /* Penalties: tokens of prompt and answer with their counts, none twice; and the token that the
     * step before has drawn, if it is not among them yet: its row there, or -1. */
    bool penalise;
    int32_t first_count, num_counts, fed;
    float repetition, presence, frequency;
} di_draw;

typedef enum di_draw_status {
    DI_DRAW_OK,
    DI_DRAW_BAD_LOGITS, /* a NaN or +infinity */
    DI_DRAW_NO_TOKEN,   /* nothing is left that may be drawn */
} di_draw_status;

/* What came of it. For log-probabilities: the row's largest logit, the sum of its weights at
 * octave scale c, and the logits of the chosen and the likeliest tokens (in no order); raw or
 * processed, as asked. A processed row's token may be cut off: kept is false then. */
typedef struct di_drawn {
    int32_t token; /* 0 if the status is not OK */
    int32_t status;
    float best, chosen;
    uint64_t sum;
    int32_t num_top;
    bool kept;
} di_drawn;

typedef struct di_draw_call {
    const float *logits; /* device, f32 [rows, vocab_size] */
    int vocab_size, n;
    /* the rest in argument memory */
    const di_draw *rows; /* [n] */
    const di_draw_pair *pairs;
    const uint32_t *masks; /* [masks, mask_words] */
    int mask_words;
    const int32_t *before; /* the tokens of the step before, by row; NULL: none is fed */
    int32_t *tokens;       /* [n], written there */
    di_drawn *drawn;       /* [n], written there */
    di_draw_pair *top;     /* [n, max_top], written there: ids and logits (f32 bits) */
    int max_top;
} di_draw_call;

/* ---- the table --------------------------------------------------------------------------------*/

typedef struct di_queue_ops {
    /* Bytes of the card's memory: free now, and in all. */
    void (*memory)(di_backend *be, size_t *free_bytes, size_t *total_bytes);

    /* Weights. Ops bring over what they use for the first time, and wait for it; loading does that
     * before. Sizes are what the card gives for them; reserve takes memory for so many at once. */
    size_t (*matrix_bytes)(di_backend *be, const di_tensor *w);
    size_t (*array_bytes)(di_backend *be, size_t bytes);
    void (*reserve)(di_backend *be, size_t bytes);
    void (*load_matrix)(di_backend *be, const di_tensor *w);
    void (*load_array)(di_backend *be, const void *host, size_t bytes);
    void (*load_experts)(di_backend *be, const di_expert *table, int count);
    /* An n-gram table: into the card's memory, or into page-locked memory that it can read. False:
     * neither can be had, and rows have to be hashed on the host, which then picks them out. */
    bool (*load_ngrams)(di_backend *be, const di_tensor *table, bool on_card);

    /* Argument memory: host memory with a copy on the card. Ops that are given addresses inside it
     * use the copy when they run, and what they write there stays there until it is fetched. */
    void *(*args_create)(di_backend *be, size_t bytes); /* zeroed; NULL: memory is short */
    void (*args_destroy)(di_backend *be, void *args);   /* NULL is allowed */
    /* Queues the copying of a range to the card; the host may change it at once. */
    void (*args_send)(di_backend *be, const void *from, size_t bytes);
    /* Queues the copying back; there when a wait() for what is queued behind it returns. */
    void (*args_fetch)(di_backend *be, void *to, size_t bytes);
    /* Queues the copying of the sequences and block tables of a step, which ops that get this very
     * di_step use until the next call. In a recording it is only noted: the replay's own are used,
     * which have as many rows and sequences. */
    void (*step_send)(di_backend *be, const struct di_step *step);

    /* Between record and recorded, ops are not queued but written down; arguments must lie in
     * argument memory. NULL with *err if that fails. replay: false if the program's memory is gone
     * (scratch memory has moved since): record it anew. */
    bool (*record)(di_backend *be);
    di_program *(*recorded)(di_backend *be, di_error *err);
    /* Ends a recording that is only to take the scratch memory it needs. */
    bool (*dropped)(di_backend *be, di_error *err);
    bool (*replay)(di_backend *be, di_program *program);
    void (*program_free)(di_backend *be, di_program *program); /* NULL is allowed */

    /* Branches of a recording, numbered from 0 to DI_QUEUE_BRANCHES - 1. fork: the ops that follow,
     * up to back, need what was recorded before on the main line and on this branch, and may run
     * beside what follows back. join: what follows needs all of the branch. Every branch is joined
     * before the recording ends; ops of different branches have scratch memory of their own, but
     * index_topk, which is not to run beside itself. */
    void (*fork)(di_backend *be, int branch);
    void (*back)(di_backend *be);
    void (*join)(di_backend *be, int branch);

    /* tokens[i] = drawn[source[i]] where source[i] >= 0, all in argument memory. */
    void (*feed)(di_backend *be, int32_t *tokens, const int32_t *source, int n,
                 const int32_t *drawn);

    /* rows i64 [n, columns] of tokens[i], whose predecessors are before[i][look_back - 1], then
     * [look_back - 2], ...; -1: none there (the start, an image). image[i] (or NULL): looks nothing
     * up, rows -1. All in argument memory. */
    void (*hash_ngrams)(di_backend *be, const di_ngram_hash *h, const int32_t *tokens,
                        const int32_t *before, int look_back, const uint8_t *image, int n,
                        int64_t *rows);

    void (*draw)(di_backend *be, const di_draw_call *call);

    /* Points in the queue, places 0 and 1: where a step begins and ends. Between the two the host
     * must not wait; DI_CUDA_GUARD=1 makes that a fault. wait: until the end of that place has been
     * reached; times are those of CLOCK_MONOTONIC. */
    void (*begin)(di_backend *be, int place);
    void (*end)(di_backend *be, int place);
    bool (*wait)(di_backend *be, int place, double *begin, double *end, di_error *err);
} di_queue_ops;

#endif
