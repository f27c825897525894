/* The model's memory and its call: checks, the ragged batch, and what the graph leaves behind. The
 * graph itself is v41.c. */
#include "model/model.h"

#include <string.h>

#include "base/alloc.h"
#include "model/graph.h"

/* ---- memory -----------------------------------------------------------------------------------*/

enum { ALIGNMENT = 256 };

/* Rows of an activation. */
static void *place(char *base, size_t *end, size_t rows, size_t row_bytes) {
    return di_place(base, end, rows, row_bytes, ALIGNMENT);
}

static di_rope_table place_rope(char *base, size_t *end, size_t rows, int half) {
    di_rope_table table = {.half = half};
    table.cos = place(base, end, rows, (size_t)half * sizeof(float));
    table.sin = place(base, end, rows, (size_t)half * sizeof(float));
    return table;
}

static size_t at_least(int64_t value, int64_t low) {
    return (size_t)(value > low ? value : low);
}

/* Lays the activations out from base; returns how many bytes they take. */
static size_t lay_out(const di_config *c, const di_model_options *o, char *base,
                      di_activations *a) {
    size_t n = (size_t)o->max_rows, logits = (size_t)o->max_logits, end = 0;
    size_t kept = at_least(o->max_rows, o->max_logits); /* the head gathers into these */
    size_t hc = (size_t)c->hc_mult, d = (size_t)c->hidden_size, hd = (size_t)c->head_dim;
    size_t heads = (size_t)c->num_attention_heads, index_heads = (size_t)c->index_n_heads;
    size_t u = (size_t)c->o_groups * (size_t)c->o_lora_rank;
    size_t top = at_least(c->num_experts_per_tok, c->dspark_num_experts_per_tok);
    a->h = place(base, &end, kept, di_stream_bytes(c));
    a->h_kept = place(base, &end, kept, di_stream_bytes(c));
    a->pre = place(base, &end, kept, hc * sizeof(float));
    a->pre_kept = place(base, &end, kept, hc * sizeof(float));
    a->next_pre = place(base, &end, kept, hc * sizeof(float));
    a->post = place(base, &end, n, hc * sizeof(float));
    a->comb = place(base, &end, n, hc * hc * sizeof(float));
    a->x = place(base, &end, kept, d * sizeof(di_bf16));
    a->y = place(base, &end, n, d * sizeof(di_bf16));
    a->x8 = place(base, &end, n, d * sizeof(di_bf16));
    a->qr = place(base, &end, n, (size_t)c->q_lora_rank * sizeof(di_bf16));
    a->q = place(base, &end, n, heads * hd * sizeof(di_bf16));
    a->o = place(base, &end, n, heads * hd * sizeof(di_bf16));
    a->kv = place(base, &end, n, hd * sizeof(di_bf16));
    a->records = place(base, &end, n, hd + hd / 32);
    a->u = place(base, &end, n, u * sizeof(di_bf16));
    a->group_k = place(base, &end, n, hd * sizeof(float));
    a->group_g = place(base, &end, n, hd * sizeof(float));
    a->latent = place(base, &end, n, hd * sizeof(di_bf16));
    a->key = place(base, &end, n, (size_t)c->index_head_dim * sizeof(di_bf16));
    a->index_q = place(base, &end, n, index_heads * (size_t)c->index_head_dim * sizeof(di_bf16));
    a->index_weight = place(base, &end, n, index_heads * sizeof(di_bf16));
    a->topk = place(base, &end, n, (size_t)c->index_topk * sizeof(int32_t));
    a->candidates = place(base, &end, n, at_least(c->candidate_topk_blocks, 0) * sizeof(int32_t));
    a->experts = place(base, &end, n, top * sizeof(int32_t));
    a->expert_weight = place(base, &end, n, top * sizeof(float));
    for (int i = 0; i < 2; i++) {
        a->rope[i] = place_rope(base, &end, n, c->qk_rope_head_dim / 2);
    }
    for (int ratio = 1; ratio <= 2; ratio++) {
        a->entry_rope[ratio] = place_rope(base, &end, n, c->qk_rope_head_dim / 2);
    }
    if (o->drafts) {
        size_t size = (size_t)c->dspark_block_size, seqs = (size_t)di_draft_seqs(c, o);
        size_t targets = (size_t)c->num_dspark_targets, rank = (size_t)c->dspark_markov_rank;
        a->taps = place(base, &end, n, targets * d * sizeof(di_bf16));
        a->main_x = place(base, &end, n, d * sizeof(di_bf16));
        a->g = place(base, &end, seqs * size, d * sizeof(di_bf16));
        a->markov = place(base, &end, seqs, rank * sizeof(di_bf16));
        a->markov_pre = place(base, &end, seqs, sizeof(float));
        a->confidence = place(base, &end, size * di_draft_stride(c, o), sizeof(float));
        logits = at_least(o->max_logits, (int64_t)(seqs * size));
    }
    a->logits = place(base, &end, logits, (size_t)c->vocab_size * sizeof(float));
    return end;
}

