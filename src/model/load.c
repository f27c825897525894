/* Weights brought to a device before the first step: every tensor that the graph gives to an op, in
 * the order of the layers. What a walk does with them is its visitor's affair: adding bytes up, or
 * loading. */
#include "model/queue.h"

#include "model/graph.h"

typedef struct visitor {
    di_backend *be;
    const di_queue_ops *queue;
    bool loads; /* else adds up */
    size_t bytes;
} visitor;

static void matrix(visitor *v, const di_tensor *w) {
    if (w->dtype == DI_DTYPE_NONE) {
        return;
    }
    if (v->loads) {
        v->queue->load_matrix(v->be, w);
    } else {
        v->bytes += v->queue->matrix_bytes(v->be, w);
    }
}

static void array_of(visitor *v, const void *host, size_t bytes) {
    if (v->loads) {
        v->queue->load_array(v->be, host, bytes);
    } else {
        v->bytes += v->queue->array_bytes(v->be, bytes);
    }
}

static void array(visitor *v, const di_tensor *w) {
    size_t values = 1;
    for (int i = 0; i < w->rank; i++) {
        values *= (size_t)w->shape[i];
    }
    if (w->dtype != DI_DTYPE_NONE) {
        array_of(v, w->data, values * (size_t)di_dtype_bits(w->dtype) / 8);
    }
}

static void expert_table(visitor *v, const di_expert *table, int count) {
    if (v->loads) {
        v->queue->load_experts(v->be, table, count);
        return;
    }
    for (int e = 0; e < count; e++) {
        matrix(v, &table[e].w1);
        matrix(v, &table[e].w2);
        matrix(v, &table[e].w3);
    }
    v->bytes += v->queue->array_bytes(v->be, (size_t)count * 8 * sizeof(void *));
}

static void mixes(visitor *v, const di_hc_weights *w) {
    array(v, &w->fn);
    array(v, &w->base);
    array(v, &w->scale);
}

static void block(visitor *v, const di_block_weights *w) {
    const di_attention_weights *a = &w->attn;
    const di_moe_weights *e = &w->moe;
    array(v, &w->attn_norm);
    array(v, &w->ffn_norm);
    mixes(v, &w->hc_attn);
    mixes(v, &w->hc_ffn);
    matrix(v, &a->wq_a);
    array(v, &a->q_norm);
    matrix(v, &a->wq_b);
    matrix(v, &a->wkv);
    array(v, &a->kv_norm);
    matrix(v, &a->wo_a);
    matrix(v, &a->wo_b);
    array(v, &a->attn_sink);
    matrix(v, &e->gate);
    array(v, &e->bias);
    array(v, &e->bias_vl);
    if (e->num_experts > 0) {
        expert_table(v, e->experts, e->num_experts);
    }
    expert_table(v, &e->shared, 1);
}

static void layer(visitor *v, const di_config *c, const di_layer_weights *w, int l) {
    block(v, &w->block);
    matrix(v, &w->compressor.wkv);
    matrix(v, &w->compressor.wgate);
    array(v, &w->compressor.norm);
    matrix(v, &w->indexer.wq_b);
    matrix(v, &w->indexer.weights_proj);
    matrix(v, &w->indexer.wk);
    array(v, &w->indexer.k_norm);
    if (c->layers[l].engram >= 0) {
        matrix(v, &w->engram.wkv);
        array(v, &w->engram.q_weight);
        array(v, &w->engram.k_weight);
    }
}

static void draft_stage(visitor *v, const di_config *c, const di_draft_weights *w) {
    block(v, &w->block);
    matrix(v, &w->main_proj);
    array(v, &w->main_norm);
    array(v, &w->norm);
    array(v, &w->markov_embed);
    matrix(v, &w->markov_head);
    if (w->confidence_proj.dtype != DI_DTYPE_NONE) {
        di_tensor by_hidden, by_token;
        di_draft_confidence_parts(c, &w->confidence_proj, &by_hidden, &by_token);
        matrix(v, &by_hidden);
        matrix(v, &by_token);
    }
}

/* What hashing reads. */
static void hashing(visitor *v, const di_engram_hasher *h) {
    for (int l = 0; l < h->num_layers; l++) {
        size_t columns = (size_t)h->columns;
        array_of(v, h->primes[l], columns * sizeof **h->primes);
        array_of(v, h->offsets[l], columns * sizeof **h->offsets);
        array_of(v, h->multipliers[l], (size_t)h->max_ngram * sizeof **h->multipliers);
    }
    if (h->num_layers > 0) {
        array_of(v, h->token_map, (size_t)h->vocab_size * sizeof *h->token_map);
    }
}

static void walk(const di_model *m, visitor *v, di_model_progress progress, void *user) {
    const di_config *c = m->c;
    const di_weights *w = m->w;
    int stages = m->o.drafts ? c->num_nextn_predict_layers : 0;
    int total = c->num_hidden_layers + stages;
    array(v, &w->embed); /* rows are looked up: as they are stored */
    matrix(v, &w->head);
    array(v, &w->norm);
    hashing(v, &m->hasher);
    for (int l = 0; l < total; l++) {
        if (progress) {
            progress(user, l, total);
        }
        if (l < c->num_hidden_layers) {
            layer(v, c, &w->layers[l], l);
        } else {
            draft_stage(v, c, &w->draft[l - c->num_hidden_layers]);
        }
    }
}

size_t di_model_weight_bytes(const di_model *m) {
    visitor v = {m->be, m->queue, false, 0};
    walk(m, &v, NULL, NULL);
    return v.bytes;
}

size_t di_model_table_bytes(const di_model *m) {
    size_t bytes = 0;
    for (int l = 0; l < m->c->num_hidden_layers; l++) {
        const di_tensor *t = &m->w->layers[l].engram.embed;
        if (m->c->layers[l].engram >= 0) {
            size_t codes = (size_t)t->shape[0] * (size_t)t->shape[1];
            bytes += codes + codes / 32;
        }
    }
    return bytes;
}

bool di_model_load(di_model *m, bool tables_on_card, di_model_progress progress, void *user,
                   di_error *err) {
    visitor v = {m->be, m->queue, true, 0};
    m->queue->reserve(m->be, di_model_weight_bytes(m));
    walk(m, &v, progress, user);
    bool all = true;
    for (int l = 0; l < m->c->num_hidden_layers && all; l++) {
        all = m->c->layers[l].engram < 0 ||
              m->queue->load_ngrams(m->be, &m->w->layers[l].engram.embed, tables_on_card);
    }
    di_inputs_hash_on_device(m, all);
    return m->be->ops->sync(m->be, err);
}
