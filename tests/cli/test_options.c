/* Command line and environment against the option table. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "support/cmocka.h"

enum { MAX_WORDS = 12 };

/* Parses words separated by '~' (so that spaces can be values). */
static bool parse(di_options *o, unsigned command, const char *line, di_error *err) {
    static char copy[512]; /* options borrow from it */
    char *argv[MAX_WORDS];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *at = copy; at && argc < MAX_WORDS;) {
        argv[argc++] = at;
        at = strchr(at, '~');
        if (at) {
            *at++ = 0;
        }
    }
    memset(o, 0, sizeof *o);
    return di_options_parse(o, command, argc, argv, err);
}

static void expect_refused(unsigned command, const char *line, const char *message) {
    di_options o;
    di_error err = {0};
    if (parse(&o, command, line, &err)) {
        fail_msg("%s was accepted", line);
    }
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    assert_string_equal(err.message, message);
}

static void test_all_spellings_of_a_value_are_the_same(void **state) {
    (void)state;
    static const char *const lines[] = {"--model~x y", "--model=x y", "-m~x y", "-mx y"};
    for (size_t i = 0; i < 4; i++) {
        di_options o;
        assert_true(parse(&o, IN_RUN, lines[i], NULL));
        assert_true(o.values[DI_OPT_MODEL].given);
        assert_string_equal(o.values[DI_OPT_MODEL].text, "x y");
    }
}

static void test_values_are_read_by_type(void **state) {
    (void)state;
    di_options o;
    assert_true(parse(&o, IN_RUN,
                      "--temperature=0.25~--top-k~-1~--seed~18446744073709551615~--think~"
                      "--top-p~1~--prompt~--weird",
                      NULL));
    assert_true(o.values[DI_OPT_TEMPERATURE].real == 0.25);
    assert_true(o.values[DI_OPT_TOP_P].real == 1);
    assert_int_equal(o.values[DI_OPT_TOP_K].integer, -1);
    assert_true(o.values[DI_OPT_SEED].seed == UINT64_MAX);
    assert_true(o.values[DI_OPT_THINK].flag);
    assert_string_equal(o.values[DI_OPT_PROMPT].text, "--weird");
    assert_false(o.values[DI_OPT_MIN_P].given);
}

static void test_last_of_repeated_options_counts(void **state) {
    (void)state;
    di_options o;
    assert_true(parse(&o, IN_RUN, "--think~--max-tokens~3~--no-think~--max-tokens=4", NULL));
    assert_true(o.values[DI_OPT_THINK].given && !o.values[DI_OPT_THINK].flag);
    assert_int_equal(o.values[DI_OPT_MAX_TOKENS].integer, 4);
}

static void test_arguments_and_the_double_dash(void **state) {
    (void)state;
    di_options o;
    assert_true(parse(&o, IN_INSPECT, "a~-~--~--model", NULL));
    assert_int_equal(o.num_arguments, 3);
    assert_string_equal(o.arguments[0], "a");
    assert_string_equal(o.arguments[1], "-");
    assert_string_equal(o.arguments[2], "--model");
    assert_true(parse(&o, IN_RUN, "--help~--nonsense", NULL) && o.help);
    assert_true(parse(&o, IN_RUN, "-h", NULL) && o.help);
}

static void test_unknown_options_name_the_nearest(void **state) {
    (void)state;
    expect_refused(IN_RUN, "--temprature~1",
                   "unknown option --temprature; did you mean --temperature?");
    expect_refused(IN_RUN, "--max_tokens=3",
                   "unknown option --max_tokens; did you mean --max-tokens?");
    expect_refused(IN_RUN, "--nothink", "unknown option --nothink; did you mean --no-think?");
    expect_refused(IN_RUN, "--top-q=1", "unknown option --top-q; did you mean --top-p?");
    expect_refused(IN_RUN, "--temp=1", "unknown option --temp; did you mean --temperature?");
    expect_refused(IN_RUN, "--zzzzzzzz", "unknown option --zzzzzzzz");
    expect_refused(IN_RUN, "-Z", "unknown option -Z");
    expect_refused(IN_RUN, "--no-model", "unknown option --no-model");
    expect_refused(IN_TOKENIZE, "--temperature=1",
                   "option --temperature does not belong to this command");
}

