/* Whichever call of the CUDA runtime fails, when a backend is made, an engine opened or an answer
 * computed: it is told, nothing hangs, nothing stays behind. On the card of tests/badcard, whose
 * kernels compute nothing: answers are of the right length, their tokens mean nothing. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "badcard/badcard.h"
#include "base/clock.h"
#include "base/log.h"
#include "ops/cuda/cuda.h"
#include "support/cmocka.h"
#include "support/requests.h"

enum { FULL = 2, LOST = 719, PROMPT = 20, ANSWER = 4 };

static uint64_t (*fail_at)(uint64_t n, int error, bool stays);
static const char *(*failed)(void);
static size_t (*left)(void);

static bool no_card(void) {
    return !fail_at;
}

static int find_card(void **state) {
    static char path[4096];
    const char *build = getenv("BUILD");
    (void)state;
    snprintf(path, sizeof path, "%s/tests/badcard/libbadcard.so", build ? build : "build/release");
    unsetenv("BADCARD");
    if (access(path, F_OK) == 0) {
        void *card = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!card) {
            fail_msg("%s", dlerror());
        }
        setenv("DI_CUDA_LIBRARY", path, 1);
        *(void **)&fail_at = dlsym(card, "badcard_fail_at");
        *(void **)&failed = dlsym(card, "badcard_failed");
        *(void **)&left = dlsym(card, "badcard_left");
        assert_true(fail_at && failed && left);
    }
    return 0;
}

/* ---- the backend ------------------------------------------------------------------------------*/

/* Whether the n-th call was made at all. */
static bool create_with(uint64_t n, int error, bool stays) {
    di_error err = {0};
    fail_at(n, error, stays);
    di_backend *be = di_cuda_create(0, &err);
    const char *name = failed();
    if (be) {
        be->ops->destroy(be);
    } else {
        assert_true(err.code == DI_ERR_UNSUPPORTED || err.code == DI_ERR_NO_MEMORY);
        assert_true(strlen(err.message) > 10);
        assert_null(strchr(err.message, '\n'));
        assert_non_null(name);
    }
    if (be && name && strcmp(name, "cudaDriverGetVersion") != 0 &&
        strcmp(name, "cudaRuntimeGetVersion") != 0) { /* their numbers are for messages */
        fail_msg("call %u, %s, failed, and a card was made", (unsigned)n, name);
    }
    fail_at(0, 0, false);
    assert_int_equal(left(), 0);
    return name != NULL;
}

static void test_a_backend_is_made_whole_or_not_at_all(void **state) {
    (void)state;
    if (no_card()) {
        skip();
    }
    for (int kind = 0; kind < 4; kind++) {
        uint64_t n = 1;
        while (create_with(n, kind % 2 ? LOST : FULL, kind >= 2)) {
            n++;
        }
        assert_true(n > 20);
    }
}

static di_backend *open_card(void) {
    di_error err = {0};
    fail_at(0, 0, false);
    di_backend *be = di_cuda_create(0, &err);
    if (!be) {
        fail_msg("%s", err.message);
    }
    return be;
}

static void expect_guarded(di_backend *be, const char *what) {
    di_error err = {0};
    be->ops->queue->end(be, 0);
    assert_false(be->ops->sync(be, &err));
    assert_non_null(strstr(err.message, what));
    assert_non_null(strstr(err.message, "made the host wait inside a step"));
    if (!be->ops->sync(be, &err)) { /* which is told once */
        fail_msg("%s", err.message);
    }
    be->ops->queue->begin(be, 0);
}

static void test_waits_inside_a_step_are_faults_with_the_guard(void **state) {
    enum { N = 4, D = 64 };
    static uint16_t values[N * D];
    static const int32_t tokens[N] = {0, 1, 2, 3};
    (void)state;
    if (no_card()) {
        skip();
    }
    const di_tensor table = {.data = values, .dtype = DI_BF16, .rank = 2, .shape = {N, D}};
    setenv("DI_CUDA_GUARD", "1", 1);
    di_backend *be = open_card();
    unsetenv("DI_CUDA_GUARD");
    const di_ops *ops = be->ops;
    void *buffer = ops->alloc(be, sizeof values);
    float *pre = ops->alloc(be, sizeof *pre * N * D);
    ops->queue->begin(be, 0);
    ops->download(be, values, buffer, sizeof values);
    expect_guarded(be, "download");
    ops->gather_rows(be, buffer, tokens, N, D, pre);
    expect_guarded(be, "more scratch memory");
    ops->embed(be, tokens, N, &table, 1, buffer, pre);
    expect_guarded(be, "a weight that was not loaded");
    ops->queue->end(be, 0);
    ops->free(be, buffer);
    ops->free(be, pre);
    ops->destroy(be);
    assert_int_equal(left(), 0);
}

