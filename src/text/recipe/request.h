/* A request in one of three protocols, read, checked and resolved: a conversation, how to sample,
 * how to read what the model writes.
 *
 * What deepseek-recipe 0.2.0 accepts, refuses and overrides is kept; `server` in the options is our
 * own mode, in which the client is honoured (docs/recipe.md lists where the two differ). Errors:
 * DI_ERR_FORMAT for a body that is no JSON or has the wrong types, DI_ERR_ARGUMENT for what the
 * API does not allow; both are the client's fault (400). */
#ifndef DI_TEXT_RECIPE_REQUEST_H
#define DI_TEXT_RECIPE_REQUEST_H

#include "text/recipe/conversation.h"

typedef enum di_protocol {
    DI_PROTOCOL_CHAT,      /* OpenAI chat completions */
    DI_PROTOCOL_MESSAGES,  /* Anthropic messages */
    DI_PROTOCOL_RESPONSES, /* OpenAI responses */
    DI_NUM_PROTOCOLS,
} di_protocol;

extern const char *const di_protocol_names[]; /* "chat", "messages", "responses" */

typedef struct di_model_name {
    const char *name;
    di_model_version version;
} di_model_name;

typedef struct di_recipe_options {
    bool default_thinking;           /* when the request does not say; true */
    bool reject_missing_reasoning;   /* of an assistant that called tools, in thinking mode */
    bool responses_web_search_fails; /* instead of being left out */
    bool messages_web_search_drops;  /* instead of being refused */
    uint32_t thinking_max_tokens;    /* the most that may be asked for: 393216 */
    uint32_t chat_max_tokens;
    const di_model_name *models; /* names that are accepted beside DeepSeek's own two */
    size_t model_count;
    bool server;
} di_recipe_options;

void di_recipe_options_init(di_recipe_options *o);

typedef enum di_constraint_kind {
    DI_CONSTRAINT_NONE,
    DI_CONSTRAINT_JSON, /* text is a schema, empty: any JSON */
    DI_CONSTRAINT_REGEX,
    DI_CONSTRAINT_TOOL_CALL, /* text is a list of tools */
    DI_CONSTRAINT_TOOL_CALL_REQUIRED,
} di_constraint_kind;

extern const char *const di_constraint_names[]; /* NULL, "json", "regex", ... */

/* A field that was not given has has_... false; temperature and top_p are always set. */
typedef struct di_inference {
    bool has_max_tokens, has_top_logprobs, has_seed, logprobs;
    uint32_t max_tokens, top_logprobs;
    uint64_t seed; /* below 2^63 */
    float temperature, top_p;
    di_constraint_kind constraint;
    di_str constraint_text;
    /* In server mode only; else they keep these values. */
    bool has_top_k, has_min_p;
    uint32_t top_k, n;                         /* n: 1 */
    float min_p;                               /* 0 */
    float presence_penalty, frequency_penalty; /* 0 */
    float repetition_penalty;                  /* 1 */
    bool strict_format; /* the schema of the response format must be enforced as a whole */
} di_inference;

/* Where what the model writes begins. */
typedef enum di_stage {
    DI_STAGE_CHAT,                   /* an answer, no thinking */
    DI_STAGE_REASONING_START,        /* newlines in front are dropped */
    DI_STAGE_REASONING_CONTINUATION, /* newlines in front belong to it */
    DI_STAGE_CONTENT_CONTINUATION,
} di_stage;

extern const char *const di_stage_names[]; /* NULL, "reasoning_start", ... */

typedef struct di_parsing {
    bool tool_calls;           /* look for calls */
    bool starts_in_tool_calls; /* the prompt has opened the block */
    bool single_call;          /* what the model writes behind its first call is dropped */
    bool json;                 /* keep JSON only */
    di_stage stage;
    const di_str *stops;
    size_t stop_count;
    bool repair; /* our own mode: see parser.h */
} di_parsing;

typedef struct di_request {
    di_pool pool; /* of all below */
    di_value body;
    di_protocol protocol;
    di_str model;
    di_conversation conversation;
    di_inference inference;
    di_parsing parsing;
    bool stream;
    bool include_usage; /* chat: stream_options.include_usage */
    bool server;
} di_request;

/* Reads a body into *r, which is to be freed whatever comes out. */
bool di_request_parse(di_request *r, di_protocol protocol, const char *json, size_t size,
                      const di_recipe_options *options, di_error *err);

/* The same from a value that lies in r->pool already (r is all zero but for its pool). */
bool di_request_read(di_request *r, di_protocol protocol, const di_value *body,
                     const di_recipe_options *options, di_error *err);

void di_request_free(di_request *r);

/* How many tokens may be written behind a prompt: what was asked for, or a default, within what the
 * context leaves. Refused if the context is too short. */
bool di_request_max_tokens(const di_request *r, uint64_t prompt_tokens, uint64_t context,
                           uint32_t *out, di_error *err);

#endif
