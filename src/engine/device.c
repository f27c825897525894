/* The device's thread: see device.h. Runs moves, copies, the forward pass and the sampling of one
 * work after the other; starts no requests, ends none, and never touches the books of cache or
 * scheduler. */
#include "engine/device.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/team.h"
#include "base/thread.h"
#include "engine/masks.h"
#include "engine/on_card.h"
#include "engine/queued.h"
#include "engine/resolve.h"
#include "model/queue.h"

struct di_device {
    di_device_options o;
    float *logits;               /* [max_logits, vocab_size] */
    di_team *team;               /* that samples; sleeps during the forward pass */
    di_sample_scratch **scratch; /* one for each of its members */
    int num_scratch;
    di_masks *masks;
    di_resolver resolver;
    int32_t *draft_tokens; /* [sequences of a round, block size], and the confidence in each */
    float *draft_confidence;
    di_force_fn force; /* for tests, or NULL */
    void *force_user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    di_work *queue[2];
    int queued;
    di_on_card *draws; /* NULL: what the thread does it draws from logits on the host */
    di_queued *card;   /* NULL: every work is the thread's */
    int on_card;       /* works that it has; then the thread waits */
    bool closing, started;
};

/* ---- work -------------------------------------------------------------------------------------*/

bool di_work_create(di_work *w, const di_sched_options *o, int max_logprobs, int max_drafts,
                    di_error *err) {
    size_t n = (size_t)o->max_num_seqs, tokens = 1 + (size_t)max_drafts;
    *w = (di_work){0};
    if (!di_plan_create(&w->plan, o, err)) {
        return false;
    }
    w->parts = di_calloc(n, sizeof *w->parts);
    w->outputs = di_calloc(n, sizeof *w->outputs);
    w->samplers = di_calloc(n, sizeof *w->samplers);
    w->source = di_calloc(n, sizeof *w->source);
    w->first_logits = di_calloc(n, sizeof *w->first_logits);
    w->tokens =
        di_calloc((size_t)o->max_num_batched_tokens + n * (size_t)max_drafts, sizeof *w->tokens);
    w->results = di_calloc(n, sizeof *w->results);
    w->tops = di_calloc(n * tokens, (size_t)max_logprobs * sizeof *w->tops);
    if (!w->parts || !w->outputs || !w->samplers || !w->source || !w->first_logits || !w->tokens ||
        !w->results || !w->tops) {
        di_work_destroy(w);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for steps of %zu sequences", n);
    }
    for (size_t i = 0; i < n * tokens; i++) {
        w->results[i / tokens].tokens[i % tokens].scored.top = w->tops + i * (size_t)max_logprobs;
    }
    return true;
}

void di_work_destroy(di_work *w) {
    di_plan_destroy(&w->plan);
    di_free(w->parts);
    di_free(w->outputs);
    di_free(w->samplers);
    di_free(w->source);
    di_free(w->first_logits);
    di_free(w->tokens);
    di_free(w->blocks);
    di_free(w->results);
    di_free(w->tops);
    *w = (di_work){0};
}

/* ---- what the thread does ---------------------------------------------------------------------*/

static void move_all(di_device *d, di_work *w, bool to_host) {
    double begin = di_now();
    for (size_t i = 0; i < w->plan.num_moves; i++) {
        di_plan_move *m = &w->plan.moves[i];
        if (m->to_host == to_host) {
            if (to_host) {
                di_seq_export(d->o.cache, &m->seq, m->host->data);
            } else {
                di_seq_import(d->o.cache, &m->seq, m->host->len, m->host->data);
            }
            w->moved_bytes += di_seq_export_bytes(d->o.cache, &m->seq);
        }
    }
    w->moved_seconds += w->plan.num_moves > 0 ? di_now() - begin : 0;
}

