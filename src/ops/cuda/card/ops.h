/* Every op of the CUDA backend; what each computes stands in ops/ops.h. */
#ifndef DI_OPS_CUDA_CARD_OPS_H
#define DI_OPS_CUDA_CARD_OPS_H

#include "ops/ops.h"

di_op_embed di_card_embed;
di_op_gather_rows di_card_gather_rows;
di_op_rms_norm di_card_rms_norm;
di_op_rope_table di_card_rope_table;
di_op_rope di_card_rope;

di_op_mhc_mix di_card_mhc_mix;
di_op_mhc_pre di_card_mhc_pre;
di_op_stream_mean di_card_stream_mean;
di_op_mhc_post di_card_mhc_post;

di_op_linear di_card_linear;
di_op_linear_pair di_card_linear_pair;
di_op_linear_f32 di_card_linear_f32;
di_op_linear_add_f32 di_card_linear_add_f32;
di_op_linear_grouped di_card_linear_grouped;

di_op_window_make di_card_window_make;
di_op_window_store di_card_window_store;
di_op_compress di_card_compress;
di_op_entry_store di_card_entry_store;

di_op_index_topk di_card_index_topk;
di_op_attention_keys di_card_attention_keys;
di_op_attention di_card_attention;

di_op_route di_card_route;
di_op_moe di_card_moe;
di_op_engram di_card_engram;

#endif
