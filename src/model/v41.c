/* The V4.1 graph, written once over ops.h: embed, layers, head. It knows nothing of devices, ranks
 * or schedulers; layers differ by the plan in di_config, not by code. */
#include <string.h>

#include "model/graph.h"

static void observe(di_model *m, const char *name, int layer, void *data, size_t bytes) {
    if (m->observer) {
        m->observer(m->observer_user, name, layer, data, bytes);
    }
}

/* ---- branches ---------------------------------------------------------------------------------
 *
 * In a recorded step some ops run beside the main line: what makes keys and chooses entries beside
 * the queries, and the mixes of the streams, which are needed only where a sub-block ends. */

enum { KEYS, MIXES }; /* branches */

static void fork_to(di_model *m, int branch) {
    if (m->branches) {
        m->queue->fork(m->be, branch);
    }
}

static void back(di_model *m) {
    if (m->branches) {
        m->queue->back(m->be);
    }
}

static void join(di_model *m, int branch) {
    if (m->branches) {
        m->queue->join(m->be, branch);
    }
}

/* ---- what depends on positions ----------------------------------------------------------------*/

/* Entries that close within this pass: every group whose last token is one of its rows. */
static int closing_entries(const di_pass *pass, int ratio, di_entry *out) {
    int count = 0;
    for (int i = 0; i < pass->step.num_seqs; i++) {
        const di_seq_rows *s = &pass->step.seqs[i];
        for (int64_t e = s->pos0 / ratio; e < (s->pos0 + s->num_rows) / ratio; e++) {
            out[count++] = (di_entry){i, e};
        }
    }
    return count;
}

void di_graph_fill(di_pass *pass) {
    for (int ratio = 1; ratio <= 2; ratio++) {
        pass->num_entries[ratio] = closing_entries(pass, ratio, pass->entries[ratio]);
        for (int i = 0; i < pass->num_entries[ratio]; i++) {
            pass->entry_positions[ratio][i] = pass->entries[ratio][i].entry * ratio;
        }
    }
}

void di_graph_begin(di_model *m, di_pass *pass) {
    const di_ops *ops = m->be->ops;
    int n = pass->step.num_rows;
    if (m->queue) {
        m->queue->step_send(m->be, &pass->step);
    }
    for (int kind = 0; kind < 2; kind++) {
        ops->rope_table(m->be, pass->positions, n, m->in->freq[kind], m->a.rope[kind]);
    }
    for (int ratio = 1; ratio <= 2; ratio++) {
        ops->rope_table(m->be, pass->entry_positions[ratio], pass->num_entries[ratio],
                        m->in->freq[1], m->a.entry_rope[ratio]);
    }
}

/* ---- attention --------------------------------------------------------------------------------*/

/* A FULL layer's new compressed entries and index keys, from the attention input x. The index key
 * comes from the latent before its rotation. */
static void publish(di_model *m, const di_pass *pass, int l) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    const di_layer_weights *w = &m->w->layers[l];
    di_activations *a = &m->a;
    int n = pass->step.num_rows, ratio = c->layers[l].ratio, count = pass->num_entries[ratio];
    di_rope_table rope = a->entry_rope[ratio];

    ops->linear_f32(m->be, a->x, n, &w->compressor.wkv, a->group_k);
    if (ratio > 1) {
        ops->linear_f32(m->be, a->x, n, &w->compressor.wgate, a->group_g);
    }
    ops->compress(m->be, &pass->step, l, ratio, a->group_k, ratio > 1 ? a->group_g : NULL,
                  pass->entries[ratio], count, c->head_dim, a->latent);
    ops->rms_norm(m->be, a->latent, &w->compressor.norm, c->rms_norm_eps, count, c->head_dim,
                  a->latent, NULL);
    ops->linear(m->be, a->latent, DI_PLAIN, count, &w->indexer.wk, a->key);
    ops->rms_norm(m->be, a->key, &w->indexer.k_norm, c->rms_norm_eps, count, c->index_head_dim,
                  a->key, NULL);
    ops->rope(m->be, a->key, count, 1, c->index_head_dim, rope, false);
    ops->rope(m->be, a->latent, count, 1, c->head_dim, rope, false);
    ops->entry_store(m->be, &pass->step, l, ratio, pass->entries[ratio], count, a->latent,
                     c->head_dim, a->key, c->index_head_dim);
    observe(m, "latents", l, a->latent, (size_t)count * (size_t)c->head_dim * sizeof(di_bf16));
}