/* Moves out, copies, moves in: the order that di_plan demands. */
static void move_state(di_device *d, di_work *w) {
    const di_state_pool *pool = di_cache_pool(d->o.cache);
    size_t stride = pool->layout->slot_stride;
    w->moved_bytes = 0;
    w->moved_seconds = 0;
    move_all(d, w, true);
    for (int i = 0; i < w->plan.num_copies; i++) {
        const di_slot_copy *c = &w->plan.copies[i];
        d->o.backend->ops->copy(d->o.backend, pool->slots + (size_t)c->to * stride,
                                pool->slots + (size_t)c->from * stride, stride);
    }
    move_all(d, w, false);
}

static void keep_scores(const di_logprobs *from, di_scored *to) {
    to->logprob = (float)from->logprob;
    to->num_top = from->num_top;
    for (int i = 0; i < from->num_top; i++) {
        to->top[i] = (di_logprob){from->top_ids[i], (float)from->top_logprobs[i]};
    }
}

/* Log-probabilities of the prompt's tokens that these rows predict. */
static bool score_prompt(const di_device *d, const di_work *w, int i, const float *logits,
                         di_sample_scratch *scratch, di_error *err) {
    const di_model_rows *part = &w->parts[i];
    const di_job *job = w->plan.rows[i].job;
    const di_row_sampler *s = w->samplers[i];
    for (int t = 0; t < part->num_tokens; t++) {
        int64_t next = part->pos0 + t + 1;
        di_logprobs found;
        if (next >= job->num_prompt) {
            break;
        }
        if (!di_prompt_logprobs(s->params, logits + (size_t)t * (size_t)d->o.vocab_size,
                                job->tokens[next], scratch, &found, err)) {
            return false;
        }
        keep_scores(&found, &s->prompt[next]);
    }
    return true;
}

/* Takes the next token of a row; scores of it are the caller's. */
static bool keep(di_row_sampler *s, int32_t token, di_row_result *r) {
    if (!di_sample_history_push(&s->history, token, &r->error) ||
        (s->guide.constraint && !di_guide_push(&s->guide, token, &r->error))) {
        return false;
    }
    r->tokens[r->num_tokens++].id = token;
    return true;
}

/* Output k as the card has drawn it. */
static bool take(const di_device *d, const di_work *w, int i, int k, di_row_result *r) {
    di_row_token *to = &r->tokens[r->num_tokens];
    return di_on_card_token(d->draws, w, i, k, to, &r->error) && keep(w->samplers[i], to->id, r);
}

/* Draws the token of output k; logits: of its row. */
static bool draw(const di_work *w, int i, int k, const float *logits, di_sample_scratch *scratch,
                 di_row_result *r) {
    di_row_sampler *s = w->samplers[i];
    int64_t position = di_work_anchor(w, i) + 1 + k;
    di_sample_input in = {
        .logits = logits,
        .history = &s->history,
        .seed = s->seed,
        .position = (uint64_t)position,
        .num_output = position - w->plan.rows[i].job->num_prompt,
        .law = k + 1 < w->outputs[i] ? &s->laws[k] : NULL,
    };
    di_sampled sampled;
    bool guided = s->guide.constraint != NULL;
    if ((guided && !di_guide_mask(&s->guide, k, &in.grammar_mask, &r->error)) ||
        !di_sample_row(s->params, &in, scratch, &sampled, &r->error)) {
        return false;
    }
    if (s->params->logprobs) {
        keep_scores(&sampled.logprobs, &r->tokens[r->num_tokens].scored);
    }
    return keep(s, sampled.token, r);
}

/* The row's tokens: each draft that comes out of its position's draw is one, and so is the first
 * token that comes out instead. A seeded draw depends on seed and position alone, so the tokens are
 * those of an answer without drafts; of the others the law is. logits: of the first output's row;
 * NULL: the card has drawn. */
