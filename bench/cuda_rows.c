/* Speed of the CUDA backend's ops on streams and rows, and of what tokens look up, at
 * DeepSeek-V4.1-Flash's sizes, beside the bandwidth of reading the card's memory, measured in the
 * same run (cuda.c has products, experts and draws, cuda_state.c what works on the state of
 * sequences). One line a case; a first argument picks one part ("streams", "rows of", "looked up"),
 * a second one lines by their number of rows. Without a card it says so and does nothing.
 *
 * Streams are called one by one, so launch gaps (2 to 3 us) are in; the others are recorded, one
 * behind the other as a step runs them, rows on data that a cache holds as it does behind the op
 * that made them, lookups in turns, so that no cache holds what they read. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/card.h"
#include "support/synthetic.h"

/* ---- streams ---------------------------------------------------------------------------------*/

typedef struct streams {
    int n;
    di_bf16 *h, *x, *y;
    float *coeffs;
    di_tensor fn, base, scale, norm;
} streams;

static void expand(void *user, int i) {
    const streams *s = user;
    float *pre = s->coeffs, *post = pre + s->n * HC, *comb = post + s->n * HC;
    (void)i;
    be->ops->mhc_post(be, s->y, post, comb, s->n, HC, HIDDEN, s->h, pre, &s->norm, 1e-20f, s->x,
                      NULL);
}

static void mix(void *user, int i) {
    const streams *s = user;
    float *pre = s->coeffs, *post = pre + s->n * HC, *comb = post + s->n * HC;
    (void)i;
    be->ops->mhc_mix(be, s->h, s->n, HC, HIDDEN, &s->fn, &s->base, &s->scale, 1e-20f, 1e-6f, 20,
                     pre, post, comb);
}

static void bench_streams(void) {
    static const int rows[] = {1, 8, 64, 8192};
    static float base[(2 + HC) * HC], scale[3];
    streams s = {0};
    if (!wanted("streams")) {
        return;
    }
    float *fn = di_calloc((2 + HC) * HC * HC * HIDDEN, sizeof *fn);
    di_bf16 *norm = di_calloc(HIDDEN, sizeof *norm);
    s.fn = (di_tensor){.dtype = DI_F32, .rank = 2, .shape = {(2 + HC) * HC, HC * HIDDEN}};
    s.fn.data = fn;
    s.base = (di_tensor){.dtype = DI_F32, .data = base};
    s.scale = (di_tensor){.dtype = DI_F32, .data = scale};
    s.norm = (di_tensor){.dtype = DI_BF16, .rank = 1, .shape = {HIDDEN}, .data = norm};
    s.h = device_bf16((size_t)MAX_ROWS * HC * HIDDEN);
    s.x = device((size_t)MAX_ROWS * HIDDEN * 2);
    s.coeffs = device((size_t)MAX_ROWS * (2 + HC) * HC * 4);
    s.y = device_bf16((size_t)MAX_ROWS * HIDDEN);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (only_rows && rows[i] != only_rows) {
            continue;
        }
        char name[96];
        s.n = rows[i];
        double row = 2.0 * HIDDEN * HC;
        snprintf(name, sizeof name, "streams: mix, %d rows", s.n);
        tell(name, per_call(mix, &s, 1), 4.0 * (2 + HC) * HC * HC * HIDDEN + s.n * row, 0);
        snprintf(name, sizeof name, "streams: expand, collapse, norm, %d rows", s.n);
        tell(name, per_call(expand, &s, 1), s.n * (2 * row + 4.0 * HIDDEN), 0);
    }
    be->ops->free(be, s.h);
    be->ops->free(be, s.x);
    be->ops->free(be, s.coeffs);
    be->ops->free(be, s.y);
    di_cuda_forget(be);
    di_free(fn);
    di_free(norm);
}

/* ---- rows ------------------------------------------------------------------------------------*/

typedef struct rows {
    int n;
    di_bf16 *h, *x, *y, *q;
    float *pre, *weights;
    int32_t *experts;
    di_rope_table rope;
    di_tensor norm, short_norm, gate, bias;
} rows;

static void collapse(void *user, int i) {
    const rows *r = user;
    (void)i;
    be->ops->mhc_pre(be, r->h, r->pre, r->n, HC, HIDDEN, r->y);
}

static void mean(void *user, int i) {
    const rows *r = user;
    (void)i;
    be->ops->stream_mean(be, r->h, r->n, HC, HIDDEN, r->y, HIDDEN);
}

