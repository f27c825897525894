/* Ops on single rows: embedding, gathering, norm, rotation. */
#include <math.h>
#include <string.h>

#include "ops/cpu/internal.h"

void di_cpu_embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table, int hc,
                  di_bf16 *h, float *pre) {
    if (di_cpu_of(be)->failed) {
        return;
    }
    size_t d = (size_t)table->shape[1];
    for (int t = 0; t < n; t++) {
        const di_bf16 *row = (const di_bf16 *)table->data + (size_t)tokens[t] * d;
        for (int i = 0; i < hc; i++) {
            memcpy(h + ((size_t)t * (size_t)hc + (size_t)i) * d, row, d * sizeof *row);
            pre[t * hc + i] = i == 0;
        }
    }
}

void di_cpu_gather_rows(di_backend *be, const void *from, const int32_t *rows, int n, size_t bytes,
                        void *to) {
    if (di_cpu_of(be)->failed) {
        return;
    }
    for (int i = 0; i < n; i++) {
        memcpy((char *)to + (size_t)i * bytes, (const char *)from + (size_t)rows[i] * bytes, bytes);
    }
}

typedef struct norm_loop {
    const di_cpu_kernels *k;
    const di_bf16 *x, *w;
    di_bf16 *y;
    float eps;
    size_t dim;
} norm_loop;

static void norm_rows(void *arg, int64_t begin, int64_t end, int member) {
    const norm_loop *c = arg;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        const di_bf16 *row = c->x + t * c->dim;
        double mean = c->k->squares(row, c->dim) / (double)c->dim;
        float rho = (float)(1 / sqrt(mean + (double)c->eps));
        c->k->scale_row(row, c->w, rho, c->dim, c->y + t * c->dim);
    }
}

void di_cpu_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                     int dim, di_bf16 *y, di_bf16 *q8) {
    di_cpu *cpu = di_cpu_of(be);
    if (cpu->failed) {
        return;
    }
    norm_loop loop = {cpu->k, x, w->data, y ? y : q8, eps, (size_t)dim};
    di_cpu_for(cpu, (double)n * dim * 2, n, norm_rows, &loop);
    if (q8) {
        di_cpu_q8_rows(cpu, loop.y, n, dim, q8);
    }
}

void di_cpu_rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                       di_rope_table table) {
    if (di_cpu_of(be)->failed) {
        return;
    }
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < table.half; i++) {
            float angle = (float)positions[t] * freq[i];
            table.cos[t * table.half + i] = (float)cos((double)angle);
            table.sin[t * table.half + i] = (float)sin((double)angle);
        }
    }
}

static void rotate(di_bf16 *x, const float *cosine, const float *sine, int half, float sign) {
    for (int i = 0; i < half; i++) {
        float a = di_bf16_to_f32(x[2 * i]), b = di_bf16_to_f32(x[2 * i + 1]), s = sign * sine[i];
        x[2 * i] = di_bf16_from_f32(a * cosine[i] - b * s);
        x[2 * i + 1] = di_bf16_from_f32(a * s + b * cosine[i]);
    }
}

typedef struct rope_loop {
    di_bf16 *x;
    size_t heads, dim;
    di_rope_table table;
    float sign;
} rope_loop;

static void rotate_rows(void *arg, int64_t begin, int64_t end, int member) {
    const rope_loop *c = arg;
    int half = c->table.half;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        size_t row = t * (size_t)half;
        for (size_t h = 1; h <= c->heads; h++) {
            di_bf16 *behind = c->x + (t * c->heads + h) * c->dim;
            rotate(behind - 2 * half, c->table.cos + row, c->table.sin + row, half, c->sign);
        }
    }
}

void di_cpu_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                 bool inverse) {
    di_cpu *cpu = di_cpu_of(be);
    if (cpu->failed) {
        return;
    }
    rope_loop loop = {x, (size_t)heads, (size_t)dim, table, inverse ? -1.0f : 1.0f};
    di_cpu_for(cpu, (double)n * heads * table.half * 8, n, rotate_rows, &loop);
}
