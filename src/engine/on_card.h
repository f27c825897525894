/* Draws of the works that the device's thread does on a card (those with drafts): logits stay
 * there, and what comes back is tokens. Rows that the card cannot draw (bad words,
 * log-probabilities of prompts, penalties that depend on drafts, lists beyond what there is room
 * for) are told apart, and their logits come to the host. The device's thread alone. */
#ifndef DI_ENGINE_ON_CARD_H
#define DI_ENGINE_ON_CARD_H

#include "engine/device.h"
#include "engine/masks.h"

typedef struct di_on_card di_on_card;

/* The options' model can queue (di_model_can_queue). */
di_on_card *di_on_card_create(const di_device_options *o, di_error *err);
void di_on_card_destroy(di_on_card *c); /* NULL is allowed */

/* Runs the work's forward pass and draws its rows, and waits. place: in the queue. Meanwhile masks
 * are made. logits: host f32 [max_logits, vocab_size], of which those rows are filled that the card
 * did not draw. *seconds: that it took there. */
bool di_on_card_step(di_on_card *c, di_work *w, int place, di_masks *masks, float *logits,
                     double *seconds, di_error *err);

/* How many outputs of row i were drawn; 0: none, its logits are on the host. */
int di_on_card_outputs(const di_on_card *c, int i);

/* What was drawn for output k of row i. False with *err if nothing could be. */
bool di_on_card_token(di_on_card *c, const di_work *w, int i, int k, di_row_token *to,
                      di_error *err);

/* Can the card draw this row's drafts? */
bool di_on_card_can_propose(const di_row_sampler *s);

/* The masks of the answers' next tokens have been made. A round of drafts for parts[0 .. count),
 * which are of these rows of the work. tokens and confidence [count, block size]; lengths[i]:
 * drafts that there are, up to num_drafts. */
bool di_on_card_propose(di_on_card *c, di_work *w, const int *rows, const di_draft_rows *parts,
                        int count, int32_t *tokens, float *confidence, int *lengths, di_error *err);

#endif
