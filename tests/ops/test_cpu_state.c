/* The CPU backend's ops on the state of sequences (window, compressor, entries, index, attention),
 * played as steps of two sequences: against the oracle, against itself, and cut in other ways. */
#include <string.h>

#include "ops/cpu/cpu.h"
#include "support/cmocka.h"
#include "support/mirror.h"
#include "support/op_cases.h"

/* A probability next to a BF16 tie may round the other way: 2^-9 of one term. Where such a result
 * is rotated, it may be two steps off. */
static const part attention_steps = {.ulp = 2, .small = 0x1p-9f, .one_in = 10};

/* ---- state ------------------------------------------------------------------------------------*/

/* Two sequences with everything that reads and writes their state, in steps of the given sizes. */
typedef struct scene {
    int head_dim, key_dim, heads, key_heads, window, ratio, k, max_blocks, block_size;
    int64_t window_start; /* of the second sequence */
    bool coarse;          /* few distinct index scores: ties everywhere */
    values_kind kind;
} scene;

enum { SCENE_TOKENS = 75 };

typedef struct scene_data { /* [2 * SCENE_TOKENS] rows, the second sequence behind the first */
    di_bf16 *q, *kv, *index_q, *index_w, *latents, *keys;
    float *k, *g, *sink;
    di_rope_table rope;
    di_tensor norm;
} scene_data;

typedef struct scene_output {
    uint8_t *records;
    di_bf16 *attention, *pooled;
    int32_t *topk, *candidates, *narrow;
} scene_output;

static scene_data make_data(arrays *a, const scene *s) {
    size_t n = 2 * SCENE_TOKENS, hd = (size_t)s->head_dim, kd = (size_t)s->key_dim;
    scene_data d = {
        .q = random_bf16(a, n * (size_t)s->heads, hd, 1.5f, VALUES_CALM),
        .kv = random_bf16(a, n, hd, 1, s->kind),
        .index_q = random_bf16(a, n * (size_t)s->key_heads, kd, 1, VALUES_CALM),
        .index_w = random_bf16(a, n, (size_t)s->key_heads, 1, VALUES_CALM),
        .latents = random_bf16(a, n, hd, 1, s->kind),
        .keys = random_bf16(a, n, kd, 1, VALUES_CALM),
        .k = random_f32(a, n * hd, 1),
        .g = random_f32(a, n * hd, 3),
        .sink = random_f32(a, (size_t)s->heads, 1),
        .rope = {.half = s->head_dim / 4 - 1}, /* begins in the middle of things */
        .norm = random_tensor(a, DI_BF16, 1, s->head_dim),
    };
    d.rope.cos = random_f32(a, n * (size_t)d.rope.half, 1);
    d.rope.sin = random_f32(a, n * (size_t)d.rope.half, 1);
    for (size_t i = 0; s->coarse && i < n * kd; i++) {
        d.keys[i] = di_bf16_from_f32((float)(random_below(a, 3) - 1));
    }
    for (size_t i = 0; s->coarse && i < n * kd * (size_t)s->key_heads; i++) {
        d.index_q[i] = di_bf16_from_f32(i % 7 ? 0 : 1);
    }
    for (size_t i = 0; s->coarse && i < n * (size_t)s->key_heads; i++) {
        d.index_w[i] = di_bf16_from_f32(1);
    }
    return d;
}

static scene_output make_output(arrays *a, const scene *s, const di_state_layout *l) {
    size_t n = 2 * SCENE_TOKENS;
    return (scene_output){
        .records = arrays_take(a, n, l->window_bytes),
        .attention = arrays_take(a, n, (size_t)(s->heads * s->head_dim) * 2),
        .pooled = arrays_take(a, n, (size_t)s->head_dim * 2),
        .topk = arrays_take(a, n, (size_t)s->k * 4),
        .candidates = arrays_take(a, n, (size_t)s->max_blocks * 4),
        .narrow = arrays_take(a, n, (size_t)s->k * 4),
    };
}

/* Copies rows between the scene's order (by sequence) and a step's order. */
static void copy_rows(void *to, size_t to_row, const void *from, size_t from_row, int n,
                      size_t bytes) {
    memcpy((char *)to + to_row * bytes, (const char *)from + from_row * bytes, (size_t)n * bytes);
}

