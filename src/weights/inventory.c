/* The list of parameters: see inventory.h. Each row of the tables below is a parameter of a layer,
 * a draft stage or the model, its shape in the configuration's words. */
#include "weights/inventory.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* The sizes that shapes are made of. */
typedef enum dim {
    NONE, /* no such dimension */
    ONE,
    THREE,
    VOCAB,
    HIDDEN,
    INTER,
    HEADS,
    HEADS_DIM, /* num_attention_heads * head_dim */
    HEAD_DIM,
    Q_LORA,
    O_ROWS,     /* o_groups * o_lora_rank */
    O_GROUP_IN, /* num_attention_heads * head_dim / o_groups */
    EXPERTS,    /* of this layer or stage */
    HC,
    HC_MIXES,
    HC_HIDDEN, /* hc_mult * hidden_size */
    INDEX_HEADS,
    INDEX_DIM,
    INDEX_Q,     /* index_n_heads * index_head_dim */
    ENGRAM_ROWS, /* of this layer */
    ENGRAM_DIM,
    ENGRAM_WIDTH, /* engram_columns * engram_head_dim */
    ENGRAM_KV,    /* (hc_mult + 1) * hidden_size */
    TARGETS,      /* dspark targets * hidden_size */
    MARKOV,
    CONFIDENCE, /* hidden_size + dspark_markov_rank */
    NUM_DIMS,
} dim;

/* Which layers or stages have a parameter. */
typedef enum condition {
    ALWAYS,
    OWNS_ENTRIES,   /* layer mode FULL */
    POOLS_ENTRIES,  /* FULL with a ratio above 1 */
    OWNS_SELECTION, /* FULL or REINDEX */
    HAS_ENGRAM,
    FIRST_STAGE,
    LAST_STAGE,
} condition;

typedef struct row {
    const char *name;
    di_storage storage;
    dim shape[2];
    di_part part;
    size_t offset; /* of the di_tensor in the struct the table is for */
    condition when;
} row;

/* Shorthand of the tables. */
#define F32      DI_STORED_F32
#define BF16     DI_STORED_BF16
#define FP8      DI_STORED_FP8
#define FP4      DI_STORED_FP4
#define TABLE    DI_STORED_TABLE
#define PART(p)  DI_PART_##p
#define B(field) offsetof(di_block_weights, field)
#define X(field) offsetof(di_expert, field)
#define C(field) offsetof(di_compressor_weights, field)
#define I(field) offsetof(di_indexer_weights, field)
#define E(field) offsetof(di_engram_weights, field)
#define D(field) offsetof(di_draft_weights, field)
#define W(field) offsetof(di_weights, field)