static void test_values_out_of_range_name_option_value_and_range(void **state) {
    (void)state;
    expect_refused(IN_RUN, "--temperature=101", "--temperature is '101', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=-1", "--temperature is '-1', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=nan", "--temperature is 'nan', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=-nan", "--temperature is '-nan', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=1e999", "--temperature is '1e999', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=", "--temperature is '', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature= 1", "--temperature is ' 1', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=0x1", "--temperature is '0x1', allowed: 0 to 100");
    expect_refused(IN_RUN, "--temperature=.", "--temperature is '.', allowed: 0 to 100");
    expect_refused(IN_RUN, "--top-p=0", "--top-p is '0', allowed: above 0, up to 1");
    expect_refused(IN_RUN, "--top-k=0", "--top-k is '0', allowed: -1, or 1 to 2147483647");
    expect_refused(IN_RUN, "--top-k=2x", "--top-k is '2x', allowed: -1, or 1 to 2147483647");
    expect_refused(IN_RUN, "--max-tokens=9223372036854775808",
                   "--max-tokens is '9223372036854775808', allowed: 1 to 2147483647");
    expect_refused(IN_RUN, "--seed=-1", "--seed is '-1', allowed: 0 to 18446744073709551615");
    expect_refused(IN_RUN, "--seed=18446744073709551616",
                   "--seed is '18446744073709551616', allowed: 0 to 18446744073709551615");
    expect_refused(IN_RUN, "--device=gpu",
                   "--device is 'gpu', allowed: cpu or cuda[:N] or auto or ref");
    expect_refused(IN_RUN, "--backend=gpu",
                   "--backend is 'gpu', allowed: cpu or cuda[:N] or auto or ref");
    expect_refused(IN_RUN, "--backend=cpu|ref",
                   "--backend is 'cpu|ref', allowed: cpu or cuda[:N] or auto or ref");
    expect_refused(IN_RUN,
                   "--backend=", "--backend is '', allowed: cpu or cuda[:N] or auto or ref");
    expect_refused(IN_RUN, "--model=", "--model is empty, a path is needed");
    expect_refused(IN_RUN, "--seed", "option --seed needs a value: N");
    expect_refused(IN_RUN, "-m", "option -m needs a value: DIR");
    expect_refused(IN_RUN, "--think=1", "option --think takes no value, '1' was given");
    expect_refused(IN_RUN, "a~b~c~d~e", "unexpected argument 'e'");
}

static void test_command_line_beats_the_environment(void **state) {
    (void)state;
    char top_k[] = "DEEPINFER_TOP_K=7", think[] = "DEEPINFER_THINK=yes",
         empty[] = "DEEPINFER_SEED=", other[] = "DEEPINFER_TOP_KK=x";
    char *environment[] = {top_k, think, empty, other, NULL};
    di_options o;
    assert_true(parse(&o, IN_RUN, "--no-think", NULL));
    assert_true(di_options_read_environment(&o, IN_RUN, environment, NULL));
    assert_int_equal(o.values[DI_OPT_TOP_K].integer, 7);
    assert_false(o.values[DI_OPT_THINK].flag);
    assert_false(o.values[DI_OPT_SEED].given);
}

