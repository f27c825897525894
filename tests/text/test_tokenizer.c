/* Encoding against the ids of the `tokenizers` library, and what must hold for any text. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "support/cmocka.h"
#include "support/random.h"
#include "support/text_data.h"
#include "text/split.h"
#include "text/tokenizer.h"

static di_tokenizer *v4;

static void encode(const di_tokenizer *tok, const char *text, size_t size, di_encode_mode mode,
                   di_ids *ids) {
    di_error err = {0};
    ids->count = 0;
    if (!di_tokenizer_encode(tok, text, size, mode, ids, &err)) {
        fail_msg("%s", err.message);
    }
}

static void assert_bytes_come_back(const di_tokenizer *tok, const di_ids *ids, const char *text,
                                   size_t size) {
    size_t at = 0, n;
    for (size_t i = 0; i < ids->count; i++) {
        const char *bytes = di_tokenizer_token_bytes(tok, ids->data[i], &n);
        assert_true(n > 0 && n <= size - at);
        assert_memory_equal(bytes, text + at, n);
        at += n;
    }
    assert_int_equal(at, size);
}

static void check_rows(const di_tokenizer *tok, const char *name, bool lossless) {
    json_t *rows = read_test_rows(name), *row;
    size_t i;
    di_ids ids = {0};
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text"), *plain = json_object_get(row, "plain");
        const char *s = json_string_value(text);
        size_t size = json_string_length(text);
        encode(tok, s, size, DI_ENCODE_ADDED, &ids);
        assert_ids(&ids, json_object_get(row, "ids"), s);
        if (lossless) {
            assert_bytes_come_back(tok, &ids, s, size);
        }
        encode(tok, s, size, DI_ENCODE_PLAIN, &ids);
        if (plain) {
            assert_ids(&ids, plain, s);
        }
        assert_bytes_come_back(tok, &ids, s, size);
    }
    di_ids_free(&ids);
    json_decref(rows);
}

static void test_ids_equal_the_tokenizers_library_on_1500_texts(void **state) {
    (void)state;
    check_rows(v4, "tokenizer-v4/golden.jsonl", true);
}

static void test_ids_equal_the_tokenizers_library_on_adversarial_texts(void **state) {
    (void)state;
    check_rows(v4, "tokenizer-v4/adversarial.jsonl", true);
}

static void test_every_flag_of_added_tokens_acts_as_in_the_tokenizers_library(void **state) {
    (void)state;
    di_tokenizer *tok = open_test_tokenizer("tokenizer-flags");
    check_rows(tok, "tokenizer-flags/golden.jsonl", false);
    di_tokenizer_close(tok);
}

static void test_edge_cases_have_the_ids_of_the_published_vocabulary(void **state) {
    (void)state;
    static const struct {
        const char *text, *ids;
    } cases[] = {
        {"1234567890", "[6895,18009,25744,18]"},
        {"٢٠٢٤", "[76647,82025,76647,152,100]"},
        {"½ Ⅷ ⅓", "[23951,223,23603,103,223,23603,244]"},
        {"  1", "[262,19]"},
        {"   x", "[262,1527]"},
        {"\t\tx", "[200,51669]"},
        {" \n x", "[539,1527]"},
        {"a\r\n  b", "[67,204,201,223,291]"},
        {"...\n\nfoo", "[3108,40897]"},
        {"$abc", "[6,32372]"},
        {"don't", "[20385,1664]"},
        {"e\u0301", "[71,17793]"},
        {"\u263A\uFE0F", "[13155,121,10759]"},
        {"👨\u200D👩", "[25730,104,46088,25730,105]"},
        {"x\u200Dy", "[90,46088,91]"},
        {"龥龦", "[2715,101,2715,102]"},
        {"ｱ", "[5879,112]"},
        {"<｜User｜>", "[30,28217,6756,28217,32]"},
        {"rfid501.go", "[35305,329,19097,68082]"},
        {"1234567", "[6895,18009,25]"},
        {"１２３４５６７", "[127167,25081,33095,31953,41428,47658]"},
    };
    di_ids ids = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *expected = json_loads(cases[i].ids, 0, NULL);
        encode(v4, cases[i].text, strlen(cases[i].text), DI_ENCODE_PLAIN, &ids);
        assert_ids(&ids, expected, cases[i].text);
        json_decref(expected);
    }
    encode(v4, "\0a", 2, DI_ENCODE_PLAIN, &ids);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.data[0], 191);
    assert_int_equal(ids.data[1], 67);
    di_ids_free(&ids);
}

static void test_added_tokens_count_only_when_asked_for(void **state) {
    (void)state;
    const char *text = "a<｜User｜>b<think>";
    int32_t user = di_tokenizer_id(v4, "<｜User｜>"), think = di_tokenizer_id(v4, "<think>");
    assert_true(user > 0 && think > 0 && di_tokenizer_is_added(v4, user));
    assert_false(di_tokenizer_is_special(v4, user));
    assert_true(di_tokenizer_is_special(v4, di_tokenizer_id(v4, "<｜begin▁of▁sentence｜>")));
    assert_int_equal(di_tokenizer_id(v4, "<｜User"), -1);
    assert_int_equal(di_tokenizer_id(v4, ""), -1);
    di_ids ids = {0};
    encode(v4, text, strlen(text), DI_ENCODE_ADDED, &ids);
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.data[1], user);
    assert_int_equal(ids.data[3], think);
    encode(v4, text, strlen(text), DI_ENCODE_PLAIN, &ids);
    for (size_t i = 0; i < ids.count; i++) {
        assert_false(di_tokenizer_is_added(v4, ids.data[i]));
    }
    di_ids_free(&ids);
}

static void test_invalid_utf8_is_refused_with_its_offset(void **state) {
    (void)state;
    di_ids ids = {0};
    di_error err = {0};
    encode(v4, "kept", 4, DI_ENCODE_PLAIN, &ids);
    size_t before = ids.count;
    assert_false(di_tokenizer_encode(v4, "abc\xFFz", 5, DI_ENCODE_PLAIN, &ids, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "offset 3"));
    assert_non_null(strstr(err.message, "0xff"));
    assert_false(di_tokenizer_encode(v4, "ab\xE2\x82", 4, DI_ENCODE_ADDED, &ids, &err));
    assert_non_null(strstr(err.message, "offset 2"));
    assert_int_equal(ids.count, before);
    di_ids_free(&ids);
}

/* Characters of every class that the patterns tell apart, so that random texts meet all turns. */
static size_t random_text(uint64_t *seed, char *out, size_t most) {
    static const char *const units[] = {
        "a",      "Z",      "é",          "\u0301",     "ß",      "字",     "の",
        "・",     "゛",     "一",         "龥",         "龦",     "7",      "٣",
        "½",      "!",      "'",          "#",          "€",      "。",     "\u2019",
        " ",      "  ",     "\t",         "\n",         "\r",     "\v",     "\xC2\x85",
        "\u00A0", "\u3000", "\u2028",     "\u180E",     "\u200B", "\u200D", "\x01",
        "\x7F",   "\uE000", "\U0001F600", "\U00020000", "\u0E01", "\uFFFD", "\u0378"};
    size_t size = 0, count = next_random(seed) % most;
    for (size_t i = 0; i < count; i++) {
        if (next_random(seed) % 8 == 0) { /* any code point at all */
            uint32_t c = next_random(seed) % 0x30000;
            c = c >= 0xD800 && c < 0xE000 ? 'x' : c;
            size += (size_t)di_utf8_encode(c, out + size);
            continue;
        }
        const char *unit = units[next_random(seed) % (sizeof units / sizeof *units)];
        size_t repeat = next_random(seed) % 5 == 0 ? next_random(seed) % 5 + 1 : 1;
        for (size_t r = 0; r < repeat; r++) {
            memcpy(out + size, unit, strlen(unit));
            size += strlen(unit);
        }
    }
    return size;
}

