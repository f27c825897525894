/* What the program says about cards, on machines that have none or are asked for one that is not
 * there. The ops themselves are tested by test_cpu*.c with TEST_BACKEND=cuda (mirror.h). */
#include <stdlib.h>
#include <string.h>

#include "ops/cuda/cuda.h"
#include "support/cmocka.h"

static void test_names_of_cards_are_understood(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int device; /* -1: refused */
    } cases[] = {
        {"cuda", 0},     {"cuda:0", 0},   {"cuda:7", 7},     {"cuda:127", 127}, {"", -1},
        {"cpu", -1},     {"cud", -1},     {"cudas", -1},     {"cuda:", -1},     {"cuda:x", -1},
        {"cuda:-1", -1}, {"cuda:1 ", -1}, {"cuda:1000", -1}, {"CUDA", -1},      {"cuda0", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int device = -2;
        bool known = di_cuda_parse(cases[i].text, &device);
        assert_int_equal(known, cases[i].device >= 0);
        if (known) {
            assert_int_equal(device, cases[i].device);
        }
    }
}

static void test_a_card_that_is_not_there_is_refused_with_a_reason(void **state) {
    (void)state;
    di_error err = {0};
    char text[512] = "";
    assert_null(di_cuda_create(999, &err));
    assert_int_equal(err.code, DI_ERR_UNSUPPORTED);
    assert_true(strlen(err.message) > 10);
    di_cuda_describe(text, sizeof text);
    assert_true(strlen(text) > 10);
}

static void test_a_missing_part_is_named(void **state) {
    (void)state;
    di_error err = {0};
    setenv("DI_CUDA_LIBRARY", "/nowhere/libdeepinfer-cuda.so", 1);
    assert_null(di_cuda_create(0, &err));
    assert_int_equal(err.code, DI_ERR_UNSUPPORTED);
    assert_true(strstr(err.message, "/nowhere/") || strstr(err.message, "this build has no CUDA"));
    unsetenv("DI_CUDA_LIBRARY");
}

static void test_a_library_that_is_no_part_is_refused(void **state) {
    (void)state;
    di_error err = {0};
    setenv("DI_CUDA_LIBRARY", "libm.so.6", 1);
    assert_null(di_cuda_create(0, &err));
    assert_int_equal(err.code, DI_ERR_UNSUPPORTED);
    assert_true(strstr(err.message, "another version") ||
                strstr(err.message, "this build has no CUDA"));
    unsetenv("DI_CUDA_LIBRARY");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_cards_are_understood),
        cmocka_unit_test(test_a_card_that_is_not_there_is_refused_with_a_reason),
        cmocka_unit_test(test_a_missing_part_is_named),
        cmocka_unit_test(test_a_library_that_is_no_part_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
