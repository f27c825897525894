/* N-gram table rows through one product, and the gate that adds them to the streams. */
#include <math.h>
#include <string.h>

#include "ops/cpu/internal.h"
#include "ops/fmath.h"

enum { ENGRAM_BATCH = 2 * DI_CPU_PRODUCT_ROWS };

typedef struct engram_call {
    di_cpu *cpu;
    int columns, hc;
    const di_tensor *table, *wkv, *q_weight, *k_weight;
    size_t d;
    float eps;
} engram_call;

/* One token's table rows, codes times scales, side by side in lane order. A table row is a window
 * record's layout cut in two: its codes and its scales lie apart. */
static void look_up(const engram_call *c, const int64_t *rows, float *a) {
    int width = (int)c->table->shape[1], scales = width / 32;
    uint8_t record[8192 + 256];
    for (int i = 0; i < c->columns; i++) {
        const uint8_t *codes = (const uint8_t *)c->table->data + (size_t)rows[i] * (size_t)width;
        for (int b = 0; b < width; b += 8192) {
            int n = width - b < 8192 ? width - b : 8192;
            memcpy(record, codes + b, (size_t)n);
            memcpy(record + n, c->table->scale + (size_t)rows[i] * (size_t)scales + b / 32,
                   (size_t)n / 32);
            c->cpu->k->window_row(record, n, a + (size_t)i * (size_t)width + b);
        }
    }
}

/* kv: keys of the hc streams, then the value, [hc + 1][d]. */
static void add_gated(const engram_call *c, const di_bf16 *kv, int stream, di_bf16 *h) {
    const di_cpu_kernels *k = c->cpu->k;
    size_t d = c->d, at = (size_t)stream * d;
    const di_bf16 *key = kv + at;
    double h_square = k->squares(h, d) / (double)d, key_square = k->squares(key, d) / (double)d;
    double dot = k->triple(h, (const di_bf16 *)c->q_weight->data + at,
                           (const di_bf16 *)c->k_weight->data + at, key, d);
    dot =
        dot / sqrt(h_square + (double)c->eps) / sqrt(key_square + (double)c->eps) / sqrt((double)d);
    double size = fabs(dot) < 1e-6 ? 1e-6 : fabs(dot);
    float gate = (float)(1 / (1 + di_exp64(-copysign(sqrt(size), dot))));
    k->add_scaled(kv + (size_t)c->hc * d, gate, d, h);
}

/* One batch on its way. */
typedef struct engram_loop {
    const engram_call *c;
    const int64_t *rows;
    const int32_t *tokens; /* row numbers of h, those that are not skipped */
    float *a;
    const float **list;
    const di_bf16 *kv;
    di_bf16 *h;
    size_t ld, out;
} engram_loop;

static void look_up_rows(void *arg, int64_t begin, int64_t end, int member) {
    const engram_loop *l = arg;
    (void)member;
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        l->list[i] = l->a + i * l->ld;
        look_up(l->c, l->rows + (size_t)l->tokens[i] * (size_t)l->c->columns, l->a + i * l->ld);
    }
}

static void gate_streams(void *arg, int64_t begin, int64_t end, int member) {
    const engram_loop *l = arg;
    size_t hc = (size_t)l->c->hc;
    (void)member;
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        size_t row = (size_t)l->tokens[i / hc], stream = i % hc;
        add_gated(l->c, l->kv + i / hc * l->out, (int)stream, l->h + (row * hc + stream) * l->c->d);
    }
}

static void engram_batch(const engram_call *c, const int64_t *rows, const int32_t *tokens, int n,
                         di_bf16 *h) {
    di_cpu *cpu = c->cpu;
    int k = (int)c->wkv->shape[1];
    size_t out = (size_t)c->wkv->shape[0], ld = di_cpu_row_floats(k);
    float *a = di_cpu_scratch(cpu, DI_CPU_USE_A, (size_t)n, ld * sizeof *a);
    const float **list = di_cpu_scratch(cpu, DI_CPU_USE_ROWS, (size_t)n, sizeof *list);
    di_bf16 *kv = di_cpu_scratch(cpu, DI_CPU_USE_X, (size_t)n, out * sizeof *kv);
    if (cpu->failed) {
        return;
    }
    engram_loop loop = {c, rows, tokens, a, list, kv, h, ld, out};
    di_cpu_for(cpu, (double)n * k, n, look_up_rows, &loop);
    di_cpu_job job = {
        .w = di_cpu_matrix_of(c->wkv),
        .rows = (int64_t)out,
        .a = list,
        .m = n,
        .yb = kv,
        .ldy = out,
    };
    di_cpu_run(cpu, &job, 1);
    if (cpu->failed) {
        return;
    }
    di_cpu_for(cpu, (double)n * c->hc * (double)c->d * 4, n * c->hc, gate_streams, &loop);
}

void di_cpu_engram(di_backend *be, const int64_t *rows, int n, int columns, const di_tensor *table,
                   const di_tensor *wkv, const di_tensor *q_weight, const di_tensor *k_weight,
                   int hc, int d, float eps, di_bf16 *h) {
    engram_call c = {di_cpu_of(be), columns, hc, table, wkv, q_weight, k_weight, (size_t)d, eps};
    int32_t tokens[ENGRAM_BATCH];
    int m = 0;
    for (int t = 0; t < n && !c.cpu->failed; t++) {
        if (rows[(size_t)t * (size_t)columns] >= 0) {
            tokens[m++] = t;
        }
        if (m == ENGRAM_BATCH || (t == n - 1 && m > 0)) {
            engram_batch(&c, rows, tokens, m, h);
            m = 0;
        }
    }
}
