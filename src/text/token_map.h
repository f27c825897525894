/* The Engram layers' token compression: ids whose texts differ only in case, accents, white space
 * or compatibility forms share one compressed id. Derived from the tokenizer; not in the
 * checkpoint. */
#ifndef DI_TEXT_TOKEN_MAP_H
#define DI_TEXT_TOKEN_MAP_H

#include "text/tokenizer.h"

/* Fills map[0..vocab_size) and *classes, the number of compressed ids; map[id] < *classes. Fails if
 * an id below vocab_size has no token. The caller compares *classes with the configuration. */
bool di_token_map_build(const di_tokenizer *tok, int32_t vocab_size, int32_t *map, int32_t *classes,
                        di_error *err);

/* For checkpoints without a tokenizer (tests): map[id] = floor(id * classes / vocab_size).
 * 1 <= classes <= vocab_size. */
void di_token_map_synthetic(int32_t vocab_size, int32_t classes, int32_t *map);

#endif
