/* Random arrays, weights and state pools for tests of ops. Everything is a function of the seed.
 * Memory belongs to an `arrays` and is freed all at once. */
#ifndef TESTS_SUPPORT_ARRAYS_H
#define TESTS_SUPPORT_ARRAYS_H

#include "base/tensor.h"
#include "ops/ops.h"

typedef struct arrays {
    uint64_t seed;
    void *owned[512];
    int num_owned;
} arrays;

void arrays_free(arrays *a);
void *arrays_take(arrays *a, size_t count, size_t size); /* zeroed, 64-byte aligned */

uint64_t random_bits(arrays *a);
int random_below(arrays *a, int n);
float random_unit(arrays *a);   /* uniform in [0, 1) */
float random_normal(arrays *a); /* roughly: sum of uniforms, deviation 1 */

/* What values look like: ordinary; with -0, zeros, denormals and wide exponents mixed in; the same
 * with whole rows of infinities or NaNs. */
typedef enum values_kind { VALUES_CALM, VALUES_WILD, VALUES_BROKEN } values_kind;

di_bf16 *random_bf16(arrays *a, size_t rows, size_t cols, float size, values_kind kind);

/* Rows of x [rows, k] through Q8, by the formats' scalar forms. */
di_bf16 *through_q8(arrays *a, const di_bf16 *x, size_t rows, size_t k);
float *random_f32(arrays *a, size_t n, float size);

/* Weights of typical size 1 / sqrt(k), with scales that differ from block to block; FP8 tensors
 * have 32 x 32 scales ({1, 32} for a table), FP4 ones {1, 32}. */
di_tensor random_tensor(arrays *a, di_dtype dtype, int64_t rows, int64_t cols);
di_tensor random_table(arrays *a, int64_t rows, int64_t cols);

/* One layer's state: ring, group, latents and keys of layer 0 and `num_blocks` blocks. */
di_state_layout *small_layout(arrays *a, int head_dim, int key_dim, int block_tokens, int ring_rows,
                              int group_rows);
di_state_pool small_pool(arrays *a, const di_state_layout *layout, int num_blocks, int num_slots);

#endif