typedef struct piece_list {
    const char *end[4096];
    size_t count;
} piece_list;

static bool note_piece(void *context, const char *piece, size_t size, di_error *err) {
    (void)err;
    piece_list *list = context;
    assert_true(size > 0 && list->count < sizeof list->end / sizeof *list->end);
    list->end[list->count++] = piece + size;
    return true;
}

static void test_matcher_for_the_shipped_patterns_cuts_as_pcre2_does(void **state) {
    (void)state;
    di_splitter s;
    di_error err = {0};
    assert_true(di_splitter_create(&s, di_deepseek_patterns, 3, &err));
    assert_true(s.deepseek);
    static char text[4096];
    static piece_list ours, theirs;
    uint64_t seed = 42;
    for (int round = 0; round < 60000; round++) {
        size_t size = random_text(&seed, text, 24);
        ours.count = theirs.count = 0;
        assert_true(di_split_deepseek(&s.classes, text, size, note_piece, &ours, &err));
        assert_true(di_split_patterns(&s, text, size, note_piece, &theirs, &err));
        assert_int_equal(ours.count, theirs.count);
        assert_memory_equal(ours.end, theirs.end, ours.count * sizeof *ours.end);
    }
    di_splitter_destroy(&s);
}

static void test_other_patterns_go_through_pcre2(void **state) {
    (void)state;
    di_splitter s;
    di_error err = {0};
    const char *const two[] = {"\\p{N}", "\\s+"};
    assert_true(di_splitter_create(&s, two, 2, &err));
    assert_false(s.deepseek);
    piece_list list = {.count = 0};
    const char *text = "ab12 \u00A0c";
    assert_true(di_split(&s, text, strlen(text), note_piece, &list, &err));
    assert_int_equal(list.count, 5); /* ab 1 2 "  " c */
    assert_ptr_equal(list.end[0], text + 2);
    assert_ptr_equal(list.end[3], text + 7);
    di_splitter_destroy(&s);
}