size_t di_model_activation_bytes(const di_config *c, const di_model_options *o) {
    di_activations unused;
    return lay_out(c, o, NULL, &unused);
}

/* Host arrays; false when memory is short. */
static bool host_create(di_model *m) {
    const di_config *c = m->c;
    size_t n = (size_t)m->o.max_rows;
    m->token_map = di_calloc((size_t)c->vocab_size, sizeof *m->token_map);
    m->ids = di_calloc(n + DI_MAX_NGRAM, sizeof *m->ids);
    m->draft_confidence =
        di_calloc(m->o.drafts ? di_draft_stride(c, &m->o) : 0, sizeof *m->draft_confidence);
    m->draft_logits = di_calloc(m->o.drafts ? (size_t)c->vocab_size : 0, sizeof *m->draft_logits);
    return m->token_map && m->ids && m->draft_confidence && m->draft_logits;
}

static bool options_ok(const di_weights *w, const di_model_options *o, di_error *err) {
    const di_config *c = &w->config;
    if (o->max_rows < 1 || o->max_rows > 1 << 20) {
        return di_fail(err, DI_ERR_ARGUMENT, "max_rows is %d, allowed are 1 to %d", o->max_rows,
                       1 << 20);
    }
    if (o->max_logits < 1 || o->max_logits > 1 << 20) {
        return di_fail(err, DI_ERR_ARGUMENT, "max_logits is %d, allowed are 1 to %d", o->max_logits,
                       1 << 20);
    }
    if (o->max_draft_seqs < 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "max_draft_seqs is %d, allowed are 0 and more",
                       o->max_draft_seqs);
    }
    if (o->drafts && (!w->draft || o->max_rows < c->dspark_block_size)) {
        return di_fail(err, w->draft ? DI_ERR_ARGUMENT : DI_ERR_UNSUPPORTED,
                       w->draft ? "max_rows is smaller than a block of drafts"
                                : "the checkpoint has no draft model (mtp.* tensors)");
    }
    for (int i = 0; c->num_engram_layers > 0 && i < c->vocab_size; i++) {
        if (o->token_map[i] < 0 || o->token_map[i] >= c->engram_compressed_vocab_size) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "engram token map: token %d maps to %d, allowed are 0 to %d", i,
                           o->token_map[i], c->engram_compressed_vocab_size - 1);
        }
    }
    return true;
}

di_model *di_model_create(const di_weights *w, di_backend *be, di_cache *cache,
                          const di_model_options *o, di_error *err) {
    const di_config *c = &w->config;
    if (!options_ok(w, o, err)) {
        return NULL;
    }
    di_model *m = di_calloc(1, sizeof *m);
    if (!m) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the model");
        return NULL;
    }
    *m = (di_model){.w = w, .c = c, .be = be, .cache = cache, .o = *o, .queue = be->ops->queue};
    m->in = &m->any;
    if (!host_create(m) || !di_inputs_create(m, &m->any, o->max_rows, o->max_logits)) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for steps of %d tokens", o->max_rows);
        di_model_destroy(m);
        return NULL;
    }
    size_t bytes = di_model_activation_bytes(c, o);
    m->memory = be->ops->alloc(be, bytes);
    if (!m->memory) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu bytes of activations (%d tokens a step)",
                bytes, o->max_rows);
        di_model_destroy(m);
        return NULL;
    }
    lay_out(c, o, m->memory, &m->a);
    if (c->num_engram_layers > 0) {
        memcpy(m->token_map, o->token_map, (size_t)c->vocab_size * sizeof *m->token_map);
    }
    m->o.token_map = NULL;
    di_engram_hasher_init(&m->hasher, c, m->token_map);
    return m;
}

void di_model_destroy(di_model *m) {
    if (!m) {
        return;
    }
    if (m->memory) {
        m->be->ops->free(m->be, m->memory);
    }
    di_programs_destroy(m);
    di_inputs_destroy(m, &m->any);
    di_inputs_destroy(m, &m->small);
    di_free(m->token_map);
    di_free(m->ids);
    di_free(m->draft_logits);
    di_free(m->draft_confidence);
    di_free(m);
}

void di_model_set_cache(di_model *m, di_cache *cache) {
    m->cache = cache;
}

void di_model_observe(di_model *m, di_observer observer, void *user) {
    m->observer = observer;
    m->observer_user = user;
}

/* ---- the call ---------------------------------------------------------------------------------*/

