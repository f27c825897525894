/* A conversation to the prompt that the model was trained on. */
#ifndef DI_TEXT_RECIPE_RENDER_H
#define DI_TEXT_RECIPE_RENDER_H

#include "text/chat.h"
#include "text/recipe/conversation.h"

/* Renders into an empty *out; on failure it is empty again.
 *
 * V4.1:  <bos> [<System> [effort line] [system] [tools] [response format]]
 *        (<User> text | <System> text | <Assistant> [reasoning] answer [calls] <eos>)* <Assistant>
 * then <think> or, in chat mode, </think>, and for a call that is required the block's opening.
 * V4 has no <System>: what would stand there follows <bos>. */
bool di_recipe_render(const di_chat_tokens *t, const di_conversation *c, di_chat_prompt *out,
                      di_error *err);

/* The images in the order of their place holders. */
bool di_recipe_images(const di_conversation *c, di_pool *pool, const di_image *const **images,
                      size_t *count, di_error *err);

#endif
