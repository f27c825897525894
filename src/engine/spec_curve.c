/* Measured costs of steps: see spec_curve.h. */
#include "engine/spec_curve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/version.h"
#include "engine/draft_round.h"
#include "model/draft.h"
#include "model/queue.h"
#include "sample/arithmetic.h"

enum { MAX_FILE_BYTES = 1 << 20, MOST_PASSES = 5, LEAST_POINTS = 3, FILE_VERSION = 2 };

/* Repeating ends after the first, and measuring larger sizes after the second: a model whose steps
 * take seconds must not be measured for minutes. */
static const double repeat_seconds = 0.15, most_seconds = 10;

/* ---- sizes ------------------------------------------------------------------------------------*/

/* 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and most; returns how many. */
static int sizes_up_to(int most, int out[DI_CURVE_POINTS]) {
    int count = 0;
    for (int size = 1; size < most && count + 2 < DI_CURVE_POINTS; size *= 2) {
        out[count++] = size;
        if (size >= 2 && size / 2 * 3 < most) {
            out[count++] = size / 2 * 3;
        }
    }
    out[count++] = most;
    return count;
}

/* ---- measuring --------------------------------------------------------------------------------*/

typedef struct bench {
    const di_parts *parts;
    di_seq *seqs;
    int num_seqs, per_seq; /* at most so many rows of each */
    di_model_rows *rows;
    di_draft_rows *drafts;
    int32_t *tokens, *proposed;
    float *logits, *confidence;
    /* Where steps are queued on a card, which draws too. */
    di_draw_memory draws;
    di_draft_round round;
    int place;           /* of the last step */
    double step_seconds; /* that it took there */
} bench;

static bool open_sequences(bench *b, const di_curve_request *r, di_error *err) {
    di_cache *cache = b->parts->cache;
    while (b->num_seqs < r->max_num_seqs &&
           di_seq_open(cache, &b->seqs[b->num_seqs], (di_hash){0}, NULL)) {
        di_seq *seq = &b->seqs[b->num_seqs];
        if (!di_seq_reserve(cache, seq, b->per_seq, NULL)) {
            di_seq_close(cache, seq);
            break;
        }
        b->num_seqs++;
    }
    return b->num_seqs > 0 ||
           di_fail(err, DI_ERR_NO_MEMORY, "no room in the cache to measure what steps cost");
}

static bool open_bench(bench *b, const di_parts *parts, const di_curve_request *r, di_error *err) {
    const di_config *c = &parts->weights->config;
    size_t seqs = (size_t)r->max_num_seqs, block = (size_t)c->dspark_block_size;
    *b = (bench){.parts = parts, .per_seq = 1 + r->num_drafts};
    b->seqs = di_calloc(seqs, sizeof *b->seqs);
    b->rows = di_calloc(seqs, sizeof *b->rows);
    b->drafts = di_calloc(seqs, sizeof *b->drafts);
    b->tokens = di_calloc((size_t)r->max_rows, sizeof *b->tokens);
    b->proposed = di_calloc(seqs * block, sizeof *b->proposed);
    b->confidence = di_calloc(seqs * block, sizeof *b->confidence);
    b->logits =
        di_realloc_array(NULL, (size_t)r->max_logits, (size_t)c->vocab_size * sizeof *b->logits);
    if (!b->seqs || !b->rows || !b->drafts || !b->tokens || !b->proposed || !b->confidence ||
        !b->logits) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to measure what steps cost");
    }
    if (parts->queues_steps &&
        (!di_draw_memory_create(&b->draws, parts->backend, c->vocab_size,
                                r->max_num_seqs * b->per_seq, 0, 0, err) ||
         !di_draft_round_create(&b->round, parts->model, &b->draws, r->num_drafts, err))) {
        return false;
    }
    for (int i = 0; i < r->max_rows; i++) { /* any tokens, so that experts are mixed */
        b->tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)c->vocab_size);
    }
    return open_sequences(b, r, err);
}

static void close_bench(bench *b) {
    for (int i = 0; i < b->num_seqs; i++) {
        di_seq_close(b->parts->cache, &b->seqs[i]);
    }
    di_draft_round_destroy(&b->round);
    di_draw_memory_destroy(&b->draws);
    di_free(b->seqs);
    di_free(b->rows);
    di_free(b->drafts);
    di_free(b->tokens);
    di_free(b->proposed);
    di_free(b->confidence);
    di_free(b->logits);
}

/* As requests at temperature 1 draw: greedy ones are quicker. */
static di_draw sampled(void) {
    return (di_draw){
        .forced = -1, .octaves = di_octaves_per_logit(1), .seed = 1, .mask = -1, .floor = 1};
}

/* A step on a card, draws and all; the time that it takes there, which steps that are queued one
 * behind the other take. */
