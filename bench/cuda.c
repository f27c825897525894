/* Speed of the CUDA backend's products, experts and draws at DeepSeek-V4.1-Flash's sizes, beside
 * the bandwidth of reading the card's memory, measured in the same run (cuda_state.c and
 * cuda_rows.c have the other ops). Decode is held against the bytes that must be read, prefill is
 * told in TFLOP/s. One line a case; a first argument picks lines by a part of their name, a second
 * one products and experts by their number of rows. Without a card it says so and does nothing.
 *
 * Products of up to 64 rows are timed as steps run them: recorded, one behind the other, the next
 * one's weights on their way while the one in front ends, activations quantised by who makes them.
 * Draws are recorded too. The others are called one by one. Many rows come last, as power holds the
 * card's clock back behind them for a while. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "support/card.h"
#include "support/synthetic.h"

#define CYCLE_BYTES ((size_t)1 << 30)

/* ---- products --------------------------------------------------------------------------------*/

enum { MAX_CYCLE = 64, LAYERS = 12 /* whose products run in turn */ };

/* Numbers of rows, few ones first. */
enum { FEW_ROWS = 7, ALL_ROWS = 9 };
static const int product_rows[ALL_ROWS] = {1, 2, 4, 8, 16, 32, 64, 512, 8192};

typedef struct range {
    int first, end; /* of product_rows */
} range;

static const range FEW = {0, FEW_ROWS}, MANY = {FEW_ROWS, ALL_ROWS};

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

static void time_product(product *p, range rows, double seconds[ALL_ROWS]) {
    const product_shape *s = &p->shape;
    for (int i = rows.first; i < rows.end; i++) {
        char name[96];
        p->rows = product_rows[i];
        if (only_rows && p->rows != only_rows) {
            continue;
        }
        snprintf(name, sizeof name, "%s %dx%d, %d rows", s->name, s->m + s->m2, s->k, p->rows);
        double once =
            i < FEW_ROWS ? per_recorded_call(multiply, p, p->cycle) : per_call(multiply, p, 2);
        tell(name, once, p->bytes, product_flops(p, p->rows));
        seconds[i] += once;
    }
}

static void bench_product(product_shape s) {
    static product p;
    double unused[ALL_ROWS] = {0};
    if (wanted(s.name)) {
        open_product(&p, s);
        time_product(&p, FEW, unused);
        close_product(&p);
        di_cuda_forget(be);
    }
}

enum { WKV_WQ_A, WQ_B, WO_A, WO_B, LAYER_PRODUCTS };

static const product_shape layer_shapes[LAYER_PRODUCTS] = {
    [WKV_WQ_A] = {"wkv, wq_a FP8", DI_F8_E4M3, HEAD_DIM, HIDDEN, 1, Q_LORA},
    [WQ_B] = {"wq_b FP8", DI_F8_E4M3, HEADS *HEAD_DIM, Q_LORA, 1, 0},
    [WO_A] = {"wo_a FP8 grouped", DI_F8_E4M3, O_GROUPS *O_LORA, HEADS *HEAD_DIM / O_GROUPS,
              O_GROUPS, 0},
    [WO_B] = {"wo_b FP8", DI_F8_E4M3, HIDDEN, O_GROUPS *O_LORA, 1, 0},
};

static void run_layer(void *user, int i) {
    product *p = user;
    for (int j = 0; j < LAYER_PRODUCTS; j++) {
        multiply(&p[j], i);
    }
}

/* What they take in all by themselves, and in the order of a layer. There wo_a and wo_b read what
 * the product in front has just written, as in the model (where attention stands before wo_a). */
static void bench_order(product p[LAYER_PRODUCTS], const double seconds[ALL_ROWS]) {
    di_bf16 *const wo_a_x = p[WO_A].x, *const wo_b_x = p[WO_B].x;
    p[WO_A].x = p[WQ_B].y;
    p[WO_B].x = p[WO_A].y;
    for (int i = FEW.first; i < FEW.end; i++) {
        char name[96];
        double bytes = 0, flops = 0;
        if (only_rows && product_rows[i] != only_rows) {
            continue;
        }
        for (int j = 0; j < LAYER_PRODUCTS; j++) {
            p[j].rows = product_rows[i];
            bytes += p[j].bytes;
            flops += product_flops(&p[j], p[j].rows);
        }
        snprintf(name, sizeof name, "all five FP8 products, %d rows", product_rows[i]);
        tell(name, seconds[i], bytes, flops);
        snprintf(name, sizeof name, "the same in the order of a layer, %d rows", product_rows[i]);
        tell(name, per_recorded_call(run_layer, p, LAYERS), bytes, flops);
    }
    p[WO_A].x = wo_a_x;
    p[WO_B].x = wo_b_x;
}

/* The FP8 products of a layer, each behind another one like it. */
static void bench_layer_products(range rows) {
    static product p[LAYER_PRODUCTS];
    double seconds[ALL_ROWS] = {0};
    for (int j = 0; j < LAYER_PRODUCTS; j++) {
        if (wanted(layer_shapes[j].name)) {
            open_product(&p[j], layer_shapes[j]);
            time_product(&p[j], rows, seconds);
        }
    }
    if (rows.first == FEW.first && wanted(" FP8")) { /* asked for all of them */
        bench_order(p, seconds);
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
            int e = (int)(synthetic_random() % EXPERTS);
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
        uint64_t r = synthetic_random();
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
        d->rows[i].seed = synthetic_random();
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
    if (!card_open(argc, argv)) {
        return 0;
    }
    bench_layer_products(FEW);
    bench_product((product_shape){"gate BF16", DI_BF16, EXPERTS, HIDDEN, 1, 0});
    bench_product((product_shape){"head BF16", DI_BF16, 8080, HIDDEN, 1, 0});
    bench_draws();
    bench_experts();
    bench_layer_products(MANY);
    card_close();
    return 0;
}
