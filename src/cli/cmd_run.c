/* deepinfer run: one question and its answer, or a chat. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "cli/answer.h"
#include "cli/chat.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/spec_report.h"

enum { MAX_QUESTION_BYTES = 64 << 20 };

/* All of standard input, without the newline at its end. */
static bool read_question(di_buffer *question, di_error *err) {
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) {
        if (question->size + n > MAX_QUESTION_BYTES) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "standard input: the question is longer than %d bytes",
                           MAX_QUESTION_BYTES);
        }
        if (!di_buffer_append(question, block, n, err)) {
            return false;
        }
    }
    if (ferror(stdin)) {
        return di_fail_errno(err, "standard input");
    }
    if (question->size > 0 && question->data[question->size - 1] == '\n') {
        question->size--;
    }
    return true;
}

/* From --prompt or standard input. */
static bool get_question(const di_options *o, di_buffer *question, di_error *err) {
    const char *prompt = di_options_text(o, DI_OPT_PROMPT, NULL);
    bool ok = prompt ? di_buffer_append_text(question, prompt, err) : read_question(question, err);
    if (ok && question->size == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: the question is empty",
                       prompt ? "--prompt" : "standard input");
    }
    return ok;
}

static int run_one(di_conversation *c, const di_buffer *question) {
    di_error err = {0};
    di_finish_reason reason;
    if (!di_conversation_ask(c, question->data, question->size, &reason, &err)) {
        return di_cli_fail(&err);
    }
    return reason == DI_FINISH_ABORT ? DI_EXIT_INTERRUPTED : DI_EXIT_WELL;
}

static int run(const di_options *o, di_engine *engine, int effort, const di_buffer *question) {
    di_error err = {0};
    di_conversation c;
    if (!di_conversation_begin(&c, engine, o, di_options_text(o, DI_OPT_SYSTEM, NULL), &err)) {
        return di_cli_fail(&err);
    }
    di_cli_params(o, engine, &c.params);
    c.effort = effort;
    int status =
        question ? run_one(&c, question) : di_chat(&c, di_options_text(o, DI_OPT_SYSTEM, NULL));
    di_conversation_end(&c);
    return status;
}

int di_command_run(const di_options *o) {
    di_error err = {0};
    int effort;
    if (!di_cli_effort(o, &effort, &err)) {
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    di_buffer question = {0};
    bool chat = !o->values[DI_OPT_PROMPT].given && isatty(STDIN_FILENO);
    di_engine *engine = NULL;
    int status;
    if ((!chat && !get_question(o, &question, &err)) ||
        !(engine = di_cli_open_engine(o, 1, 0, &err))) {
        status = di_cli_fail(&err);
    } else {
        status = run(o, engine, effort, chat ? NULL : &question);
        if (o->values[DI_OPT_SPEC_STATS].flag) {
            di_spec_report(engine, stderr);
        }
    }
    di_engine_close(engine);
    di_buffer_free(&question);
    return status;
}
