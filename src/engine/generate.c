/* One request at a time: submits, waits, joins the outputs. A convenience over the queue; nothing
 * here that a caller could not do. */
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "engine/internal.h"
#include "text/ids.h"

enum { HEARTBEAT_MS = 100 };

const char *di_finish_reason_name(di_finish_reason reason) {
    static const char *const names[] = {
        [DI_FINISH_NONE] = "",
        [DI_FINISH_STOP] = "stop",
        [DI_FINISH_LENGTH] = "length",
        [DI_FINISH_ABORT] = "abort",
        [DI_FINISH_DEADLINE] = "deadline",
        [DI_FINISH_ERROR] = "error",
    };
    return names[reason];
}

typedef struct answer {
    di_ids tokens;
    di_buffer text;
    bool cancelled;
} answer;

static bool add(answer *a, const di_output *out, di_error *err) {
    for (size_t i = 0; i < out->num_token_ids; i++) {
        if (!di_ids_push(&a->tokens, out->token_ids[i], err)) {
            return false;
        }
    }
    return di_buffer_append(&a->text, out->text, out->text_bytes, err);
}

/* Moves what the answer holds into a result. */
static di_result *make_result(answer *a, const di_output *last, di_error *err) {
    if (last->finish_reason == DI_FINISH_ERROR) {
        if (err) {
            *err = last->error;
        }
        return NULL;
    }
    di_result *r = di_calloc(1, sizeof *r);
    if (!r) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the result");
        return NULL;
    }
    *r = (di_result){
        .token_ids = a->tokens.data,
        .num_token_ids = a->tokens.count,
        .text = a->text.data,
        .text_bytes = a->text.size,
        .finish_reason = last->finish_reason,
        .prompt_tokens = last->prompt_tokens,
        .completion_tokens = last->completion_tokens,
        .cached_tokens = last->cached_tokens,
        .seed = last->seed,
        .prompt_seconds = last->prompt_seconds,
        .decode_seconds = last->decode_seconds,
    };
    a->tokens = (di_ids){0};
    a->text = (di_buffer){0};
    return r;
}

/* Outputs until the last one, which is returned; NULL without memory (the request is then cancelled
 * by its queue's end). */
static di_output *collect(di_engine *e, di_queue *q, uint64_t id, answer *a, di_output_fn outputs,
                          void *user, di_error *err) {
    const di_output nothing = {.request = id, .text = ""};
    for (;;) {
        di_output *out = di_queue_wait(q, HEARTBEAT_MS);
        bool ok = !out || add(a, out, err);
        bool last = out && out->finish_reason != DI_FINISH_NONE;
        if (ok && outputs && !a->cancelled && !outputs(user, out ? out : &nothing)) {
            a->cancelled = true;
            di_cancel(e, id);
        }
        if (ok && last) {
            return out;
        }
        di_output_free(out);
        if (!ok) {
            return NULL;
        }
    }
}

di_result *di_generate(di_engine *engine, const di_prompt *prompt, const di_request_params *params,
                       di_output_fn outputs, void *user, di_error *err) {
    di_request_params p;
    answer a = {0};
    di_result *result = NULL;
    if (!di_params_read(&p, params, err)) {
        return NULL;
    }
    if (p.n != 1) {
        di_fail(err, DI_ERR_ARGUMENT, "n is %d, di_generate answers once", p.n);
        return NULL;
    }
    di_queue *q = di_queue_create(engine, err);
    if (!q) {
        return NULL;
    }
    uint64_t id = di_submit(engine, q, prompt, &p, NULL, err);
    di_output *last = id ? collect(engine, q, id, &a, outputs, user, err) : NULL;
    if (last) {
        result = make_result(&a, last, err);
        di_output_free(last);
    }
    di_queue_destroy(q);
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
