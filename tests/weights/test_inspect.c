/* inspect: the sizes of the full-size model against the published ones, and every fault in one go.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/model_files.h"
#include "weights/bind.h"
#include "weights/inspect.h"

#define INDEX  "model.safetensors.index.json"
#define BODY   "model-00001-of-00003.safetensors"
#define TABLES "model-00003-of-00003.safetensors"

/* The report, to be free()d. */
static char *report(const char *folder, di_inspect_options o, size_t *num_faults) {
    char *text = NULL;
    size_t size;
    di_error err;
    FILE *out = open_memstream(&text, &size);
    if (!di_inspect(folder, &o, out, num_faults, &err)) {
        fail_msg("%s", err.message);
    }
    fclose(out);
    return text;
}

static json_t *json_report(const char *folder, di_inspect_options o, size_t *num_faults) {
    json_error_t e;
    o.json = true;
    char *text = report(folder, o, num_faults);
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!value) {
        fail_msg("the report is no JSON: %s (line %d)", e.text, e.line);
    }
    free(text);
    return value;
}

static int64_t number(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_is_integer(value) ? json_integer_value(value) : (int64_t)json_real_value(value);
}

/* The element of an array of objects whose `key` is `name`. */
static json_t *find(const json_t *array, const char *key, const char *name) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t *element = json_array_get(array, i);
        if (strcmp(json_string_value(json_object_get(element, key)), name) == 0) {
            return element;
        }
    }
    fail_msg("no %s is '%s'", key, name);
    return NULL;
}

/* ---- the full-size model --------------------------------------------------------------------- */

static void test_the_full_size_model_has_the_published_sizes(void **state) {
    (void)state;
    static const struct {
        const char *part;
        int64_t elements, bytes;
    } parts[] = {
        {"routed experts", 543581798400, 288777830400},
        {"attention projections, sinks", 5064624640, 5069578240},
        {"shared experts", 1415577600, 1416960000},
        {"embed + head", 1323827200, 2647654400},
        {"engram wkv, q/k weights", 314654720, 315043840},
        {"router", 78673920, 157409280},
        {"indexers", 43516416, 45130752},
        {"hyper-connections", 39323760, 157295040},
        {"compressors", 18352128, 36704256},
        {"norms", 486400, 972800},
        {"engram tables", 196613849600, 202758032400},
        {"DSpark draft stages", 14225362530, 7932874632},
        {"vision + aligner", 485268480, 970536960},
    };
    static const struct {
        const char *format;
        int64_t elements, bytes;
    } formats[] = {
        {"BF16", 1976441856, 2 * INT64_C(1976441856)},
        {"F32", 42307282, 4 * INT64_C(42307282)},
        {"F8_E4M3", 204015223296, 204015223296},
        {"FP4 (I8)", 557171343360, 278585671680},
        {"F8_E8M0 scales", 0, 23563015184},
    };
    size_t faults;
    char *folder = files_testdata("flash");
    json_t *r = json_report(folder, (di_inspect_options){0}, &faults);
    assert_int_equal(faults, 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        json_t *size = find(json_object_get(r, "sizes"), "part", parts[i].part);
        assert_int_equal(number(size, "elements"), parts[i].elements);
        assert_int_equal(number(size, "bytes"), parts[i].bytes);
    }
    assert_int_equal(json_array_size(json_object_get(r, "sizes")), sizeof parts / sizeof *parts);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        json_t *size = find(json_object_get(r, "formats"), "format", formats[i].format);
        assert_int_equal(number(size, "elements"), formats[i].elements);
        assert_int_equal(number(size, "bytes"), formats[i].bytes);
    }
    json_t *backbone = json_object_get(r, "backbone"), *total = json_object_get(r, "total");
    assert_int_equal(number(backbone, "elements"), 551880835184);
    assert_int_equal(number(backbone, "bytes"), 298624579008);
    assert_int_equal(number(total, "tensors"), 96085);
    assert_int_equal(number(total, "elements"), 763205315794);
    assert_int_equal(number(total, "bytes"), 510286023000);
    json_t *memory = json_object_get(r, "memory");
    assert_int_equal(number(memory, "weight_bytes"), 510286023000);
    assert_int_equal(number(memory, "cache_bytes_per_token"), 890);
    /* 43 rings of 128 rows of 528 bytes, 3 open groups of 2 x 512 floats */
    assert_int_equal(number(memory, "state_bytes_per_sequence"), 43 * 128 * 528 + 3 * 4096);
    assert_int_equal(json_array_size(json_object_get(r, "files")), 48);
    json_decref(r);
    free(folder);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs first, so that what other tests took does not count. */