static void test_environment_is_checked_like_the_command_line(void **state) {
    (void)state;
    char bad[] = "DEEPINFER_TOP_P=2", flag[] = "DEEPINFER_THINK=maybe";
    char *one[] = {bad, NULL}, *two[] = {flag, NULL};
    di_options o = {0};
    di_error err = {0};
    assert_false(di_options_read_environment(&o, IN_RUN, one, &err));
    assert_string_equal(err.message, "DEEPINFER_TOP_P is '2', allowed: above 0, up to 1");
    assert_false(di_options_read_environment(&o, IN_RUN, two, &err));
    assert_string_equal(err.message,
                        "DEEPINFER_THINK is 'maybe', allowed: 1 or 0 (yes, no, true, false)");
    assert_true(di_options_read_environment(&o, IN_VERSION, one, &err)); /* not its business */
}

static char warnings[512];

static void collect(const char *message) {
    strncat(warnings, message, sizeof warnings - strlen(warnings) - 1);
    strncat(warnings, "\n", sizeof warnings - strlen(warnings) - 1);
}

static void test_unknown_variables_are_warned_of(void **state) {
    (void)state;
    char a[] = "DEEPINFER_TEMPRATURE=1", b[] = "DEEPINFER_SEED=1", c[] = "PATH=/bin",
         d[] = "DEEPINFER_MARKDOWN=x";
    char *environment[] = {a, b, c, d, NULL};
    warnings[0] = 0;
    di_options_warn_unknown(environment, collect);
    assert_string_equal(warnings, "environment variable DEEPINFER_TEMPRATURE is not known; did you "
                                  "mean DEEPINFER_TEMPERATURE?\n"
                                  "environment variable DEEPINFER_MARKDOWN is not known\n");
}

static void test_table_is_free_of_contradictions(void **state) {
    (void)state;
    for (int a = 0; a < DI_NUM_OPTIONS; a++) {
        const di_option *o = &di_option_table[a];
        assert_true(o->commands != 0 && *o->help);
        assert_true((o->type == DI_OPTION_FLAG) == (*o->metavar == 0));
        assert_true(strncmp(o->name, "no-", 3) != 0 && strcmp(o->name, "help") != 0);
        assert_true(o->letter != 'h');
        for (int b = 0; b < a; b++) {
            const di_option *p = &di_option_table[b];
            assert_true(strcmp(o->name, p->name) != 0);
            assert_true(!o->letter || o->letter != p->letter);
        }
    }
    unsigned bits = 0;
    for (int i = 0; i < di_num_commands; i++) {
        const di_command *c = &di_command_table[i];
        assert_true(c->bit && !(bits & c->bit) && c->run);
        bits |= c->bit;
        for (int r = 0; r < c->num_required; r++) {
            assert_true(di_option_table[c->required[r]].commands & c->bit);
        }
    }
}

static void test_edit_distance(void **state) {
    (void)state;
    assert_int_equal(di_edit_distance("", ""), 0);
    assert_int_equal(di_edit_distance("abc", ""), 3);
    assert_int_equal(di_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(di_edit_distance("generate", "genreate"), 1);
    assert_int_equal(di_edit_distance("ca", "abc"), 3);
    const char *const names[] = {"run", "logits", "generate"};
    assert_string_equal(di_suggest("genrate", names, 3), "generate");
    assert_string_equal(di_suggest("rnu", names, 3), "run");
    assert_null(di_suggest("banana", names, 3));
    char endless[300];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    assert_null(di_suggest(endless, names, 3));
    assert_string_equal(di_command_suggest("tokenise"), "tokenize");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_spellings_of_a_value_are_the_same),
        cmocka_unit_test(test_values_are_read_by_type),
        cmocka_unit_test(test_last_of_repeated_options_counts),
        cmocka_unit_test(test_arguments_and_the_double_dash),
        cmocka_unit_test(test_unknown_options_name_the_nearest),
        cmocka_unit_test(test_values_out_of_range_name_option_value_and_range),
        cmocka_unit_test(test_command_line_beats_the_environment),
        cmocka_unit_test(test_environment_is_checked_like_the_command_line),
        cmocka_unit_test(test_unknown_variables_are_warned_of),
        cmocka_unit_test(test_table_is_free_of_contradictions),
        cmocka_unit_test(test_edit_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
