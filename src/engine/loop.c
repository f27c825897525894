/* The step thread: takes requests in, plans steps, reads their results, and tells the queues. One
 * turn: plan step t and submit it; while it runs, read step t - 1, whose rows' tokens t takes as
 * input without their having been here, as it takes the drafts that t - 1 made and goes on where
 * those that t - 1 verified were accepted up to. Synchronous mode reads t itself instead.
 *
 * A job whose result in t - 1 ended it has a wasted row in t; its result is dropped. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/constraint.h"
#include "engine/internal.h"
#include "engine/request.h"
#include "engine/trace.h"

/* ---- ending -----------------------------------------------------------------------------------*/

static bool ended_by(const di_request *r, di_finish_reason reason) {
    for (int i = 0; i < r->n; i++) {
        if (r->choices[i].reason == reason) {
            return true;
        }
    }
    return false;
}

/* The step thread lets a request go when no queued step mentions any of its jobs. */
static void retire(di_engine *e, di_request *r) {
    *r->link_live = r->next_live;
    if (r->next_live) {
        r->next_live->link_live = r->link_live;
    }
    di_queue *q = r->queue;
    pthread_mutex_lock(&e->lock);
    e->stats.finished++;
    e->stats.cancelled += ended_by(r, DI_FINISH_ABORT);
    e->stats.failed += ended_by(r, DI_FINISH_ERROR);
    *r->link_known = r->next_known;
    if (r->next_known) {
        r->next_known->link_known = r->link_known;
    }
    pthread_mutex_unlock(&e->lock);
    di_request_release(r);
    di_queue_detach(q);
}

static void retire_choice(di_engine *e, di_choice *c) {
    if (c->job.ended && c->job.queued == 0 && !c->retired) {
        c->retired = true;
        di_request *r = c->request;
        if (++r->retired == r->n) {
            retire(e, r);
        }
    }
}

/* Text that was held back: a broken character, the beginning of a stop text that did not come. */
static void flush_text(di_engine *e, di_choice *c) {
    c->piece.size = c->text.size = 0;
    if (e->parts.tokenizer && c->stop.match < 0) {
        c->failed = c->failed || !di_detokenizer_finish(&c->detokenizer, &c->piece, NULL) ||
                    !di_stop_push(&c->stop, c->piece.data, c->piece.size, &c->text, NULL) ||
                    !di_stop_flush(&c->stop, &c->text, NULL);
    }
}

/* Whoever has read the last output may submit the next request: its place is free by then, though
 * a queued step may mention a job of the old one for a little longer. */
static void leave_queue(di_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->num_requests--;
    pthread_mutex_unlock(&e->lock);
}

/* Exactly one last output a choice: this is the only way to end one. */
static void end_choice(di_engine *e, di_choice *c, di_finish_reason reason, const di_error *error) {
    di_error memory;
    if (c->job.ended) {
        return;
    }
    di_sched_end(e->sched, &c->job);
    flush_text(e, c);
    if (c->failed && !error) {
        di_fail(&memory, DI_ERR_NO_MEMORY, "no memory for the answer");
        reason = DI_FINISH_ERROR;
        error = &memory;
    }
    if (--c->request->running == 0) {
        leave_queue(e);
    }
    di_choice_finish(c, reason, error, &c->text);
    retire_choice(e, c);
}

static void end_request(di_engine *e, di_request *r, di_finish_reason reason,
                        const di_error *error) {
    int left = r->running; /* whoever ends last may free r */
    for (di_choice *c = r->choices; left > 0; c++) {
        left -= !c->job.ended;
        end_choice(e, c, reason, error);
    }
}

/* ---- taking in --------------------------------------------------------------------------------*/

static void expect_deadline(di_engine *e, double deadline) {
    if (deadline > 0 && (e->next_deadline == 0 || deadline < e->next_deadline)) {
        e->next_deadline = deadline;
    }
}

