/* A step that the device fails: what ran ends with the device's message, what waited is answered as
 * if nothing had happened, and nothing that the failed step should have written is used again. */
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "engine/internal.h"
#include "support/cmocka.h"
#include "support/requests.h"

enum { REQUESTS = 5, PROMPT = 140, ANSWER = 6, STEPS = 20 };

/* The backend's own table, but when the countdown reaches zero a step computes rubbish and fails.
 */
static di_ops faulty;
static const di_ops *whole;
static atomic_int countdown;

static bool fail_once(di_backend *be, di_error *err) {
    if (atomic_fetch_sub(&countdown, 1) == 1) {
        return di_fail(err, DI_ERR_IO, "the card has fallen off the bus");
    }
    return whole->sync(be, err);
}

static void embed_rubbish(di_backend *be, const int32_t *tokens, int n, const di_tensor *table,
                          int hc, di_bf16 *h, float *pre) {
    whole->embed(be, tokens, n, table, hc, h, pre);
    if (atomic_load(&countdown) == 1) {
        memset(h, 0, (size_t)n * (size_t)hc * (size_t)table->shape[1] * sizeof *h);
    }
}

static di_engine *open_two(bool synchronous) {
    di_engine_options o = demo_options();
    o.max_num_seqs = 2;
    o.max_num_batched_tokens = 64; /* prompts take several steps */
    o.synchronous = synchronous;
    return open_engine(&o);
}

static di_engine *open_faulty(bool synchronous) {
    atomic_store(&countdown, 0); /* sync number -1 fails: none */
    di_engine *e = open_two(synchronous);
    whole = e->parts.backend->ops;
    faulty = *whole;
    faulty.sync = fail_once;
    faulty.embed = embed_rubbish;
    e->parts.backend->ops = &faulty;
    return e;
}

/* Round n's prompts; their first 128 tokens are the same: who comes later begins from what an
 * earlier one has stored. */
static di_prompt prompt_of(int n, int number, int32_t *ids) {
    for (int i = 0; i < PROMPT; i++) {
        ids[i] = 300 + (i * 13 + n * 5 + (i < 128 ? 0 : number * 7)) % 3000;
    }
    return ids_prompt(ids, PROMPT);
}

static answer ask_alone(di_engine *e, int n, int number) {
    int32_t ids[PROMPT];
    di_request_params p = seeded((uint64_t)number + 1, ANSWER);
    p.ignore_eos = true;
    return answer_of(e, prompt_of(n, number, ids), p);
}

/* True: the failure has ended it, after no token or right ones. */
static bool judge(const answer *a, const answer *wanted) {
    assert_int_equal(a->lasts, 1);
    if (a->num_tokens > 0) {
        assert_memory_equal(a->tokens, wanted->tokens, a->num_tokens * sizeof *a->tokens);
    }
    if (a->reason == DI_FINISH_ERROR) {
        assert_int_equal(a->error.code, DI_ERR_IO);
        assert_string_equal(a->error.message, "the card has fallen off the bus");
        return true;
    }
    expect_same_answers(a, wanted);
    return false;
}

/* How many answers the failure of step n of this round has ended. */
static int fail_step(di_engine *e, di_engine *good, int n) {
    int32_t ids[PROMPT];
    answer a[REQUESTS] = {0}, wanted[REQUESTS];
    int ended = 0;
    atomic_store(&countdown, n);
    di_queue *q = open_queue(e);
    for (int i = 0; i < REQUESTS; i++) {
        di_request_params p = seeded((uint64_t)i + 1, ANSWER);
        p.ignore_eos = true;
        wanted[i] = ask_alone(good, n, i);
        submit(e, q, prompt_of(n, i, ids), p, &a[i]);
    }
    read_answers(q, REQUESTS);
    atomic_store(&countdown, 0);
    di_queue_destroy(q);
    expect_whole_pools(e);
    for (int i = 0; i < REQUESTS; i++) {
        ended += judge(&a[i], &wanted[i]);
        answer again = ask_alone(e, n, i); /* begins from what is stored */
        expect_same_answers(&again, &wanted[i]);
        answer_clear(&again);
        answer_clear(&a[i]);
        answer_clear(&wanted[i]);
    }
    return ended;
}

static void fail_each(bool synchronous) {
    di_engine *e = open_faulty(synchronous), *good = open_two(synchronous);
    int total = 0;
    for (int n = 1; n <= STEPS; n++) {
        int ended = fail_step(e, good, n);
        assert_in_range(ended, 0, 2); /* two run at a time */
        total += ended;
    }
    assert_in_range(total, STEPS / 2, 2 * STEPS);
    print_message("    %d answers ended by %d failures\n", total, STEPS);
    di_engine_close(e);
    di_engine_close(good);
}

static void test_a_failed_step_ends_what_ran_and_nothing_else(void **state) {
    (void)state;
    fail_each(false);
}

static void test_the_same_in_step(void **state) {
    (void)state;
    fail_each(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_step_ends_what_ran_and_nothing_else),
        cmocka_unit_test(test_the_same_in_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
