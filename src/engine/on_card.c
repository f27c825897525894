/* See on_card.h. All draws are coupled: a token depends on logits, seed and position alone, so
 * drafts stand when they are the token that is drawn anyway (sample/row.h). */
#include "engine/on_card.h"

#include "base/alloc.h"
#include "engine/draw_memory.h"
#include "model/queue.h"

enum { MAX_MASKS = 256 };

struct di_on_card {
    di_device_options o;
    di_draw_memory draws;
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
        di_on_card_destroy(c);
        return NULL;
    }
    return c;
}

void di_on_card_destroy(di_on_card *c) {
    if (c) {
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

bool di_on_card_draw(di_on_card *c, di_work *w, float *logits, di_error *err) {
    di_backend *be = c->o.backend;
    const float *there = di_model_logits(c->o.model);
    size_t vocab = (size_t)c->o.vocab_size;
    int n = 0;
    c->draws.lists.num_pairs = c->draws.lists.num_masks = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        c->first[i] = n;
        c->outputs[i] = w->outputs[i] > 0 ? fill_row(c, w, i, n) : 0;
        n += c->outputs[i];
    }
    if (n > 0) {
        di_draw_memory_queue(&c->draws, there, n, 0, NULL);
    }
    for (int i = 0; i < w->plan.num_rows; i++) {
        size_t first = (size_t)w->first_logits[i] * vocab;
        if (c->outputs[i] == 0 && w->parts[i].num_logits > 0) {
            be->ops->download(be, logits + first, there + first,
                              (size_t)w->parts[i].num_logits * vocab * sizeof *logits);
        }
    }
    return be->ops->sync(be, err);
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
    return !s->guide.constraint && s->params->num_bad_words == 0;
}

typedef struct proposal {
    di_on_card *c;
    const di_work *w;
    const int *rows;
    const di_draft_rows *parts;
    int count;
    int *lengths;
} proposal;

/* Column j of a round: the draft is drawn as its token will be. Whose lists find no room gets any
 * token, and no more drafts. */
static void draw_column(void *user, int j) {
    proposal *p = user;
    di_draw_memory *m = &p->c->draws;
    m->lists.num_pairs = m->lists.num_masks = 0;
    for (int i = 0; i < p->count; i++) {
        const di_row_sampler *s = p->w->samplers[p->rows[i]];
        int64_t position = p->parts[i].pos0 + 1 + j;
        di_sample_input in = {
            .history = &s->history,
            .seed = s->seed,
            .position = (uint64_t)position,
            .num_output = position - p->w->plan.rows[p->rows[i]].job->num_prompt,
        };
        if (!di_draw_fill(s->params, &in, -1, &m->lists, &m->rows[i])) {
            m->rows[i] = (di_draw){.forced = 0, .mask = -1, .floor = 1};
            p->lengths[i] = p->lengths[i] < j ? p->lengths[i] : j;
        }
        m->rows[i].logprobs = false;
        m->rows[i].num_top = 0;
        m->rows[i].logits = i * p->c->o.block_size + j;
    }
    di_draw_memory_queue(m, di_model_logits(p->c->o.model), p->count, j * p->count, NULL);
}

bool di_on_card_propose(di_on_card *c, const di_work *w, const int *rows,
                        const di_draft_rows *parts, int count, int32_t *tokens, float *confidence,
                        int *lengths, di_error *err) {
    proposal p = {c, w, rows, parts, count, lengths};
    int columns = c->o.num_drafts;
    for (int i = 0; i < count; i++) {
        lengths[i] = columns;
    }
    if (!di_model_draft_queued(c->o.model, parts, count, columns, draw_column, &p, c->draws.tokens,
                               confidence, err)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < columns; j++) {
            const di_drawn *drawn = &c->draws.drawn[j * count + i];
            tokens[i * c->o.block_size + j] = drawn->token;
            if (drawn->status != DI_DRAW_OK && j < lengths[i]) {
                lengths[i] = j;
            }
        }
    }
    return true;
}
