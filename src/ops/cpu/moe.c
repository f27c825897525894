/* Router and experts. The rows of a step are grouped by expert, so that each expert's weights are
 * read once; all products of one kind run in one parallel region, and so even a single row keeps
 * every thread reading. A row's sums do not depend on its company (kernels.h). */
#include <math.h>
#include <string.h>

#include "ops/cpu/internal.h"
#include "ops/fmath.h"

/* ---- router -----------------------------------------------------------------------------------*/

/* Is expert a chosen before expert b? Finite scores first, then larger, then the lower number. */
static bool before(const float *value, int a, int b) {
    bool finite_a = isfinite(value[a]) != 0, finite_b = isfinite(value[b]) != 0;
    if (finite_a != finite_b) {
        return finite_a;
    }
    if (finite_a && value[a] != value[b]) {
        return value[a] > value[b];
    }
    return a < b;
}

/* The top_k first by that order, in ascending number. chosen serves as the sorted list meanwhile.
 */
static void choose(const float *value, int count, int top_k, int32_t *chosen) {
    int n = 0;
    for (int e = 0; e < count; e++) {
        if (n == top_k && !before(value, e, chosen[n - 1])) {
            continue;
        }
        int at = n < top_k ? n++ : n - 1;
        for (; at > 0 && before(value, e, chosen[at - 1]); at--) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = e;
    }
    for (int i = 1; i < n; i++) {
        int32_t e = chosen[i];
        int at = i;
        for (; at > 0 && chosen[at - 1] > e; at--) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = e;
    }
}

typedef struct route_rule {
    int count, top_k;
    float temp, scale;
    bool norm;
} route_rule;

/* logits [count] become scores; value is scratch [count]. */
static void route_row(const route_rule *r, float *logits, const float *bias, float *value,
                      int32_t *experts, float *weights) {
    for (int e = 0; e < r->count; e++) {
        logits[e] = sqrtf(di_softplusf(logits[e] / r->temp));
        value[e] = logits[e] + bias[e];
    }
    choose(value, r->count, r->top_k, experts);
    float sum = 0;
    for (int i = 0; i < r->top_k; i++) {
        weights[i] = logits[experts[i]];
        sum += weights[i];
    }
    for (int i = 0; i < r->top_k; i++) {
        if (r->norm && r->top_k > 1) {
            weights[i] = weights[i] / (sum + 1e-20f);
        }
        weights[i] *= r->scale;
    }
}

typedef struct route_loop {
    const route_rule *rule;
    float *logits, *value; /* [n][count] */
    const float *bias, *bias_vl;
    const uint8_t *image;
    int32_t *experts;
    float *weights;
} route_loop;

static void route_rows(void *arg, int64_t begin, int64_t end, int member) {
    const route_loop *c = arg;
    size_t count = (size_t)c->rule->count, top_k = (size_t)c->rule->top_k;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        const float *bias = c->image && c->image[t] ? c->bias_vl : c->bias;
        route_row(c->rule, c->logits + t * count, bias, c->value + t * count,
                  c->experts + t * top_k, c->weights + t * top_k);
    }
}

void di_cpu_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                  const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image, float temp,
                  int top_k, bool norm, float scale, int32_t *experts, float *weights) {
    di_cpu *cpu = di_cpu_of(be);
    route_rule rule = {(int)gate->shape[0], top_k, temp, scale, norm};
    size_t count = (size_t)rule.count;
    float *logits = di_cpu_scratch(cpu, DI_CPU_USE_X, (size_t)n, 2 * count * sizeof(float));
    if (!logits) {
        return;
    }
    float *value = logits + (size_t)n * count;
    di_cpu_linear_f32(be, x, n, gate, logits);
    if (cpu->failed) {
        return;
    }
    route_loop loop = {&rule, logits,  value,  bias->data, bias_vl ? bias_vl->data : NULL,
                       image, experts, weights};
    di_cpu_for(cpu, (double)n * rule.count * 32, n, route_rows, &loop);
}

/* ---- experts ----------------------------------------------------------------------------------*/

enum { MOE_BATCH = 512 }; /* tokens whose intermediate rows are in scratch memory at a time */

/* One use of an expert by a token. Pairs are sorted by expert, the shared one last. */
typedef struct pair {
    int32_t token, rank; /* rank among the token's experts, ascending; top_k: the shared one */
    float weight;
} pair;

