/* A piece of argument memory (ops/queue.h) in which draws go to a card and what was drawn comes
 * back. One thread at a time. */
#ifndef DI_ENGINE_DRAW_MEMORY_H
#define DI_ENGINE_DRAW_MEMORY_H

#include "engine/device.h"
#include "engine/draws.h"

typedef struct di_draw_memory {
    di_backend *be; /* borrowed */
    char *memory;
    int max_draws, max_top, vocab_size;
    di_draw *rows; /* [max_draws] what is drawn next, for the caller to fill */
    di_draw_lists lists;
    int32_t *tokens;   /* [max_draws] stay on the card, for ops that are queued behind the draw */
    di_drawn *drawn;   /* [max_draws] */
    di_draw_pair *top; /* [max_draws, max_top] */
    int32_t *top_ids;
    double *top_logprobs; /* [max_top] */
} di_draw_memory;

/* max_masks: of 129,280 tokens each has 16 KiB. */
bool di_draw_memory_create(di_draw_memory *m, di_backend *be, int vocab_size, int max_draws,
                           int max_masks, int max_top, di_error *err);
void di_draw_memory_destroy(di_draw_memory *m); /* of all zero: nothing */

/* Queues the draw of rows[0 .. n) from logits on the card; tokens, drawn and top are there to be
 * read when what is queued has been waited for. rows, lists and masks may be filled anew at once.
 * before: tokens of other memory that draws are fed with. */
void di_draw_memory_queue(di_draw_memory *m, const float *logits, int n, const int32_t *before);

/* The same in its parts, of which the second may be recorded: what rows [0 .. n) say goes there;
 * rows [first .. first + n) are drawn; results of [0 .. n) come back. */
void di_draw_memory_send(di_draw_memory *m, int n);
void di_draw_memory_draw(di_draw_memory *m, const float *logits, int first, int n,
                         const int32_t *before);
void di_draw_memory_fetch(di_draw_memory *m, int n);

/* Log-probabilities of result i, whose draw was *d. */
void di_draw_memory_scores(di_draw_memory *m, const di_draw *d, int i, di_scored *to);

#endif
