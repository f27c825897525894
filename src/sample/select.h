/* A row with its best token, and the search for where top_k and top_p end in it. Called by row.c
 * and logprobs.c. Nothing here sorts a whole row, and no result depends on the order of a sum. */
#ifndef DI_SAMPLE_SELECT_H
#define DI_SAMPLE_SELECT_H

#include "sample/kernels.h"
#include "sample/params.h"

enum { DI_SELECT_BUCKETS = 2048 };

/* Working memory of one row at a time; all pointers into one block. */
typedef struct di_select_scratch {
    int32_t *ids;      /* [vocab_size] */
    uint32_t *keys;    /* [vocab_size] */
    uint64_t *weights; /* [vocab_size] */
    float *heap;       /* [di_row_blocks] */
    int32_t counts[DI_SELECT_BUCKETS];
    uint64_t sums[DI_SELECT_BUCKETS];
} di_select_scratch;

/* Logits at a temperature. */
typedef struct di_row {
    const di_row_kernels *kernels;
    const float *x; /* f32 [vocab_size], finite or -infinity, at least one finite */
    int vocab_size;
    const float *block_max; /* [di_row_blocks(vocab_size)] */
    float best;             /* the largest logit, and the lowest id that has it */
    int32_t best_id;
    float c; /* di_octaves_per_logit(temperature) */
} di_row;

/* Looks the row over; fills block_max. False with "bad logits" for a NaN or +infinity and "no legal
 * token" if nothing is finite. c is left to the caller. */
bool di_row_open(di_row *row, const di_row_kernels *kernels, const float *x, int vocab_size,
                 float *block_max, di_error *err);

/* The two errors. Always false. */
bool di_sample_bad_logits(di_error *err);
bool di_sample_no_token(di_error *err);

/* What top_k, top_p and min_p keep, the best token always among it. `sum` is that of all weights;
 * it is used only if di_select_needs_sum. */
bool di_select_needs_sum(const di_sampling *shape);
di_cut di_select(const di_row *row, const di_sampling *shape, uint64_t sum, di_select_scratch *s);

/* The ids of the n likeliest tokens into out[], key descending, id ascending; tokens that cannot
 * occur are left out. Returns how many there are, at most n. */
int di_row_top(const di_row *row, int n, int32_t *out, di_select_scratch *s);

#endif