typedef struct moe_call {
    di_cpu *cpu;
    int n, top_k, num_experts;
    const int32_t *experts;
    const float *weights;
    const di_expert *table, *shared;
    float limit;
    size_t d, inter; /* inter: the widest */

    size_t num_pairs;
    pair *pairs;    /* [num_pairs] */
    int32_t *begin; /* [num_experts + 2]: pairs of expert e are begin[e] .. begin[e + 1] */
    int32_t *place; /* [num_pairs]: row of `out` that a pair's result goes to */
    const float **rows_in, **rows_mid;
    float *mid;     /* t in lane order, one row a pair */
    di_bf16 *a, *b; /* lin(x, w1) and lin(x, w3), one row a pair; t replaces a */
    di_bf16 *out;   /* [n][top_k + 1][d] */
    float *sums;    /* [n][d], rows as far apart as those in lane order */
    di_bf16 *y;
    di_cpu_job *jobs;
} moe_call;

static bool moe_scratch(moe_call *c) {
    di_cpu *cpu = c->cpu;
    size_t pairs = c->num_pairs, experts = (size_t)c->num_experts + 2;
    int32_t *list = di_cpu_scratch(cpu, DI_CPU_USE_LIST, 1,
                                   (pairs + experts) * sizeof *list + pairs * sizeof(pair));
    size_t ld = di_cpu_row_floats((int)c->inter);
    c->mid = di_cpu_scratch(cpu, DI_CPU_USE_B, pairs, ld * sizeof *c->mid + sizeof(float *));
    c->a = di_cpu_scratch(cpu, DI_CPU_USE_X, pairs, 2 * c->inter * sizeof *c->a);
    c->out = di_cpu_scratch(cpu, DI_CPU_USE_Y, pairs, c->d * sizeof *c->out);
    c->jobs = di_cpu_scratch(cpu, DI_CPU_USE_JOBS, 2 * experts, sizeof *c->jobs);
    c->rows_in = di_cpu_scratch(cpu, DI_CPU_USE_Z, pairs, sizeof *c->rows_in);
    if (cpu->failed) {
        return false;
    }
    c->pairs = (pair *)list;
    c->begin = (int32_t *)(c->pairs + pairs);
    c->place = c->begin + experts;
    c->rows_mid = (const float **)(c->mid + pairs * ld);
    c->b = c->a + pairs * c->inter;
    return true;
}

/* Counting sort of all uses by expert; tokens stay ascending within one. */
static void sort_pairs(moe_call *c) {
    int shared = c->num_experts;
    memset(c->begin, 0, ((size_t)shared + 2) * sizeof *c->begin);
    for (int i = 0; i < c->n * c->top_k; i++) {
        c->begin[c->experts[i] + 1]++;
    }
    c->begin[shared + 1] = c->n;
    for (int e = 0; e <= shared; e++) {
        c->begin[e + 1] += c->begin[e];
    }
    for (int t = 0; t < c->n; t++) {
        const int32_t *mine = c->experts + (size_t)t * (size_t)c->top_k;
        for (int i = 0; i <= c->top_k; i++) {
            int e = i < c->top_k ? mine[i] : shared, rank = i;
            for (int j = 0; i < c->top_k && j < c->top_k; j++) { /* lists come sorted; be sure */
                rank += (j > i && mine[j] < e) - (j < i && mine[j] > e);
            }
            float weight =
                i < c->top_k ? c->weights[(size_t)t * (size_t)c->top_k + (size_t)i] : 1.0f;
            c->pairs[c->begin[e]++] = (pair){t, rank, weight};
        }
    }
    for (int e = shared + 1; e > 0; e--) { /* the fill moved every begin to its end */
        c->begin[e] = c->begin[e - 1];
    }
    c->begin[0] = 0;
}

static const di_expert *expert_of(const moe_call *c, int e) {
    return e < c->num_experts ? &c->table[e] : c->shared;
}

static void first_products(moe_call *c, const float *x, size_t ldx) {
    int jobs = 0;
    for (size_t i = 0; i < c->num_pairs; i++) {
        c->rows_in[i] = x + (size_t)c->pairs[i].token * ldx;
        c->place[i] = c->pairs[i].token * (c->top_k + 1) + c->pairs[i].rank;
    }
    for (int e = 0; e <= c->num_experts; e++) {
        size_t first = (size_t)c->begin[e];
        int m = c->begin[e + 1] - c->begin[e];
        for (int which = 0; m > 0 && which < 2; which++) {
            const di_tensor *w = which ? &expert_of(c, e)->w3 : &expert_of(c, e)->w1;
            c->jobs[jobs++] = (di_cpu_job){
                .w = di_cpu_matrix_of(w),
                .rows = w->shape[0],
                .a = c->rows_in + first,
                .m = m,
                .yb = (which ? c->b : c->a) + first * c->inter,
                .ldy = c->inter,
            };
        }
    }
    di_cpu_run(c->cpu, c->jobs, jobs);
}