static bool verify(const di_device *d, const di_work *w, int i, const float *logits,
                   di_sample_scratch *scratch, di_row_result *r) {
    const di_model_rows *part = &w->parts[i];
    int outputs = logits ? w->outputs[i] : di_on_card_outputs(d->draws, i);
    const int32_t *drafts = part->tokens + part->num_tokens - w->outputs[i] + 1;
    for (int k = 0; k < outputs; k++) {
        bool ok = logits ? draw(w, i, k, logits + (size_t)k * (size_t)d->o.vocab_size, scratch, r)
                         : take(d, w, i, k, r);
        if (!ok) {
            return false;
        }
        if (k + 1 < outputs && drafts[k] != r->tokens[k].id) {
            break;
        }
    }
    return true;
}

/* logits: of the row's first token that has some. */
static void sample_row(const di_device *d, di_work *w, int i, const float *logits,
                       di_sample_scratch *scratch) {
    const di_model_rows *part = &w->parts[i];
    di_row_result *r = &w->results[i];
    bool scores = w->samplers[i]->prompt && part->num_logits == part->num_tokens &&
                  part->pos0 < w->plan.rows[i].job->num_prompt;
    const float *first =
        logits + (size_t)(part->num_logits - w->outputs[i]) * (size_t)d->o.vocab_size;
    r->failed = (scores && !score_prompt(d, w, i, logits, scratch, &r->error)) ||
                !verify(d, w, i, first, scratch, r);
}

typedef struct sample_loop {
    di_device *d;
    di_work *w;
} sample_loop;

static bool has_drawn(const di_device *d, int i) {
    return d->draws && di_on_card_outputs(d->draws, i) > 0;
}

static void sample_rows(void *arg, int64_t begin, int64_t end, int member) {
    di_device *d = ((sample_loop *)arg)->d;
    di_work *w = ((sample_loop *)arg)->w;
    for (int i = (int)begin; i < (int)end; i++) {
        if (w->parts[i].num_logits > 0 && !has_drawn(d, i)) {
            sample_row(d, w, i, d->logits + (size_t)w->first_logits[i] * (size_t)d->o.vocab_size,
                       d->scratch[member]);
        }
    }
}

/* num_logits: on the host, if the card has not drawn. */
static void sample(di_device *d, di_work *w, int num_logits) {
    sample_loop loop = {d, w};
    for (int i = 0; d->draws && i < w->plan.num_rows; i++) {
        if (has_drawn(d, i)) {
            num_logits -= w->parts[i].num_logits;
            w->results[i].failed = !verify(d, w, i, NULL, NULL, &w->results[i]);
        }
    }
    if (num_logits == 0) {
        return;
    }
    di_team_run(d->team, num_logits > 1 ? d->num_scratch : 1, w->plan.num_rows, 1, sample_rows,
                &loop);
}

/* ---- drafts ---- */

/* The sequences of one call of the draft model: rows of the work. */
typedef struct draft_batch {
    di_device *d;
    di_work *w;
    bool by_card; /* draws them */
    int count, rows[DI_MODEL_MAX_DRAFT_SEQS], lengths[DI_MODEL_MAX_DRAFT_SEQS];
    di_draft_rows parts[DI_MODEL_MAX_DRAFT_SEQS];
    di_guide_place places[DI_MODEL_MAX_DRAFT_SEQS]; /* of guides, to come back to */
} draft_batch;

/* Proposals are drawn with the parameters and masks that the target will draw with. */
static int32_t draw_draft(void *user, int i, int j, const float *logits) {
    draft_batch *b = user;
    di_row_sampler *s = b->w->samplers[b->rows[i]];
    if (j >= b->d->o.num_drafts) {
        return -1;
    }
    int64_t position = b->parts[i].pos0 + 1 + j;
    di_sample_input in = {
        .logits = logits,
        .history = &s->history,
        .seed = s->seed,
        .position = (uint64_t)position,
        .num_output = position - b->w->plan.rows[b->rows[i]].job->num_prompt,
    };
    di_error ignored;
    di_draft_law *law = &s->laws[j];
    bool guided = s->guide.constraint != NULL;
    law->count = 0;
    if ((guided && !di_guide_mask(&s->guide, 0, &in.grammar_mask, &ignored)) ||
        !di_propose_row(s->params, &in, (uint32_t)j, b->d->scratch[0], law, &ignored) ||
        (guided && !di_guide_push(&s->guide, law->token, &ignored))) {
        return -1;
    }
    return law->token;
}

