/* The kernels of each instruction set against scalar definitions: quantisers over all inputs, sums
 * against their written order, exp and log1p against the C library in wider arithmetic. */
#include <math.h>
#include <string.h>

#include "base/cpuinfo.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/internal.h"
#include "ops/fmath.h"
#include "support/arrays.h"
#include "support/cmocka.h"

/* Calls body(kernels) for each table that runs here. */
static void for_each_table(void (*body)(const di_cpu_kernels *)) {
    body(&di_cpu_kernels_plain);
#if defined(__x86_64__)
    if (di_cpu_isa_usable(DI_CPU_AVX2)) {
        body(&di_cpu_kernels_avx2);
    }
    if (di_cpu_isa_usable(DI_CPU_AVX512)) {
        body(&di_cpu_kernels_avx512);
    }
#endif
}

/* Place of value i of a row in lane order. */
static size_t lane_place(size_t i) {
    return i / 32 * 32 + i % 2 * 16 + i % 32 / 2;
}

static void expect_same(float got, float want, const char *who, uint32_t x) {
    if (di_f32_bits(got) != di_f32_bits(want) && !(isnan(got) && isnan(want))) {
        fail_msg("%s of %08x: %.9g, not %.9g", who, x, (double)got, (double)want);
    }
}

/* ---- quantisers -------------------------------------------------------------------------------*/

typedef float round_trip(float x, float amax);

static float scalar_q8(float x, float amax) {
    float s = di_e8m0_to_f32(di_q8_scale(amax));
    return di_e4m3_to_f32(di_e4m3_from_f32(x / s)) * s;
}

static float scalar_q4i(float x, float amax) {
    float s = di_e8m0_to_f32(di_q4i_scale(amax));
    return di_e2m1_to_f32(di_e2m1_from_f32(x / s)) * s;
}

/* Every BF16 value in groups whose largest magnitude is itself, a little more, and much more. */
static void every_bf16(void (*quantise)(const di_bf16 *, int, float *), round_trip *want,
                       const char *who) {
    for (int offset = 0; offset < 5; offset++) {
        for (uint32_t bits = 0; bits < 0x10000; bits += 31) {
            di_bf16 x[32];
            float amax = 0, got[32];
            uint32_t top = bits & 0x7fff;
            static const uint32_t steps[] = {0, 1, 0x40, 0x91, 0x280};
            top = top + steps[offset] < 0x7f80 ? top + steps[offset] : top;
            x[0] = (di_bf16)top;
            for (uint32_t i = 1; i < 32; i++) {
                x[i] = (di_bf16)(bits + i - 1);
            }
            for (int i = 0; i < 32; i++) {
                float v = fabsf(di_bf16_to_f32(x[i]));
                amax = v > amax ? v : amax; /* NaNs do not count */
            }
            quantise(x, 32, got);
            for (size_t i = 0; i < 32; i++) {
                expect_same(got[lane_place(i)], want(di_bf16_to_f32(x[i]), amax), who, x[i]);
            }
        }
    }
}

/* Every element class against every amax: all 256 exponents of the group's largest value. */
static void every_amax(void (*quantise)(const di_bf16 *, int, float *), round_trip *want,
                       const char *who) {
    for (uint32_t top = 0; top < 0x7f80; top++) {
        di_bf16 x[32] = {(di_bf16)top};
        float got[32], amax = di_bf16_to_f32(x[0]);
        for (uint32_t i = 1; i < 32; i++) { /* from just below the top to far below */
            uint32_t below = i * i * (1 + top % 5);
            x[i] = (di_bf16)((top > below ? top - below : 0) | (i & 1) << 15);
        }
        quantise(x, 32, got);
        for (size_t i = 0; i < 32; i++) {
            expect_same(got[lane_place(i)], want(di_bf16_to_f32(x[i]), amax), who, x[i]);
        }
    }
}

static void check_quantisers(const di_cpu_kernels *k) {
    every_bf16(k->quant8, scalar_q8, k->name);
    every_amax(k->quant8, scalar_q8, k->name);
    every_amax(k->quant4, scalar_q4i, k->name);
}

