/* The CPU backend against the oracle, op by op, on ordinary and on hostile values; and against
 * itself: plain C, AVX2 and AVX-512 on 1, 2 and 3 threads must give the same bits. */
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"
#include "support/cmocka.h"
#include "support/mirror.h"
#include "support/op_cases.h"

/* ---- rows -------------------------------------------------------------------------------------*/

static void embed_and_gather(di_backend *be, arrays *a, results *r) {
    const int n = 5, hc = 3, d = 33;
    int32_t tokens[] = {6, 0, 2, 2, 5};
    di_tensor table = random_tensor(a, DI_BF16, 7, d);
    di_bf16 *h = arrays_take(a, (size_t)n * (size_t)hc * (size_t)d, sizeof *h);
    di_bf16 *kept = arrays_take(a, (size_t)n * (size_t)d, sizeof *kept);
    float *pre = arrays_take(a, (size_t)n * (size_t)hc, sizeof *pre);
    be->ops->embed(be, tokens, n, &table, hc, h, pre);
    be->ops->gather_rows(be, h, (int32_t[]){14, 0, 3}, 3, (size_t)d * sizeof *h, kept);
    add_part(r, PART_BF16, h, (size_t)n * (size_t)hc * (size_t)d, (part){.one_in = 1});
    add_part(r, PART_F32, pre, (size_t)n * (size_t)hc, (part){.one_in = 1});
    add_part(r, PART_BF16, kept, (size_t)n * (size_t)d, (part){.one_in = 1});
}

static void norms(di_backend *be, arrays *a, results *r) {
    static const int dims[] = {1, 15, 16, 17, 31, 33, 64, 1280};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (values_kind kind = VALUES_CALM; kind <= VALUES_BROKEN; kind++) {
            size_t n = 5, dim = (size_t)dims[i];
            di_bf16 *x = random_bf16(a, n, dim, 3, kind);
            di_tensor w = random_tensor(a, DI_BF16, 1, dims[i]);
            w = (di_tensor){.dtype = DI_BF16, .rank = 1, .shape = {dims[i]}, .data = w.data};
            if (kind == VALUES_WILD) {
                memset(x, 0, dim * sizeof *x); /* eps is 1e-20: a zero row stays zero */
            }
            be->ops->rms_norm(be, x, &w, 1e-20f, (int)n, dims[i], x, NULL);
            add_part(r, PART_BF16, x, n * dim, one_step);
        }
    }
}

static void rotations(di_backend *be, arrays *a, results *r) {
    static const int64_t positions[] = {0, 1, 777, 65535, 1048575};
    const int n = 5, heads = 3, dim = 48, half = 8;
    float freq[8];
    for (int i = 0; i < half; i++) {
        freq[i] = 1 / powf(10000, (float)i / (float)half);
    }
    di_rope_table table = {arrays_take(a, (size_t)n * (size_t)half, 4),
                           arrays_take(a, (size_t)n * (size_t)half, 4), half};
    be->ops->rope_table(be, positions, n, freq, table);
    add_part(r, PART_F32, table.cos, (size_t)n * (size_t)half, (part){.one_in = 1});
    add_part(r, PART_F32, table.sin, (size_t)n * (size_t)half, (part){.one_in = 1});
    for (int inverse = 0; inverse < 2; inverse++) {
        size_t size = (size_t)n * (size_t)heads * (size_t)dim;
        di_bf16 *x = random_bf16(a, 1, size, 1, inverse ? VALUES_WILD : VALUES_CALM);
        be->ops->rope(be, x, n, heads, dim, table, inverse);
        add_part(r, PART_BF16, x, size, (part){.one_in = 1});
    }
}

/* ---- hyper-connections ------------------------------------------------------------------------*/

