/* deepinfer generate: requests by lines in, answers by lines out, many at once on the engine's
 * queue. Keeps the order of the input. What a line may say is engine/request_json.c's matter, what
 * is under way flight.c's, the file of answers partial.c's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/flight.h"
#include "cli/lines.h"
#include "cli/partial.h"
#include "cli/progress.h"
#include "cli/spec_report.h"
#include "cli/watch.h"
#include "engine/request_json.h"

/* How long outputs are waited for before looking for signals, and for more input. */
enum { PATIENCE_MS = 100, INPUT_MS = 20 };

typedef struct job {
    di_engine *engine;
    di_queue *queue;
    di_request_params defaults;
    int effort;
    di_lines lines;
    bool ended; /* the input; input_error says why */
    di_error input_error;
    int64_t next_index; /* of the next line that holds something, from 0 */
    int64_t skip;       /* so many are answered in the file that is resumed */
    di_flight flight;
    di_partial out;
    di_progress progress;
    di_watch watch;
    int64_t answered, failed, tokens;
} job;

/* ---- in ---------------------------------------------------------------------------------------*/

/* Submits the current line; false with *cause if it cannot be answered. */
static bool submit(job *j, di_flight_request *r, di_error *cause) {
    di_json_request request = {.params = j->defaults};
    di_prompt_init(&request.prompt, sizeof request.prompt);
    request.prompt.effort = j->effort;
    json_t *object =
        di_json_parse_text(j->lines.text, j->lines.size, DI_JSON_MAX_DEPTH, j->lines.where, cause);
    bool ok = object && di_json_request_read(&request, object, j->lines.where, cause);
    if (ok) {
        ok = (di_flight_expect(r, &request.params, cause) &&
              di_submit(j->engine, j->queue, &request.prompt, &request.params, r, cause)) ||
             di_fail_prefix(cause, "%s", j->lines.where);
    }
    di_json_request_clear(&request);
    json_decref(object);
    return ok;
}

static void take_line(job *j) {
    if (di_lines_blank(&j->lines)) {
        return;
    }
    int64_t index = j->next_index++;
    if (index < j->skip) {
        return;
    }
    di_flight_request *r = di_flight_push(&j->flight, index, j->lines.where);
    if (!submit(j, r, &r->error)) {
        r->running = 0;
    }
}

/* Takes lines while there is room, waiting for one only if there is nothing else to do: whoever
 * writes to a pipe may wait for an answer first. */
static void read_more(job *j) {
    while (!j->ended && j->flight.count < j->flight.capacity &&
           (j->flight.count == 0 || di_lines_ready(&j->lines))) {
        if (di_lines_next(&j->lines, &j->input_error)) {
            take_line(j);
        } else {
            j->ended = true;
        }
    }
}

/* ---- out --------------------------------------------------------------------------------------*/

static bool write_request(job *j, di_flight_request *r, di_error *err) {
    bool failed = false;
    json_t *object = di_flight_object(r, &failed);
    /* 9 digits tell any two float32 apart */
    char *text = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the result", r->where);
    }
    *(failed ? &j->failed : &j->answered) += 1;
    size_t length = strlen(text);
    text[length] = '\n'; /* in the terminator's place: it is freed next */
    bool ok = di_partial_write(&j->out, text, length + 1, err);
    free(text);
    return ok;
}

static bool write_done(job *j, di_error *err) {
    for (di_flight_request *r; (r = di_flight_done(&j->flight)) != NULL;
         di_flight_pop(&j->flight)) {
        if (!write_request(j, r, err)) {
            return false;
        }
    }
    return true;
}

static void take_output(job *j) {
    int wait = j->ended || j->flight.count == j->flight.capacity ? PATIENCE_MS : INPUT_MS;
    di_output *out = di_queue_wait(j->queue, wait);
    if (out) {
        j->tokens += (int64_t)out->num_token_ids;
        di_flight_take(out);
    }
    di_output_free(out);
}

static bool answer_all(job *j, di_error *err) {
    while (!di_signals_interrupted()) {
        read_more(j);
        if (!write_done(j, err)) {
            return false;
        }
        if (j->flight.count > 0) {
            take_output(j);
        } else if (j->ended && !di_signals_interrupted()) {
            *err = j->input_error;
            return err->code == DI_OK;
        }
        di_progress_count(&j->progress, j->answered + j->failed, j->tokens);
        di_watch_look(&j->watch);
    }
    return di_fail(err, DI_ERR_CANCELLED, "stopped by %s", di_signals_name());
}

/* ---- the command ------------------------------------------------------------------------------*/

static bool answer_queue(job *j, const di_options *o, di_error *err) {
    j->queue = di_queue_create(j->engine, err);
    if (!j->queue) {
        return false;
    }
    bool quiet = o->values[DI_OPT_QUIET].flag, stats = o->values[DI_OPT_STATS].flag;
    di_progress_begin(&j->progress, "answered", quiet || stats);
    di_watch_begin(&j->watch, j->engine, di_options_text(o, DI_OPT_BACKEND, "cpu"), stats);
    bool ok = answer_all(j, err);
    di_queue_destroy(j->queue); /* what is still under way is cancelled */
    di_progress_end(&j->progress);
    di_watch_end(&j->watch);
    if (o->values[DI_OPT_SPEC_STATS].flag) {
        di_spec_report(j->engine, stderr);
    }
    return ok;
}

/* Says what is left of an output that did not become whole. */
static void abort_output(job *j, const di_options *o, di_error *err) {
    const char *path = di_options_text(o, DI_OPT_OUTPUT, "-");
    bool named = j->out.path != NULL;
    long long lines = j->out.lines;
    size_t used = strlen(err->message);
    if (di_partial_abort(&j->out)) {
        snprintf(err->message + used, sizeof err->message - used,
                 "; %lld answers are in %.200s.partial, --resume goes on from there", lines, path);
    } else if (named && err->code == DI_ERR_CANCELLED) {
        snprintf(err->message + used, sizeof err->message - used, ", nothing was written");
    }
}

/* The file comes first: a folder that is missing is told before the model is read. */
static bool run_job(job *j, const di_options *o, di_error *err) {
    const char *path = di_options_text(o, DI_OPT_OUTPUT, "-");
    if (!di_partial_open(&j->out, path, o->values[DI_OPT_RESUME].flag, err)) {
        return false;
    }
    if (j->out.whole) {
        fprintf(stderr, "deepinfer: %s is whole, there is nothing to resume\n", path);
        return di_partial_commit(&j->out, err);
    }
    j->skip = j->out.lines;
    j->failed = j->out.failed;
    j->answered = j->skip - j->failed;
    int sequences = di_cli_max_num_seqs(o);
    j->engine = di_cli_open_engine(o, sequences, 0, err);
    bool ok = j->engine && di_flight_create(&j->flight, 2 * sequences, err);
    if (ok) {
        di_cli_params(o, j->engine, &j->defaults);
        ok = answer_queue(j, o, err);
    }
    if (ok) {
        ok = di_partial_commit(&j->out, err);
    } else {
        abort_output(j, o, err);
    }
    di_flight_destroy(&j->flight);
    di_engine_close(j->engine);
    return ok;
}

int di_command_generate(const di_options *o) {
    di_error err = {0};
    job j = {0};
    if (!di_cli_effort(o, &j.effort, &err)) {
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    bool ok = di_lines_open(&j.lines, di_options_text(o, DI_OPT_INPUT, "-"), &err) &&
              run_job(&j, o, &err);
    const char *name = j.lines.name;
    di_lines_close(&j.lines);
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
