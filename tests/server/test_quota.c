/* Quotas: what is let in and when again, settlement, days; many threads at once. A clock of our own
 * stands in for the system's. What the journal keeps is tests/server/test_quota_journal.c's. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/quota.h"
#include "support/cmocka.h"

typedef struct hands {
    double monotonic;
    int64_t wall;
} hands;

static double read_monotonic(void *user) {
    return ((hands *)user)->monotonic;
}

static int64_t read_wall(void *user) {
    return ((hands *)user)->wall;
}

enum { DAY = 86400, HALF_DAY = DAY / 2, NOON = 20000 * DAY + HALF_DAY };

static void pass(hands *h, double seconds) {
    h->monotonic += seconds;
    h->wall += (int64_t)seconds;
}

static di_quota *open_quota(hands *h) {
    di_quota_options options = {.flush_seconds = -1, .clock = {read_monotonic, read_wall, h}};
    di_quota *q = di_quota_open(&options, NULL);
    assert_non_null(q);
    return q;
}

/* A request that is let in and granted so much, or NULL and nothing. */
static di_quota_ticket *come(di_quota *q, const di_key *key, int64_t input, int64_t wanted,
                             int64_t least, int64_t *granted, di_quota_refusal *why) {
    *granted = 0;
    di_quota_ticket *t = di_quota_enter(q, key, why);
    if (t && !di_quota_reserve(q, t, input, wanted, least, granted, why)) {
        di_quota_leave(q, t, 0, 0);
        return NULL;
    }
    return t;
}

static void test_a_key_without_limits_is_only_counted(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "free"};
    di_quota_ticket *t[100];
    di_quota_refusal why;
    for (int i = 0; i < 100; i++) {
        int64_t granted;
        t[i] = come(q, &key, 1000000, 1000000, 1000000, &granted, &why);
        assert_non_null(t[i]);
        assert_int_equal(granted, 1000000);
    }
    di_quota_status s;
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.running, 100);
    assert_int_equal(s.day_reserved, 200000000);
    assert_int_equal(s.requests.limit, 0);
    for (int i = 0; i < 100; i++) {
        di_quota_leave(q, t[i], 10, 20);
    }
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.running, 0);
    assert_int_equal(s.day_requests, 100);
    assert_int_equal(s.day_input_tokens, 1000);
    assert_int_equal(s.day_output_tokens, 2000);
    assert_int_equal(s.day_reserved, 0);
    di_quota_close(q);
}

static void test_requests_of_a_minute_come_back_evenly(void **state) {
    (void)state;
    hands h = {5, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits.requests_per_minute = 6};
    di_quota_refusal why;
    for (int i = 0; i < 6; i++) {
        di_quota_leave(q, di_quota_enter(q, &key, &why), 0, 0);
    }
    assert_null(di_quota_enter(q, &key, &why));
    assert_int_equal(why.status, 429);
    assert_int_equal(why.reason, DI_QUOTA_REQUESTS_PER_MINUTE);
    assert_int_equal(why.retry_after, 10);
    assert_string_equal(why.message, "this key may make 6 requests a minute; again in 10 s");
    pass(&h, 4);
    assert_null(di_quota_enter(q, &key, &why));
    assert_int_equal(why.retry_after, 6);
    pass(&h, 6); /* whoever waits as told is let in: refused attempts have cost nothing */
    di_quota_leave(q, di_quota_enter(q, &key, &why), 0, 0);
    assert_null(di_quota_enter(q, &key, &why));
    pass(&h, 3600);
    di_quota_status s;
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.requests.limit, 6);
    assert_int_equal(s.requests.remaining, 6); /* an hour's quiet saves up one minute's worth */
    const di_key more = {.id = "k", .limits.requests_per_minute = 600}; /* the file was reloaded */
    for (int i = 0; i < 600; i++) {
        di_quota_leave(q, di_quota_enter(q, &more, &why), 0, 0);
    }
    assert_null(di_quota_enter(q, &more, &why));
    di_quota_close(q);
}

static void test_prompts_larger_than_a_bucket_wait_for_a_full_one(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits.input_tokens_per_minute = 600};
    di_quota_refusal why;
    int64_t granted;
    di_quota_ticket *t = come(q, &key, 1800, 10, 10, &granted, &why);
    assert_non_null(t);
    di_quota_leave(q, t, 1800, 0);
    assert_null(come(q, &key, 1, 10, 10, &granted, &why));
    assert_int_equal(why.reason, DI_QUOTA_INPUT_TOKENS_PER_MINUTE);
    assert_int_equal(why.retry_after, 121); /* a debt of 1200, and one token */
    pass(&h, 121);
    t = come(q, &key, 1, 10, 10, &granted, &why);
    assert_non_null(t);
    di_quota_leave(q, t, 0, 0); /* it never reached the engine: given back */
    di_quota_status s;
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.input_tokens.remaining, 10);
    di_quota_close(q);
}