static void hyper_connections(di_backend *be, arrays *a, results *r) {
    static const int dims[] = {1, 7, 16, 129, 320, 2624};
    for (int hc = 1; hc <= 8; hc += hc == 1 ? 3 : 4) {
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            int n = i == 4 ? 35 : 18, d = dims[i], mixes = (2 + hc) * hc; /* few, and more */
            size_t width = (size_t)hc * (size_t)d, rows = (size_t)n;
            di_bf16 *h = random_bf16(a, rows, width, 2, i == 3 ? VALUES_WILD : VALUES_CALM);
            di_tensor fn = random_tensor(a, DI_F32, mixes, hc * d);
            di_tensor base = {.dtype = DI_F32, .data = random_f32(a, (size_t)mixes, 1)};
            di_tensor scale = {.dtype = DI_F32, .data = random_f32(a, 3, 1)};
            float *pre = arrays_take(a, rows * (size_t)(hc * (2 + hc)), sizeof *pre);
            float *post = pre + n * hc, *comb = post + n * hc;
            di_bf16 *x = arrays_take(a, rows * (size_t)d, sizeof *x);
            di_bf16 *y = random_bf16(a, rows, (size_t)d, 1, VALUES_CALM);
            /* streams are mixed with weights that all backends share */
            const float *mix = random_f32(a, rows * (size_t)hc, 1);
            const float *own = random_f32(a, rows * (size_t)hc, 1);
            const float *between = random_f32(a, rows * (size_t)hc * (size_t)hc, 1);
            di_tensor norm = random_tensor(a, DI_BF16, 1, d);
            be->ops->mhc_mix(be, h, n, hc, d, &fn, &base, &scale, 1e-20f, 1e-6f, 20, pre, post,
                             comb);
            add_part(r, PART_F32, pre, rows * (size_t)(hc * (2 + hc)), fine);
            di_bf16 *collapsed = arrays_take(a, rows * (size_t)d, sizeof *collapsed);
            be->ops->mhc_pre(be, h, mix, n, hc, d, collapsed);
            add_part(r, PART_BF16, collapsed, rows * (size_t)d, one_step);
            di_bf16 *mean = arrays_take(a, rows * (size_t)(d + 2), sizeof *mean);
            be->ops->stream_mean(be, h, n, hc, d, mean, (size_t)d + 2);
            add_part(r, PART_BF16, mean, rows * (size_t)(d + 2), one_step);
            di_bf16 *alone = arrays_take(a, rows * width, sizeof *alone);
            memcpy(alone, h, rows * width * sizeof *alone);
            be->ops->mhc_post(be, y, own, between, n, hc, d, alone, NULL, NULL, 0, NULL, NULL);
            di_bf16 *q8 = d % 32 == 0 ? arrays_take(a, rows * (size_t)d, sizeof *q8) : NULL;
            be->ops->mhc_post(be, y, own, between, n, hc, d, h, mix, &norm, 1e-20f, x, q8);
            add_part(r, PART_BF16, h, rows * width, one_step);
            expect_same(r, alone, h, rows * width * sizeof *h);
            /* what enters the next sub-block is exactly what the separate ops make of h */
            di_bf16 *apart = arrays_take(a, rows * (size_t)d, sizeof *apart);
            be->ops->mhc_pre(be, h, mix, n, hc, d, apart);
            be->ops->rms_norm(be, apart, &norm, 1e-20f, n, d, apart, NULL);
            expect_same(r, apart, x, rows * (size_t)d * sizeof *x);
            if (q8) {
                expect_same(r, through_q8(a, x, rows, (size_t)d), q8, rows * (size_t)d * sizeof *x);
            }
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------*/

static void products(di_backend *be, arrays *a, results *r) {
    static const int shapes[][3] = {/* rows of x, rows of w, k */
                                    {1, 1, 32},   {1, 33, 64},  {2, 100, 96}, {3, 7, 1056},
                                    {4, 64, 160}, {5, 96, 32},  {8, 97, 64},  {9, 31, 1024},
                                    {49, 98, 96}, {13, 5, 2080}};
    static const di_dtype dtypes[] = {DI_F8_E4M3, DI_FP4_E2M1, DI_BF16};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int d = 0; d < 3; d++) {
            int n = shapes[i][0], m = shapes[i][1], k = shapes[i][2];
            k -= dtypes[d] == DI_BF16 ? (int)i % 4 * 5 : 0; /* odd tails */
            size_t cells = (size_t)n * (size_t)m;
            di_tensor w = random_tensor(a, dtypes[d], m, k);
            values_kind kind = i % 3 == 2 ? VALUES_WILD : VALUES_CALM;
            di_bf16 *x = random_bf16(a, (size_t)n, (size_t)k, 1, kind);
            di_bf16 *y = arrays_take(a, cells, sizeof *y);
            be->ops->linear(be, x, DI_PLAIN, n, &w, y);
            add_part(r, PART_BF16, y, cells, one_step);
            if (dtypes[d] == DI_BF16) {
                float *f = arrays_take(a, cells, sizeof *f);
                be->ops->linear_f32(be, x, n, &w, f);
                add_part(r, PART_F32, f, cells, fine);
                float *sum = random_f32(a, (size_t)n * (size_t)(m + 3), 1); /* gaps stay */
                be->ops->linear_add_f32(be, x, n, &w, sum, (size_t)m + 3);
                add_part(r, PART_F32, sum, (size_t)n * (size_t)(m + 3), fine);
            }
        }
    }
}

