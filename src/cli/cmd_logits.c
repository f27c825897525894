/* deepinfer logits: the logits of every position of a prompt into a safetensors file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/safetensors_write.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/progress.h"
#include "engine/logits.h"
#include "text/ids.h"

enum { DEFAULT_CHUNK = 512 };

/* "1, 2,3" to ids; white space is allowed in front of a number. Their range is the engine's matter.
 */
static bool read_ids(const char *text, di_ids *ids, di_error *err) {
    const char *at = text;
    do {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < INT32_MIN || id > INT32_MAX || (*end && *end != ',')) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "--ids: '%.24s' at character %zu is no list of token ids", at,
                           (size_t)(at - text) + 1);
        }
        if (!di_ids_push(ids, (int32_t)id, err)) {
            return false;
        }
        at = *end ? end + 1 : NULL;
    } while (at);
    return true;
}

typedef struct output {
    di_writer writer;
    di_progress progress;
    int vocab_size;
    int64_t done, total;
} output;

static bool write_rows(void *user, const float *logits, int num_rows, di_error *err) {
    output *out = user;
    if (di_signals_interrupted()) {
        return di_fail(err, DI_ERR_CANCELLED, "stopped by %s", di_signals_name());
    }
    out->done += num_rows;
    di_progress_show(&out->progress, out->done, out->total);
    return di_writer_write(&out->writer, logits,
                           (size_t)num_rows * (size_t)out->vocab_size * sizeof *logits, err);
}

static bool write_all(di_parts *parts, const di_ids *ids, int chunk, output *out, di_error *err) {
    return di_scorer_check(parts, ids->data, (int64_t)ids->count, err) &&
           di_safetensors_write_header(&out->writer, "logits", (int64_t)ids->count, out->vocab_size,
                                       err) &&
           di_logits_run(parts, ids->data, (int64_t)ids->count, chunk, 0, write_rows, out, err);
}

static bool write_logits(const di_options *o, di_parts *parts, const di_ids *ids, int chunk,
                         di_error *err) {
    output out = {
        .vocab_size = parts->weights->config.vocab_size,
        .total = (int64_t)ids->count,
    };
    if (!di_writer_open(&out.writer, di_options_text(o, DI_OPT_OUTPUT, "-"), err)) {
        return false;
    }
    di_progress_begin(&out.progress, "computing", o->values[DI_OPT_QUIET].flag);
    bool ok = write_all(parts, ids, chunk, &out, err);
    di_progress_end(&out.progress);
    if (ok) {
        ok = di_writer_commit(&out.writer, err);
    } else {
        di_writer_abort(&out.writer);
    }
    return ok;
}

int di_command_logits(const di_options *o) {
    di_error err = {0};
    di_ids ids = {0};
    if (!read_ids(o->values[DI_OPT_IDS].text, &ids, &err)) {
        di_ids_free(&ids);
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    if (!o->values[DI_OPT_OUTPUT].given && isatty(STDOUT_FILENO)) {
        di_fail(&err, DI_ERR_ARGUMENT,
                "logits: a terminal can't show a safetensors file: --output FILE is needed");
        di_ids_free(&ids);
        di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    int chunk = (int)di_options_integer(o, DI_OPT_CHUNK, DEFAULT_CHUNK);
    if ((size_t)chunk > ids.count) {
        chunk = (int)ids.count;
    }
    di_parts parts = {0};
    bool ok = di_cli_open_parts(o, chunk, false, &parts, &err) &&
              write_logits(o, &parts, &ids, chunk, &err);
    di_parts_close(&parts);
    di_ids_free(&ids);
    return ok ? DI_EXIT_WELL : di_cli_fail(&err);
}