static void test_output_is_taken_ahead_in_part_and_settled_at_the_end(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits.output_tokens_per_minute = 6000};
    di_quota_refusal why;
    di_quota_status s;
    int64_t granted;
    di_quota_ticket *t = come(q, &key, 5, 100000, 100000, &granted, &why);
    assert_int_equal(granted, 100000);
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.output_tokens.remaining, 6000 - DI_QUOTA_OUTPUT_AHEAD);
    di_quota_leave(q, t, 5, 24);
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.output_tokens.remaining, 6000 - 24);
    t = come(q, &key, 5, 100000, 100000, &granted, &why);
    di_quota_leave(q, t, 5, 11976); /* twice a minute's worth in one answer */
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.output_tokens.remaining, 0);
    assert_null(come(q, &key, 5, 100, 100, &granted, &why));
    assert_int_equal(why.reason, DI_QUOTA_OUTPUT_TOKENS_PER_MINUTE);
    assert_int_equal(why.retry_after, 61);
    pass(&h, 61);
    t = come(q, &key, 5, 100, 100, &granted, &why);
    assert_non_null(t);
    di_quota_leave(q, t, 5, 1);
    di_quota_close(q);
}

static void test_concurrency_is_a_place_until_the_end(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits.concurrency = 2}, other = {.id = "l"};
    di_quota_refusal why;
    di_quota_ticket *a = di_quota_enter(q, &key, &why), *b = di_quota_enter(q, &key, &why);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(di_quota_enter(q, &key, &why));
    assert_int_equal(why.reason, DI_QUOTA_CONCURRENCY);
    assert_int_equal(why.retry_after, 1);
    di_quota_ticket *c = di_quota_enter(q, &other, &why); /* nobody else is touched */
    assert_non_null(c);
    di_quota_leave(q, a, 0, 0);
    a = di_quota_enter(q, &key, &why);
    assert_non_null(a);
    di_quota_leave(q, a, 0, 0);
    di_quota_leave(q, b, 0, 0);
    di_quota_leave(q, c, 0, 0);
    di_quota_leave(q, NULL, 0, 0);
    di_quota_close(q);
}

static void test_a_days_tokens_are_reserved_in_full_and_never_exceeded(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits.tokens_per_day = 1000};
    di_quota_refusal why;
    int64_t granted;
    di_quota_ticket *a = come(q, &key, 100, 300, 300, &granted, &why);
    assert_int_equal(granted, 300);
    /* Without max_tokens: what is left. */
    di_quota_ticket *b = come(q, &key, 100, 65536, 256, &granted, &why);
    assert_int_equal(granted, 500);
    assert_null(come(q, &key, 10, 10, 10, &granted, &why));
    assert_int_equal(why.reason, DI_QUOTA_TOKENS_PER_DAY);
    assert_int_equal(why.retry_after, 1); /* others may leave some */
    assert_non_null(strstr(why.message, "1000 reserved"));
    di_quota_leave(q, b, 100, 0);
    assert_null(come(q, &key, 1, 600, 600, &granted, &why));
    di_quota_ticket *c = come(q, &key, 100, 400, 400, &granted, &why);
    assert_int_equal(granted, 400);
    di_quota_leave(q, a, 100, 300);
    di_quota_leave(q, c, 100, 400);
    assert_null(di_quota_enter(q, &key, &why)); /* before its body is read */
    assert_int_equal(why.reason, DI_QUOTA_TOKENS_PER_DAY);
    assert_int_equal(why.retry_after, HALF_DAY);
    pass(&h, HALF_DAY - 1);
    assert_null(di_quota_enter(q, &key, &why));
    assert_int_equal(why.retry_after, 1);
    pass(&h, 1);
    a = come(q, &key, 500, 500, 500, &granted, &why);
    assert_int_equal(granted, 500);
    di_quota_leave(q, a, 500, 500);
    h.wall -= DAY; /* a clock that is set back brings nothing back */
    assert_null(di_quota_enter(q, &key, &why));
    di_quota_close(q);
}

static void test_requests_of_a_day_and_what_is_left_for_a_prompt(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits = {.requests_per_day = 2, .tokens_per_day = 1000}};
    di_quota_refusal why;
    int64_t granted;
    assert_null(come(q, &key, 999, 100, 2, &granted, &why)); /* counts as a request */
    assert_int_equal(why.reason, DI_QUOTA_TOKENS_PER_DAY);
    assert_int_equal(why.retry_after, HALF_DAY);
    di_quota_leave(q, come(q, &key, 1, 1, 1, &granted, &why), 1, 1);
    assert_null(di_quota_enter(q, &key, &why));
    assert_int_equal(why.reason, DI_QUOTA_REQUESTS_PER_DAY);
    assert_string_equal(di_quota_reason_name(why.reason), "requests_per_day");
    di_quota_close(q);
}