static void test_the_full_size_model_opens_in_little_memory(void **state) {
    (void)state;
    char *folder = files_testdata("flash");
    double start = seconds();
    di_error err;
    di_weights *w = di_weights_open(folder, &err);
    double opened = seconds();
    if (!w) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(w->checkpoint->num_tensors, 96085);
    assert_int_equal(w->layers[14].engram.embed.shape[0], 384016682);
    di_weights_close(w);
    free(report(folder, (di_inspect_options){.tensors = true}, NULL));
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    print_message("opened in %.2f s, inspected in %.2f s, at most %ld MB in all\n", opened - start,
                  seconds() - opened, usage.ru_maxrss >> 10);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(usage.ru_maxrss < 300 << 10);
#endif
    free(folder);
}

static void test_the_full_size_folder_takes_little_disk(void **state) {
    (void)state;
    char *folder = files_testdata("flash");
    int64_t disk = 0, apparent = 0;
    for (int i = 1; i <= 48; i++) {
        char name[64];
        struct stat st;
        snprintf(name, sizeof name, "model-%05d-of-00048.safetensors", i);
        assert_int_equal(stat(files_path(folder, name), &st), 0);
        disk += (int64_t)st.st_blocks * 512;
        apparent += st.st_size;
    }
    assert_true(apparent > 510286023000);
    assert_true(disk < 64 << 20);
    free(folder);
}

/* make-checkpoint keeps a list of tensors of its own; the engine's must be the same for any model.
 */
static void test_both_lists_of_tensors_agree_on_other_models(void **state) {
    (void)state;
    static const char *const names[] = {"tiny", "wide", "deep"};
    for (int i = 0; i < 3; i++) {
        char command[512], config[128];
        char *folder = files_folder(), *made = files_testdata(names[i]);
        snprintf(config, sizeof config, "tools/golden/configs/%s.json", names[i]);
        snprintf(command, sizeof command,
                 "tools/make-checkpoint %s --config %s --shards 5 >/dev/null", folder, config);
        assert_int_equal(system(command), 0);
        size_t faults;
        json_t *a = json_report(folder, (di_inspect_options){0}, &faults);
        assert_int_equal(faults, 0);
        json_t *b = json_report(made, (di_inspect_options){0}, &faults);
        assert_true(json_equal(json_object_get(a, "sizes"), json_object_get(b, "sizes")));
        json_decref(a);
        json_decref(b);
        free(made);
        files_remove(folder);
    }
}

/* ---- reports --------------------------------------------------------------------------------- */

static void test_a_sound_model_is_reported_without_faults(void **state) {
    size_t faults = 1;
    char *text = report(*state, (di_inspect_options){0}, &faults);
    assert_int_equal(faults, 0);
    assert_non_null(strstr(text, "No faults"));
    assert_non_null(strstr(text, "hidden_size"));
    assert_non_null(strstr(text, "layers.0.attn.wq_a.weight"));
    assert_null(strstr(text, "layers.1.attn.wq_a.weight"));
    free(text);
    text = report(*state, (di_inspect_options){.tensors = true}, &faults);
    assert_non_null(strstr(text, "layers.1.attn.wq_a.weight"));
    free(text);
}

