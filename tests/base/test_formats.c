/* Number formats against their definitions, written out here a second time: every code decoded from
 * its fields, every conversion against a search for the nearest value, and the published groups. */
#include <math.h>
#include <string.h>

#include "base/formats.h"
#include "support/cmocka.h"

/* ---- codes ------------------------------------------------------------------------------------*/

/* From sign, exponent and mantissa fields. */
static double e4m3_by_fields(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double v = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -v : v;
}

static double e2m1_by_fields(int code) {
    int exponent = code >> 1 & 3, mantissa = code & 1;
    double v = exponent ? ldexp(2 + mantissa, exponent - 2) : mantissa * 0.5;
    return code & 8 ? -v : v;
}

static void test_every_code_decodes_to_its_fields(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        float v = di_e4m3_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(v));
        } else {
            assert_true((double)v == e4m3_by_fields(code) && !signbit(v) == !(code & 0x80));
        }
        float e = di_e8m0_to_f32((uint8_t)code);
        assert_true(code == 255 ? isnan(e) : (double)e == ldexp(1, code - 127));
        assert_true((double)di_e2m1_to_f32((uint8_t)code) == e2m1_by_fields(code & 15));
    }
    assert_true(di_e4m3_to_f32(0x7e) == 448 && di_e4m3_to_f32(0x01) == 0x1p-9f);
    assert_true(di_e2m1_to_f32(7) == 6 && signbit(di_e2m1_to_f32(8)));
}

/* ---- conversions ------------------------------------------------------------------------------*/

typedef double by_fields(int code);

/* Nearest of codes 0 .. last, the even code among two equally near. */
static int nearest(double magnitude, by_fields *value, int last) {
    int best = 0;
    magnitude = fmin(magnitude, 1000); /* far beyond the largest, differences would be lost */
    for (int code = 1; code <= last; code++) {
        double was = fabs(magnitude - value(best)), is = fabs(magnitude - value(code));
        best = is < was || (is == was && code % 2 == 0) ? code : best;
    }
    return best;
}

static void check_conversions(float x) {
    int sign = signbit(x) != 0;
    int e4m3 = nearest(fabs((double)x), e4m3_by_fields, 0x7e) | sign << 7;
    int e2m1 = nearest(fabs((double)x), e2m1_by_fields, 7) | sign << 3;
    if (di_e4m3_from_f32(x) != e4m3 || di_e2m1_from_f32(x) != e2m1) {
        fail_msg("%a: E4M3 %02x, not %02x; E2M1 %x, not %x", (double)x, di_e4m3_from_f32(x), e4m3,
                 di_e2m1_from_f32(x), e2m1);
    }
}

static void test_conversions_give_the_nearest_value_and_ties_to_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) { /* every finite BF16 */
        if ((bits & 0x7fff) < 0x7f80) {
            check_conversions(di_bf16_to_f32((di_bf16)bits));
        }
    }
    for (int code = 0; code < 0x7e; code++) { /* every midpoint, and one f32 step beside it */
        float middle = (float)((e4m3_by_fields(code) + e4m3_by_fields(code + 1)) / 2);
        check_conversions(middle);
        check_conversions(nextafterf(middle, 0));
        check_conversions(-nextafterf(middle, 1000));
    }
    for (int code = 0; code < 7; code++) {
        float middle = (float)((e2m1_by_fields(code) + e2m1_by_fields(code + 1)) / 2);
        check_conversions(middle);
        check_conversions(-nextafterf(middle, 0));
        check_conversions(nextafterf(middle, 1000));
    }
    assert_int_equal(di_e4m3_from_f32(INFINITY), 0x7e);
    assert_int_equal(di_e4m3_from_f32(-INFINITY), 0xfe);
    assert_int_equal(di_e4m3_from_f32(NAN), 0x7f);
}

static void test_every_value_of_a_format_survives_the_round_trip(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7f) != 0x7f) {
            assert_int_equal(di_e4m3_from_f32(di_e4m3_to_f32((uint8_t)code)), code);
        }
        assert_int_equal(di_e2m1_from_f32(di_e2m1_to_f32((uint8_t)code)), code & 15);
    }
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x = di_bf16_to_f32((di_bf16)bits);
        if (isnan(x)) {
            assert_true(isnan(di_bf16_to_f32(di_bf16_from_f32(x))));
        } else {
            assert_int_equal(di_bf16_from_f32(x), bits);
        }
    }
}

