/* deepinfer generate: requests by lines in, answers by lines out. Prints and reads; what a line may
 * say is engine/request_json.c's matter. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/lines.h"
#include "cli/progress.h"
#include "engine/request_json.h"

typedef struct job {
    di_engine *engine;
    di_request_params defaults;
    int effort;
    di_lines lines;
    di_writer out;
    di_progress progress;
    int64_t answered, failed, tokens;
} job;

static bool on_output(void *user, const di_output *out) {
    job *j = user;
    j->tokens += (int64_t)out->num_token_ids;
    di_progress_count(&j->progress, j->answered + j->failed, j->tokens);
    return !di_signals_interrupted();
}

/* One line of output; takes the object. */
static bool write_object(job *j, json_t *object, di_error *err) {
    char *text = object ? json_dumps(object, 0) : NULL;
    json_decref(object);
    if (!text) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the result", j->lines.where);
    }
    size_t length = strlen(text);
    text[length] = '\n'; /* in the terminator's place: it is freed next */
    bool ok = di_writer_write(&j->out, text, length + 1, err);
    free(text);
    if (!j->out.path) { /* whoever reads a pipe waits for this line */
        ok = ok && di_cli_flush(err);
    }
    return ok;
}

static const char *code_name(di_error_code code) {
    switch (code) {
    case DI_ERR_ARGUMENT:
    case DI_ERR_FORMAT:
        return "invalid_request";
    case DI_ERR_UNSUPPORTED:
        return "unsupported";
    case DI_ERR_NO_MEMORY:
        return "no_memory";
    default:
        return "internal";
    }
}

static bool write_error(job *j, int64_t index, const di_error *cause, di_error *err) {
    j->failed++;
    return write_object(j,
                        json_pack("{s:I, s:{s:s, s:s}}", "index", (json_int_t)index, "error",
                                  "code", code_name(cause->code), "message", cause->message),
                        err);
}

static bool write_result(job *j, int64_t index, const di_result *r, di_error *err) {
    json_int_t prompt_tokens = r->prompt_tokens, completion_tokens = r->completion_tokens;
    json_int_t total_tokens = prompt_tokens + completion_tokens;
    json_t *ids = json_array();
    for (size_t i = 0; ids && i < r->num_token_ids; i++) {
        json_array_append_new(ids, json_integer(r->token_ids[i]));
    }
    j->answered++;
    /* "o" takes ids, and NULL makes the whole NULL */
    return write_object(
        j,
        json_pack("{s:I, s:o, s:s%, s:s, s:{s:I, s:I, s:I}}", "index", (json_int_t)index,
                  "token_ids", ids, "text", r->text, r->text_bytes, "finish_reason",
                  di_finish_reason_name(r->finish_reason), "usage", "prompt_tokens", prompt_tokens,
                  "completion_tokens", completion_tokens, "total_tokens", total_tokens),
        err);
}

/* NULL with *cause when the line cannot be answered. */
static di_result *answer(job *j, di_error *cause) {
    di_json_request request = {.params = j->defaults};
    di_prompt_init(&request.prompt, sizeof request.prompt);
    request.prompt.effort = j->effort;
    json_t *object =
        di_json_parse_text(j->lines.text, j->lines.size, DI_JSON_MAX_DEPTH, j->lines.where, cause);
    di_result *result = NULL;
    if (object && di_json_request_read(&request, object, j->lines.where, cause)) {
        result = di_generate(j->engine, &request.prompt, &request.params, on_output, j, cause);
        if (!result) {
            di_fail_prefix(cause, "%s", j->lines.where);
        }
    }
    di_json_request_clear(&request);
    json_decref(object);
    return result;
}

static bool interrupted(const job *j, di_error *err) {
    return di_fail(err, DI_ERR_CANCELLED, "stopped by Ctrl-C%s",
                   j->out.path ? ", nothing was written" : "");
}

static bool answer_line(job *j, int64_t index, di_error *err) {
    di_error cause = {0};
    di_result *result = answer(j, &cause);
    bool ok;
    if (di_signals_interrupted()) {
        ok = interrupted(j, err);
    } else if (result) {
        ok = write_result(j, index, result, err);
    } else {
        ok = write_error(j, index, &cause, err);
    }
    di_result_free(result);
    return ok;
}

/* An index counts the lines that hold something, from 0. */
static bool answer_all(job *j, di_error *err) {
    di_error ended = {0};
    for (int64_t index = 0; di_lines_next(&j->lines, &ended);) {
        if (!di_lines_blank(&j->lines) && !answer_line(j, index++, err)) {
            return false;
        }
    }
    if (di_signals_interrupted()) {
        return interrupted(j, err);
    }
    if (ended.code != DI_OK) {
        *err = ended;
        return false;
    }
    return true;
}

static bool run_job(job *j, const di_options *o, FILE *in, const char *in_name, di_error *err) {
    di_cli_params(o, j->engine, &j->defaults);
    if (!di_writer_open(&j->out, di_options_text(o, DI_OPT_OUTPUT, "-"), err)) {
        return false;
    }
    di_signals_guard(j->out.temporary);
    di_lines_open(&j->lines, in, in_name);
    di_progress_begin(&j->progress, "answered", o->values[DI_OPT_QUIET].flag);
    bool ok = answer_all(j, err);
    di_progress_end(&j->progress);
    di_lines_close(&j->lines);
    if (ok) {
        ok = di_writer_commit(&j->out, err);
    } else {
        di_writer_abort(&j->out);
    }
    di_signals_guard(NULL);
    return ok;
}

int di_command_generate(const di_options *o) {
    di_error err = {0};
    int effort;
    if (!di_cli_effort(o, &effort, &err)) {
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    const char *path = di_options_text(o, DI_OPT_INPUT, "-");
    bool from_stdin = strcmp(path, "-") == 0;
    const char *name = from_stdin ? "standard input" : path;
    FILE *in = from_stdin ? stdin : fopen(path, "re");
    if (!in) {
        di_fail_errno(&err, "%s", path);
        return di_cli_fail(&err);
    }
    job j = {.engine = di_cli_open_engine(o, &err), .effort = effort};
    bool ok = j.engine && run_job(&j, o, in, name, &err);
    di_engine_close(j.engine);
    if (!from_stdin) {
        fclose(in);
    }
    if (!ok) {
        return di_cli_fail(&err);
    }
    if (j.failed) {
        long long failed = j.failed, all = failed + j.answered;
        fprintf(stderr, "deepinfer: error: %s: %lld of %lld requests could not be answered\n", name,
                failed, all);
        return DI_EXIT_FAILED;
    }
    return DI_EXIT_WELL;
}
