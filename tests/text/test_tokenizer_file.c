/* What is wrong with a tokenizer.json, or more than this engine does, is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/text_data.h"
#include "text/regex.h"
#include "text/tokenizer.h"

static char *small; /* tokenizer-flags/tokenizer.json */
static size_t small_size;

static di_tokenizer *parse(const json_t *root, di_error *err) {
    char *text = json_dumps(root, JSON_COMPACT);
    di_tokenizer *tok = di_tokenizer_parse(text, strlen(text), "t.json", err);
    free(text);
    return tok;
}

/* Walks "model/merges/3" in an object. */
static json_t *walk(json_t *at, const char *path, size_t size) {
    while (size > 0) {
        size_t n = strcspn(path, "/");
        n = n < size ? n : size;
        char key[64] = {0};
        memcpy(key, path, n);
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        assert_non_null(at);
        path += n + (n < size);
        size -= n + (n < size);
    }
    return at;
}

/* The small file with the value at `path` replaced (NULL: removed). */
static json_t *changed(const char *path, const char *value) {
    json_t *root = json_loadb(small, small_size, 0, NULL);
    assert_non_null(root);
    const char *slash = strrchr(path, '/'), *key = slash ? slash + 1 : path;
    json_t *parent = walk(root, path, slash ? (size_t)(slash - path) : 0);
    json_t *new = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || new);
    if (json_is_array(parent)) {
        json_array_set_new(parent, strtoul(key, NULL, 10), new);
    } else if (new) {
        json_object_set_new(parent, key, new);
    } else {
        json_object_del(parent, key);
    }
    return root;
}

typedef struct refusal {
    const char *path, *value;
    di_error_code code;
    const char *names; /* what the message must contain */
} refusal;

static void assert_refused(const refusal *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        json_t *root = changed(cases[i].path, cases[i].value);
        di_error err = {0};
        di_tokenizer *tok = parse(root, &err);
        if (tok) {
            fail_msg("%s = %s was accepted", cases[i].path, cases[i].value);
        }
        if (err.code != cases[i].code || !strstr(err.message, cases[i].names) ||
            strncmp(err.message, "t.json: ", 8) != 0) {
            fail_msg("%s = %s: code %d, %s", cases[i].path, cases[i].value, (int)err.code,
                     err.message);
        }
        json_decref(root);
    }
}

static void test_unsupported_features_are_refused_by_name(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"truncation", "{}", DI_ERR_UNSUPPORTED, "truncation"},
        {"padding", "{\"pad_id\":0}", DI_ERR_UNSUPPORTED, "padding"},
        {"future", "1", DI_ERR_UNSUPPORTED, "future"},
        {"normalizer", "{\"type\":\"NFC\"}", DI_ERR_UNSUPPORTED, "NFC"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
         DI_ERR_UNSUPPORTED, "normalizer"},
        {"post_processor", "{\"type\":\"TemplateProcessing\"}", DI_ERR_UNSUPPORTED,
         "TemplateProcessing"},
        {"decoder", "null", DI_ERR_FORMAT, "decoder"},
        {"decoder/type", "\"Metaspace\"", DI_ERR_UNSUPPORTED, "Metaspace"},
        {"model/type", "\"Unigram\"", DI_ERR_UNSUPPORTED, "Unigram"},
        {"model/dropout", "0.1", DI_ERR_UNSUPPORTED, "dropout"},
        {"model/unk_token", "\"<unk>\"", DI_ERR_UNSUPPORTED, "unk_token"},
        {"model/continuing_subword_prefix", "\"##\"", DI_ERR_UNSUPPORTED,
         "continuing_subword_prefix"},
        {"model/end_of_word_suffix", "\"</w>\"", DI_ERR_UNSUPPORTED, "end_of_word_suffix"},
        {"model/byte_fallback", "true", DI_ERR_UNSUPPORTED, "byte_fallback"},
        {"model/ignore_merges", "true", DI_ERR_UNSUPPORTED, "ignore_merges"},
        {"model/cache", "1", DI_ERR_UNSUPPORTED, "cache"},
        {"pre_tokenizer", "null", DI_ERR_FORMAT, "pre_tokenizer"},
        {"pre_tokenizer/type", "\"Digits\"", DI_ERR_UNSUPPORTED, "Digits"},
        {"pre_tokenizer/pretokenizers", "[]", DI_ERR_UNSUPPORTED, "0 steps"},
        {"pre_tokenizer/pretokenizers/0/type", "\"Digits\"", DI_ERR_UNSUPPORTED, "Digits"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", DI_ERR_UNSUPPORTED, "Removed"},
        {"pre_tokenizer/pretokenizers/1/invert", "true", DI_ERR_UNSUPPORTED, "invert"},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\":\" \"}", DI_ERR_UNSUPPORTED,
         "String"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\p{Han}\"", DI_ERR_UNSUPPORTED,
         "\\p{Han}"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a*\"", DI_ERR_UNSUPPORTED, "empty"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a(b\"", DI_ERR_FORMAT, "a(b"},
        {"pre_tokenizer/pretokenizers/2/use_regex", "true", DI_ERR_UNSUPPORTED, "use_regex"},
        {"pre_tokenizer/pretokenizers/2/use_regex", NULL, DI_ERR_UNSUPPORTED, "use_regex"},
        {"pre_tokenizer/pretokenizers/2/add_prefix_space", "true", DI_ERR_UNSUPPORTED,
         "add_prefix_space"},
        {"added_tokens/0/glued", "true", DI_ERR_UNSUPPORTED, "glued"},
    };
    assert_refused(cases, sizeof cases / sizeof *cases);
}

