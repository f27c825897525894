/* cmocka with the headers it wants before it. */
#ifndef TESTS_SUPPORT_CMOCKA_H
#define TESTS_SUPPORT_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* What clang-tidy's analyzer is to take them for: it does not see that what fails goes no further,
 * and would follow the test to where nothing can be right. */
#ifdef __clang_analyzer__
#include <stdlib.h>

#undef assert_true
#undef assert_false
#undef assert_non_null
#undef assert_null
#undef assert_int_equal
#undef fail
#undef skip
#define assert_true(c)     ((c) ? (void)0 : abort())
#define assert_false(c)    assert_true(!(c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p)     assert_true((p) == NULL)
#define assert_int_equal(a, b)                                                                     \
    assert_true(cast_to_largest_integral_type(a) == cast_to_largest_integral_type(b))
#define fail() abort()
#define skip() abort()
#endif

#endif