static void norm_hidden(void *user, int i) {
    const rows *r = user;
    (void)i;
    be->ops->rms_norm(be, r->x, &r->norm, 1e-6f, r->n, HIDDEN, NULL, r->y);
}

static void norm_queries(void *user, int i) {
    const rows *r = user;
    (void)i;
    be->ops->rms_norm(be, r->x, &r->short_norm, 1e-6f, r->n, Q_LORA, NULL, r->y);
}

static void rotate(void *user, int i) {
    const rows *r = user;
    (void)i;
    be->ops->rope(be, r->q, r->n, HEADS, HEAD_DIM, r->rope, false);
}

static void route(void *user, int i) {
    const rows *r = user;
    (void)i;
    be->ops->route(be, r->x, r->n, &r->gate, &r->bias, NULL, NULL, 1, TOP_K, true, 2.5f, r->experts,
                   r->weights);
}

static void bench_rows(void) {
    static const int counts[] = {1, 8, 64, 2048};
    static di_bf16 norm[HIDDEN];
    static float bias[EXPERTS];
    static const struct {
        const char *name;
        call_fn *call;
        double bytes; /* of a row */
    } ops[] = {
        {"streams collapsed", collapse, 2.0 * (HC + 1) * HIDDEN},
        {"streams' mean", mean, 2.0 * (HC + 1) * HIDDEN},
        {"norm of 5120, quantised", norm_hidden, 4.0 * HIDDEN},
        {"norm of 1280, quantised", norm_queries, 4.0 * Q_LORA},
        {"rotation of 64 heads", rotate, 8.0 * HEADS * ROPE_HALF},
        {"router, its product included", route, 2.0 * HIDDEN},
    };
    const size_t most = 2048;
    rows r = {0};
    if (!wanted("rows of")) {
        return;
    }
    r.norm = (di_tensor){.dtype = DI_BF16, .rank = 1, .shape = {HIDDEN}, .data = norm};
    r.short_norm = (di_tensor){.dtype = DI_BF16, .rank = 1, .shape = {Q_LORA}, .data = norm + 1};
    r.gate = make_weight(DI_BF16, EXPERTS, HIDDEN);
    r.bias = (di_tensor){.dtype = DI_F32, .rank = 1, .shape = {EXPERTS}, .data = bias};
    r.h = device_bf16(most * HC * HIDDEN);
    r.x = device_bf16(most * HIDDEN);
    r.y = device(most * HIDDEN * 2);
    r.q = device_bf16(most * HEADS * HEAD_DIM);
    r.pre = (float *)(void *)device_bf16(most * HC * 2);
    r.experts = device(most * TOP_K * sizeof *r.experts);
    r.weights = device(most * TOP_K * sizeof *r.weights);
    r.rope.half = ROPE_HALF;
    r.rope.cos = (float *)(void *)device_bf16(most * ROPE_HALF * 2);
    r.rope.sin = (float *)(void *)device_bf16(most * ROPE_HALF * 2);
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            if (only_rows && counts[i] != only_rows) {
                continue;
            }
            char name[96];
            double shared = ops[k].call == route ? 2.0 * EXPERTS * HIDDEN : 0;
            r.n = counts[i];
            snprintf(name, sizeof name, "%s, %d rows of recorded calls", ops[k].name, r.n);
            tell(name, per_recorded_call(ops[k].call, &r, 20), r.n * ops[k].bytes + shared, 0);
        }
    }
    void *buffers[] = {r.h, r.x, r.y, r.q, r.pre, r.experts, r.weights, r.rope.cos, r.rope.sin};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        be->ops->free(be, buffers[i]);
    }
    di_cuda_forget(be);
}

/* ---- what is looked up -----------------------------------------------------------------------*/

enum {
    VOCAB = 129280,
    COMPRESSED = 99092,
    NGRAMS = 3, /* of 2, 3 and 4 tokens */
    LOOK_BACK = NGRAMS,
    NGRAM_HEADS = 8,
    COLUMNS = NGRAMS * NGRAM_HEADS,
    ROW = 256, /* codes of a table's row */
    ROW_BYTES = ROW + ROW / 32,
    TABLE_ROWS = 4 << 20, /* 1.1 GB: none is in a cache */
    MOST_TOKENS = 2048,
    TURNS = 20, /* sets of tokens, in turn */
};

