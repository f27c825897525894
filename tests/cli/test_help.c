/* What is made from the tables of options and commands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/help.h"
#include "support/cmocka.h"

/* What `print` prints, in memory for free(). */
static char *printed(void (*print)(FILE *out)) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    print(out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void test_options_page_is_up_to_date(void **state) {
    (void)state;
    char *wanted = printed(di_help_markdown), *found;
    size_t size;
    di_error err = {0};
    if (!di_file_read("docs/options.md", 1 << 20, &found, &size, &err)) {
        fail_msg("%s", err.message);
    }
    if (strcmp(wanted, found) != 0) {
        fail_msg("docs/options.md is old: deepinfer help --markdown > docs/options.md");
    }
    di_free(found);
    free(wanted);
}

/* Every option and every variable stands in each of the texts that are to list them all. */
static void test_every_option_is_in_the_manual_and_the_completion(void **state) {
    (void)state;
    char *man = printed(di_help_man), *bash = printed(di_help_bash);
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *o = &di_option_table[id];
        char name[64], dashed[80];
        snprintf(dashed, sizeof dashed, "--%s", o->name);
        assert_non_null(strstr(bash, dashed));
        char escaped[128] = "\\-\\-";
        for (const char *c = o->name; *c; c++) {
            strcat(escaped, *c == '-' ? "\\-" : (char[]){*c, 0});
        }
        assert_non_null(strstr(man, escaped));
        di_option_env_name(o, name);
        assert_true((strstr(man, name) != NULL) == o->env);
    }
    free(man);
    free(bash);
}

static void test_help_of_a_command_names_its_options_and_no_others(void **state) {
    (void)state;
    for (int i = 0; i < di_num_commands; i++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        di_help_command(out, &di_command_table[i]);
        fclose(out);
        for (int id = 0; id < DI_NUM_OPTIONS; id++) {
            const di_option *o = &di_option_table[id];
            char name[64];
            snprintf(name, sizeof name, "--%s%s%s\n", o->name, *o->metavar ? " " : "",
                     *o->metavar ? o->metavar : "");
            if (o->type == DI_OPTION_FLAG) {
                snprintf(name, sizeof name, "--%s, --no-%s\n", o->name, o->name);
            }
            bool belongs = (o->commands & di_command_table[i].bit) != 0;
            assert_true((strstr(text, name) != NULL) == belongs);
        }
        free(text);
    }
}

static void test_lines_of_help_fit_eighty_columns(void **state) {
    (void)state;
    for (int i = 0; i < di_num_commands; i++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        di_help_command(out, &di_command_table[i]);
        fclose(out);
        for (const char *line = text; *line;) {
            size_t length = strcspn(line, "\n");
            if (length > 80) {
                fail_msg("%s: %.*s", di_command_table[i].name, (int)length, line);
            }
            line += length + (line[length] == '\n');
        }
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_page_is_up_to_date),
        cmocka_unit_test(test_every_option_is_in_the_manual_and_the_completion),
        cmocka_unit_test(test_help_of_a_command_names_its_options_and_no_others),
        cmocka_unit_test(test_lines_of_help_fit_eighty_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
