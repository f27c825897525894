/* Speed of the CUDA backend's ops at DeepSeek-V4.1-Flash's sizes, beside the bandwidth of reading
 * the card's memory, measured in the same run. Decode is held against the bytes that must be read,
 * prefill is told in TFLOP/s. One line a case; a first argument picks lines by a part of their
 * name, a second one products and experts by their number of rows. Without a card it says so and
 * does nothing.
 *
 * Products of up to 64 rows are timed as steps run them: recorded, one behind the other, the next
 * one's weights on their way while the one in front ends, activations quantised by who makes them.
 * The others are called one by one.
 *
 * Weights are visited in turn so that none is found in a cache again. On the host they are one
 * small piece of memory that stands at many addresses; on the card every address has a copy of its
 * own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "ops/cuda/cuda.h"
#include "ops/queue.h"

enum {
    HIDDEN = 5120,
    INTER = 2304,
    EXPERTS = 384,
    TOP_K = 6,
    Q_LORA = 1280,
    HEADS = 64,
    HEAD_DIM = 512,
    ROPE_HALF = 32,
    WINDOW = 128,
    INDEX_TOPK = 512,
    INDEX_HEADS = 32,
    INDEX_DIM = 128,
    O_GROUPS = 8,
    O_LORA = 1024,
    HC = 4,
    BLOCK_TOKENS = 128,
    RING_ROWS = 136,
    MAX_ROWS = 8192,
};
#define CYCLE_BYTES ((size_t)1 << 30)

static di_backend *be;
static const char *only;
static int only_rows;
static double ceiling; /* bytes a second */
static uint64_t state = 1;

static _Noreturn void give_up(const char *what) {
    fprintf(stderr, "bench/cuda: %s\n", what);
    exit(1);
}

static void wait_for_all(void) {
    di_error err;
    if (!be->ops->sync(be, &err)) {
        give_up(err.message);
    }
}

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- data ------------------------------------------------------------------------------------*/

/* `bytes` of random codes, no NaN among them, at an address of their own. */
static void *codes_at_own_address(size_t bytes) {
    static int file = -1;
    const size_t most = (size_t)96 << 20;
    if (file < 0) {
        file = memfd_create("codes", 0);
        if (file < 0 || ftruncate(file, (off_t)most) != 0) {
            give_up("no memory for codes");
        }
        uint64_t *p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        for (size_t i = 0; i < most / 8; i++) {
            p[i] = next_random() & 0xbfbfbfbfbfbfbfbfu;
        }
        munmap(p, most);
    }
    void *p = bytes <= most ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        give_up("no address space for codes");
    }
    return p;
}

static di_tensor make_weight(di_dtype dtype, int64_t rows, int64_t k) {
    static uint8_t *scales;
    static const size_t most = (size_t)16 << 20;
    if (!scales) {
        scales = di_alloc(most);
        for (size_t i = 0; scales && i < most; i++) {
            scales[i] = (uint8_t)(118 + next_random() % 4);
        }
    }
    di_tensor w = {.dtype = dtype, .rank = 2, .shape = {rows, k}, .scale = scales};
    w.data = codes_at_own_address((size_t)(rows * k) * (size_t)di_dtype_bits(dtype) / 8);
    w.scale_block[0] = dtype == DI_FP4_E2M1 ? 1 : 32;
    w.scale_block[1] = 32;
    w.scale = dtype == DI_BF16 ? NULL : scales;
    return w;
}

static size_t weight_bytes(const di_tensor *w) {
    size_t values = (size_t)(w->shape[0] * w->shape[1]);
    size_t scales = w->scale ? values / 32 / (size_t)w->scale_block[0] : 0;
    return values * (size_t)di_dtype_bits(w->dtype) / 8 + scales;
}

static void *device(size_t bytes) {
    void *p = be->ops->alloc(be, bytes);
    if (!p) {
        give_up("the card has no memory left");
    }
    return p;
}