static int list_entries(const di_step *step, int ratio, di_entry *entries) {
    int m = 0;
    for (int s = 0; s < step->num_seqs; s++) {
        int64_t begin = step->seqs[s].pos0 / ratio;
        int64_t end = (step->seqs[s].pos0 + step->seqs[s].num_rows) / ratio;
        for (int64_t e = begin; e < end; e++) {
            entries[m++] = (di_entry){s, e};
        }
    }
    return m;
}

static void run_step(di_backend *be, const scene *s, const di_step *step, const scene_data *d,
                     scene_output *o) {
    const di_ops *ops = be->ops;
    di_entry entries[2 * SCENE_TOKENS];
    di_tensor sink = {.dtype = DI_F32, .data = d->sink};
    int n = step->num_rows, m = list_entries(step, s->ratio, entries);
    ops->window_make(be, d->kv, n, s->head_dim, &d->norm, 1e-20f, d->rope, o->records);
    ops->compress(be, step, 0, s->ratio, d->k, s->ratio > 1 ? d->g : NULL, entries, m, s->head_dim,
                  o->pooled);
    ops->entry_store(be, step, 0, s->ratio, entries, m, d->latents, s->head_dim, d->keys,
                     s->key_dim);
    ops->index_topk(be, step, 0, s->ratio, d->index_q, d->index_w, s->key_heads, s->key_dim, s->k,
                    s->max_blocks ? o->candidates : NULL, true, s->max_blocks, s->block_size,
                    o->topk);
    if (s->max_blocks) {
        ops->index_topk(be, step, 0, s->ratio, d->index_q, d->index_w, s->key_heads, s->key_dim,
                        s->k, o->candidates, false, s->max_blocks, s->block_size, o->narrow);
    }
    ops->attention(be, step, 0, s->window, 0, s->ratio, d->q, s->heads, s->head_dim, d->rope,
                   o->records, s->max_blocks ? o->narrow : o->topk, s->k, &sink, o->attention);
    ops->window_store(be, step, 0, o->records);
}

/* The step's rows of all inputs; and a row's worth of results back into the scene's order. Latents
 * and keys go by entry. */
static void gather(const scene *s, const di_step *step, const scene_data *all, scene_data *d) {
    size_t hd = (size_t)s->head_dim, kd = (size_t)s->key_dim;
    di_entry entries[2 * SCENE_TOKENS];
    int m = list_entries(step, s->ratio, entries);
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *q = &step->seqs[i];
        size_t to = (size_t)q->row0, from = (size_t)q->slot * SCENE_TOKENS + (size_t)q->pos0;
        int n = q->num_rows;
        copy_rows(d->q, to, all->q, from, n, hd * (size_t)s->heads * 2);
        copy_rows(d->kv, to, all->kv, from, n, hd * 2);
        copy_rows(d->index_q, to, all->index_q, from, n, kd * (size_t)s->key_heads * 2);
        copy_rows(d->index_w, to, all->index_w, from, n, (size_t)s->key_heads * 2);
        copy_rows(d->k, to, all->k, from, n, hd * 4);
        copy_rows(d->g, to, all->g, from, n, hd * 4);
        copy_rows(d->rope.cos, to, all->rope.cos, from, n, (size_t)all->rope.half * 4);
        copy_rows(d->rope.sin, to, all->rope.sin, from, n, (size_t)all->rope.half * 4);
    }
    for (int i = 0; i < m; i++) {
        size_t from = (size_t)step->seqs[entries[i].seq].slot * SCENE_TOKENS;
        from += (size_t)entries[i].entry;
        copy_rows(d->latents, (size_t)i, all->latents, from, 1, hd * 2);
        copy_rows(d->keys, (size_t)i, all->keys, from, 1, kd * 2);
    }
}

static void scatter(const scene *s, const di_step *step, const scene_output *o, scene_output *all,
                    const di_state_layout *l) {
    size_t hd = (size_t)s->head_dim;
    di_entry entries[2 * SCENE_TOKENS];
    int m = list_entries(step, s->ratio, entries);
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *q = &step->seqs[i];
        size_t from = (size_t)q->row0, to = (size_t)q->slot * SCENE_TOKENS + (size_t)q->pos0;
        int n = q->num_rows;
        copy_rows(all->records, to, o->records, from, n, l->window_bytes);
        copy_rows(all->attention, to, o->attention, from, n, hd * (size_t)s->heads * 2);
        copy_rows(all->topk, to, o->topk, from, n, (size_t)s->k * 4);
        copy_rows(all->candidates, to, o->candidates, from, n, (size_t)s->max_blocks * 4);
        copy_rows(all->narrow, to, o->narrow, from, n, (size_t)s->k * 4);
    }
    for (int i = 0; i < m; i++) {
        size_t to = (size_t)step->seqs[entries[i].seq].slot * SCENE_TOKENS;
        copy_rows(all->pooled, to + (size_t)entries[i].entry, o->pooled, (size_t)i, 1, hd * 2);
    }
}

