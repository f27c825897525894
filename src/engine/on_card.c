/* See on_card.h. All draws are coupled: a token depends on logits, seed and position alone, so
 * drafts stand when they are the token that is drawn anyway (sample/row.h). */
#include "engine/on_card.h"

#include "base/alloc.h"
#include "engine/draft_round.h"
#include "model/queue.h"

enum { MAX_MASKS = 256 };

struct di_on_card {
    di_device_options o;
    di_draw_memory draws;
    di_draft_round
        round; /* of drafts, in the same memory: draws of tokens have been read by then */
    int *first, *outputs; /* [max_num_seqs] of each row of the work: its draws */
};

di_on_card *di_on_card_create(const di_device_options *o, di_error *err) {
    size_t n = (size_t)o->max_num_seqs;
    int draws = o->max_num_seqs * (1 + o->num_drafts);
    di_on_card *c = di_calloc(1, sizeof *c);
    bool ok = c != NULL;
    if (ok) {
        c->o = *o;
        c->first = di_calloc(n, sizeof *c->first);
        c->outputs = di_calloc(n, sizeof *c->outputs);
        ok = c->first && c->outputs &&
             di_draw_memory_create(&c->draws, o->backend, o->vocab_size, draws,
                                   draws < MAX_MASKS ? draws : MAX_MASKS, o->max_logprobs, err);
    }
    if (!ok) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d draws on the card", draws);
    }
    if (!ok || !di_draft_round_create(&c->round, o->model, &c->draws, o->num_drafts, err)) {
        di_on_card_destroy(c);
        return NULL;
    }
    return c;
}

void di_on_card_destroy(di_on_card *c) {
    if (c) {
        di_draft_round_destroy(&c->round);
        di_draw_memory_destroy(&c->draws);
        di_free(c->first);
        di_free(c->outputs);
        di_free(c);
    }
}

/* ---- tokens -----------------------------------------------------------------------------------*/

static bool is_for_host(const di_work *w, int i) {
    const di_model_rows *part = &w->parts[i];
    const di_row_sampler *s = w->samplers[i];
    return s->params->num_bad_words > 0 || part->num_logits > w->outputs[i] ||
           (s->prompt && part->pos0 < w->plan.rows[i].job->num_prompt) ||
           (s->history.counting && w->outputs[i] > 1);
}

/* Output k of row i as draw n. */
static bool fill_output(di_on_card *c, di_work *w, int i, int k, int n) {
    di_row_sampler *s = w->samplers[i];
    int64_t position = di_work_anchor(w, i) + 1 + k;
    di_error ignored; /* the host meets it again */
    di_sample_input in = {
        .history = &s->history,
        .seed = s->seed,
        .position = (uint64_t)position,
        .num_output = position - w->plan.rows[i].job->num_prompt,
    };
    if ((s->guide.constraint && !di_guide_mask(&s->guide, k, &in.grammar_mask, &ignored)) ||
        !di_draw_fill(s->params, &in, -1, &c->draws.lists, &c->draws.rows[n])) {
        return false;
    }
    c->draws.rows[n].logits = w->first_logits[i] + w->parts[i].num_logits - w->outputs[i] + k;
    return true;
}

/* Row i's outputs as draws from n on; how many. A grammar's masks end behind a draft that it does
 * not allow, and so do outputs that can be needed. */
static int fill_row(di_on_card *c, di_work *w, int i, int n) {
    const di_guide *g = &w->samplers[i]->guide;
    int count = 0;
    if (is_for_host(w, i)) {
        return 0;
    }
    for (; count < w->outputs[i]; count++) {
        if (g->constraint && count > 0 && count >= g->num_ready) {
            break;
        }
        if (!fill_output(c, w, i, count, n + count)) {
            return 0;
        }
    }
    return count;
}

/* Draws of all rows, by row of the work. */
static int fill_draws(di_on_card *c, di_work *w) {
    int n = 0;
    c->draws.lists.num_pairs = c->draws.lists.num_masks = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        c->first[i] = n;
        c->outputs[i] = w->outputs[i] > 0 ? fill_row(c, w, i, n) : 0;
        n += c->outputs[i];
    }
    return n;
}

static void fetch_logits(di_on_card *c, const di_work *w, float *logits) {
    di_backend *be = c->o.backend;
    const float *there = di_model_logits(c->o.model);
    size_t vocab = (size_t)c->o.vocab_size;
    for (int i = 0; i < w->plan.num_rows; i++) {
        size_t first = (size_t)w->first_logits[i] * vocab;
        if (c->outputs[i] == 0 && w->parts[i].num_logits > 0) {
            be->ops->download(be, logits + first, there + first,
                              (size_t)w->parts[i].num_logits * vocab * sizeof *logits);
        }
    }
}

