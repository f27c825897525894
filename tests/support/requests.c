#include "support/requests.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/parts.h"
#include "support/cmocka.h"
#include "support/mirror.h"
#include "support/model_files.h"

di_prompt text_prompt(const char *text) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.text = text;
    return p;
}

di_prompt messages_prompt(const char *json) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.messages = json;
    return p;
}

di_prompt ids_prompt(const int32_t *ids, size_t count) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    p.token_ids = ids;
    p.num_token_ids = count;
    return p;
}

di_request_params greedy(int64_t max_tokens) {
    di_request_params p;
    di_request_params_init(NULL, &p, sizeof p);
    p.temperature = 0;
    p.max_tokens = max_tokens;
    return p;
}

di_request_params seeded(uint64_t seed, int64_t max_tokens) {
    di_request_params p = greedy(max_tokens);
    p.temperature = 0.8;
    p.top_p = 0.95;
    p.has_seed = true;
    p.seed = seed;
    return p;
}

di_engine_options demo_options(void) {
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = "models/demo";
    o.backend = card_under_test() ? getenv("TEST_BACKEND") : NULL;
    o.threads = 1; /* others wait for each other, for long when the machine is busy */
    return o;
}

static int64_t kv_memory(const char *model, int max_num_seqs, int blocks, bool drafts) {
    di_error err = {0};
    di_parts parts;
    di_parts_options o = {.model = model, .max_num_seqs = 1, .max_rows = 16, .max_logits = 1};
    o.drafts = drafts ? DI_DRAFTS_ON : DI_DRAFTS_OFF;
    if (!di_parts_open(&parts, &o, &err)) {
        fail_msg("%s", err.message);
    }
    const di_state_layout *l = di_cache_pool(parts.cache)->layout;
    size_t bytes = (size_t)(max_num_seqs + 1) * l->slot_stride + (size_t)blocks * l->block_stride;
    di_parts_close(&parts);
    return (int64_t)bytes;
}

int64_t kv_memory_of(const char *model, int max_num_seqs, int blocks) {
    return kv_memory(model, max_num_seqs, blocks, false);
}

int64_t kv_memory_with_drafts(const char *model, int max_num_seqs, int blocks) {
    return kv_memory(model, max_num_seqs, blocks, true);
}

di_engine *open_engine(const di_engine_options *options) {
    di_error err = {0};
    di_engine *e = di_engine_open(options, &err);
    if (!e) {
        fail_msg("%s", err.message);
    }
    return e;
}

di_result *ask(di_engine *e, di_prompt prompt, di_request_params params) {
    di_error err = {0};
    di_result *r = di_generate(e, &prompt, &params, NULL, NULL, &err);
    if (!r) {
        fail_msg("%s", err.message);
    }
    return r;
}

void expect_same_tokens(const di_result *a, const di_result *b) {
    assert_int_equal(a->num_token_ids, b->num_token_ids);
    assert_memory_equal(a->token_ids, b->token_ids, a->num_token_ids * sizeof *a->token_ids);
}

/* ---- costs ---- */

static void pretend_curve(json_t *curve, double at_one, double more) {
    assert_true(json_array_size(curve) > 0);
    for (size_t i = 0; i < json_array_size(curve); i++) {
        json_t *point = json_array_get(curve, i);
        double size = (double)json_integer_value(json_array_get(point, 0));
        json_array_set_new(point, 1, json_real(at_one + more * (size - 1)));
    }
}