/* A grid is 65,535 blocks high. */
/* Steps that are queued take turns at two places, those that are waited for keep to one; either way
 * their times are those of the clock. */
static void test_times_of_steps_are_on_the_clock(void **state) {
    static const int places[] = {0, 1, 0, 1, 1, 1, 1, 0, 0, 1};
    const double length = 0.005, slack = 0.003;
    (void)state;
    if (no_card()) {
        skip();
    }
    di_backend *be = open_card();
    const di_queue_ops *ops = be->ops->queue;
    double last = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        di_error err;
        double begin, end, before = di_now();
        ops->begin(be, places[i]);
        usleep((useconds_t)(1e6 * length));
        ops->end(be, places[i]);
        if (!ops->wait(be, places[i], &begin, &end, &err)) {
            fail_msg("%s", err.message);
        }
        if (begin < before - slack || end > di_now() + slack || end - begin < length ||
            begin < last - slack) {
            fail_msg("step %d at place %d: %.4f to %.4f s, called at 0, the last one ended at %.4f",
                     (int)i, places[i], begin - before, end - before, last - before);
        }
        last = end;
    }
    be->ops->destroy(be);
    assert_int_equal(left(), 0);
}

static void test_ops_of_more_rows_than_a_grid_has(void **state) {
    enum { N = 65536, HC = 2, D = 32 };
    (void)state;
    if (no_card()) {
        skip();
    }
    di_error err = {0};
    di_backend *be = open_card();
    const di_ops *ops = be->ops;
    di_bf16 *h = ops->alloc(be, sizeof *h * N * HC * D), *x = ops->alloc(be, sizeof *x * N * D);
    float *weights = ops->alloc(be, sizeof *weights * N * HC * HC);
    assert_true(h && x && weights);
    ops->mhc_pre(be, h, weights, N, HC, D, x);
    ops->stream_mean(be, h, N, HC, D, x, D);
    ops->mhc_post(be, x, weights, weights, N, HC, D, h, NULL, NULL, 0, NULL, NULL);
    if (!ops->sync(be, &err)) {
        fail_msg("%s", err.message);
    }
    ops->free(be, h);
    ops->free(be, x);
    ops->free(be, weights);
    ops->destroy(be);
}

/* ---- the engine -------------------------------------------------------------------------------*/

static di_engine_options card_options(bool drafts) {
    di_engine_options o = demo_options();
    o.backend = "cuda";
    o.max_num_seqs = 2;
    o.max_num_batched_tokens = 32;
    o.num_drafts = drafts ? 2 : 0;
    o.spec_mode = drafts ? DI_SPEC_FIXED : DI_SPEC_OFF;
    return o;
}

static di_prompt prompt_of(int32_t *ids) {
    for (int i = 0; i < PROMPT; i++) {
        ids[i] = 300 + i * 13;
    }
    return ids_prompt(ids, PROMPT);
}

/* Either an answer of its length or an error with a message. */
static bool answered(di_engine *e) {
    int32_t ids[PROMPT];
    di_error err = {0};
    di_prompt prompt = prompt_of(ids);
    di_request_params p = greedy(ANSWER);
    p.ignore_eos = true;
    di_result *r = di_generate(e, &prompt, &p, NULL, NULL, &err);
    if (!r) {
        assert_true(err.code != DI_OK && strlen(err.message) > 10);
        return false;
    }
    di_result_free(r);
    return true;
}

typedef struct seen {
    int last, total, loading, recording; /* the last two: how often it moved meanwhile */
} seen;

