/* What the model writes, read under every cut; and in repair mode arguments are always JSON. */
#include <string.h>

#include "support/cmocka.h"
#include "support/random.h"
#include "support/text_data.h"
#include "text/recipe/parser.h"
#include "text/recipe/value.h"

#define DSML "｜DSML｜"
#define CALL "\n\n<" DSML " calls>\n<" DSML " invoke name=\"f\">\n"
#define PARAMETER(name, kind, value)                                                               \
    "<" DSML " parameter name=\"" name "\" string=\"" kind "\">" value "</" DSML " parameter>\n"
#define END "</" DSML " invoke>\n</" DSML " calls>"

/* All that came out, by kind; calls and their arguments in one text, a line each. */
typedef struct heard {
    di_buffer reasoning, content, calls;
    size_t num_calls;
} heard;

static bool hear(void *context, const di_piece *piece, di_error *err) {
    heard *h = context;
    switch (piece->kind) {
    case DI_PIECE_REASONING:
        return di_buffer_append(&h->reasoning, piece->text.data, piece->text.size, err);
    case DI_PIECE_CONTENT:
        return di_buffer_append(&h->content, piece->text.data, piece->text.size, err);
    case DI_PIECE_CALL:
        return (h->num_calls++ == 0 || di_buffer_append(&h->calls, "\n", 1, err)) &&
               di_buffer_append(&h->calls, piece->text.data, piece->text.size, err) &&
               di_buffer_append(&h->calls, " ", 1, err);
    case DI_PIECE_ARGUMENTS:
    case DI_PIECE_VALUE:
    case DI_PIECE_QUOTE:
        return di_buffer_append(&h->calls, piece->text.data, piece->text.size, err);
    }
    return false;
}

static void forget(heard *h) {
    di_buffer_free(&h->reasoning);
    di_buffer_free(&h->content);
    di_buffer_free(&h->calls);
    *h = (heard){0};
}

static const char *shown(const di_buffer *b) {
    return b->data ? b->data : "";
}

/* Where the next text begins, given where this one does. */
typedef size_t (*cut_fn)(const char *text, size_t size, size_t at, uint64_t *random);

