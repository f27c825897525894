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

void di_cpu_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                     int dim, di_bf16 *y) {
    di_cpu *cpu = di_cpu_of(be);
    if (cpu->failed) {
        return;
    }
    double work = (double)n * dim * 2;
#pragma omp parallel for num_threads(di_cpu_threads_for(cpu, work))
    for (int t = 0; t < n; t++) {
        const di_bf16 *row = x + (size_t)t * (size_t)dim;
        float rho = (float)(1 / sqrt(cpu->k->squares(row, (size_t)dim) / dim + (double)eps));
        cpu->k->scale_row(row, w->data, rho, (size_t)dim, y + (size_t)t * (size_t)dim);
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

void di_cpu_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                 bool inverse) {
    di_cpu *cpu = di_cpu_of(be);
    if (cpu->failed) {
        return;
    }
    double work = (double)n * heads * table.half * 8;
#pragma omp parallel for num_threads(di_cpu_threads_for(cpu, work))
    for (int t = 0; t < n; t++) {
        size_t row = (size_t)t * (size_t)table.half;
        for (int h = 0; h < heads; h++) {
            di_bf16 *end = x + ((size_t)t * (size_t)heads + (size_t)h + 1) * (size_t)dim;
            rotate(end - 2 * table.half, table.cos + row, table.sin + row, table.half,
                   inverse ? -1.0f : 1.0f);
        }
    }
}
