/* Queues of outputs. The step thread adds to a choice's outbox, the reader takes all of it at once:
 * a slow reader finds more at a time and never holds the engine up, and an outbox holds no more
 * than an answer. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/internal.h"
#include "engine/request.h"

struct di_queue {
    di_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    di_choice *first, *last; /* ready ones */
    bool woken;
    bool closed;  /* nobody reads any more */
    int requests; /* that may still put something in */
};

/* What di_queue_wait returns: the public part and the memory behind it. */
typedef struct output {
    di_output public;
    di_token_info infos[];
} output;

/* ---- the step thread's side -------------------------------------------------------------------*/

/* The reader must not look at what the step thread may be writing: the job, `started`. */
static void make_ready(di_choice *c) {
    di_queue *q = c->request->queue;
    c->begun = c->started;
    c->cached_tokens = c->job.cached_tokens;
    if (!c->outbox.ready) {
        c->outbox.ready = true;
        c->outbox.ready_at = di_now();
        c->outbox.next = NULL;
        *(q->last ? &q->last->outbox.next : &q->first) = c;
        q->last = c;
    }
    pthread_cond_signal(&q->filled);
}

/* Room for one more token's log-probabilities. */
static bool grow_infos(di_outbox *o, size_t top) {
    if (o->num_infos < o->info_capacity) {
        return true;
    }
    size_t wanted = o->info_capacity ? 2 * o->info_capacity : 16;
    di_token_info *infos = di_realloc_array(o->infos, wanted, sizeof *infos);
    o->infos = infos ? infos : o->infos;
    di_logprob *tops = infos ? di_realloc_array(o->tops, wanted, top * sizeof *tops) : NULL;
    o->tops = tops ? tops : o->tops;
    o->info_capacity = tops ? wanted : o->info_capacity;
    return tops != NULL;
}

static bool add_info(di_choice *c, const di_row_token *r) {
    di_outbox *o = &c->outbox;
    size_t top = (size_t)c->request->params->num_logprobs;
    if (!grow_infos(o, top)) {
        return false;
    }
    o->infos[o->num_infos] = (di_token_info){
        .chosen = {r->id, r->scored.logprob},
        .num_top = r->scored.num_top,
    };
    memcpy(o->tops + o->num_infos * top, r->scored.top,
           (size_t)r->scored.num_top * sizeof *o->tops);
    o->num_infos++;
    return true;
}

static bool add_text(di_choice *c, const di_buffer *text) {
    return text->size == 0 || di_buffer_append(&c->outbox.text, text->data, text->size, NULL);
}

/* The token and what belongs to it, or nothing. */
static bool store_token(di_choice *c, const di_row_token *r) {
    di_outbox *o = &c->outbox;
    if (c->request->logprobs && !add_info(c, r)) {
        return false;
    }
    if (!di_ids_push(&o->tokens, r->id, NULL)) {
        o->num_infos -= c->request->logprobs;
        return false;
    }
    return true;
}

void di_choice_add_token(di_choice *c, const di_row_token *r, const di_buffer *text, bool last) {
    di_queue *q = c->request->queue;
    pthread_mutex_lock(&q->lock);
    if (q->closed || store_token(c, r)) {
        c->completion_tokens++;
        c->last_token = di_now();
        c->first_token = c->completion_tokens == 1 ? c->last_token : c->first_token;
        c->failed = c->failed || (!q->closed && !add_text(c, text));
    } else {
        c->failed = true;
    }
    c->outbox.held = last && c->outbox.tokens.count > 0;
    if (!last) {
        make_ready(c);
    }
    pthread_mutex_unlock(&q->lock);
}

void di_choice_tell_prompt(di_choice *c, int64_t done) {
    di_queue *q = c->request->queue;
    pthread_mutex_lock(&q->lock);
    if (done > c->prompt_done) { /* not so when it is computed again */
        c->prompt_done = done;
        if (c->request->report_prompt) {
            make_ready(c);
        }
    }
    pthread_mutex_unlock(&q->lock);
}

void di_choice_finish(di_choice *c, di_finish_reason reason, const di_error *error,
                      const di_buffer *text) {
    di_queue *q = c->request->queue;
    pthread_mutex_lock(&q->lock);
    assert(c->reason == DI_FINISH_NONE);
    c->reason = reason;
    if (!q->closed && !add_text(c, text)) {
        c->reason = DI_FINISH_ERROR;
        di_fail(&c->error, DI_ERR_NO_MEMORY, "no memory for the end of the answer");
    }
    if (error) {
        c->error = *error;
    }
    c->outbox.last = true;
    make_ready(c);
    pthread_mutex_unlock(&q->lock);
}

/* ---- outputs ----------------------------------------------------------------------------------*/