enum { PIECE = 1 << 20 }; /* bytes of random data, repeated as often as needed */

static void fill(void *to, size_t bytes, const void *piece) {
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        be->ops->upload(be, (char *)to + at, piece, n);
    }
}

/* n random BF16 values of about unit size on the card, of few enough bits that Q8 changes none. */
static di_bf16 *device_bf16(size_t n) {
    static di_bf16 piece[PIECE / sizeof(di_bf16)];
    for (size_t i = 0; i < PIECE / sizeof *piece; i++) {
        uint64_t r = next_random();
        piece[i] = (di_bf16)((r & 0x8070) | (124 + (r >> 20) % 4) << 7);
    }
    di_bf16 *p = device(n * sizeof *p);
    fill(p, n * sizeof *p, piece);
    return p;
}

static void *device_bytes(size_t n, uint64_t mask) {
    static uint64_t piece[PIECE / sizeof(uint64_t)];
    for (size_t i = 0; i < PIECE / sizeof *piece; i++) {
        piece[i] = next_random() & mask;
    }
    void *p = device(n);
    fill(p, n, piece);
    return p;
}

/* ---- timing ----------------------------------------------------------------------------------*/

typedef void call_fn(void *user, int i);

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call: the median of 5 runs of as many calls as fill 20 ms. */
static double per_call(call_fn *f, void *user, int cycle) {
    int calls = cycle;
    double times[5], start;
    for (int i = 0; i < cycle; i++) {
        f(user, i); /* uploads what is used for the first time */
    }
    wait_for_all();
    start = di_now();
    for (int i = 0; i < cycle; i++) {
        f(user, i);
    }
    wait_for_all();
    double once = (di_now() - start) / cycle;
    while (calls * once < 0.02) {
        calls += cycle;
    }
    for (int r = 0; r < 5; r++) {
        start = di_now();
        for (int i = 0; i < calls; i++) {
            f(user, i % cycle);
        }
        wait_for_all();
        times[r] = (di_now() - start) / calls;
    }
    qsort(times, 5, sizeof *times, by_size);
    return times[2];
}

/* The same of calls that were recorded as one program of `cycle`. */
static double per_recorded_call(call_fn *f, void *user, int cycle) {
    const di_queue_ops *queue = be->ops->queue;
    double once = per_call(f, user, cycle), times[5], start;
    di_error err;
    if (!queue->record(be)) {
        return once; /* DI_CUDA_SYNC: nothing is */
    }
    for (int i = 0; i < cycle; i++) {
        f(user, i);
    }
    di_program *program = queue->recorded(be, &err);
    if (!program) {
        give_up(err.message);
    }
    int replays = (int)(0.02 / (once * cycle)) + 1;
    for (int r = 0; r < 5; r++) {
        start = di_now();
        for (int i = 0; i < replays; i++) {
            if (!queue->replay(be, program)) {
                give_up("scratch memory has moved since the recording");
            }
        }
        wait_for_all();
        times[r] = (di_now() - start) / replays / cycle;
    }
    queue->program_free(be, program);
    qsort(times, 5, sizeof *times, by_size);
    return times[2];
}

static bool wanted(const char *name) {
    return !only || strstr(name, only);
}

static void tell(const char *name, double seconds, double bytes, double flops) {
    printf("%-44s %10.1f us %8.1f GB/s %5.1f %% %8.1f TFLOP/s\n", name, 1e6 * seconds,
           bytes / seconds * 1e-9, 100 * bytes / seconds / ceiling, flops / seconds * 1e-12);
    fflush(stdout);
}

typedef struct reading {
    void *buffer;
    size_t bytes;
} reading;

static void do_nothing(void *user, int i) {
    (void)user;
    (void)i;
    di_cuda_read_all(be, NULL, 0);
}

static void read_once(void *user, int i) {
    const reading *r = user;
    (void)i;
    di_cuda_read_all(be, r->buffer, r->bytes);
}

