/* The attention core. A task is one query and a group of its heads: it decodes the 64 keys of a
 * list block into scratch, takes all its heads' scores against them, and adds the values up. */
#include <math.h>
#include <string.h>

#include "ops/address.h"
#include "ops/cpu/internal.h"
#include "ops/fmath.h"

enum { HEAD_GROUP = 8, SLOTS = DI_CPU_SLOTS };

typedef struct attention_call {
    di_cpu *cpu;
    const di_step *step;
    int layer, window, source, ratio, heads, dim, k;
    const di_bf16 *q;
    const uint8_t *records;
    const int32_t *topk;
    const float *sink;
    di_bf16 *out;
    size_t ld; /* floats from one row in lane order to the next */
} attention_call;

/* One task's scratch memory, all rows in lane order. */
typedef struct head_group {
    int first, count;
    float *keys; /* [SLOTS + PAD_ROWS] */
    float *q;    /* [count] */
    float *sum;  /* [count] */
    float *p;    /* [count][SLOTS] */
    float *peak, *total, *fade;
} head_group;

static size_t scratch_floats(const attention_call *c, int heads) {
    return (SLOTS + DI_CPU_PAD_ROWS + 2 * (size_t)heads) * c->ld + (size_t)heads * (SLOTS + 3);
}

static head_group lay_out(const attention_call *c, float *scratch, int first, int count) {
    head_group g = {.first = first, .count = count, .keys = scratch};
    size_t n = (size_t)count;
    g.q = g.keys + (SLOTS + DI_CPU_PAD_ROWS) * c->ld;
    g.sum = g.q + n * c->ld;
    g.p = g.sum + n * c->ld;
    g.peak = g.p + n * SLOTS;
    g.total = g.peak + n;
    g.fade = g.total + n;
    return g;
}

/* The record in a list slot of the query at p, or NULL for an empty slot. */
static const uint8_t *window_slot(const attention_call *c, const di_seq_rows *seq, int64_t p,
                                  int slot) {
    if (seq->draft) {
        p = seq->pos0 - 1;
    }
    int64_t oldest = p - c->window + 1;
    int64_t pos = (oldest > seq->window_start ? oldest : seq->window_start) + slot;
    if (pos > p) {
        return NULL;
    }
    if (pos >= seq->pos0) {
        size_t row = (size_t)(seq->row0 + (pos - seq->pos0));
        return c->records + row * c->step->pool.layout->window_bytes;
    }
    return di_ring_row(&c->step->pool, seq->slot, c->layer, pos);
}

/* Decodes the filled slots of list block [begin, end) one behind the other; returns their number.
 */
static int decode_block(const attention_call *c, const di_seq_rows *seq, int64_t p,
                        const int32_t *topk, int begin, int end, float *keys) {
    int n = 0;
    for (int slot = begin; slot < end; slot++) {
        float *to = keys + (size_t)n * c->ld;
        if (slot < c->window) {
            const uint8_t *record = window_slot(c, seq, p, slot);
            if (record) {
                c->cpu->k->window_row(record, c->dim, to);
                n++;
            }
        } else if (seq->draft) {
            size_t row = (size_t)seq->row0 + (size_t)(slot - c->window);
            c->cpu->k->window_row(c->records + row * c->step->pool.layout->window_bytes, c->dim,
                                  to);
            n++;
        } else if (topk[slot - c->window] >= 0) {
            c->cpu->k->latent_row(di_latent_row(&c->step->pool, seq->blocks, c->source, c->ratio,
                                                topk[slot - c->window]),
                                  c->dim, to);
            n++;
        }
    }
    return n;
}

static void attend_block(const attention_call *c, const head_group *g, int n) {
    const di_cpu_kernels *k = c->cpu->k;
    float scale = (float)(1 / sqrt((double)c->dim));
    k->dots(g->q, c->ld, g->count, g->keys, c->ld, n, c->dim, g->p, SLOTS);
    for (int h = 0; h < g->count; h++) {
        g->fade[h] = k->softmax(g->p + h * SLOTS, n, scale, &g->peak[h], &g->total[h]);
    }
    k->values(g->p, SLOTS, g->count, g->keys, c->ld, n, c->dim, g->fade, g->sum, c->ld);
}