/* To the scheduler; its grammar, if it has one, is done. */
static void start_request(di_engine *e, di_request *r) {
    di_error err;
    r->awaits_grammar = false;
    if (r->constraint.compiled && !di_constraint_start(r, e, &err)) {
        end_request(e, r, DI_FINISH_ERROR, &err);
        return;
    }
    for (int i = 0; i < r->n; i++) {
        r->choices[i].job.salt.high += e->failed_steps;
        if (!di_sched_add(e->sched, &r->choices[i].job, &err)) {
            end_request(e, r, DI_FINISH_ERROR, &err);
            return;
        }
    }
}

static void start_compiled(di_engine *e) {
    for (di_request *r = e->live; r;) {
        di_request *next = r->next_live;
        if (r->awaits_grammar && di_compiled_wait(r->constraint.compiled, 0)) {
            start_request(e, r);
        }
        r = next;
    }
}

static void take_request(di_engine *e, di_request *r) {
    expect_deadline(e, r->deadline);
    r->next_live = e->live;
    r->link_live = &e->live;
    if (e->live) {
        e->live->link_live = &r->next_live;
    }
    e->live = r;
    r->awaits_grammar = r->constraint.compiled && !di_compiled_wait(r->constraint.compiled, 0);
    if (!r->awaits_grammar) {
        start_request(e, r);
    }
}

/* New requests, cancellations, and whether the engine closes. */
static bool take_inbox(di_engine *e) {
    pthread_mutex_lock(&e->lock);
    di_request *r = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    bool closing = e->closing, cancels = e->cancels, unpins = e->unpins, compiled = e->compiled;
    e->cancels = e->compiled = false;
    pthread_mutex_unlock(&e->lock);
    if (unpins) {
        di_pins_sweep(e, false);
    }
    while (r) {
        di_request *next = r->next;
        take_request(e, r);
        r = next;
    }
    if (compiled) {
        start_compiled(e);
    }
    for (r = e->live; (cancels || closing) && r;) {
        di_request *next = r->next_live;
        if (closing || atomic_load(&r->cancelled)) {
            end_request(e, r, DI_FINISH_ABORT, NULL);
        }
        r = next;
    }
    return closing;
}

/* Ends what is late. Looks through the requests only when the next deadline has come. */
static void check_deadlines(di_engine *e) {
    if (e->next_deadline == 0 || di_now() < e->next_deadline) {
        return;
    }
    double now = di_now();
    e->next_deadline = 0;
    for (di_request *r = e->live; r;) {
        di_request *after = r->next_live;
        if (r->deadline > 0 && now >= r->deadline) {
            end_request(e, r, DI_FINISH_DEADLINE, NULL);
        } else {
            expect_deadline(e, r->deadline);
        }
        r = after;
    }
}

/* ---- planning ---------------------------------------------------------------------------------*/

/* Without drafts, and where the job's unread step may give several tokens, as if it gave one: the
 * rest is the device's to find out (resolve.h). */
static void fill_part(di_work *w, int i, int32_t *to) {
    const di_plan_row *row = &w->plan.rows[i];
    const di_job *job = row->job;
    di_choice *c = job->owner;
    int drafts = row->outputs > 1 ? row->outputs - 1 : 0, n = row->num_tokens - drafts;
    int64_t pos0 = row->pos0 - (row->in_flight > 0 ? row->in_flight - 1 : 0);
    int64_t known = job->num_tokens - pos0;
    known = known < n ? known : n;
    memcpy(to, job->tokens + pos0, (size_t)known * sizeof *to);
    w->source[i] = -1;
    if (known < n) { /* the last one is being sampled */
        to[known] = 0;
        w->source[i] = c->unread_row;
    }
    w->outputs[i] = row->outputs > 0;
    di_model_rows *part = &w->parts[i];
    *part = (di_model_rows){
        .pos0 = pos0,
        .slot = job->seq.slot,
        .num_blocks = job->seq.num_blocks,
        .tokens = to,
        .num_tokens = n,
        .num_logits = row->num_logits - drafts,
        .replay_from = pos0 < job->num_prompt ? job->replay_from : 0,
        .no_context = row->no_context,
    };
    for (int64_t k = 1; k <= DI_MODEL_LOOK_BACK && k <= pos0; k++) {
        part->before[DI_MODEL_LOOK_BACK - k] = job->tokens[pos0 - k];
    }
    w->samplers[i] = &c->sampler;
}

