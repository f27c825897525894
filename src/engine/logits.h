/* Logits of every position of a prompt: a tool for checking, beside the engine, not in it. */
#ifndef DI_ENGINE_LOGITS_H
#define DI_ENGINE_LOGITS_H

#include "engine/parts.h"

/* logits f32 [num_rows, vocab_size] of the next positions; false ends the run, *err being the
 * callee's.
 */
typedef bool (*di_logits_fn)(void *user, const float *logits, int num_rows, di_error *err);

/* Feeds ids in steps of at most `chunk` tokens (<= the parts' max_rows and max_logits). With
 * bounded replay only rows from replay_from on have logits; 0 = exact. Ids out of range or too many
 * of them are refused first. */
bool di_logits_run(di_parts *p, const int32_t *ids, int64_t n, int chunk, int64_t replay_from,
                   di_logits_fn rows, void *user, di_error *err);

#endif
