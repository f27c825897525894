/* deepinfer replay-check: bounded replay by leaving rows out against bounded replay by masking, and
 * both against the exact model, over a file of prompts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/lines.h"
#include "engine/logits.h"
#include "engine/prompt.h"
#include "engine/request_json.h"

enum { DEFAULT_CHUNK = 512, DEFAULT_TOKENS = 16, BACKTRACKING = 6 };

typedef struct check {
    di_parts compact, mask;
    int chunk, keep;
    int64_t num_tokens; /* to generate behind each prompt */
    float *last;        /* [vocab_size] the compact model's row behind the prompt */
    di_lines lines;
    int64_t prompts, replayed, different;
} check;

/* What is found out about one prompt. */
typedef struct finding {
    int64_t tokens, kept, generated;
    int64_t rows, rows_different; /* compared; of those not equal */
    double distance;              /* from the exact last row: largest difference of two logits */
    bool same_token;              /* the likeliest one is the exact model's */
} finding;

static int vocab_size(const check *c) {
    return c->compact.weights->config.vocab_size;
}

static int32_t likeliest(const float *row, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        best = row[i] > row[best] ? i : best;
    }
    return best;
}

/* The next step of both, to the same place; compares their rows. */
static bool step(const check *c, di_scorer *compact, di_scorer *mask, const di_ids *ids,
                 int64_t upto, int64_t replay_from, finding *f, di_error *err) {
    if (di_signals_interrupted()) {
        return di_fail(err, DI_ERR_CANCELLED, "stopped by %s", di_signals_name());
    }
    if (!di_scorer_step(compact, ids->data, upto, replay_from, err) ||
        !di_scorer_step(mask, ids->data, upto, replay_from, err)) {
        return false;
    }
    size_t width = (size_t)vocab_size(c);
    for (int i = 0; i < compact->num_rows; i++) {
        size_t row = (size_t)i * width;
        f->rows++;
        f->rows_different +=
            memcmp(compact->logits + row, mask->logits + row, width * sizeof(float)) != 0;
    }
    return true;
}

static const float *last_row(const check *c, const di_scorer *s) {
    return s->logits + (size_t)(s->num_rows - 1) * (size_t)vocab_size(c);
}

/* The prompt in chunks, then the likeliest tokens one by one. */
static bool compare_modes(check *c, di_scorer *compact, di_scorer *mask, di_ids *ids, finding *f,
                          di_error *err) {
    int64_t n = f->tokens, replay_from = n - f->kept;
    for (int64_t at = 0; at < n; at = compact->seq.len) {
        int64_t upto = n - at < c->chunk ? n : at + c->chunk;
        if (!step(c, compact, mask, ids, upto, replay_from, f, err)) {
            return false;
        }
    }
    memcpy(c->last, last_row(c, compact), (size_t)vocab_size(c) * sizeof *c->last);
    while (f->generated < c->num_tokens && (int64_t)ids->count < c->compact.max_model_len) {
        int32_t next = likeliest(last_row(c, compact), vocab_size(c));
        f->generated++;
        if (!di_ids_push(ids, next, err) ||
            !step(c, compact, mask, ids, (int64_t)ids->count, 0, f, err)) {
            return false;
        }
    }
    return true;
}

typedef struct exact {
    const check *c;
    finding *f;
} exact;

/* Each call overwrites what the one before has found: the last row of all stays. */
static bool compare_exact(void *user, const float *logits, int num_rows, di_error *err) {
    (void)err;
    exact *d = user;
    int width = vocab_size(d->c);
    const float *row = logits + (size_t)(num_rows - 1) * (size_t)width;
    d->f->distance = 0;
    for (int i = 0; i < width; i++) {
        d->f->distance = fmax(d->f->distance, fabs((double)row[i] - (double)d->c->last[i]));
    }
    d->f->same_token = likeliest(row, width) == likeliest(d->c->last, width);
    return true;
}

static bool check_ids(check *c, di_ids *ids, finding *f, di_error *err) {
    di_scorer compact = {0}, mask = {0};
    f->tokens = (int64_t)ids->count;
    f->kept = f->tokens < c->keep ? f->tokens : c->keep;
    bool ok = di_scorer_open(&compact, &c->compact, c->chunk, err) &&
              di_scorer_open(&mask, &c->mask, c->chunk, err) &&
              compare_modes(c, &compact, &mask, ids, f, err);
    di_scorer_close(&compact);
    di_scorer_close(&mask);
    exact e = {c, f};
    return ok &&
           di_logits_run(&c->compact, ids->data, f->tokens, c->chunk, 0, compare_exact, &e, err);
}

