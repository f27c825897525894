/* Matrix products: the runner that cuts them into tasks, and the linear ops. A task is a stretch of
 * weight rows times up to DI_CPU_PRODUCT_ROWS activation rows; how the work is cut never reaches a
 * result (kernels.h: every sum has its own fixed order). */
#include "ops/cpu/internal.h"

enum { LINEAR_BATCH = 10 * DI_CPU_PRODUCT_ROWS }; /* activation rows in scratch memory at a time */

di_cpu_matrix di_cpu_matrix_of(const di_tensor *w) {
    int64_t k = w->shape[w->rank - 1], rows = 1;
    for (int i = 0; i < w->rank - 1; i++) {
        rows *= w->shape[i];
    }
    return (di_cpu_matrix){
        .dtype = w->dtype,
        .data = w->data,
        .scale = w->scale,
        .rows = rows,
        .k = (int)k,
        .row_bytes = (size_t)k * (size_t)di_dtype_bits(w->dtype) / 8,
        .scale_rows = w->scale_block[0],
    };
}

/* ---- tasks ------------------------------------------------------------------------------------*/

static int64_t parts(int64_t n, int64_t size) {
    return (n + size - 1) / size;
}

/* Numbers the tasks of all jobs for stretches of `cols` weight rows; returns how many there are. */
static int64_t number_tasks(di_cpu_job *jobs, int num_jobs, int cols) {
    int64_t tasks = 0;
    for (int j = 0; j < num_jobs; j++) {
        jobs[j].first_task = tasks;
        tasks += parts(jobs[j].rows, cols) * parts(jobs[j].m, DI_CPU_PRODUCT_ROWS);
    }
    return tasks;
}

static const di_cpu_job *job_of_task(const di_cpu_job *jobs, int num_jobs, int64_t task) {
    int low = 0, high = num_jobs; /* the last job with first_task <= task; empty jobs come before */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (jobs[middle].first_task <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &jobs[low];
}

static void store_row(const di_cpu *cpu, const di_cpu_job *job, int i, int64_t col,
                      const float *from, int cols) {
    size_t row = (size_t)(job->index ? job->index[i] : i);
    if (job->yb) {
        cpu->k->round_row(from, (size_t)cols, job->yb + row * job->ldy + col);
    } else {
        float *to = job->yf + row * job->ldy + col;
        for (int c = 0; c < cols; c++) {
            to[c] = job->add ? to[c] + from[c] : from[c];
        }
    }
}

/* Activation rows vary fastest, so that a stretch of weights is read from memory once. */
static void run_task(const di_cpu *cpu, const di_cpu_job *job, int64_t task, int cols,
                     float *scratch) {
    int64_t row_parts = parts(job->m, DI_CPU_PRODUCT_ROWS);
    int64_t col = task / row_parts * cols;
    int i0 = (int)(task % row_parts) * DI_CPU_PRODUCT_ROWS;
    int m = job->m - i0 < DI_CPU_PRODUCT_ROWS ? job->m - i0 : DI_CPU_PRODUCT_ROWS;
    int n = job->rows - col < cols ? (int)(job->rows - col) : cols;
    float *y = scratch;
    cpu->k->product(&job->w, job->row0 + col, n, job->a + i0, m,
                    scratch + DI_CPU_PRODUCT_ROWS * DI_CPU_PRODUCT_COLS, y, DI_CPU_PRODUCT_COLS);
    for (int i = 0; i < m; i++) {
        store_row(cpu, job, i0 + i, col, y + (size_t)i * DI_CPU_PRODUCT_COLS, n);
    }
}

typedef struct product_loop {
    const di_cpu *cpu;
    const di_cpu_job *jobs;
    int num_jobs, cols;
    float *scratch;
    size_t stride;
} product_loop;

static void run_tasks(void *arg, int64_t begin, int64_t end, int member) {
    const product_loop *c = arg;
    for (int64_t t = begin; t < end; t++) {
        const di_cpu_job *job = job_of_task(c->jobs, c->num_jobs, t);
        run_task(c->cpu, job, t - job->first_task, c->cols,
                 c->scratch + c->stride * (size_t)member);
    }
}

void di_cpu_run(di_cpu *cpu, di_cpu_job *jobs, int num_jobs) {
    size_t floats = 0;
    double work = 0;
    for (int j = 0; j < num_jobs; j++) {
        size_t needed = di_cpu_product_scratch(jobs[j].w.k);
        floats = needed > floats ? needed : floats;
        /* multiply-adds at 16 lanes, and weights that come from memory */
        work += (double)jobs[j].m * (double)jobs[j].rows * jobs[j].w.k / 4;
        work += jobs[j].m > 0 ? (double)jobs[j].rows * (double)jobs[j].w.row_bytes / 3 : 0;
    }
    size_t stride;
    floats += DI_CPU_PRODUCT_ROWS * DI_CPU_PRODUCT_COLS;
    float *scratch = di_cpu_thread_scratch(cpu, floats, &stride);
    int threads = di_cpu_threads_for(cpu, work), cols = DI_CPU_PRODUCT_COLS;
    int64_t tasks = number_tasks(jobs, num_jobs, cols);
    if (tasks < 6 * (int64_t)threads) {
        cols = DI_CPU_BLOCK; /* shorter stretches, so that the threads end together */
        tasks = number_tasks(jobs, num_jobs, cols);
    }
    if (scratch) {
        product_loop loop = {cpu, jobs, num_jobs, cols, scratch, stride};
        di_cpu_for(cpu, work, tasks, run_tasks, &loop);
    }
}

/* Rows of x, ldx apart, to rows in lane order; row t goes to place t % groups * n + t / groups. */
typedef struct row_loop {
    void (*convert)(const di_bf16 *x, int k, float *a);
    const di_bf16 *x;
    size_t ldx, groups, n, ld;
    int k;
    float *a;
    const float **list;
} row_loop;

static void convert_rows(void *arg, int64_t begin, int64_t end, int member) {
    const row_loop *c = arg;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        size_t place = t % c->groups * c->n + t / c->groups;
        c->list[place] = c->a + place * c->ld;
        c->convert(c->x + t * c->ldx, c->k, c->a + place * c->ld);
    }
}

