/* The engine for faces within this program: what deepinfer.h does not offer to the world. */
#ifndef DI_ENGINE_ENGINE_H
#define DI_ENGINE_ENGINE_H

#include "deepinfer/deepinfer.h"

/* As di_engine_open, for an engine that gives the logits of up to max_logits rows of a step. */
di_engine *di_engine_open_for_logits(const di_engine_options *options, int max_logits,
                                     di_error *err);

/* Calls rows(user, logits f32 [num_rows, vocab_size], num_rows) for each step of at most `chunk`
 * tokens (<= max_logits and max_num_batched_tokens), in order; false from it ends the call, and
 * *err is the callee's. Ids are checked first, as for a request. */
typedef bool (*di_logits_fn)(void *user, const float *logits, int num_rows, di_error *err);
bool di_engine_logits(di_engine *engine, const int32_t *token_ids, size_t num_token_ids, int chunk,
                      di_logits_fn rows, void *user, di_error *err);

#endif