/* Copies of the block tables: the originals may grow and move while the step runs. */
static bool fill_blocks(di_work *w) {
    size_t total = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        total += (size_t)w->plan.rows[i].job->seq.num_blocks;
    }
    while (w->block_capacity < total) {
        int32_t *blocks = di_grow(w->blocks, w->block_capacity, &w->block_capacity, sizeof *blocks);
        if (!blocks) {
            return false;
        }
        w->blocks = blocks;
    }
    int32_t *to = w->blocks;
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_seq *seq = &w->plan.rows[i].job->seq;
        w->parts[i].blocks = to;
        memcpy(to, seq->blocks, (size_t)seq->num_blocks * sizeof *to);
        to += seq->num_blocks;
    }
    return true;
}

static void note_start(di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        di_choice *c = w->plan.rows[i].job->owner;
        if (c->started == 0) {
            c->started = di_now();
        }
    }
}

/* Plans and fills the next step; NULL if there is nothing to run. */
static di_work *plan_next(di_engine *e) {
    di_work *w = &e->works[e->unread == &e->works[0]];
    di_plan_clear(&w->plan);
    bool any = di_sched_plan(e->sched, &e->costs, &w->plan);
    if (w->plan.stuck) {
        di_error err;
        di_job *job = w->plan.stuck;
        di_fail(&err, DI_ERR_NO_MEMORY,
                "%lld tokens do not fit into the cache although nothing else runs (kv_memory)",
                (long long)job->num_tokens);
        end_choice(e, job->owner, DI_FINISH_ERROR, &err);
    }
    if (!any) {
        return NULL;
    }
    int32_t *tokens = w->tokens;
    w->before = e->unread;
    w->law = di_pricer_get_law(&e->pricer);
    for (int i = 0; i < w->plan.num_rows; i++) {
        fill_part(w, i, tokens);
        tokens += w->plan.rows[i].num_tokens;
    }
    for (int i = 0; i < w->plan.num_rows; i++) {
        ((di_choice *)w->plan.rows[i].job->owner)->unread_row = i;
    }
    note_start(w);
    w->failed = !fill_blocks(w);
    if (w->failed) { /* it is submitted all the same, so that its rows come back as failed */
        di_fail(&w->error, DI_ERR_NO_MEMORY, "no memory for the step's block tables");
    }
    return w;
}

/* ---- results ----------------------------------------------------------------------------------*/

/* Text of a token, through the stop texts, into c->text. */
static void take_text(di_engine *e, di_choice *c, int32_t token, bool ends) {
    c->piece.size = c->text.size = 0;
    bool skip = ends || !e->parts.tokenizer ||
                (c->request->skip_special && di_tokenizer_is_special(e->parts.tokenizer, token));
    c->failed =
        c->failed || (!skip && !di_detokenizer_push(&c->detokenizer, token, &c->piece, NULL));
    if (c->failed || c->piece.size == 0) {
        return;
    }
    bool early = c->job.num_tokens - c->job.num_prompt < c->request->params->min_tokens;
    c->failed = !(early ? di_stop_pass : di_stop_push)(&c->stop, c->piece.data, c->piece.size,
                                                       &c->text, NULL);
}

