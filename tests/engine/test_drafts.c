/* Drafts never change an answer, whatever their number, and on the demo model they are worth
 * having: its training code measured 2.98 tokens a round over the golden prompts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"
#include "support/model_files.h"

#include "deepinfer/deepinfer.h"

static di_engine *open_model(const char *model, int drafts, int max_num_seqs, bool synchronous) {
    di_error err = {0};
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = model;
    o.backend = getenv("TEST_BACKEND"); /* NULL: the CPU */
    o.num_drafts = drafts;
    o.spec_mode = DI_SPEC_FIXED;
    o.max_num_seqs = max_num_seqs;
    o.max_num_batched_tokens = 64;
    o.max_mixed_prefill_tokens = 5;
    o.synchronous = synchronous;
    di_engine *e = di_engine_open(&o, &err);
    if (!e) {
        fail_msg("%s", err.message);
    }
    return e;
}

static di_engine *open_with(int drafts, int max_num_seqs, bool synchronous) {
    return open_model("models/demo", drafts, max_num_seqs, synchronous);
}

typedef struct answers {
    int32_t tokens[8][96];
    di_logprob chosen[8][96], top[8][96][3];
    int counts[8];
} answers;

/* Eight answers at once: greedy and sampled, some with penalties, one short. Steps are small, so
 * prompts and drafts share them. */
static void ask(di_engine *e, const golden_case *g, answers *a) {
    di_error err = {0};
    di_queue *q = di_queue_create(e, &err);
    char tags[8];
    *a = (answers){0};
    for (int i = 0; i < 8; i++) {
        di_tensor ids = case_get(g, DI_I32, "prompt.%d.ids", i % 6);
        di_prompt p;
        di_prompt_init(&p, sizeof p);
        p.token_ids = ids.data;
        p.num_token_ids = (size_t)ids.shape[0];
        di_request_params params;
        di_request_params_init(e, &params, sizeof params);
        params.temperature = i % 2 ? 0.8 : 0;
        params.repetition_penalty = i == 3 ? 1.2 : 1;
        params.frequency_penalty = i == 5 ? 0.5 : 0;
        params.has_seed = true;
        params.seed = (uint64_t)i;
        params.max_tokens = i == 7 ? 3 : 90;
        params.ignore_eos = i == 6;
        params.logprobs = true;
        params.top_logprobs = 3;
        assert_true(di_submit(e, q, &p, &params, &tags[i], &err) > 0);
    }
    for (int left = 8; left > 0;) {
        di_output *out = di_queue_wait(q, -1);
        int i = (int)((char *)out->tag - tags);
        memcpy(a->tokens[i] + a->counts[i], out->token_ids, out->num_token_ids * sizeof(int32_t));
        for (size_t k = 0; k < out->num_token_ids; k++) {
            const di_token_info *info = &out->logprobs[k];
            assert_int_equal(info->num_top, 3);
            assert_int_equal(info->chosen.token_id, out->token_ids[k]);
            a->chosen[i][(size_t)a->counts[i] + k] = info->chosen;
            memcpy(a->top[i][(size_t)a->counts[i] + k], info->top, sizeof **a->top);
        }
        a->counts[i] += (int)out->num_token_ids;
        left -= out->finish_reason != DI_FINISH_NONE;
        assert_int_not_equal(out->finish_reason, DI_FINISH_ERROR);
        di_output_free(out);
    }
    di_queue_destroy(q);
}

/* The same of an engine without drafts. */
static void ask_without(const golden_case *g, answers *found) {
    di_engine *e = open_with(0, 8, false);
    ask(e, g, found);
    di_engine_close(e);
}