/* clang-format off */
static const row block_rows[] = { /* below layers.{l}. and mtp.{s}. */
    {"attn_norm.weight",      BF16, {HIDDEN},              PART(NORMS),             B(attn_norm)},
    {"ffn_norm.weight",       BF16, {HIDDEN},              PART(NORMS),             B(ffn_norm)},
    {"attn.wq_a",             FP8,  {Q_LORA, HIDDEN},      PART(ATTENTION),         B(attn.wq_a)},
    {"attn.q_norm.weight",    BF16, {Q_LORA},              PART(NORMS),             B(attn.q_norm)},
    {"attn.wq_b",             FP8,  {HEADS_DIM, Q_LORA},   PART(ATTENTION),         B(attn.wq_b)},
    {"attn.wkv",              FP8,  {HEAD_DIM, HIDDEN},    PART(ATTENTION),         B(attn.wkv)},
    {"attn.kv_norm.weight",   BF16, {HEAD_DIM},            PART(NORMS),             B(attn.kv_norm)},
    {"attn.wo_a",             FP8,  {O_ROWS, O_GROUP_IN},  PART(ATTENTION),         B(attn.wo_a)},
    {"attn.wo_b",             FP8,  {HIDDEN, O_ROWS},      PART(ATTENTION),         B(attn.wo_b)},
    {"attn.attn_sink",        F32,  {HEADS},               PART(ATTENTION),         B(attn.attn_sink)},
    {"hc_attn_fn",            F32,  {HC_MIXES, HC_HIDDEN}, PART(HYPER_CONNECTIONS), B(hc_attn.fn)},
    {"hc_attn_base",          F32,  {HC_MIXES},            PART(HYPER_CONNECTIONS), B(hc_attn.base)},
    {"hc_attn_scale",         F32,  {THREE},               PART(HYPER_CONNECTIONS), B(hc_attn.scale)},
    {"hc_ffn_fn",             F32,  {HC_MIXES, HC_HIDDEN}, PART(HYPER_CONNECTIONS), B(hc_ffn.fn)},
    {"hc_ffn_base",           F32,  {HC_MIXES},            PART(HYPER_CONNECTIONS), B(hc_ffn.base)},
    {"hc_ffn_scale",          F32,  {THREE},               PART(HYPER_CONNECTIONS), B(hc_ffn.scale)},
    {"ffn.gate.weight",       BF16, {EXPERTS, HIDDEN},     PART(ROUTER),            B(moe.gate)},
    {"ffn.gate.bias",         F32,  {EXPERTS},             PART(ROUTER),            B(moe.bias)},
    {"ffn.gate.bias_vl",      F32,  {EXPERTS},             PART(ROUTER),            B(moe.bias_vl)},
    {"ffn.shared_experts.w1", FP8,  {INTER, HIDDEN},       PART(SHARED_EXPERTS),    B(moe.shared.w1)},
    {"ffn.shared_experts.w3", FP8,  {INTER, HIDDEN},       PART(SHARED_EXPERTS),    B(moe.shared.w3)},
    {"ffn.shared_experts.w2", FP8,  {HIDDEN, INTER},       PART(SHARED_EXPERTS),    B(moe.shared.w2)},
};

static const row expert_rows[] = { /* ffn.experts.{e}. */
    {"w1", FP4, {INTER, HIDDEN}, PART(EXPERTS), X(w1)},
    {"w3", FP4, {INTER, HIDDEN}, PART(EXPERTS), X(w3)},
    {"w2", FP4, {HIDDEN, INTER}, PART(EXPERTS), X(w2)},
};

static const row compressor_rows[] = { /* layers.{l}.attn.compressor. */
    {"wkv.weight",   BF16, {HEAD_DIM, HIDDEN}, PART(COMPRESSORS), C(wkv),   OWNS_ENTRIES},
    {"wgate.weight", BF16, {HEAD_DIM, HIDDEN}, PART(COMPRESSORS), C(wgate), POOLS_ENTRIES},
    {"norm.weight",  BF16, {HEAD_DIM},         PART(COMPRESSORS), C(norm),  OWNS_ENTRIES},
};

static const row indexer_rows[] = { /* layers.{l}.attn.indexer. */
    {"wq_b",                FP8,  {INDEX_Q, Q_LORA},     PART(INDEXERS), I(wq_b),         OWNS_SELECTION},
    {"weights_proj.weight", BF16, {INDEX_HEADS, HIDDEN}, PART(INDEXERS), I(weights_proj), OWNS_SELECTION},
    {"wk.weight",           BF16, {INDEX_DIM, HEAD_DIM}, PART(INDEXERS), I(wk),           OWNS_ENTRIES},
    {"k_norm.weight",       BF16, {INDEX_DIM},           PART(INDEXERS), I(k_norm),       OWNS_ENTRIES},
};

static const row engram_rows[] = { /* layers.{l}.engram. */
    {"embed",    TABLE, {ENGRAM_ROWS, ENGRAM_DIM}, PART(ENGRAM_TABLES),      E(embed),    HAS_ENGRAM},
    {"wkv",      FP8,   {ENGRAM_KV, ENGRAM_WIDTH}, PART(ENGRAM_PROJECTIONS), E(wkv),      HAS_ENGRAM},
    {"q_weight", BF16,  {HC, HIDDEN},              PART(ENGRAM_PROJECTIONS), E(q_weight), HAS_ENGRAM},
    {"k_weight", BF16,  {HC, HIDDEN},              PART(ENGRAM_PROJECTIONS), E(k_weight), HAS_ENGRAM},
};

