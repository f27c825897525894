/* Steps on a card: see queued.h. Two of them may be under way, each with argument memory of its
 * own, in which its draws go to the card and their results come back. Draws are queued with the
 * forward pass, unless a grammar has to see the token that the step before is drawing: then they
 * are queued when that has been read, while the forward pass runs. */
#include "engine/queued.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/draw_memory.h"
#include "engine/resolve.h"
#include "model/queue.h"

enum { PLACES = 2, MAX_MASKS = 256 };

/* A work's draws, which lie by plan row, so that the step behind finds a row's token. */
typedef struct place {
    di_draw_memory draws;
    int num_draws;
    bool *lost; /* [max_num_seqs] rows whose grammar has failed: the result has the error */
} place;

struct di_queued {
    di_device_options o;
    const di_queue_ops *ops;
    place places[PLACES];
    int next;         /* place of the next work */
    di_work *undrawn; /* queued without its draws, which wait for the work before */
    di_masks *masks;
    int32_t *source; /* [max_num_seqs] */
};

/* ---- memory -----------------------------------------------------------------------------------*/

di_queued *di_queued_create(const di_device_options *o, di_masks *masks, di_error *err) {
    di_queued *q = di_calloc(1, sizeof *q);
    size_t n = (size_t)o->max_num_seqs;
    bool ok = q != NULL;
    if (ok) {
        q->o = *o;
        q->ops = o->backend->ops->queue;
        q->masks = masks;
        q->source = di_calloc(n, sizeof *q->source);
        ok = q->source != NULL;
    }
    for (int i = 0; i < PLACES && ok; i++) {
        place *p = &q->places[i];
        int most_masks = o->max_num_seqs < MAX_MASKS ? o->max_num_seqs : MAX_MASKS;
        p->lost = di_calloc(n, sizeof *p->lost);
        ok = p->lost && di_draw_memory_create(&p->draws, o->backend, o->vocab_size, o->max_num_seqs,
                                              most_masks, o->max_logprobs, err);
    }
    if (!ok) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for draws of %d sequences", o->max_num_seqs);
        di_queued_destroy(q);
        return NULL;
    }
    return q;
}

void di_queued_destroy(di_queued *q) {
    if (q) {
        for (int i = 0; i < PLACES; i++) {
            di_draw_memory_destroy(&q->places[i].draws);
            di_free(q->places[i].lost);
        }
        di_free(q->source);
        di_free(q);
    }
}

/* ---- what a step draws ------------------------------------------------------------------------*/

/* Is its token still on its way? Then its row there, else -1. */
static int fed_row(const di_work *w, int i) {
    return w->source[i] >= 0 && w->before->queued ? w->source[i] : -1;
}

static bool guided(const di_work *w, int i) {
    return w->plan.rows[i].outputs > 0 && w->samplers[i]->guide.constraint;
}

bool di_queued_suits(const di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_plan_row *row = &w->plan.rows[i];
        const di_row_sampler *s = w->samplers[i];
        if (row->outputs > 1 || row->propose || row->num_logits > row->outputs ||
            s->params->num_bad_words > 0 || (s->prompt && row->pos0 < row->job->num_prompt)) {
            return false;
        }
    }
    return !w->failed && w->plan.num_rows > 0 && w->plan.num_moves == 0;
}

/* Is there room for the lists of these rows' draws? What they will take is known before the forward
 * pass is queued, though the lists are not if a token of theirs is on its way. */
static bool lists_fit(const di_work *w, const place *p) {
    size_t pairs = 0, masks = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_plan_row *row = &w->plan.rows[i];
        const di_row_sampler *s = w->samplers[i];
        pairs += s->params->num_logit_bias + s->history.num_tokens + 2;
        masks += row->outputs > 0;
    }
    const di_draw_lists *l = &p->draws.lists;
    return pairs <= (size_t)l->max_pairs && masks <= (size_t)l->max_masks;
}

/* Row i's draw. `logits`: its row of them. */
static void fill_draw(di_work *w, int i, int logits, place *p) {
    const di_plan_row *row = &w->plan.rows[i];
    di_row_sampler *s = w->samplers[i];
    int64_t position = w->parts[i].pos0 + w->parts[i].num_tokens;
    di_draw *d = &p->draws.rows[i];
    di_sample_input in = {
        .history = &s->history,
        .seed = s->seed,
        .position = (uint64_t)position,
        .num_output = position - row->job->num_prompt,
    };
    p->lost[i] =
        guided(w, i) && !di_guide_mask(&s->guide, 0, &in.grammar_mask, &w->results[i].error);
    bool ok = di_draw_fill(s->params, &in, fed_row(w, i), &p->draws.lists, d);
    assert(ok); /* lists_fit has seen to it */
    (void)ok;
    d->logits = logits;
}