static void activate_pairs(void *arg, int64_t begin, int64_t end, int member) {
    const moe_call *c = arg;
    const di_cpu_kernels *k = c->cpu->k;
    size_t ld = di_cpu_row_floats((int)c->inter), shared = (size_t)c->begin[c->num_experts];
    (void)member;
    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        di_bf16 *a = c->a + i * c->inter;
        const di_expert *e = i < shared ? &c->table[0] : c->shared;
        int inter = (int)e->w1.shape[0];
        k->swiglu(a, c->b + i * c->inter, c->pairs[i].weight, c->limit, (size_t)inter, a);
        k->quant8(a, inter, c->mid + i * ld);
        c->rows_mid[i] = c->mid + i * ld;
    }
}

static void second_products(moe_call *c) {
    int jobs = 0;
    for (int e = 0; e <= c->num_experts; e++) {
        size_t first = (size_t)c->begin[e];
        int m = c->begin[e + 1] - c->begin[e];
        if (m > 0) {
            const di_tensor *w = &expert_of(c, e)->w2;
            c->jobs[jobs++] = (di_cpu_job){
                .w = di_cpu_matrix_of(w),
                .rows = w->shape[0],
                .a = c->rows_mid + first,
                .m = m,
                .yb = c->out,
                .ldy = c->d,
                .index = c->place + first,
            };
        }
    }
    di_cpu_run(c->cpu, c->jobs, jobs);
}

/* A row's results lie in the order of its sum. */
static void add_up(void *arg, int64_t begin, int64_t end, int member) {
    const moe_call *c = arg;
    size_t d = c->d, uses = (size_t)c->top_k + 1;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        float *sum = c->sums + t * di_cpu_row_floats((int)d);
        memset(sum, 0, d * sizeof *sum);
        for (size_t i = 0; i < uses; i++) {
            c->cpu->k->accumulate(c->out + (t * uses + i) * d, d, sum);
        }
        c->cpu->k->round_row(sum, d, c->y + t * d);
    }
}

static void moe_batch(moe_call *c, const di_bf16 *x) {
    float *a;
    const float **rows;
    int d = (int)c->d;
    c->num_pairs = (size_t)c->n * ((size_t)c->top_k + 1);
    if (!di_cpu_activations(c->cpu, x, c->d, c->n, d, true, &a, &rows) || !moe_scratch(c)) {
        return;
    }
    sort_pairs(c);
    first_products(c, a, di_cpu_row_floats(d));
    double uses = (double)c->num_pairs;
    di_cpu_for(c->cpu, uses * (double)c->inter * 16, (int64_t)c->num_pairs, activate_pairs, c);
    second_products(c);
    if (!c->cpu->failed) {
        c->sums = a; /* x's rows are not needed any more */
        di_cpu_for(c->cpu, uses * (double)c->d, c->n, add_up, c);
    }
}

void di_cpu_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                const float *weights, int top_k, const di_expert *table, int num_experts,
                const di_expert *shared, float limit, di_bf16 *y) {
    size_t d = (size_t)shared->w2.shape[0];
    int64_t routed = num_experts > 0 ? table[0].w1.shape[0] : 0, own = shared->w1.shape[0];
    di_cpu *cpu = di_cpu_of(be);
    for (int t = 0; t < n && !cpu->failed; t += MOE_BATCH) {
        moe_call c = {
            .cpu = cpu,
            .n = n - t < MOE_BATCH ? n - t : MOE_BATCH,
            .top_k = top_k,
            .num_experts = num_experts,
            .experts = experts + (size_t)t * (size_t)top_k,
            .weights = weights + (size_t)t * (size_t)top_k,
            .table = table,
            .shared = shared,
            .limit = limit,
            .d = d,
            .y = y + (size_t)t * d,
            .inter = (size_t)(routed > own ? routed : own),
        };
        moe_batch(&c, x + (size_t)t * d);
    }
}
