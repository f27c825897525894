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
 * the library makes (di_output, di_result) grow at the end too. DI_API_VERSION changes when a
 * program must be compiled again.
 *
 * Errors. See error.h. err may be NULL. A refused request or a failed one never harms the engine.
 *
 * Threads. Every function may be called from any thread at any time, with three exceptions: an
 * engine is closed once, when no call on it is running and its queues are destroyed; one thread at
 * a time waits on a queue; structs belong to whoever fills them. An engine has threads of its own:
 * one that plans steps, one that runs them, those that compute and those that compile grammars. The
 * library installs no signal handlers and prints nothing but warnings on standard error. Text is
 * UTF-8. */
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

#define DI_API_VERSION 2

/* DI_API_VERSION of the library, to be compared with the one compiled with; and "0.1.0". */
DI_API int di_api_version(void);
DI_API const char *di_version(void);

/* ---- the engine -------------------------------------------------------------------------------*/

typedef struct di_engine di_engine;

/* Bounded replay: for prompts longer than replay_keep_tokens the decoder half of the model runs for
 * the last replay_keep_tokens only. Faster by up to half; answers differ slightly from the exact
 * ones. MASK computes the same by brute force, for checking. */
typedef enum di_replay_mode { DI_REPLAY_OFF, DI_REPLAY_MASK, DI_REPLAY_COMPACT } di_replay_mode;

/* How many drafts of each answer a step verifies. PRICED: as many as make tokens come fastest, by
 * what each is likely to be accepted and what a step of that size is measured to cost; drafts that
 * would not pay are not made. FIXED: all. OFF: as num_drafts = 0. */
typedef enum di_spec_mode { DI_SPEC_PRICED, DI_SPEC_FIXED, DI_SPEC_OFF } di_spec_mode;

typedef struct di_engine_options {
    size_t struct_bytes;
    const char *model;     /* folder with config.json, tokenizer.json, *.safetensors; required */
    const char *backend;   /* "cpu" (also if NULL); "cuda" or "cuda:N": an NVIDIA card; "auto":
                            * one if there is one; "ref": plain, slow, for checking */
    int threads;           /* that compute; 0 = one for each core; results do not depend on it */
    int64_t max_model_len; /* tokens of prompt and answer, all but the last of which are rows; 0 =
                            * what the model allows */
    int max_num_batched_tokens; /* tokens in a step, 1 .. 65536 */
    /* Called while the model is opened, step `done` of `total` being next; NULL = nobody. */
    void (*progress)(void *user, int done, int total);
    void *user;
    int max_num_seqs;             /* sequences computed at once, 1 .. 4096; default 64 */
    int max_mixed_prefill_tokens; /* prompt tokens in a step in which answers go on; 0 = default */
    int max_queue;                /* requests accepted and not yet finished; 0 = no limit */
    int max_logprobs;             /* most logprobs a request may ask for, 0 .. 1000; default 20 */
    int64_t kv_memory;            /* bytes for cached state; 0 = a share of what is free */
    int64_t host_memory;  /* bytes for the state of preempted sequences; 0 = compute it again */
    bool no_prefix_cache; /* prefixes are never reused */
    bool synchronous;     /* a step is planned when the one before has been read; same answers */
    di_replay_mode replay_mode;
    int replay_keep_tokens; /* with a mode: at least window + 6, the model's window being 128 */
    /* Tokens proposed by the draft model and verified at once, 0 (off) to the model's block size;
     * -1 = 5 or the block, whichever is less, and off where the model has no draft model. Seeded
     * and greedy answers are the same; fewer steps are needed for them. */
    int num_drafts;
    bool time_ops; /* keep times of the model's operations: di_engine_print_op_times */
    /* Chrome trace of the steps, written while the engine runs; NULL = none. */
    const char *trace_file;
    di_spec_mode spec_mode; /* how many of the drafts are verified */
    /* PRICED: folder in which measured costs of steps are kept for the next engine with the same
     * model, machine and options; NULL = measured each time. And for how many seconds; 0 = 3600. */
    const char *cost_cache;
    int cost_cache_seconds;
    /* Temperatures of the confidence head: one, or one for each draft, separated by commas; NULL =
     * those that `deepinfer calibrate` left in the model's folder, else 1. */
    const char *confidence_temperatures;
    /* On a card: bytes of its memory for weights, work and state together; 0 = a share of what is
     * free when the engine is opened. And that share; 0 = 0.92. kv_memory 0 is what is left. */
    int64_t gpu_memory;
    double gpu_memory_share;
    /* On a card: sums in the order that suits the number of rows best, so that the last bits of a
     * prompt's state depend on how it was cut and what ran beside it. A processor knows one order
     * only. */
    bool no_batch_invariance;
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
    bool has_tokenizer;   /* false: the folder had no tokenizer.json; ids in, ids out */
    bool batch_invariant; /* a row's bits depend on its own sequence alone */
    /* Memory, in bytes. On a processor weights are the checkpoint's files, mapped and read as they
     * are needed; on a card what was copied there, n-gram tables included if they are there. work:
     * what a step computes in. state: of sequences; num_slots slots for those that run and
     * num_snapshots for prefixes, slot_bytes each, and num_blocks blocks of block_bytes, each for
     * block_tokens tokens. */
    int64_t weight_bytes, work_bytes, state_bytes;
    int64_t slot_bytes, block_bytes, num_blocks;
    int num_slots, num_snapshots, block_tokens;
} di_engine_info;