static void test_quantisers_equal_their_scalar_forms_on_all_inputs(void **state) {
    (void)state;
    for_each_table(check_quantisers);
}

static void check_widen(const di_cpu_kernels *k) {
    for (uint32_t first = 0; first < 0x10000; first += 96) {
        di_bf16 x[96];
        float a[96 + 32];
        for (uint32_t i = 0; i < 96; i++) {
            x[i] = (di_bf16)(first + i);
        }
        int n = 96 - (int)(first / 96 % 40);
        k->widen(x, n, a);
        for (int i = 0; i < (n + 31) / 32 * 32; i++) {
            float want = i < n ? di_bf16_to_f32(x[i]) : 0;
            expect_same(a[lane_place((size_t)i)], want, k->name, x[i % 96]);
        }
    }
}

static void test_widening_gives_lane_order_and_zeros_behind(void **state) {
    (void)state;
    for_each_table(check_widen);
}

/* ---- records ----------------------------------------------------------------------------------*/

/* Every code under every scale byte. */
static void check_window_rows(const di_cpu_kernels *k) {
    for (int scale = 0; scale < 256; scale++) {
        uint8_t record[256 + 8];
        float a[256];
        for (int i = 0; i < 256; i++) {
            record[i] = (uint8_t)i;
        }
        memset(record + 256, scale, 8);
        k->window_row(record, 256, a);
        for (size_t i = 0; i < 256; i++) {
            float want = di_e4m3_to_f32((uint8_t)i) * di_e8m0_to_f32((uint8_t)scale);
            expect_same(a[lane_place(i)], want, k->name, (uint32_t)i);
        }
    }
}

static void check_fp4_rows(const di_cpu_kernels *k) {
    for (int scale = 0; scale < 256; scale++) {
        uint8_t latent[32 + 4] = {0}, key[32 + 2] = {0};
        float a[64];
        for (int i = 0; i < 32; i++) {
            latent[i] = key[i] = (uint8_t)(i * 37 + scale);
        }
        for (int i = 0; i < 4; i++) {
            latent[32 + i] = (uint8_t)(scale + i);
            key[32 + i / 2] = (uint8_t)(scale + i / 2);
        }
        k->latent_row(latent, 64, a);
        for (size_t i = 0; i < 64; i++) {
            uint8_t code = i % 2 ? latent[i / 2] >> 4 : latent[i / 2] & 15;
            float want = di_e2m1_to_f32(code) * di_e4m3_to_f32(latent[32 + i / 16]);
            assert_true(a[lane_place(i)] == want || isnan(want)); /* -0 may be +0 */
        }
        k->key_row(key, 64, a);
        for (size_t i = 0; i < 64; i++) {
            uint8_t code = i % 2 ? key[i / 2] >> 4 : key[i / 2] & 15;
            float want = di_e2m1_to_f32(code) * di_e8m0_to_f32(key[32 + i / 32]);
            assert_true(a[lane_place(i)] == want || (isnan(want) && isnan(a[lane_place(i)])));
        }
    }
}

static void test_records_decode_to_code_times_scale(void **state) {
    (void)state;
    for_each_table(check_window_rows);
    for_each_table(check_fp4_rows);
}

/* ---- sums -------------------------------------------------------------------------------------*/

/* The written order: lane i of 16 takes values 32b + 2i and 32b + 2i + 1, b ascending; then lanes
 * 8 apart are added, 4 apart, 2 apart, 1 apart. */
static float ordered_dot(const float *x, const float *w, int k) {
    float lane[16] = {0};
    for (int i = 0; i < k; i++) {
        lane[i % 32 / 2] += x[i] * w[i];
    }
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
}

