/* deepinfer calibrate: answers prompts with all drafts verified, and fits the temperatures of the
 * confidence head to how many were accepted. */
#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/lines.h"
#include "cli/progress.h"
#include "engine/calibration.h"
#include "engine/request_json.h"
#include "engine/spec.h"

enum { PATIENCE_MS = 100, LEAST_TESTS = 50 };

typedef struct calibration {
    di_engine *engine;
    di_queue *queue;
    di_request_params defaults;
    int effort, most; /* requests at once */
    di_lines lines;
    di_progress progress;
    int running; /* answers under way */
    int64_t answered, tokens;
} calibration;

static bool submit(calibration *c, di_error *err) {
    di_json_request request = {.params = c->defaults};
    di_prompt_init(&request.prompt, sizeof request.prompt);
    request.prompt.effort = c->effort;
    json_t *object =
        di_json_parse_text(c->lines.text, c->lines.size, DI_JSON_MAX_DEPTH, c->lines.where, err);
    bool ok = object && di_json_request_read(&request, object, c->lines.where, err);
    if (ok) {
        ok = di_submit(c->engine, c->queue, &request.prompt, &request.params, NULL, err) ||
             di_fail_prefix(err, "%s", c->lines.where);
        c->running += ok ? request.params.n : 0;
    }
    di_json_request_clear(&request);
    json_decref(object);
    return ok;
}

static bool take_output(calibration *c, di_error *err) {
    di_output *out = di_queue_wait(c->queue, PATIENCE_MS);
    bool ok = true;
    if (out) {
        c->tokens += (int64_t)out->num_token_ids;
        c->running -= out->finish_reason != DI_FINISH_NONE;
        c->answered += out->finish_reason != DI_FINISH_NONE;
        if (out->finish_reason == DI_FINISH_ERROR) {
            *err = out->error;
            ok = false;
        }
    }
    di_output_free(out);
    di_progress_count(&c->progress, c->answered, c->tokens);
    return ok;
}

static bool answer_all(calibration *c, di_error *err) {
    di_error ended = {0};
    bool more = true;
    while ((more || c->running > 0) && !di_signals_interrupted()) {
        if (more && c->running < c->most) {
            more = di_lines_next(&c->lines, &ended);
            if (more && !di_lines_blank(&c->lines) && !submit(c, err)) {
                return false;
            }
        } else if (!take_output(c, err)) {
            return false;
        }
    }
    if (di_signals_interrupted()) {
        return di_fail(err, DI_ERR_CANCELLED, "stopped by %s, nothing was written",
                       di_signals_name());
    }
    *err = ended;
    return ended.code == DI_OK;
}

/* A line for each draft: how its promises were kept before and after. */
static bool report(const di_calibration *c, int n, double *temperatures, di_error *err) {
    static const char head[] = "draft   tests  accepted  promised  error  temperature  promised  "
                               "error\n";
    bool ok = di_cli_write(head, sizeof head - 1, err);
    for (int j = 0; ok && j < n; j++) {
        char line[160];
        di_calibration_fit before = di_calibration_judge(c, j, 1);
        temperatures[j] = di_calibration_temperature(c, j);
        di_calibration_fit after = di_calibration_judge(c, j, temperatures[j]);
        int size = snprintf(
            line, sizeof line, "%5d %7.0f %8.1f%% %8.1f%% %5.1f%% %12.3f %8.1f%% %5.1f%%\n", j + 1,
            before.tests, 100 * before.observed, 100 * before.expected, 100 * before.error,
            temperatures[j], 100 * after.expected, 100 * after.error);
        ok = di_cli_write(line, (size_t)size, err);
    }
    return ok && di_cli_flush(err);
}

static bool fit(calibration *c, const di_options *o, di_error *err) {
    static di_calibration seen;
    double temperatures[DI_MAX_DRAFTS];
    const char *model = o->values[DI_OPT_MODEL].text;
    int n = di_engine_get_calibration(c->engine, &seen);
    double tests = di_calibration_judge(&seen, 0, 1).tests;
    if (tests < LEAST_TESTS) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "%.0f drafts were tested, at least %d are needed: give more prompts, or "
                       "more --max-tokens",
                       tests, LEAST_TESTS);
    }
    if (!report(&seen, n, temperatures, err) ||
        !di_temperatures_write(model, temperatures, n, (long)tests, err)) {
        return false;
    }
    fprintf(stderr, "%lld answers, %lld tokens; written to %s/%s\n", (long long)c->answered,
            (long long)c->tokens, model, DI_CALIBRATION_FILE);
    return true;
}

static bool run(calibration *c, const di_options *o, di_error *err) {
    di_cli_params(o, c->engine, &c->defaults);
    c->queue = di_queue_create(c->engine, err);
    if (!c->queue) {
        return false;
    }
    di_progress_begin(&c->progress, "answered", o->values[DI_OPT_QUIET].flag);
    bool ok = answer_all(c, err);
    di_queue_destroy(c->queue);
    di_progress_end(&c->progress);
    return ok && fit(c, o, err);
}

int di_command_calibrate(const di_options *o) {
    di_error err = {0};
    calibration c = {.most = 2 * di_cli_max_num_seqs(o)};
    if (!di_cli_effort(o, &c.effort, &err)) {
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    if (o->values[DI_OPT_NUM_DRAFTS].given && o->values[DI_OPT_NUM_DRAFTS].integer == 0) {
        di_fail(&err, DI_ERR_ARGUMENT, "calibrate: --num-drafts is 0, at least 1 is needed");
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    bool ok = di_lines_open(&c.lines, di_options_text(o, DI_OPT_INPUT, "-"), &err);
    c.engine = ok ? di_cli_open_calibrating(o, di_cli_max_num_seqs(o), &err) : NULL;
    ok = c.engine && run(&c, o, &err);
    di_engine_close(c.engine);
    di_lines_close(&c.lines);
    return ok ? DI_EXIT_WELL : di_cli_fail(&err);
}
