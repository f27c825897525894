/* A pinned prompt stays in the cache through any pressure, and goes when it is let go. */
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "deepinfer/deepinfer.h"

enum { PROMPT = 150 };

static di_engine *open_small(void) {
    di_error err = {0};
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = "models/demo";
    o.max_num_seqs = 1;
    o.max_model_len = 640;
    o.kv_memory = 3 << 19; /* for a few such prompts only */
    di_engine *e = di_engine_open(&o, &err);
    if (!e) {
        fail_msg("%s", err.message);
    }
    return e;
}

/* Tokens of the prompt of that number that came from the cache. */
static size_t ask(di_engine *e, di_queue *q, int number, bool pin, uint64_t *id) {
    di_error err = {0};
    int32_t tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = 100 + (number * 7919 + i * 31) % 800;
    }
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.token_ids = tokens;
    p.num_token_ids = PROMPT;
    di_request_params params;
    di_request_params_init(e, &params, sizeof params);
    params.max_tokens = 2;
    params.ignore_eos = true;
    params.pin_prompt = pin;
    uint64_t request = di_submit(e, q, &p, &params, NULL, &err);
    assert_true(request > 0);
    if (id) {
        *id = request;
    }
    for (;;) {
        di_output *out = di_queue_wait(q, -1);
        di_finish_reason reason = out->finish_reason;
        size_t cached = (size_t)out->cached_tokens;
        di_output_free(out);
        if (reason != DI_FINISH_NONE) {
            assert_int_equal(reason, DI_FINISH_LENGTH);
            return cached;
        }
    }
}

static void press(di_engine *e, di_queue *q) {
    for (int i = 0; i < 6; i++) {
        ask(e, q, 10 + i, false, NULL);
    }
}

static void test_pinned_prompts_stay_until_let_go(void **state) {
    (void)state;
    di_error err = {0};
    di_engine *e = open_small();
    di_queue *q = di_queue_create(e, &err);
    uint64_t id = 0;

    ask(e, q, 1, false, NULL);
    assert_true(ask(e, q, 1, false, NULL) > 0);
    press(e, q);
    assert_int_equal(ask(e, q, 1, false, NULL), 0); /* nobody had pinned it */

    ask(e, q, 2, true, &id);
    press(e, q);
    size_t cached = ask(e, q, 2, false, NULL);
    print_message("    %zu of %d tokens were kept\n", cached, PROMPT);
    assert_true(cached >= PROMPT - 128);

    assert_false(di_unpin(e, id + 1000));
    assert_true(di_unpin(e, id));
    assert_false(di_unpin(e, id));
    press(e, q);
    assert_int_equal(ask(e, q, 2, false, NULL), 0);

    ask(e, q, 3, true, NULL); /* closing lets go of it */
    di_queue_destroy(q);
    di_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned_prompts_stay_until_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