/* Rows that draw nothing read the first logits there are and nobody their result. */
static void fill_draws(di_queued *q, di_work *w, place *p) {
    int n = 0;
    bool any_guided = false;
    for (int i = 0; i < w->plan.num_rows; i++) {
        any_guided = any_guided || guided(w, i);
    }
    if (any_guided) {
        di_masks_begin(q->masks, w);
        di_masks_wait(q->masks);
    }
    p->draws.lists.num_pairs = p->draws.lists.num_masks = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        w->first_logits[i] = n;
        p->lost[i] = false;
        if (w->plan.rows[i].num_logits == 0) {
            p->draws.rows[i] = (di_draw){.forced = -1, .greedy = true, .mask = -1, .floor = 1};
        } else {
            fill_draw(w, i, n, p);
        }
        n += w->plan.rows[i].num_logits;
    }
    p->num_draws = n > 0 ? w->plan.num_rows : 0;
}

/* ---- inputs -----------------------------------------------------------------------------------*/

/* Tokens that are on their way are told by their row. True: there are some. */
static bool fill_sources(di_queued *q, di_work *w) {
    bool any = false;
    for (int i = 0; i < w->plan.num_rows; i++) {
        q->source[i] = fed_row(w, i);
        any = any || q->source[i] >= 0;
    }
    return any;
}

static void copy_slots(di_queued *q, const di_work *w) {
    di_backend *be = q->o.backend;
    const di_state_pool *pool = di_cache_pool(q->o.cache);
    size_t stride = pool->layout->slot_stride;
    for (int i = 0; i < w->plan.num_copies; i++) {
        const di_slot_copy *c = &w->plan.copies[i];
        be->ops->copy(be, pool->slots + (size_t)c->to * stride,
                      pool->slots + (size_t)c->from * stride, stride);
    }
}

/* Queues the draws, and with them the end of the step. */
static void draw_and_end(di_queued *q, di_work *w) {
    place *p = &q->places[w->place];
    if (!w->failed) {
        fill_draws(q, w, p);
        if (p->num_draws > 0) {
            di_draw_memory_queue(&p->draws, di_model_logits(q->o.model), p->num_draws,
                                 q->places[w->place ^ 1].draws.tokens);
        }
    }
    q->ops->end(q->o.backend, w->place);
}

/* A grammar must see a row's token before it can tell what may come behind it. */
static bool must_wait(const di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        if (guided(w, i) && fed_row(w, i) >= 0) {
            return true;
        }
    }
    return false;
}

int di_queued_place(di_queued *q) {
    q->next ^= 1;
    return q->next ^ 1;
}

bool di_queued_begin(di_queued *q, di_work *w) {
    di_backend *be = q->o.backend;
    place *p = &q->places[q->next], *other = &q->places[q->next ^ 1];
    if (!lists_fit(w, p)) {
        return false;
    }
    w->queued = w->by_card = true;
    w->place = di_queued_place(q);
    w->moved_bytes = 0;
    w->moved_seconds = 0;
    di_resolve_plain(w);
    bool fed = fill_sources(q, w);
    q->ops->begin(be, w->place);
    copy_slots(q, w);
    di_model_counts before = di_model_get_counts(q->o.model);
    w->failed = !di_model_queue(q->o.model, w->parts, w->plan.num_rows, fed ? q->source : NULL,
                                fed ? other->draws.tokens : NULL, &w->error);
    w->recorded = di_model_get_counts(q->o.model).recorded_steps > before.recorded_steps;
    if (must_wait(w)) {
        q->undrawn = w;
    } else {
        draw_and_end(q, w);
    }
    return true;
}

/* ---- results ----------------------------------------------------------------------------------*/

static void read_draw(di_work *w, int i, place *p) {
    di_row_result *r = &w->results[i];
    di_row_sampler *s = w->samplers[i];
    const di_drawn *drawn = &p->draws.drawn[i];
    r->failed = p->lost[i] || !di_draw_ok(drawn, &r->error) ||
                !di_sample_history_push(&s->history, drawn->token, &r->error) ||
                (guided(w, i) && !di_guide_push(&s->guide, drawn->token, &r->error));
    if (r->failed) {
        return;
    }
    r->num_tokens = 1;
    r->tokens[0].id = drawn->token;
    if (s->params->logprobs) {
        di_draw_memory_scores(&p->draws, &p->draws.rows[i], i, &r->tokens[0].scored);
    }
}

void di_queued_end(di_queued *q, di_work *w) {
    place *p = &q->places[w->place];
    di_error err;
    bool ok = q->ops->wait(q->o.backend, w->place, &w->begin, &w->end, &err);
    w->forward = w->begin;
    w->middle = w->sampled = w->end;
    w->num_drafted = 0;
    if (!ok && !w->failed) {
        w->failed = true;
        w->error = err;
    }
    for (int i = 0; i < w->plan.num_rows; i++) {
        w->results[i].failed = w->failed;
        w->results[i].num_tokens = w->results[i].num_drafts = 0;
        if (!w->failed && w->plan.rows[i].outputs > 0) {
            read_draw(w, i, p);
        }
    }
    w->queued = false; /* from now on its results are there to be read */
    if (q->undrawn) {
        draw_and_end(q, q->undrawn);
        q->undrawn = NULL;
    }
}
