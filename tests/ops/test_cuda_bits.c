/* A card's products give a row the same bits whatever kernel its company calls for: every number of
 * rows that takes another tile, against each row alone; two products in one launch, and results
 * quantised inside the product, against each by itself; experts with every number of uses,
 * likewise; attention with its keys decoded beforehand and not. With sums in any order, results
 * differ by a step at most, and few of them. Weights have wide scales and both
 * kinds of code that decoding treats apart, activations wide exponents, so that an order of sums
 * that changed would show.
 *
 * A checksum of all results is printed: builds with and without wgmma must print the same. Without
 * TEST_BACKEND=cuda there is nothing to do. */
#include <stdio.h>
#include <string.h>

#include "ops/cuda/cuda.h"
#include "support/cmocka.h"
#include "support/mirror.h"
#include "support/op_cases.h"

static uint64_t checksum = 14695981039346656037u; /* FNV-1a */

static void add_to_checksum(const void *data, size_t bytes) {
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) {
        checksum = (checksum ^ p[i]) * 1099511628211u;
    }
}

/* Some blocks far larger or smaller than the others; scales that take two factors among them. */
static void widen_scales(arrays *a, di_tensor *w) {
    if (w->dtype == DI_BF16) {
        return;
    }
    uint8_t *scale = (uint8_t *)w->scale;
    size_t n = (size_t)((w->shape[0] + w->scale_block[0] - 1) / w->scale_block[0]) *
               (size_t)(w->shape[1] / 32);
    for (size_t i = 0; i < n; i++) {
        int r = random_below(a, 64);
        scale[i] = (uint8_t)(r == 0 ? 0 : r == 1 ? 140 : r < 8 ? scale[i] - 4 + r : scale[i]);
    }
}

typedef struct shape {
    int m, k, groups, most; /* most: rows of activations */
} shape;

static const int counts[] = {1,  2,  3,  7,   8,   9,   16,  17,  32,  33,  63,   64,
                             65, 66, 96, 127, 128, 129, 200, 256, 257, 500, 1000, 1024};
enum { COUNTS = sizeof counts / sizeof *counts };

static void check_rows(di_backend *be, di_dtype dtype, shape s) {
    arrays a = {.seed = (uint64_t)(s.m + s.k + (int)dtype)};
    size_t k = (size_t)s.k * (size_t)s.groups, m = (size_t)s.m;
    di_tensor w = random_tensor(&a, dtype, s.m, s.k);
    widen_scales(&a, &w);
    di_bf16 *x = random_bf16(&a, (size_t)s.most, k, 1, VALUES_WILD);
    di_bf16 *alone = arrays_take(&a, (size_t)s.most * m, sizeof *alone);
    di_bf16 *y = arrays_take(&a, (size_t)s.most * m, sizeof *y);
    int step = s.most > 300 ? 7 : 1; /* rows to look at alone */
    for (int t = 0; t < s.most; t += step) {
        be->ops->linear_grouped(be, x + (size_t)t * k, 1, s.groups, &w, alone + (size_t)t * m,
                                DI_PLAIN);
    }
    for (size_t c = 1; c < COUNTS && counts[c] <= s.most; c++) {
        memset(y, 0x55, (size_t)s.most * m * sizeof *y);
        be->ops->linear_grouped(be, x, counts[c], s.groups, &w, y, DI_PLAIN);
        for (int t = 0; t < counts[c]; t += step) {
            if (memcmp(y + (size_t)t * m, alone + (size_t)t * m, m * sizeof *y) != 0) {
                fail_msg("%d x %d x %d, type %d: row %d of %d differs from itself alone", s.m, s.k,
                         s.groups, (int)dtype, t, counts[c]);
            }
        }
        for (size_t i = (size_t)counts[c] * m; i < (size_t)s.most * m; i++) {
            assert_int_equal(y[i], 0x5555);
        }
    }
    add_to_checksum(alone, (size_t)s.most * m * sizeof *alone);
    arrays_free(&a);
}

static void test_a_rows_bits_do_not_depend_on_the_number_of_rows(void **state) {
    (void)state;
    static const di_dtype dtypes[] = {DI_F8_E4M3, DI_FP4_E2M1, DI_BF16};
    static const shape shapes[] = {
        {130, 2112, 1, 260}, {520, 640, 4, 130}, {2304, 320, 1, 1024}, {17100, 192, 1, 257}};
    if (!card_under_test()) {
        return;
    }
    di_backend *be = mirror_of_card(true);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int d = 0; d < 3; d++) {
            check_rows(be, dtypes[d], shapes[s]);
        }
    }
    be->ops->destroy(be);
    printf("# products: %016llx\n", (unsigned long long)checksum);
}

