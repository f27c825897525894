/* Generations: see generation.h. */
#include "server/generation.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/internal.h"
#include "server/response_store.h"

/* ---- making and freeing -----------------------------------------------------------------------*/

static void list(di_generation *g) {
    di_server *s = g->server;
    pthread_mutex_lock(&s->live_lock);
    g->next_live = s->live;
    g->link_live = &s->live;
    if (s->live) {
        s->live->link_live = &g->next_live;
    }
    s->live = g;
    s->num_live++;
    pthread_mutex_unlock(&s->live_lock);
}

static void unlist(di_generation *g) {
    di_server *s = g->server;
    pthread_mutex_lock(&s->live_lock);
    if (g->link_live) {
        *g->link_live = g->next_live;
        if (g->next_live) {
            g->next_live->link_live = g->link_live;
        }
        g->link_live = NULL;
        s->num_live--;
    }
    pthread_mutex_unlock(&s->live_lock);
}

/* It takes no place in the background any more. */
static void leave_background(di_generation *g) {
    di_server *s = g->server;
    atomic_fetch_sub(&s->num_background, g->counted);
    atomic_fetch_sub(&s->body_bytes, g->charged);
    g->counted = false;
    g->charged = 0;
}

di_generation *di_generation_create(di_server *s, const di_voice *voice, di_shape shape,
                                    int num_prompts, int n, di_error *err) {
    di_generation *g = di_calloc(1, sizeof *g);
    int choices = num_prompts * n;
    di_generation_choice *c = di_calloc((size_t)choices, sizeof *c);
    di_submission *subs = di_calloc((size_t)num_prompts, sizeof *subs);
    if (!g || !c || !subs) {
        di_free(g);
        di_free(c);
        di_free(subs);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d answers", choices);
        return NULL;
    }
    *g = (di_generation){
        .server = s,
        .voice = voice,
        .shape = shape,
        .created = (uint64_t)time(NULL),
        .arrived = di_now(),
        .n = n,
        .num_prompts = num_prompts,
        .submissions = subs,
        .choices = c,
        .bytes = {.limit = s->options.max_stream_bytes},
        .running = choices,
        .unanswered = choices,
        .ttft = -1,
    };
    for (int i = 0; i < num_prompts; i++) {
        subs[i] = (di_submission){.generation = g, .first = i * n, .count = n, .running = n};
    }
    atomic_init(&g->holders, 1);
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

void di_generation_keep(di_generation *g) {
    atomic_fetch_add(&g->holders, 1);
}

void di_generation_release(di_generation *g) {
    if (atomic_fetch_sub(&g->holders, 1) != 1) {
        return;
    }
    unlist(g);
    for (int i = 0; i < g->n * g->num_prompts; i++) {
        di_answer_destroy(g->choices[i].answer);
        di_buffer_free(&g->choices[i].text);
        for (int k = 0; k < 4; k++) {
            di_buffer_free(&g->choices[i].logprobs[k]);
        }
    }
    di_tenant_leave(&g->tenant, 0, 0); /* it was never submitted */
    leave_background(g);
    di_request_free(&g->recipe);
    di_pool_free(&g->pool);
    di_stream_free(&g->bytes);
    di_buffer_free(&g->input);
    pthread_mutex_destroy(&g->lock);
    di_free(g->choices);
    di_free(g->submissions);
    di_free(g);
}

/* ---- under the lock ---------------------------------------------------------------------------*/

static void wake(di_generation *g) {
    if (g->wake) {
        void (*call)(void *) = g->wake;
        g->wake = NULL;
        call(g->wake_context);
    }
}

/* Asks the engine to stop what still runs. */
static void cancel(di_generation *g) {
    const di_answerer *a = &g->server->answerer;
    if (g->cancelled) {
        return;
    }
    g->cancelled = true;
    for (int i = 0; i < g->num_prompts; i++) {
        if (g->submissions[i].request != 0 && g->submissions[i].running > 0) {
            a->cancel(a->self, g->submissions[i].request);
        }
    }
}

/* From here on the end of what is to be told is in the stream, its last `size` bytes. It is told
 * when the engine has ended: whoever reads it may send the next request, and finds the place free.
 */
static void await_engine(di_generation *g, size_t size) {
    if (g->running > 0) {
        di_stream_hold(&g->bytes, size);
        cancel(g);
    }
}

/* The end as an error, inside the stream if that has begun. */
static void fail(di_generation *g, int status, const di_error *error) {
    if (g->over || g->failed || g->gone) {
        return;
    }
    g->error = *error;
    di_text_repair(g->error.message);
    g->error_status = status;
    g->failed = true;
    g->finish = "error";
    await_engine(g, 0);
    if (g->stream && g->opened) {
        di_api_error told = {.status = status, .message = g->error.message};
        g->voice->fail(g, &told, NULL); /* without memory the stream just ends */
    }
}

/* The reader is too far behind: what it has not taken is kept to be read, an error stands behind.
 */
static void give_up_reader(di_generation *g) {
    di_error err = {0};
    di_fail(&err, DI_ERR_BUSY, "the client reads too slowly: more than %zu bytes were waiting",
            g->bytes.limit);
    di_metrics_event(g->server->metrics, DI_EVENT_SLOW_READER_GONE);
    fail(g, 503, &err);
    g->finish = "slow_reader";
}

static void watch_reader(di_generation *g) {
    if (!g->slow && di_stream_waiting(&g->bytes) > g->bytes.limit / 2) {
        g->slow = true;
        di_metrics_event(g->server->metrics, DI_EVENT_SLOW_READER);
    }
    if (!di_stream_room(&g->bytes)) {
        give_up_reader(g);
    }
}

static void count(di_generation *g, di_generation_choice *c, const di_output *out, double now) {
    if (out->num_token_ids == 0) {
        return;
    }
    if (c->first_time > 0) {
        di_metrics_gap(g->server->metrics, now - c->last_time, (int64_t)out->num_token_ids);
    } else {
        c->first_time = now;
        g->ttft = g->ttft < 0 ? now - g->arrived : g->ttft;
    }
    c->last_time = now;
    int64_t ending = out->finish_reason == DI_FINISH_STOP && out->stop_token_id >= 0;
    c->tokens += (int64_t)out->num_token_ids - ending;
    g->completion_tokens += (int64_t)out->num_token_ids - ending;
    if (g->tenant.ticket) {
        di_quota_progress(g->tenant.ticket, g->completion_tokens);
    }
}

static di_finished finished(const di_generation *g, const di_generation_choice *c,
                            const di_output *out) {
    di_answer_status status = {0};
    if (c->answer) {
        di_answer_get_status(c->answer, &status);
    }
    if (status.stopped) {
        return status.calls > 0 ? DI_FINISHED_TOOL_CALLS : DI_FINISHED_STOP;
    }
    if (g->failed && !g->gone) {
        return DI_FINISHED_ERROR;
    }
    switch (out->finish_reason) {
    case DI_FINISH_STOP:
        return DI_FINISHED_STOP;
    case DI_FINISH_LENGTH:
        return DI_FINISHED_LENGTH;
    case DI_FINISH_ERROR:
        return DI_FINISHED_ERROR;
    case DI_FINISH_NONE:
    case DI_FINISH_ABORT:
    case DI_FINISH_DEADLINE:
        break;
    }
    return DI_FINISHED_ABORT;
}

static const char *finish_name(di_finished f) {
    static const char *const names[] = {"stop", "length", "abort", "error", "tool_calls"};
    return names[f];
}

/* The last output of an answer, for the counters. */
static void account(di_generation *g, di_generation_choice *c, const di_output *out, double now) {
    bool first = c == &g->choices[0];
    di_answer_status status = {0};
    if (c->answer) {
        di_answer_get_status(c->answer, &status);
    }
    if (status.repairs > 0) {
        di_metrics_event(g->server->metrics, DI_EVENT_PARSER_REPAIR);
    }
    di_finished why = finished(g, c, out);
    di_metrics_request r = {
        .key_id = g->tenant.key ? g->tenant.key->id : "anonymous",
        .finished = why,
        .prompt_tokens = first ? g->prompt_tokens : 0,
        .cached_tokens = first ? g->cached_tokens : 0,
        .completion_tokens = c->tokens,
        .reasoning_tokens = (int64_t)status.reasoning_tokens,
        .max_tokens = g->max_tokens,
        .n = first ? g->n : 0,
        .stream = g->stream,
        .ttft_seconds = c->first_time > 0 ? c->first_time - g->arrived : -1,
        .e2e_seconds = now - g->arrived,
        .queue_seconds = out->queue_seconds,
        .prefill_seconds = c->first_time > 0 ? out->prompt_seconds : -1,
        .decode_seconds = c->first_time > 0 ? out->decode_seconds : -1,
    };
    di_metrics_finish(g->server->metrics, &r);
    if (first && !g->finish) {
        g->finish = finish_name(why);
    }
}

static void tell_end(di_generation *g) {
    if (!g->over && !g->gone) {
        di_error err = {0};
        if (g->stream && !g->failed && !g->voice->done(g, &err)) {
            fail(g, di_status_of(&err), &err);
        }
        di_stream_let_go(&g->bytes);
        g->over = g->opened = true;
    }
}

/* As a client that asks for it is told. */
static bool report(const di_generation *g, di_buffer *out, di_error *err) {
    const di_answer *a = g->choices[0].answer;
    return g->revoked || g->gone ? di_answer_report(a, "cancelled", NULL, out, err)
           : g->failed           ? di_answer_report(a, "failed", g->error.message, out, err)
           : g->running > 0
               ? di_answer_report(a, g->ttft < 0 ? "queued" : "in_progress", NULL, out, err)
               : g->voice->whole(g, out, err);
}

static bool put(const di_generation *g, const di_buffer *json, di_str input) {
    return di_response_store_put(g->server->stored, g->key_id, g->id,
                                 (di_str){json->data, json->size}, input, di_now());
}

/* One that cannot be kept, for want of memory or because it is larger than all the store, is not;
 * if nobody else has been told it, that is told instead. */
static void keep_response(const di_generation *g) {
    static const char lost[] = "the response was too large to be stored (--response-store)";
    bool whole = g->unanswered == 0 && !g->failed;
    di_buffer json = {0};
    if (g->input.size == 0 || g->dropped || !(whole || g->background)) {
        return;
    }
    bool kept = (g->background ? report(g, &json, NULL) : g->voice->whole(g, &json, NULL)) &&
                put(g, &json, (di_str){g->input.data, g->input.size});
    if (!kept && g->background) {
        json.size = 0;
        if (di_answer_report(g->choices[0].answer, "failed", lost, &json, NULL)) {
            put(g, &json, DI_STR("[]"));
        }
    }
    di_buffer_free(&json);
}

/* The engine has ended. Places are free and the response is kept before its client can know. */
static void settle(di_generation *g) {
    di_tenant_leave(&g->tenant, g->prompt_tokens, g->completion_tokens);
    leave_background(g);
    tell_end(g);
    keep_response(g);
}

/* What the engine says is wrong with an answer. */
static bool broke_off(const di_generation *g, const di_output *out, int *status, di_error *err) {
    switch (out->finish_reason) {
    case DI_FINISH_ERROR:
        *err = out->error;
        *status = di_status_of(err); /* a grammar that turns out bad is the client's fault */
        *status = *status < 500 && g->ttft >= 0 ? 500 : *status;
        return true;
    case DI_FINISH_DEADLINE:
        *status = 504;
        return !di_fail(err, DI_ERR_CANCELLED,
                        "the answer was not finished within the time that the request allows");
    case DI_FINISH_ABORT:
        *status = 503;
        return !g->cancelled &&
               !di_fail(err, DI_ERR_CANCELLED, "the server is ending; the answer was cut off");
    case DI_FINISH_NONE:
    case DI_FINISH_STOP:
    case DI_FINISH_LENGTH:
        break;
    }
    return false;
}

static void tell(di_generation *g, int index, const di_output *out, double now) {
    di_generation_choice *c = &g->choices[index];
    di_error err = {0};
    int status = 500;
    if (g->over || g->failed || g->gone || g->revoked || c->answered) {
        return;
    }
    size_t before = di_stream_waiting(&g->bytes);
    if (broke_off(g, out, &status, &err)) {
        fail(g, status, &err);
        return;
    }
    if (!g->voice->take(g, index, out, &err)) {
        fail(g, di_status_of(&err) < 500 ? 500 : di_status_of(&err), &err);
        return;
    }
    if (di_stream_waiting(&g->bytes) != before) {
        g->opened = true;
        g->last_event = now;
    }
    if (c->answered && --g->unanswered == 0) {
        await_engine(g, di_stream_waiting(&g->bytes) - before); /* a stop text: no more is wanted */
    }
    watch_reader(g);
}

/* ---- the pump's side --------------------------------------------------------------------------*/

void di_generation_take(di_generation *g, di_submission *s, const di_output *out, double now) {
    pthread_mutex_lock(&g->lock);
    int index = s->first + out->index;
    di_generation_choice *c = &g->choices[index];
    if (index == 0) {
        g->cached_tokens = out->cached_tokens;
    }
    bool ends = out->finish_reason != DI_FINISH_NONE;
    s->running -= ends;
    g->running -= ends;
    bool last = ends && g->running == 0;
    count(g, c, out, now);
    tell(g, index, out, now);
    if (ends) {
        c->ended = true;
        account(g, c, out, now);
    }
    if (last) {
        settle(g);
    }
    if (g->offered == 0 && !g->gone && (g->stream ? di_stream_waiting(&g->bytes) > 0 : g->over)) {
        g->offered = now - out->waited_seconds;
    }
    if (g->over || g->gone || (g->opened && di_stream_waiting(&g->bytes) > 0)) {
        wake(g);
    }
    pthread_mutex_unlock(&g->lock);
    if (last) {
        di_generation_release(g);
    }
}

void di_generation_taken(di_generation *g) {
    if (g->offered > 0) {
        di_metrics_answer_wait(g->server->metrics, di_now() - g->offered);
        g->offered = 0;
    }
}

void di_generation_tick(di_generation *g, double now) {
    double patience = g->server->options.keepalive_seconds;
    pthread_mutex_lock(&g->lock);
    double since = g->last_event > 0 ? g->last_event : g->arrived;
    if (g->stream && !g->over && !g->gone && !g->bytes.holding && patience > 0 &&
        now - since >= patience && di_stream_waiting(&g->bytes) == 0 &&
        di_stream_text(&g->bytes, ": keep-alive\n\n", NULL)) {
        g->last_event = now;
        g->opened = true;
        wake(g);
    }
    pthread_mutex_unlock(&g->lock);
}

/* ---- the client's side ------------------------------------------------------------------------*/

/* Only the prompts that were taken run; the others' answers will never come. */
static void forget(di_generation *g, int submitted) {
    for (int i = submitted; i < g->num_prompts; i++) {
        g->submissions[i].running = 0;
        g->running -= g->submissions[i].count;
    }
}

bool di_generation_submit(di_generation *g, const di_ids *prompts, const di_request_params *params,
                          di_error *err) {
    const di_answerer *a = &g->server->answerer;
    bool ok = true;
    int i = 0;
    di_generation_keep(g); /* the pump's */
    pthread_mutex_lock(&g->lock);
    for (; ok && i < g->num_prompts; i++) {
        di_prompt prompt;
        di_prompt_init(&prompt, sizeof prompt);
        prompt.token_ids = prompts[i].data;
        prompt.num_token_ids = prompts[i].count;
        g->prompt_tokens += (int64_t)prompts[i].count;
        g->submissions[i].request = a->submit(a->self, &prompt, params, &g->submissions[i], err);
        ok = g->submissions[i].request != 0;
    }
    if (!ok) {
        forget(g, i - 1);
        g->gone = true; /* what was taken is not told */
        cancel(g);
    }
    bool runs = g->running > 0;
    g->finish = NULL;
    pthread_mutex_unlock(&g->lock);
    if (!runs) {
        di_generation_release(g);
    }
    if (ok || runs) {
        list(g);
    }
    if (ok && g->background && atomic_load(&g->server->state) != DI_SERVER_LIVE) {
        di_generation_stop(g); /* it was let in before, and may have been listed after */
    }
    return ok;
}

void di_generation_abandon(di_generation *g) {
    pthread_mutex_lock(&g->lock);
    if (!g->gone) {
        g->gone = true;
        if (g->running > 0 && !g->cancelled) {
            di_metrics_event(g->server->metrics, DI_EVENT_DISCONNECT);
            g->finish = "disconnect";
        }
        cancel(g);
    }
    wake(g);
    pthread_mutex_unlock(&g->lock);
}

void di_generation_stop(di_generation *g) {
    di_error err = {0};
    di_fail(&err, DI_ERR_CANCELLED, "the server is ending; the answer was cut off");
    pthread_mutex_lock(&g->lock);
    if (g->unanswered > 0) {
        fail(g, 503, &err);
    }
    tell_end(g); /* the engine may be long in a step */
    wake(g);
    pthread_mutex_unlock(&g->lock);
}

/* ---- in the background ------------------------------------------------------------------------*/

bool di_generation_report(di_generation *g, di_buffer *out, di_error *err) {
    pthread_mutex_lock(&g->lock);
    bool ok = report(g, out, err);
    pthread_mutex_unlock(&g->lock);
    return ok;
}

bool di_generation_revoke(di_generation *g, bool drop) {
    pthread_mutex_lock(&g->lock);
    bool runs = g->running > 0 && !g->failed && !g->revoked;
    if (runs) {
        g->revoked = true;
        g->finish = "cancelled";
        cancel(g);
    }
    g->dropped = g->dropped || drop;
    bool ends = g->running > 0;
    pthread_mutex_unlock(&g->lock);
    return ends;
}

/* Holds it, unless it is on its way out of the list or nobody is to find it. */
static bool keep_found(di_generation *g) {
    int holders = atomic_load(&g->holders);
    pthread_mutex_lock(&g->lock);
    bool dropped = g->dropped;
    pthread_mutex_unlock(&g->lock);
    while (!dropped && holders > 0 &&
           !atomic_compare_exchange_weak(&g->holders, &holders, holders + 1)) {
    }
    return !dropped && holders > 0;
}

di_generation *di_generation_find(di_server *s, const char *key_id, di_str id) {
    pthread_mutex_lock(&s->live_lock);
    di_generation *g = s->live;
    while (g && !(g->background && di_str_is(id, g->id) && strcmp(g->key_id, key_id) == 0 &&
                  keep_found(g))) {
        g = g->next_live;
    }
    pthread_mutex_unlock(&s->live_lock);
    return g;
}