static void test_bf16_rounds_to_nearest_and_ties_to_even(void **state) {
    (void)state;
    for (uint32_t high = 0; high < 0x7f80; high++) {
        uint32_t u = high << 16;
        assert_int_equal(di_bf16_from_f32(di_f32_from_bits(u | 0x7fff)), high);
        assert_int_equal(di_bf16_from_f32(di_f32_from_bits(u | 0x8000)), high + (high & 1));
        assert_int_equal(di_bf16_from_f32(di_f32_from_bits(u | 0x8001)), high + 1);
        assert_int_equal(di_bf16_from_f32(di_f32_from_bits(u | 0x80008001u)), (high + 1) | 0x8000);
    }
    assert_int_equal(di_bf16_from_f32(INFINITY), 0x7f80);
    assert_true(isnan(di_round_bf16(di_f32_from_bits(0x7f800001)))); /* not rounded to infinity */
    assert_true(isnan(di_round_bf16(di_f32_from_bits(0xffffffff))));
}

static void test_pow2_ceil_is_the_smallest_power_not_below(void **state) {
    (void)state;
    for (int e = -126; e < 127; e++) {
        float p = ldexpf(1, e);
        assert_int_equal(di_pow2_ceil_e8m0(p), e + 127);
        assert_int_equal(di_pow2_ceil_e8m0(nextafterf(p, INFINITY)), e + 128);
        if (e > -126) {
            assert_int_equal(di_pow2_ceil_e8m0(nextafterf(p, 0)), e + 127);
        }
    }
}

/* ---- quantisers -------------------------------------------------------------------------------*/

/* Multiplying by the rounded 1/448 and 1/6 gives the scale that dividing gives, for every BF16. */
static void test_scales_are_those_of_the_division_for_every_amax(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f80; bits++) {
        double amax = di_bf16_to_f32((di_bf16)bits);
        int e8 = (int)ceil(log2(fmax(amax, (double)1e-4f) / 448)); /* exact where it matters: */
        while (ldexp(448, e8) < fmax(amax, (double)1e-4f)) {       /* corrected either way */
            e8++;
        }
        while (ldexp(448, e8 - 1) >= fmax(amax, (double)1e-4f)) {
            e8--;
        }
        assert_int_equal(di_q8_scale((float)amax), e8 + 127);
        int e4 = -126;
        while (ldexp(6, e4) < amax) {
            e4++;
        }
        assert_int_equal(di_q4i_scale((float)amax), e4 + 127);
        double k = fmax(amax, 6 * 0x1p-9) / 6;
        assert_int_equal(di_q4k_scale((float)amax),
                         nearest((double)(float)k, e4m3_by_fields, 0x7e));
    }
}

enum { GROUP = 8 };

typedef struct known_group {
    float input[GROUP], scale, output[GROUP];
} known_group;

static const known_group q8_groups[] = {
    {{1, -0.75f, 0.3984375f, 0.1015625f, -0.05078125f, 2.5f, 3, -5},
     0x1p-6f,
     {1, -0.75f, 0.40625f, 0.1015625f, -0.05078125f, 2.5f, 3, -5}},
    {{1, 0.25f, -0.125f, 0}, 0x1p-8f, {1, 0.25f, -0.125f, 0}},
    {{450, 1, 27.5f, -13.75f}, 2, {448, 1, 28, -14}},
    {{0}, 0x1p-22f, {0}},
};
static const known_group q4k_groups[] = {
    {{1, -0.75f, 0.3984375f, 0.1015625f, -0.05078125f, 2.5f, 3, -5},
     0.8125f,
     {0.8125f, -0.8125f, 0.40625f, 0, -0.0f, 2.4375f, 3.25f, -4.875f}},
    {{1, 0.25f, -0.125f, 0}, 0.171875f, {1.03125f, 0.2578125f, -0.0859375f, 0}},
    {{450, 1, 27.5f, -13.75f}, 72, {432, 0, 36, -0.0f}},
    {{0}, 0x1p-9f, {0}},
};
static const known_group q4i_groups[] = {
    {{1, -0.75f, 0.3984375f, 0.1015625f, -0.05078125f, 2.5f, 3, -5},
     1,
     {1, -1, 0.5f, 0, -0.0f, 2, 3, -4}},
    {{1, 0.25f, -0.125f, 0}, 0.25f, {1, 0.25f, -0.125f, 0}},
    {{450, 1, 27.5f, -13.75f}, 128, {512, 0, 0, -0.0f}},
    {{0}, 0x1p-126f, {0}},
};