static void test_a_request_over_midnight_counts_for_the_day_it_was_let_in(void **state) {
    (void)state;
    hands h = {0, NOON};
    di_quota *q = open_quota(&h);
    const di_key key = {.id = "k", .limits.tokens_per_day = 1000};
    di_quota_refusal why;
    di_quota_status s;
    int64_t granted;
    di_quota_ticket *a = come(q, &key, 100, 800, 800, &granted, &why);
    di_quota_ticket *b = di_quota_enter(q, &key, &why);
    pass(&h, DAY);
    di_quota_leave(q, a, 100, 800);
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.day_requests, 0);
    assert_int_equal(s.day_output_tokens, 0);
    assert_int_equal(s.day_reserved, 0);
    assert_true(di_quota_reserve(q, b, 200, 800, 800, &granted, &why)); /* the new day's */
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.day_requests, 1);
    assert_int_equal(s.day_reserved, 1000);
    di_quota_leave(q, b, 200, 50);
    di_quota_get_status(q, &key, &s);
    assert_int_equal(s.day_input_tokens + s.day_output_tokens, 250);
    assert_int_equal(s.running, 0);
    di_quota_close(q);
}

/* ---- many threads -----------------------------------------------------------------------------*/

enum { THREADS = 8, EACH = 3000, PLACES = 3, TOKENS = 100000 };

typedef struct race {
    di_quota *q;
    di_key keys[2];
    atomic_int running[2];
    atomic_llong used[2], requests[2], refused;
} race;

static unsigned next_random(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void one_request(race *r, int k, unsigned *seed) {
    di_quota_refusal why;
    int64_t granted, input = next_random(seed) % 50, wanted = 1 + next_random(seed) % 200;
    di_quota_ticket *t = di_quota_enter(r->q, &r->keys[k], &why);
    if (!t) {
        atomic_fetch_add(&r->refused, 1);
        return;
    }
    if (atomic_fetch_add(&r->running[k], 1) >= PLACES) {
        abort();
    }
    atomic_fetch_add(&r->requests[k], 1);
    int64_t output = 0;
    bool ok = di_quota_reserve(r->q, t, input, wanted, wanted, &granted, &why);
    if (ok) {
        output = next_random(seed) % (unsigned)(granted + 1);
        di_quota_progress(t, output / 2);
        atomic_fetch_add(&r->used[k], input + output);
    }
    sched_yield(); /* so that requests meet on few cores too */
    atomic_fetch_sub(&r->running[k], 1);
    di_quota_leave(r->q, t, ok ? input : 0, output);
}

static void *run_requests(void *arg) {
    race *r = arg;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    for (int i = 0; i < EACH; i++) {
        one_request(r, (int)(next_random(&seed) % 2), &seed);
    }
    return NULL;
}

static void test_racing_threads_never_exceed_places_or_quota(void **state) {
    (void)state;
    hands h = {0, NOON};
    race r = {.q = open_quota(&h)};
    pthread_t threads[THREADS];
    for (int k = 0; k < 2; k++) {
        snprintf(r.keys[k].id, sizeof r.keys[k].id, "key-%d", k);
        r.keys[k].limits = (di_key_limits){.concurrency = PLACES, .tokens_per_day = TOKENS};
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_requests, &r), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int k = 0; k < 2; k++) {
        di_quota_status s;
        di_quota_get_status(r.q, &r.keys[k], &s);
        assert_int_equal(s.running, 0);
        assert_int_equal(s.day_reserved, 0);
        assert_int_equal(s.day_requests, atomic_load(&r.requests[k]));
        assert_int_equal(s.day_input_tokens + s.day_output_tokens, atomic_load(&r.used[k]));
        assert_true(s.day_input_tokens + s.day_output_tokens <= TOKENS);
        assert_true(s.day_input_tokens + s.day_output_tokens > TOKENS - 250);
    }
    assert_true(atomic_load(&r.refused) > 0);
    print_message("# %lld refused\n", atomic_load(&r.refused));
    di_quota_close(r.q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_without_limits_is_only_counted),
        cmocka_unit_test(test_requests_of_a_minute_come_back_evenly),
        cmocka_unit_test(test_prompts_larger_than_a_bucket_wait_for_a_full_one),
        cmocka_unit_test(test_output_is_taken_ahead_in_part_and_settled_at_the_end),
        cmocka_unit_test(test_concurrency_is_a_place_until_the_end),
        cmocka_unit_test(test_a_days_tokens_are_reserved_in_full_and_never_exceeded),
        cmocka_unit_test(test_requests_of_a_day_and_what_is_left_for_a_prompt),
        cmocka_unit_test(test_a_request_over_midnight_counts_for_the_day_it_was_let_in),
        cmocka_unit_test(test_racing_threads_never_exceed_places_or_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
