/* DSpark's draft model: see draft.h. The stages and the context that they see are part of the graph
 * (v41.c); here are the rows of a round and the sequential head. */
#include "model/draft.h"

#include <string.h>

#include "model/graph.h"

/* ---- the round --------------------------------------------------------------------------------*/

bool di_draft_check(const di_model *m, const di_draft_rows *parts, int n, di_error *err) {
    const di_config *c = m->c;
    if (!m->o.drafts) {
        return di_fail(err, DI_ERR_ARGUMENT, "the model was made without drafts");
    }
    if (n < 1 || n > di_draft_seqs(c, &m->o)) {
        return di_fail(err, DI_ERR_ARGUMENT, "drafts for %d sequences, allowed are 1 to %d", n,
                       di_draft_seqs(c, &m->o));
    }
    for (int i = 0; i < n; i++) {
        if (parts[i].anchor < 0 || parts[i].anchor >= c->vocab_size || parts[i].pos0 < 1 ||
            parts[i].slot < 1) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "draft of sequence %d: token %d at position %lld in slot %d", i,
                           parts[i].anchor, (long long)parts[i].pos0, parts[i].slot);
        }
    }
    return true;
}

/* Row i of the round: [x0, noise, ...] of a sequence. */
static void fill_sequence(di_model *m, const di_draft_rows *p, int i) {
    di_pass *pass = &m->in->all;
    int size = m->c->dspark_block_size;
    pass->seqs[i] = (di_seq_rows){
        .row0 = i * size,
        .num_rows = size,
        .pos0 = p->pos0,
        .slot = p->slot,
        .window_start = p->context_from,
        .draft = true,
    };
    for (int j = 0; j < size; j++) {
        m->in->tokens[i * size + j] = j ? m->c->dspark_noise_token_id : p->anchor;
        pass->positions[i * size + j] = p->pos0 + j;
    }
    m->in->draft_before[i] = p->anchor;
}

void di_draft_fill(di_model *m, const di_draft_rows *parts, int n, int filled) {
    static const di_draft_rows nobody = {.pos0 = 1};
    di_pass *pass = &m->in->all;
    int size = m->c->dspark_block_size;
    pass->step = (di_step){.seqs = pass->seqs,
                           .num_seqs = filled,
                           .num_rows = filled * size,
                           .pool = *di_cache_pool(m->cache)};
    pass->any_image = false;
    for (int i = 0; i < filled; i++) {
        fill_sequence(m, i < n ? &parts[i] : &nobody, i);
    }
    for (int k = 0; k < filled * size; k++) { /* column by column */
        m->in->logit_rows[k] = k % filled * size + k / filled;
    }
}

/* Hidden rows g before the norm, and every row's logits before the correction. */
static void head(di_model *m, int n) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    const di_draft_weights *last = &m->w->draft[c->num_nextn_predict_layers - 1];
    di_activations *a = &m->a;
    ops->mhc_pre(m->be, a->h, a->pre, n, c->hc_mult, c->hidden_size, a->g);
    ops->rms_norm(m->be, a->g, &last->norm, c->rms_norm_eps, n, c->hidden_size, a->x, NULL);
    ops->linear_f32(m->be, a->x, n, &m->w->head, a->logits);
}

/* Part of a one-row matrix, which on a device is a weight of its own: columns begin .. begin +
 * count. */
static di_tensor columns(const di_tensor *w, int64_t begin, int64_t count) {
    di_tensor part = *w;
    part.shape[1] = count;
    part.data = (const di_bf16 *)w->data + begin;
    return part;
}

void di_draft_confidence_parts(const di_config *c, const di_tensor *proj, di_tensor *by_hidden,
                               di_tensor *by_token) {
    *by_hidden = columns(proj, 0, c->hidden_size);
    *by_token = columns(proj, c->hidden_size, c->dspark_markov_rank);
}

/* Confidences of column j. */
static float *confidences(const di_model *m, int j) {
    size_t stride = di_draft_stride(m->c, &m->o);
    return m->a.confidence + (size_t)j * stride;
}

