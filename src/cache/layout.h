/* Bytes and places of every kind of per-sequence state: one table (layout.c), filled from the
 * config.
 *
 * A block holds, source layer by source layer, the index keys and then the latents of its tokens;
 * a slot holds every layer's window ring, the rings of the draft model's layers, and the open
 * groups. Parts start at multiples of 64. Release: 890 bytes a token grow (113,920 a block), a ring
 * row is 528. */
#ifndef DI_CACHE_LAYOUT_H
#define DI_CACHE_LAYOUT_H

#include <stdio.h>

#include "ops/ops.h"
#include "weights/config.h"

/* max_backtracking: B of di_cache_options. The draft model's layers are numbered behind the
 * target's (num_hidden_layers + draft_layers <= DI_MAX_LAYERS). Cannot fail: di_config's ranges
 * keep every product far below SIZE_MAX. */
void di_state_layout_fill(di_state_layout *layout, const di_config *c, int block_tokens,
                          int max_backtracking, int draft_layers);

/* The table for people: per kind what is kept, where, how many bytes, and what taking tokens back
 * does to it; with the draft model's rings and B = dspark_block_size + 1 if the model has one. */
void di_state_table_print(FILE *out, const di_config *c);

#endif