/* Guides go along with the drafts, and come back. */
static void guide_drafts(draft_batch *b, bool back) {
    for (int i = 0; i < b->count; i++) {
        di_guide *g = &b->w->samplers[b->rows[i]]->guide;
        if (g->constraint && back) {
            di_guide_return(g, b->places[i]);
        } else if (g->constraint) {
            b->places[i] = di_guide_here(g);
            g->num_ready = 0;
        }
    }
}

/* No law is known of what a test forces: only seeded and greedy answers keep theirs. */
static void force_drafts(const draft_batch *b, int i, di_row_sampler *s) {
    b->d->force(b->d->force_user, b->w->plan.rows[b->rows[i]].job, b->parts[i].pos0, s->num_drafts,
                s->drafts);
    for (int j = 0; j < s->num_drafts; j++) {
        s->laws[j].count = 0;
    }
}

/* Hands row i of the batch its drafts. */
static void keep_drafts(const draft_batch *b, int i, const int32_t *tokens,
                        const float *confidence) {
    di_row_sampler *s = b->w->samplers[b->rows[i]];
    di_row_result *r = &b->w->results[b->rows[i]];
    float single[DI_MAX_DRAFTS];
    r->num_drafts = s->num_drafts = b->lengths[i];
    memcpy(s->drafts, tokens, (size_t)s->num_drafts * sizeof *tokens);
    memcpy(r->confidence, confidence, (size_t)s->num_drafts * sizeof *confidence);
    di_pricer_survivals(&b->w->law, confidence, s->num_drafts, single, s->survival);
    if (b->d->force) {
        force_drafts(b, i, s);
    }
}

/* Draws on the host. */
static bool propose_here(draft_batch *b, di_error *err) {
    di_device *d = b->d;
    for (int i = 0; i < b->count; i++) {
        b->lengths[i] = d->o.num_drafts;
    }
    guide_drafts(b, false);
    bool ok = di_model_draft(d->o.model, b->parts, b->count, draw_draft, b, d->draft_tokens,
                             d->draft_confidence, err);
    guide_drafts(b, true);
    return ok;
}

static void prepare_guides(void *arg, int64_t begin, int64_t end, int member) {
    const draft_batch *b = arg;
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        di_guide *g = &b->w->samplers[b->rows[i]]->guide;
        if (g->constraint) {
            di_guide_prepare(g, NULL, 0);
        }
    }
}

/* Draws on the card, whose grammars tell what may come first. */
static bool propose_there(draft_batch *b, di_error *err) {
    di_device *d = b->d;
    int guided = 0;
    for (int i = 0; i < b->count; i++) {
        guided += b->w->samplers[b->rows[i]]->guide.constraint != NULL;
    }
    if (guided > 0) {
        di_team_run(d->team, guided > 1 ? d->num_scratch : 1, b->count, 1, prepare_guides, b);
    }
    return di_on_card_propose(d->draws, b->w, b->rows, b->parts, b->count, d->draft_tokens,
                              d->draft_confidence, b->lengths, err);
}

/* Whatever fails here costs proposals, not answers. */
static void propose(draft_batch *b) {
    di_device *d = b->d;
    int size = d->o.block_size;
    di_error ignored;
    bool ok = b->count > 0 && (b->by_card ? propose_there(b, &ignored) : propose_here(b, &ignored));
    for (int i = 0; i < b->count && ok; i++) {
        keep_drafts(b, i, d->draft_tokens + i * size, d->draft_confidence + i * size);
    }
    b->count = 0;
}

