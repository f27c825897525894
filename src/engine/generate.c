/* One answer: prefill in chunks, then token by token until something ends it. Called by faces
 * through deepinfer.h, one answer at a time. Must leave the engine fit for the next request
 * whatever happens here. */
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "engine/internal.h"
#include "text/detokenizer.h"

typedef struct answer {
    di_engine *e;
    di_request_params params;
    di_sample_params sampling;
    di_event_fn events;
    void *user;

    di_ids prompt;
    int64_t prompt_done, max_tokens;
    di_ids tokens;
    di_buffer text;
    di_detokenizer detokenizer;
    bool finished;
    di_finish_reason reason;
} answer;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *di_finish_reason_name(di_finish_reason reason) {
    switch (reason) {
    case DI_FINISH_STOP:
        return "stop";
    case DI_FINISH_LENGTH:
        return "length";
    default:
        return "abort";
    }
}

static void finish(answer *a, di_finish_reason reason) {
    a->finished = true;
    a->reason = reason;
}

/* Tells the caller; ends the answer if the caller, or anyone by di_cancel, wants so. */
static void tell(answer *a, di_event *event) {
    event->prompt_done = a->prompt_done;
    event->prompt_tokens = (int64_t)a->prompt.count;
    bool go_on = !a->events || a->events(a->user, event);
    if ((!go_on || atomic_load(&a->e->cancelled)) && !a->finished) {
        finish(a, DI_FINISH_ABORT);
    }
}

/* ---- the request ---- */

/* How long the answer may be. The token behind a prompt that fills the context can still be drawn.
 */
static bool set_limit(answer *a, di_error *err) {
    int64_t left = a->e->max_model_len - (int64_t)a->prompt.count;
    left = left > 1 ? left : 1;
    if (a->params.max_tokens > left) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "max_tokens is %lld, but behind a prompt of %zu tokens the context of %lld "
                       "has room for %lld",
                       (long long)a->params.max_tokens, a->prompt.count,
                       (long long)a->e->max_model_len, (long long)left);
    }
    a->max_tokens = a->params.max_tokens ? a->params.max_tokens : left;
    return true;
}

static bool set_seed(answer *a, di_error *err) {
    uint64_t *seed = &a->params.seed;
    if (!a->params.has_seed && getrandom(seed, sizeof *seed, 0) != (ssize_t)sizeof *seed) {
        return di_fail_errno(err, "no random seed from the system");
    }
    return true;
}

static void set_sampling(answer *a) {
    const di_request_params *p = &a->params;
    di_sample_params_init(&a->sampling);
    a->sampling.shape = (di_sampling){p->temperature, p->top_p, p->min_p, p->top_k};
    a->sampling.seeded = p->has_seed;
    a->sampling.seed = p->seed;
    a->sampling.eos_token_id = a->e->weights->config.eos_token_id;
    a->sampling.ignore_eos = p->ignore_eos;
    a->sampling.logprobs = p->logprobs;
}

/* ---- the prompt ---- */

/* Keeps the last request's state if all its tokens begin this prompt and at least one is new (its
 * logits are needed); else starts afresh. Exact: a row's result depends on its sequence alone. */
static bool take_up_sequence(answer *a, di_error *err) {
    di_engine *e = a->e;
    size_t held = e->held.count;
    if (held > 0 && held < a->prompt.count &&
        memcmp(e->held.data, a->prompt.data, held * sizeof *e->held.data) == 0) {
        a->prompt_done = (int64_t)held;
        return true;
    }
    return di_engine_restart_sequence(e, err);
}

static bool prefill(answer *a, di_error *err) {
    int64_t total = (int64_t)a->prompt.count;
    while (a->prompt_done < total && !a->finished) {
        int64_t left = total - a->prompt_done;
        int n = left < a->e->max_rows ? (int)left : a->e->max_rows;
        if (!di_engine_step(a->e, a->prompt.data + a->prompt_done, n, n == left, err)) {
            return false;
        }
        a->prompt_done += n;
        tell(a, &(di_event){.kind = DI_EVENT_PROMPT});
    }
    return true;
}

/* ---- the answer ---- */

