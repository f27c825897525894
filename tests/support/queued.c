#include "support/queued.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/cmocka.h"
#include "support/mirror.h"

/* It lies beside the test program's folder. */
const char *queued_backend(void) {
    char path[PATH_MAX], library[PATH_MAX + 64];
    if (card_under_test()) {
        return getenv("TEST_BACKEND");
    }
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(length > 0);
    path[length] = 0;
    char *end = strrchr(path, '/');
    assert_non_null(end);
    *end = 0;
    snprintf(library, sizeof library, "%s/../simcard/libsimcard.so", path);
    assert_int_equal(access(library, R_OK), 0);
    assert_int_equal(setenv("DI_CUDA_LIBRARY", library, 1), 0);
    return "cuda";
}