/* A stored weight, scale included; the test's own reading of the formats. */
static float weight(const di_tensor *t, int row, int col) {
    int64_t k = t->shape[1], at = row * k + col;
    const uint8_t *data = t->data;
    if (t->dtype == DI_BF16) {
        return di_bf16_to_f32(((const di_bf16 *)t->data)[at]);
    }
    float s = di_e8m0_to_f32(t->scale[row / t->scale_block[0] * (k / 32) + col / 32]);
    uint8_t code = t->dtype == DI_F8_E4M3 ? data[at] : data[at / 2] >> at % 2 * 4 & 15;
    return (t->dtype == DI_F8_E4M3 ? di_e4m3_to_f32(code) : di_e2m1_to_f32(code)) * s;
}

static void check_products(const di_cpu_kernels *k) {
    static const di_dtype dtypes[] = {DI_F8_E4M3, DI_FP4_E2M1, DI_BF16};
    static const int rows_of_x[] = {1, 2, 3, 4, 5, 8, 9, 13, DI_CPU_PRODUCT_ROWS};
    enum { K = 2144, ROWS = 45, FIRST = 3 }; /* more than two stretches of PRODUCT_DEPTH */
    for (int d = 0; d < 3; d++) {
        arrays a = {.seed = 5};
        di_tensor t = random_tensor(&a, dtypes[d], FIRST + ROWS, K);
        di_cpu_matrix w = di_cpu_matrix_of(&t);
        float *plain = arrays_take(&a, DI_CPU_PRODUCT_ROWS * K, sizeof(float));
        float *lanes = arrays_take(&a, DI_CPU_PRODUCT_ROWS * K, sizeof(float));
        float *row = arrays_take(&a, K, sizeof(float));
        float *y = arrays_take(&a, DI_CPU_PRODUCT_ROWS * ROWS, sizeof(float));
        float *scratch = arrays_take(&a, di_cpu_product_scratch(K), sizeof(float));
        const float *list[DI_CPU_PRODUCT_ROWS];
        for (int i = 0; i < DI_CPU_PRODUCT_ROWS; i++) {
            list[i] = lanes + (size_t)i * K;
            for (int j = 0; j < K; j++) {
                float v = di_round_bf16(random_normal(&a));
                plain[i * K + j] = v;
                lanes[(size_t)i * K + lane_place((size_t)j)] = v;
            }
        }
        for (size_t c = 0; c < sizeof rows_of_x / sizeof *rows_of_x; c++) {
            int m = rows_of_x[c];
            k->product(&w, FIRST, ROWS, list, m, scratch, y, ROWS);
            for (int r = 0; r < ROWS; r++) {
                for (int j = 0; j < K; j++) {
                    row[j] = weight(&t, FIRST + r, j);
                }
                for (int i = 0; i < m; i++) {
                    expect_same(y[i * ROWS + r], ordered_dot(plain + i * K, row, K), k->name,
                                (uint32_t)m);
                }
            }
        }
        arrays_free(&a);
    }
}

static void test_products_are_summed_in_the_written_order(void **state) {
    (void)state;
    for_each_table(check_products);
}

static void check_dots(const di_cpu_kernels *k) {
    enum { K = 96, M = 7, N = 13, LD = K + 16 };
    arrays a = {.seed = 6};
    float *x = arrays_take(&a, M * K, 4), *y = arrays_take(&a, N * K, 4);
    float *xl = arrays_take(&a, M * LD, 4), *yl = arrays_take(&a, (N + DI_CPU_PAD_ROWS) * LD, 4);
    float out[M][N + 3];
    for (size_t i = 0; i < M * K; i++) {
        x[i] = xl[i / K * LD + lane_place(i % K)] = di_round_bf16(random_normal(&a));
    }
    for (size_t i = 0; i < N * K; i++) {
        y[i] = yl[i / K * LD + lane_place(i % K)] = di_round_bf16(random_normal(&a));
    }
    k->dots(xl, LD, M, yl, LD, N, K, out[0], N + 3);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            expect_same(out[i][j], ordered_dot(x + i * K, y + j * K, K), k->name, (uint32_t)j);
        }
    }
    arrays_free(&a);
}

static void test_scores_are_summed_in_the_written_order(void **state) {
    (void)state;
    for_each_table(check_dots);
}

