/* The model on a backend with a queue (ops/queue.h): weights loaded ahead, and steps that are
 * queued without waiting. Steps in which every row has logits (of decoding, and where drafts are
 * verified) run as programs, recorded once for each number of rows and each class of lengths; so do
 * rounds of drafts (draft.h). */
#ifndef DI_MODEL_QUEUE_H
#define DI_MODEL_QUEUE_H

#include "model/model.h"

typedef void (*di_model_progress)(void *user, int done, int total);

/* Bytes that the weights, and apart from them the n-gram tables, take on the device. */
size_t di_model_weight_bytes(const di_model *m);
size_t di_model_table_bytes(const di_model *m);

/* Brings all weights to the device, and the n-gram tables where it can read them: into its memory,
 * or into page-locked memory of the host. If neither can be had, the host picks their rows, and
 * di_model_can_queue is false. progress may be NULL. */
bool di_model_load(di_model *m, bool tables_on_card, di_model_progress progress, void *user,
                   di_error *err);

/* Takes the scratch memory that the largest calls need: max_rows tokens of one sequence, and as
 * many sequences as there can be, at lengths of up to max_model_len. The cache has one block and
 * slot at least. Nothing runs. */
bool di_model_measure(di_model *m, int64_t max_model_len, int max_seqs, di_error *err);

/* Memory for recorded steps of up to max_rows rows of max_seqs sequences (more rows where drafts
 * are verified); then the programs for short sequences. The cache is the one in use from now on.
 * False only with an error: a device that cannot record runs the steps op by op, and *recorded is
 * false then. */
bool di_model_prepare(di_model *m, int max_seqs, int max_rows, bool *recorded,
                      di_model_progress progress, void *user, di_error *err);

/* True if steps can be queued: prepared, and everything on the device that they read. */
bool di_model_can_queue(const di_model *m);

/* Queues a forward pass. source[i] (or NULL): place in `drawn`, argument memory, of the token that
 * is part i's last one; -1: it is known. Logits stay on the device, in order of parts. Arguments
 * are refused as by di_model_forward; faults of the device come out of the queue's wait. */
bool di_model_queue(di_model *m, const di_model_rows *parts, int num_parts, const int32_t *source,
                    const int32_t *drawn, di_error *err);
const float *di_model_logits(const di_model *m);

/* Steps and rounds of drafts that ran as programs, and op by op, since the model was made. */
typedef struct di_model_counts {
    uint64_t recorded_steps, other_steps, recorded_rounds, other_rounds;
} di_model_counts;
di_model_counts di_model_get_counts(const di_model *m);

#endif