/* Adds a token's text; returns what it added by way of event. */
static bool add_text(answer *a, int32_t token, di_event *event, di_error *err) {
    size_t before = a->text.size;
    bool ends = a->finished && a->reason == DI_FINISH_STOP;
    if (a->e->tokenizer) {
        if (!ends && !di_detokenizer_push(&a->detokenizer, token, &a->text, err)) {
            return false;
        }
        if (a->finished && !di_detokenizer_finish(&a->detokenizer, &a->text, err)) {
            return false;
        }
    }
    event->text = a->text.data ? a->text.data + before : "";
    event->text_bytes = a->text.size - before;
    return true;
}

/* Draws the next token from e->logits and takes it in. */
static bool draw(answer *a, di_error *err) {
    di_engine *e = a->e;
    di_sample_input input = {
        .logits = e->logits,
        .seed = a->params.seed,
        .position = (uint64_t)e->seq.len,
        .num_output = (int64_t)a->tokens.count,
    };
    di_sampled drawn;
    if (!di_sample_row(&a->sampling, &input, e->scratch, &drawn, err)) {
        return false;
    }
    di_event event = {
        .kind = DI_EVENT_TOKEN,
        .token_id = drawn.token,
        .logprob = drawn.logprobs.logprob,
    };
    if (!di_ids_push(&a->tokens, drawn.token, err)) {
        return false;
    }
    if (drawn.token == e->weights->config.eos_token_id && !a->params.ignore_eos) {
        finish(a, DI_FINISH_STOP);
    } else if ((int64_t)a->tokens.count >= a->max_tokens) {
        finish(a, DI_FINISH_LENGTH);
    }
    if (!add_text(a, drawn.token, &event, err)) {
        return false;
    }
    tell(a, &event);
    return true;
}

static bool decode(answer *a, double *first_token, di_error *err) {
    while (!a->finished) {
        if (a->tokens.count > 0 &&
            !di_engine_step(a->e, &a->tokens.data[a->tokens.count - 1], 1, 1, err)) {
            return false;
        }
        if (!draw(a, err)) {
            return false;
        }
        if (a->tokens.count == 1) {
            *first_token = now();
        }
    }
    return true;
}

/* Moves what the answer holds into a result. */
static di_result *make_result(answer *a, int64_t cached, double start, double first_token,
                              di_error *err) {
    di_result *r = di_calloc(1, sizeof *r);
    char *text = a->text.data ? a->text.data : di_strdup("");
    if (!r || !text) {
        di_free(r);
        if (!a->text.data) {
            di_free(text);
        }
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the result");
        return NULL;
    }
    bool any = a->tokens.count > 0;
    *r = (di_result){
        .token_ids = a->tokens.data,
        .num_token_ids = a->tokens.count,
        .text = text,
        .text_bytes = a->text.size,
        .finish_reason = a->reason,
        .prompt_tokens = (int64_t)a->prompt.count,
        .completion_tokens = (int64_t)a->tokens.count,
        .cached_tokens = cached,
        .seed = a->params.seed,
        .prompt_seconds = any ? first_token - start : now() - start,
        .decode_seconds = any ? now() - first_token : 0,
    };
    a->tokens = (di_ids){0};
    a->text = (di_buffer){0};
    return r;
}

static di_result *generate(answer *a, const di_prompt *prompt, const di_request_params *params,
                           di_error *err) {
    double start = now(), first_token = start;
    if (!di_params_read(&a->params, params, err) ||
        !di_prompt_encode(a->e, prompt, &a->prompt, err) || !set_limit(a, err) ||
        !set_seed(a, err)) {
        return NULL;
    }
    set_sampling(a);
    if (a->e->tokenizer) {
        di_detokenizer_init(&a->detokenizer, a->e->tokenizer);
        di_detokenizer_prime(&a->detokenizer, a->prompt.data, a->prompt.count);
    }
    if (!take_up_sequence(a, err)) {
        return NULL;
    }
    int64_t cached = a->prompt_done;
    if (!prefill(a, err) || !decode(a, &first_token, err)) {
        return NULL;
    }
    return make_result(a, cached, start, first_token, err);
}

di_result *di_generate(di_engine *engine, const di_prompt *prompt, const di_request_params *params,
                       di_event_fn events, void *user, di_error *err) {
    answer a = {.e = engine, .events = events, .user = user};
    atomic_store(&engine->cancelled, false);
    di_result *result = generate(&a, prompt, params, err);
    di_ids_free(&a.prompt);
    di_ids_free(&a.tokens);
    di_buffer_free(&a.text);
    return result;
}

void di_result_free(di_result *result) {
    if (result) {
        di_free(result->token_ids);
        di_free(result->text);
        di_free(result);
    }
}