static bool run_queued(bench *b, int seqs, int rows, di_error *err) {
    di_backend *be = b->parts->backend;
    const di_queue_ops *ops = be->ops->queue;
    double begin, end;
    b->place ^= 1;
    ops->begin(be, b->place);
    bool ok = di_model_queue(b->parts->model, b->rows, seqs, NULL, NULL, err);
    for (int i = 0; i < rows; i++) {
        b->draws.rows[i] = sampled();
        b->draws.rows[i].logits = i;
    }
    if (ok) {
        di_draw_memory_queue(&b->draws, di_model_logits(b->parts->model), rows, NULL);
    }
    ops->end(be, b->place);
    ok = ops->wait(be, b->place, &begin, &end, ok ? err : NULL) && ok;
    b->step_seconds = end - begin;
    return ok;
}

/* A forward pass of n rows, spread over as many sequences as there are. */
static bool run_step(bench *b, int n, di_error *err) {
    int seqs = n < b->num_seqs ? n : b->num_seqs, next = 0;
    for (int i = 0; i < seqs; i++) {
        int rows = n / seqs + (i < n % seqs);
        b->rows[i] = (di_model_rows){
            .slot = b->seqs[i].slot,
            .blocks = b->seqs[i].blocks,
            .num_blocks = b->seqs[i].num_blocks,
            .tokens = b->tokens + next,
            .num_tokens = rows,
            .num_logits = rows,
        };
        next += rows;
    }
    return b->draws.memory ? run_queued(b, seqs, n, err)
                           : di_model_forward(b->parts->model, b->rows, seqs, b->logits, err);
}

/* The likeliest token, as greedy requests draw. */
static int32_t likeliest(void *user, int i, int j, const float *logits) {
    const bench *b = user;
    (void)i;
    (void)j;
    int32_t best = 0;
    for (int32_t v = 1; v < b->parts->weights->config.vocab_size; v++) {
        best = logits[v] > logits[best] ? v : best;
    }
    return best;
}

/* A round on a card, behind the step that it needs: what having it costs is all but the step's own
 * time, for the host waits for that first. */
static bool run_round(bench *b, int n, di_error *err) {
    if (!run_step(b, n, err)) {
        return false;
    }
    di_draft_round_begin(&b->round, n);
    for (int i = 0; i < n * b->round.columns; i++) {
        *di_draft_round_draw(&b->round, i % n, i / n) = sampled();
    }
    return di_draft_round_run(&b->round, b->drafts, n, b->confidence, err);
}

/* A round of drafts for n answers, as their first token's. */
static bool run_draft(bench *b, int n, di_error *err) {
    for (int i = 0; i < n; i++) {
        b->drafts[i] = (di_draft_rows){.pos0 = 1, .slot = b->seqs[i].slot, .anchor = b->tokens[i]};
    }
    return b->draws.memory ? run_round(b, n, err)
                           : di_model_draft(b->parts->model, b->drafts, n, likeliest, b,
                                            b->proposed, b->confidence, err);
}

typedef bool (*run_fn)(bench *b, int n, di_error *err);

/* Seconds of a run: on a card a step counts by its own time, a round without it. */
static double seconds_since(const bench *b, double start, run_fn run) {
    double all = di_now() - start;
    return !b->draws.memory ? all : run == run_step ? b->step_seconds : all - b->step_seconds;
}

/* The quickest of some passes over the sizes: what else runs on the machine only adds. */
static bool measure(bench *b, run_fn run, int most, di_curve *curve, di_error *err) {
    int sizes[DI_CURVE_POINTS], count = sizes_up_to(most, sizes);
    double best[DI_CURVE_POINTS], begin = di_now();
    for (int pass = 0; pass < MOST_PASSES && (pass < 1 || di_now() - begin < repeat_seconds);
         pass++) {
        for (int i = 0; i < count; i++) {
            if (pass == 0 && b->draws.memory && !run(b, sizes[i], err)) {
                return false; /* once before: a program's first run brings it to the card */
            }
            double start = di_now();
            if (!run(b, sizes[i], err)) {
                return false;
            }
            double seconds = seconds_since(b, start, run);
            best[i] = pass == 0 || seconds < best[i] ? seconds : best[i];
            if (pass == 0 && i + 1 >= LEAST_POINTS && di_now() - begin > most_seconds) {
                count = i + 1;
            }
        }
    }
    curve->count = 0;
    for (int i = 0; i < count; i++) {
        di_curve_add(curve, sizes[i], best[i]);
    }
    return true;
}

static int smaller(int64_t a, int64_t b) {
    return (int)(a < b ? a : b);
}

static bool measure_all(const di_parts *parts, const di_curve_request *r, di_curves *c,
                        di_error *err) {
    bench b;
    bool ok = open_bench(&b, parts, r, err);
    if (ok) {
        int rows = smaller(smaller((int64_t)b.num_seqs * b.per_seq, r->max_rows), r->max_logits);
        int answers = smaller(b.num_seqs, di_model_draft_seqs(parts->model));
        ok = measure(&b, run_step, rows, &c->step, err) &&
             measure(&b, run_draft, answers, &c->draft, err);
    }
    close_bench(&b);
    return ok;
}