static void measure_ceiling(void) {
    reading r = {.bytes = (size_t)4 << 30};
    r.buffer = device(r.bytes);
    ceiling = (double)r.bytes / per_call(read_once, &r, 1);
    printf("reading memory: %.0f GB/s\n", ceiling * 1e-9);
    printf("a recorded launch of nothing: %.2f us\n",
           1e6 * per_recorded_call(do_nothing, NULL, 100));
    be->ops->free(be, r.buffer);
}

/* ---- products --------------------------------------------------------------------------------*/

enum { MAX_CYCLE = 64, FEW_ROWS = 7, LAYERS = 12 /* whose products run in turn */ };

static const int product_rows[] = {1, 2, 4, 8, 16, 32, 64, 512, 8192};

/* As the model's step asks for it: x quantised by who made it (FP8, but for the grouped one, whose
 * results are left quantised), two products of one x at once. */
typedef struct product_shape {
    const char *name;
    di_dtype dtype;
    int m, k, groups;
    int m2; /* rows of the second weight, or 0 */
} product_shape;

typedef struct product {
    product_shape shape;
    di_tensor w[MAX_CYCLE], second[MAX_CYCLE];
    int cycle, rows;
    double bytes;
    di_bf16 *x, *y, *y2;
} product;

static void multiply(void *user, int i) {
    const product *p = user;
    if (p->shape.dtype == DI_BF16) {
        be->ops->linear_f32(be, p->x, p->rows, &p->w[i], (float *)(void *)p->y);
    } else if (p->shape.m2 > 0) {
        be->ops->linear_pair(be, p->x, DI_Q8, p->rows, &p->w[i], p->y, &p->second[i], p->y2);
    } else if (p->shape.groups > 1) {
        be->ops->linear_grouped(be, p->x, p->rows, p->shape.groups, &p->w[i], p->y, DI_Q8);
    } else {
        be->ops->linear(be, p->x, DI_Q8, p->rows, &p->w[i], p->y);
    }
}

static void open_product(product *p, product_shape s) {
    *p = (product){.shape = s};
    size_t most = s.dtype == DI_BF16 ? 64 : MAX_ROWS;
    for (size_t bytes = 0; p->cycle == 0 || (bytes < CYCLE_BYTES && p->cycle < MAX_CYCLE);) {
        p->w[p->cycle] = make_weight(s.dtype, s.m, s.k);
        size_t all = weight_bytes(&p->w[p->cycle]);
        if (s.m2 > 0) {
            p->second[p->cycle] = make_weight(s.dtype, s.m2, s.k);
            all += weight_bytes(&p->second[p->cycle]);
        }
        p->bytes = (double)all;
        bytes += all;
        p->cycle++;
    }
    p->x = device_bf16(most * (size_t)s.groups * (size_t)s.k);
    p->y = device(most * (size_t)s.m * 4);
    p->y2 = s.m2 > 0 ? device(most * (size_t)s.m2 * 4) : NULL;
}

static void close_product(product *p) {
    be->ops->free(be, p->x);
    be->ops->free(be, p->y);
    be->ops->free(be, p->y2);
}

static double product_flops(const product *p, int rows) {
    return 2.0 * rows * (p->shape.m + p->shape.m2) * p->shape.k;
}

static void time_product(product *p, double seconds[FEW_ROWS]) {
    const product_shape *s = &p->shape;
    for (size_t i = 0; i < sizeof product_rows / sizeof *product_rows; i++) {
        char name[96];
        p->rows = product_rows[i];
        if ((s->dtype == DI_BF16 && p->rows > 64) || (only_rows && p->rows != only_rows)) {
            continue;
        }
        snprintf(name, sizeof name, "%s %dx%d, %d rows", s->name, s->m + s->m2, s->k, p->rows);
        double once =
            i < FEW_ROWS ? per_recorded_call(multiply, p, p->cycle) : per_call(multiply, p, 2);
        tell(name, once, p->bytes, product_flops(p, p->rows));
        if (i < FEW_ROWS) {
            seconds[i] += once;
        }
    }
}