/* False: it was the last, and the choice may be gone. */
static bool take_token(di_engine *e, di_choice *c, const di_row_token *r) {
    di_job *job = &c->job;
    job->tokens[job->num_tokens++] = r->id;
    job->prompt_logits = false; /* all are there, and from now on the reader's to read */
    bool ends = di_sample_ends(c->request->params, r->id);
    take_text(e, c, r->id, ends);
    bool full = job->num_tokens >= job->max_len;
    di_choice_add_token(c, r, &c->text, ends || full || c->failed || c->stop.match >= 0);
    if (ends) {
        c->stop_token = r->id;
    }
    if (ends || c->stop.match >= 0) {
        end_choice(e, c, DI_FINISH_STOP, NULL);
        return false;
    }
    if (c->failed || full) {
        end_choice(e, c, DI_FINISH_LENGTH, NULL);
        return false;
    }
    return true;
}

/* Tokens behind the one that ends the answer are dropped. */
static void take_tokens(di_engine *e, di_choice *c, const di_work *w, int i) {
    const di_row_result *r = &w->results[i];
    if (c->job.num_drafts > 0) {
        int verified = w->outputs[i] - 1, accepted = r->num_tokens - 1;
        di_engine_note_drafts(e, &c->job, verified, accepted);
        di_pricer_resolve(&e->pricer, &c->job, verified, accepted);
    }
    if (c->request->pins && c->job.num_tokens == c->job.num_prompt) {
        di_pins_settle(e, c->request->id, &c->job);
    }
    for (int k = 0; k < r->num_tokens; k++) {
        if (!take_token(e, c, &r->tokens[k])) {
            return;
        }
    }
    di_pricer_file(&e->pricer, &c->job, &w->law, r->confidence, r->num_drafts);
}

static void read_row(di_engine *e, const di_work *w, int i) {
    const di_plan_row *row = &w->plan.rows[i];
    const di_row_result *r = &w->results[i];
    di_job *job = row->job;
    di_choice *c = job->owner;
    di_sched_result(e->sched, row, r->num_tokens);
    if (job->ended) {
        retire_choice(e, c);
        return;
    }
    const di_model_rows *part = &w->parts[i];
    int64_t done = part->pos0 + part->num_tokens;
    if (part->pos0 < job->num_prompt) {
        di_choice_tell_prompt(c, done < job->num_prompt ? done : job->num_prompt);
    }
    if (w->failed) {
        end_choice(e, c, DI_FINISH_ERROR, &w->error);
    } else if (r->failed) {
        end_choice(e, c, DI_FINISH_ERROR, &r->error);
    } else if (row->outputs > 0) {
        take_tokens(e, c, w, i);
    }
}

/* Running means of what prompts and moves cost. */
static void learn_costs(di_engine *e, const di_work *w) {
    double seconds = w->middle - w->forward;
    if (w->moved_bytes > 0) {
        double each = w->moved_seconds / (double)w->moved_bytes;
        e->costs.byte_seconds += 0.5 * (each - e->costs.byte_seconds);
    }
    if (w->plan.num_tokens > 4 * w->plan.num_rows) {
        double each = seconds / w->plan.num_tokens;
        e->costs.token_seconds += 0.1 * (each - e->costs.token_seconds);
    }
}

/* Steps of decoding alone teach what steps cost. */
static void learn_prices(di_engine *e, const di_work *w) {
    double context = 0;
    int rows = 0, logits = 0, tokens = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_model_rows *part = &w->parts[i];
        if (part->pos0 < w->plan.rows[i].job->num_prompt) {
            return;
        }
        context += (double)part->pos0 * part->num_tokens;
        rows += part->num_tokens;
        logits += part->num_logits;
        tokens += w->results[i].num_tokens;
    }
    if (!e->pricer.o.priced || rows == 0 || rows != logits || w->failed) {
        return;
    }
    di_cost *cost = &e->pricer.cost;
    double predicted =
        di_cost_step(cost, rows, context / rows) + di_cost_draft(cost, w->num_drafted);
    di_engine_note_price(e, predicted, w->end - w->forward);
    di_pricer_note(&e->pricer, w->plan.num_rows, tokens, w->end - w->forward,
                   rows > w->plan.num_rows || w->num_drafted > 0);
    di_cost_learn_forward(cost, rows, context, w->middle - w->forward);
    di_cost_learn_sampling(cost, rows, w->sampled - w->middle);
    if (w->num_drafted > 0) {
        di_cost_learn_draft(cost, w->num_drafted, w->end - w->sampled);
    }
}

