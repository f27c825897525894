/* A conversation in JSON to the ids of its prompt. */
#ifndef DI_ENGINE_MESSAGES_H
#define DI_ENGINE_MESSAGES_H

#include "text/chat.h"

/* Appends the ids of a JSON array of messages: objects with role ("system", "user", "assistant",
 * "latest_reminder"), content (a string, or a list of {"type": "text", "text"}), and for an
 * assistant reasoning_content and, in the last message, prefix: true (go on from here). What is
 * missing, unknown or out of place is refused by field. effort: 0, or 1 to 100 (text/chat.h). */
bool di_messages_encode(const di_chat_tokens *tokens, const char *json, size_t size, int effort,
                        di_ids *out, di_error *err);

/* Splits the text of an answer that began inside reasoning: bytes [0, *reasoning) are the
 * reasoning,
 * [*content, size) the answer. Without </think> all of it is reasoning. */
void di_split_reasoning(const char *text, size_t size, size_t *reasoning, size_t *content);

#endif
