/* Options of drafting, the file of measured costs, temperatures, and answers under every mode. */
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/mirror.h"
#include "support/model_files.h"
#include "support/random.h"
#include "support/requests.h"

#include "engine/calibration.h"
#include "engine/spec.h"

static di_engine_options drafting(int drafts, di_spec_mode mode) {
    di_engine_options o = demo_options();
    o.num_drafts = drafts;
    o.spec_mode = mode;
    o.max_num_seqs = 4;
    return o;
}

static void expect_refused(const di_engine_options *o, const char *message) {
    di_error err = {0};
    di_engine *e = di_engine_open(o, &err);
    if (e) {
        fail_msg("it was opened; wanted: %s", message);
    }
    assert_non_null(strstr(err.message, message));
}

static di_engine_stats stats_of(di_engine *e) {
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(e, &s);
    return s;
}

/* ---- options ---- */

static void test_bad_options_are_refused_by_name(void **state) {
    (void)state;
    di_engine_options o = drafting(6, DI_SPEC_FIXED);
    expect_refused(&o, "num_drafts is 6, allowed are 0 to 5");
    o = drafting(17, DI_SPEC_FIXED);
    expect_refused(&o, "num_drafts is 17, allowed are -1 to 16");
    o = drafting(5, (di_spec_mode)3);
    expect_refused(&o, "spec_mode is 3, allowed are 0 to 2");
    o = drafting(5, DI_SPEC_FIXED);
    o.max_num_batched_tokens = 4;
    expect_refused(&o, "max_num_batched_tokens is 4, less than a block of 5 drafts");
    o.max_num_batched_tokens = 512;
    o.confidence_temperatures = "1,2";
    expect_refused(&o, "confidence_temperatures has 2 numbers, allowed are 1 or 5 (num_drafts)");
    o.confidence_temperatures = "1,2,x,4,5";
    expect_refused(&o, "confidence_temperatures is '1,2,x,4,5'");
    o.confidence_temperatures = "0";
    expect_refused(&o, "confidence_temperatures: number 1 is 0, allowed are 0.01 to 100");
    o.confidence_temperatures = "nan";
    expect_refused(&o, "confidence_temperatures: number 1 is nan");
}

/* A model whose draft tensors are gone: asked for, drafts are an error; else there are none. */
static void test_a_model_without_a_draft_model(void **state) {
    (void)state;
    static const int32_t ids[] = {5, 6, 7, 8};
    char *tiny = files_testdata("tiny"), *folder = files_copy(tiny);
    files_drop_draft(folder);
    di_engine_options o = drafting(2, DI_SPEC_PRICED);
    o.model = folder;
    expect_refused(&o, "has no draft model (mtp.* tensors)");
    o.num_drafts = -1;
    di_engine *e = open_engine(&o);
    di_request_params p = greedy(10);
    p.ignore_eos = true;
    di_result *r = ask(e, ids_prompt(ids, 4), p);
    assert_int_equal(r->num_token_ids, 10);
    di_result_free(r);
    assert_int_equal(stats_of(e).drafts_made_at[0], 0);
    di_engine_close(e);
    free(tiny);
    files_remove(folder);
}