/* Heads of g for row t of a sequence. */
static void attend(const attention_call *c, const di_seq_rows *seq, int t, const head_group *g) {
    size_t row = (size_t)seq->row0 + (size_t)t;
    size_t at = (row * (size_t)c->heads + (size_t)g->first) * (size_t)c->dim;
    const int32_t *topk = c->topk ? c->topk + row * (size_t)c->k : NULL;
    int slots = c->window + (seq->draft ? seq->num_rows : topk ? c->k : 0);
    for (int h = 0; h < g->count; h++) {
        c->cpu->k->widen(c->q + at + (size_t)h * (size_t)c->dim, c->dim, g->q + (size_t)h * c->ld);
        memset(g->sum + (size_t)h * c->ld, 0, c->ld * sizeof(float));
        g->peak[h] = -1e30f;
        g->total[h] = 0;
    }
    for (int begin = 0; begin < slots; begin += SLOTS) {
        int end = begin + SLOTS < slots ? begin + SLOTS : slots;
        int n = decode_block(c, seq, seq->pos0 + t, topk, begin, end, g->keys);
        if (n > 0) {
            attend_block(c, g, n);
        }
    }
    for (int h = 0; h < g->count; h++) {
        float total = g->total[h] + di_expf(c->sink[g->first + h] - g->peak[h]);
        c->cpu->k->finish(g->sum + (size_t)h * c->ld, total, c->dim,
                          c->out + at + (size_t)h * (size_t)c->dim);
    }
}

/* Heads in a task: all of them when there are queries enough for the threads. */
static int heads_per_task(const attention_call *c, int threads) {
    int groups = c->step->num_rows >= 4 * threads ? 1 : 2 * threads;
    int heads = (c->heads + groups - 1) / groups;
    heads = (heads + HEAD_GROUP - 1) / HEAD_GROUP * HEAD_GROUP;
    return heads < c->heads ? heads : c->heads;
}

/* Sequence of each of the step's rows; NULL without memory. */
static const int32_t *list_owners(const attention_call *c) {
    const di_step *step = c->step;
    size_t rows = (size_t)step->num_rows;
    int32_t *owner = di_cpu_scratch(c->cpu, DI_CPU_USE_LIST, rows, sizeof *owner);
    for (int s = 0; owner && s < step->num_seqs; s++) {
        for (int t = 0; t < step->seqs[s].num_rows; t++) {
            owner[step->seqs[s].row0 + t] = s;
        }
    }
    return owner;
}

typedef struct attention_loop {
    const attention_call *c;
    const int32_t *owner; /* of each row: its sequence */
    int heads, groups;    /* heads of a task, tasks of a row */
    float *scratch;
    size_t stride;
} attention_loop;

static void attend_rows(void *arg, int64_t begin, int64_t end, int member) {
    const attention_loop *l = arg;
    const attention_call *c = l->c;
    for (int64_t task = begin; task < end; task++) {
        int row = (int)(task / l->groups), first = (int)(task % l->groups) * l->heads;
        int count = c->heads - first < l->heads ? c->heads - first : l->heads;
        const di_seq_rows *seq = &c->step->seqs[l->owner[row]];
        head_group g = lay_out(c, l->scratch + (size_t)member * l->stride, first, count);
        attend(c, seq, row - seq->row0, &g);
    }
}

static void run(const attention_call *c) {
    const di_step *step = c->step;
    double work = (double)step->num_rows * c->heads * (c->window + c->k) * c->dim / 8;
    int threads = di_cpu_threads_for(c->cpu, work), heads = heads_per_task(c, threads);
    int groups = (c->heads + heads - 1) / heads;
    size_t stride;
    const int32_t *owner = list_owners(c);
    float *scratch = di_cpu_thread_scratch(c->cpu, scratch_floats(c, heads), &stride);
    if (c->cpu->failed) {
        return;
    }
    attention_loop loop = {c, owner, heads, groups, scratch, stride};
    di_cpu_for(c->cpu, work, (int64_t)step->num_rows * groups, attend_rows, &loop);
}

void di_cpu_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                      int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                      const uint8_t *records, const int32_t *topk, int k, const di_tensor *sink,
                      di_bf16 *out) {
    attention_call c = {
        .cpu = di_cpu_of(be),
        .step = step,
        .layer = layer,
        .window = window,
        .source = source,
        .ratio = ratio,
        .heads = heads,
        .dim = dim,
        .k = k,
        .q = q,
        .records = records,
        .topk = topk,
        .sink = sink->data,
        .out = out,
        .ld = di_cpu_row_floats(dim),
    };
    if (!c.cpu->failed) {
        di_cpu_rope(be, q, step->num_rows, heads, dim, table, false);
        run(&c);
        di_cpu_rope(be, out, step->num_rows, heads, dim, table, true);
    }
}