static int64_t kept_from(const di_model_rows *p) {
    return p->replay_from > p->pos0 ? p->replay_from : p->pos0;
}

static int64_t kept_tokens(const di_model_rows *p) {
    int64_t kept = p->pos0 + p->num_tokens - kept_from(p);
    return kept > 0 ? kept : 0;
}

static bool part_ok(const di_model *m, const di_model_rows *p, int i, di_error *err) {
    const di_config *c = m->c;
    if (p->num_tokens < 1) {
        return di_fail(err, DI_ERR_ARGUMENT, "sequence %d: %d tokens, at least 1 expected", i,
                       p->num_tokens);
    }
    int64_t end;
    if (p->pos0 < 0 || p->slot < 1 || __builtin_add_overflow(p->pos0, p->num_tokens, &end)) {
        return di_fail(err, DI_ERR_ARGUMENT, "sequence %d: position %lld in slot %d", i,
                       (long long)p->pos0, p->slot);
    }
    if (end > c->max_position_embeddings) {
        return di_fail(
            err, DI_ERR_ARGUMENT,
            "sequence %d: %lld tokens, the model's context is %d (max_position_embeddings)", i,
            (long long)end, c->max_position_embeddings);
    }
    if (di_blocks_for(end) > p->num_blocks) {
        return di_fail(err, DI_ERR_ARGUMENT, "sequence %d: blocks reserved for %d tokens, not %lld",
                       i, p->num_blocks * DI_BLOCK_TOKENS, (long long)end);
    }
    for (long long t = 0; t < p->num_tokens; t++) {
        if (p->tokens[t] < 0 || p->tokens[t] >= c->vocab_size) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "token id %d at position %lld, allowed are 0 to %d", p->tokens[t],
                           p->pos0 + t, c->vocab_size - 1);
        }
    }
    if (p->num_logits < 0 || p->num_logits > kept_tokens(p)) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "sequence %d: logits of %d rows wanted, %lld can have them", i,
                       p->num_logits, (long long)kept_tokens(p));
    }
    return true;
}

bool di_model_check(const di_model *m, const di_model_rows *parts, int count, bool want_logits,
                    di_error *err) {
    int64_t rows = 0, logits = 0;
    for (int i = 0; i < count; i++) {
        if (!part_ok(m, &parts[i], i, err)) {
            return false;
        }
        rows += parts[i].num_tokens;
        logits += parts[i].num_logits;
    }
    if (count < 1 || rows > m->o.max_rows) {
        return di_fail(err, DI_ERR_ARGUMENT, "%lld tokens in a step, allowed are 1 to %d",
                       (long long)rows, m->o.max_rows);
    }
    if (logits > m->o.max_logits || (logits > 0 && !want_logits)) {
        return di_fail(err, DI_ERR_ARGUMENT, "logits of %lld rows in a step, allowed are %d",
                       (long long)logits, want_logits ? m->o.max_logits : 0);
    }
    return true;
}

/* Table rows of one part's tokens for every engram layer. */
static void hash_part(di_model *m, const di_model_rows *p, int row0) {
    const di_engram_hasher *h = &m->hasher;
    int before = p->pos0 < h->max_ngram - 1 ? (int)p->pos0 : h->max_ngram - 1;
    for (int i = 0; i < before; i++) {
        m->ids[i] = di_engram_compress(h, p->before[DI_MODEL_LOOK_BACK - before + i]);
    }
    for (int t = 0; t < p->num_tokens; t++) {
        bool image = p->image && p->image[t];
        m->ids[before + t] = image ? DI_ENGRAM_BARRIER : di_engram_compress(h, p->tokens[t]);
    }
    for (int l = 0; l < h->num_layers; l++) {
        int64_t *rows = m->in->engram_rows + (int64_t)l * m->in->max_rows * h->columns;
        for (int t = 0; t < p->num_tokens; t++) {
            di_engram_hash(h, l, m->ids, before + t, rows + (int64_t)(row0 + t) * h->columns);
        }
    }
}

/* Appends the rows of part i from position `from` on to a pass. */
static void add_rows(di_pass *pass, const di_model_rows *p, int row0, int64_t from,
                     int64_t window_start) {
    int first = (int)(from - p->pos0), n = pass->step.num_rows;
    int count = p->num_tokens > first ? p->num_tokens - first : 0;
    pass->seqs[pass->step.num_seqs++] = (di_seq_rows){
        .row0 = n,
        .num_rows = count,
        .pos0 = from,
        .window_start = window_start,
        .blocks = p->blocks,
        .slot = p->slot,
    };
    for (int t = 0; t < count; t++) {
        pass->rows[n + t] = row0 + first + t;
        pass->positions[n + t] = from + t;
        pass->image[n + t] = p->image ? p->image[first + t] : 0;
    }
    pass->any_image = pass->any_image || p->image;
    pass->step.num_rows += count;
}