static void test_answers_are_the_same_with_any_number_of_drafts(void **state) {
    (void)state;
    static answers wanted, found;
    golden_case g;
    case_open(&g, "models/demo/golden.safetensors");
    ask_without(&g, &wanted);
    for (int drafts = 1; drafts <= 5; drafts++) {
        for (int seqs = 1; seqs <= 8; seqs += 7) {
            di_engine *e = open_with(drafts, seqs, false);
            ask(e, &g, &found);
            di_engine_stats s = {.struct_bytes = sizeof s};
            di_engine_get_stats(e, &s);
            print_message("    %d drafts, %d at once: %.2f accepted of %.2f a round\n", drafts,
                          seqs, (double)s.drafts_accepted / (double)s.draft_rounds,
                          (double)s.drafts_verified / (double)s.draft_rounds);
            assert_true(s.draft_rounds > 0 && s.drafts_accepted > 0);
            assert_memory_equal(&found, &wanted, sizeof wanted);
            di_engine_close(e);
        }
    }
    case_close(&g);
}

/* A step is with the device while the one in front of it is being read, though how many drafts
 * that accepted, and which ones it made, decides what the step is. Answers and rounds are those of
 * an engine that reads every step before it plans the next. */
static void test_steps_with_drafts_run_ahead_of_their_results(void **state) {
    (void)state;
    static answers found[2];
    di_engine_stats s[2] = {{.struct_bytes = sizeof *s}, {.struct_bytes = sizeof *s}};
    golden_case g;
    case_open(&g, "models/demo/golden.safetensors");
    for (int synchronous = 0; synchronous < 2; synchronous++) {
        di_engine *e = open_with(5, 8, synchronous);
        ask(e, &g, &found[synchronous]);
        di_engine_get_stats(e, &s[synchronous]);
        di_engine_close(e);
    }
    print_message("    %d of %d steps ahead, %d of %d when synchronous\n", (int)s[0].steps_ahead,
                  (int)s[0].steps, (int)s[1].steps_ahead, (int)s[1].steps);
    assert_memory_equal(&found[0], &found[1], sizeof *found);
    assert_int_equal(s[1].steps_ahead, 0);
    assert_true(s[0].drafts_accepted > 100);
    assert_true(s[0].steps_ahead + 3 > s[0].steps); /* all but the first and, at most, a last one */
    case_close(&g);
}

/* Greedy continuations of the six golden prompts, 32 tokens each, 5 drafts. */
static void test_rounds_give_as_many_tokens_as_in_training(void **state) {
    (void)state;
    golden_case g;
    di_error err = {0};
    case_open(&g, "models/demo/golden.safetensors");
    di_engine *e = open_with(5, 1, false);
    for (int i = 0; i < 6; i++) {
        di_tensor ids = case_get(&g, DI_I32, "prompt.%d.ids", i);
        di_prompt p;
        di_prompt_init(&p, sizeof p);
        p.token_ids = ids.data;
        p.num_token_ids = (size_t)ids.shape[0];
        di_request_params params;
        di_request_params_init(e, &params, sizeof params);
        params.temperature = 0;
        params.ignore_eos = true;
        params.max_tokens = 32;
        di_result *r = di_generate(e, &p, &params, NULL, NULL, &err);
        assert_non_null(r);
        di_result_free(r);
    }
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(e, &s);
    double tokens = 1 + (double)s.drafts_accepted / (double)s.draft_rounds;
    print_message("    %.2f tokens a round over %d rounds\n", tokens, (int)s.draft_rounds);
    assert_true(tokens > 2.6); /* near ties go otherwise than in training now and then */
    di_engine_close(e);
    case_close(&g);
}

/* ---- the draft model's context ----------------------------------------------------------------*/

enum { PAGES = 4, PAGE_BYTES = 1200, CONTINUED = 70 };

/* How drafts fared in the answers to some pages of a novel, one after the other. */
typedef struct fared {
    uint64_t made[16], verified[16], accepted[16];
    int32_t tokens[PAGES][CONTINUED];
    int64_t cached;
} fared;