static size_t character_behind(const char *text, size_t size, size_t at) {
    do {
        at++;
    } while (at < size && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

static size_t uncut(const char *text, size_t size, size_t at, uint64_t *random) {
    (void)text, (void)at, (void)random;
    return size;
}

static size_t by_character(const char *text, size_t size, size_t at, uint64_t *random) {
    (void)random;
    return character_behind(text, size, at);
}

static size_t anywhere(const char *text, size_t size, size_t at, uint64_t *random) {
    for (uint32_t n = next_random(random) % 9 + 1; n > 0 && at < size; n--) {
        at = character_behind(text, size, at);
    }
    return at;
}

static int listen(const di_parsing *how, const char *text, cut_fn cut, uint64_t *random,
                  bool complete, heard *h) {
    size_t size = strlen(text), number = 0;
    di_parser *p = di_parser_create(how, hear, h, NULL);
    assert_non_null(p);
    for (size_t at = 0, to; at < size; at = to) {
        to = cut(text, size, at, random);
        assert_true(di_parser_push(p, text + at, to - at, DI_SOURCE_TEXT, number++, NULL));
    }
    assert_true(di_parser_finish(p, complete, NULL));
    int stop = di_parser_stop(p);
    di_parser_destroy(p);
    return stop;
}

static void expect(const di_parsing *how, const char *text, bool complete, const char *reasoning,
                   const char *content, const char *calls) {
    uint64_t random = 7;
    for (int i = 0; i < 40; i++) {
        heard h = {0};
        listen(how, text, i == 0 ? uncut : i == 1 ? by_character : anywhere, &random, complete, &h);
        assert_string_equal(shown(&h.reasoning), reasoning);
        assert_string_equal(shown(&h.content), content);
        assert_string_equal(shown(&h.calls), calls);
        forget(&h);
    }
}

static const di_parsing plain = {.tool_calls = true};
static const di_parsing thinking = {.tool_calls = true, .stage = DI_STAGE_REASONING_START};
static const di_parsing repair = {.tool_calls = true, .repair = true};

static void test_reasoning_content_and_calls_are_told_apart(void **state) {
    (void)state;
    expect(&thinking, "\nplan\n\n</think>\n\nok" CALL PARAMETER("a", "true", "x \"y\"") END, true,
           "plan", "ok", "f {\"a\": \"x \\\"y\\\"\"}");
    expect(&thinking, "plan" CALL END, true, "plan", "", "f {}");
    expect(&plain, "a</think>b<think>", true, "", "ab<think>", "");
    expect(&plain, "a\n\n<" DSML, false, "", "a", "");
    expect(&plain, "a\n\n<｜DS", false, "", "a\n\n<｜DS", "");
}

static void test_raw_values_are_copied_as_the_recipe_does(void **state) {
    (void)state;
    expect(&plain, CALL PARAMETER("n", "false", "{bad") PARAMETER("n", "false", "") END, true, "",
           "", "f {\"n\": {bad, \"n\": }");
    expect(&plain, CALL PARAMETER("a", "true", "x</" DSML " y") END, true, "", "",
           "f {\"a\": \"x\"}");
}

static void test_stop_texts_cut_exactly_and_win_by_their_order(void **state) {
    (void)state;
    static const di_str stops[] = {{"aab", 3}, {"ab c", 4}};
    const di_parsing how = {.stops = stops, .stop_count = 2};
    uint64_t random = 3;
    for (int i = 0; i < 40; i++) {
        heard h = {0};
        assert_int_equal(listen(&how, "xx aaab c yy", anywhere, &random, true, &h), 0);
        assert_string_equal(shown(&h.content), "xx a");
        forget(&h);
    }
    expect(&how, "xaa", true, "", "xaa", "");
}

static void test_tags_that_no_control_token_spelled_are_text(void **state) {
    (void)state;
    heard h = {0};
    di_parser *p = di_parser_create(&thinking, hear, &h, NULL);
    assert_true(di_parser_push(p, "a</think>b", 10, DI_SOURCE_PLAIN, 0, NULL));
    assert_true(di_parser_push(p, "</think>", 8, DI_SOURCE_CONTROL, 1, NULL));
    assert_true(
        di_parser_push(p, "c\n<｜DSML｜ d", strlen("c\n<｜DSML｜ d"), DI_SOURCE_PLAIN, 2, NULL));
    assert_true(di_parser_finish(p, true, NULL));
    assert_string_equal(shown(&h.reasoning), "a</think>b");
    assert_string_equal(shown(&h.content), "c\n<｜DSML｜ d");
    di_parser_destroy(p);
    forget(&h);
}

static void test_stop_texts_are_not_looked_for_in_control_tokens(void **state) {
    (void)state;
    static const di_str stop = {"User", 4};
    const di_parsing how = {.stops = &stop, .stop_count = 1};
    heard h = {0};
    di_parser *p = di_parser_create(&how, hear, &h, NULL);
    assert_true(di_parser_push(p, "<｜User｜>", strlen("<｜User｜>"), DI_SOURCE_CONTROL, 0, NULL));
    assert_int_equal(di_parser_stop(p), -1);
    assert_true(di_parser_push(p, "User", 4, DI_SOURCE_PLAIN, 1, NULL));
    assert_int_equal(di_parser_stop(p), 0);
    di_parser_destroy(p);
    forget(&h);
}

/* ---- repair ---- */

static void test_repair_makes_arguments_json(void **state) {
    (void)state;
    expect(&repair, CALL PARAMETER("a\"b\\", "true", "1") END, true, "", "",
           "f {\"a\\\"b\\\\\": \"1\"}");
    expect(&repair, CALL PARAMETER("a b", "false", " [1, 2] ") END, true, "", "",
           "f {\"a b\":  [1, 2] }");
    expect(&repair, CALL PARAMETER("n", "false", "{bad") PARAMETER("m", "false", "") END, true, "",
           "", "f {\"n\": \"{bad\", \"m\": \"\"}");
    expect(&repair, CALL PARAMETER("n", "false", "NaN") END, true, "", "", "f {\"n\": \"NaN\"}");
}

static void test_repair_ends_values_at_their_own_tag_only(void **state) {
    (void)state;
    expect(&repair, CALL PARAMETER("a", "true", "x</" DSML " y</" DSML " invoke>") END, true, "",
           "", "f {\"a\": \"x</" DSML " y</" DSML " invoke>\"}");
}

static void test_repair_leaves_repeated_parameters_out(void **state) {
    (void)state;
    expect(&repair,
           CALL PARAMETER("a", "true", "1") PARAMETER("a", "false", "2") PARAMETER("b", "true", "3")
               END,
           true, "", "", "f {\"a\": \"1\", \"b\": \"3\"}");
}

static void test_repair_closes_a_call_that_the_model_left_open(void **state) {
    (void)state;
    static const char text[] =
        CALL PARAMETER("a", "true", "1") "<" DSML " parameter name=\"b\" string=\"";
    expect(&repair, text, true, "", "", "f {\"a\": \"1\", \"b\": null}");
    expect(&repair, CALL "<" DSML " parameter name=\"b\" string=\"true\">val", true, "", "",
           "f {\"b\": \"val\"}");
    expect(&repair, CALL "<" DSML " parameter name=\"b\" string=\"false\">[1", true, "", "",
           "f {\"b\": \"[1\"}");
    /* One that was cut off by a limit stays as it is. */
    expect(&repair, CALL "<" DSML " parameter name=\"b\" string=\"true\">val", false, "", "",
           "f {\"b\": \"val");
}

static void test_repair_makes_json_mode_independent_of_cuts(void **state) {
    (void)state;
    const di_parsing how = {.json = true, .repair = true};
    expect(&how, "Here you are: ```json\n{\"k\": \"``\"}\n``` the end", true, "",
           " {\"k\": \"``\"} ", "");
    expect(&how, "no such thing", true, "", " ", "");
}

/* Random texts of all that means something: the cuts change nothing, and repaired arguments parse.
 */
static void test_random_texts_read_the_same_under_all_cuts(void **state) {
    (void)state;
    static const char *const bits[] = {
        "a",
        "b ",
        "\n",
        "\n\n",
        "</think>",
        "<think>",
        "<",
        "</",
        ("<" DSML),
        DSML,
        " calls>\n",
        " invoke name=\"",
        "f\">\n",
        "g\"",
        "END",
        "EN",
        "{",
        "}",
        "[1]",
        "\"",
        "\\",
        "é",
        "漢字",
        "😀",
        "\t",
        " parameter name=\"",
        "k\" string=\"true\">",
        "n\" string=\"false\">",
        "5",
        ("</" DSML " parameter>"),
        ("</" DSML " invoke>"),
        ("</" DSML " calls>"),
        "```json\n",
        "\n```",
        "true\">",
        "string=\"",
    };
    static const di_str stop = {"END", 3};
    uint64_t random = 20261129;
    for (int round = 0; round < 4000; round++) {
        char text[1024] = "";
        di_parsing how = {
            .tool_calls = next_random(&random) % 4 > 0,
            .stage = next_random(&random) % 2 ? DI_STAGE_REASONING_START : DI_STAGE_CHAT,
            .repair = round % 2,
            .stops = &stop,
            .stop_count = next_random(&random) % 2,
        };
        how.json =
            how.repair && next_random(&random) % 4 == 0; /* the recipe's does depend on cuts */
        how.starts_in_tool_calls = how.tool_calls && next_random(&random) % 4 == 0;
        for (uint32_t n = next_random(&random) % 16; n > 0; n--) {
            strcat(text, bits[next_random(&random) % (sizeof bits / sizeof *bits)]);
        }
        heard whole = {0};
        int stopped = listen(&how, text, uncut, &random, true, &whole);
        for (int i = 0; i < 4; i++) {
            heard cut = {0};
            assert_int_equal(
                listen(&how, text, i == 0 ? by_character : anywhere, &random, true, &cut), stopped);
            assert_string_equal(shown(&cut.reasoning), shown(&whole.reasoning));
            assert_string_equal(shown(&cut.content), shown(&whole.content));
            assert_string_equal(shown(&cut.calls), shown(&whole.calls));
            forget(&cut);
        }
        forget(&whole);
    }
}

/* Arguments of the one call in progress, taken together. */
typedef struct collector {
    di_buffer arguments;
    size_t calls, parsed;
} collector;

static void parse_arguments(collector *c) {
    di_pool pool = {0};
    di_value value;
    if (c->calls > 0) {
        if (!di_value_parse(&pool, shown(&c->arguments), c->arguments.size, DI_VALUE_MAX_DEPTH,
                            &value, NULL) ||
            value.type != DI_VALUE_OBJECT) {
            fail_msg("no JSON object: %s", shown(&c->arguments));
        }
        c->parsed++;
    }
    di_pool_free(&pool);
    c->arguments.size = 0;
}

static bool collect(void *context, const di_piece *piece, di_error *err) {
    collector *c = context;
    if (piece->kind == DI_PIECE_CALL) {
        parse_arguments(c);
        c->calls++;
    } else if (piece->kind >= DI_PIECE_ARGUMENTS) {
        return di_buffer_append(&c->arguments, piece->text.data, piece->text.size, err);
    }
    return true;
}

static void test_repaired_arguments_always_parse(void **state) {
    (void)state;
    static const char *const bits[] = {
        "\"",
        "\\",
        "a",
        "k\" string=\"true\">",
        "k\" string=\"false\">",
        "[",
        "1",
        "{}",
        "\n",
        " ",
        "é",
        "\x01",
        "</" DSML,
        "</" DSML " parameter>",
        "<" DSML " parameter name=\"",
        "</" DSML " invoke>",
        "<" DSML " invoke name=\"",
        "f\">",
        "true\">",
        "false\">",
        "nul",
        "\" string=\"",
        "</" DSML "parameter>",
    };
    uint64_t random = 99;
    size_t parsed = 0;
    for (int round = 0; round < 4000; round++) {
        char text[1024] = "<" DSML " invoke name=\"f\">";
        collector c = {0};
        for (uint32_t n = next_random(&random) % 20; n > 0; n--) {
            strcat(text, bits[next_random(&random) % (sizeof bits / sizeof *bits)]);
        }
        di_parser *p = di_parser_create(&repair, collect, &c, NULL);
        assert_true(di_parser_push(p, text, strlen(text), DI_SOURCE_TEXT, 0, NULL));
        assert_true(di_parser_finish(p, true, NULL));
        parse_arguments(&c);
        parsed += c.parsed;
        di_parser_destroy(p);
        di_buffer_free(&c.arguments);
    }
    assert_true(parsed >= 4000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning_content_and_calls_are_told_apart),
        cmocka_unit_test(test_raw_values_are_copied_as_the_recipe_does),
        cmocka_unit_test(test_stop_texts_cut_exactly_and_win_by_their_order),
        cmocka_unit_test(test_tags_that_no_control_token_spelled_are_text),
        cmocka_unit_test(test_stop_texts_are_not_looked_for_in_control_tokens),
        cmocka_unit_test(test_repair_makes_arguments_json),
        cmocka_unit_test(test_repair_ends_values_at_their_own_tag_only),
        cmocka_unit_test(test_repair_leaves_repeated_parameters_out),
        cmocka_unit_test(test_repair_closes_a_call_that_the_model_left_open),
        cmocka_unit_test(test_repair_makes_json_mode_independent_of_cuts),
        cmocka_unit_test(test_random_texts_read_the_same_under_all_cuts),
        cmocka_unit_test(test_repaired_arguments_always_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
