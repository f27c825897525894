/* DeepInfer: run DeepSeek-V4.1-Flash models. The public interface, usable from C and C++.
 *
 *     di_error err = {0};
 *     di_engine_options options;
 *     di_engine_options_init(&options, sizeof options);
 *     options.model = "models/demo";
 *     di_engine *engine = di_engine_open(&options, &err);
 *
 *     di_prompt prompt;
 *     di_prompt_init(&prompt, sizeof prompt);
 *     prompt.messages = "[{\"role\": \"user\", \"content\": \"Who wrote Dracula?\"}]";
 *     di_request_params params;
 *     di_request_params_init(engine, &params, sizeof params);
 *     di_result *result = di_generate(engine, &prompt, &params, NULL, NULL, &err);
 *     if (result) puts(result->text); else fputs(err.message, stderr);
 *     di_result_free(result);
 *     di_engine_close(engine);
 *
 * Versions. A caller's structs begin with their size, which the *_init functions set: new members
 * are added at the end, and a library reads no further than the caller's struct goes. Structs that
 * the library makes (di_event, di_result) grow at the end too. DI_API_VERSION changes when a
 * program must be compiled again.
 *
 * Errors. See error.h. err may be NULL. A refused request or a failed one never harms the engine.
 *
 * Threads. One thread at a time may use an engine, di_cancel excepted. Different engines are
 * independent of each other. The library installs no signal handlers and prints nothing but
 * warnings on standard error. Text is UTF-8. */
#ifndef DEEPINFER_DEEPINFER_H
#define DEEPINFER_DEEPINFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "deepinfer/error.h"

#if defined(__GNUC__)
#define DI_API __attribute__((visibility("default")))
#else
#define DI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DI_API_VERSION 1

/* DI_API_VERSION of the library, to be compared with the one compiled with; and "0.1.0". */
DI_API int di_api_version(void);
DI_API const char *di_version(void);

/* ---- the engine -------------------------------------------------------------------------------*/

typedef struct di_engine di_engine;

typedef struct di_engine_options {
    size_t struct_bytes;
    const char *model;     /* folder with config.json, tokenizer.json, *.safetensors; required */
    const char *backend;   /* "cpu" (also if NULL), or "ref": plain, slow, for checking */
    int threads;           /* that compute; 0 = one for each core; results do not depend on it */
    int64_t max_model_len; /* tokens of prompt and answer; 0 = what the model allows */
    int max_num_batched_tokens; /* prompt tokens per step, 1 .. 65536 */
    /* Called while the model is opened, step `done` of `total` being next; NULL = nobody. */
    void (*progress)(void *user, int done, int total);
    void *user;
} di_engine_options;

DI_API void di_engine_options_init(di_engine_options *options, size_t struct_bytes);

/* Opens and checks the folder's files; weights are mapped, not read. The options are copied. NULL
 * with DI_ERR_ARGUMENT, _IO, _FORMAT, _UNSUPPORTED or _NO_MEMORY. */
DI_API di_engine *di_engine_open(const di_engine_options *options, di_error *err);
DI_API void di_engine_close(di_engine *engine); /* NULL is allowed */

typedef struct di_engine_info {
    size_t struct_bytes; /* set by the caller */
    int vocab_size;
    int64_t max_model_len;
    int32_t bos_token_id, eos_token_id;
    bool has_tokenizer; /* false: the folder had no tokenizer.json; ids in, ids out */
} di_engine_info;

DI_API void di_engine_get_info(const di_engine *engine, di_engine_info *info);

/* ---- requests ---------------------------------------------------------------------------------*/

#define DI_EFFORT_DEFAULT 75

/* Exactly one of the three kinds of prompt is set. All memory stays the caller's. */
typedef struct di_prompt {
    size_t struct_bytes;
    /* Text as it is, special tokens in it recognised; the begin-of-sentence token is put in front
     * unless the text begins with it. Not for what strangers type: use messages for that. */
    const char *text;
    size_t text_bytes; /* 0 = up to the NUL */
    /* Ids as they are; nothing is put in front. */
    const int32_t *token_ids;
    size_t num_token_ids;
    /* A JSON array of messages ({"role", "content"}), laid out as the model was taught; special
     * tokens written out in a content are plain text. */
    const char *messages;
    size_t messages_bytes; /* 0 = up to the NUL */
    /* messages only: 0 = an answer at once; 1 to 100 = the answer begins with reasoning, up to
     * </think>, more thorough the higher the number. DI_EFFORT_DEFAULT is the model's usual one. */
    int effort;
} di_prompt;

