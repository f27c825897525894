/* What the files of the oracle share. */
#ifndef DI_OPS_REF_INTERNAL_H
#define DI_OPS_REF_INTERNAL_H

#include "ops/ops.h"

typedef struct di_ref {
    di_backend base;
    bool failed; /* both sticky: reported by sync */
    bool not_q8; /* rows given as DI_Q8 were not, or should not be */
} di_ref;

/* Scratch of count * size bytes, zeroed; NULL sets the sticky fault. Freed with di_free. */
void *di_ref_scratch(di_backend *be, size_t count, size_t size);

/* Element [i][j] of a stored matrix as f32 (FP8 and FP4 with their scales). */
float di_ref_weight(const di_tensor *w, int64_t i, int64_t j);

/* Q8 round trip of one row: x bf16 [k] -> values code * scale, exact in f32. */
void di_ref_q8(const di_bf16 *x, int64_t k, float *out);

/* sum_j a[j] * w[row][j] in float64. */
double di_ref_dot(const float *a, const di_tensor *w, int64_t row);

/* Window, latent and key records -> values. */
void di_ref_read_window(const uint8_t *record, int dim, float *out);
void di_ref_read_latent(const uint8_t *record, int dim, float *out);
void di_ref_read_key(const uint8_t *record, int dim, float *out);

/* The k best finite scores of n, lower index first among equals; ascending, filled up with -1. */
bool di_ref_best(di_backend *be, const float *scores, int64_t n, int k, int32_t *out);

/* ref_attention.c */
di_op_index_topk di_ref_index_topk;
di_op_attention di_ref_attention;

/* ref_state.c */
di_op_window_make di_ref_window_make;
di_op_window_store di_ref_window_store;
di_op_compress di_ref_compress;
di_op_entry_store di_ref_entry_store;

/* ref_moe.c */
di_op_route di_ref_route;
di_op_moe di_ref_moe;
di_op_engram di_ref_engram;

#endif
