/* The scripted engine: see scripted.h. One thread gives every running answer a token in turn. */
#include "support/scripted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/ids.h"

enum { MOST_QUEUED = 4096 };

typedef struct output {
    di_output public; /* first */
    struct output *next;
    double ready_at;
    di_token_info info;
    di_logprob top[20];
    char text[136]; /* of id, if that is whole characters */
    int32_t id;
    int32_t ids[]; /* of a burst */
} output;

typedef struct request {
    struct request *next;
    uint64_t id;
    void *tag;
    int n, at; /* answers; tokens given of each */
    di_ids answer;
    int64_t max_tokens, prompt_tokens;
    int tops;       /* -1: no log-probabilities */
    int fail_after; /* -1: never */
    double delay, due;
    bool hold, burst, cancelled, ignore_eos;
} request;

struct di_scripted {
    di_scripted_options options;
    di_tokenizer *tok;
    di_chat_tokens chat;
    pthread_mutex_t lock;
    pthread_cond_t filled, called;
    pthread_t thread;
    bool started, closing, woken;
    request *running;
    output *first, *last;
    int queued; /* the engine waits when they are many, as a real one has a pace */
    uint64_t next_id;
    di_scripted_stats stats;
    double now; /* at the beginning of this turn */
    di_request_params params;
};

/* ---- orders -----------------------------------------------------------------------------------*/

static bool number_order(const char *word, size_t size, const char *name, int *value) {
    size_t n = strlen(name);
    if (size < n || memcmp(word, name, n) != 0) {
        return false;
    }
    *value = size > n && word[n] == '=' ? atoi(word + n + 1) : 0;
    return true;
}

/* The text behind the orders; *say: control tokens in it are tokens. */
static const char *take_orders(request *r, const char *text, bool *say, int *count) {
    *count = -1;
    while (*text == '@') {
        size_t size = strcspn(text, " ");
        int value = 0;
        if (number_order(text, size, "@count", &value)) {
            *count = value;
        } else if (number_order(text, size, "@delay", &value)) {
            r->delay = value / 1e3;
        } else if (number_order(text, size, "@fail", &value)) {
            r->fail_after = value;
        } else if (number_order(text, size, "@hold", &value)) {
            r->hold = true;
        } else if (number_order(text, size, "@burst", &value)) {
            r->burst = true;
        } else if (number_order(text, size, "@say", &value)) {
            *say = true;
        }
        text += size + (text[size] == ' ');
    }
    return text;
}

static const char *last_behind(const char *text, const char *mark) {
    const char *found = NULL;
    for (const char *at = text; (at = strstr(at, mark)) != NULL; at += strlen(mark)) {
        found = at + strlen(mark);
    }
    return found;
}

static bool read_script(di_scripted *s, request *r, const di_prompt *prompt, di_error *err) {
    di_buffer text = {0};
    bool say = false;
    int count;
    if (!di_detokenize(s->tok, prompt->token_ids, prompt->num_token_ids, &text, err)) {
        di_buffer_free(&text);
        return false;
    }
    const char *all = text.data ? text.data : "";
    static const char bos[] = "<｜begin▁of▁sentence｜>";
    all += strncmp(all, bos, sizeof bos - 1) == 0 ? sizeof bos - 1 : 0;
    const char *user = last_behind(all, "<｜User｜>");
    const char *end = user ? strstr(user, "<｜Assistant｜>") : NULL;
    if (end) {
        text.data[end - text.data] = 0;
    }
    const char *rest = take_orders(r, user ? user : all, &say, &count);
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        ok = di_ids_push(&r->answer, 300 + i % 100, err);
    }
    if (count < 0) {
        ok = di_tokenizer_encode(s->tok, rest, strlen(rest),
                                 say ? DI_ENCODE_ADDED : DI_ENCODE_PLAIN, &r->answer, err);
    }
    di_buffer_free(&text);
    return ok;
}

/* ---- giving tokens ----------------------------------------------------------------------------*/

static void put(di_scripted *s, output *o) {
    *(s->last ? &s->last->next : &s->first) = o;
    s->last = o;
    s->queued++;
    o->ready_at = s->now;
    pthread_cond_signal(&s->filled);
}

static output *new_output(const request *r, int index, size_t ids) {
    output *o = calloc(1, sizeof *o + ids * sizeof(int32_t));
    o->public = (di_output){
        .request = r->id,
        .tag = r->tag,
        .index = index,
        .text = "",
        .stop_token_id = -1,
        .prompt_done = r->prompt_tokens,
        .prompt_tokens = r->prompt_tokens,
        .completion_tokens = r->at + 1,
        .queue_seconds = 1e-3,
        .prompt_seconds = 1e-3,
        .decode_seconds = 1e-3,
    };
    return o;
}