static void broken_products(di_backend *be, arrays *a, results *r) {
    static const di_dtype dtypes[] = {DI_F8_E4M3, DI_FP4_E2M1, DI_BF16};
    for (int n = 1; n <= 12; n += 11) {
        for (int d = 0; d < 3; d++) {
            const int m = 40, k = 96;
            di_tensor w = random_tensor(a, dtypes[d], m, k);
            if (d == 0) { /* NaN codes of both signs, in the first and in a later row */
                ((uint8_t *)w.data)[5] = 0x7f;
                ((uint8_t *)w.data)[35 * k + 70] = 0xff;
            } else if (d == 1) {
                ((uint8_t *)w.scale)[7] = 255;
            }
            di_bf16 *x = random_bf16(a, (size_t)n, k, 1, VALUES_BROKEN);
            di_bf16 *y = arrays_take(a, (size_t)n * (size_t)m, sizeof *y);
            be->ops->linear(be, x, DI_PLAIN, n, &w, y);
            add_part(r, PART_BF16, y, (size_t)n * (size_t)m, one_step);
        }
    }
}

/* What Q8 makes of a norm's result, exactly; and products of it, the same as of the result. */
static void quantised_rows(di_backend *be, arrays *a, results *r) {
    static const int dims[] = {32, 96, 1280, 2080};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (values_kind kind = VALUES_CALM; kind <= VALUES_WILD; kind++) {
            const int n = 5, m = 70;
            size_t dim = (size_t)dims[i], size = (size_t)n * dim;
            di_bf16 *x = random_bf16(a, (size_t)n, dim, 3, kind);
            di_bf16 *y = arrays_take(a, size, sizeof *y), *q8 = arrays_take(a, size, sizeof *q8);
            di_tensor norm = random_tensor(a, DI_BF16, 1, dims[i]);
            be->ops->rms_norm(be, x, &norm, 1e-20f, n, dims[i], y, q8);
            expect_same(r, through_q8(a, y, (size_t)n, dim), q8, size * sizeof *q8);
            be->ops->rms_norm(be, x, &norm, 1e-20f, n, dims[i], NULL, x); /* in place, alone */
            expect_same(r, x, q8, size * sizeof *q8);
            for (int d = 0; d < 2; d++) {
                di_tensor w = random_tensor(a, d ? DI_FP4_E2M1 : DI_F8_E4M3, m, dims[i]);
                di_bf16 *of_y = arrays_take(a, (size_t)n * (size_t)m, sizeof *of_y);
                di_bf16 *of_q8 = arrays_take(a, (size_t)n * (size_t)m, sizeof *of_q8);
                be->ops->linear(be, y, DI_PLAIN, n, &w, of_y);
                be->ops->linear(be, q8, DI_Q8, n, &w, of_q8);
                expect_same(r, of_y, of_q8, (size_t)n * (size_t)m * sizeof *of_y);
                add_part(r, PART_BF16, of_q8, (size_t)n * (size_t)m,
                         (part){.ulp = 16, .small = 0x1p-5f});
            }
        }
    }
}

/* Two weights at once: exactly what each gives alone. */
static void product_pairs(di_backend *be, arrays *a, results *r) {
    static const int shapes[][4] = {/* rows of x, of both weights, k */
                                    {1, 33, 130, 64},   {3, 512, 1280, 320}, {17, 7, 64, 1056},
                                    {2, 40, 17100, 64}, {9, 17100, 5, 96},   {70, 96, 65, 160}};
    static const di_dtype dtypes[] = {DI_F8_E4M3, DI_FP4_E2M1, DI_BF16};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        for (int d = 0; d < 3; d++) {
            const int *s = shapes[i / 2];
            di_form form = i % 2 && dtypes[d] != DI_BF16 ? DI_Q8 : DI_PLAIN;
            size_t n = (size_t)s[0], k = (size_t)s[3];
            di_bf16 *x = random_bf16(a, n, k, 1, VALUES_CALM), *y[2], *alone[2];
            x = form == DI_Q8 ? through_q8(a, x, n, k) : x;
            di_tensor w[2];
            for (int j = 0; j < 2; j++) {
                size_t cells = n * (size_t)s[1 + j];
                w[j] = random_tensor(a, dtypes[d], s[1 + j], s[3]);
                y[j] = arrays_take(a, cells, sizeof *y[j]);
                alone[j] = arrays_take(a, cells, sizeof *alone[j]);
                be->ops->linear(be, x, form, s[0], &w[j], alone[j]);
            }
            be->ops->linear_pair(be, x, form, s[0], &w[0], y[0], &w[1], y[1]);
            for (int j = 0; j < 2; j++) {
                size_t cells = n * (size_t)s[1 + j];
                expect_same(r, y[j], alone[j], cells * sizeof *y[j]);
                add_part(r, PART_BF16, y[j], cells, one_step);
            }
        }
    }
}