static const row stage_rows[] = { /* mtp.{s}. */
    {"main_proj",                   FP8,  {HIDDEN, TARGETS}, PART(DRAFT), D(main_proj),       FIRST_STAGE},
    {"main_norm.weight",            BF16, {HIDDEN},          PART(DRAFT), D(main_norm),       FIRST_STAGE},
    {"norm.weight",                 BF16, {HIDDEN},          PART(DRAFT), D(norm),            LAST_STAGE},
    {"markov_head.embed.weight",    BF16, {VOCAB, MARKOV},   PART(DRAFT), D(markov_embed),    LAST_STAGE},
    {"markov_head.head.weight",     BF16, {VOCAB, MARKOV},   PART(DRAFT), D(markov_head),     LAST_STAGE},
    {"confidence_head.proj.weight", BF16, {ONE, CONFIDENCE}, PART(DRAFT), D(confidence_proj), LAST_STAGE},
};

static const row model_rows[] = {
    {"embed.weight", BF16, {VOCAB, HIDDEN}, PART(EMBED_HEAD), W(embed)},
    {"norm.weight",  BF16, {HIDDEN},        PART(NORMS),      W(norm)},
    {"head.weight",  BF16, {VOCAB, HIDDEN}, PART(EMBED_HEAD), W(head)},
};
/* clang-format on */

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- walking --------------------------------------------------------------------------------- */

/* A walk's state: what the rows are read against. */
typedef struct walk {
    const di_config *config;
    int64_t dims[NUM_DIMS];
    const di_layer_plan *plan;
    bool draft, first_stage, last_stage;
    di_parameter_visit visit;
    void *context;
} walk;

/* Of what is no layer: a draft stage, or the model as a whole. */
static const di_layer_plan no_layer = {.mode = DI_LAYER_SWA, .engram = -1};

static void set_dims(walk *k, const di_config *c) {
    int64_t d = c->hidden_size, heads = c->num_attention_heads;
    int64_t dims[NUM_DIMS] = {
        [ONE] = 1,
        [THREE] = 3,
        [VOCAB] = c->vocab_size,
        [HIDDEN] = d,
        [INTER] = c->moe_intermediate_size,
        [HEADS] = heads,
        [HEADS_DIM] = heads * c->head_dim,
        [HEAD_DIM] = c->head_dim,
        [Q_LORA] = c->q_lora_rank,
        [O_ROWS] = (int64_t)c->o_groups * c->o_lora_rank,
        [O_GROUP_IN] = heads * c->head_dim / c->o_groups,
        [EXPERTS] = c->n_routed_experts,
        [HC] = c->hc_mult,
        [HC_MIXES] = c->hc_mixes,
        [HC_HIDDEN] = c->hc_mult * d,
        [INDEX_HEADS] = c->index_n_heads,
        [INDEX_DIM] = c->index_head_dim,
        [INDEX_Q] = (int64_t)c->index_n_heads * c->index_head_dim,
        [ENGRAM_DIM] = c->engram_head_dim,
        [ENGRAM_WIDTH] = (int64_t)c->engram_columns * c->engram_head_dim,
        [ENGRAM_KV] = (c->hc_mult + 1) * d,
        [TARGETS] = c->num_dspark_targets * d,
        [MARKOV] = c->dspark_markov_rank,
        [CONFIDENCE] = d + c->dspark_markov_rank,
    };
    memcpy(k->dims, dims, sizeof dims);
}

static bool holds(const walk *k, condition when) {
    switch (when) {
    case ALWAYS:
        return true;
    case OWNS_ENTRIES:
        return k->plan->mode == DI_LAYER_FULL;
    case POOLS_ENTRIES:
        return k->plan->mode == DI_LAYER_FULL && k->plan->ratio > 1;
    case OWNS_SELECTION:
        return k->plan->mode == DI_LAYER_FULL || k->plan->mode == DI_LAYER_REINDEX;
    case HAS_ENGRAM:
        return k->plan->engram >= 0;
    case FIRST_STAGE:
        return k->first_stage;
    case LAST_STAGE:
        return k->last_stage;
    }
    return false;
}