static size_t count_tops(const di_scored *list, size_t n) {
    size_t tops = 0;
    for (size_t i = 0; i < n; i++) {
        tops += (size_t)list[i].num_top;
    }
    return tops;
}

/* The token with which an answer ends is told together with its end. */
static size_t num_held(const di_choice *c) {
    return c->outbox.held && !c->outbox.last;
}

/* Prompt log-probabilities come with the first tokens of answer 0. */
static bool tells_prompt(const di_choice *c) {
    return c->request->prompt_scores && c->index == 0 && !c->outbox.prompt_told &&
           c->completion_tokens > (int64_t)num_held(c);
}

/* The text that ended the answer, or NULL. */
static const char *stop_text(const di_choice *c) {
    return c->outbox.last && c->reason == DI_FINISH_STOP && c->stop.match >= 0
               ? di_stop_set_text(c->request->stops, c->stop.match)
               : NULL;
}

static void fill_numbers(di_output *o, const di_choice *c) {
    const di_request *r = c->request;
    double begun = c->begun > 0 ? c->begun : di_now();
    o->request = r->id;
    o->tag = r->tag;
    o->index = c->index;
    o->finish_reason = c->outbox.last ? c->reason : DI_FINISH_NONE;
    o->stop_token_id = c->outbox.last ? c->stop_token : -1; /* the step thread writes it before */
    o->error = c->error;
    o->prompt_done = c->prompt_done;
    o->prompt_tokens = (int64_t)r->prompt.count;
    o->cached_tokens = c->cached_tokens;
    o->completion_tokens = c->completion_tokens - (int64_t)num_held(c);
    o->seed = c->sampler.seed;
    o->queue_seconds = begun - r->submitted;
    o->prompt_seconds = c->first_token > 0 ? c->first_token - begun : 0;
    o->decode_seconds = c->first_token > 0 ? c->last_token - c->first_token : 0;
    o->waited_seconds = di_now() - c->outbox.ready_at;
}

/* Bytes behind an output, laid out as: infos, prompt infos, tops, prompt tops, ids, text. */
typedef struct output_sizes {
    size_t infos, prompt_infos, tops, prompt_tops, ids, text, stop, total;
} output_sizes;

static output_sizes measure(const di_choice *c) {
    const di_request *r = c->request;
    size_t infos = c->outbox.num_infos > 0 ? c->outbox.num_infos - num_held(c) : 0;
    output_sizes z = {
        .infos = infos,
        .tops = infos * (size_t)r->params->num_logprobs,
        .ids = c->outbox.tokens.count - num_held(c),
        .text = c->outbox.text.size + 1,
        .stop = stop_text(c) ? strlen(stop_text(c)) + 1 : 0,
    };
    if (tells_prompt(c)) {
        z.prompt_infos = r->prompt.count;
        z.prompt_tops = count_tops(r->prompt_scores, r->prompt.count);
    }
    z.total = (z.infos + z.prompt_infos) * sizeof(di_token_info) +
              (z.tops + z.prompt_tops) * sizeof(di_logprob) + z.ids * sizeof(int32_t) + z.text +
              z.stop;
    return z;
}

static void copy_infos(const di_choice *c, size_t count, di_token_info *infos, di_logprob *tops) {
    size_t width = (size_t)c->request->params->num_logprobs;
    if (count == 0) {
        return;
    }
    memcpy(infos, c->outbox.infos, count * sizeof *infos);
    if (width > 0) {
        memcpy(tops, c->outbox.tops, count * width * sizeof *tops);
    }
    for (size_t i = 0; i < count; i++) {
        infos[i].top = tops + i * width;
    }
}

static void copy_prompt_infos(const di_choice *c, di_token_info *infos, di_logprob *tops) {
    const di_request *r = c->request;
    for (size_t i = 0; i < r->prompt.count; i++) {
        const di_scored *from = &r->prompt_scores[i];
        float chosen = i == 0 ? -INFINITY : from->logprob;
        infos[i] = (di_token_info){{r->prompt.data[i], chosen}, from->num_top, tops};
        memcpy(tops, from->top, (size_t)from->num_top * sizeof *tops);
        tops += from->num_top;
    }
}

/* Empties the outbox, but for a token that is held. */
static void clear_outbox(di_choice *c) {
    di_outbox *o = &c->outbox;
    size_t held = num_held(c), width = (size_t)c->request->params->num_logprobs;
    if (held) {
        o->tokens.data[0] = o->tokens.data[o->tokens.count - 1];
        if (o->num_infos > 1) {
            o->infos[0] = o->infos[o->num_infos - 1];
            memcpy(o->tops, o->tops + (o->num_infos - 1) * width, width * sizeof *o->tops);
        }
    }
    o->num_infos = o->num_infos > 0 ? held : 0;
    o->tokens.count = held;
    o->text.size = 0;
}