static void bench_product(product_shape s) {
    static product p;
    double unused[FEW_ROWS] = {0};
    if (wanted(s.name)) {
        open_product(&p, s);
        time_product(&p, unused);
        close_product(&p);
        di_cuda_forget(be);
    }
}

static const product_shape layer_shapes[] = {
    {"wkv, wq_a FP8", DI_F8_E4M3, HEAD_DIM, HIDDEN, 1, Q_LORA},
    {"wq_b FP8", DI_F8_E4M3, HEADS *HEAD_DIM, Q_LORA, 1, 0},
    {"wo_a FP8 grouped", DI_F8_E4M3, O_GROUPS *O_LORA, HEADS *HEAD_DIM / O_GROUPS, O_GROUPS, 0},
    {"wo_b FP8", DI_F8_E4M3, HIDDEN, O_GROUPS *O_LORA, 1, 0},
};

enum { LAYER_PRODUCTS = sizeof layer_shapes / sizeof *layer_shapes };

static void run_layer(void *user, int i) {
    product *p = user;
    for (int j = 0; j < LAYER_PRODUCTS; j++) {
        multiply(&p[j], i);
    }
}

/* The FP8 products of a layer: each behind another one like it, what these times add up to, and all
 * of them in the order of a layer. */
static void bench_layer_products(void) {
    static product p[LAYER_PRODUCTS];
    double seconds[FEW_ROWS] = {0}, bytes = 0;
    bool all = wanted(" FP8"); /* asked for all of them */
    for (int j = 0; j < LAYER_PRODUCTS; j++) {
        if (wanted(layer_shapes[j].name)) {
            open_product(&p[j], layer_shapes[j]);
            time_product(&p[j], seconds);
            bytes += p[j].bytes;
        }
    }
    for (int i = 0; i < FEW_ROWS && all; i++) {
        char name[96];
        double flops = 0;
        if (only_rows && product_rows[i] != only_rows) {
            continue;
        }
        for (int j = 0; j < LAYER_PRODUCTS; j++) {
            p[j].rows = product_rows[i];
            flops += product_flops(&p[j], p[j].rows);
        }
        snprintf(name, sizeof name, "all five FP8 products, %d rows", product_rows[i]);
        tell(name, seconds[i], bytes, flops);
        snprintf(name, sizeof name, "the same in the order of a layer, %d rows", product_rows[i]);
        tell(name, per_recorded_call(run_layer, p, LAYERS), bytes, flops);
    }
    for (int j = 0; j < LAYER_PRODUCTS; j++) {
        if (wanted(layer_shapes[j].name)) {
            close_product(&p[j]);
        }
    }
    di_cuda_forget(be);
}

/* ---- experts ---------------------------------------------------------------------------------*/

enum { CHOICES = 16 };

typedef struct experts {
    di_expert table[EXPERTS], shared;
    int rows;
    int32_t *chosen[CHOICES];
    float *weights;
    di_bf16 *x, *y;
} experts;

static void run_experts(void *user, int i) {
    const experts *e = user;
    be->ops->moe(be, e->x, e->rows, e->chosen[i], e->weights, TOP_K, e->table, EXPERTS, &e->shared,
                 10.0f, e->y);
}

/* Ascending random choices of `rows` tokens; how many different experts they touch. */
static int choose(int rows, int32_t *chosen) {
    bool touched[EXPERTS] = {false};
    int count = 0;
    for (int t = 0; t < rows; t++) {
        bool mine[EXPERTS] = {false};
        for (int i = 0; i < TOP_K;) {
            int e = (int)(next_random() % EXPERTS);
            i += !mine[e];
            mine[e] = true;
        }
        for (int e = 0, i = 0; e < EXPERTS; e++) {
            if (mine[e]) {
                chosen[t * TOP_K + i++] = e;
                count += !touched[e];
                touched[e] = true;
            }
        }
    }
    return count;
}