static bool print_finding(const check *c, const finding *f, di_error *err) {
    char line[256], rows[64];
    snprintf(rows, sizeof rows, "%lld of %lld rows differ", (long long)f->rows_different,
             (long long)f->rows);
    int size = snprintf(line, sizeof line,
                        "%.60s: %lld tokens, %lld kept, %lld generated: %s; from exact: %.4g, %s\n",
                        c->lines.where, (long long)f->tokens, (long long)f->kept,
                        (long long)f->generated, f->rows_different ? rows : "equal", f->distance,
                        f->same_token ? "same token" : "another token");
    return di_cli_write(line, (size_t)size, err) && di_cli_flush(err);
}

/* The current line's prompt as ids. */
static bool read_prompt(const check *c, di_ids *ids, di_error *err) {
    di_json_request request = {0};
    di_prompt_init(&request.prompt, sizeof request.prompt);
    di_request_params_init(NULL, &request.params, sizeof request.params);
    json_t *object =
        di_json_parse_text(c->lines.text, c->lines.size, DI_JSON_MAX_DEPTH, c->lines.where, err);
    bool ok = object && di_json_request_read(&request, object, c->lines.where, err);
    if (ok) {
        ok = di_prompt_encode(&c->compact, &request.prompt, ids, err) ||
             di_fail_prefix(err, "%s", c->lines.where);
    }
    di_json_request_clear(&request);
    json_decref(object);
    return ok;
}

static bool check_line(check *c, di_error *err) {
    di_ids ids = {0};
    finding f = {0};
    bool ok = read_prompt(c, &ids, err) && check_ids(c, &ids, &f, err) && print_finding(c, &f, err);
    c->prompts++;
    c->replayed += f.kept < f.tokens;
    c->different += f.rows_different > 0;
    di_ids_free(&ids);
    return ok;
}

static bool check_all(check *c, di_error *err) {
    di_error ended = {0};
    while (di_lines_next(&c->lines, &ended)) {
        if (!di_lines_blank(&c->lines) && !check_line(c, err)) {
            return false;
        }
    }
    *err = ended;
    if (di_signals_interrupted()) {
        return di_fail(err, DI_ERR_CANCELLED, "stopped by %s", di_signals_name());
    }
    return ended.code == DI_OK;
}

static bool open_check(check *c, const di_options *o, di_error *err) {
    c->chunk = (int)di_options_integer(o, DI_OPT_CHUNK, DEFAULT_CHUNK);
    c->keep = di_cli_replay_keep(o);
    c->num_tokens = di_options_integer(o, DI_OPT_MAX_TOKENS, DEFAULT_TOKENS);
    if (!di_cli_open_parts(o, c->chunk, false, &c->compact, err) ||
        !di_cli_open_parts(o, c->chunk, true, &c->mask, err)) {
        return false;
    }
    int least = c->compact.weights->config.sliding_window + BACKTRACKING;
    if (c->keep < least) {
        return di_fail(err, DI_ERR_ARGUMENT, "--replay-keep-tokens is %d, this model needs %d",
                       c->keep, least);
    }
    c->last = di_realloc_array(NULL, (size_t)vocab_size(c), sizeof *c->last);
    return c->last || di_fail(err, DI_ERR_NO_MEMORY, "no memory for a row of logits");
}

int di_command_replay_check(const di_options *o) {
    di_error err = {0};
    check c = {0};
    bool ok = di_lines_open(&c.lines, di_options_text(o, DI_OPT_INPUT, "-"), &err) &&
              open_check(&c, o, &err) && check_all(&c, &err);
    di_lines_close(&c.lines);
    di_parts_close(&c.compact);
    di_parts_close(&c.mask);
    di_free(c.last);
    if (!ok) {
        return di_cli_fail(&err);
    }
    fprintf(stderr, "%lld prompts, %lld of them longer than %d tokens, %lld different\n",
            (long long)c.prompts, (long long)c.replayed, c.keep, (long long)c.different);
    return c.different ? DI_EXIT_FAILED : DI_EXIT_WELL;
}