static void read_results(di_engine *e, di_work *w) {
    learn_prices(e, w); /* before jobs go */
    for (int i = 0; i < w->plan.num_rows; i++) {
        read_row(e, w, i);
    }
    learn_costs(e, w);
}

/* ---- the loop ---------------------------------------------------------------------------------*/

/* Nothing can run until somebody calls: no request is there, or all wait for their grammars. */
static bool at_rest(const di_engine *e) {
    const di_request *r = e->live;
    while (r && r->awaits_grammar) {
        r = r->next_live;
    }
    return !r;
}

/* Until somebody calls, or the next deadline comes. */
static void sleep_until_called(di_engine *e) {
    e->last_end = 0;
    di_engine_note_rest(e);
    struct timespec until = {.tv_sec = (time_t)e->next_deadline,
                             .tv_nsec = (long)(fmod(e->next_deadline, 1) * 1e9)};
    int late = 0;
    pthread_mutex_lock(&e->lock);
    while (!e->inbox && !e->cancels && !e->unpins && !e->closing && !e->compiled &&
           late != ETIMEDOUT) {
        late = e->live && e->next_deadline > 0
                   ? pthread_cond_timedwait(&e->called, &e->lock, &until)
                   : pthread_cond_wait(&e->called, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

/* A step has failed. What it should have written may have been published when the step behind it
 * was planned, and others may have begun from that: whatever runs ends, and no prefix of before is
 * found again, for the salts are others. */
static void drop_failed_step(di_engine *e, const di_error *error) {
    e->failed_steps++;
    if (error->code == DI_ERR_DEVICE) {
        pthread_mutex_lock(&e->lock);
        e->loss = e->lost ? e->loss : *error; /* the first names the operation, if any does */
        e->lost = true;
        pthread_mutex_unlock(&e->lock);
    }
    for (di_request *r = e->live; r;) {
        di_request *next = r->next_live;
        int left = r->running; /* whoever ends last may free r */
        for (di_choice *c = r->choices; left > 0; c++) {
            left -= !c->job.ended;
            c->job.salt.high++;
            if (c->job.state == DI_JOB_RUNNING) {
                end_choice(e, c, DI_FINISH_ERROR, error);
            }
        }
        r = next;
    }
}

static void wait_and_read(di_engine *e, di_work *w, double planned) {
    di_device_wait(e->device, w);
    double start = di_now();
    di_step_tokens tokens = di_engine_count_tokens(e, w);
    read_results(e, w);
    if (w->failed) {
        drop_failed_step(e, &w->error);
    }
    double host = planned + (di_now() - start);
    di_engine_note_step(e, w, tokens, host);
    di_trace_step(e->trace, w, start, host);
}

void *di_engine_loop(void *arg) {
    di_engine *e = arg;
    e->opened = di_now();
    for (;;) {
        double start = di_now();
        bool closing = take_inbox(e);
        check_deadlines(e);
        di_work *w = plan_next(e);
        double planned = di_now() - start;
        if (w) {
            di_device_submit(e->device, w);
        }
        di_work *read = e->unread;
        if (read) {
            wait_and_read(e, read, planned);
        }
        e->unread = w;
        if (w && e->synchronous) {
            wait_and_read(e, w, read ? 0 : planned);
            e->unread = NULL;
        }
        if (!w && !read && at_rest(e)) {
            if (closing && !e->live) {
                di_pins_sweep(e, true);
                return NULL;
            }
            sleep_until_called(e);
        }
    }
}