static void grouped_products(di_backend *be, arrays *a, results *r) {
    static const int shapes[][2] = {{4, 24}, {2, 80}, {3, 96}}; /* groups, rows of each */
    for (int i = 0; i < 9; i++) {
        const int n = 1 + i / 3 * 50, groups = shapes[i % 3][0], m = shapes[i % 3][1], k = 64;
        size_t rows = (size_t)n * (size_t)groups, cells = rows * (size_t)m;
        di_tensor w = random_tensor(a, DI_F8_E4M3, groups * m, k);
        di_bf16 *x = random_bf16(a, rows, (size_t)k, 1, VALUES_CALM);
        di_bf16 *y = arrays_take(a, cells, sizeof *y), *q8 = arrays_take(a, cells, sizeof *q8);
        be->ops->linear_grouped(be, x, n, groups, &w, y, DI_PLAIN);
        add_part(r, PART_BF16, y, cells, one_step);
        be->ops->linear_grouped(be, x, n, groups, &w, q8, DI_Q8);
        expect_same(r, through_q8(a, y, (size_t)n, cells / (size_t)n), q8, cells * sizeof *q8);
    }
}

/* ---- experts ----------------------------------------------------------------------------------*/

static void routing(di_backend *be, arrays *a, results *r) {
    static const int counts[][2] = {{1, 1}, {3, 2}, {8, 8}, {128, 3}, {384, 6}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int n = 7, d = 96;
        int experts = counts[i][0], top = counts[i][1];
        size_t cells = (size_t)n * (size_t)top;
        di_tensor gate = random_tensor(a, DI_BF16, experts, d);
        di_tensor bias = {.dtype = DI_F32, .data = random_f32(a, (size_t)experts, 0.1f)};
        di_tensor other = {.dtype = DI_F32, .data = random_f32(a, (size_t)experts, 0.1f)};
        di_bf16 *x = random_bf16(a, n, d, i == 3 ? 12 : 1, VALUES_CALM);
        memset(x, 0, d * sizeof *x);
        uint8_t image[7] = {0, 1, 0, 0, 1};
        int32_t *chosen = arrays_take(a, cells, sizeof *chosen);
        float *weights = arrays_take(a, cells, sizeof *weights);
        be->ops->route(be, x, n, &gate, &bias, &other, i % 2 ? image : NULL, 1.0f, top, i != 4,
                       1.5f, chosen, weights);
        add_part(r, PART_I32, chosen, cells, exact);
        add_part(r, PART_F32, weights, cells, fine);
    }
}

static void route_ties_and_nans(di_backend *be, arrays *a, results *r) {
    enum { N = 2, D = 32, E = 16, TOP = 4 };
    di_tensor gate = {.dtype = DI_BF16, .rank = 2, .shape = {E, D}};
    gate.data = arrays_take(a, E * D, sizeof(di_bf16)); /* all logits 0: every score ties */
    float *b = arrays_take(a, E, sizeof *b);
    b[0] = NAN;
    b[3] = 1;
    b[9] = -INFINITY;
    b[15] = 1;
    di_tensor bias = {.dtype = DI_F32, .data = b};
    di_bf16 *x = random_bf16(a, N, D, 1, VALUES_CALM);
    x[D] = di_bf16_from_f32(NAN); /* second row: every score is NaN, experts are still numbers */
    int32_t *chosen = arrays_take(a, N * TOP, sizeof *chosen);
    float *weights = arrays_take(a, N * TOP, sizeof *weights);
    be->ops->route(be, x, N, &gate, &bias, &bias, NULL, 1.0f, TOP, true, 1.5f, chosen, weights);
    static const int32_t want[N * TOP] = {1, 2, 3, 15, 0, 1, 2, 3};
    assert_memory_equal(chosen, want, sizeof want);
    add_part(r, PART_F32, weights, N * TOP, fine);
}