DI_API void di_engine_get_info(const di_engine *engine, di_engine_info *info);

/* False with *err when a card has failed for good (DI_ERR_DEVICE): every request will, and only
 * another process may have better luck. */
DI_API bool di_engine_usable(di_engine *engine, di_error *err);

/* What a token stands for: of a character that has several tokens some of its bytes, of a special
 * token its spelling; no NUL behind it. Lives as long as the engine. NULL: no such id, or no
 * tokenizer. */
DI_API const char *di_engine_token_bytes(const di_engine *engine, int32_t token_id, size_t *bytes);

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

/* Ids with values, for logit_bias. */
typedef struct di_bias {
    int32_t token_id;
    float bias; /* -100 to 100, added to the logit */
} di_bias;

/* What the text of an answer must be (docs/grammar.md). */
typedef enum di_schema_type {
    DI_SCHEMA_NONE,           /* anything */
    DI_SCHEMA_JSON,           /* JSON that a JSON Schema allows; without a text any JSON */
    DI_SCHEMA_JSON_OBJECT,    /* any JSON object; takes no text */
    DI_SCHEMA_REGEX,          /* text that a regular expression matches as a whole */
    DI_SCHEMA_EBNF,           /* text of a grammar, from its rule `root` */
    DI_SCHEMA_TOOLS,          /* free text; and calls, if any, of tools in a JSON array */
    DI_SCHEMA_TOOLS_REQUIRED, /* one such call or more */
    DI_SCHEMA_GBNF,           /* a grammar as llama.cpp reads it, from its rule `root` */
    /* Calls of tools, or else a text of a format: {"tools": [...], "schema": {...}} or with "regex"
     * in place of "schema"; "lenient": true leaves out what of that schema cannot be enforced. */
    DI_SCHEMA_TOOLS_OR_CONTENT,
} di_schema_type;