/* With sums in any order: the same for few rows, and next to the same where k is no longer cut. */
static void test_sums_in_any_order_err_no_more(void **state) {
    (void)state;
    enum { OUT = 2304, IN = 2112, GROUPS = 2, MANY = 1100 };
    static const int some[] = {1, 64, 128, MANY};
    static results want, got;
    di_error err;
    if (!card_under_test()) {
        return;
    }
    arrays a = {.seed = 5};
    di_backend *be = mirror_of_card(true), *card = di_cuda_create(0, &err);
    assert_non_null(card);
    di_cuda_free_order(card, true);
    di_backend *free_be = mirror_create(card, di_cuda_forget);
    di_tensor w = random_tensor(&a, DI_F8_E4M3, OUT, IN);
    di_bf16 *x = random_bf16(&a, MANY, (size_t)IN * GROUPS, 1, VALUES_CALM);
    di_bf16 *y = arrays_take(&a, (size_t)MANY * OUT, sizeof *y);
    di_bf16 *z = arrays_take(&a, (size_t)MANY * OUT, sizeof *z);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        size_t n = (size_t)some[i] * OUT;
        be->ops->linear_grouped(be, x, some[i], GROUPS, &w, y, DI_PLAIN);
        free_be->ops->linear_grouped(free_be, x, some[i], GROUPS, &w, z, DI_PLAIN);
        want.n = got.n = 0;
        add_part(&want, PART_BF16, y, n, one_step);
        add_part(&got, PART_BF16, z, n, one_step);
        compare(&got, &want, some[i] == MANY, "sums in any order");
    }
    be->ops->destroy(be);
    free_be->ops->destroy(free_be);
    arrays_free(&a);
}

/* Two weights at once give the bits of each alone; results that go through Q8 inside the product
 * are what Q8 makes of the others. `groups` of the latter: its rows are a multiple of 32. */
static void check_pair_and_q8(di_backend *be, shape s, int m2, int groups) {
    arrays a = {.seed = (uint64_t)(s.m + m2)};
    size_t k = (size_t)s.k, most = (size_t)s.most, m[2] = {(size_t)s.m, (size_t)m2};
    size_t step = most > 300 ? 31 : 3; /* rows to look at alone */
    di_tensor w[2] = {random_tensor(&a, DI_F8_E4M3, s.m, s.k),
                      random_tensor(&a, DI_F8_E4M3, m2, s.k)};
    di_bf16 *x = random_bf16(&a, most * (size_t)groups, k, 1, VALUES_WILD), *y[2], *alone[2];
    di_bf16 *q8 = through_q8(&a, x, most, k);
    for (int i = 0; i < 2; i++) {
        widen_scales(&a, &w[i]);
        y[i] = arrays_take(&a, most * m[i], sizeof *y[i]);
        alone[i] = arrays_take(&a, most * m[i], sizeof *alone[i]);
        for (size_t t = 0; t < most; t += step) {
            be->ops->linear(be, q8 + t * k, DI_Q8, 1, &w[i], alone[i] + t * m[i]);
        }
        add_to_checksum(alone[i], most * m[i] * sizeof *alone[i]);
    }
    for (size_t c = 0; c < COUNTS && counts[c] <= s.most; c++) {
        size_t n = (size_t)counts[c];
        for (int form = DI_PLAIN; form <= DI_Q8; form++) {
            be->ops->linear_pair(be, form == DI_Q8 ? q8 : x, (di_form)form, counts[c], &w[0], y[0],
                                 &w[1], y[1]);
            for (size_t t = 0; t < n; t += step) {
                assert_memory_equal(y[0] + t * m[0], alone[0] + t * m[0], m[0] * sizeof **y);
                assert_memory_equal(y[1] + t * m[1], alone[1] + t * m[1], m[1] * sizeof **y);
            }
        }
        be->ops->linear_grouped(be, x, counts[c], groups, &w[0], y[0], DI_PLAIN);
        di_bf16 *want = through_q8(&a, y[0], n, m[0]);
        be->ops->linear_grouped(be, x, counts[c], groups, &w[0], y[0], DI_Q8);
        assert_memory_equal(y[0], want, n * m[0] * sizeof *want);
    }
    arrays_free(&a);
}

static void test_pairs_and_quantised_results_have_the_same_bits(void **state) {
    (void)state;
    if (!card_under_test()) {
        return;
    }
    di_backend *be = mirror_of_card(true);
    check_pair_and_q8(be, (shape){512, 640, 1, 130}, 1280, 4);
    check_pair_and_q8(be, (shape){96, 1088, 1, 70}, 130, 1);
    check_pair_and_q8(be, (shape){640, 1088, 1, 130}, 200, 4); /* groups begin inside tiles */
    check_pair_and_q8(be, (shape){544, 192, 1, 40}, 65, 2);    /* of 272 rows: by a kernel */
    check_pair_and_q8(be, (shape){8192, 192, 1, 1024}, 512, 8);
    check_pair_and_q8(be, (shape){2048, 2112, 1, 1024}, 640, 2);
    be->ops->destroy(be);
    printf("# and pairs: %016llx\n", (unsigned long long)checksum);
}