/* One flipped BF16 rounding of t moves an E4M3 code by a step, 2^-4 of that term: results may then
 * differ by some BF16 steps, in the few rows where it happens. */
static const part expert_steps = {.ulp = 2, .small = 0x1p-8f, .one_in = 10};

static void experts(di_backend *be, arrays *a, results *r) {
    static const int shapes[][4] = {/* n, top, experts, inter */
                                    {1, 1, 1, 32},
                                    {1, 3, 8, 96},
                                    {7, 2, 3, 64},
                                    {70, 3, 6, 32}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int n = shapes[i][0], top = shapes[i][1], count = shapes[i][2], inter = shapes[i][3];
        const int d = 96;
        di_expert *table = arrays_take(a, (size_t)count, sizeof *table), shared;
        for (int e = 0; e <= count; e++) {
            di_expert *x = e < count ? &table[e] : &shared;
            di_dtype dtype = e < count ? DI_FP4_E2M1 : DI_F8_E4M3;
            x->w1 = random_tensor(a, dtype, inter, d);
            x->w3 = random_tensor(a, dtype, inter, d);
            x->w2 = random_tensor(a, dtype, d, inter);
        }
        int32_t *chosen = arrays_take(a, (size_t)n * (size_t)top, sizeof *chosen);
        float *weights = random_f32(a, (size_t)n * (size_t)top, 0.5f);
        for (int t = 0; t < n; t++) {
            int first = random_below(a, count - top + 1);
            for (int j = 0; j < top; j++) {
                chosen[t * top + j] = first + j;
            }
        }
        di_bf16 *x = random_bf16(a, (size_t)n, d, i == 2 ? 8 : 1, VALUES_CALM);
        di_bf16 *y = arrays_take(a, (size_t)n * (size_t)d, sizeof *y);
        be->ops->moe(be, x, n, chosen, weights, top, table, count, &shared, i ? 10.0f : 0, y);
        add_part(r, PART_BF16, y, (size_t)n * (size_t)d, expert_steps);
    }
}

static void ngrams(di_backend *be, arrays *a, results *r) {
    const int n = 100, columns = 6, width = 32, hc = 4, d = 96;
    di_tensor table = random_table(a, 50, width);
    di_tensor wkv = random_tensor(a, DI_F8_E4M3, (hc + 1) * d, columns * width);
    di_tensor q = random_tensor(a, DI_BF16, hc, d), k = random_tensor(a, DI_BF16, hc, d);
    int64_t *rows = arrays_take(a, (size_t)n * (size_t)columns, sizeof *rows);
    for (int i = 0; i < n * columns; i++) {
        rows[i] = i / columns % 3 == 1 ? -1 : random_below(a, 50);
    }
    di_bf16 *h = random_bf16(a, (size_t)n * (size_t)hc, (size_t)d, 1, VALUES_CALM);
    be->ops->engram(be, rows, n, columns, &table, &wkv, &q, &k, hc, d, 1e-20f, h);
    add_part(r, PART_BF16, h, (size_t)n * (size_t)hc * (size_t)d, one_step);
    h = random_bf16(a, (size_t)n * (size_t)hc, (size_t)d, 1, VALUES_WILD);
    be->ops->engram(be, rows, 1, columns, &table, &wkv, &q, &k, hc, d, 1e-20f, h);
    add_part(r, PART_BF16, h, (size_t)n * (size_t)hc * (size_t)d, one_step);
}

/* ---- tests ------------------------------------------------------------------------------------*/

static void test_rows_are_gathered_and_embedded_as_by_the_oracle(void **state) {
    (void)state;
    check_case(embed_and_gather, true);
}

static void test_norms_agree_with_the_oracle(void **state) {
    (void)state;
    check_case(norms, true);
}

static void test_rotation_agrees_with_the_oracle(void **state) {
    (void)state;
    check_case(rotations, true);
}

static void test_hyper_connections_agree_with_the_oracle(void **state) {
    (void)state;
    check_case(hyper_connections, true);
}

static void test_products_agree_with_the_oracle_on_every_tail(void **state) {
    (void)state;
    check_case(products, true);
}

static void test_nans_and_infinities_spoil_their_row_and_no_other(void **state) {
    (void)state;
    check_case(broken_products, true);
}

static void test_quantised_rows_give_what_plain_ones_do(void **state) {
    (void)state;
    check_case(quantised_rows, true);
}