static void test_contradictions_in_the_vocabulary_are_refused(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"model", NULL, DI_ERR_FORMAT, "model"},
        {"model/vocab", "[]", DI_ERR_FORMAT, "vocab"},
        {"model/vocab/the", "-1", DI_ERR_FORMAT, "\"the\""},
        {"model/vocab/the", "\"5\"", DI_ERR_FORMAT, "\"the\""},
        {"model/vocab/the", "4194304", DI_ERR_FORMAT, "\"the\""},
        {"model/vocab/the", "9223372036854775807", DI_ERR_FORMAT, "\"the\""},
        {"model/vocab/the", "0", DI_ERR_FORMAT, "same id 0"},
        {"model/vocab/!", NULL, DI_ERR_FORMAT, "0x21"},
        {"model/vocab/the", NULL, DI_ERR_FORMAT, "\"the\""},
        {"model/merges", "{}", DI_ERR_FORMAT, "merges"},
        {"model/merges/0", "\"t\"", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/0", "\"t h e\"", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/0", "\" h\"", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/0", "[\"t\"]", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/0", "[\"t\",7]", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/0", "[\"t\",\"\"]", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/0", "17", DI_ERR_FORMAT, "entry 0"},
        {"model/merges/1", "[\"x\",\"y\"]", DI_ERR_FORMAT, "\"xy\""},
        {"model/merges/1", "[\"t\",\"h\"]", DI_ERR_FORMAT, "twice"},
        {"added_tokens", "{}", DI_ERR_FORMAT, "added_tokens"},
        {"added_tokens/0", "5", DI_ERR_FORMAT, "entry 0"},
        {"added_tokens/0/id", NULL, DI_ERR_FORMAT, "id"},
        {"added_tokens/0/id", "-1", DI_ERR_FORMAT, "-1"},
        {"added_tokens/0/id", "4194304", DI_ERR_FORMAT, "4194304"},
        {"added_tokens/0/id", "3", DI_ERR_FORMAT, "<both>"},
        {"added_tokens/0/id", "270", DI_ERR_FORMAT, "270"},
        {"added_tokens/0/content", "\"\"", DI_ERR_FORMAT, "empty"},
        {"added_tokens/0/content", "7", DI_ERR_FORMAT, "content"},
        {"added_tokens/0/content", "\"the\"", DI_ERR_FORMAT, "\"the\""},
        {"added_tokens/0/content", "\"<left>\"", DI_ERR_FORMAT, "<left>"},
        {"added_tokens/0/lstrip", "1", DI_ERR_FORMAT, "lstrip"},
    };
    assert_refused(cases, sizeof cases / sizeof *cases);
}

static void test_harmless_spellings_are_accepted(void **state) {
    (void)state;
    static const struct {
        const char *path, *value;
    } cases[] = {
        {"model/continuing_subword_prefix", "\"\""},
        {"model/ignore_merges", NULL},
        {"model/dropout", "0.0"},
        {"model/merges/0", "\"t h\""},
        {"added_tokens", "null"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}"},
        {"post_processor", "{\"type\":\"ByteLevel\",\"trim_offsets\":false}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = changed(cases[i].path, cases[i].value);
        di_error err = {0};
        di_tokenizer *tok = parse(root, &err);
        if (!tok) {
            fail_msg("%s", err.message);
        }
        di_tokenizer_close(tok);
        json_decref(root);
    }
}

static void test_every_truncation_is_refused(void **state) {
    (void)state;
    for (size_t size = 0; size < small_size; size += 1 + size / 40) {
        di_error err = {0};
        assert_null(di_tokenizer_parse(small, size, "t.json", &err));
        assert_non_null(strstr(err.message, "t.json"));
    }
    di_error err = {0};
    assert_null(di_tokenizer_parse("[]", 2, "t.json", &err));
    assert_null(di_tokenizer_open("/nowhere/at/all", &err));
    assert_int_equal(err.code, DI_ERR_IO);
    assert_non_null(strstr(err.message, "/nowhere/at/all"));
}

static void test_patterns_that_oniguruma_reads_differently_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "a.b",    "^a",      "a$",      "\\h",         "\\w",      "\\d",        "\\b",
        "\\1",    "\\x41",   "\\",      "[[:alpha:]]", "[a[b]]",   "[a&&b]",     "[]a]",
        "[^]a]",  "[\\S]",   "a{,3}",   "a{2}+",       "a{2}?",    "a{2}{3}",    "a{",
        "(?i:a)", "(?<x>a)", "(*FAIL)", "(?#x)a",      "\\p{Han}", "\\p{^L}",    "\\p{LC}",
        "\\pL",   "\\p{",    "(?",      "\\R",         "\\Qa\\E",  "\\p{Latin}", "a{99999999999}",
        "x*",     "(?:a|)",  "(?=a)",   "[",           "a(",       "a)",         "*a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        di_error err = {0};
        di_regex *r = di_regex_compile(bad[i], &err);
        if (r) {
            fail_msg("\"%s\" was accepted", bad[i]);
        }
        assert_true(err.code == DI_ERR_UNSUPPORTED || err.code == DI_ERR_FORMAT);
    }
}

static void test_white_space_in_patterns_is_unicodes(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        size_t begin, end;
    } cases[] = {
        {"\\s+", "a\xC2\x85\u2028 b", 1, 7},
        {"\\s", "a\u180E", 0, 0}, /* no white space since Unicode 6.3 */
        {"\\S+", " \u180Ea ", 1, 5},
        {"[\\sx]+", "ax\u3000b", 1, 5},
        {"[^\\s]+", "\u3000ab", 3, 5},
        {"a(?!\\S)", "aba", 2, 3},
    };
    di_error err = {0};
    di_regex_run *run = di_regex_run_create(&err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_regex *r = di_regex_compile(cases[i].pattern, &err);
        if (!r) {
            fail_msg("%s", err.message);
        }
        size_t begin = 0, end = 0;
        int found =
            di_regex_find(r, run, cases[i].text, strlen(cases[i].text), 0, &begin, &end, &err);
        assert_int_equal(found, cases[i].end > 0);
        assert_int_equal(begin, cases[i].begin);
        assert_int_equal(end, cases[i].end);
        di_regex_free(r);
    }
    di_regex_run_free(run);
}

