/* The loops over a whole row, compiled for several instruction sets from one text (kernels.inc);
 * all give the same bits. Called by row.c, select.c and logprobs.c; they know nothing of
 * parameters.
 *
 * A row is cut into blocks of 64 tokens. The largest logit of every block is kept, so that later
 * passes leave out blocks that cannot matter; the tail's missing tokens count as -infinity. */
#ifndef DI_SAMPLE_KERNELS_H
#define DI_SAMPLE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

enum { DI_ROW_BLOCK = 64 };

static inline int di_row_blocks(int vocab_size) {
    return (vocab_size + DI_ROW_BLOCK - 1) / DI_ROW_BLOCK;
}

/* Which tokens are kept: x > value, or x == value and id <= last_id; and weight >= floor. */
typedef struct di_cut {
    float value;
    int32_t last_id;
    uint64_t floor; /* >= 1: a token without weight is never kept */
} di_cut;

static inline bool di_cut_keeps(const di_cut *cut, float x, int32_t id, uint64_t weight) {
    return (x > cut->value || (x == cut->value && id <= cut->last_id)) && weight >= cut->floor;
}

/* x: f32 [vocab_size]. b counts blocks. */
typedef struct di_row_kernels {
    const char *name;

    /* block_max[b]; false if the row holds a NaN or +infinity (then the maxima mean nothing). */
    bool (*scan)(const float *x, int vocab_size, float *block_max);

    /* sums[b] of all weights 2^(46 - (best - x) * c); returns how many are not 0. */
    int (*weigh)(const float *x, int vocab_size, float best, float c, uint64_t *sums);

    /* The same for kept tokens; blocks whose maximum is below the cut are not read. */
    int (*weigh_kept)(const float *x, int vocab_size, const float *block_max, float best, float c,
                      const di_cut *cut, uint64_t *sums);

    /* One block: weights, and bins[i] = min(floor((best - x) * c * scale), last_bin). */
    void (*weigh_block)(const float *x, int count, float best, float c, float scale,
                        int32_t last_bin, uint64_t weights[DI_ROW_BLOCK],
                        int32_t bins[DI_ROW_BLOCK]);

    /* One block, x[0] being id 4 * index: random words of coupled noise into words[]; true if some
     * token of it may have (1 - U) / 2^-y <= bound * 2^-31 (surely true if one has). */
    bool (*race_block)(const float *x, int count, float best, float c, uint64_t seed,
                       uint64_t position, uint32_t index, float bound,
                       uint32_t words[DI_ROW_BLOCK]);

    /* x = -infinity where bit id % 32 of mask[id / 32] is 0. */
    void (*apply_mask)(float *x, int vocab_size, const uint32_t *mask);
} di_row_kernels;

extern const di_row_kernels di_row_kernels_plain;
#if defined(__x86_64__)
extern const di_row_kernels di_row_kernels_avx2, di_row_kernels_avx512;
#endif

/* The best set that this processor has; and, for tests and benches, every set it has, best first:
 * NULL when `index` is past the last. */
const di_row_kernels *di_row_kernels_best(void);
const di_row_kernels *di_row_kernels_at(int index);

#endif
