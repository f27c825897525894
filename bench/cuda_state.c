/* Speed of the CUDA backend's ops on the state of sequences, at DeepSeek-V4.1-Flash's sizes, beside
 * the bandwidth of reading the card's memory, measured in the same run (cuda.c has products,
 * experts and draws, cuda_rows.c what works on rows). One line a case; an argument picks one
 * part ("attention", "index", "written"). Without a card it says so and does nothing. Ops are
 * called one by one, so launch gaps (2 to 3 us) are in. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/card.h"
#include "support/synthetic.h"

/* ---- state of sequences ----------------------------------------------------------------------*/

typedef struct scene {
    di_state_layout layout;
    di_step step;
    di_seq_rows *seqs;
    int32_t *blocks;
    di_bf16 *q, *out, *index_q, *index_weights;
    uint8_t *records;
    int32_t *topk, *candidates;
    di_rope_table rope;
    di_tensor sink;
    float sinks[HEADS];
    bool listed;
} scene;

static void attend(void *user, int i) {
    scene *s = user;
    (void)i;
    be->ops->attention(be, &s->step, 0, WINDOW, 0, 1, s->q, HEADS, HEAD_DIM, s->rope, s->records,
                       s->topk, INDEX_TOPK, &s->sink, s->out);
}

static void search(void *user, int i) {
    scene *s = user;
    (void)i;
    be->ops->index_topk(be, &s->step, 0, 1, s->index_q, s->index_weights, INDEX_HEADS, INDEX_DIM,
                        INDEX_TOPK, s->candidates, !s->listed, 2048, 8, s->topk);
}