static bool walk_rows(const walk *k, const row *rows, size_t count, const char *prefix,
                      void *target) {
    for (size_t i = 0; i < count; i++) {
        const row *r = &rows[i];
        if (!holds(k, r->when)) {
            continue;
        }
        di_parameter p = {
            .storage = r->storage,
            .rank = r->shape[1] == NONE ? 1 : 2,
            .shape = {k->dims[r->shape[0]], k->dims[r->shape[1]]},
            .part = k->draft ? DI_PART_DRAFT : r->part,
            .slot = (di_tensor *)((char *)target + r->offset),
        };
        snprintf(p.name, sizeof p.name, "%s%s", prefix, r->name);
        if (!k->visit(k->context, &p)) {
            return false;
        }
    }
    return true;
}

static bool walk_block(const walk *k, const char *prefix, di_block_weights *block) {
    if (!walk_rows(k, block_rows, LENGTH(block_rows), prefix, block)) {
        return false;
    }
    for (int e = 0; e < block->moe.num_experts; e++) {
        char name[64];
        snprintf(name, sizeof name, "%sffn.experts.%d.", prefix, e);
        if (!walk_rows(k, expert_rows, LENGTH(expert_rows), name, &block->moe.experts[e])) {
            return false;
        }
    }
    return true;
}

static bool walk_layer(const walk *k, const char *prefix, di_layer_weights *layer) {
    char name[64];
    if (!walk_block(k, prefix, &layer->block)) {
        return false;
    }
    snprintf(name, sizeof name, "%sattn.compressor.", prefix);
    if (!walk_rows(k, compressor_rows, LENGTH(compressor_rows), name, &layer->compressor)) {
        return false;
    }
    snprintf(name, sizeof name, "%sattn.indexer.", prefix);
    if (!walk_rows(k, indexer_rows, LENGTH(indexer_rows), name, &layer->indexer)) {
        return false;
    }
    snprintf(name, sizeof name, "%sengram.", prefix);
    return walk_rows(k, engram_rows, LENGTH(engram_rows), name, &layer->engram);
}

static bool walk_draft(walk *k, di_weights *w) {
    int stages = w->draft ? w->config.num_nextn_predict_layers : 0;
    k->draft = true;
    k->plan = &no_layer;
    k->dims[EXPERTS] = w->config.dspark_n_routed_experts;
    for (int s = 0; s < stages; s++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "mtp.%d.", s);
        k->first_stage = s == 0;
        k->last_stage = s == stages - 1;
        if (!walk_block(k, prefix, &w->draft[s].block) ||
            !walk_rows(k, stage_rows, LENGTH(stage_rows), prefix, &w->draft[s])) {
            return false;
        }
    }
    return true;
}

bool di_inventory_walk(di_weights *w, di_parameter_visit visit, void *context) {
    const di_config *c = &w->config;
    walk k = {.config = c, .plan = &no_layer, .visit = visit, .context = context};
    set_dims(&k, c);
    if (!walk_rows(&k, model_rows, LENGTH(model_rows), "", w)) {
        return false;
    }
    for (int l = 0; l < c->num_hidden_layers; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%d.", l);
        k.plan = &c->layers[l];
        k.dims[ENGRAM_ROWS] = k.plan->engram < 0 ? 0 : c->engram_num_embeddings[k.plan->engram];
        if (!walk_layer(&k, prefix, &w->layers[l])) {
            return false;
        }
    }
    return walk_draft(&k, w);
}

/* ---- storage --------------------------------------------------------------------------------- */