/* An index source's choice of entries for every row, from its own qr and x. */
static void choose_entries(di_model *m, const di_pass *pass, int l) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    const di_layer_plan *plan = &c->layers[l];
    const di_indexer_weights *w = &m->w->layers[l].indexer;
    di_activations *a = &m->a;
    int n = pass->step.num_rows;
    bool candidates = plan->builds_candidates || plan->uses_candidates;

    ops->linear(m->be, a->qr, DI_Q8, n, &w->wq_b, a->index_q);
    ops->rope(m->be, a->index_q, n, c->index_n_heads, c->index_head_dim, a->rope[1], false);
    ops->linear(m->be, a->x, DI_PLAIN, n, &w->weights_proj, a->index_weight);
    ops->index_topk(m->be, &pass->step, plan->kv_source, plan->ratio, a->index_q, a->index_weight,
                    c->index_n_heads, c->index_head_dim, c->index_topk,
                    candidates ? a->candidates : NULL, plan->builds_candidates,
                    c->candidate_topk_blocks, c->candidate_block_size, a->topk);
    size_t rows = (size_t)n * sizeof(int32_t);
    if (plan->builds_candidates) {
        observe(m, "candidates", l, a->candidates, rows * (size_t)c->candidate_topk_blocks);
    }
    observe(m, "topk", l, a->topk, rows * (size_t)c->index_topk);
}

/* x8 -> kv, what window keys are made of, and qr, what queries are. */
static void project(di_model *m, const di_pass *pass, const di_attention_weights *w) {
    di_activations *a = &m->a;
    m->be->ops->linear_pair(m->be, a->x8, DI_Q8, pass->step.num_rows, &w->wkv, a->kv, &w->wq_a,
                            a->qr);
}

/* kv -> the rows' own window records. */
static void make_keys(di_model *m, const di_pass *pass, const di_attention_weights *w,
                      di_rope_table rope) {
    const di_config *c = m->c;
    di_activations *a = &m->a;
    m->be->ops->window_make(m->be, a->kv, pass->step.num_rows, c->head_dim, &w->kv_norm,
                            c->rms_norm_eps, rope, a->records);
}

/* Tells what attention of layer l will read: its window's keys, or the chosen entries. */
static void announce_keys(di_model *m, const di_pass *pass, int l, bool entries) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    const di_layer_plan *plan = &c->layers[l];
    if (ops->attention_keys) {
        ops->attention_keys(m->be, &pass->step, l, c->sliding_window, plan->kv_source, plan->ratio,
                            c->num_attention_heads, c->head_dim, entries ? NULL : m->a.records,
                            entries ? m->a.topk : NULL,
                            plan->mode != DI_LAYER_SWA ? c->index_topk : 0);
    }
}

/* The norm of qr, which only products read. */
static void norm_queries(di_model *m, const di_pass *pass, const di_attention_weights *w) {
    const di_config *c = m->c;
    di_activations *a = &m->a;
    m->be->ops->rms_norm(m->be, a->qr, &w->q_norm, c->rms_norm_eps, pass->step.num_rows,
                         c->q_lora_rank, NULL, a->qr);
}

/* qr -> q. */
static void make_queries(di_model *m, const di_pass *pass, const di_attention_weights *w) {
    m->be->ops->linear(m->be, m->a.qr, DI_Q8, pass->step.num_rows, &w->wq_b, m->a.q);
}

/* o -> y: the grouped projection. Branches are joined inside, so that neither its first product nor
 * the end of the sub-block has to wait for one. */
static void project_output(di_model *m, const di_pass *pass, const di_attention_weights *w) {
    const di_ops *ops = m->be->ops;
    di_activations *a = &m->a;
    int n = pass->step.num_rows;
    ops->linear_grouped(m->be, a->o, n, m->c->o_groups, &w->wo_a, a->u, DI_Q8);
    join(m, KEYS);
    join(m, MIXES);
    ops->linear(m->be, a->u, DI_Q8, n, &w->wo_b, a->y);
}

/* The mixes of the streams, on their branch. */
static void mix(di_model *m, const di_pass *pass, const di_hc_weights *w) {
    const di_config *c = m->c;
    di_activations *a = &m->a;
    fork_to(m, MIXES);
    m->be->ops->mhc_mix(m->be, a->h, pass->step.num_rows, c->hc_mult, c->hidden_size, &w->fn,
                        &w->base, &w->scale, c->rms_norm_eps, c->hc_eps, c->hc_sinkhorn_iters,
                        a->next_pre, a->post, a->comb);
    back(m);
}