bool di_on_card_step(di_on_card *c, di_work *w, int place, di_masks *masks, float *logits,
                     double *seconds, di_error *err) {
    di_backend *be = c->o.backend;
    const di_queue_ops *ops = be->ops->queue;
    double begin, end;
    di_model_counts before = di_model_get_counts(c->o.model);
    di_masks_begin(masks, w);
    ops->begin(be, place);
    bool ok = di_model_queue(c->o.model, w->parts, w->plan.num_rows, NULL, NULL, err);
    w->recorded = di_model_get_counts(c->o.model).recorded_steps > before.recorded_steps;
    di_masks_wait(masks);
    int n = ok ? fill_draws(c, w) : 0;
    if (n > 0) {
        di_draw_memory_queue(&c->draws, di_model_logits(c->o.model), n, NULL);
    }
    ops->end(be, place);
    ok = ops->wait(be, place, &begin, &end, ok ? err : NULL) && ok;
    *seconds = end - begin;
    if (ok) {
        fetch_logits(c, w, logits);
    }
    return ok && be->ops->sync(be, err);
}

int di_on_card_outputs(const di_on_card *c, int i) {
    return c->outputs[i];
}

bool di_on_card_token(di_on_card *c, const di_work *w, int i, int k, di_row_token *to,
                      di_error *err) {
    int n = c->first[i] + k;
    if (!di_draw_ok(&c->draws.drawn[n], err)) {
        return false;
    }
    to->id = c->draws.drawn[n].token;
    if (w->samplers[i]->params->logprobs) {
        di_draw_memory_scores(&c->draws, &c->draws.rows[n], n, &to->scored);
    }
    return true;
}

/* ---- drafts -----------------------------------------------------------------------------------*/

bool di_on_card_can_propose(const di_row_sampler *s) {
    return s->params->num_bad_words == 0;
}

/* The draw of draft 0. What a grammar allows behind it is for the host to find out, so that later
 * drafts are drawn without one; masks are the draft's to follow or not. */
static bool fill_first(di_on_card *c, di_row_sampler *s, di_sample_input *in, di_draw *d) {
    di_error ignored;
    bool guided = s->guide.constraint != NULL;
    return (!guided || di_guide_mask(&s->guide, 0, &in->grammar_mask, &ignored)) &&
           di_draw_fill(s->params, in, -1, &c->draws.lists, d);
}

/* The draws of a row's drafts: as their tokens will be. Returns how many there are lists for. */
static int fill_drafts(di_on_card *c, const di_work *w, int row, const di_draft_rows *part, int i) {
    di_row_sampler *s = w->samplers[row];
    int length = 0;
    for (int j = 0; j < c->o.num_drafts; j++) {
        di_draw *d = di_draft_round_draw(&c->round, i, j);
        int64_t position = part->pos0 + 1 + j;
        di_sample_input in = {
            .history = &s->history,
            .seed = s->seed,
            .position = (uint64_t)position,
            .num_output = position - w->plan.rows[row].job->num_prompt,
        };
        if (j > 0) {
            *d = *di_draft_round_draw(&c->round, i, j - 1);
        }
        bool ok = length == j && (j == 0 ? fill_first(c, s, &in, d)
                                         : di_draw_move(s->params, &in, &c->draws.lists, d));
        if (!ok) { /* any token will do */
            *d = (di_draw){.forced = 0, .mask = -1, .floor = 1};
        }
        d->logprobs = false;
        d->num_top = 0;
        length += ok;
    }
    return length;
}

bool di_on_card_propose(di_on_card *c, di_work *w, const int *rows, const di_draft_rows *parts,
                        int count, int32_t *tokens, float *confidence, int *lengths,
                        di_error *err) {
    di_draft_round_begin(&c->round, count);
    for (int i = 0; i < count; i++) {
        lengths[i] = fill_drafts(c, w, rows[i], &parts[i], i);
    }
    di_model_counts before = di_model_get_counts(c->o.model);
    if (!di_draft_round_run(&c->round, parts, count, confidence, err)) {
        return false;
    }
    w->round_recorded = di_model_get_counts(c->o.model).recorded_rounds > before.recorded_rounds;
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < c->o.num_drafts; j++) {
            const di_drawn *drawn = di_draft_round_drawn(&c->round, i, j);
            tokens[i * c->o.block_size + j] = drawn->token;
            if (drawn->status != DI_DRAW_OK && j < lengths[i]) {
                lengths[i] = j;
            }
        }
    }
    return true;
}