static void add_info(const request *r, output *o) {
    if (r->tops < 0) {
        return;
    }
    for (int i = 0; i < r->tops; i++) {
        o->top[i] = (di_logprob){i == 0 ? o->id : 300 + i, -0.25F - (float)i};
    }
    o->info = (di_token_info){{o->id, -0.25F}, r->tops, o->top};
    o->public.logprobs = &o->info;
}

static void add_text(const di_scripted *s, output *o) {
    size_t size;
    const char *bytes = di_tokenizer_token_bytes(s->tok, o->id, &size);
    if (o->id != s->chat.eos && size < sizeof o->text && di_utf8_valid(bytes, size, NULL)) {
        memcpy(o->text, bytes, size);
        o->public.text = o->text;
        o->public.text_bytes = size;
    }
}

static void finish(output *o, di_finish_reason reason) {
    o->public.finish_reason = reason;
    if (reason == DI_FINISH_ERROR) {
        di_fail(&o->public.error, DI_ERR_INTERNAL, "the script says that this fails");
    }
}

/* The whole answer but its end in one output. */
static void burst(di_scripted *s, request *r) {
    size_t most = r->answer.count < (size_t)r->max_tokens ? r->answer.count : (size_t)r->max_tokens;
    r->at = (int)most;
    for (int i = 0; most > 0 && i < r->n; i++) {
        output *o = new_output(r, i, most);
        memcpy(o->ids, r->answer.data, most * sizeof *o->ids);
        o->public.token_ids = o->ids;
        o->public.num_token_ids = most;
        put(s, o);
    }
    r->burst = false;
}

/* One token of each of the request's answers; false: that was the end. */
static bool step(di_scripted *s, request *r) {
    di_finish_reason reason = DI_FINISH_NONE;
    bool eos = r->at == (int)r->answer.count;
    if (r->cancelled) {
        reason = DI_FINISH_ABORT;
    } else if (r->fail_after >= 0 && r->at >= r->fail_after) {
        reason = DI_FINISH_ERROR;
    } else if (r->burst && r->tops < 0) {
        burst(s, r);
        return true;
    } else if (eos && r->at < r->max_tokens) {
        reason = DI_FINISH_STOP;
    } else if (r->at + 1 >= r->max_tokens) {
        reason = DI_FINISH_LENGTH;
    }
    for (int i = 0; i < r->n; i++) {
        output *o = new_output(r, i, 0);
        if ((reason == DI_FINISH_NONE || reason == DI_FINISH_LENGTH || reason == DI_FINISH_STOP) &&
            r->at < r->max_tokens) {
            o->id = eos ? s->chat.eos : r->answer.data[r->at];
            o->public.token_ids = &o->id;
            o->public.num_token_ids = 1;
            o->public.stop_token_id = eos ? o->id : -1;
            add_text(s, o);
            add_info(r, o);
        }
        finish(o, reason);
        put(s, o);
    }
    r->at++;
    return reason == DI_FINISH_NONE;
}

