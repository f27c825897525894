/* What the answers of the three protocols share; private to this folder. */
#ifndef DI_TEXT_RECIPE_ANSWERING_H
#define DI_TEXT_RECIPE_ANSWERING_H

#include "text/detokenizer.h"
#include "text/recipe/answer.h"
#include "text/recipe/json_write.h"
#include "text/recipe/parser.h"

/* How an answer ended. */
typedef enum di_ending {
    DI_ENDING_NONE, /* it has not */
    DI_ENDING_STOP, /* by itself, or the source ended */
    DI_ENDING_STOP_TEXT,
    DI_ENDING_LENGTH,
    DI_ENDING_FILTER,
    DI_ENDING_CALLS, /* by itself, having called tools */
} di_ending;

/* The call of a custom tool is plain text to the client: what stands between the quotes of
 * {"input": "..."}. Arguments of another form are passed on as they are. */
typedef enum di_custom_state {
    DI_CUSTOM_OPENING, /* so far as expected: held back */
    DI_CUSTOM_TEXT,
    DI_CUSTOM_CLOSED, /* what follows is dropped */
    DI_CUSTOM_OTHER,
} di_custom_state;

typedef struct di_answer_call {
    char id[48];
    di_buffer name, arguments; /* arguments of a custom tool: its input */
    const di_tool *tool;       /* NULL: the model made it up */
    di_custom_state custom;
    size_t place; /* of its item or block */
} di_answer_call;

/* A text that was pushed: what goes with its pieces. */
typedef struct di_answer_text_info {
    di_buffer logprobs; /* JSON entries, joined by commas; empty: none */
    uint64_t tokens;
    bool counted; /* as reasoning */
} di_answer_text_info;

typedef struct di_protocol_voice di_protocol_voice;

struct di_answer {
    di_answer_setup s;
    const di_protocol_voice *voice;
    di_parser *parser;
    bool opened, failed;
    di_ending ending;
    uint64_t completed; /* seconds since 1970 */

    uint64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    di_buffer fingerprint; /* data NULL: none */

    di_ids waiting; /* ids whose text is not whole yet */
    di_buffer waiting_logprobs;
    uint64_t waiting_count;
    di_detokenizer detokenizer; /* repair mode */

    di_answer_text_info *texts; /* from number first_text on */
    size_t first_text, num_texts, text_capacity;

    bool thinks;          /* the request's mode */
    bool starts_thinking; /* the model goes on inside its reasoning */
    bool has_reasoning, has_content;
    di_buffer reasoning, content, reasoning_logprobs, content_logprobs;
    di_answer_call *calls;
    size_t num_calls, call_capacity;

    di_buffer json; /* of an event */
    di_buffer head; /* chat: how every event begins */
    uint64_t sequence;
    size_t num_items; /* blocks or items that have begun */
    int open_item;    /* a di_item_kind */
    size_t reasoning_place, content_place;
};

typedef enum di_item_kind {
    DI_ITEM_NONE,
    DI_ITEM_REASONING,
    DI_ITEM_CONTENT,
    DI_ITEM_CALL,
} di_item_kind;

/* A protocol. Texts and logprobs are those of one piece; they are in the answer's buffers already.
 */
struct di_protocol_voice {
    bool (*open)(di_answer *a, di_error *err);
    bool (*reasoning)(di_answer *a, di_str text, di_str logprobs, di_error *err);
    bool (*content)(di_answer *a, di_str text, di_str logprobs, di_error *err);
    bool (*call)(di_answer *a, di_answer_call *call, di_error *err);
    /* delta: JSON of the arguments or, of a custom tool, text */
    bool (*arguments)(di_answer *a, di_answer_call *call, di_str delta, di_error *err);
    bool (*finish)(di_answer *a, di_error *err);
    void (*response)(const di_answer *a, di_writer *w);
};

extern const di_protocol_voice di_chat_voice, di_messages_voice, di_responses_voice;

/* The response of which nothing is told (di_answer_report). */
void di_responses_report(const di_answer *a, const char *status, const char *error, di_writer *w);

/* An event's JSON: begin, write, send. */
di_writer di_event_begin(di_answer *a, di_error *err);
bool di_event_send(di_answer *a, di_writer *w, const char *name, di_error *err);

static inline di_str di_buffer_str(const di_buffer *b) {
    return (di_str){b->data ? b->data : "", b->size};
}

/* "logprobs": a list of entries. */
void di_write_logprobs(di_writer *w, di_str entries);

#endif
