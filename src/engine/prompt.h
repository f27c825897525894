/* From a prompt as callers give it to token ids. */
#ifndef DI_ENGINE_PROMPT_H
#define DI_ENGINE_PROMPT_H

#include "deepinfer/deepinfer.h"
#include "engine/parts.h"
#include "text/ids.h"

/* Appends the prompt's ids: at least one, all within the vocabulary and no more than max_model_len.
 */
bool di_prompt_encode(const di_parts *parts, const di_prompt *prompt, di_ids *out, di_error *err);

#endif