/* x, x8 -> y. `published`: this layer's entries were stored by an earlier pass. */
static void attention(di_model *m, const di_pass *pass, int l, bool published) {
    const di_config *c = m->c;
    const di_layer_plan *plan = &c->layers[l];
    const di_attention_weights *w = &m->w->layers[l].block.attn;
    di_activations *a = &m->a;
    di_rope_table rope = a->rope[plan->ratio > 0];
    bool compressed = plan->mode != DI_LAYER_SWA;

    project(m, pass, w);
    fork_to(m, KEYS);
    make_keys(m, pass, w, rope);
    announce_keys(m, pass, l, false);
    if (plan->mode == DI_LAYER_FULL && !published) {
        publish(m, pass, l);
    }
    back(m);
    norm_queries(m, pass, w);
    if (plan->index_source == l) {
        fork_to(m, KEYS);
        choose_entries(m, pass, l);
        announce_keys(m, pass, l, true);
        back(m);
    }
    make_queries(m, pass, w);
    mix(m, pass, &m->w->layers[l].block.hc_attn);
    join(m, KEYS);
    m->be->ops->attention(m->be, &pass->step, l, c->sliding_window, plan->kv_source, plan->ratio,
                          a->q, c->num_attention_heads, c->head_dim, rope, a->records,
                          compressed ? a->topk : NULL, compressed ? c->index_topk : 0,
                          &w->attn_sink, a->o);
    fork_to(m, KEYS);
    m->be->ops->window_store(m->be, &pass->step, l, a->records);
    back(m);
    project_output(m, pass, w);
}

/* A draft stage's attention, x8 -> y: its rows see the ring in front of them and each other. */
static void draft_attention(di_model *m, const di_pass *pass, int stage) {
    const di_config *c = m->c;
    const di_attention_weights *w = &m->w->draft[stage].block.attn;
    di_activations *a = &m->a;
    project(m, pass, w);
    make_keys(m, pass, w, a->rope[0]);
    norm_queries(m, pass, w);
    make_queries(m, pass, w);
    m->be->ops->attention(m->be, &pass->step, c->num_hidden_layers + stage, c->sliding_window, -1,
                          0, a->q, c->num_attention_heads, c->head_dim, a->rope[0], a->records,
                          NULL, 0, &w->attn_sink, a->o);
    project_output(m, pass, w);
}

/* ---- experts ----------------------------------------------------------------------------------*/

/* x -> y; `image`: rows of image spans choose by the other bias. */
static void experts(di_model *m, const di_pass *pass, const di_moe_weights *w, int top,
                    const uint8_t *image, int l) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    di_activations *a = &m->a;
    int n = pass->step.num_rows;
    ops->route(m->be, a->x, n, &w->gate, &w->bias, &w->bias_vl, image, c->gate_temp, top,
               c->norm_topk_prob, c->routed_scaling_factor, a->experts, a->expert_weight);
    observe(m, "experts", l, a->experts, (size_t)n * (size_t)top * sizeof *a->experts);
    observe(m, "weights", l, a->expert_weight, (size_t)n * (size_t)top * sizeof *a->expert_weight);
    join(m, MIXES); /* long done: the end of the sub-block need not wait for another branch */
    ops->moe(m->be, a->x, n, a->experts, a->expert_weight, top, w->experts, w->num_experts,
             &w->shared, c->swiglu_limit, a->y);
}

/* ---- layers -----------------------------------------------------------------------------------*/

/* What enters attention: collapse with the mix of the sub-block before, and norm. */
static void collapse(di_model *m, const di_pass *pass, const float *pre, const di_tensor *norm) {
    const di_config *c = m->c;
    di_activations *a = &m->a;
    int n = pass->step.num_rows;
    m->be->ops->mhc_pre(m->be, a->h, pre, n, c->hc_mult, c->hidden_size, a->x);
    m->be->ops->rms_norm(m->be, a->x, norm, c->rms_norm_eps, n, c->hidden_size, a->x, a->x8);
}

/* Writes y back into the streams; the mix just computed serves the next sub-block, and so does what
 * enters that one, x, if its norm is given, and x8 if it is attention. */