static void test_pairs_of_products_are_what_each_is_alone(void **state) {
    (void)state;
    check_case(product_pairs, true);
}

/* The oracle tells when rows are not what they are said to be. */
static void test_the_oracle_faults_rows_that_are_not_quantised(void **state) {
    (void)state;
    arrays a = {.seed = 5};
    di_error err = {0};
    di_backend *be = di_ref_create(NULL);
    di_tensor w = random_tensor(&a, DI_F8_E4M3, 3, 64);
    di_bf16 *x = random_bf16(&a, 2, 64, 1, VALUES_CALM), y[6];
    di_bf16 *q8 = through_q8(&a, x, 2, 64);
    be->ops->linear(be, q8, DI_Q8, 2, &w, y);
    assert_true(be->ops->sync(be, &err));
    q8[70] ^= 1;
    be->ops->linear(be, q8, DI_Q8, 2, &w, y);
    assert_false(be->ops->sync(be, &err));
    assert_int_equal(err.code, DI_ERR_INTERNAL);
    assert_true(be->ops->sync(be, &err));
    q8[70] ^= 1;
    w = random_tensor(&a, DI_BF16, 3, 64); /* which would not have quantised them */
    be->ops->linear(be, q8, DI_Q8, 2, &w, y);
    assert_false(be->ops->sync(be, &err));
    be->ops->destroy(be);
    arrays_free(&a);
}

static void test_grouped_products_agree_with_the_oracle(void **state) {
    (void)state;
    check_case(grouped_products, true);
}

static void test_routing_agrees_with_the_oracle(void **state) {
    (void)state;
    check_case(routing, true);
}

static void test_route_prefers_finite_scores_and_lower_numbers(void **state) {
    (void)state;
    check_case(route_ties_and_nans, true);
}

static void test_experts_agree_with_the_oracle(void **state) {
    (void)state;
    check_case(experts, true);
}

static void test_ngram_gate_agrees_with_the_oracle(void **state) {
    (void)state;
    check_case(ngrams, true);
}

/* The softmax over 4 streams and its 20 rounds against numbers from a published check. */
static void test_sinkhorn_rounds_give_the_known_matrix(void **state) {
    (void)state;
    static const float logits[16] = {1, 0, 0, -1, 0, 2, 0, 0, 0.5f, 0, 1, 0, 0, -0.5f, 0, 3};
    static const float want[16] = {0.550896f, 0.160808f, 0.246761f, 0.041535f, 0.115772f, 0.678769f,
                                   0.140963f, 0.064496f, 0.261327f, 0.125768f, 0.524604f, 0.088301f,
                                   0.072004f, 0.034654f, 0.087671f, 0.805668f};
    float base[24] = {0}, fn[24 * 32] = {0}, scale[3] = {1, 1, 1};
    float pre[4], post[4], comb[16];
    memcpy(base + 8, logits, sizeof logits);
    di_bf16 h[32] = {0};
    di_tensor tensors[3] = {{.dtype = DI_F32, .rank = 2, .shape = {24, 32}, .data = fn},
                            {.dtype = DI_F32, .rank = 1, .shape = {24}, .data = base},
                            {.dtype = DI_F32, .rank = 1, .shape = {3}, .data = scale}};
    di_backend *be = di_cpu_create(NULL, NULL);
    be->ops->mhc_mix(be, h, 1, 4, 8, &tensors[0], &tensors[1], &tensors[2], 1e-20f, 1e-6f, 20, pre,
                     post, comb);
    be->ops->destroy(be);
    for (int i = 0; i < 16; i++) {
        assert_true(fabsf(comb[i] - want[i]) < 2e-6f);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(fabsf(pre[i] - 0.500001f) < 1e-7f && post[i] == 1.0f);
    }
}