enum { MOST = 700, TOP = 2, E = 8, D = 192, INTER = 128 };

static di_expert random_expert(arrays *a, di_dtype dtype) {
    di_expert e;
    e.w1 = random_tensor(a, dtype, INTER, D);
    e.w3 = random_tensor(a, dtype, INTER, D);
    e.w2 = random_tensor(a, dtype, D, INTER);
    return e;
}

/* Of n tokens, expert 0 serves `share` and expert 1 the others; each has another one besides. */
static void choose(arrays *a, int n, int share, int32_t *chosen) {
    for (int t = 0; t < n; t++) {
        chosen[t * TOP] = t >= share;
        chosen[t * TOP + 1] = 2 + random_below(a, E - 2);
    }
}

static void check_experts(di_backend *be, di_dtype routed, di_dtype shared) {
    static const int uses[] = {2,  3,  4,   5,   8,   9,   16,  40,  64,
                               65, 90, 128, 150, 180, 250, 300, 512, MOST};
    arrays a = {.seed = 77 + (uint64_t)routed};
    di_expert table[E + 1];
    int32_t *chosen = arrays_take(&a, MOST * TOP, sizeof *chosen);
    float *weights = random_f32(&a, MOST * TOP, 1);
    di_bf16 *x = random_bf16(&a, MOST, D, 1, VALUES_CALM);
    di_bf16 *y = arrays_take(&a, MOST * D, sizeof *y), *alone = arrays_take(&a, MOST * D, 2);
    for (int e = 0; e <= E; e++) {
        table[e] = random_expert(&a, e < E ? routed : shared);
    }
    for (size_t c = 0; c < sizeof uses / sizeof *uses; c++) {
        int n = uses[c], step = n > 64 ? 5 : 1;
        choose(&a, n, n * 2 / 3, chosen);
        be->ops->moe(be, x, n, chosen, weights, TOP, table, E, &table[E], 10, y);
        for (int t = 0; t < n; t += step) {
            be->ops->moe(be, x + t * D, 1, chosen + t * TOP, weights + t * TOP, TOP, table, E,
                         &table[E], 10, alone + t * D);
            if (memcmp(alone + t * D, y + t * D, D * sizeof *y) != 0) {
                fail_msg("experts of type %d: row %d of %d differs from itself alone", (int)routed,
                         t, n);
            }
        }
        add_to_checksum(y, (size_t)n * D * sizeof *y);
    }
    arrays_free(&a);
}

static void test_experts_bits_do_not_depend_on_the_number_of_uses(void **state) {
    (void)state;
    if (!card_under_test()) {
        return;
    }
    di_backend *be = mirror_of_card(true);
    check_experts(be, DI_FP4_E2M1, DI_F8_E4M3);
    check_experts(be, DI_F8_E4M3, DI_FP4_E2M1);
    be->ops->destroy(be);
    printf("# and experts: %016llx\n", (unsigned long long)checksum);
}

/* ---- attention -------------------------------------------------------------------------------*/

/* Sequences of a step, one row each, at the width of the released model; on the card itself, as
 * hints are about memory that stays where it is. */
enum {
    ROWS = 21,
    HEADS = 64,
    DIM = 512,
    WINDOW = 128,
    CHOSEN = 512,
    RING = 136,
    BLOCKS = 40, /* of a sequence */
    BLOCK_TOKENS = 64,
    HALF = 32,
};

static void *on_card(di_backend *be, arrays *a, size_t bytes, uint8_t mask) {
    uint8_t *host = arrays_take(a, bytes, 1);
    for (size_t i = 0; i < bytes; i++) {
        host[i] = (uint8_t)random_below(a, 256) & mask;
    }
    void *p = be->ops->alloc(be, bytes);
    assert_non_null(p);
    be->ops->upload(be, p, host, bytes);
    return p;
}

static void *floats_on_card(di_backend *be, arrays *a, size_t n) {
    void *p = be->ops->alloc(be, n * sizeof(float));
    assert_non_null(p);
    be->ops->upload(be, p, random_f32(a, n, 1), n * sizeof(float));
    return p;
}