/* Pointers stay the caller's and are read before the call returns. */
typedef struct di_request_params {
    size_t struct_bytes;
    double temperature; /* 0 to 100; below 1e-5 the likeliest token, lowest id among equals */
    double top_p;       /* above 0, up to 1; 1 = off */
    int64_t top_k;      /* -1 = off, or 1 to 2^31 - 1 */
    double min_p;       /* 0 to 1; 0 = off */
    /* false: a random seed, told in the output. It gives the same answer again, unless drafts were
     * on: then what comes depends on them (it has the same distribution), and drafts fit more
     * often. */
    bool has_seed;
    uint64_t seed;
    int64_t max_tokens;        /* 1 to 2^31 - 1; 0 = as many as the context has left */
    bool ignore_eos;           /* the end-of-sentence token does not end the answer */
    bool logprobs;             /* compute the log-probability of each token */
    int n;                     /* answers, 1 to 128; with a seed each has its own, made from it */
    double repetition_penalty; /* 1e-6 to 100; 1 = off; for tokens of prompt and answer */
    double presence_penalty;   /* -2 to 2; 0 = off */
    double frequency_penalty;  /* -2 to 2; 0 = off */
    int64_t min_tokens;        /* no end before so many tokens */
    int top_logprobs;          /* with logprobs: the likeliest tokens beside, 0 to max_logprobs */
    bool processed_logprobs;   /* of the filtered distribution instead of the model's own */
    bool prompt_logprobs;      /* also of the prompt's tokens; top_logprobs of them beside */
    bool echo;                 /* the answer's text begins with the prompt's */
    const char *const *stop;   /* texts that end the answer, at most 64; not part of it */
    size_t num_stop;
    bool include_stop; /* the text that ended it is part of the answer after all */
    const int32_t *stop_token_ids;
    size_t num_stop_token_ids;
    const char *const *bad_words; /* texts that must not appear as they are tokenised */
    size_t num_bad_words;
    const di_bias *logit_bias;
    size_t num_logit_bias;
    const int32_t *allowed_token_ids; /* nothing else; NULL = everything */
    size_t num_allowed_token_ids;
    /* The answer, to be scored instead of drawn; as far as it goes. */
    const int32_t *golden_token_ids;
    size_t num_golden_token_ids;
    bool skip_special_tokens; /* control tokens leave no text */
    int priority;             /* lower goes first */
    double deadline;          /* seconds from submission; 0 = none; then the answer ends */
    bool no_prefix_cache;     /* reuses no prefix, though others may reuse its own */
    const char *cache_salt; /* prefixes are shared among equal salts only; NULL = the common one */
    bool report_prompt;     /* outputs tell how much of the prompt has been computed */
    bool pin_prompt; /* its prefix stays in the cache until di_unpin, whatever else needs room */
    /* Structured output. Where the prompt has opened reasoning, all this holds behind </think>. */
    di_schema_type schema_type;
    const char *schema;  /* the schema, expression or grammar; TOOLS: a JSON array of functions */
    size_t schema_bytes; /* 0 = up to the NUL */
    /* Free text up to these ids in a row, and the schema behind them; not with TOOLS. Takes the
     * place of waiting for </think>. */
    const int32_t *trigger_token_ids;
    size_t num_trigger_token_ids;
    int32_t bound_token_id; /* -1 = none; behind it the rest of the trigger must follow at once */
    bool schema_any_order;  /* JSON: properties in any order, not the schema's */
    bool schema_strict;     /* JSON: only what `properties` and `prefixItems` name */
    bool schema_lenient;    /* JSON: what cannot be enforced is left out, not refused */
    int schema_max_whitespace; /* JSON: characters between two tokens, 0 to 1000; 32 */
} di_request_params;

/* Defaults: the model's generation_config.json, and temperature 1, top_p 1, top_k -1 where it is
 * silent; min_p 0, no seed, max_tokens 0. With engine == NULL the latter alone. */
DI_API void di_request_params_init(const di_engine *engine, di_request_params *params,
                                   size_t struct_bytes);

/* False with DI_ERR_ARGUMENT naming field, value and allowed range. di_generate checks too. */
DI_API bool di_request_params_check(const di_request_params *params, di_error *err);

/* ---- answers ----------------------------------------------------------------------------------*/

typedef enum di_finish_reason {
    DI_FINISH_NONE,     /* goes on */
    DI_FINISH_STOP,     /* end of sentence, a stop token or a stop text */
    DI_FINISH_LENGTH,   /* max_tokens, or the end of the context */
    DI_FINISH_ABORT,    /* cancelled */
    DI_FINISH_DEADLINE, /* its time was up */
    DI_FINISH_ERROR,    /* see error */
} di_finish_reason;

/* "", "stop", "length", "abort", "deadline", "error" */
DI_API const char *di_finish_reason_name(di_finish_reason reason);