static void on_progress(void *user, int done, int total) {
    seen *s = user;
    assert_true(done >= s->last && done <= total);
    assert_true(s->total == 0 || s->total == total);
    s->loading += done > s->last && done < total * 8 / 10;
    s->recording += done > s->last && done > total * 8 / 10 && done < total;
    s->last = done;
    s->total = total;
}

static void test_loading_and_recording_tell_how_far_they_are(void **state) {
    seen s = {0};
    di_engine_options o = card_options(true);
    (void)state;
    if (no_card()) {
        skip();
    }
    o.progress = on_progress;
    o.user = &s;
    o.max_num_seqs = 16;
    fail_at(0, 0, false);
    di_engine_close(open_engine(&o));
    assert_int_equal(s.last, s.total);
    assert_true(s.loading >= 5 && s.recording >= 5);
}

/* How many calls opening makes. */
static uint64_t open_with(uint64_t n, int error, bool stays, bool drafts) {
    di_error err = {0};
    di_engine_options o = card_options(drafts);
    fail_at(n, error, stays);
    di_engine *e = di_engine_open(&o, &err);
    const char *name = failed();
    if (e) {
        bool ok = answered(e);
        assert_true(ok || name || failed());
    } else {
        assert_non_null(name);
        assert_true(err.code != DI_OK && strlen(err.message) > 10);
    }
    if (stays && name && e) {
        assert_false(answered(e)); /* it has been lost for good */
    }
    di_engine_close(e);
    uint64_t made = fail_at(0, 0, false);
    assert_int_equal(left(), 0);
    return made;
}

static void test_an_engine_is_opened_or_refused_and_keeps_nothing(void **state) {
    (void)state;
    if (no_card()) {
        skip();
    }
    uint64_t calls = open_with(0, 0, false, true);
    print_message("# %u calls\n", (unsigned)calls);
    for (uint64_t n = 1, turn = 0; n < calls; n += 1 + n / 12, turn++) {
        open_with(n, turn % 2 ? LOST : FULL, turn % 4 == 1, turn % 3 == 0);
    }
}

/* ---- an answer --------------------------------------------------------------------------------*/

/* Failures that cost nothing: a question whether a copy is done, with a wait behind it. */
static bool harmless(const char *name) {
    return strcmp(name, "cudaEventQuery") == 0;
}

/* False when an answer makes fewer calls than n. drafts: what fails in a round of them costs
 * proposals alone (engine/device.c). */
static bool fail_answer(di_engine *e, uint64_t n, bool stays, bool drafts) {
    fail_at(n, LOST, stays);
    bool ok = answered(e);
    const char *name = failed();
    if (ok && name && !harmless(name) && !drafts) {
        fail_msg("call %u, %s, failed, and the answer had no error", (unsigned)n, name);
    }
    assert_true(ok || name);
    if (name && stays) {
        assert_false(answered(e));
    }
    fail_at(0, 0, false);
    assert_true(answered(e)); /* the next one's steps are whole */
    return name != NULL;
}

static void test_an_answer_whose_calls_fail_is_told_so(void **state) {
    (void)state;
    if (no_card()) {
        skip();
    }
    for (int kind = 0; kind < 4; kind++) {
        di_engine_options o = card_options(kind % 2);
        o.no_prefix_cache = true;
        fail_at(0, 0, false);
        di_engine *e = open_engine(&o);
        uint64_t n = 1;
        assert_true(answered(e));
        while (fail_answer(e, n, kind >= 2, kind % 2)) {
            n++;
        }
        print_message("# %u calls\n", (unsigned)n);
        assert_true(n > 20);
        di_engine_close(e);
        assert_int_equal(left(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_backend_is_made_whole_or_not_at_all),
        cmocka_unit_test(test_waits_inside_a_step_are_faults_with_the_guard),
        cmocka_unit_test(test_times_of_steps_are_on_the_clock),
        cmocka_unit_test(test_ops_of_more_rows_than_a_grid_has),
        cmocka_unit_test(test_loading_and_recording_tell_how_far_they_are),
        cmocka_unit_test(test_an_engine_is_opened_or_refused_and_keeps_nothing),
        cmocka_unit_test(test_an_answer_whose_calls_fail_is_told_so),
    };
    di_log_set_level(DI_LOG_ERROR);
    return cmocka_run_group_tests(tests, find_card, NULL);
}
