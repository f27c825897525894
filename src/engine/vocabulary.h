/* A tokenizer's tokens as grammars see them. */
#ifndef DI_ENGINE_VOCABULARY_H
#define DI_ENGINE_VOCABULARY_H

#include "grammar/vocab.h"
#include "text/tokenizer.h"

/* Masks have num_bits bits, at least as many as the tokenizer has ids. Added tokens, which hold all
 * control tokens, are never allowed, except the one that opens the markup of tool calls: it stands
 * for DI_VOCAB_DSML. `stop` ends a text. */
di_vocab *di_vocabulary_create(const di_tokenizer *tok, int32_t num_bits, int32_t stop,
                               di_error *err);

#endif