typedef struct di_logprob {
    int32_t token_id;
    float logprob; /* natural log; -INFINITY for what cannot be */
} di_logprob;

/* Of one token: what it had, and the likeliest ones, best first. */
typedef struct di_token_info {
    di_logprob chosen;
    int num_top;
    const di_logprob *top;
} di_token_info;

/* What one answer of a request has gained since its last output. Everything points into the output,
 * which di_output_free frees. */
typedef struct di_output {
    uint64_t request;
    void *tag; /* di_submit's */
    int index; /* of the answer, 0 .. n - 1 */
    const int32_t *token_ids;
    size_t num_token_ids;
    /* NUL-terminated; whole characters; all outputs' texts joined are the answer. */
    const char *text;
    size_t text_bytes;
    const di_token_info *logprobs; /* [num_token_ids], or NULL */
    /* With prompt_logprobs, in the first output that has tokens: [prompt_tokens], entry 0 empty. */
    const di_token_info *prompt_logprobs;
    di_finish_reason finish_reason; /* not NONE: the last output of this answer */
    const char *stop;               /* the text that ended it, or NULL */
    int32_t stop_token_id;          /* the token that ended it, or -1 */
    di_error error;
    /* so far */
    int64_t prompt_done, prompt_tokens, cached_tokens, completion_tokens;
    uint64_t seed;
    double queue_seconds;  /* from submission to the first step with a row of it */
    double prompt_seconds; /* from then to the first token */
    double decode_seconds; /* from the first token to the last */
    double waited_seconds; /* what it tells first was ready for so long before it was taken */
} di_output;

typedef struct di_queue di_queue;

/* Where outputs arrive. Destroying it cancels what is still to arrive; do it before the engine is
 * closed. */
DI_API di_queue *di_queue_create(di_engine *engine, di_error *err);
DI_API void di_queue_destroy(di_queue *queue);

/* Accepts a request: its number (never 0), or 0 with DI_ERR_ARGUMENT when a parameter is out of
 * range, the prompt is empty or broken, an id is not in the vocabulary, or prompt and max_tokens
 * can never fit; with DI_ERR_BUSY when max_queue are under way. An accepted request gives each of
 * its n answers exactly one last output; it is under way until that of the last can be read. */
DI_API uint64_t di_submit(di_engine *engine, di_queue *queue, const di_prompt *prompt,
                          const di_request_params *params, void *tag, di_error *err);

/* The next output, in order of readiness; waits up to timeout_ms (-1 = for ever, 0 = not at all).
 * NULL: nothing in time, di_queue_wake was called, or memory is short. */
DI_API di_output *di_queue_wait(di_queue *queue, int timeout_ms);
DI_API void di_output_free(di_output *output); /* NULL is allowed */
DI_API void di_queue_wake(di_queue *queue);    /* lets one di_queue_wait return */

/* Ends a request soon; its answers finish with DI_FINISH_ABORT. False: there is none of that
 * number, or it has ended. */
DI_API bool di_cancel(di_engine *engine, uint64_t request);

/* Lets the prefix go that a request had pinned (pin_prompt), also after the request has ended.
 * False: nothing of that number is pinned. */
DI_API bool di_unpin(di_engine *engine, uint64_t request);

/* ---- one request at a time ---- */

/* A whole answer. */
typedef struct di_result {
    int32_t *token_ids; /* of the answer, the end-of-sentence token that ended it included */
    size_t num_token_ids;
    char *text; /* NUL-terminated; without that end-of-sentence token. Broken UTF-8 is U+FFFD */
    size_t text_bytes;
    di_finish_reason finish_reason;           /* STOP, LENGTH, ABORT or DEADLINE */
    int64_t prompt_tokens, completion_tokens; /* completion_tokens == num_token_ids */
    int64_t cached_tokens;                    /* of the prompt, that needed no computing */
    uint64_t seed;                            /* that was used */
    double prompt_seconds;                    /* to the first token */
    double decode_seconds;                    /* from the first token to the last */
} di_result;

/* Called for each output, and every 100 ms with an output that has gained nothing. False cancels.
 */