static void read_pages(char pages[PAGES][PAGE_BYTES + 1]) {
    FILE *f = fopen(testdata_path("text/english.txt"), "r");
    assert_non_null(f);
    for (int i = 0; i < PAGES; i++) {
        assert_int_equal(fseek(f, 20000 + i * 30000, SEEK_SET), 0);
        assert_int_equal(fread(pages[i], 1, PAGE_BYTES, f), PAGE_BYTES);
        while ((pages[i][0] & 0xc0) == 0x80) { /* not in the middle of a character */
            memmove(pages[i], pages[i] + 1, PAGE_BYTES);
        }
    }
    fclose(f);
}

static void ask_pages(di_engine *e, fared *f) {
    static char pages[PAGES][PAGE_BYTES + 1];
    di_error err = {0};
    di_engine_stats before = {.struct_bytes = sizeof before},
                    after = {.struct_bytes = sizeof after};
    read_pages(pages);
    di_engine_get_stats(e, &before);
    *f = (fared){0};
    for (int i = 0; i < PAGES; i++) {
        di_prompt p;
        di_request_params params;
        di_prompt_init(&p, sizeof p);
        di_request_params_init(e, &params, sizeof params);
        p.text = pages[i];
        params.temperature = 0;
        params.ignore_eos = true;
        params.max_tokens = CONTINUED;
        di_result *r = di_generate(e, &p, &params, NULL, NULL, &err);
        assert_non_null(r);
        assert_int_equal(r->num_token_ids, CONTINUED);
        memcpy(f->tokens[i], r->token_ids, sizeof f->tokens[i]);
        f->cached += r->cached_tokens;
        di_result_free(r);
    }
    di_engine_get_stats(e, &after);
    for (int k = 0; k < 16; k++) {
        f->made[k] = after.drafts_made_at[k] - before.drafts_made_at[k];
        f->verified[k] = after.drafts_verified_at[k] - before.drafts_verified_at[k];
        f->accepted[k] = after.drafts_accepted_at[k] - before.drafts_accepted_at[k];
    }
}

static double tokens_a_round(const fared *f) {
    double accepted = 0;
    for (int k = 0; k < 16; k++) {
        accepted += (double)f->accepted[k];
    }
    return 1 + accepted / (double)f->verified[0];
}

/* Where its context is missing or wrong answers stay what they are and drafts are worse. So drafts
 * must fare as in one go where prompts come in chunks and where their beginning is in the cache,
 * and nearly as well where most of a prompt is left out of what the draft model sees: other answers
 * by then, in so few pages 4 % better on a processor and 8 % worse on a card, in 60 pages 1 % worse
 * and 3 % better. With no context at all 0.83 of the tokens are left. */
static void test_drafts_fare_alike_however_the_prompt_was_read(void **state) {
    (void)state;
    static fared whole, chunks, cold, hot, replayed;
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = "models/demo";
    o.backend = getenv("TEST_BACKEND");
    o.num_drafts = 5;
    o.spec_mode = DI_SPEC_FIXED;
    o.no_prefix_cache = true;
    struct {
        fared *first, *second;
        int rows;
        di_replay_mode replay;
    } runs[] = {{&whole, NULL, 1024, DI_REPLAY_OFF},
                {&chunks, NULL, 7, DI_REPLAY_OFF},
                {&cold, &hot, 512, DI_REPLAY_OFF},
                {&replayed, NULL, 512, DI_REPLAY_COMPACT}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        di_error err = {0};
        o.max_num_batched_tokens = runs[i].rows;
        o.no_prefix_cache = runs[i].second == NULL;
        o.replay_mode = runs[i].replay;
        o.replay_keep_tokens = 140;
        di_engine *e = di_engine_open(&o, &err);
        if (!e) {
            fail_msg("%s", err.message);
        }
        ask_pages(e, runs[i].first);
        if (runs[i].second) {
            ask_pages(e, runs[i].second);
        }
        di_engine_close(e);
    }
    print_message("    %.3f tokens a round, %.3f behind bounded replay; %d prompt tokens cached\n",
                  tokens_a_round(&whole), tokens_a_round(&replayed), (int)hot.cached);
    assert_memory_equal(&chunks, &whole, sizeof whole);
    assert_memory_equal(&cold, &whole, sizeof whole);
    assert_true(hot.cached >= PAGES * 128);
    hot.cached = 0;
    assert_memory_equal(&hot, &whole, sizeof whole);
    assert_true(tokens_a_round(&replayed) > 0.87 * tokens_a_round(&whole));
}

