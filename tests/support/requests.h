/* Requests in a few words: prompts, parameters, engines, answers. For tests of the engine.
 * Everything here fails the running test if it cannot do its work. */
#ifndef TESTS_SUPPORT_REQUESTS_H
#define TESTS_SUPPORT_REQUESTS_H

#include "deepinfer/deepinfer.h"

/* A NULL-terminated text, messages as JSON, or ids: they stay the caller's. */
di_prompt text_prompt(const char *text);
di_prompt messages_prompt(const char *json);
di_prompt ids_prompt(const int32_t *ids, size_t count);

di_request_params greedy(int64_t max_tokens);
di_request_params seeded(uint64_t seed, int64_t max_tokens); /* temperature 0.8, top_p 0.95 */

/* On the card where TEST_BACKEND asks for one (mirror.h). */
di_engine_options demo_options(void);
/* kv_memory for so many sequences at once and blocks of 128 tokens, with one snapshot: 11 to 50
 * blocks of the demo model's, 4 to 10 of the tiny one's. */
int64_t kv_memory_of(const char *model, int max_num_seqs, int blocks);
/* The same for an engine that drafts. */
int64_t kv_memory_with_drafts(const char *model, int max_num_seqs, int blocks);
di_engine *open_engine(const di_engine_options *options);

/* Makes an engine with these options believe that a row more in a step costs `row` of a step of one
 * row, and a round of drafts `draft` of it: the file of measured costs in o->cost_cache, a folder
 * with nothing else in it. */
void pretend_costs(const di_engine_options *o, double row, double draft);

/* A request on its own. */
di_result *ask(di_engine *e, di_prompt prompt, di_request_params params);
void expect_same_tokens(const di_result *a, const di_result *b);

/* ---- through a queue ---- */

/* An answer as it comes in pieces; takes what tells of it, in copies. */
typedef struct answer {
    int32_t *tokens;
    size_t num_tokens, token_capacity;
    char *text; /* NUL-terminated once an output has come */
    size_t text_bytes;
    di_logprob *chosen; /* [num_tokens] with logprobs */
    di_logprob *tops;   /* [num_tokens, 20] with logprobs; unused ones have id -1 */
    di_logprob *prompt; /* [prompt_tokens] with prompt_logprobs */
    di_logprob *prompt_tops;
    int outputs, lasts;
    di_finish_reason reason;
    char stop[64];
    int32_t stop_token_id;
    int64_t prompt_tokens, cached_tokens;
    uint64_t seed;
    di_error error;
} answer;

enum { ANSWER_TOPS = 20 };

void answer_add(answer *a, const di_output *out);
void answer_clear(answer *a);
void expect_same_answers(const answer *a,
                         const answer *b); /* tokens, and log-probabilities' bits */

di_queue *open_queue(di_engine *e);
/* tag: an answer for each choice, answers[params.n]. */
uint64_t submit(di_engine *e, di_queue *q, di_prompt prompt, di_request_params params,
                answer *answers);
/* Reads until `lasts` last outputs have come, into the answers that the tags name. */
void read_answers(di_queue *q, int lasts);
/* Submits, reads, checks that one last output came. */
answer answer_of(di_engine *e, di_prompt prompt, di_request_params params);

/* Waits until nothing runs; then every block must be free or cached. */
void expect_whole_pools(di_engine *e);

#endif