/* Proposals for the rows that are to have some, gave a token and may give another. */
static void draft(di_device *d, di_work *w) {
    draft_batch batches[2] = {{.d = d, .w = w}, {.d = d, .w = w, .by_card = true}};
    int most = di_model_draft_seqs(d->o.model);
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_plan_row *row = &w->plan.rows[i];
        const di_row_result *r = &w->results[i];
        int64_t anchor = di_work_anchor(w, i) + r->num_tokens;
        if (!row->propose || r->failed || r->num_tokens == 0 || anchor + 2 > row->job->max_len ||
            di_sample_ends(w->samplers[i]->params, r->tokens[r->num_tokens - 1].id)) {
            continue;
        }
        draft_batch *b = &batches[d->draws && di_on_card_can_propose(w->samplers[i])];
        w->num_drafted++;
        b->rows[b->count] = i;
        b->parts[b->count++] = (di_draft_rows){.pos0 = anchor,
                                               .slot = w->parts[i].slot,
                                               .anchor = r->tokens[r->num_tokens - 1].id,
                                               .context_from = row->draft_from};
        if (b->count == most) {
            propose(b);
        }
    }
    propose(&batches[0]);
    propose(&batches[1]);
}

/* The work behind looks at results, for this one may have been filled anew by then. */
static void fail_rows(di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        w->results[i].failed = true;
    }
}

/* Leaves logits, n rows of them, where sample() looks for them; masks are made meanwhile. *seconds:
 * of the card, if that draws. */
static bool forward(di_device *d, di_work *w, int n, double *seconds) {
    if (d->draws) {
        return di_on_card_step(d->draws, w, di_queued_place(d->card), d->masks, d->logits, seconds,
                               &w->error);
    }
    di_masks_begin(d->masks, w);
    bool ok = di_model_forward(d->o.model, w->parts, w->plan.num_rows, n > 0 ? d->logits : NULL,
                               &w->error);
    di_masks_wait(d->masks);
    return ok;
}

/* last_end: of the work before, if this one was there by then, else 0. What the host does between
 * two steps on a card is part of what drafts cost. */
static void do_work(di_device *d, di_work *w, double last_end) {
    bool moves = w->plan.num_moves > 0 || w->plan.num_copies > 0,
         at_once = d->draws && last_end > 0;
    w->begin = at_once ? last_end : di_now();
    move_state(d, w);
    w->forward = at_once && !moves ? w->begin : di_now();
    w->middle = w->sampled = w->forward;
    w->num_drafted = 0;
    double seconds = 0;
    di_resolve(&d->resolver, w);
    int n = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        w->first_logits[i] = n;
        n += w->parts[i].num_logits;
        w->results[i].failed = w->failed;
        w->results[i].num_tokens = w->results[i].num_drafts = 0;
    }
    if (w->plan.num_rows > 0 && !w->failed) {
        w->failed = !forward(d, w, n, &seconds);
        w->middle = w->sampled = d->draws ? w->forward + seconds : di_now();
        if (w->failed) {
            fail_rows(w);
        } else {
            sample(d, w, n);
            w->sampled = d->draws ? w->middle : di_now();
            if (d->o.num_drafts > 0) {
                draft(d, w);
            }
        }
    }
    w->end = di_now();
}