/* The demo model with another value in its text_config. */
static char *demo_with(const char *key, int value) {
    char *folder = files_copy("models/demo");
    json_t *config = files_read_json("models/demo/config.json");
    json_t *text = json_object_get(config, "text_config");
    json_t *object = json_object_get(text, key) ? text : config;
    assert_non_null(json_object_get(object, key));
    assert_int_equal(json_object_set_new(object, key, json_integer(value)), 0);
    files_write_json(folder, "config.json", config);
    json_decref(config);
    return folder;
}

/* A draft model that is given another filler, or shorter blocks than it was trained on, proposes
 * other drafts; the answers are what they were. */
static void test_a_draft_model_run_otherwise_changes_drafts_alone(void **state) {
    (void)state;
    static answers wanted, found;
    static const struct {
        const char *key; /* NULL: as it is */
        int value, drafts;
    } cases[] = {
        {NULL, 0, 5}, {"dspark_noise_token_id", 300, 5}, {NULL, 0, 3}, {"dspark_block_size", 3, 3}};
    enum { CASES = sizeof cases / sizeof *cases };
    double tokens[CASES];
    golden_case g;
    case_open(&g, "models/demo/golden.safetensors");
    ask_without(&g, &wanted);
    for (int i = 0; i < CASES; i++) {
        char *folder = cases[i].key ? demo_with(cases[i].key, cases[i].value) : NULL;
        di_engine_stats s = {.struct_bytes = sizeof s};
        di_engine *e = open_model(folder ? folder : "models/demo", cases[i].drafts, 8, false);
        ask(e, &g, &found);
        di_engine_get_stats(e, &s);
        di_engine_close(e);
        assert_memory_equal(&found, &wanted, sizeof wanted);
        tokens[i] = 1 + (double)s.drafts_accepted / (double)s.draft_rounds;
        print_message("    %d drafts, %s %d: %.3f tokens a round\n", cases[i].drafts,
                      cases[i].key ? cases[i].key : "as trained", cases[i].value, tokens[i]);
        if (folder) {
            files_remove(folder);
        }
    }
    assert_true(tokens[1] < tokens[0] && tokens[1] > 1);
    assert_true(tokens[3] != tokens[2]);
    case_close(&g);
}

/* The longest block that a config may have, of which the engine verifies no more than 16. */
static void test_the_longest_block_is_run(void **state) {
    (void)state;
    static answers wanted, found;
    golden_case g;
    case_open(&g, "models/demo/golden.safetensors");
    ask_without(&g, &wanted);
    char *folder = demo_with("dspark_block_size", 63);
    di_engine *e = open_model(folder, 16, 8, false);
    ask(e, &g, &found);
    di_engine_close(e);
    files_remove(folder);
    assert_memory_equal(&found, &wanted, sizeof wanted);
    case_close(&g);
}

static void test_a_number_beyond_the_block_is_refused(void **state) {
    (void)state;
    di_error err = {0};
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = "models/demo";
    o.num_drafts = 6;
    assert_null(di_engine_open(&o, &err));
    assert_string_equal(err.message, "num_drafts is 6, allowed are 0 to 5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_the_same_with_any_number_of_drafts),
        cmocka_unit_test(test_steps_with_drafts_run_ahead_of_their_results),
        cmocka_unit_test(test_drafts_fare_alike_however_the_prompt_was_read),
        cmocka_unit_test(test_a_draft_model_run_otherwise_changes_drafts_alone),
        cmocka_unit_test(test_the_longest_block_is_run),
        cmocka_unit_test(test_rounds_give_as_many_tokens_as_in_training),
        cmocka_unit_test(test_a_number_beyond_the_block_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
