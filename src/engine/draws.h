/* A request's parameters as numbers for a draw on the device (ops/queue.h), with the meaning that
 * sample/row.h gives them, and what has been drawn as the sampler's results. */
#ifndef DI_ENGINE_DRAWS_H
#define DI_ENGINE_DRAWS_H

#include "ops/queue.h"
#include "sample/row.h"

/* Where a step's lists and masks are gathered; argument memory. */
typedef struct di_draw_lists {
    di_draw_pair *pairs; /* [max_pairs] */
    uint32_t *masks;     /* [max_masks, mask_words] */
    int max_pairs, num_pairs, max_masks, num_masks, mask_words, vocab_size;
} di_draw_lists;

/* False if the device's draw has no such thing: bad words, or more lists than there is room for.
 * in->logits and in->law are not looked at. fed: row of the step before whose token the history
 * lacks, or -1. */
bool di_draw_fill(const di_sample_params *p, const di_sample_input *in, int fed, di_draw_lists *l,
                  di_draw *d);

/* Makes of *d, filled for this answer, the draw of a later token that knows of no tokens between:
 * lists are shared. False if a mask finds no room; *d is as it was then. */
bool di_draw_move(const di_sample_params *p, const di_sample_input *in, di_draw_lists *l,
                  di_draw *d);

/* The error of a row that gave no token; true if it gave one. */
bool di_draw_ok(const di_drawn *r, di_error *err);

/* Log-probabilities of the drawn token and, into ids and logprobs, [d->num_top], of the likeliest,
 * likeliest first. top: as the device left them; put in order. */
void di_draw_logprobs(const di_draw *d, const di_drawn *r, di_draw_pair *top, int32_t *ids,
                      double *logprobs, di_logprobs *out);

#endif