bool di_cpu_activations(di_cpu *cpu, const di_bf16 *x, size_t ldx, int n, int k, bool quantise,
                        float **a, const float ***rows) {
    size_t ld = di_cpu_row_floats(k);
    *a = di_cpu_scratch(cpu, DI_CPU_USE_A, (size_t)n, ld * sizeof(float));
    *rows = di_cpu_scratch(cpu, DI_CPU_USE_ROWS, (size_t)n, sizeof(float *));
    if (!*a || !*rows) {
        return false;
    }
    row_loop loop = {
        quantise ? cpu->k->quant8 : cpu->k->widen, x, ldx, 1, (size_t)n, ld, k, *a, *rows};
    di_cpu_for(cpu, (double)n * k * 4, n, convert_rows, &loop);
    return true;
}

typedef struct q8_loop {
    const di_cpu_kernels *kernels;
    const di_bf16 *x;
    int k;
    float *scratch;
    size_t stride;
    di_bf16 *y;
} q8_loop;

static void q8_rows(void *arg, int64_t begin, int64_t end, int member) {
    const q8_loop *c = arg;
    float *a = c->scratch + c->stride * (size_t)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        c->kernels->quant8(c->x + t * (size_t)c->k, c->k, a);
        c->kernels->finish(a, 1, c->k, c->y + t * (size_t)c->k);
    }
}

void di_cpu_q8_rows(di_cpu *cpu, const di_bf16 *x, int n, int k, di_bf16 *y) {
    size_t stride;
    float *scratch = di_cpu_thread_scratch(cpu, di_cpu_row_floats(k), &stride);
    q8_loop loop = {cpu->k, x, k, scratch, stride, y};
    if (scratch) {
        di_cpu_for(cpu, (double)n * k * 4, n, q8_rows, &loop);
    }
}

/* ---- ops --------------------------------------------------------------------------------------*/

/* A product that an op is asked for: rows of y lie ldy apart. */
typedef struct target {
    const di_tensor *w;
    float *yf;
    di_bf16 *yb;
    size_t ldy;
    bool add;
} target;

