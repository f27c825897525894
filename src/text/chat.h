/* Prompts: control tokens and the plain text between them, and that to ids. What is put into one
 * and in which order is recipe/render.h's matter.
 *
 * What people write can never become a control token: the prompt is a list of stretches, and all
 * that lies between two control tokens is encoded as one plain stretch with added tokens off. */
#ifndef DI_TEXT_CHAT_H
#define DI_TEXT_CHAT_H

#include "text/effort.h"
#include "text/tokenizer.h"

/* The control tokens' ids, read from the tokenizer by their texts. */
typedef struct di_chat_tokens {
    const di_tokenizer *tok;
    int32_t bos, eos, system, user, assistant, think, think_end;
    int32_t reminder, image, dsml; /* -1: the tokenizer has none */
} di_chat_tokens;

/* Fails by naming the first token that is needed and missing. */
bool di_chat_tokens_find(di_chat_tokens *t, const di_tokenizer *tok, di_error *err);

/* A prompt: its text, and that text cut into control tokens and plain stretches. */
typedef struct di_chat_segment {
    int32_t control; /* id, -1: plain text */
    size_t begin, size;
} di_chat_segment;

/* All zero is an empty prompt. */
typedef struct di_chat_prompt {
    di_buffer text;
    di_chat_segment *segments;
    size_t count, capacity;
} di_chat_prompt;

/* Plain text goes on in the stretch that is open, so that joins across it are found. */
bool di_chat_add_text(di_chat_prompt *p, const char *text, size_t size, di_error *err);

/* `what` names what needs the token if the tokenizer has none (id -1). */
bool di_chat_add_control(const di_chat_tokens *t, di_chat_prompt *p, int32_t id, const char *what,
                         di_error *err);

/* Text of our own in which the markup of calls and of thinking is shown: those are tokens. */
bool di_chat_add_marked(const di_chat_tokens *t, di_chat_prompt *p, const char *text, size_t size,
                        di_error *err);

/* Appends the prompt's ids. */
bool di_chat_encode(const di_chat_tokens *t, const di_chat_prompt *prompt, di_ids *out,
                    di_error *err);

void di_chat_prompt_free(di_chat_prompt *prompt);

#endif