/* Mixes, and what enters the next sub-block: each row alone against all rows together. */
static void rows_alone_have_the_bits_of_all(int d) {
    enum { N = 45 /* a card has a kernel for 33 and more */, HC = 4, MIXES = (2 + HC) * HC };
    arrays a = {.seed = 5};
    di_backend *be = card_under_test() ? mirror_of_card(true)
                                       : di_cpu_create(&(di_cpu_options){.threads = 2}, NULL);
    size_t row = (size_t)d, width = HC * row;
    di_tensor fn = random_tensor(&a, DI_F32, MIXES, HC * d),
              norm = random_tensor(&a, DI_BF16, 1, d);
    di_tensor base = {.dtype = DI_F32, .data = random_f32(&a, MIXES, 1)};
    di_tensor scale = {.dtype = DI_F32, .data = random_f32(&a, 3, 1)};
    const di_bf16 *before = random_bf16(&a, N, width, 2, VALUES_CALM);
    const di_bf16 *y = random_bf16(&a, N, row, 1, VALUES_CALM);
    const float *pre = random_f32(&a, N * HC, 1);
    float *mix[2];
    di_bf16 *h[2], *x[2];
    for (int i = 0; i < 2; i++) {
        mix[i] = arrays_take(&a, N * MIXES, sizeof(float));
        h[i] = arrays_take(&a, N * width, sizeof(di_bf16));
        x[i] = arrays_take(&a, N * row, sizeof(di_bf16));
        memcpy(h[i], before, N * width * sizeof *before);
        int rows = i ? 1 : N; /* of a call */
        for (int t = 0; t < N; t += rows) {
            float *next = mix[i] + t * HC, *post = mix[i] + (N + t) * HC;
            float *comb = mix[i] + 2 * N * HC + t * HC * HC;
            di_bf16 *streams = h[i] + (size_t)t * width;
            be->ops->mhc_mix(be, streams, rows, HC, d, &fn, &base, &scale, 1e-20f, 1e-6f, 20, next,
                             post, comb);
            be->ops->mhc_post(be, y + (size_t)t * row, post, comb, rows, HC, d, streams,
                              pre + t * HC, &norm, 1e-20f, x[i] + (size_t)t * row, NULL);
        }
    }
    assert_memory_equal(mix[0], mix[1], N * MIXES * sizeof(float));
    assert_memory_equal(h[0], h[1], N * width * sizeof(di_bf16));
    assert_memory_equal(x[0], x[1], N * row * sizeof(di_bf16));
    be->ops->destroy(be);
    arrays_free(&a);
}

static void test_mixes_of_a_row_alone_have_the_bits_they_have_among_others(void **state) {
    (void)state;
    rows_alone_have_the_bits_of_all(360);
    rows_alone_have_the_bits_of_all(5120);
}

/* Products and experts: each row alone against all rows together. */
static void test_a_row_alone_has_the_bits_it_has_among_others(void **state) {
    (void)state;
    enum { N = 77, M = 70, K = 2112, TOP = 2, E = 4 }; /* N: a card has a kernel for 65 and more */
    static const di_dtype dtypes[] = {DI_F8_E4M3, DI_FP4_E2M1, DI_BF16};
    for (int isa = DI_CPU_PLAIN; isa <= DI_CPU_AVX512; isa++) {
        if (!di_cpu_isa_usable((di_cpu_isa)isa) || (card_under_test() && isa > DI_CPU_PLAIN)) {
            continue;
        }
        arrays a = {.seed = 3};
        di_backend *be = card_under_test()
                             ? mirror_of_card(true)
                             : di_cpu_create(&(di_cpu_options){2, (di_cpu_isa)isa}, NULL);
        di_bf16 *x = random_bf16(&a, N, K, 1, VALUES_CALM);
        di_bf16 *all = arrays_take(&a, N * K, 2), *one = arrays_take(&a, N * K, 2);
        for (int d = 0; d < 3; d++) {
            di_tensor w = random_tensor(&a, dtypes[d], M, K);
            be->ops->linear(be, x, DI_PLAIN, N, &w, all);
            for (int t = 0; t < N; t++) {
                be->ops->linear(be, x + t * K, DI_PLAIN, 1, &w, one + t * M);
            }
            assert_memory_equal(one, all, N * M * sizeof *one);
            for (int n = 2; n < 12; n++) {
                be->ops->linear(be, x, DI_PLAIN, n, &w, one);
                assert_memory_equal(one, all, (size_t)n * (size_t)M * sizeof *one);
            }
        }
        di_expert table[E + 1];
        int32_t chosen[N * TOP];
        float *weights = random_f32(&a, N * TOP, 1);
        for (int e = 0; e <= E; e++) {
            di_dtype dtype = e < E ? DI_FP4_E2M1 : DI_F8_E4M3;
            table[e].w1 = random_tensor(&a, dtype, 64, 96);
            table[e].w3 = random_tensor(&a, dtype, 64, 96);
            table[e].w2 = random_tensor(&a, dtype, 96, 64);
        }
        for (int t = 0; t < N; t++) {
            chosen[t * TOP] = t % (E - 1);
            chosen[t * TOP + 1] = E - 1;
        }
        be->ops->moe(be, x, N, chosen, weights, TOP, table, E, &table[E], 10, all);
        for (int t = 0; t < N; t++) {
            be->ops->moe(be, x + t * 96, 1, chosen + t * TOP, weights + t * TOP, TOP, table, E,
                         &table[E], 10, one + t * 96);
        }
        assert_memory_equal(one, all, N * 96 * sizeof *one);
        be->ops->destroy(be);
        arrays_free(&a);
    }
}

