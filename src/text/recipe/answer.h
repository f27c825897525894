/* What the engine produces, to what a protocol's client reads: events as they come, and the whole
 * response. One answer for one request; not thread-safe. */
#ifndef DI_TEXT_RECIPE_ANSWER_H
#define DI_TEXT_RECIPE_ANSWER_H

#include "base/buffer.h"
#include "text/recipe/request.h"
#include "text/tokenizer.h"

/* An event of the stream: its name (NULL: a data event without one) and its JSON. */
typedef bool (*di_event_fn)(void *context, const char *name, const char *json, size_t size,
                            di_error *err);

/* Writes the random end of a call's id: 24 characters and a NUL. */
enum { DI_CALL_ID_TAIL = 24 };
typedef void (*di_call_id_fn)(void *context, char tail[DI_CALL_ID_TAIL + 1]);

typedef struct di_answer_setup {
    const di_request *request; /* must outlive the answer, as all here */
    const di_tokenizer *tok;
    di_str id, model;
    uint64_t created;  /* seconds since 1970; also when it was completed, until that is told */
    uint32_t index;    /* chat: which of the request's n answers it is */
    di_str previous;   /* responses: the one that it goes on from; NULL data: none */
    bool stored;       /* responses: it can be asked for again */
    bool background;   /* responses: nobody waits for it */
    bool metadata;     /* responses: tell the client's back, which the recipe does not */
    bool usage_apart;  /* chat: the last chunk has no usage; di_answers_usage has it */
    bool usage_always; /* chat: every chunk has the usage so far */
    di_event_fn event; /* may be NULL */
    di_call_id_fn call_id;
    void *context; /* of both */
} di_answer_setup;

typedef enum di_answer_reason {
    DI_REASON_STOP,
    DI_REASON_LENGTH,
    DI_REASON_FILTER, /* "content_filter" */
} di_answer_reason;

/* A token's probability, and those of the likeliest in its place. What is not finite is told as
 * null. */
typedef struct di_token_logprob {
    int32_t id;
    double logprob;
} di_token_logprob;

typedef struct di_logprob_entry {
    double logprob;
    const di_token_logprob *top;
    size_t top_count;
} di_logprob_entry;

typedef struct di_answer di_answer;

di_answer *di_answer_create(const di_answer_setup *setup, di_error *err);
void di_answer_destroy(di_answer *a); /* NULL is allowed */

/* The prompt is known: opens the stream. The first counts; without one it opens with the first
 * text. fingerprint may be NULL data. */
bool di_answer_ready(di_answer *a, uint64_t prompt_tokens, uint64_t cached_tokens,
                     di_str fingerprint, di_error *err);

/* Text that stands for that many tokens, or the tokens themselves. Do not push the token that ends
 * the answer. Logprobs: one for each token, or none; num_logprobs is checked. All fail with
 * DI_ERR_ARGUMENT after the answer has finished. */
bool di_answer_text(di_answer *a, const char *text, size_t size, uint64_t tokens, di_error *err);
bool di_answer_tokens(di_answer *a, const int32_t *ids, size_t count,
                      const di_logprob_entry *logprobs, size_t num_logprobs, di_error *err);

/* The engine has finished; or, without a reason, nothing more will come. */
bool di_answer_finish(di_answer *a, di_answer_reason reason, di_error *err);
bool di_answer_end(di_answer *a, di_error *err);

/* A stop text was found or the answer finished: the engine's work is not needed any more. */
bool di_answer_finished(const di_answer *a);

/* Appends the whole response as far as it has come. */
bool di_answer_response(const di_answer *a, di_buffer *out, di_error *err);

/* Chat, the n answers of one request: the response that holds all; and the chunk behind all others,
 * which has no choice in it but the usage of all. Prompts count once. */
bool di_answers_response(const di_answer *const *answers, size_t n, di_buffer *out, di_error *err);
bool di_answers_usage(const di_answer *const *answers, size_t n, di_buffer *out, di_error *err);

/* Responses: the whole response while nothing of it is told ("queued", "in_progress") or when
 * nothing will be ("cancelled", "failed", then with a message). */
bool di_answer_report(const di_answer *a, const char *status, const char *error, di_buffer *out,
                      di_error *err);

/* When it was completed, where that is not when it was created. */
void di_answer_set_completed(di_answer *a, uint64_t seconds);

/* Responses: the event that tells of an error in mid-stream. */
bool di_answer_error(di_answer *a, const char *message, di_buffer *out, di_error *err);

/* How an answer stands, for counters. */
typedef struct di_answer_status {
    uint64_t completion_tokens, reasoning_tokens;
    size_t calls;
    bool stopped, length; /* it has finished so */
    unsigned repairs;     /* di_parser_repairs */
} di_answer_status;

void di_answer_get_status(const di_answer *a, di_answer_status *status);

#endif
