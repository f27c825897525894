/* In builds with fault injection (asan): whichever allocation of a request's life fails, it is
 * refused or each of its answers gets its last output, nothing leaks, and the engine answers the
 * next request rightly. */
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/requests.h"

enum { SHORT = 20, PROMPT = 140, ANSWER = 3 };

static di_engine *open_tight(bool synchronous) {
    di_engine_options o = demo_options();
    o.max_num_seqs = 2;
    o.kv_memory = kv_memory_of("models/demo", 2, 11);
    o.host_memory = 1 << 20;
    o.synchronous = synchronous;
    return open_engine(&o);
}

/* A request with everything that takes memory. */
static di_request_params rich(void) {
    static const char *const stop[] = {"zzzz"}, *const bad[] = {"Dracula"};
    static const di_bias bias[] = {{700, -1}};
    di_request_params p = seeded(1, ANSWER);
    p.n = 2;
    p.ignore_eos = p.logprobs = p.prompt_logprobs = p.echo = p.report_prompt = true;
    p.top_logprobs = 3;
    p.frequency_penalty = 0.1;
    p.repetition_penalty = 1.1;
    p.stop = stop;
    p.bad_words = bad;
    p.logit_bias = bias;
    p.num_stop = p.num_bad_words = p.num_logit_bias = 1;
    return p;
}

static di_prompt prompt_of(int seed, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++) {
        ids[i] = 300 + (int32_t)(i * 13 + (size_t)seed * 7) % 3000;
    }
    return ids_prompt(ids, n);
}

/* Reads as many last outputs as were promised, into the tags; the reader's own allocations may fail
 * too. */
static void read_faulty(di_queue *q, int lasts) {
    for (int tries = 0; lasts > 0 && tries < 1000; tries++) {
        di_output *out = di_queue_wait(q, 1000);
        if (!out) {
            continue;
        }
        answer *a = (answer *)out->tag + out->index;
        answer_add(a, out);
        assert_int_equal(a->reason == DI_FINISH_ERROR, out->error.code != DI_OK);
        if (a->lasts > 0) {
            assert_true(a->reason == DI_FINISH_LENGTH || a->reason == DI_FINISH_ERROR);
            lasts--;
        }
        di_output_free(out);
    }
    assert_int_equal(lasts, 0);
    assert_null(di_queue_wait(q, 0));
}

/* False when the request made fewer than n allocations. */
static bool fail_nth(di_engine *e, uint64_t n, const answer *wanted) {
    int32_t ids[PROMPT];
    di_error err = {0};
    di_prompt prompt = prompt_of((int)n % 3, SHORT, ids);
    di_request_params p = rich();
    answer a[2] = {0};
    di_alloc_fail_at(n);
    di_queue *q = di_queue_create(e, &err);
    uint64_t id = q ? di_submit(e, q, &prompt, &p, a, &err) : 0;
    assert_true(id > 0 || err.code == DI_ERR_NO_MEMORY);
    if (id > 0) {
        read_faulty(q, p.n);
    }
    uint64_t made = di_alloc_fail_at(0);
    di_queue_destroy(q);
    answer_clear(&a[0]);
    answer_clear(&a[1]);
    answer next = answer_of(e, prompt_of(0, SHORT, ids), greedy(ANSWER));
    expect_same_answers(&next, wanted);
    answer_clear(&next);
    expect_whole_pools(e);
    return n <= made;
}

static void fail_each(bool synchronous) {
    int32_t ids[PROMPT];
    di_engine *e = open_tight(synchronous);
    answer wanted = answer_of(e, prompt_of(0, SHORT, ids), greedy(ANSWER));
    uint64_t n = 1;
    while (fail_nth(e, n, &wanted)) {
        n++;
    }
    print_message("    %llu allocations\n", (unsigned long long)n - 1);
    answer_clear(&wanted);
    di_engine_close(e);
}

static void test_any_failed_allocation_ends_one_request_only(void **state) {
    (void)state;
    fail_each(false);
    fail_each(true);
}

/* Two answers that grow until one is preempted to the host: the n-th allocation fails meanwhile. */
static void test_any_failed_allocation_while_preempting_changes_no_token(void **state) {
    (void)state;
    int32_t ids[PROMPT];
    di_request_params p = seeded(3, 12), urgent = greedy(2);
    p.ignore_eos = true;
    urgent.priority = -1;
    di_engine *e = open_tight(false);
    answer wanted = answer_of(e, prompt_of(1, PROMPT, ids), p);
    for (uint64_t n = 1, made = 1; n <= made; n++) {
        answer a[3] = {0};
        di_queue *q = open_queue(e);
        submit(e, q, prompt_of(1, PROMPT, ids), p, &a[0]);
        submit(e, q, prompt_of(1, PROMPT, ids), p, &a[1]);
        while (a[0].num_tokens == 0 || a[1].num_tokens == 0) {
            di_output *out = di_queue_wait(q, -1);
            answer_add(out->tag, out);
            di_output_free(out);
        }
        submit(e, q, prompt_of(2, PROMPT, ids), urgent, &a[2]);
        di_alloc_fail_at(n);
        int lasts = 3 - a[0].lasts - a[1].lasts;
        while (lasts > 0) {
            di_output *out = di_queue_wait(q, 100);
            if (out) {
                answer_add(out->tag, out);
                lasts -= out->finish_reason != DI_FINISH_NONE;
            }
            di_output_free(out);
        }
        made = di_alloc_fail_at(0);
        for (int i = 0; i < 3; i++) {
            size_t bytes = a[i].num_tokens * sizeof *a[i].tokens;
            assert_true(a[i].reason == DI_FINISH_LENGTH || a[i].reason == DI_FINISH_ERROR);
            if (i < 2 && bytes > 0) { /* as far as it went */
                assert_memory_equal(a[i].tokens, wanted.tokens, bytes);
            }
            answer_clear(&a[i]);
        }
        di_queue_destroy(q);
        expect_whole_pools(e);
    }
    answer_clear(&wanted);
    di_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_failed_allocation_ends_one_request_only),
        cmocka_unit_test(test_any_failed_allocation_while_preempting_changes_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