/* Arguments lie in argument memory, those of a turn behind those of the one before. */
typedef struct lookups {
    int n;
    int32_t *tokens, *before;
    int64_t *rows, *positions;
    di_ngram_hash hash;
    float *freq;            /* [ROPE_HALF] */
    const di_tensor *table; /* the one that is asked */
    di_tensor embedding, on_card, locked, wkv, q_weight, k_weight;
    di_bf16 *h, *x;
    float *pre;
    di_rope_table rope;
    void *host[4]; /* what tensors lie in */
    int num_host;
} lookups;

static void embed(void *user, int i) {
    const lookups *l = user;
    be->ops->embed(be, l->tokens + i * l->n, l->n, &l->embedding, HC, l->h, l->pre);
}

static void gather(void *user, int i) {
    const lookups *l = user;
    be->ops->gather_rows(be, l->h, l->before + i * l->n, l->n, 2 * HIDDEN, l->x);
}

static void angles(void *user, int i) {
    const lookups *l = user;
    be->ops->rope_table(be, l->positions + i * l->n, l->n, l->freq, l->rope);
}

static void hash(void *user, int i) {
    const lookups *l = user;
    be->ops->queue->hash_ngrams(be, &l->hash, l->tokens + i * l->n,
                                l->before + i * l->n * LOOK_BACK, LOOK_BACK, NULL, l->n,
                                l->rows + i * l->n * COLUMNS);
}

static void engram(void *user, int i) {
    const lookups *l = user;
    be->ops->engram(be, l->rows + i * l->n * COLUMNS, l->n, COLUMNS, l->table, &l->wkv,
                    &l->q_weight, &l->k_weight, HC, HIDDEN, 1e-6f, l->h);
}

static void *take_host(lookups *l, size_t bytes) {
    void *p = di_calloc(bytes, 1);
    if (!p) {
        give_up("the host has no memory left");
    }
    l->host[l->num_host++] = p;
    return p;
}

/* Larger than make_weight makes them: E4M3 with its scales behind the codes. */
static di_tensor make_codes(lookups *l, int64_t n, int64_t k, int scale_rows) {
    size_t codes = (size_t)(n * k), scales = codes / 32 / (size_t)scale_rows;
    uint8_t *data = take_host(l, codes + scales);
    synthetic_fill(data, codes, SYNTHETIC_E4M3, 0, 0);
    memset(data + codes, synthetic_scale(SYNTHETIC_E4M3, 0.0125), scales);
    return (di_tensor){.dtype = DI_F8_E4M3,
                       .rank = 2,
                       .shape = {n, k},
                       .data = data,
                       .scale = data + codes,
                       .scale_block = {scale_rows, 32}};
}

/* Hashing as the model's, over prime numbers of the size that a table here has room for. */
static void make_hash(di_ngram_hash *h) {
    static int32_t map[VOCAB];
    static int64_t primes[COLUMNS], offsets[COLUMNS];
    static uint64_t multipliers[NGRAMS + 1];
    for (int i = 0; i < VOCAB; i++) {
        map[i] = i % COMPRESSED;
    }
    for (int i = 0; i < COLUMNS; i++) {
        primes[i] = TABLE_ROWS / COLUMNS - 1 - 2 * i; /* odd: the division takes as long */
        offsets[i] = (int64_t)i * (TABLE_ROWS / COLUMNS);
    }
    for (int i = 0; i <= NGRAMS; i++) {
        multipliers[i] = synthetic_random() >> 20 | 1;
    }
    *h = (di_ngram_hash){NGRAMS + 1, NGRAM_HEADS, COLUMNS, VOCAB,      2,
                         map,        primes,      offsets, multipliers};
    const di_queue_ops *q = be->ops->queue;
    q->load_array(be, map, sizeof map);
    q->load_array(be, primes, sizeof primes);
    q->load_array(be, offsets, sizeof offsets);
    q->load_array(be, multipliers, sizeof multipliers);
}

