/* Stored responses: found by their key alone, bounded by bytes, number and age, alive while held.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "server/response_store.h"
#include "support/cmocka.h"

static di_response_store *open_store(size_t bytes, size_t per_key, double age) {
    di_response_store_options o = {bytes, per_key, age};
    di_error err = {0};
    di_response_store *s = di_response_store_create(&o, &err);
    assert_non_null(s);
    return s;
}

static bool put(di_response_store *s, const char *key, int number, size_t size, double now) {
    char id[32], *text = malloc(size + 1);
    snprintf(id, sizeof id, "resp_%d", number);
    memset(text, 'a' + number % 26, size);
    bool ok = di_response_store_put(s, key, id, (di_str){text, size}, DI_STR("[1]"), now);
    free(text);
    return ok;
}

static bool has(di_response_store *s, const char *key, int number, double now) {
    char id[32];
    snprintf(id, sizeof id, "resp_%d", number);
    const di_stored_response *r = di_response_store_get(s, key, di_str_of(id), now);
    if (r) {
        assert_true(r->response.size > 0 && r->response.data[0] == 'a' + number % 26);
        assert_true(di_str_is(r->input, "[1]"));
        di_response_store_release(s, r);
    }
    return r != NULL;
}

static void test_only_its_key_finds_a_response(void **state) {
    (void)state;
    di_response_store *s = open_store(1 << 20, 10, 100);
    assert_true(put(s, "alice", 1, 10, 0));
    assert_true(has(s, "alice", 1, 0));
    assert_false(has(s, "bob", 1, 0));
    assert_false(has(s, "", 1, 0));
    assert_false(has(s, "alice", 2, 0));
    assert_false(di_response_store_drop(s, "bob", DI_STR("resp_1")));
    assert_true(di_response_store_drop(s, "alice", DI_STR("resp_1")));
    assert_false(di_response_store_drop(s, "alice", DI_STR("resp_1")));
    assert_false(has(s, "alice", 1, 0));
    size_t count, bytes;
    di_response_store_usage(s, &count, &bytes);
    assert_true(count == 0 && bytes == 0);
    di_response_store_destroy(s);
}

static void test_each_key_keeps_its_newest(void **state) {
    (void)state;
    di_response_store *s = open_store(1 << 20, 3, 100);
    for (int i = 0; i < 8; i++) {
        assert_true(put(s, i % 2 ? "bob" : "alice", i, 10, i));
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(has(s, i % 2 ? "bob" : "alice", i, 8), i >= 2);
    }
    di_response_store_destroy(s);
    s = open_store(1 << 20, 1, 100); /* the only one gives way, and its owner with it */
    assert_true(put(s, "alice", 1, 10, 0) && put(s, "alice", 2, 10, 0));
    assert_true(!has(s, "alice", 1, 0) && has(s, "alice", 2, 0));
    di_response_store_destroy(s);
}

static void test_who_holds_most_gives_way_when_it_is_full(void **state) {
    (void)state;
    di_response_store *s = open_store(100000, 1000, 100);
    assert_true(put(s, "small", 0, 1000, 0));
    for (int i = 1; i < 200; i++) {
        assert_true(put(s, "greedy", i, 5000, i * 0.01));
        size_t count, bytes;
        di_response_store_usage(s, &count, &bytes);
        assert_true(bytes <= 100000);
        assert_true(has(s, "small", 0, i * 0.01));
    }
    assert_true(has(s, "greedy", 199, 2) && !has(s, "greedy", 1, 2));
    assert_false(put(s, "small", 500, 100001, 2)); /* larger than all of it: nothing is touched */
    assert_true(has(s, "small", 0, 2) && has(s, "greedy", 199, 2));
    di_response_store_destroy(s);
}

static void test_responses_grow_old(void **state) {
    (void)state;
    di_response_store *s = open_store(1 << 20, 100, 10);
    for (int i = 0; i < 20; i++) {
        assert_true(put(s, i % 3 ? "alice" : "bob", i, 10, i));
    }
    di_response_store_expire(s, 19);
    size_t count, bytes;
    di_response_store_usage(s, &count, &bytes);
    assert_int_equal(count, 10);
    assert_true(!has(s, "bob", 9, 19) && has(s, "alice", 10, 19));
    di_response_store_expire(s, 1000);
    di_response_store_usage(s, &count, &bytes);
    assert_true(count == 0 && bytes == 0);
    di_response_store_destroy(s);
}

static void test_what_is_held_stays_whole(void **state) {
    (void)state;
    di_response_store *s = open_store(1 << 20, 1, 10);
    assert_true(put(s, "alice", 1, 10, 0));
    const di_stored_response *r = di_response_store_get(s, "alice", DI_STR("resp_1"), 0);
    assert_non_null(r);
    assert_true(put(s, "alice", 2, 10, 0)); /* pushes it out */
    assert_false(has(s, "alice", 1, 0));
    assert_true(di_str_is(r->response, "bbbbbbbbbb"));
    di_response_store_release(s, r);
    di_response_store_destroy(s);
}

static void test_memory_may_be_short(void **state) {
    (void)state;
    di_response_store *s = open_store(1 << 20, 100, 10);
    for (uint64_t n = 1; n <= 2; n++) {
        di_alloc_fail_at(n); /* in builds that can */
        bool kept = put(s, "alice", 1, 10, 0);
        di_alloc_fail_at(0);
        assert_int_equal(has(s, "alice", 1, 0), kept);
#ifdef DI_FAULTS
        assert_false(kept);
#endif
        di_response_store_drop(s, "alice", DI_STR("resp_1"));
    }
    assert_true(put(s, "alice", 1, 10, 0) && has(s, "alice", 1, 0));
    di_response_store_destroy(s);
}

/* ---- many threads -----------------------------------------------------------------------------*/

enum { THREADS = 4, TURNS = 4000 };

static void *work(void *context) {
    static const char *const keys[THREADS] = {"a", "b", "c", "d"};
    static atomic_int next;
    di_response_store *s = context;
    int me = atomic_fetch_add(&next, 1) % THREADS;
    for (int i = 0; i < TURNS; i++) {
        int number = me * TURNS + i;
        put(s, keys[me], number, 100 + (size_t)(i % 700), i * 1e-3);
        for (int k = 0; k < THREADS; k++) {
            bool found = has(s, keys[k], number, i * 1e-3);
            assert_true(!found || k == me);
        }
        has(s, keys[(me + 1) % THREADS], ((me + 1) % THREADS) * TURNS + i, i * 1e-3);
    }
    return NULL;
}

static void test_threads_do_not_disturb_each_other(void **state) {
    (void)state;
    di_response_store *s = open_store(200000, 50, 0.5);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, s), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    size_t count, bytes;
    di_response_store_usage(s, &count, &bytes);
    assert_true(count <= (size_t)THREADS * 50 && bytes <= 200000);
    di_response_store_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_its_key_finds_a_response),
        cmocka_unit_test(test_each_key_keeps_its_newest),
        cmocka_unit_test(test_who_holds_most_gives_way_when_it_is_full),
        cmocka_unit_test(test_responses_grow_old),
        cmocka_unit_test(test_what_is_held_stays_whole),
        cmocka_unit_test(test_memory_may_be_short),
        cmocka_unit_test(test_threads_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
