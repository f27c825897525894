/* Memory within the limits of control groups, read from folders made to order. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "support/cmocka.h"
#include "support/model_files.h"

enum { MIB = 1 << 20 };

static int make_folder(void **state) {
    *state = files_folder();
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static int remove_folder(void **state) {
    int failed = nftw(*state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return failed;
}

/* A group below the folder with these files' texts; NULL: without that file. */
static void group(const char *folder, const char *name, const char *most, const char *used,
                  const char *stat) {
    char below[256];
    assert_true(*name == 0 || mkdir(files_path(folder, name), 0700) == 0);
    const char *texts[] = {most, used, stat};
    static const char *const files[] = {"memory.max", "memory.current", "memory.stat"};
    for (int i = 0; i < 3; i++) {
        snprintf(below, sizeof below, "%s%s%s", name, *name ? "/" : "", files[i]);
        if (texts[i]) {
            files_write_text(folder, below, texts[i]);
        }
    }
}

static size_t left(const char *folder, const char *own) {
    files_write_text(folder, "own", own);
    char path[512];
    snprintf(path, sizeof path, "%s", files_path(folder, "own"));
    return di_memory_group_left(path, folder);
}

static void test_the_smallest_of_all_groups_above_counts(void **state) {
    const char *folder = *state;
    group(folder, "a", "104857600\n", "31457280\n", "anon 9\ninactive_file 10485760\n");
    group(folder, "a/b", "max\n", "20971520\n", "");
    group(folder, "a/b/c", "94371840\n", "10485760\n", NULL);
    assert_int_equal(left(folder, "0::/a\n"), 80 * MIB); /* pages of files make way */
    assert_int_equal(left(folder, "0::/a/b\n"), 80 * MIB);
    assert_int_equal(left(folder, "12:cpu:/x\n0::/a/b/c\n"), 80 * MIB);
    group(folder, "a/b/c/d", "31457280\n", "10485760\n", "active_file 5242880\n");
    assert_int_equal(left(folder, "0::/a/b/c/d\n"), 25 * MIB);
    group(folder, "", "1048576\n", "0\n", NULL); /* a container sees its own group as the root */
    assert_int_equal(left(folder, "0::/\n"), 1 * MIB);
    assert_int_equal(left(folder, "0::/a/b/c/d\n"), 1 * MIB);
}

static void test_without_limits_there_is_none(void **state) {
    const char *folder = *state;
    assert_true(di_memory_group_left("/none", folder) == SIZE_MAX);
    assert_true(left(folder, "") == SIZE_MAX);
    assert_true(left(folder, "4:memory\n") == SIZE_MAX);
    assert_true(left(folder, "4:memory:\n") == SIZE_MAX);
    assert_true(left(folder, "0::/missing/deep\n") == SIZE_MAX);
    assert_true(left(folder, "0::/../..\n") == SIZE_MAX);
    group(folder, "a", "max\n", "5\n", NULL);
    group(folder, "b", "12x\n", "5\n", NULL);
    group(folder, "c", "12\n", NULL, NULL);
    assert_true(left(folder, "0::/a\n") == SIZE_MAX);
    assert_true(left(folder, "0::/b\n") == SIZE_MAX);
    assert_true(left(folder, "0::/c\n") == SIZE_MAX);
}

static void test_the_first_version_has_other_names(void **state) {
    const char *folder = *state;
    assert_int_equal(mkdir(files_path(folder, "memory"), 0700), 0);
    assert_int_equal(mkdir(files_path(folder, "memory/a"), 0700), 0);
    files_write_text(folder, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    files_write_text(folder, "memory/memory.usage_in_bytes", "1000\n");
    files_write_text(folder, "memory/a/memory.limit_in_bytes", "104857600\n");
    files_write_text(folder, "memory/a/memory.usage_in_bytes", "31457280\n");
    files_write_text(folder, "memory/a/memory.stat",
                     "active_file 7\ntotal_active_file 5242880\ntotal_inactive_file 5242880\n");
    assert_int_equal(left(folder, "5:cpu:/a\n4:hugetlb,memory,pids:/a\n0::/\n"), 80 * MIB);
    assert_int_equal(left(folder, "4:memory:/a/below/here\n"), 80 * MIB);
    assert_true(left(folder, "4:memory:/other\n") > (size_t)1 << 60);
    assert_true(left(folder, "4:memory2:/a\n") == SIZE_MAX);
}

static void test_what_is_used_beyond_the_limit_leaves_nothing(void **state) {
    const char *folder = *state;
    group(folder, "a", "10\n", "50\n", "inactive_file 5\n");
    assert_int_equal(left(folder, "0::/a\n"), 0);
    group(folder, "b", "10\n", "50\n", "inactive_file 50\nactive_file 50\n");
    assert_int_equal(left(folder, "0::/b\n"), 10);
    assert_true(di_memory_available() >= (size_t)64 << 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_the_smallest_of_all_groups_above_counts),
        TEST(test_without_limits_there_is_none),
        TEST(test_the_first_version_has_other_names),
        TEST(test_what_is_used_beyond_the_limit_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