static void expand(di_model *m, const di_pass *pass, const di_tensor *norm, bool attention) {
    const di_config *c = m->c;
    di_activations *a = &m->a;
    float *used = a->pre;
    a->pre = a->next_pre;
    a->next_pre = used;
    m->be->ops->mhc_post(m->be, a->y, a->post, a->comb, pass->step.num_rows, c->hc_mult,
                         c->hidden_size, a->h, a->pre, norm, c->rms_norm_eps, a->x,
                         attention ? a->x8 : NULL);
}

static void engram(di_model *m, const di_pass *pass, int l) {
    const di_config *c = m->c;
    const di_engram_weights *w = &m->w->layers[l].engram;
    int n = pass->step.num_rows;
    int index = c->layers[l].engram;
    size_t per_layer = (size_t)m->in->max_rows * (size_t)c->engram_columns;
    int64_t *rows = m->in->engram_rows + (size_t)index * per_layer;
    if (m->device_hash) {
        di_ngram_hash hash = di_engram_device_hash(&m->hasher, index);
        m->queue->hash_ngrams(m->be, &hash, m->in->tokens, m->in->before, DI_MODEL_LOOK_BACK,
                              pass->any_image ? pass->image : NULL, n, rows);
    } else {
        observe(m, "engram_rows", l, rows, (size_t)n * (size_t)c->engram_columns * sizeof *rows);
    }
    m->be->ops->engram(m->be, rows, n, c->engram_columns, &w->embed, &w->wkv, &w->q_weight,
                       &w->k_weight, c->hc_mult, c->hidden_size, c->rms_norm_eps, m->a.h);
    observe(m, "engram_out", l, m->a.h, di_stream_bytes(c) * (size_t)n);
}

/* What the drafts see of the target: the mean of the streams that enter a block. */
static void tap(di_model *m, const di_pass *pass, int l) {
    const di_config *c = m->c;
    for (int i = 0; m->context && i < c->num_dspark_targets; i++) {
        if (c->dspark_target_layer_ids[i] == l) {
            size_t width = (size_t)c->num_dspark_targets * (size_t)c->hidden_size;
            m->be->ops->stream_mean(m->be, m->a.h, pass->step.num_rows, c->hc_mult, c->hidden_size,
                                    m->a.taps + (size_t)i * (size_t)c->hidden_size, width);
        }
    }
}

/* Whether layer l's x is what the layer before has left: n-grams change the streams, and so may an
 * observer. */
static bool x_is_ready(const di_model *m, int l) {
    return l > 0 && l < m->c->num_hidden_layers && m->c->layers[l].engram < 0 && !m->observer;
}

/* `ready`: x has been made. */
static void layer(di_model *m, const di_pass *pass, int l, bool ready, bool published) {
    const di_config *c = m->c;
    const di_block_weights *w = &m->w->layers[l].block;
    size_t n = (size_t)pass->step.num_rows, width = (size_t)c->hidden_size * sizeof(di_bf16);
    if (c->layers[l].engram >= 0) {
        engram(m, pass, l);
    }
    tap(m, pass, l);
    if (!ready) {
        collapse(m, pass, m->a.pre, &w->attn_norm);
    }
    attention(m, pass, l, published);
    observe(m, "attn_out", l, m->a.y, n * width);
    expand(m, pass, &w->ffn_norm, false);

    mix(m, pass, &w->hc_ffn);
    experts(m, pass, &w->moe, c->num_experts_per_tok, pass->any_image ? pass->image : NULL, l);
    observe(m, "ffn_out", l, m->a.y, n * width);
    expand(m, pass, x_is_ready(m, l + 1) ? &m->w->layers[l + 1].block.attn_norm : NULL, true);
    observe(m, "h", l, m->a.h, di_stream_bytes(c) * n);
    observe(m, "pre", l, m->a.pre, n * (size_t)c->hc_mult * sizeof(float));
}

void di_graph_draft_stage(di_model *m, const di_pass *pass, int stage) {
    const di_config *c = m->c;
    const di_block_weights *w = &m->w->draft[stage].block;
    size_t n = (size_t)pass->step.num_rows;
    int l = c->num_hidden_layers + stage;
    collapse(m, pass, m->a.pre, &w->attn_norm);
    draft_attention(m, pass, stage);
    mix(m, pass, &w->hc_attn);
    expand(m, pass, &w->ffn_norm, false);

    mix(m, pass, &w->hc_ffn);
    experts(m, pass, &w->moe, c->dspark_num_experts_per_tok, NULL, l);
    expand(m, pass, NULL, false);
    observe(m, "h", l, m->a.h, di_stream_bytes(c) * n);
    observe(m, "pre", l, m->a.pre, n * (size_t)c->hc_mult * sizeof(float));
}