/* Moves what is in the outbox into an output; NULL without memory, with nothing lost. */
static di_output *take(di_choice *c) {
    output_sizes z = measure(c);
    output *o = di_calloc(1, sizeof *o + z.total);
    if (!o) {
        return NULL;
    }
    di_output *p = &o->public;
    di_token_info *prompt_infos = o->infos + z.infos;
    di_logprob *tops = (di_logprob *)(prompt_infos + z.prompt_infos);
    di_logprob *prompt_tops = tops + z.tops;
    int32_t *ids = (int32_t *)(prompt_tops + z.prompt_tops);
    char *text = (char *)(ids + z.ids);
    fill_numbers(p, c);
    if (c->request->logprobs) {
        copy_infos(c, z.infos, o->infos, tops);
        p->logprobs = o->infos;
    }
    if (z.prompt_infos > 0) {
        copy_prompt_infos(c, prompt_infos, prompt_tops);
        p->prompt_logprobs = prompt_infos;
        c->outbox.prompt_told = true;
    }
    memcpy(ids, c->outbox.tokens.data ? c->outbox.tokens.data : ids, z.ids * sizeof *ids);
    memcpy(text, c->outbox.text.data ? c->outbox.text.data : "", z.text - 1);
    if (z.stop > 0) {
        p->stop = memcpy(text + z.text, stop_text(c), z.stop);
    }
    p->token_ids = ids;
    p->num_token_ids = z.ids;
    p->text = text;
    p->text_bytes = z.text - 1;
    clear_outbox(c);
    return p;
}

void di_output_free(di_output *out) {
    di_free(out); /* the first member of an output */
}

/* ---- queues -----------------------------------------------------------------------------------*/

di_queue *di_queue_create(di_engine *engine, di_error *err) {
    di_queue *q = di_calloc(1, sizeof *q);
    if (!q) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a queue");
        return NULL;
    }
    q->engine = engine;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return q;
}

void di_queue_attach(di_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->requests++;
    pthread_mutex_unlock(&q->lock);
}

void di_queue_detach(di_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->requests--;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

/* Takes the first ready choice off the list; its last output, once read, is one answer less. */
static di_output *take_first(di_queue *q, di_request **ended) {
    di_choice *c = q->first;
    di_output *out = take(c);
    if (!out) {
        return NULL;
    }
    q->first = c->outbox.next;
    q->last = q->first ? q->last : NULL;
    c->outbox.ready = false;
    if (c->outbox.last && --c->request->unread == 0) {
        *ended = c->request;
    }
    return out;
}

/* False when the time is up. */
static bool wait_filled(di_queue *q, int timeout_ms, const struct timespec *until) {
    if (timeout_ms == 0) {
        return false;
    }
    if (timeout_ms < 0) {
        pthread_cond_wait(&q->filled, &q->lock);
        return true;
    }
    return pthread_cond_timedwait(&q->filled, &q->lock, until) != ETIMEDOUT;
}

di_output *di_queue_wait(di_queue *q, int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long nanos = until.tv_nsec + (long)(timeout_ms > 0 ? timeout_ms % 1000 : 0) * 1000000;
    until.tv_sec += (timeout_ms > 0 ? timeout_ms / 1000 : 0) + nanos / 1000000000;
    until.tv_nsec = nanos % 1000000000;
    di_request *ended = NULL;
    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->woken && wait_filled(q, timeout_ms, &until)) {
    }
    di_output *out = q->first ? take_first(q, &ended) : NULL;
    q->woken = q->woken && out;
    pthread_mutex_unlock(&q->lock);
    if (ended) {
        di_request_release(ended);
    }
    return out;
}

void di_queue_wake(di_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->woken = true;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

void di_queue_destroy(di_queue *q) {
    if (!q) {
        return;
    }
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_mutex_unlock(&q->lock);
    di_engine_cancel_queue(q->engine, q);
    pthread_mutex_lock(&q->lock);
    while (q->first || q->requests > 0) {
        di_request *ended = NULL;
        if (!q->first) {
            pthread_cond_wait(&q->filled, &q->lock);
            continue;
        }
        di_choice *c = q->first;
        q->first = c->outbox.next;
        q->last = q->first ? q->last : NULL;
        c->outbox.ready = false;
        if (c->outbox.last && --c->request->unread == 0) {
            ended = c->request;
        }
        if (ended) {
            pthread_mutex_unlock(&q->lock);
            di_request_release(ended);
            pthread_mutex_lock(&q->lock);
        }
    }
    pthread_mutex_unlock(&q->lock);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->filled);
    di_free(q);
}