static void pass_begin(di_model *m, di_pass *pass) {
    pass->step = (di_step){.seqs = pass->seqs, .pool = *di_cache_pool(m->cache)};
    pass->any_image = false;
}

/* The tokens in front of each of a part's tokens. */
static void look_back(di_inputs *in, const di_model_rows *p, int row0) {
    enum { BACK = DI_MODEL_LOOK_BACK };
    for (int t = 0; t < p->num_tokens; t++) {
        int32_t *before = in->before + (size_t)(row0 + t) * BACK;
        for (int k = 1; k <= BACK; k++) {
            int at = t - k; /* in this part; -1 is before[BACK - 1] */
            bool known = p->pos0 + at >= 0, image = at >= 0 && p->image && p->image[at];
            before[BACK - k] = !known || image ? -1
                               : at >= 0       ? p->tokens[at]
                                               : p->before[BACK + at];
        }
    }
}

/* Both passes; returns whether any part replays. */
static bool build_passes(di_model *m, const di_model_rows *parts, int count) {
    di_inputs *in = m->in;
    bool replay = false;
    int row0 = 0;
    pass_begin(m, &in->all);
    pass_begin(m, &in->kept);
    m->context = false;
    for (int i = 0; i < count; i++) {
        const di_model_rows *p = &parts[i];
        replay = replay || p->replay_from > 0;
        m->context = m->context || (m->o.drafts && !p->no_context);
        add_rows(&in->all, p, row0, p->pos0, 0);
        int64_t from = m->o.replay_by_mask ? p->pos0 : kept_from(p);
        add_rows(&in->kept, p, row0, from, p->replay_from);
        memcpy(in->tokens + row0, p->tokens, (size_t)p->num_tokens * sizeof *in->tokens);
        if (m->hasher.num_layers > 0 && m->device_hash) {
            look_back(in, p, row0);
        } else if (m->hasher.num_layers > 0) {
            hash_part(m, p, row0);
        }
        row0 += p->num_tokens;
    }
    di_graph_fill(&in->all);
    if (replay) {
        di_graph_fill(&in->kept);
    }
    return replay;
}

/* Fills logit_rows with rows of the last pass. */
static int choose_logit_rows(di_model *m, const di_model_rows *parts, int count, bool replay) {
    const di_pass *last = replay ? &m->in->kept : &m->in->all;
    int n = 0;
    for (int i = 0; i < count; i++) {
        int end = last->seqs[i].row0 + last->seqs[i].num_rows;
        for (int r = end - parts[i].num_logits; r < end; r++) {
            m->in->logit_rows[n++] = r;
        }
    }
    return n;
}

di_model_rows di_model_next_rows(const di_seq *seq, const int32_t *all, int num_tokens) {
    di_model_rows rows = {
        .pos0 = seq->len,
        .slot = seq->slot,
        .blocks = seq->blocks,
        .num_blocks = seq->num_blocks,
        .tokens = all + seq->len,
        .num_tokens = num_tokens,
    };
    for (int64_t i = 1; i <= DI_MODEL_LOOK_BACK && i <= seq->len; i++) {
        rows.before[DI_MODEL_LOOK_BACK - i] = all[seq->len - i];
    }
    return rows;
}

int di_model_run(di_model *m, const di_model_rows *parts, int num_parts, const int32_t *source,
                 const int32_t *drawn) {
    di_inputs *in = m->in = &m->any;
    bool replay = build_passes(m, parts, num_parts);
    int n = choose_logit_rows(m, parts, num_parts, replay);
    for (int i = 0, row = 0; source && i < num_parts; i++) {
        for (int t = 0; t < parts[i].num_tokens; t++) {
            in->source[row++] = t == parts[i].num_tokens - 1 ? source[i] : -1;
        }
    }
    di_inputs_send(m, in->memory, in->bytes);
    if (source) {
        m->queue->feed(m->be, in->tokens, in->source, in->all.step.num_rows, drawn);
    }
    di_graph_run(m, replay);
    if (n > 0) {
        di_graph_head(m, n);
    }
    return n;
}

bool di_model_forward(di_model *m, const di_model_rows *parts, int num_parts, float *logits,
                      di_error *err) {
    if (!di_model_check(m, parts, num_parts, logits != NULL, err)) {
        return false;
    }
    int n = di_model_run(m, parts, num_parts, NULL, NULL);
    if (n > 0) {
        m->be->ops->download(m->be, logits, m->a.logits,
                             (size_t)n * (size_t)m->c->vocab_size * sizeof *logits);
    }
    return m->be->ops->sync(m->be, err);
}
