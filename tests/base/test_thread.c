/* Threads that must run soon: they and those they start get short slices, until that is taken back.
 * Where the system knows no such thing nothing can be seen, and the test is skipped. */
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"
#include "support/cmocka.h"

/* Nanoseconds of this thread's slices; 0: the system does not tell. */
static uint64_t slice(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    return a.runtime;
}

static void *tell_slice(void *to) {
    *(uint64_t *)to = slice();
    return NULL;
}

static uint64_t slice_of_new_thread(void) {
    pthread_t thread;
    uint64_t ns = 0;
    di_error err;
    assert_true(di_thread_start(&thread, tell_slice, &ns, "a thread", &err));
    pthread_join(thread, NULL);
    return ns;
}

static void test_prompt_threads_have_short_slices(void **state) {
    (void)state;
    uint64_t before = slice();
    if (before == 0) {
        skip();
    }
    di_thread_prompt(true);
    uint64_t mine = slice(), others = slice_of_new_thread();
    di_thread_prompt(false);
    assert_int_equal(mine, 100000);
    assert_int_equal(others, 100000);
    assert_true(mine < before);
    assert_int_equal(slice(), before);
    assert_int_equal(slice_of_new_thread(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_threads_have_short_slices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