/* Only builds with fault injection can do this; there, no allocation may fail unnoticed or leak. */
static void test_every_failed_allocation_is_reported(void **state) {
    (void)state;
    static const char text[] = "the <both> word 12345 and the rest wholey\n\n字";
    di_error err = {0};
    di_alloc_fail_at(0);
    for (uint64_t n = 1; n < 2000; n++) {
        di_alloc_fail_at(n);
        di_tokenizer *tok = di_tokenizer_parse(small, small_size, "t.json", &err);
        di_ids ids = {0};
        bool ok =
            tok && di_tokenizer_encode(tok, text, sizeof text - 1, DI_ENCODE_ADDED, &ids, &err);
        uint64_t made = di_alloc_fail_at(0);
        if (!ok) {
            assert_int_equal(err.code, DI_ERR_NO_MEMORY);
        }
        di_ids_free(&ids);
        di_tokenizer_close(tok);
        if (made < n) {
            assert_true(ok);
            return;
        }
    }
    fail_msg("more allocations than a tokenizer can need");
}

static int read_small(void **state) {
    (void)state;
    small = read_test_file("tokenizer-flags/tokenizer.json", &small_size);
    return 0;
}

static int free_small(void **state) {
    (void)state;
    di_free(small);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unsupported_features_are_refused_by_name),
        cmocka_unit_test(test_contradictions_in_the_vocabulary_are_refused),
        cmocka_unit_test(test_harmless_spellings_are_accepted),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_patterns_that_oniguruma_reads_differently_are_refused),
        cmocka_unit_test(test_white_space_in_patterns_is_unicodes),
        cmocka_unit_test(test_every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, read_small, free_small);
}