/* Entries of a row, ascending; some rows have few, the rest is empty. */
static int32_t *choose_keys(di_backend *be, arrays *a) {
    int32_t *list = arrays_take(a, (size_t)ROWS * CHOSEN, sizeof *list);
    for (int row = 0; row < ROWS; row++) {
        int count = row % 3 == 2 ? random_below(a, CHOSEN) : CHOSEN;
        for (int i = 0; i < CHOSEN; i++) {
            list[row * CHOSEN + i] = i < count ? 2 * i + random_below(a, 2) : -1;
        }
    }
    int32_t *p = be->ops->alloc(be, (size_t)ROWS * CHOSEN * sizeof *p);
    assert_non_null(p);
    be->ops->upload(be, p, list, (size_t)ROWS * CHOSEN * sizeof *list);
    return p;
}

static void test_attention_has_the_same_bits_with_keys_decoded_beforehand(void **unused) {
    (void)unused;
    static di_state_layout l = {.block_tokens = BLOCK_TOKENS, .ring_rows = RING, .group_rows = 8};
    static di_seq_rows seqs[ROWS];
    static int32_t tables[ROWS][BLOCKS];
    di_error err;
    if (!card_under_test()) {
        return;
    }
    arrays a = {.seed = 77};
    di_backend *be = di_cuda_create(0, &err);
    assert_non_null(be);
    l.window_bytes = DIM + DIM / 32;
    l.latent_bytes = DIM / 2 + DIM / 16;
    l.block_stride = l.latent_bytes * BLOCK_TOKENS;
    l.slot_stride = l.window_bytes * RING;
    di_step step = {.seqs = seqs, .pool = {.layout = &l}};
    step.pool.blocks = on_card(be, &a, l.block_stride * ROWS * BLOCKS, 0xbf);
    step.pool.slots = on_card(be, &a, l.slot_stride * ROWS, 0x7e);
    uint8_t *records = on_card(be, &a, l.window_bytes * ROWS, 0x7e);
    di_bf16 *q = on_card(be, &a, sizeof *q * ROWS * HEADS * DIM, 0xbf);
    di_rope_table rope = {floats_on_card(be, &a, ROWS * HALF), floats_on_card(be, &a, ROWS * HALF),
                          HALF};
    int32_t *topk = choose_keys(be, &a);
    di_tensor sink = {.dtype = DI_F32, .data = random_f32(&a, HEADS, 1)};
    size_t bytes = sizeof(di_bf16) * ROWS * HEADS * DIM;
    di_bf16 *out = be->ops->alloc(be, bytes);
    uint8_t *plain = arrays_take(&a, bytes, 1), *told = arrays_take(&a, bytes, 1);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < BLOCKS; i++) {
            tables[row][i] = (i * 7 + row) % BLOCKS + row * BLOCKS;
        }
        seqs[row] = (di_seq_rows){.row0 = row,
                                  .num_rows = 1,
                                  .pos0 = row % 4 == 3 ? 5 + row : 2000 + 17 * row,
                                  .blocks = tables[row],
                                  .slot = row};
    }
    static const int rows[] = {1, 4, ROWS};
    for (int i = 0; i < 6; i++) {
        const int32_t *list = i < 3 ? topk : NULL;
        int n = rows[i % 3], k = list ? CHOSEN : 0;
        step.num_rows = step.num_seqs = n;
        size_t used = bytes / ROWS * (size_t)n;
        for (int hint = 0; hint < 2; hint++) {
            if (hint) { /* the chosen entries count for a second layer too */
                be->ops->attention_keys(be, &step, 0, WINDOW, 0, 1, HEADS, DIM, NULL, list, k);
                be->ops->attention_keys(be, &step, 0, WINDOW, 0, 1, HEADS, DIM, records, NULL, k);
            }
            be->ops->attention(be, &step, 0, WINDOW, 0, 1, q, HEADS, DIM, rope, records, list, k,
                               &sink, out);
            be->ops->download(be, hint ? told : plain, out, used);
        }
        assert_true(be->ops->sync(be, &err));
        assert_memory_equal(plain, told, used);
        add_to_checksum(plain, used);
        be->ops->attention_keys(be, &step, 0, WINDOW, 0, 1, HEADS, DIM, records, NULL, k);
        be->ops->attention(be, &step, 0, WINDOW, 0, 1, q, HEADS, DIM, rope, records, list, k, &sink,
                           out);
        be->ops->download(be, told, out, used);
        assert_true(be->ops->sync(be, &err));
        assert_memory_equal(plain, told, used);
    }
    printf("# and attention: %016llx\n", (unsigned long long)checksum);
    be->ops->destroy(be);
    arrays_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rows_bits_do_not_depend_on_the_number_of_rows),
        cmocka_unit_test(test_sums_in_any_order_err_no_more),
        cmocka_unit_test(test_pairs_and_quantised_results_have_the_same_bits),
        cmocka_unit_test(test_experts_bits_do_not_depend_on_the_number_of_uses),
        cmocka_unit_test(test_attention_has_the_same_bits_with_keys_decoded_beforehand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