/* `batch` sequences of `context` tokens, `rows` of them in the step; all records random. */
static void open_scene(scene *s, int batch, int rows, int64_t context) {
    *s = (scene){0};
    di_state_layout *l = &s->layout;
    memset(l->latent_offset, 0, sizeof l->latent_offset);
    l->block_tokens = BLOCK_TOKENS;
    l->ring_rows = RING_ROWS;
    l->group_rows = 8;
    l->window_bytes = HEAD_DIM + HEAD_DIM / 32;
    l->latent_bytes = HEAD_DIM / 2 + HEAD_DIM / 16;
    l->key_bytes = INDEX_DIM / 2 + INDEX_DIM / 32;
    l->group_bytes = 8 * HEAD_DIM;
    l->latent_offset[0] = l->key_bytes * BLOCK_TOKENS;
    l->block_stride = (l->key_bytes + l->latent_bytes) * BLOCK_TOKENS;
    l->slot_stride = l->window_bytes * RING_ROWS;
    int blocks = (int)((context + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
    size_t n = (size_t)batch * (size_t)rows;
    s->blocks = di_calloc((size_t)batch * (size_t)blocks, sizeof *s->blocks);
    s->seqs = di_calloc((size_t)batch, sizeof *s->seqs);
    for (int i = 0; i < batch * blocks; i++) {
        s->blocks[i] = (int32_t)((int64_t)i * 40507 % (batch * blocks));
    }
    for (int i = 0; i < batch; i++) {
        s->seqs[i] = (di_seq_rows){.row0 = i * rows,
                                   .num_rows = rows,
                                   .pos0 = context - rows,
                                   .blocks = s->blocks + i * blocks,
                                   .slot = i};
    }
    s->step = (di_step){.num_rows = (int)n, .num_seqs = batch, .seqs = s->seqs};
    s->step.pool.layout = l;
    const uint64_t tame = 0x3f3f3f3f3f3f3f3fu;
    s->step.pool.blocks = device_bytes((size_t)(batch * blocks) * l->block_stride, tame);
    s->step.pool.slots = device_bytes((size_t)batch * l->slot_stride, tame);
    s->records = device_bytes(n * l->window_bytes, tame);
    s->q = device_bf16(n * HEADS * HEAD_DIM);
    s->rope.half = ROPE_HALF;
    s->rope.cos = (float *)(void *)device_bf16(n * ROPE_HALF * 2);
    s->rope.sin = (float *)(void *)device_bf16(n * ROPE_HALF * 2);
    s->out = device(n * HEADS * HEAD_DIM * 2);
    s->index_q = device_bf16(n * INDEX_HEADS * INDEX_DIM);
    s->index_weights = device_bf16(n * INDEX_HEADS);
    s->candidates = device(n * 2048 * sizeof(int32_t));
    s->topk = device(n * INDEX_TOPK * sizeof(int32_t));
    int32_t *list = di_alloc(n * INDEX_TOPK * sizeof *list);
    for (size_t i = 0; i < n * INDEX_TOPK; i++) {
        int64_t share = (context - rows) / INDEX_TOPK;
        list[i] = (int32_t)((int64_t)(i % INDEX_TOPK) * share +
                            (int64_t)(synthetic_random() % (uint64_t)share));
    }
    be->ops->upload(be, s->topk, list, n * INDEX_TOPK * sizeof *list);
    s->sink = (di_tensor){.dtype = DI_F32, .rank = 1, .shape = {HEADS}, .data = s->sinks};
    wait_for_all();
    di_free(list);
}

static void close_scene(scene *s) {
    void *buffers[] = {s->step.pool.blocks, s->step.pool.slots, s->records,    s->q,    s->out,
                       s->index_q,          s->index_weights,   s->candidates, s->topk, s->rope.cos,
                       s->rope.sin};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        be->ops->free(be, buffers[i]);
    }
    di_free(s->blocks);
    di_free(s->seqs);
    di_cuda_forget(be);
}

static void bench_attention(void) {
    static const int shapes[][2] = {/* sequences, rows of each */
                                    {1, 1},  {8, 1},   {13, 1},  {16, 1},  {32, 1},
                                    {64, 1}, {128, 1}, {256, 1}, {1, 2048}};
    static scene s;
    for (size_t i = 0; wanted("attention") && i < sizeof shapes / sizeof *shapes; i++) {
        char name[96];
        double n = shapes[i][0] * shapes[i][1], keys = WINDOW + INDEX_TOPK;
        open_scene(&s, shapes[i][0], shapes[i][1], 8192);
        snprintf(name, sizeof name, "attention, %d x %d rows, context 8192", shapes[i][0],
                 shapes[i][1]);
        double bytes = n * (WINDOW * (double)s.layout.window_bytes +
                            INDEX_TOPK * (double)s.layout.latent_bytes + 4.0 * HEADS * HEAD_DIM);
        tell(name, per_call(attend, &s, 1), bytes, 4.0 * n * HEADS * HEAD_DIM * keys);
        close_scene(&s);
    }
}

static void bench_index(void) {
    static const int shapes[][3] = {/* sequences, rows of each, context */
                                    {1, 1, 8192},  {1, 1, 131072}, {8, 1, 131072},
                                    {64, 1, 8192}, {1, 512, 8192}, {1, 128, 131072}};
    static scene s;
    for (size_t i = 0; wanted("index") && i < sizeof shapes / sizeof *shapes; i++) {
        for (int listed = 0; listed < 2; listed++) {
            char name[96];
            int64_t context = shapes[i][2];
            double n = shapes[i][0] * shapes[i][1];
            double entries = listed && context > 16384 ? 16384 : (double)context;
            open_scene(&s, shapes[i][0], shapes[i][1], context);
            search(&s, 0); /* makes the candidates */
            s.listed = listed;
            snprintf(name, sizeof name, "index%s, %d x %d rows, context %lld",
                     listed ? " of candidates" : "", shapes[i][0], shapes[i][1],
                     (long long)context);
            tell(name, per_call(search, &s, 1),
                 (listed ? n : shapes[i][0]) * entries * (double)s.layout.key_bytes,
                 2.0 * n * entries * INDEX_HEADS * INDEX_DIM);
            close_scene(&s);
        }
    }
}

/* ---- what a step writes ----------------------------------------------------------------------*/

enum { GROUP = 2, /* tokens of a compressed entry */ MOST_WRITTEN = 2048 };

typedef struct written {
    scene s;
    di_entry entries[MOST_WRITTEN], groups[MOST_WRITTEN / GROUP];
    int num_groups;
    float *k, *g;
    di_bf16 *kv, *latents, *keys;
    di_tensor norm;
} written;

static void make_records(void *user, int i) {
    const written *w = user;
    (void)i;
    be->ops->window_make(be, w->kv, w->s.step.num_rows, HEAD_DIM, &w->norm, 1e-6f, w->s.rope,
                         w->s.records);
}

static void store_records(void *user, int i) {
    const written *w = user;
    (void)i;
    be->ops->window_store(be, &w->s.step, 0, w->s.records);
}

static void close_groups(void *user, int i) {
    const written *w = user;
    (void)i;
    be->ops->compress(be, &w->s.step, 0, GROUP, w->k, w->g, w->groups, w->num_groups, HEAD_DIM,
                      w->latents);
}

static void store_entries(void *user, int i) {
    const written *w = user;
    (void)i;
    be->ops->entry_store(be, &w->s.step, 0, 1, w->entries, w->s.step.num_rows, w->latents, HEAD_DIM,
                         w->keys, INDEX_DIM);
}

static void decode_keys(void *user, int i) {
    const written *w = user;
    (void)i;
    be->ops->attention_keys(be, &w->s.step, 0, WINDOW, 0, 1, HEADS, HEAD_DIM, w->s.records,
                            w->s.topk, INDEX_TOPK);
}

static void list_entries(written *w) {
    w->num_groups = 0;
    for (int i = 0; i < w->s.step.num_seqs; i++) {
        const di_seq_rows *q = &w->s.seqs[i];
        for (int j = 0; j < q->num_rows; j++) {
            int64_t at = q->pos0 + j;
            w->entries[q->row0 + j] = (di_entry){.seq = i, .entry = at};
            if ((at + 1) % GROUP == 0) {
                w->groups[w->num_groups++] = (di_entry){.seq = i, .entry = at / GROUP};
            }
        }
    }
}

static void bench_written(void) {
    static const int shapes[][2] = {{1, 1}, {8, 1}, {64, 1}, {256, 1}, {1, MOST_WRITTEN}};
    static written w;
    static di_bf16 norm[HEAD_DIM];
    w.norm = (di_tensor){.dtype = DI_BF16, .rank = 1, .shape = {HEAD_DIM}, .data = norm};
    for (size_t i = 0; wanted("written") && i < sizeof shapes / sizeof *shapes; i++) {
        open_scene(&w.s, shapes[i][0], shapes[i][1], 8192);
        list_entries(&w);
        size_t n = (size_t)w.s.step.num_rows;
        double rows = (double)n, groups = w.num_groups, record = (double)w.s.layout.window_bytes;
        double entry = (double)(w.s.layout.latent_bytes + w.s.layout.key_bytes);
        int kept = shapes[i][1] < RING_ROWS ? shapes[i][1] : RING_ROWS;
        w.k = (float *)(void *)device_bf16(n * HEAD_DIM * 2);
        w.g = (float *)(void *)device_bf16(n * HEAD_DIM * 2);
        w.kv = device_bf16(n * HEAD_DIM);
        w.latents = device_bf16(n * HEAD_DIM);
        w.keys = device_bf16(n * INDEX_DIM);
        const struct {
            const char *name;
            call_fn *call;
            double bytes;
        } ops[] = {
            {"window records made", make_records, rows * (2 * HEAD_DIM + record)},
            {"window records stored", store_records, 2.0 * shapes[i][0] * kept * record},
            {"groups closed", close_groups, rows * 8 * HEAD_DIM + groups * 2 * HEAD_DIM},
            {"entries stored", store_entries, rows * (2 * (HEAD_DIM + INDEX_DIM) + entry)},
            {"keys decoded", decode_keys, rows * (WINDOW + INDEX_TOPK) * 2 * HEAD_DIM},
        };
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
            char name[96];
            if (ops[k].call == decode_keys && (n > 8 || !be->ops->attention_keys)) {
                continue; /* for few rows alone */
            }
            snprintf(name, sizeof name, "written: %s, %d x %d rows", ops[k].name, shapes[i][0],
                     shapes[i][1]);
            tell(name, per_call(ops[k].call, &w, 1), ops[k].bytes, 0);
        }
        void *buffers[] = {w.k, w.g, w.kv, w.latents, w.keys};
        for (size_t k = 0; k < sizeof buffers / sizeof *buffers; k++) {
            be->ops->free(be, buffers[k]);
        }
        close_scene(&w.s);
    }
}

int main(int argc, char **argv) {
    if (!card_open(argc, argv)) {
        return 0;
    }
    bench_attention();
    bench_index();
    bench_written();
    card_close();
    return 0;
}