static void test_create_refuses_what_it_cannot_do(void **state) {
    (void)state;
    di_error err;
    assert_null(di_cpu_create(&(di_cpu_options){.threads = -1}, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    assert_null(di_cpu_create(&(di_cpu_options){.threads = 1025}, &err));
    assert_non_null(strstr(err.message, "1025"));
    for (int isa = DI_CPU_AVX2; isa <= DI_CPU_AVX512; isa++) {
        di_backend *be = di_cpu_create(&(di_cpu_options){.isa = (di_cpu_isa)isa}, &err);
        assert_int_equal(be != NULL, di_cpu_isa_usable((di_cpu_isa)isa));
        if (be) {
            assert_int_equal(di_cpu_isa_of(be), isa);
            be->ops->destroy(be);
        } else {
            assert_int_equal(err.code, DI_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.message, di_cpu_isa_name((di_cpu_isa)isa)));
        }
    }
}

static void test_buffers_are_aligned_and_carry_bytes(void **state) {
    (void)state;
    di_backend *be = di_cpu_create(NULL, NULL);
    char text[] = "over and back", back[sizeof text] = {0};
    for (size_t bytes = 1; bytes < 5000; bytes = bytes * 3 + 16) {
        void *p = be->ops->alloc(be, bytes + sizeof text);
        assert_int_equal((uintptr_t)p % 256, 0);
        be->ops->upload(be, p, text, sizeof text);
        void *q = be->ops->alloc(be, sizeof text);
        be->ops->copy(be, q, p, sizeof text);
        be->ops->download(be, back, q, sizeof text);
        be->ops->free(be, q);
        assert_string_equal(back, text);
        be->ops->free(be, p);
    }
    be->ops->free(be, NULL);
    assert_null(be->ops->alloc(be, SIZE_MAX));
    be->ops->destroy(be);
}

static void test_lack_of_memory_is_reported_by_sync_and_passes(void **state) {
    (void)state;
    check_lack_of_memory(products);
    check_lack_of_memory(product_pairs);
    check_lack_of_memory(quantised_rows);
    check_lack_of_memory(grouped_products);
    check_lack_of_memory(hyper_connections);
    check_lack_of_memory(routing);
    check_lack_of_memory(experts);
    check_lack_of_memory(ngrams);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_gathered_and_embedded_as_by_the_oracle),
        cmocka_unit_test(test_mixes_of_a_row_alone_have_the_bits_they_have_among_others),
        cmocka_unit_test(test_norms_agree_with_the_oracle),
        cmocka_unit_test(test_rotation_agrees_with_the_oracle),
        cmocka_unit_test(test_hyper_connections_agree_with_the_oracle),
        cmocka_unit_test(test_products_agree_with_the_oracle_on_every_tail),
        cmocka_unit_test(test_nans_and_infinities_spoil_their_row_and_no_other),
        cmocka_unit_test(test_quantised_rows_give_what_plain_ones_do),
        cmocka_unit_test(test_pairs_of_products_are_what_each_is_alone),
        cmocka_unit_test(test_the_oracle_faults_rows_that_are_not_quantised),
        cmocka_unit_test(test_grouped_products_agree_with_the_oracle),
        cmocka_unit_test(test_routing_agrees_with_the_oracle),
        cmocka_unit_test(test_route_prefers_finite_scores_and_lower_numbers),
        cmocka_unit_test(test_experts_agree_with_the_oracle),
        cmocka_unit_test(test_ngram_gate_agrees_with_the_oracle),
        cmocka_unit_test(test_sinkhorn_rounds_give_the_known_matrix),
        cmocka_unit_test(test_a_row_alone_has_the_bits_it_has_among_others),
        cmocka_unit_test(test_create_refuses_what_it_cannot_do),
        cmocka_unit_test(test_buffers_are_aligned_and_carry_bytes),
        cmocka_unit_test(test_lack_of_memory_is_reported_by_sync_and_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