static void test_modes_and_counts(void **state) {
    (void)state;
    static const struct {
        int drafts;
        di_spec_mode mode;
        int made; /* drafts in a block; -1 = any number */
    } cases[] = {{-1, DI_SPEC_FIXED, 5}, {2, DI_SPEC_FIXED, 2},  {-1, DI_SPEC_OFF, 0},
                 {5, DI_SPEC_OFF, 0},    {0, DI_SPEC_PRICED, 0}, {-1, DI_SPEC_PRICED, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_engine_options o = drafting(cases[i].drafts, cases[i].mode);
        di_engine *e = open_engine(&o);
        di_result_free(ask(e, text_prompt("The ghost of"), greedy(24)));
        di_engine_stats s = stats_of(e);
        int made = 0;
        for (int k = 0; k < 16; k++) {
            made += s.drafts_made_at[k] > 0;
            assert_true(s.drafts_made_at[k] >= s.drafts_verified_at[k]);
            assert_true(s.drafts_verified_at[k] >= s.drafts_tested_at[k]);
            assert_true(s.drafts_tested_at[k] >= s.drafts_accepted_at[k]);
            assert_true(s.drafts_expected_at[k] <= (double)s.drafts_tested_at[k]);
        }
        assert_true(cases[i].made < 0 || made == cases[i].made);
        assert_true((s.priced_steps > 0) ==
                    (cases[i].mode == DI_SPEC_PRICED && cases[i].drafts != 0));
        di_engine_close(e);
    }
}

/* The demo model with a confidence head whose weights are the largest numbers there are, of both
 * signs: what it says is no number. */
static char *demo_with_a_wild_head(void) {
    static const char name[] = "mtp.2.confidence_head.proj.weight";
    char *folder = files_copy("models/demo");
    json_t *index = files_read_json("models/demo/model.safetensors.index.json");
    const char *file =
        json_string_value(json_object_get(json_object_get(index, "weight_map"), name));
    assert_non_null(file);
    shard_parts s;
    shard_read(&s, files_path("models/demo", file));
    json_t *offsets = json_object_get(json_object_get(s.header, name), "data_offsets");
    uint16_t *w = (uint16_t *)(s.data + json_integer_value(json_array_get(offsets, 0)));
    size_t n = (size_t)(json_integer_value(json_array_get(offsets, 1)) -
                        json_integer_value(json_array_get(offsets, 0))) /
               sizeof *w;
    for (size_t i = 0; i < n; i++) {
        w[i] = i % 2 ? 0xff7f : 0x7f7f;
    }
    shard_write(&s, folder, file);
    shard_free(&s);
    json_decref(index);
    return folder;
}

/* Confidences that are no numbers are counted and told; drafts and answers do without them. */
static void test_broken_confidences_are_told(void **state) {
    (void)state;
    di_engine_options o = drafting(5, DI_SPEC_FIXED);
    char *folder = demo_with_a_wild_head();
    di_engine *e = open_engine(&o);
    di_result *wanted = ask(e, text_prompt("The ghost of"), greedy(24));
    assert_int_equal(stats_of(e).confidences_broken, 0);
    di_engine_close(e);
    o.model = folder;
    for (int priced = 0; priced < 2; priced++) {
        o.spec_mode = priced ? DI_SPEC_PRICED : DI_SPEC_FIXED;
        e = open_engine(&o);
        di_result *found = ask(e, text_prompt("The ghost of"), greedy(24));
        expect_same_tokens(found, wanted);
        di_result_free(found);
        di_engine_stats s = stats_of(e);
        assert_true(priced || s.confidences_broken > 0);
        assert_true(priced || s.drafts_accepted > 0);
        di_engine_close(e);
    }
    di_result_free(wanted);
    files_remove(folder);
}

/* ---- costs on disk ---- */

/* The one file of costs in a folder. */
static void find_costs(const char *folder, char *path, size_t size) {
    glob_t found;
    assert_int_equal(glob(files_path(folder, "*.json"), 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, size, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static size_t count_costs(const char *folder) {
    glob_t found;
    size_t count = glob(files_path(folder, "*.json"), 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return count;
}

static char *content_of(const char *path) {
    size_t size;
    char *data = files_read(path, &size), *text = calloc(size + 1, 1);
    assert_non_null(text);
    memcpy(text, data, size);
    free(data);
    return text;
}

static void write_content(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void open_and_close(const di_engine_options *o) {
    di_engine_close(open_engine(o));
}

static void test_costs_are_kept_and_damaged_files_made_anew(void **state) {
    (void)state;
    static const char *const damaged[] = {
        "",
        "{",
        "[]",
        "{\"description\": \"x\", \"created\": 1, \"step\": [[1, 1.0]], \"draft\": [[1, 1.0]]}",
        "{\"description\": \"x\", \"created\": -1}",
        NULL,
    };
    char *folder = files_folder(), path[512];
    di_engine_options o = drafting(5, DI_SPEC_PRICED);
    o.cost_cache = folder;
    open_and_close(&o);
    find_costs(folder, path, sizeof path);
    char *first = content_of(path);
    open_and_close(&o); /* read, not measured again */
    char *second = content_of(path);
    assert_string_equal(first, second);
    free(second);
    for (int i = 0; damaged[i]; i++) {
        write_content(path, damaged[i]);
        open_and_close(&o);
        second = content_of(path);
        assert_non_null(strstr(second, "\"step\""));
        assert_true(strlen(second) > 100);
        free(second);
    }
    /* a good file of another engine, and one whose points are no curve */
    char *at = strstr(first, "drafts 5");
    assert_non_null(at);
    at[7] = '4';
    write_content(path, first);
    open_and_close(&o);
    second = content_of(path);
    assert_non_null(strstr(second, "drafts 5"));
    char *step = strstr(second, "[[1,");
    if (!step) {
        step = strstr(second, "[[1");
    }
    assert_non_null(step);
    step[2] = '0';
    write_content(path, second);
    free(second);
    open_and_close(&o);
    second = content_of(path);
    assert_non_null(strstr(second, "[[1"));
    free(second);
    free(first);
    files_remove(folder);
}

/* Whatever changes what steps take is told apart; what does not, is not. */
static void test_costs_of_different_engines_are_different_files(void **state) {
    (void)state;
    di_curve_request base = {.model = "models/demo",
                             .device = "cuda:0 of driver for CUDA 12.8; cuda:0 NVIDIA H200",
                             .max_num_seqs = 4,
                             .max_rows = 512,
                             .max_logits = 88,
                             .num_drafts = 5,
                             .cache = "/c",
                             .ttl = 60};
    di_curve_request others[8];
    char paths[9][512], again[512];
    for (int i = 0; i < 8; i++) {
        others[i] = base;
    }
    others[0].model = "tests";
    others[1].device = "cuda:0 of driver for CUDA 13.0; cuda:0 NVIDIA H200";
    others[2].device = "cuda:1 of driver for CUDA 12.8; cuda:0 NVIDIA H200";
    others[3].time_ops = true;
    others[4].max_num_seqs = 5;
    others[5].max_rows = 511;
    others[6].max_logits = 89;
    others[7].num_drafts = 4;
    di_curves_path(&base, paths[8], sizeof paths[8]);
    for (int i = 0; i < 8; i++) {
        di_curves_path(&others[i], paths[i], sizeof paths[i]);
    }
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(paths[i], paths[k]);
        }
    }
    base.model = "models/../models/demo";
    base.ttl = 5;
    di_curves_path(&base, again, sizeof again);
    assert_string_equal(again, paths[8]);
}

/* "auto" is what it comes to: on one machine the same file as that which it takes. */
static void test_costs_are_kept_by_what_computes(void **state) {
    (void)state;
    char *folder = files_folder();
    di_engine_options o = drafting(5, DI_SPEC_PRICED);
    o.cost_cache = folder;
    o.threads = 2;
    o.backend = "auto";
    open_and_close(&o);
    o.backend = card_under_test() ? "cuda:0" : "cpu";
    open_and_close(&o);
    assert_int_equal(count_costs(folder), 1);
    if (card_under_test()) {
        o.no_batch_invariance = true;
    } else {
        o.threads = 1;
    }
    open_and_close(&o);
    assert_int_equal(count_costs(folder), 2);
    files_remove(folder);
}

static void test_costs_grow_old(void **state) {
    (void)state;
    char *folder = files_folder(), path[512];
    di_engine_options o = drafting(5, DI_SPEC_PRICED);
    o.cost_cache = folder;
    open_and_close(&o);
    find_costs(folder, path, sizeof path);
    char *text = content_of(path), *created = strstr(text, "\"created\": 1");
    assert_non_null(created);
    created[11] = ' '; /* the first digit: long ago */
    write_content(path, text);
    open_and_close(&o);
    char *now = content_of(path);
    assert_non_null(strstr(now, "\"created\": 1"));
    free(now);
    free(text);
    files_remove(folder);
}

/* ---- temperatures ---- */

static void test_temperatures_come_from_the_models_folder(void **state) {
    (void)state;
    char *folder = files_folder(), path[512];
    double t[5];
    di_error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, DI_CALIBRATION_FILE);
    assert_true(di_temperatures_read(NULL, folder, 5, t, &err));
    assert_true(t[0] == 1 && t[4] == 1);
    const double wanted[] = {0.5, 1, 1.5, 2, 2.5};
    assert_true(di_temperatures_write(folder, wanted, 5, 100, &err));
    assert_true(di_temperatures_read(NULL, folder, 5, t, &err));
    assert_memory_equal(t, wanted, sizeof wanted);
    assert_true(di_temperatures_read(NULL, folder, 3, t, &err)); /* the first of a block */
    assert_true(di_temperatures_read("3", folder, 5, t, &err));  /* what is given beats it */
    assert_true(t[0] == 3 && t[4] == 3);
    static const char *const bad[] = {"{}", "{\"temperatures\": [1, 1]}",
                                      "{\"temperatures\": [1, 1, 1, 1, \"x\"]}",
                                      "{\"temperatures\": [1, 1, 1, 1, 1e9]}", "nonsense"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_content(path, bad[i]);
        assert_false(di_temperatures_read(NULL, folder, 5, t, &err));
        assert_non_null(strstr(err.message, DI_CALIBRATION_FILE));
    }
    files_remove(folder);
}

/* Promises made too loudly by a factor of two in their logarithms; and too few to tell. */
static void test_temperatures_are_found_again(void **state) {
    (void)state;
    static di_calibration c;
    uint64_t seed = 3;
    for (int k = 0; k < 20000; k++) {
        double z = 10 * (next_unit(&seed) - 0.5);
        double u = next_unit(&seed);
        di_calibration_note(&c, 0, z, u < 1 / (1 + exp(-z / 2)));
        if (k < 6) {
            di_calibration_note(&c, 1, z, u < 1 / (1 + exp(-z / 2)));
        }
    }
    double t = di_calibration_temperature(&c, 0);
    assert_true(t > 1.9 && t < 2.1);
    di_calibration_fit before = di_calibration_judge(&c, 0, 1),
                       after = di_calibration_judge(&c, 0, t);
    assert_true(after.error < 0.02 && before.error > 0.05 && after.loss < before.loss);
    t = di_calibration_temperature(&c, 1);
    assert_true(t > 0.75 && t < 1.3);
    assert_true(di_calibration_temperature(&c, 2) == 1);
    di_calibration_note(&c, 3, INFINITY, true); /* counts at the end of the scale */
    di_calibration_note(&c, 3, -INFINITY, false);
    di_calibration_note(&c, 3, NAN, false);
    assert_true(di_calibration_judge(&c, 3, 1).tests == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_options_are_refused_by_name),
        cmocka_unit_test(test_a_model_without_a_draft_model),
        cmocka_unit_test(test_modes_and_counts),
        cmocka_unit_test(test_broken_confidences_are_told),
        cmocka_unit_test(test_costs_are_kept_and_damaged_files_made_anew),
        cmocka_unit_test(test_costs_of_different_engines_are_different_files),
        cmocka_unit_test(test_costs_are_kept_by_what_computes),
        cmocka_unit_test(test_costs_grow_old),
        cmocka_unit_test(test_temperatures_come_from_the_models_folder),
        cmocka_unit_test(test_temperatures_are_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