static void *run(void *context) {
    di_scripted *s = context;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        double now = di_now(), next = now + 0.05;
        s->now = now;
        bool any = false;
        bool full = s->queued >= MOST_QUEUED;
        for (request **link = &s->running; *link && !full;) {
            request *r = *link;
            bool ready = r->cancelled || (!r->hold && now >= r->due);
            if (!ready) {
                next = !r->hold && r->due < next ? r->due : next;
                link = &r->next;
                continue;
            }
            any = true;
            r->due = now + r->delay;
            if (step(s, r)) {
                link = &r->next;
                continue;
            }
            *link = r->next;
            s->stats.finished++;
            s->stats.running--;
            di_ids_free(&r->answer);
            free(r);
        }
        if (!any) {
            struct timespec until = {(time_t)next, (long)((next - (double)(time_t)next) * 1e9)};
            pthread_cond_timedwait(&s->called, &s->lock, &until);
        } else {
            pthread_mutex_unlock(&s->lock); /* callers get their turn */
            pthread_mutex_lock(&s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the answerer -----------------------------------------------------------------------------*/

static void scripted_params(void *self, di_request_params *params) {
    (void)self;
    di_request_params_init(NULL, params, sizeof *params);
}

static uint64_t scripted_submit(void *self, const di_prompt *prompt,
                                const di_request_params *params, void *tag, di_error *err) {
    di_scripted *s = self;
    request *r = calloc(1, sizeof *r);
    *r = (request){
        .tag = tag,
        .n = params->n,
        .max_tokens = params->max_tokens ? params->max_tokens : 1 << 20,
        .prompt_tokens = (int64_t)prompt->num_token_ids,
        .tops = params->logprobs ? params->top_logprobs : -1,
        .fail_after = -1,
    };
    bool ok = s->options.fixed_tokens > 0 || read_script(s, r, prompt, err);
    for (int i = 0; ok && i < s->options.fixed_tokens; i++) {
        ok = di_ids_push(&r->answer, 300 + i % 100, err);
    }
    pthread_mutex_lock(&s->lock);
    if (ok && s->options.max_queue > 0 && s->stats.running >= s->options.max_queue) {
        ok = di_fail(err, DI_ERR_BUSY, "%d requests are under way, max_queue allows %d",
                     s->stats.running, s->options.max_queue);
    }
    uint64_t id = ok ? ++s->next_id : 0;
    if (ok) {
        r->id = id;
        r->next = s->running;
        s->running = r;
        s->params = *params;
        s->stats.submitted++;
        s->stats.running++;
        pthread_cond_signal(&s->called);
    }
    pthread_mutex_unlock(&s->lock);
    if (!ok) {
        di_ids_free(&r->answer);
        free(r);
    }
    return id;
}

static bool scripted_cancel(void *self, uint64_t id) {
    di_scripted *s = self;
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (request *r = s->running; r; r = r->next) {
        if (r->id == id && !r->cancelled) {
            found = r->cancelled = true;
            s->stats.cancelled++;
            s->stats.last_cancel = di_now();
            pthread_cond_signal(&s->called);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static di_output *scripted_wait(void *self, int timeout_ms) {
    di_scripted *s = self;
    double end = di_now() + timeout_ms / 1e3;
    struct timespec until = {(time_t)end, (long)((end - (double)(time_t)end) * 1e9)};
    pthread_mutex_lock(&s->lock);
    while (!s->first && !s->woken &&
           pthread_cond_timedwait(&s->filled, &s->lock, &until) != ETIMEDOUT) {
    }
    output *o = s->first;
    if (o) {
        s->first = o->next;
        s->last = s->first ? s->last : NULL;
        s->queued--;
        if (s->queued == MOST_QUEUED / 2) {
            pthread_cond_signal(&s->called);
        }
    }
    s->woken = false;
    pthread_mutex_unlock(&s->lock);
    if (!o) {
        return NULL;
    }
    o->public.waited_seconds = di_now() - o->ready_at;
    return &o->public;
}

static void scripted_release(void *self, di_output *out) {
    (void)self;
    free(out); /* the first member */
}

static void scripted_wake(void *self) {
    di_scripted *s = self;
    pthread_mutex_lock(&s->lock);
    s->woken = true;
    pthread_cond_signal(&s->filled);
    pthread_mutex_unlock(&s->lock);
}

di_answerer di_scripted_answerer(di_scripted *s) {
    int64_t most = s->options.max_model_len ? s->options.max_model_len : 4096;
    return (di_answerer){
        .self = s,
        .chat = &s->chat,
        .vocab_size = di_tokenizer_vocab_size(s->tok),
        .max_model_len = most,
        .max_tokens = most,
        .params = scripted_params,
        .submit = scripted_submit,
        .cancel = scripted_cancel,
        .wait = scripted_wait,
        .release = scripted_release,
        .wake = scripted_wake,
    };
}

di_scripted *di_scripted_open(const char *folder, const di_scripted_options *o, di_error *err) {
    di_scripted *s = calloc(1, sizeof *s);
    s->options = *o;
    s->tok = di_tokenizer_open(folder, err);
    if (!s->tok || !di_chat_tokens_find(&s->chat, s->tok, err)) {
        di_tokenizer_close(s->tok);
        free(s);
        return NULL;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->filled, &monotonic);
    pthread_cond_init(&s->called, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->started = di_thread_start(&s->thread, run, s, "the scripted engine", err);
    if (!s->started) {
        di_scripted_close(s);
        return NULL;
    }
    return s;
}

void di_scripted_close(di_scripted *s) {
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->called);
    pthread_mutex_unlock(&s->lock);
    if (s->started) {
        pthread_join(s->thread, NULL);
    }
    while (s->running) {
        request *r = s->running;
        s->running = r->next;
        di_ids_free(&r->answer);
        free(r);
    }
    while (s->first) {
        output *o = s->first;
        s->first = o->next;
        free(o);
    }
    di_tokenizer_close(s->tok);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->filled);
    pthread_cond_destroy(&s->called);
    free(s);
}

void di_scripted_get_stats(di_scripted *s, di_scripted_stats *stats) {
    pthread_mutex_lock(&s->lock);
    *stats = s->stats;
    pthread_mutex_unlock(&s->lock);
}

void di_scripted_get_params(di_scripted *s, di_request_params *params) {
    pthread_mutex_lock(&s->lock);
    *params = s->params;
    pthread_mutex_unlock(&s->lock);
}