/* FNV-1a over whole ids. */
static uint64_t digest_ids(const di_ids *ids) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < ids->count; i++) {
        h = (h ^ (uint64_t)ids->data[i]) * 0x100000001B3u;
    }
    return h;
}

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A merge loop that looks at all pairs again after each join needs minutes for these. The bound
 * leaves room for sanitizers and slow machines; the ids are the `tokenizers` library's. */
static void test_long_pieces_take_n_log_n_time(void **state) {
    (void)state;
    static const struct {
        const char *unit;
        size_t repeat, count;
        uint64_t digest;
    } cases[] = {{"a", 512 << 10, 65536, 0x5ca69f985fa62325},
                 {"漢", 40000, 40000, 0x655298b20ff4fd65},
                 {"漢字仮名", 10000, 40000, 0xbb73179acf6ac3c5},
                 {" ", 512 << 10, 4096, 0x570f9251ac6d1325},
                 {"=", 512 << 10, 8192, 0x7e8441a5423aa325},
                 {"ab", 256 << 10, 262144, 0x7f71180c7c762325},
                 {"\n", 512 << 10, 32768, 0xc65df024e1642325},
                 {"\u0301", 40000, 40000, 0x9c779a010ab99165}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t each = strlen(cases[i].unit), size = each * cases[i].repeat;
        char *text = malloc(size);
        for (size_t k = 0; k < cases[i].repeat; k++) {
            memcpy(text + k * each, cases[i].unit, each);
        }
        di_ids ids = {0};
        double start = thread_seconds();
        encode(v4, text, size, DI_ENCODE_PLAIN, &ids);
        double seconds = thread_seconds() - start;
        if (seconds > 5) {
            fail_msg("%zu times \"%s\" took %.1f s", cases[i].repeat, cases[i].unit, seconds);
        }
        assert_int_equal(ids.count, cases[i].count);
        assert_true(digest_ids(&ids) == cases[i].digest);
        di_ids_free(&ids);
        free(text);
    }
}

static void *encode_in_thread(void *ok) {
    static const char text[] =
        "Threads share one tokenizer: naïve café, 漢字かな, 12345, \u263A\uFE0F.";
    di_ids first = {0}, again = {0};
    encode(v4, text, strlen(text), DI_ENCODE_ADDED, &first);
    for (int i = 0; i < 200; i++) {
        encode(v4, text, strlen(text), DI_ENCODE_ADDED, &again);
        *(bool *)ok = *(bool *)ok && again.count == first.count &&
                      memcmp(again.data, first.data, first.count * sizeof *first.data) == 0;
    }
    di_ids_free(&first);
    di_ids_free(&again);
    return NULL;
}

static void test_threads_share_one_tokenizer(void **state) {
    (void)state;
    pthread_t threads[4];
    bool ok[4] = {true, true, true, true};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &ok[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(ok[i]);
    }
}

static void test_ids_outside_the_vocabulary_have_no_bytes(void **state) {
    (void)state;
    size_t size = 1;
    assert_int_equal(di_tokenizer_vocab_size(v4), 129280);
    di_tokenizer_token_bytes(v4, -1, &size);
    assert_int_equal(size, 0);
    di_tokenizer_token_bytes(v4, 129280, &size);
    assert_int_equal(size, 0);
    di_tokenizer_token_bytes(v4, INT32_MAX, &size);
    assert_int_equal(size, 0);
}

static int open_v4(void **state) {
    (void)state;
    v4 = open_test_tokenizer("tokenizer-v4");
    return 0;
}

static int close_v4(void **state) {
    (void)state;
    di_tokenizer_close(v4);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_equal_the_tokenizers_library_on_1500_texts),
        cmocka_unit_test(test_ids_equal_the_tokenizers_library_on_adversarial_texts),
        cmocka_unit_test(test_every_flag_of_added_tokens_acts_as_in_the_tokenizers_library),
        cmocka_unit_test(test_edge_cases_have_the_ids_of_the_published_vocabulary),
        cmocka_unit_test(test_added_tokens_count_only_when_asked_for),
        cmocka_unit_test(test_invalid_utf8_is_refused_with_its_offset),
        cmocka_unit_test(test_matcher_for_the_shipped_patterns_cuts_as_pcre2_does),
        cmocka_unit_test(test_other_patterns_go_through_pcre2),
        cmocka_unit_test(test_long_pieces_take_n_log_n_time),
        cmocka_unit_test(test_threads_share_one_tokenizer),
        cmocka_unit_test(test_ids_outside_the_vocabulary_have_no_bytes),
    };
    return cmocka_run_group_tests(tests, open_v4, close_v4);
}