/* chunk: tokens of a step and sequence; 0 = sizes that change, and sequences out of step. */
static void play(di_backend *be, arrays *a, const scene *s, int chunk, results *r) {
    enum { BLOCK_TOKENS = 8, BLOCKS = 2 * (SCENE_TOKENS / BLOCK_TOKENS + 1) };
    di_state_layout *l =
        small_layout(a, s->head_dim, s->key_dim, BLOCK_TOKENS, s->window + 3, s->ratio + 3);
    di_state_pool pool = small_pool(a, l, BLOCKS, 2);
    int32_t blocks[2][BLOCKS / 2];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i % 2][i / 2] = i * 7 % BLOCKS; /* scattered */
    }
    arrays fixed = {.seed = 7}, spare = {.seed = 8};
    scene_data data = make_data(&fixed, s), now = make_data(&spare, s);
    scene_output all = make_output(a, s, l), o = make_output(&spare, s, l);
    int64_t done[2] = {0};
    now.sink = data.sink;
    now.norm = data.norm;
    for (int turn = 0; done[0] < SCENE_TOKENS || done[1] < SCENE_TOKENS; turn++) {
        di_seq_rows seqs[2];
        di_step step = {.seqs = seqs, .pool = pool};
        for (int i = 0; i < 2; i++) {
            int left = SCENE_TOKENS - (int)done[i];
            int n = chunk ? chunk : (turn * 5 + i * 3) % 11;
            n = n < left ? n : left;
            if (n > 0) {
                seqs[step.num_seqs++] = (di_seq_rows){.row0 = step.num_rows,
                                                      .num_rows = n,
                                                      .pos0 = done[i],
                                                      .window_start = i ? s->window_start : 0,
                                                      .blocks = blocks[i],
                                                      .slot = i};
                step.num_rows += n;
            }
            done[i] += n;
        }
        gather(s, &step, &data, &now);
        run_step(be, s, &step, &now, &o);
        scatter(s, &step, &o, &all, l);
    }
    size_t n = 2 * SCENE_TOKENS;
    add_part(r, PART_BYTES, all.records, n * l->window_bytes, exact);
    add_part(r, PART_BYTES, pool.blocks, BLOCKS * l->block_stride, exact);
    add_part(r, PART_I32, all.topk, n * (size_t)s->k, exact);
    add_part(r, PART_I32, all.candidates, n * (size_t)s->max_blocks, exact);
    add_part(r, PART_I32, all.narrow, n * (size_t)s->k, exact);
    add_part(r, PART_BF16, all.pooled, n * (size_t)s->head_dim, one_step);
    add_part(r, PART_BF16, all.attention, n * (size_t)(s->heads * s->head_dim), attention_steps);
    add_part(r, PART_BYTES, pool.slots, 2 * l->group_offset[0], exact);
    arrays_free(&fixed);
    arrays_free(&spare);
}

static const scene scenes[] = {
    {64, 32, 3, 2, 16, 2, 5, 0, 4, 0, false, VALUES_CALM},
    {32, 64, 9, 4, 5, 1, 12, 3, 4, 21, false, VALUES_WILD},
    {128, 32, 1, 1, 70, 2, 80, 0, 4, 9, true, VALUES_CALM},
    {64, 32, 17, 5, 64, 1, 10, 6, 3, 0, true, VALUES_CALM},
    {512, 128, 70, 32, 60, 1, 520, 12, 5, 0, false, VALUES_CALM}, /* as large as the model's */
};

/* In the small form (mirror.h) only those that it takes to reach every kernel. */
static int num_scenes(void) {
    return (int)(sizeof scenes / sizeof *scenes) - small_form();
}

static void states(di_backend *be, arrays *a, results *r) {
    for (int i = 0; i < num_scenes(); i++) {
        play(be, a, &scenes[i], 0, r);
    }
}

static void broken_states(di_backend *be, arrays *a, results *r) {
    scene s = scenes[1];
    s.kind = VALUES_BROKEN;
    play(be, a, &s, 7, r);
}

/* A block of drafts beside an ordinary sequence: its rows see the whole window before it and each
 * other, in any order. Prompts shorter and longer than the window, and one cut by window_start. */