static void make_choices(experts *e, int rows, double *touched) {
    int32_t *host = di_alloc((size_t)rows * TOP_K * sizeof *host);
    *touched = 0;
    e->rows = rows;
    for (int c = 0; c < CHOICES; c++) {
        *touched += (double)choose(rows, host) / CHOICES;
        be->ops->upload(be, e->chosen[c], host, (size_t)rows * TOP_K * sizeof *host);
    }
    di_free(host);
}

static void bench_experts(void) {
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 256, 1024, 8192};
    static experts e;
    if (!wanted("experts")) {
        return;
    }
    for (int i = 0; i <= EXPERTS; i++) {
        di_expert *x = i < EXPERTS ? &e.table[i] : &e.shared;
        di_dtype dtype = i < EXPERTS ? DI_FP4_E2M1 : DI_F8_E4M3;
        x->w1 = make_weight(dtype, INTER, HIDDEN);
        x->w3 = make_weight(dtype, INTER, HIDDEN);
        x->w2 = make_weight(dtype, HIDDEN, INTER);
    }
    size_t pairs = (size_t)MAX_ROWS * TOP_K;
    for (int c = 0; c < CHOICES; c++) {
        e.chosen[c] = device(pairs * sizeof(int32_t));
    }
    float *weights = di_alloc(pairs * sizeof *weights);
    for (size_t i = 0; i < pairs; i++) {
        weights[i] = 0.25f;
    }
    e.weights = device(pairs * sizeof *weights);
    be->ops->upload(be, e.weights, weights, pairs * sizeof *weights);
    di_free(weights);
    e.x = device_bf16((size_t)MAX_ROWS * HIDDEN);
    e.y = device((size_t)MAX_ROWS * HIDDEN * 2);
    double expert = (double)(weight_bytes(&e.table[0].w1) * 2 + weight_bytes(&e.table[0].w2));
    double shared = (double)(weight_bytes(&e.shared.w1) * 2 + weight_bytes(&e.shared.w2));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[96];
        double touched;
        if (only_rows && rows[i] != only_rows) {
            continue;
        }
        make_choices(&e, rows[i], &touched);
        snprintf(name, sizeof name, "experts, %d rows, %.0f touched", rows[i], touched);
        double seconds = per_call(run_experts, &e, rows[i] > 256 ? 2 : CHOICES);
        tell(name, seconds, touched * expert + shared,
             2.0 * rows[i] * (TOP_K + 1) * 3 * HIDDEN * INTER);
    }
    for (int c = 0; c < CHOICES; c++) {
        be->ops->free(be, e.chosen[c]);
    }
    be->ops->free(be, e.weights);
    be->ops->free(be, e.x);
    be->ops->free(be, e.y);
    printf("%-44s %10.1f GiB\n", "memory taken, weights and scratch",
           (double)di_cuda_bytes(be) / (1 << 30));
    di_cuda_forget(be);
}

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
                            (int64_t)(next_random() % (uint64_t)share));
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

/* ---- rows ------------------------------------------------------------------------------------*/

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

/* ---- draws -----------------------------------------------------------------------------------*/

enum { DRAWS = 256 }; /* at once, at most */

typedef struct draws {
    di_draw_call call;
    di_draw *rows;
    int32_t *tokens;
    di_drawn *drawn;
    float *logits;
} draws;

static void draw(void *user, int i) {
    const draws *d = user;
    (void)i;
    be->ops->queue->draw(be, &d->call);
}

/* Logits of deviation 3 or so, as a model that is fairly sure has them. */
static float *device_logits(size_t n) {
    static float piece[PIECE / sizeof(float)];
    for (size_t i = 0; i < PIECE / sizeof *piece; i++) {
        uint64_t r = next_random();
        uint64_t sum = (r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48);
        piece[i] = ((float)sum - 131070.0f) * (5.2f / 65536);
    }
    float *p = device(n * sizeof *p);
    fill(p, n * sizeof *p, piece);
    return p;
}