/* Products of one x with up to two weights of one dtype. */
static void linear(di_cpu *cpu, const di_bf16 *x, di_form form, int n, const target *targets,
                   int count) {
    const di_tensor *w = targets[0].w;
    size_t k = (size_t)w->shape[w->rank - 1];
    bool quantise = w->dtype != DI_BF16 && form != DI_Q8;
    for (int t = 0; t < n && !cpu->failed; t += LINEAR_BATCH) {
        int m = n - t < LINEAR_BATCH ? n - t : LINEAR_BATCH;
        float *a;
        const float **list;
        di_cpu_job jobs[2];
        if (!di_cpu_activations(cpu, x + (size_t)t * k, k, m, (int)k, quantise, &a, &list)) {
            return;
        }
        for (int i = 0; i < count; i++) {
            const target *to = &targets[i];
            jobs[i] = (di_cpu_job){
                .w = di_cpu_matrix_of(to->w),
                .a = list,
                .m = m,
                .yf = to->yf ? to->yf + (size_t)t * to->ldy : NULL,
                .yb = to->yb ? to->yb + (size_t)t * to->ldy : NULL,
                .ldy = to->ldy,
                .add = to->add,
            };
            jobs[i].rows = jobs[i].w.rows;
        }
        di_cpu_run(cpu, jobs, count);
    }
}

void di_cpu_linear(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w,
                   di_bf16 *y) {
    const target to = {.w = w, .yb = y, .ldy = (size_t)w->shape[0]};
    linear(di_cpu_of(be), x, form, n, &to, 1);
}

void di_cpu_linear_pair(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w1,
                        di_bf16 *y1, const di_tensor *w2, di_bf16 *y2) {
    const target to[] = {{.w = w1, .yb = y1, .ldy = (size_t)w1->shape[0]},
                         {.w = w2, .yb = y2, .ldy = (size_t)w2->shape[0]}};
    linear(di_cpu_of(be), x, form, n, to, 2);
}

void di_cpu_linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y) {
    const target to = {.w = w, .yf = y, .ldy = (size_t)w->shape[0]};
    linear(di_cpu_of(be), x, DI_PLAIN, n, &to, 1);
}

void di_cpu_linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y,
                           size_t ldy) {
    const target to = {.w = w, .yf = y, .ldy = ldy, .add = true};
    linear(di_cpu_of(be), x, DI_PLAIN, n, &to, 1);
}

/* One job a group. x lies [row][group], its rows in lane order [group][row]. */
static void grouped_batch(di_cpu *cpu, const di_bf16 *x, int n, int groups, const di_cpu_matrix *w,
                          di_bf16 *y) {
    int64_t m = w->rows / groups;
    size_t rows = (size_t)n * (size_t)groups, ld = di_cpu_row_floats(w->k);
    di_cpu_job *jobs = di_cpu_scratch(cpu, DI_CPU_USE_JOBS, (size_t)groups, sizeof *jobs);
    float *a = di_cpu_scratch(cpu, DI_CPU_USE_A, rows, ld * sizeof *a);
    const float **list = di_cpu_scratch(cpu, DI_CPU_USE_ROWS, rows, sizeof *list);
    if (cpu->failed) {
        return;
    }
    row_loop loop = {cpu->k->widen, x, (size_t)w->k, (size_t)groups, (size_t)n, ld, w->k, a, list};
    di_cpu_for(cpu, (double)rows * w->k * 4, (int64_t)rows, convert_rows, &loop);
    for (int g = 0; g < groups; g++) {
        jobs[g] = (di_cpu_job){
            .w = *w,
            .row0 = g * m,
            .rows = m,
            .a = list + (size_t)g * (size_t)n,
            .m = n,
            .yb = y + g * m,
            .ldy = (size_t)w->rows,
        };
    }
    di_cpu_run(cpu, jobs, groups);
}

void di_cpu_linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups, const di_tensor *w,
                           di_bf16 *y, di_form form) {
    di_cpu *cpu = di_cpu_of(be);
    di_cpu_matrix matrix = di_cpu_matrix_of(w);
    enum { BATCH = 4 * DI_CPU_PRODUCT_ROWS };
    for (int t = 0; t < n && !cpu->failed; t += BATCH) {
        int m = n - t < BATCH ? n - t : BATCH;
        grouped_batch(cpu, x + (size_t)t * (size_t)groups * (size_t)matrix.k, m, groups, &matrix,
                      y + (size_t)t * (size_t)matrix.rows);
    }
    if (form == DI_Q8 && !cpu->failed) {
        di_cpu_q8_rows(cpu, y, n, (int)matrix.rows, y);
    }
}