static void test_listed_tensors_are_where_the_file_has_them(void **state) {
    shard_parts s;
    shard_read(&s, files_path(*state, BODY));
    json_t *r = json_report(*state, (di_inspect_options){.tensors = true}, NULL);
    json_t *tensors = json_object_get(r, "tensors");
    assert_int_equal(json_array_size(tensors), number(json_object_get(r, "total"), "tensors"));
    json_t *t = find(tensors, "name", "layers.6.ffn.experts.5.w3.weight");
    json_t *entry = json_object_get(s.header, "layers.6.ffn.experts.5.w3.weight");
    int64_t begin = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
    assert_int_equal(number(t, "offset"), (s.data - s.file) + begin);
    assert_int_equal(number(t, "bytes"), 64 * 64);
    assert_string_equal(json_string_value(json_object_get(t, "file")), BODY);
    assert_string_equal(json_string_value(json_object_get(t, "part")), "routed experts");
    assert_true(json_equal(json_object_get(t, "shape"), json_object_get(entry, "shape")));
    json_decref(r);
    shard_free(&s);
}

static void test_every_fault_is_listed(void **state) {
    json_t *config = files_read_json(files_path(*state, "config.json"));
    json_object_set_new(json_object_get(config, "text_config"), "o_lora_rank", json_integer(64));
    files_write_json(*state, "config.json", config);
    json_decref(config);
    assert_int_equal(remove(files_path(*state, TABLES)), 0);
    shard_parts s;
    shard_read(&s, files_path(*state, BODY));
    json_object_set_new(json_object_get(s.header, "layers.4.hc_attn_fn"), "dtype",
                        json_string("F33"));
    json_t *entry = json_object_get(s.header, "layers.1.attn.attn_sink");
    json_object_set(s.header, "stranger", entry);
    json_object_del(s.header, "layers.1.attn.attn_sink");
    s.data[json_integer_value(json_array_get(
               json_object_get(json_object_get(s.header, "layers.0.attn_norm.weight"),
                               "data_offsets"),
               1)) -
           1] = 0x7f;
    s.data[json_integer_value(json_array_get(
               json_object_get(json_object_get(s.header, "layers.0.attn_norm.weight"),
                               "data_offsets"),
               1)) -
           2] = 0xff;
    shard_write(&s, *state, BODY);
    shard_free(&s);

    static const char *const expected[] = {
        (TABLES ": No such file"),
        "layers.4.hc_attn_fn: dtype 'F33' is not known",
        "stranger is not in the index",
        "layers.1.attn.attn_sink should be here by the index, but is not",
        "total_size",
        "layers.0.attn.wo_a.weight is F8_E4M3 [64, 128], but must be F8_E4M3 [128, 128]",
        "layers.7.attn.wo_b.weight is F8_E4M3 [128, 64], but must be F8_E4M3 [128, 128]",
        "layers.2.engram.embed.scale (F8_E8M0 [3424, 1]) is missing",
        "stranger is not a tensor of this model",
        "layers.0.attn_norm.weight: NaN or infinity at file offset",
    };
    size_t faults;
    char *text = report(*state, (di_inspect_options){0}, &faults);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        if (!strstr(text, expected[i])) {
            fail_msg("the report does not say '%s':\n%s", expected[i], text);
        }
    }
    free(text);
    size_t in_json;
    json_t *r = json_report(*state, (di_inspect_options){0}, &in_json);
    assert_int_equal(faults, in_json);
    assert_int_equal(number(r, "num_faults"), faults);
    assert_int_equal(json_array_size(json_object_get(r, "faults")), faults);
    json_decref(r);
}

static void test_every_bad_name_in_an_index_is_listed(void **state) {
    json_t *index = files_read_json(files_path(*state, INDEX));
    json_t *map = json_object_get(index, "weight_map");
    json_object_set_new(map, "norm.weight", json_string("../x.safetensors"));
    json_object_set_new(map, "head.weight", json_object());
    json_object_set_new(map, "embed.weight", json_string(""));
    files_write_json(*state, INDEX, index);
    json_decref(index);
    size_t faults;
    char *text = report(*state, (di_inspect_options){0}, &faults);
    assert_int_equal(faults, 2 * 3); /* what has no valid entry counts as not in the index too */
    assert_non_null(strstr(text, "norm.weight lies in '../x.safetensors'"));
    assert_non_null(strstr(text, "head.weight is an object, a file name expected"));
    assert_non_null(strstr(text, "embed.weight lies in ''"));
    assert_non_null(strstr(text, "embed.weight is not in the index"));
    free(text);
}