static void *run(void *arg) {
    di_device *d = arg;
    double last_end = 0;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while ((d->queued == 0 || d->on_card > 0) && !d->closing) {
            pthread_cond_wait(&d->changed, &d->lock);
            last_end = 0;
        }
        if (d->queued == 0) {
            break;
        }
        di_work *w = d->queue[0];
        pthread_mutex_unlock(&d->lock);
        do_work(d, w, last_end);
        last_end = w->end;
        pthread_mutex_lock(&d->lock);
        d->queue[0] = d->queue[1];
        d->queued--;
        w->done = true;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void di_device_force(di_device *d, di_force_fn force, void *user) {
    d->force = force;
    d->force_user = user;
}

/* ---- the step thread's side -------------------------------------------------------------------*/

/* The card is told what comes next. What the thread is doing is done first; it waits for nothing
 * that is yet to be done here, for whatever is queued was read before. */
static bool submit_to_card(di_device *d, di_work *w) {
    if (!di_queued_suits(w)) {
        return false;
    }
    pthread_mutex_lock(&d->lock);
    while (d->queued > 0) {
        pthread_cond_wait(&d->changed, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    bool taken = di_queued_begin(d->card, w);
    pthread_mutex_lock(&d->lock);
    d->on_card += taken;
    pthread_mutex_unlock(&d->lock);
    return taken;
}

void di_device_submit(di_device *d, di_work *w) {
    w->done = w->queued = w->by_card = w->recorded = w->round_recorded = false;
    if (d->card && submit_to_card(d, w)) {
        return;
    }
    pthread_mutex_lock(&d->lock);
    assert(d->queued < 2);
    d->queue[d->queued++] = w;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void di_device_wait(di_device *d, di_work *w) {
    if (w->queued) {
        di_queued_end(d->card, w);
        pthread_mutex_lock(&d->lock);
        d->on_card--;
        w->done = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        return;
    }
    pthread_mutex_lock(&d->lock);
    while (!w->done) {
        pthread_cond_wait(&d->changed, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

di_device *di_device_create(const di_device_options *o, di_error *err) {
    di_device *d = di_calloc(1, sizeof *d);
    if (!d) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the device's thread");
        return NULL;
    }
    d->o = *o;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->num_scratch = o->threads > 0 ? o->threads : di_cpu_count();
    d->scratch = di_calloc((size_t)d->num_scratch, sizeof *d->scratch);
    d->logits =
        di_realloc_array(NULL, (size_t)o->max_logits, (size_t)o->vocab_size * sizeof *d->logits);
    size_t drafts = (size_t)di_model_draft_seqs(o->model) * (size_t)o->block_size;
    d->draft_tokens = di_calloc(drafts, sizeof *d->draft_tokens);
    d->draft_confidence = di_calloc(drafts, sizeof *d->draft_confidence);
    bool ok = d->scratch && d->logits && d->draft_tokens && d->draft_confidence;
    ok = ok && di_resolver_create(&d->resolver, o->max_num_seqs, o->num_drafts, err);
    ok = ok && (d->masks = di_masks_create(d->num_scratch, err)) != NULL;
    ok = ok && (d->team = di_team_create(d->num_scratch, err)) != NULL;
    for (int i = 0; ok && i < d->num_scratch; i++) {
        ok = (d->scratch[i] = di_sample_scratch_create(o->vocab_size, err)) != NULL;
    }
    if (!d->scratch || !d->logits || !d->draft_tokens || !d->draft_confidence) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d rows of %d logits", o->max_logits,
                o->vocab_size);
    }
    if (ok && o->queues_steps) {
        ok = (d->card = di_queued_create(o, d->masks, err)) != NULL;
    }
    if (ok && o->queues_steps && o->num_drafts > 0) {
        ok = (d->draws = di_on_card_create(o, err)) != NULL;
    }
    ok = ok && di_thread_start(&d->thread, run, d, "the device's thread", err);
    d->started = ok;
    if (!ok) {
        di_device_destroy(d);
        return NULL;
    }
    return d;
}

void di_device_destroy(di_device *d) {
    if (!d) {
        return;
    }
    if (d->started) {
        pthread_mutex_lock(&d->lock);
        d->closing = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    for (int i = 0; d->scratch && i < d->num_scratch; i++) {
        di_sample_scratch_destroy(d->scratch[i]);
    }
    di_on_card_destroy(d->draws);
    di_queued_destroy(d->card);
    di_team_destroy(d->team);
    di_masks_destroy(d->masks);
    di_resolver_destroy(&d->resolver);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    di_free(d->scratch);
    di_free(d->logits);
    di_free(d->draft_tokens);
    di_free(d->draft_confidence);
    di_free(d);
}