DI_API void di_prompt_init(di_prompt *prompt, size_t struct_bytes);

typedef struct di_request_params {
    size_t struct_bytes;
    double temperature; /* 0 to 100; below 1e-5 the likeliest token, lowest id among equals */
    double top_p;       /* above 0, up to 1; 1 = off */
    int64_t top_k;      /* -1 = off, or 1 to 2^31 - 1 */
    double min_p;       /* 0 to 1; 0 = off */
    bool has_seed;      /* false: a random seed, told in the result */
    uint64_t seed;
    int64_t max_tokens; /* 1 to 2^31 - 1; 0 = as many as the context has left */
    bool ignore_eos;    /* the end-of-sentence token does not end the answer */
    bool logprobs;      /* compute di_event.logprob */
} di_request_params;

/* Defaults: the model's generation_config.json, and temperature 1, top_p 1, top_k -1 where it is
 * silent; min_p 0, no seed, max_tokens 0. With engine == NULL the latter alone. */
DI_API void di_request_params_init(const di_engine *engine, di_request_params *params,
                                   size_t struct_bytes);

/* False with DI_ERR_ARGUMENT naming field, value and allowed range. di_generate checks too. */
DI_API bool di_request_params_check(const di_request_params *params, di_error *err);

/* ---- answers ----------------------------------------------------------------------------------*/

typedef enum di_event_kind {
    DI_EVENT_PROMPT, /* prompt_done of prompt_tokens have been computed; the last has them equal */
    DI_EVENT_TOKEN,  /* a token of the answer */
} di_event_kind;

typedef struct di_event {
    di_event_kind kind;
    int64_t prompt_done, prompt_tokens; /* tokens; set in every event */
    int32_t token_id;
    /* What this token adds to the answer's text: whole characters, perhaps none, perhaps several;
     * all events' texts joined are the result's text. Not NUL-terminated; valid during the call. */
    const char *text;
    size_t text_bytes;
    /* Natural log of the token's probability at temperature 1, before filters; 0 unless asked. */
    double logprob;
} di_event;

/* Called on the thread of di_generate. False ends the answer as di_cancel does. It must not call
 * di_generate or di_engine_close. */
typedef bool (*di_event_fn)(void *user, const di_event *event);

typedef enum di_finish_reason {
    DI_FINISH_STOP,   /* the end-of-sentence token */
    DI_FINISH_LENGTH, /* max_tokens, or the end of the context */
    DI_FINISH_ABORT,  /* cancelled */
} di_finish_reason;

DI_API const char *di_finish_reason_name(di_finish_reason reason); /* "stop", "length", "abort" */

typedef struct di_result {
    int32_t *token_ids; /* of the answer, the end-of-sentence token that ended it included */
    size_t num_token_ids;
    char *text; /* NUL-terminated; without that end-of-sentence token. Broken UTF-8 is U+FFFD */
    size_t text_bytes;
    di_finish_reason finish_reason;
    int64_t prompt_tokens, completion_tokens; /* completion_tokens == num_token_ids */
    int64_t
        cached_tokens; /* of the prompt, that needed no computing: shared with the last request */
    uint64_t seed;     /* that was used */
    double prompt_seconds; /* to the first token */
    double decode_seconds; /* from the first token to the last */
} di_result;

/* Answers one prompt; events may be NULL. NULL on failure: DI_ERR_ARGUMENT before anything is
 * computed when a parameter is out of range, the prompt is empty or broken, an id is not in the
 * vocabulary, or prompt and max_tokens do not fit the context. A cancelled answer is a result. */
DI_API di_result *di_generate(di_engine *engine, const di_prompt *prompt,
                              const di_request_params *params, di_event_fn events, void *user,
                              di_error *err);
DI_API void di_result_free(di_result *result); /* NULL is allowed */

/* Ends the answer that is being made, soon; nothing if there is none. May be called from any thread
 * and from a signal handler. */
DI_API void di_cancel(di_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
