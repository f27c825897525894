/* The tokenizer and control tokens of an open engine, for faces that lay out prompts themselves. */
#ifndef DI_ENGINE_CHAT_TOKENS_H
#define DI_ENGINE_CHAT_TOKENS_H

#include "deepinfer/deepinfer.h"
#include "text/chat.h"

/* They live as long as the engine. NULL: the model's folder has no tokenizer.json. */
const di_chat_tokens *di_engine_chat_tokens(const di_engine *engine);

#endif