/* Argument memory, with tokens for MOST_TOKENS in every turn. */
static void make_arguments(lookups *l) {
    const size_t n = (size_t)TURNS * MOST_TOKENS;
    const di_queue_ops *q = be->ops->queue;
    size_t bytes = n * ((COLUMNS + 1) * sizeof(int64_t) + (1 + LOOK_BACK) * sizeof(int32_t)) +
                   ROPE_HALF * sizeof(float);
    l->rows = q->args_create(be, bytes);
    if (!l->rows) {
        give_up("no memory for arguments");
    }
    l->positions = l->rows + n * COLUMNS;
    l->tokens = (int32_t *)(void *)(l->positions + n);
    l->before = l->tokens + n;
    l->freq = (float *)(void *)(l->before + n * LOOK_BACK);
    for (int i = 0; i < ROPE_HALF; i++) {
        l->freq[i] = 1.0f / (float)(1 + i * i);
    }
    for (size_t i = 0; i < n; i++) {
        l->positions[i] = (int64_t)(synthetic_random() % (1 << 20));
    }
    for (size_t i = 0; i < n * (1 + LOOK_BACK); i++) {
        l->tokens[i] = (int32_t)(synthetic_random() % VOCAB);
    }
    q->args_send(be, l->rows, bytes);
}

static void open_lookups(lookups *l) {
    static float norms[HC * HIDDEN / 2];
    const size_t n = MOST_TOKENS;
    *l = (lookups){0};
    make_hash(&l->hash);
    make_arguments(l);
    l->embedding = (di_tensor){.dtype = DI_BF16, .rank = 2, .shape = {VOCAB, HIDDEN}};
    l->embedding.data = take_host(l, (size_t)VOCAB * 2 * HIDDEN);
    l->wkv = make_codes(l, (HC + 1) * HIDDEN, COLUMNS * ROW, 32);
    l->q_weight = (di_tensor){.dtype = DI_BF16, .rank = 2, .shape = {HC, HIDDEN}, .data = norms};
    l->k_weight = l->q_weight;
    l->on_card = make_codes(l, TABLE_ROWS, ROW, 1);
    l->locked = make_codes(l, TABLE_ROWS, ROW, 1);
    if (!be->ops->queue->load_ngrams(be, &l->on_card, true) ||
        !be->ops->queue->load_ngrams(be, &l->locked, false)) {
        give_up("n-gram tables cannot be loaded");
    }
    l->h = device_bf16((size_t)VOCAB * HIDDEN); /* as what is gathered from, too */
    l->x = device(n * HIDDEN * 2);
    l->pre = device(n * HC * sizeof *l->pre);
    l->rope.half = ROPE_HALF;
    l->rope.cos = device(n * ROPE_HALF * sizeof(float));
    l->rope.sin = device(n * ROPE_HALF * sizeof(float));
    wait_for_all();
}

static void close_lookups(lookups *l) {
    void *buffers[] = {l->h, l->x, l->pre, l->rope.cos, l->rope.sin};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        be->ops->free(be, buffers[i]);
    }
    be->ops->queue->args_destroy(be, l->rows);
    di_cuda_forget(be);
    for (int i = 0; i < l->num_host; i++) {
        di_free(l->host[i]);
    }
}

/* Few rows of engram are bound by its product's weights, as are those of linear.cu. */
static void bench_lookups(void) {
    static const int counts[] = {1, 8, 64, MOST_TOKENS};
    static lookups l;
    static const struct {
        const char *name;
        call_fn *call;
        double bytes; /* of a token */
    } ops[] = {
        {"looked up: embeddings", embed, 2.0 * (HC + 1) * HIDDEN},
        {"looked up: rows gathered", gather, 4.0 * HIDDEN},
        {"looked up: angles", angles, 8.0 * ROPE_HALF},
        {"looked up: n-grams hashed", hash, 8.0 * COLUMNS},
        {"looked up: engram, table on the card", engram, COLUMNS * ROW_BYTES + 4.0 * HC * HIDDEN},
        {"looked up: engram, table in locked memory", engram,
         COLUMNS * ROW_BYTES + 4.0 * HC * HIDDEN},
    };
    if (!wanted("looked up")) {
        return;
    }
    open_lookups(&l);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (only_rows && counts[i] != only_rows) {
            continue;
        }
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
            char name[96];
            double shared = ops[k].call == engram ? (double)weight_bytes(&l.wkv) : 0;
            l.n = counts[i];
            l.table = k == sizeof ops / sizeof *ops - 1 ? &l.locked : &l.on_card;
            snprintf(name, sizeof name, "%s, %d rows", ops[k].name, l.n);
            tell(name, per_recorded_call(ops[k].call, &l, TURNS), l.n * ops[k].bytes + shared, 0);
        }
    }
    close_lookups(&l);
}

int main(int argc, char **argv) {
    if (!card_open(argc, argv)) {
        return 0;
    }
    bench_streams();
    bench_rows();
    bench_lookups();
    card_close();
    return 0;
}