static void drafts(di_backend *be, arrays *a, results *r) {
    enum {
        WINDOW = 70,
        DIM = 64,
        HEADS = 5,
        BLOCK = 6,
        RING = WINDOW + BLOCK,
        MOST = 150,
        HALF = 8
    };
    static const int64_t known[][2] = {{1, 0}, {40, 0}, {150, 0}, {100, 80}}; /* tokens, start */
    di_state_layout *l = small_layout(a, DIM, 32, 8, RING, 3);
    di_tensor sink = {.dtype = DI_F32, .data = random_f32(a, HEADS, 1)};
    di_tensor norm = random_tensor(a, DI_BF16, 1, DIM);
    uint8_t *records = arrays_take(a, MOST, l->window_bytes);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        di_seq_rows seqs[2] = {{.num_rows = (int)known[i][0]}, {0}};
        di_step step = {.num_rows = (int)known[i][0], .num_seqs = 1, .seqs = seqs};
        step.pool = small_pool(a, l, 1, 2);
        di_rope_table rope = {random_f32(a, MOST * HALF, 1), random_f32(a, MOST * HALF, 1), HALF};
        di_bf16 *kv = random_bf16(a, MOST, DIM, 1, VALUES_CALM);
        be->ops->window_make(be, kv, step.num_rows, DIM, &norm, 1e-20f, rope, records);
        be->ops->window_store(be, &step, 0, records);
        seqs[0] = (di_seq_rows){.num_rows = 2, .slot = 1};
        seqs[1] = (di_seq_rows){.row0 = 2,
                                .num_rows = BLOCK - (int)i,
                                .pos0 = known[i][0],
                                .window_start = known[i][1],
                                .draft = true};
        step.num_seqs = 2;
        step.num_rows = 2 + seqs[1].num_rows;
        size_t n = (size_t)step.num_rows;
        di_bf16 *q = random_bf16(a, n * HEADS, DIM, 1.5f, VALUES_CALM);
        di_bf16 *out = arrays_take(a, n * HEADS * DIM, sizeof *out);
        kv = random_bf16(a, n, DIM, 1, VALUES_CALM);
        be->ops->window_make(be, kv, (int)n, DIM, &norm, 1e-20f, rope, records);
        be->ops->attention(be, &step, 0, WINDOW, -1, 0, q, HEADS, DIM, rope, records, NULL, 0,
                           &sink, out);
        add_part(r, PART_BF16, out, n * HEADS * DIM, attention_steps);
    }
}

/* ---- tests ------------------------------------------------------------------------------------*/

static void test_state_attention_and_selection_agree_with_the_oracle(void **state) {
    (void)state;
    check_case(states, true);
}

static void test_drafts_see_the_window_and_each_other(void **state) {
    (void)state;
    check_case(drafts, true);
}

static void test_broken_keys_do_no_harm_to_other_rows(void **state) {
    (void)state;
    check_case(broken_states, false);
}

/* However a prompt is cut into steps, and whoever shares them, a token's results are the same. */
static void test_state_ops_do_not_depend_on_how_steps_are_cut(void **state) {
    (void)state;
    static const int chunks[] = {0, 7, 1, 2, 64, SCENE_TOKENS};
    size_t cuts = small_form() ? 1 : sizeof chunks / sizeof *chunks;
    static results want, got;
    for (int i = 0; i < num_scenes(); i++) {
        for (size_t c = 0; c < cuts; c++) {
            arrays a = {.seed = 1}, first = {.seed = 1};
            di_backend *be = card_under_test()
                                 ? mirror_of_card(true)
                                 : di_cpu_create(&(di_cpu_options){.threads = 2}, NULL);
            want.n = got.n = 0;
            play(be, &first, &scenes[i], SCENE_TOKENS, &want);
            play(be, &a, &scenes[i], chunks[c], &got);
            compare(&got, &want, false, "cut in other steps");
            be->ops->destroy(be);
            arrays_free(&a);
            arrays_free(&first);
        }
    }
}

static void test_lack_of_memory_is_reported_by_sync_and_passes(void **state) {
    (void)state;
    check_lack_of_memory(states);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_attention_and_selection_agree_with_the_oracle),
        cmocka_unit_test(test_drafts_see_the_window_and_each_other),
        cmocka_unit_test(test_broken_keys_do_no_harm_to_other_rows),
        cmocka_unit_test(test_state_ops_do_not_depend_on_how_steps_are_cut),
        cmocka_unit_test(test_lack_of_memory_is_reported_by_sync_and_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