static float amax_of(const float *x) {
    float amax = 0;
    for (int i = 0; i < GROUP; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
    }
    return amax;
}

static void expect_float(float got, float want) {
    if (di_f32_bits(got) != di_f32_bits(want)) {
        fail_msg("%.9g, not %.9g", (double)got, (double)want);
    }
}

static void test_q8_gives_the_known_groups(void **state) {
    (void)state;
    for (size_t g = 0; g < sizeof q8_groups / sizeof *q8_groups; g++) {
        const known_group *k = &q8_groups[g];
        float s = di_e8m0_to_f32(di_q8_scale(amax_of(k->input)));
        expect_float(s, k->scale);
        for (int i = 0; i < GROUP; i++) {
            expect_float(di_e4m3_to_f32(di_e4m3_from_f32(k->input[i] / s)) * s, k->output[i]);
        }
    }
}

static void test_q4k_gives_the_known_groups(void **state) {
    (void)state;
    for (size_t g = 0; g < sizeof q4k_groups / sizeof *q4k_groups; g++) {
        const known_group *k = &q4k_groups[g];
        float s = di_e4m3_to_f32(di_q4k_scale(amax_of(k->input)));
        expect_float(s, k->scale);
        for (int i = 0; i < GROUP; i++) {
            expect_float(di_e2m1_to_f32(di_e2m1_from_f32(k->input[i] * (1.0f / s))) * s,
                         k->output[i]);
        }
    }
}

static void test_q4i_gives_the_known_groups(void **state) {
    (void)state;
    for (size_t g = 0; g < sizeof q4i_groups / sizeof *q4i_groups; g++) {
        const known_group *k = &q4i_groups[g];
        float s = di_e8m0_to_f32(di_q4i_scale(amax_of(k->input)));
        expect_float(s, k->scale);
        for (int i = 0; i < GROUP; i++) {
            expect_float(di_e2m1_to_f32(di_e2m1_from_f32(k->input[i] / s)) * s, k->output[i]);
        }
    }
}

/* Scales of mantissa 1.875 are the only ones whose rounded reciprocal moves a code: exact ties at
 * 1.25, 2.5 and 5 then round up. */
static void test_q4k_reciprocal_differs_from_division_in_known_ties_only(void **state) {
    (void)state;
    float s = di_e4m3_to_f32(di_q4k_scale(11.25f));
    expect_float(s, 1.875f);
    expect_float(di_e2m1_to_f32(di_e2m1_from_f32(2.34375f * (1.0f / s))) * s, 2.8125f);
    expect_float(di_e2m1_to_f32(di_e2m1_from_f32(2.34375f / s)) * s, 1.875f);
    int differ = 0;
    for (int scale = 1; scale < 0x7f; scale++) {
        float value = di_e4m3_to_f32((uint8_t)scale), inverse = 1.0f / value;
        for (uint32_t bits = 0; bits < 0x7f80; bits++) {
            float x = di_bf16_to_f32((di_bf16)bits);
            uint8_t by_division = di_e2m1_from_f32(x / value);
            if (x > 6 * value * 1.1f || di_e2m1_from_f32(x * inverse) == by_division) {
                continue;
            }
            float q = x / value;
            int exponent;
            assert_true(frexpf(value, &exponent) == 0.9375f);
            assert_true(q == 1.25f || q == 2.5f || q == 5.0f);
            differ++;
        }
    }
    assert_true(differ > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_decodes_to_its_fields),
        cmocka_unit_test(test_conversions_give_the_nearest_value_and_ties_to_even),
        cmocka_unit_test(test_every_value_of_a_format_survives_the_round_trip),
        cmocka_unit_test(test_bf16_rounds_to_nearest_and_ties_to_even),
        cmocka_unit_test(test_pow2_ceil_is_the_smallest_power_not_below),
        cmocka_unit_test(test_scales_are_those_of_the_division_for_every_amax),
        cmocka_unit_test(test_q8_gives_the_known_groups),
        cmocka_unit_test(test_q4k_gives_the_known_groups),
        cmocka_unit_test(test_q4i_gives_the_known_groups),
        cmocka_unit_test(test_q4k_reciprocal_differs_from_division_in_known_ties_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