typedef bool (*di_output_fn)(void *user, const di_output *output);

/* Submits (n = 1), waits, and joins the outputs; NULL on failure. */
DI_API di_result *di_generate(di_engine *engine, const di_prompt *prompt,
                              const di_request_params *params, di_output_fn outputs, void *user,
                              di_error *err);
DI_API void di_result_free(di_result *result); /* NULL is allowed */

/* ---- looking in ---- */

typedef struct di_engine_stats {
    size_t struct_bytes; /* set by the caller */
    uint64_t steps, prompt_tokens, cached_tokens, completion_tokens;
    uint64_t requests, finished, cancelled, failed;
    uint64_t preemptions, preempted_recomputed, preempted_kept;
    int running, waiting;
    int64_t blocks, blocks_free, blocks_cached, block_tokens;
    uint64_t prefix_tokens_asked, prefix_tokens_hit;
    /* of the last step */
    int step_tokens, step_sequences;
    double step_seconds; /* of the device */
    double host_seconds; /* of planning it and reading its results */
    /* since the start */
    double device_seconds, device_idle_seconds; /* idle: waiting for a step though requests ran */
    double host_seconds_total;
    uint64_t draft_rounds, drafts_verified, drafts_accepted;
    uint64_t drafts_verified_at[16], drafts_accepted_at[16]; /* by place in the block */
    /* Also by place: drafts made; drafts whose test counted, all before them having been accepted;
     * and the sum of the probabilities that the confidence head gave those. */
    uint64_t drafts_made_at[16], drafts_tested_at[16];
    double drafts_expected_at[16];
    uint64_t draft_lengths[17]; /* rows with drafts at hand, by how many of them were verified */
    /* Steps whose time was predicted: how many, the sums, and the sum of the differences' sizes. */
    uint64_t priced_steps;
    double priced_seconds_predicted, priced_seconds_measured, priced_seconds_error;
    /* On a card: steps that were queued there whole, tokens drawn and all (the others had something
     * that the host must do, drafts above all), and how many steps ran as recorded programs. */
    uint64_t card_steps, recorded_steps;
    /* Steps that the device had been given before the results of the step in front were read. */
    uint64_t steps_ahead;
    /* Steps that verified drafts, steps behind which some were made; and how many of the first, and
     * of the draft model's rounds behind the others, ran as recorded programs. */
    uint64_t verify_steps, recorded_verify_steps, draft_steps, recorded_draft_steps;
    /* Confidences in drafts that were no numbers and counted as 0: of a damaged model. */
    uint64_t confidences_broken;
} di_engine_stats;

DI_API void di_engine_get_stats(di_engine *engine, di_engine_stats *stats);

/* What one step did. */
typedef struct di_step_stats {
    uint64_t number; /* from 1 */
    double seconds;  /* since the engine was opened, when its results had been read */
    int sequences, tokens, prompt_tokens, completion_tokens;
    int running, waiting; /* behind it */
    int64_t blocks_used, blocks_cached;
    uint64_t preemptions, prefix_tokens_hit; /* since the start */
    double device_seconds;
    double idle_seconds; /* the device waited so long for it though requests ran */
    double host_seconds; /* of planning it and reading its results */
} di_step_stats;

/* Records of the steps behind number `after`, oldest first, at most `max` of them: an array of
 * structs of step_bytes = sizeof(di_step_stats) each. Returns how many; the last 1024 are kept. */
DI_API size_t di_engine_get_steps(di_engine *engine, uint64_t after, void *steps, size_t step_bytes,
                                  size_t max);

/* With time_ops: where the steps' time went, a table on `stream` (a FILE *). Call it at rest. */
DI_API void di_engine_print_op_times(di_engine *engine, void *stream);

/* ---- for callers that do not compile this file ------------------------------------------------*/

typedef struct di_member {
    const char *structure, *name; /* name "": the structure as a whole */
    size_t offset, bytes;
} di_member;

/* The layout of the structs above, to compare one's own description of them with. */
DI_API const di_member *di_layout(size_t *count);

#ifdef __cplusplus
}
#endif

#endif
