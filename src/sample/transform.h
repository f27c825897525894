/* What changes a row of logits before a token is drawn from it, in the one documented order: bias,
 * allowed tokens, bad words, min_tokens; then the grammar; then the penalties. Called by row.c. */
#ifndef DI_SAMPLE_TRANSFORM_H
#define DI_SAMPLE_TRANSFORM_H

#include "sample/history.h"
#include "sample/kernels.h"

/* Everything that a row's transforms depend on. */
typedef struct di_transform {
    const di_sample_params *params;
    const di_sample_history *history; /* NULL = nothing has happened yet */
    const uint32_t *grammar_mask;     /* bit id % 32 of word id / 32: allowed; NULL = all */
    int64_t num_output;               /* tokens of the answer before this one */
} di_transform;

/* False if the row stays as it is, so that no copy is needed. */
bool di_transform_needed(const di_transform *t);

/* Whether tokens that end the answer are banned here: min_tokens, where a grammar leaves others. */
bool di_transform_bans_ending(const di_transform *t, int vocab_size);

/* out: f32 [vocab_size], the transformed copy of logits (finite or -infinity). Finite values stay
 * finite: results beyond float32 become its largest magnitude. */
void di_transform_row(const di_transform *t, const di_row_kernels *kernels, const float *logits,
                      int vocab_size, float *out);

#endif
