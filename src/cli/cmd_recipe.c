/* deepinfer recipe: cases of the prompt recipe by lines, in and out. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/lines.h"
#include "cli/recipe_cases.h"

static int run_lines(const di_chat_tokens *tokens, bool server) {
    di_error err = {0};
    di_lines lines;
    di_buffer out = {0};
    int status = di_lines_open(&lines, "-", &err) ? DI_EXIT_WELL : DI_EXIT_FAILED;
    while (status == DI_EXIT_WELL && di_lines_next(&lines, &err)) {
        if (di_lines_blank(&lines)) {
            continue;
        }
        out.size = 0;
        if (!di_recipe_case(tokens, server, lines.text, lines.size, &out, &err)) {
            di_fail_prefix(&err, "%s", lines.where);
            status = DI_EXIT_FAILED;
        } else if (!di_cli_write(out.data, out.size, &err)) {
            status = DI_EXIT_FAILED;
        }
    }
    if (err.code != DI_OK) {
        status = di_cli_fail(&err);
    }
    di_buffer_free(&out);
    di_lines_close(&lines);
    return status;
}

int di_command_recipe(const di_options *o) {
    const char *model = di_options_text(o, DI_OPT_MODEL, NULL);
    const char *file = di_options_text(o, DI_OPT_TOKENIZER, NULL);
    di_error err = {0};
    if (!model == !file) {
        di_fail(&err, DI_ERR_ARGUMENT, "recipe: exactly one of --model and --tokenizer is needed");
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    di_tokenizer *tok = di_tokenizer_open(file ? file : model, &err);
    di_chat_tokens tokens;
    int status = tok && di_chat_tokens_find(&tokens, tok, &err)
                     ? run_lines(&tokens, o->values[DI_OPT_SERVER].flag)
                     : di_cli_fail(&err);
    di_tokenizer_close(tok);
    return status;
}