/* ---- the file ---------------------------------------------------------------------------------*/

enum { DESCRIPTION_BYTES = 8192 };

/* Everything that times depend on; the path last, as it may be of any length. */
static void describe(const di_curve_request *r, char *text, size_t size) {
    struct utsname machine;
    struct stat config = {0};
    char *real = realpath(r->model, NULL), *path = di_path_join(r->model, "config.json");
    if (uname(&machine) != 0) {
        memset(&machine, 0, sizeof machine);
    }
    if (path) {
        (void)stat(path, &config); /* zeros will do */
    }
    snprintf(text, size,
             "%d %s %s %s%s seqs %d rows %d logits %d drafts %d machine %s %s %s device %s model "
             "%lld %lld %s",
             FILE_VERSION, di_version_string(), di_git_revision(), di_build_mode(),
             r->time_ops ? " ops timed" : "", r->max_num_seqs, r->max_rows, r->max_logits,
             r->num_drafts, machine.nodename, machine.machine, machine.release, r->device,
             (long long)config.st_size, (long long)config.st_mtime, real ? real : r->model);
    free(real);
    di_free(path);
}

void di_curves_path(const di_curve_request *r, char *path, size_t size) {
    char text[DESCRIPTION_BYTES];
    path[0] = 0;
    if (r->cache) {
        describe(r, text, sizeof text);
        di_hash key = di_hash_text(text, strlen(text));
        snprintf(path, size, "%s/%016llx%016llx.json", r->cache, (unsigned long long)key.high,
                 (unsigned long long)key.low);
    }
}

/* [[size, seconds], ...] */
static bool read_curve(const json_t *object, const char *where, const char *key, di_curve *curve,
                       di_error *err) {
    json_t *array = di_json_array(object, where, key, err);
    curve->count = 0;
    if (!array) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *point = json_array_get(array, i);
        const json_t *size = json_array_get(point, 0), *seconds = json_array_get(point, 1);
        if (json_array_size(point) != 2 || !json_is_integer(size) || !json_is_number(seconds) ||
            json_integer_value(size) < 1 || json_integer_value(size) > INT32_MAX ||
            json_number_value(seconds) > 1e6 ||
            !di_curve_add(curve, (int)json_integer_value(size), json_number_value(seconds))) {
            return di_fail(err, DI_ERR_FORMAT, "%s: %s[%zu] is no ascending size with its seconds",
                           where, key, i);
        }
    }
    return curve->count > 0 || di_fail(err, DI_ERR_FORMAT, "%s: %s is empty", where, key);
}

/* 1: good; 0: there is none, or too old a one; -1: damaged. */
static int read_file(const char *path, const char *description, int64_t ttl, di_curves *c,
                     di_error *err) {
    struct stat s;
    const char *found;
    int64_t created = 0, now = (int64_t)time(NULL);
    if (stat(path, &s) != 0) {
        return 0;
    }
    json_t *object = di_json_read(path, MAX_FILE_BYTES, err);
    bool ok = object && di_json_string(object, path, "description", &found, err) &&
              di_json_int(object, path, "created", 0, now + 60, &created, err) &&
              read_curve(object, path, "step", &c->step, err) &&
              read_curve(object, path, "draft", &c->draft, err);
    if (ok && strcmp(found, description) != 0) {
        ok = di_fail(err, DI_ERR_FORMAT, "%s: description is of another engine", path);
    }
    json_decref(object);
    return !ok ? -1 : created + ttl >= now;
}

static json_t *curve_array(const di_curve *curve) {
    json_t *array = json_array();
    for (int i = 0; array && i < curve->count; i++) {
        json_t *point = json_pack("[i, f]", curve->sizes[i], curve->seconds[i]);
        if (!point || json_array_append_new(array, point) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static bool write_file(const char *path, const char *description, const di_curves *c,
                       di_error *err) {
    json_t *object = json_pack("{s:s, s:I, s:o, s:o}", "description", description, "created",
                               (json_int_t)time(NULL), "step", curve_array(&c->step), "draft",
                               curve_array(&c->draft));
    return di_json_write(path, object, err);
}

bool di_curves_get(const di_parts *parts, const di_curve_request *r, di_curves *c, di_error *err) {
    char description[DESCRIPTION_BYTES], path[4096];
    di_error why;
    describe(r, description, sizeof description);
    di_curves_path(r, path, sizeof path);
    int found = r->cache ? read_file(path, description, r->ttl, c, &why) : 0;
    if (found > 0) {
        return true;
    }
    if (found < 0) {
        di_log(DI_LOG_WARN, "%s; it is made anew", why.message);
    }
    if (!measure_all(parts, r, c, err)) {
        return false;
    }
    if (r->cache && !write_file(path, description, c, &why)) {
        di_log(DI_LOG_WARN, "costs of steps are not kept: %s", why.message);
    }
    return true;
}
