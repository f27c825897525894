/* Bytes and places of every kind of per-sequence state: one table, filled from the config.
 *
 * A block holds, source layer by source layer, the index keys and then the latents of its tokens;
 * a slot holds every layer's window ring and then the open groups. Parts start at multiples of 64.
 * Release: 890 bytes a token grow (113,920 a block), a ring row is 528. */
#ifndef DI_CACHE_LAYOUT_H
#define DI_CACHE_LAYOUT_H

#include "ops/ops.h"
#include "weights/config.h"

/* max_backtracking: B of di_cache_options. Cannot fail: di_config's ranges keep every product far
 * below SIZE_MAX. */
void di_state_layout_fill(di_state_layout *layout, const di_config *c, int block_tokens,
                          int max_backtracking);

#endif
