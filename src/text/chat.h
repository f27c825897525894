/* The V4.1 prompt format: a list of messages to text with control tokens in it, and that to ids.
 *
 * What people write can never become a control token: the prompt is a list of stretches, and all
 * that lies between two control tokens is encoded as one plain stretch with added tokens off. */
#ifndef DI_TEXT_CHAT_H
#define DI_TEXT_CHAT_H

#include "text/tokenizer.h"

/* The control tokens' ids, read from the tokenizer by their texts. */
typedef struct di_chat_tokens {
    const di_tokenizer *tok;
    int32_t bos, eos, system, user, assistant, think, think_end;
    int32_t reminder, image; /* -1: the tokenizer has none */
} di_chat_tokens;

/* Fails by naming the first token that is needed and missing. */
bool di_chat_tokens_find(di_chat_tokens *t, const di_tokenizer *tok, di_error *err);

typedef enum di_role {
    DI_ROLE_SYSTEM,
    DI_ROLE_USER,
    DI_ROLE_ASSISTANT,
    DI_ROLE_REMINDER, /* "latest_reminder" */
} di_role;

/* "system", "user", "assistant", "latest_reminder"; what else there is is refused by name. */
bool di_role_parse(const char *name, di_role *role, di_error *err);

/* Content is a list of parts; an image stands as a place holder. All texts are valid UTF-8 and
 * belong to the caller. */
typedef struct di_chat_part {
    bool image;
    const char *text;
    size_t size;
} di_chat_part;

typedef struct di_chat_message {
    di_role role;
    const di_chat_part *parts; /* joined by blank lines */
    size_t part_count;
    const char *reasoning; /* of an assistant; NULL: none */
    size_t reasoning_size;
    bool prefix; /* the last message, an assistant's, is to be continued */
} di_chat_message;

/* How hard the model thinks: 1 to 100, or not at all. */
enum {
    DI_EFFORT_OFF = 0, /* chat mode */
    DI_EFFORT_LOW = 50,
    DI_EFFORT_HIGH = 75, /* the default */
    DI_EFFORT_MAX = 100,
};

/* "none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", or a number from 1 to 100.
 */
bool di_effort_parse(const char *name, int *effort, di_error *err);

/* A prompt: its text, and that text cut into control tokens and plain stretches. */
typedef struct di_chat_segment {
    int32_t control; /* id, -1: plain text */
    size_t begin, size;
} di_chat_segment;

typedef struct di_chat_prompt {
    di_buffer text;
    di_chat_segment *segments;
    size_t count, capacity;
    bool in_reasoning; /* the model goes on inside <think> */
    bool continued;    /* ... or anywhere inside a message that was begun for it */
} di_chat_prompt;

/* Renders messages into an empty *out (all zero). There must be at least one message. Earlier
 * reasoning is left out, as the model was trained to see it when no tools are in play. On failure
 * *out is empty again. */
bool di_chat_render(const di_chat_tokens *t, const di_chat_message *messages, size_t count,
                    int effort, di_chat_prompt *out, di_error *err);

/* Appends the prompt's ids. */
bool di_chat_encode(const di_chat_tokens *t, const di_chat_prompt *prompt, di_ids *out,
                    di_error *err);

void di_chat_prompt_free(di_chat_prompt *prompt);

#endif