static void test_a_broken_config_does_not_hide_the_files(void **state) {
    size_t faults;
    files_write_text(*state, "config.json", "{}");
    json_t *r = json_report(*state, (di_inspect_options){0}, &faults);
    assert_int_equal(faults, 1);
    assert_null(json_object_get(r, "config"));
    assert_int_equal(json_array_size(json_object_get(r, "files")), 3);
    json_decref(r);
}

static void test_an_empty_folder_is_all_faults(void **state) {
    (void)state;
    char *folder = files_folder();
    size_t faults;
    char *text = report(folder, (di_inspect_options){0}, &faults);
    assert_int_equal(faults, 2);
    assert_non_null(strstr(text, "config.json"));
    assert_non_null(strstr(text, "holds neither"));
    free(text);
    json_decref(json_report(folder, (di_inspect_options){.tensors = true}, &faults));
    files_remove(folder);
}

static void test_only_a_check_reads_the_experts(void **state) {
    shard_parts s;
    shard_read(&s, files_path(*state, BODY));
    json_t *entry = json_object_get(s.header, "layers.3.ffn.experts.1.w1.scale");
    s.data[json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0))] = 255;
    shard_write(&s, *state, BODY);
    shard_free(&s);
    size_t faults;
    free(report(*state, (di_inspect_options){0}, &faults));
    assert_int_equal(faults, 0);
    char *text = report(*state, (di_inspect_options){.check = true}, &faults);
    assert_int_equal(faults, 1);
    assert_non_null(strstr(text, "layers.3.ffn.experts.1.w1.scale: NaN scale"));
    free(text);
}

static void test_what_is_no_folder_or_cannot_be_written_is_an_error(void **state) {
    di_error err;
    di_inspect_options o = {0};
    assert_false(di_inspect(files_path(*state, "none"), &o, stdout, NULL, &err));
    assert_int_equal(err.code, DI_ERR_IO);
    assert_false(di_inspect(files_path(*state, BODY), &o, stdout, NULL, &err));
    assert_non_null(strstr(err.message, "is not a folder"));
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        assert_false(di_inspect(*state, &o, full, NULL, &err));
        assert_int_equal(err.code, DI_ERR_IO);
        o.json = true;
        assert_false(di_inspect(*state, &o, full, NULL, &err));
        assert_int_equal(err.code, DI_ERR_IO);
        fclose(full);
    }
}

#ifdef DI_FAULTS
static void test_any_allocation_may_fail(void **state) {
    assert_int_equal(remove(files_path(*state, TABLES)), 0); /* so that faults are kept too */
    FILE *out = fopen("/dev/null", "w");
    di_inspect_options o = {0};
    size_t num_faults;
    di_alloc_fail_at(0);
    assert_true(di_inspect(*state, &o, out, &num_faults, NULL));
    uint64_t count = di_alloc_fail_at(0);
    for (uint64_t n = 1; n <= count; n++) {
        di_error err = {0};
        di_alloc_fail_at(n);
        bool ok = di_inspect(*state, &o, out, &num_faults, &err);
        di_alloc_fail_at(0);
        assert_false(ok);
        assert_int_equal(err.code, DI_ERR_NO_MEMORY);
    }
    fclose(out);
}
#endif

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, files_copy_tiny, files_remove_copy)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_full_size_model_opens_in_little_memory),
        cmocka_unit_test(test_the_full_size_model_has_the_published_sizes),
        cmocka_unit_test(test_the_full_size_folder_takes_little_disk),
        cmocka_unit_test(test_both_lists_of_tensors_agree_on_other_models),
        TEST(test_a_sound_model_is_reported_without_faults),
        TEST(test_listed_tensors_are_where_the_file_has_them),
        TEST(test_every_fault_is_listed),
        TEST(test_every_bad_name_in_an_index_is_listed),
        TEST(test_a_broken_config_does_not_hide_the_files),
        TEST(test_an_empty_folder_is_all_faults),
        TEST(test_only_a_check_reads_the_experts),
        TEST(test_what_is_no_folder_or_cannot_be_written_is_an_error),
#ifdef DI_FAULTS
        TEST(test_any_allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