int di_parameter_expected(const di_parameter *p, di_expected expected[2]) {
    static const di_dtype dtypes[] = {
        [DI_STORED_F32] = DI_F32,       [DI_STORED_BF16] = DI_BF16, [DI_STORED_FP8] = DI_F8_E4M3,
        [DI_STORED_TABLE] = DI_F8_E4M3, [DI_STORED_FP4] = DI_I8,
    };
    bool quantised = p->storage >= DI_STORED_FP8;
    int64_t n = p->shape[0], k = p->shape[1];
    di_expected *weight = &expected[0], *scale = &expected[1];
    *weight = (di_expected){.dtype = dtypes[p->storage], .rank = p->rank, .shape = {n, k}};
    snprintf(weight->name, sizeof weight->name, "%s%s", p->name, quantised ? ".weight" : "");
    if (!quantised) {
        return 1;
    }
    if (p->storage == DI_STORED_FP4) {
        weight->shape[1] = k / 2;
    }
    *scale = (di_expected){.dtype = DI_F8_E8M0, .rank = 2};
    scale->shape[0] = p->storage == DI_STORED_FP8 ? (n + 31) / 32 : n;
    scale->shape[1] = k / 32;
    snprintf(scale->name, sizeof scale->name, "%s.scale", p->name);
    return 2;
}

bool di_weights_allocate(di_weights *w, bool with_draft, di_error *err) {
    const di_config *c = &w->config;
    int stages = with_draft ? c->num_nextn_predict_layers : 0;
    w->layers = di_calloc((size_t)c->num_hidden_layers, sizeof *w->layers);
    w->draft = stages ? di_calloc((size_t)stages, sizeof *w->draft) : NULL;
    bool ok = w->layers && (w->draft || !stages);
    for (int i = 0; ok && i < c->num_hidden_layers + stages; i++) {
        bool draft = i >= c->num_hidden_layers;
        di_moe_weights *moe =
            draft ? &w->draft[i - c->num_hidden_layers].block.moe : &w->layers[i].block.moe;
        int experts = draft ? c->dspark_n_routed_experts : c->n_routed_experts;
        moe->experts = di_calloc((size_t)experts, sizeof *moe->experts);
        moe->num_experts = moe->experts ? experts : 0;
        ok = moe->experts != NULL;
    }
    return ok || di_fail(err, DI_ERR_NO_MEMORY, "no memory for the list of weights");
}

void di_weights_release(di_weights *w) {
    for (int l = 0; w->layers && l < w->config.num_hidden_layers; l++) {
        di_free(w->layers[l].block.moe.experts);
    }
    for (int s = 0; w->draft && s < w->config.num_nextn_predict_layers; s++) {
        di_free(w->draft[s].block.moe.experts);
    }
    di_free(w->layers);
    di_free(w->draft);
    w->layers = NULL;
    w->draft = NULL;
}

bool di_name_is_vision(const char *name, size_t length) {
    static const char *const prefixes[] = {"vision.", "aligner."};
    static const char *const names[] = {"image_start", "image_end", "image_newline"};
    for (size_t i = 0; i < LENGTH(prefixes); i++) {
        size_t n = strlen(prefixes[i]);
        if (length >= n && memcmp(name, prefixes[i], n) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < LENGTH(names); i++) {
        if (length == strlen(names[i]) && memcmp(name, names[i], length) == 0) {
            return true;
        }
    }
    return false;
}

const char *di_part_name(di_part part) {
    static const char *const part_names[DI_NUM_PARTS] = {
        [DI_PART_EXPERTS] = "routed experts",
        [DI_PART_ATTENTION] = "attention projections, sinks",
        [DI_PART_SHARED_EXPERTS] = "shared experts",
        [DI_PART_EMBED_HEAD] = "embed + head",
        [DI_PART_ENGRAM_PROJECTIONS] = "engram wkv, q/k weights",
        [DI_PART_ROUTER] = "router",
        [DI_PART_INDEXERS] = "indexers",
        [DI_PART_HYPER_CONNECTIONS] = "hyper-connections",
        [DI_PART_COMPRESSORS] = "compressors",
        [DI_PART_NORMS] = "norms",
        [DI_PART_ENGRAM_TABLES] = "engram tables",
        [DI_PART_DRAFT] = "DSpark draft stages",
        [DI_PART_VISION] = "vision + aligner",
    };
    return part_names[part];
}