static void check_squares(const di_cpu_kernels *k) {
    arrays a = {.seed = 8};
    for (size_t n = 1; n < 80; n++) {
        di_bf16 *x = random_bf16(&a, 1, n, 1, VALUES_WILD);
        double lane[16] = {0};
        for (size_t i = 0; i < n; i++) {
            double v = di_bf16_to_f32(x[i]);
            lane[i % 16] += v * v;
        }
        for (int half = 8; half; half /= 2) {
            for (int i = 0; i < half; i++) {
                lane[i] += lane[i + half];
            }
        }
        assert_true(k->squares(x, n) == lane[0]);
    }
    arrays_free(&a);
}

static void test_squares_are_summed_in_the_written_order(void **state) {
    (void)state;
    for_each_table(check_squares);
}

/* out * fade, then p[j] * v[j] for j ascending, each rounded once. */
static void check_values(const di_cpu_kernels *k) {
    enum { HEADS = 7, N = 64, DIM = 96, LD = DIM + 16 };
    arrays a = {.seed = 9};
    float *p = arrays_take(&a, HEADS * N, 4), *v = arrays_take(&a, N * LD, 4);
    float *fade = random_f32(&a, HEADS, 1), *out = random_f32(&a, HEADS * LD, 1);
    float *want = arrays_take(&a, HEADS * LD, 4);
    memcpy(want, out, HEADS * LD * sizeof *want);
    for (int i = 0; i < HEADS * N; i++) {
        p[i] = di_round_bf16(random_unit(&a));
    }
    for (int i = 0; i < N * LD; i++) {
        v[i] = di_round_bf16(random_normal(&a));
    }
    for (int h = 0; h < HEADS; h++) {
        for (int c = 0; c < DIM; c++) {
            want[h * LD + c] *= fade[h];
            for (int j = 0; j < 61; j++) {
                want[h * LD + c] += p[h * N + j] * v[j * LD + c];
            }
        }
    }
    k->values(p, N, HEADS, v, LD, 61, DIM, fade, out, LD);
    for (int h = 0; h < HEADS; h++) {
        for (int c = 0; c < DIM; c++) {
            expect_same(out[h * LD + c], want[h * LD + c], k->name, (uint32_t)c);
        }
    }
    arrays_free(&a);
}

static void test_values_are_added_in_slot_order(void **state) {
    (void)state;
    for_each_table(check_values);
}

/* ---- functions --------------------------------------------------------------------------------*/