/* The confidence sees the token before too, but not the one to be drawn. */
void di_draft_correct(di_model *m, int n, int j, const int32_t *before) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    const di_draft_weights *last = &m->w->draft[c->num_nextn_predict_layers - 1];
    di_activations *a = &m->a;
    int size = c->dspark_block_size;
    size_t vocab = (size_t)c->vocab_size;
    di_tensor by_hidden, by_token;
    di_draft_confidence_parts(c, &last->confidence_proj, &by_hidden, &by_token);
    ops->embed(m->be, before, n, &last->markov_embed, 1, a->markov, a->markov_pre);
    ops->linear_add_f32(m->be, a->markov, n, &last->markov_head, a->logits + (size_t)j * vocab,
                        (size_t)size * vocab);
    ops->gather_rows(m->be, a->g, m->in->logit_rows + (size_t)j * (size_t)n, n,
                     (size_t)c->hidden_size * sizeof(di_bf16), a->x);
    ops->linear_f32(m->be, a->x, n, &by_hidden, confidences(m, j));
    ops->linear_add_f32(m->be, a->markov, n, &by_token, confidences(m, j), 1);
}

/* Draws column j of tokens and fills column j of confidence. */
static bool draw_column(di_model *m, int n, int j, di_draft_fn draw, void *user, int32_t *tokens,
                        float *confidence, di_error *err) {
    int size = m->c->dspark_block_size;
    size_t vocab = (size_t)m->c->vocab_size;
    m->be->ops->download(m->be, m->draft_confidence, confidences(m, j), (size_t)n * sizeof(float));
    for (int i = 0; i < n; i++) {
        m->be->ops->download(m->be, m->draft_logits, m->a.logits + (size_t)(i * size + j) * vocab,
                             vocab * sizeof(float));
        if (!m->be->ops->sync(m->be, err)) {
            return false;
        }
        int32_t token = draw(user, i, j, m->draft_logits);
        tokens[i * size + j] = token < 0 ? m->c->dspark_noise_token_id : token;
        confidence[i * size + j] = m->draft_confidence[i];
    }
    return true;
}

void di_draft_stages(di_model *m) {
    const di_config *c = m->c;
    di_pass *pass = &m->in->all;
    if (m->queue) {
        m->queue->step_send(m->be, &pass->step);
    }
    m->be->ops->embed(m->be, m->in->tokens, pass->step.num_rows, &m->w->embed, c->hc_mult, m->a.h,
                      m->a.pre);
    m->be->ops->rope_table(m->be, pass->positions, pass->step.num_rows, m->in->freq[0],
                           m->a.rope[0]);
    for (int s = 0; s < c->num_nextn_predict_layers; s++) {
        di_graph_draft_stage(m, pass, s);
    }
    head(m, pass->step.num_rows);
}

int di_model_draft_seqs(const di_model *m) {
    return m->o.drafts ? di_draft_seqs(m->c, &m->o) : 0;
}

int di_model_draft_size(const di_model *m) {
    return m->c->dspark_block_size;
}

bool di_model_draft(di_model *m, const di_draft_rows *parts, int n, di_draft_fn draw, void *user,
                    int32_t *tokens, float *confidence, di_error *err) {
    int size = m->c->dspark_block_size;
    if (!di_draft_check(m, parts, n, err)) {
        return false;
    }
    m->in = &m->any;
    di_draft_fill(m, parts, n, n);
    di_inputs_send(m, m->in->memory, m->in->bytes);
    di_draft_stages(m);
    int32_t *before = m->in->draft_before;
    for (int j = 0; j < size; j++) {
        for (int i = 0; i < n && j > 0; i++) {
            before[i] = tokens[i * size + j - 1];
        }
        if (j > 0) {
            di_inputs_send(m, before, (size_t)n * sizeof *before);
        }
        di_draft_correct(m, n, j, before);
        if (!draw_column(m, n, j, draw, user, tokens, confidence, err)) {
            return false;
        }
    }
    return true;
}