/* n rows of this kind, each with a seed of its own. */
static void fill_draws(draws *d, const di_draw *kind, int vocab, int n) {
    for (int i = 0; i < n; i++) {
        d->rows[i] = *kind;
        d->rows[i].logits = i;
        d->rows[i].seed = next_random();
        d->rows[i].forced = d->rows[i].mask = d->rows[i].fed = -1;
        d->rows[i].floor = 1;
        d->rows[i].race = true;
    }
    be->ops->queue->args_send(be, d->rows, (size_t)n * sizeof *d->rows);
    d->call = (di_draw_call){
        .logits = d->logits,
        .vocab_size = vocab,
        .n = n,
        .rows = d->rows,
        .pairs = (di_draw_pair *)d->rows, /* unused, but argument memory */
        .masks = (uint32_t *)d->rows,
        .tokens = d->tokens,
        .drawn = d->drawn,
        .top = (di_draw_pair *)d->drawn,
    };
}

/* Times are of draws one behind the other, recorded, whose code is there: in a step it is not. */
static void bench_draws(void) {
    enum { VOCAB = 129280, CYCLE = 20 };
    static const int vocabs[] = {VOCAB, 4160}, rows[] = {1, 8, 64, DRAWS};
    static const struct {
        const char *name;
        di_draw draw;
    } kinds[] = {
        {"greedy", {.greedy = true}},
        {"T 1", {.octaves = 1.442695f}},
        {"T 1, top-k 50", {.octaves = 1.442695f, .top_k = 50}},
        {"T 1, top-p 0.95", {.octaves = 1.442695f, .p_mantissa = 0x1e666666666666, .p_shift = 53}},
    };
    const di_queue_ops *queue = be->ops->queue;
    draws d = {.rows = queue->args_create(be, DRAWS * sizeof *d.rows),
               .tokens = queue->args_create(be, DRAWS * sizeof *d.tokens),
               .drawn = queue->args_create(be, DRAWS * sizeof *d.drawn),
               .logits = device_logits((size_t)DRAWS * VOCAB)};
    if (!d.rows || !d.tokens || !d.drawn) {
        give_up("no memory for draws");
    }
    for (int k = 0; k < 2 * 4 * 4; k++) {
        int kind = k / 4 % 4, n = rows[k % 4], vocab = vocabs[k / 16];
        char name[96];
        snprintf(name, sizeof name, "draw %d: %s, %d rows", vocab, kinds[kind].name, n);
        if (wanted(name)) {
            fill_draws(&d, &kinds[kind].draw, vocab, n);
            tell(name, per_recorded_call(draw, &d, CYCLE), 4.0 * vocab * n, 0);
        }
    }
    queue->args_destroy(be, d.rows);
    queue->args_destroy(be, d.tokens);
    queue->args_destroy(be, d.drawn);
    be->ops->free(be, d.logits);
}

int main(int argc, char **argv) {
    di_error err;
    char found[512];
    only = argc > 1 ? argv[1] : NULL;
    only_rows = argc > 2 ? atoi(argv[2]) : 0;
    di_cuda_describe(found, sizeof found);
    be = di_cuda_create(0, &err);
    if (!be) {
        printf("skip: %s\n", err.message);
        return 0;
    }
    printf("%s\n", found);
    measure_ceiling();
    bench_experts();
    bench_layer_products();
    bench_product((product_shape){"gate BF16", DI_BF16, EXPERTS, HIDDEN, 1, 0});
    bench_product((product_shape){"head BF16", DI_BF16, 8080, HIDDEN, 1, 0});
    bench_attention();
    bench_index();
    bench_streams();
    bench_draws();
    be->ops->destroy(be);
    return 0;
}