/* Distance in units of the last place of the f32 nearest to the true value. */
static double ulps(float got, double want) {
    int exponent;
    frexp(want, &exponent);
    exponent = exponent < -125 ? -125 : exponent;
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

static void test_functions_are_within_0_51_ulp(void **state) {
    (void)state;
    for (uint32_t u = 0; u < 0x42c80000u; u += 977) { /* magnitudes up to 100 */
        for (int sign = 0; sign < 2; sign++) {
            float x = di_f32_from_bits(u | (uint32_t)sign << 31);
            double e = exp((double)x);
            if (x < 88.7f && x > -87.3f) {
                assert_true(ulps(di_expf(x), e) < 0.51);
            }
            assert_true(ulps(di_sigmoidf(x), 1 / (1 + exp(-(double)x))) < 0.51);
            if (x > -80) {
                assert_true(ulps(di_siluf(x), x / (1 + exp(-(double)x))) < 0.51);
                assert_true(ulps(di_softplusf(x), x > 20 ? (double)x : log1p(e)) < 0.51);
            }
        }
    }
    assert_true(di_expf(0) == 1 && di_expf(-INFINITY) == 0 && isinf(di_expf(INFINITY)));
    assert_true(di_expf(-200) == 0 && isinf(di_expf(89)) && isnan(di_expf(NAN)));
    assert_true(di_sigmoidf(-INFINITY) == 0 && di_sigmoidf(INFINITY) == 1);
    assert_true(isnan(di_softplusf(NAN)) && isnan(di_siluf(NAN)));
}

/* One head's block against the C library, and the vectorised loop against the scalar function. */
static void check_softmax(const di_cpu_kernels *k) {
    arrays a = {.seed = 10};
    for (int n = 1; n <= DI_CPU_SLOTS; n++) {
        float p[DI_CPU_SLOTS], s[DI_CPU_SLOTS], peak = -1, total = 3, top = -1;
        for (int i = 0; i < n; i++) {
            p[i] = random_normal(&a) * 8;
            s[i] = p[i] * 0.25f;
            top = s[i] > top ? s[i] : top;
        }
        float lane[16] = {0};
        float fade = k->softmax(p, n, 0.25f, &peak, &total);
        for (int i = 0; i < n; i++) {
            float e = di_expf(s[i] - top);
            lane[i % 16] += e;
            expect_same(p[i], di_round_bf16(e), k->name, (uint32_t)i);
        }
        for (int half = 8; half; half /= 2) {
            for (int i = 0; i < half; i++) {
                lane[i] += lane[i + half];
            }
        }
        expect_same(fade, di_expf(-1 - top), k->name, 0);
        expect_same(total, 3 * fade + lane[0], k->name, 0);
        expect_same(peak, top, k->name, 0);
    }
    arrays_free(&a);
}

static void test_softmax_blocks_follow_the_written_order(void **state) {
    (void)state;
    for_each_table(check_softmax);
}

/* ---- selection --------------------------------------------------------------------------------*/

static void test_selection_takes_the_best_and_the_lower_of_equals(void **state) {
    (void)state;
    arrays a = {.seed = 11};
    for (int round = 0; round < 300; round++) {
        int n = 1 + random_below(&a, 200), k = 1 + random_below(&a, 60);
        float score[200];
        uint32_t keys[200];
        int32_t got[60];
        for (int i = 0; i < n; i++) {
            static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
            score[i] = random_below(&a, 4) ? (float)(random_below(&a, 9) - 4) * 0.5f
                                           : odd[random_below(&a, 5)];
            keys[i] = di_cpu_score_key(score[i]);
        }
        di_cpu_select(keys, n, k, got);
        int fill = 0;
        for (int i = 0; i < n; i++) { /* in, if fewer than k come before it */
            int before = 0;
            for (int j = 0; j < n; j++) {
                before +=
                    isfinite(score[j]) && (score[j] > score[i] || (score[j] == score[i] && j < i));
            }
            if (isfinite(score[i]) && before < k) {
                assert_int_equal(got[fill++], i);
            }
        }
        for (; fill < k; fill++) {
            assert_int_equal(got[fill], -1);
        }
    }
}

/* ---- features ---------------------------------------------------------------------------------*/

static void test_feature_list_names_what_is_there_and_is_cut_to_fit(void **state) {
    (void)state;
    char text[256], small[6];
    di_cpu_feature_list(text, sizeof text);
    for (int f = 0; f < DI_CPU_NUM_FEATURES; f++) {
        if (di_cpu_has((di_cpu_feature)f)) {
            assert_non_null(strstr(text, di_cpu_feature_name((di_cpu_feature)f)));
        }
    }
    di_cpu_feature_list(small, sizeof small);
    assert_true(strlen(small) < sizeof small && strncmp(text, small, strlen(small)) == 0);
    assert_true(di_cpu_count() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantisers_equal_their_scalar_forms_on_all_inputs),
        cmocka_unit_test(test_widening_gives_lane_order_and_zeros_behind),
        cmocka_unit_test(test_records_decode_to_code_times_scale),
        cmocka_unit_test(test_products_are_summed_in_the_written_order),
        cmocka_unit_test(test_scores_are_summed_in_the_written_order),
        cmocka_unit_test(test_squares_are_summed_in_the_written_order),
        cmocka_unit_test(test_values_are_added_in_slot_order),
        cmocka_unit_test(test_functions_are_within_0_51_ulp),
        cmocka_unit_test(test_softmax_blocks_follow_the_written_order),
        cmocka_unit_test(test_selection_takes_the_best_and_the_lower_of_equals),
        cmocka_unit_test(test_feature_list_names_what_is_there_and_is_cut_to_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