void pretend_costs(const di_engine_options *o, double row, double draft) {
    glob_t found;
    di_engine_close(open_engine(o)); /* which leaves the file */
    assert_int_equal(glob(files_path(o->cost_cache, "*.json"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    json_t *costs = files_read_json(found.gl_pathv[0]);
    json_t *step = json_object_get(costs, "step");
    double one = json_real_value(json_array_get(json_array_get(step, 0), 1));
    pretend_curve(step, one, row * one);
    pretend_curve(json_object_get(costs, "draft"), draft * one, 0);
    assert_int_equal(json_dump_file(costs, found.gl_pathv[0], 0), 0);
    json_decref(costs);
    globfree(&found);
}

/* ---- answers ---- */

static void *grown(void *p, size_t count, size_t size) {
    p = realloc(p, count * size);
    assert_non_null(p);
    return p;
}

static void put_tops(di_logprob *to, const di_token_info *info) {
    for (int i = 0; i < ANSWER_TOPS; i++) {
        to[i] = i < info->num_top ? info->top[i] : (di_logprob){-1, 0};
    }
}

static void add_tokens(answer *a, const di_output *out) {
    size_t old = a->num_tokens, n = old + out->num_token_ids;
    if (n > a->token_capacity) {
        a->token_capacity = 2 * n;
        a->tokens = grown(a->tokens, 2 * n, sizeof *a->tokens);
        if (out->logprobs) {
            a->chosen = grown(a->chosen, 2 * n, sizeof *a->chosen);
            a->tops = grown(a->tops, 2 * n, ANSWER_TOPS * sizeof *a->tops);
        }
    }
    for (size_t i = old; i < n; i++) {
        a->tokens[i] = out->token_ids[i - old];
        if (out->logprobs) {
            a->chosen[i] = out->logprobs[i - old].chosen;
            put_tops(a->tops + i * ANSWER_TOPS, &out->logprobs[i - old]);
        }
    }
    a->num_tokens = n;
}

static void add_prompt(answer *a, const di_output *out) {
    size_t n = (size_t)out->prompt_tokens;
    assert_null(a->prompt); /* told once */
    a->prompt = grown(NULL, n, sizeof *a->prompt);
    a->prompt_tops = grown(NULL, n, ANSWER_TOPS * sizeof *a->prompt_tops);
    for (size_t i = 0; i < n; i++) {
        a->prompt[i] = out->prompt_logprobs[i].chosen;
        put_tops(a->prompt_tops + i * ANSWER_TOPS, &out->prompt_logprobs[i]);
    }
}

void answer_add(answer *a, const di_output *out) {
    assert_int_equal(a->lasts, 0); /* nothing comes after the last */
    a->outputs++;
    add_tokens(a, out);
    if (out->prompt_logprobs) {
        add_prompt(a, out);
    }
    a->text = grown(a->text, a->text_bytes + out->text_bytes + 1, 1);
    memcpy(a->text + a->text_bytes, out->text, out->text_bytes + 1);
    a->text_bytes += out->text_bytes;
    a->prompt_tokens = out->prompt_tokens;
    a->cached_tokens = out->cached_tokens;
    a->seed = out->seed;
    assert_int_equal(out->completion_tokens, a->num_tokens);
    if (out->finish_reason != DI_FINISH_NONE) {
        a->lasts++;
        a->reason = out->finish_reason;
        a->stop_token_id = out->stop_token_id;
        a->error = out->error;
        if (out->stop) {
            strncpy(a->stop, out->stop, sizeof a->stop - 1);
        }
    }
}

void answer_clear(answer *a) {
    free(a->tokens);
    free(a->text);
    free(a->chosen);
    free(a->tops);
    free(a->prompt);
    free(a->prompt_tops);
    *a = (answer){0};
}

static void expect_same_logprobs(const di_logprob *a, const di_logprob *b, size_t n) {
    assert_int_equal(a != NULL, b != NULL);
    for (size_t i = 0; a && i < n; i++) {
        assert_int_equal(a[i].token_id, b[i].token_id);
        assert_memory_equal(&a[i].logprob, &b[i].logprob, sizeof a[i].logprob);
    }
}

/* The first token that is another, or missing. */
static void expect_same_ids(const answer *a, const answer *b) {
    size_t least = a->num_tokens < b->num_tokens ? a->num_tokens : b->num_tokens, same = 0;
    while (same < least && a->tokens[same] == b->tokens[same]) {
        same++;
    }
    if (same < a->num_tokens || same < b->num_tokens) {
        fail_msg("behind %zu prompt tokens and %zu the same: %d, not %d; it ended with %s: %s",
                 (size_t)a->prompt_tokens, same, same < a->num_tokens ? a->tokens[same] : -1,
                 same < b->num_tokens ? b->tokens[same] : -1, di_finish_reason_name(a->reason),
                 a->error.message);
    }
}

void expect_same_answers(const answer *a, const answer *b) {
    size_t prompt = (size_t)a->prompt_tokens;
    expect_same_ids(a, b);
    assert_int_equal(a->reason, b->reason);
    assert_string_equal(a->text, b->text);
    expect_same_logprobs(a->chosen, b->chosen, a->num_tokens);
    expect_same_logprobs(a->tops, b->tops, a->num_tokens * ANSWER_TOPS);
    expect_same_logprobs(a->prompt, b->prompt, prompt);
    expect_same_logprobs(a->prompt_tops, b->prompt_tops, prompt * ANSWER_TOPS);
}

/* ---- queues ---- */

di_queue *open_queue(di_engine *e) {
    di_queue *q = di_queue_create(e, NULL);
    assert_non_null(q);
    return q;
}

uint64_t submit(di_engine *e, di_queue *q, di_prompt prompt, di_request_params params,
                answer *answers) {
    di_error err = {0};
    uint64_t id = di_submit(e, q, &prompt, &params, answers, &err);
    if (!id) {
        fail_msg("%s", err.message);
    }
    return id;
}

void read_answers(di_queue *q, int lasts) {
    while (lasts > 0) {
        di_output *out = di_queue_wait(q, 60000);
        if (!out) {
            fail_msg("%d last outputs have not come within a minute", lasts);
        }
        answer_add((answer *)out->tag + out->index, out);
        lasts -= out->finish_reason != DI_FINISH_NONE;
        di_output_free(out);
    }
}

answer answer_of(di_engine *e, di_prompt prompt, di_request_params params) {
    answer a = {0};
    di_queue *q = open_queue(e);
    submit(e, q, prompt, params, &a);
    read_answers(q, 1);
    assert_null(di_queue_wait(q, 0));
    di_queue_destroy(q);
    return a;
}

void expect_whole_pools(di_engine *e) {
    di_engine_stats s = {.struct_bytes = sizeof s};
    for (int i = 0; i < 60000; i++) {
        di_engine_get_stats(e, &s);
        if (s.running + s.waiting == 0 && s.finished == s.requests &&
            s.blocks_free + s.blocks_cached == s.blocks) {
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("%d run, %d wait, %llu of %llu requests have ended; of %lld blocks %lld are free and "
             "%lld cached",
             s.running, s.waiting, (unsigned long long)s.finished, (unsigned long long)s.requests,
             (long long)s.blocks, (long long)s.blocks_free, (long long)s.blocks_cached);
}