/* Bounded replay: every row still gives its compressed entries of the boundary layer, which need
 * the encoder's output alone; then only the kept rows go on. */
static void cut_to_kept(di_model *m, di_pass *all, di_pass *kept) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    di_activations *a = &m->a;
    int l = c->boundary_layer, n = kept->step.num_rows;
    collapse(m, all, a->pre, &m->w->layers[l].block.attn_norm);
    publish(m, all, l);
    ops->gather_rows(m->be, a->h, kept->rows, n, di_stream_bytes(c), a->h_kept);
    ops->gather_rows(m->be, a->pre, kept->rows, n, (size_t)c->hc_mult * sizeof(float), a->pre_kept);
    di_bf16 *h = a->h;
    float *pre = a->pre;
    a->h = a->h_kept;
    a->pre = a->pre_kept;
    a->h_kept = h;
    a->pre_kept = pre;
    di_graph_begin(m, kept);
}

/* The context keys of these rows into every draft stage's ring. */
static void draft_context(di_model *m, const di_pass *pass) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    const di_draft_weights *first = &m->w->draft[0];
    di_activations *a = &m->a;
    int n = pass->step.num_rows;
    observe(m, "taps", c->num_hidden_layers, a->taps,
            (size_t)n * (size_t)c->num_dspark_targets * (size_t)c->hidden_size * sizeof(di_bf16));
    ops->linear(m->be, a->taps, DI_PLAIN, n, &first->main_proj, a->main_x);
    ops->rms_norm(m->be, a->main_x, &first->main_norm, c->rms_norm_eps, n, c->hidden_size, NULL,
                  a->main_x);
    for (int s = 0; s < c->num_nextn_predict_layers; s++) {
        const di_attention_weights *w = &m->w->draft[s].block.attn;
        ops->linear(m->be, a->main_x, DI_Q8, n, &w->wkv, a->kv);
        make_keys(m, pass, w, a->rope[0]);
        ops->window_store(m->be, &pass->step, c->num_hidden_layers + s, a->records);
    }
}

void di_graph_run(di_model *m, bool replay) {
    const di_config *c = m->c;
    di_pass *pass = &m->in->all, *kept = &m->in->kept;
    int n = pass->step.num_rows;
    m->be->ops->embed(m->be, m->in->tokens, n, &m->w->embed, c->hc_mult, m->a.h, m->a.pre);
    di_graph_begin(m, pass);
    for (int l = 0; l < c->num_hidden_layers; l++) {
        bool boundary = replay && l == c->boundary_layer;
        if (boundary && kept->step.num_rows < n) {
            cut_to_kept(m, pass, kept);
            pass = kept;
        } else if (boundary) {
            pass = kept; /* the same rows, with windows that start where replay does */
            di_graph_begin(m, pass);
        }
        if (pass->step.num_rows == 0) {
            return;
        }
        bool cut = pass == kept && l == c->boundary_layer && pass->step.num_rows < n;
        layer(m, pass, l, x_is_ready(m, l) && !cut, cut);
    }
    if (m->context) {
        draft_context(m, pass);
    }
}

/* ---- head -------------------------------------------------------------------------------------*/

void di_graph_head(di_model *m, int n) {
    const di_ops *ops = m->be->ops;
    const di_config *c = m->c;
    di_activations *a = &m->a;
    ops->gather_rows(m->be, a->h, m->in->logit_rows, n, di_stream_bytes(c), a->h_kept);
    ops->gather_rows(m->be, a->pre, m->in->logit_rows, n, (size_t)c->hc_mult * sizeof(float),
                     a->pre_kept);
    ops->mhc_pre(m->be, a->h_kept, a->pre_kept, n, c->hc_mult, c->hidden_size, a->x);
    ops->rms_norm(m->be, a->x, &m->w->norm, c->rms_norm_eps, n, c->hidden_size, a->x, NULL);
    ops->linear_f32(m->be, a->x, n, &m->w->head, a->logits);
}
