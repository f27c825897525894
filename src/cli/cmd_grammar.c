/* deepinfer grammar: compiles schemas, regexes or grammars from JSON lines, and tries texts on
 * each, token by token, as the engine would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/lines.h"
#include "engine/vocabulary.h"
#include "grammar/doc.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#define STOP_TOKEN "<｜end▁of▁sentence｜>"

/* Microseconds of many calls, in time that the thread computed. */
typedef struct times {
    double *us;
    size_t count, capacity;
} times;

typedef struct session {
    const di_options *o;
    di_tokenizer *tok;
    di_vocab *vocab;
    di_grammar_type type;
    di_grammar_options options;
    uint32_t *mask;
    times masks, compiles;          /* of all lines */
    size_t compiled, refused;       /* lines */
    size_t most_bytes, total_bytes; /* of grammars after their tests */
} session;

/* What is known of one line. */
typedef struct report {
    const char *status;
    di_error why;
    double compile_us;
    size_t first_mask; /* in session.masks */
    di_grammar_size size;
    const char *ignored;
} report;

static bool add_time(times *t, double us, di_error *err) {
    double *grown = di_grow(t->us, t->count, &t->capacity, sizeof *grown);
    if (!grown) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for measurements");
    }
    t->us = grown;
    t->us[t->count++] = us;
    return true;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of us[0..count), which gets sorted. */
static double percentile(double *us, size_t count, double share) {
    if (count == 0) {
        return 0;
    }
    qsort(us, count, sizeof *us, by_size);
    size_t at = (size_t)(share * (double)count);
    return us[at < count ? at : count - 1];
}

/* ---- the vocabulary ---- */

static bool open_vocab(session *s, di_error *err) {
    int32_t stop = di_tokenizer_id(s->tok, STOP_TOKEN);
    if (stop < 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "the tokenizer has no token %s", STOP_TOKEN);
    }
    s->vocab = di_vocabulary_create(s->tok, di_tokenizer_vocab_size(s->tok), stop, err);
    s->mask = s->vocab ? di_calloc((size_t)s->vocab->num_words, sizeof *s->mask) : NULL;
    return s->mask || (s->vocab && di_fail(err, DI_ERR_NO_MEMORY, "no memory for a mask"));
}

/* ---- tests ---- */

static bool timed_mask(session *s, di_matcher *m, di_error *err) {
    double begin = di_thread_now();
    return di_matcher_mask(m, s->mask, err) &&
           add_time(&s->masks, (di_thread_now() - begin) * 1e6, err);
}

static bool allowed(const session *s, int32_t token) {
    return s->mask[token / 32] >> token % 32 & 1;
}

/* Whether the text is in the language. Mask and push must say the same. */
static bool try_tokens(session *s, di_matcher *m, const di_ids *ids, bool *accepted,
                       di_error *err) {
    *accepted = false;
    for (size_t i = 0; i < ids->count; i++) {
        if (!timed_mask(s, m, err)) {
            return false;
        }
        di_error refusal = {0};
        bool in_mask = allowed(s, ids->data[i]);
        bool taken = di_matcher_push(m, ids->data[i], &refusal);
        if (!taken && refusal.code != DI_ERR_ARGUMENT) {
            *err = refusal;
            return false;
        }
        if (taken != in_mask) {
            return di_fail(err, DI_ERR_INTERNAL, "token %zu, %d: the mask says %s, the matcher not",
                           i, ids->data[i], in_mask ? "allowed" : "not allowed");
        }
        if (!in_mask) {
            return true;
        }
    }
    if (!timed_mask(s, m, err)) {
        return false;
    }
    *accepted = allowed(s, s->vocab->stop_ids[0]);
    return true;
}

static bool try_text(session *s, di_grammar *g, const char *text, size_t size, bool *accepted,
                     di_error *err) {
    di_ids ids = {0};
    /* the markup of calls has a control token in it */
    di_encode_mode mode = s->type == DI_GRAMMAR_TOOLS ? DI_ENCODE_ADDED : DI_ENCODE_PLAIN;
    di_matcher *m = di_matcher_create(g, err);
    bool ok = m && di_tokenizer_encode(s->tok, text, size, mode, &ids, err) &&
              try_tokens(s, m, &ids, accepted, err);
    di_matcher_destroy(m);
    di_ids_free(&ids);
    return ok;
}

static bool try_test(session *s, di_grammar *g, const di_doc *line, uint32_t test, bool *accepted,
                     di_error *err) {
    uint32_t text = di_doc_member(line, test, "text"), data = di_doc_member(line, test, "data");
    if (text != DI_DOC_NONE && line->nodes[text].type == DI_DOC_STRING) {
        return try_text(s, g, line->nodes[text].text, line->nodes[text].size, accepted, err);
    }
    if (data == DI_DOC_NONE) {
        return di_fail(err, DI_ERR_ARGUMENT, "a test needs \"data\" or a string \"text\"");
    }
    di_buffer buffer = {0};
    bool ok = di_doc_write(line, data, &buffer, err) &&
              try_text(s, g, buffer.data, buffer.size, accepted, err);
    di_buffer_free(&buffer);
    return ok;
}

static bool append_results(session *s, di_grammar *g, const di_doc *line, di_buffer *out,
                           di_error *err) {
    uint32_t tests = di_doc_member(line, 0, "tests");
    uint32_t first = tests == DI_DOC_NONE ? DI_DOC_NONE : line->nodes[tests].first;
    for (uint32_t i = first; i != DI_DOC_NONE; i = line->nodes[i].next) {
        bool accepted = false;
        if (!try_test(s, g, line, i, &accepted, err) ||
            !di_buffer_append_text(out, i == first ? "" : ", ", err) ||
            !di_buffer_append_text(out, accepted ? "true" : "false", err)) {
            return false;
        }
    }
    return true;
}

/* ---- a line ---- */

static bool append_member(di_buffer *out, const char *key, const char *text, di_error *err) {
    return di_buffer_append_text(out, ", \"", err) && di_buffer_append_text(out, key, err) &&
           di_buffer_append_text(out, "\": ", err) &&
           di_doc_write_string(text, strlen(text), out, err);
}

static bool append_report(session *s, const di_doc *line, const report *r, const di_buffer *results,
                          di_error *err) {
    di_buffer out = {0};
    char numbers[320];
    uint32_t name = line->count ? di_doc_member(line, 0, "name") : DI_DOC_NONE;
    double *us = s->masks.us + r->first_mask;
    size_t n = s->masks.count - r->first_mask;
    snprintf(numbers, sizeof numbers,
             ", \"compile_us\": %.1f, \"mask_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}, "
             "\"bytes\": %zu, \"results\": [",
             r->compile_us, percentile(us, n, 0.5), percentile(us, n, 0.99), percentile(us, n, 1),
             r->size.bytes);
    bool ok =
        di_buffer_append_text(&out, "{\"name\": ", err) &&
        (name != DI_DOC_NONE ? di_doc_write(line, name, &out, err)
                             : di_buffer_append_text(&out, "null", err)) &&
        append_member(&out, "status", r->status, err) &&
        append_member(&out, "reason", r->why.code == DI_OK ? r->ignored : r->why.message, err) &&
        di_buffer_append_text(&out, numbers, err) &&
        di_buffer_append(&out, results->data ? results->data : "", results->size, err) &&
        di_buffer_append_text(&out, "]}\n", err) && di_cli_write(out.data, out.size, err);
    di_buffer_free(&out);
    return ok;
}

static di_grammar *compile(session *s, const di_doc *line, report *r) {
    uint32_t schema = di_doc_member(line, 0, "schema");
    if (schema == DI_DOC_NONE) {
        di_fail(&r->why, DI_ERR_ARGUMENT, "the line has no \"schema\"");
        return NULL;
    }
    const di_doc_node *n = &line->nodes[schema];
    di_buffer text = {0};
    bool ok = n->type == DI_DOC_STRING ? di_buffer_append(&text, n->text, n->size, &r->why)
                                       : di_doc_write(line, schema, &text, &r->why);
    double begin = di_thread_now();
    di_grammar *g = ok ? di_grammar_compile(s->vocab, s->type, text.data ? text.data : "",
                                            text.size, &s->options, &r->why)
                       : NULL;
    r->compile_us = (di_thread_now() - begin) * 1e6;
    di_buffer_free(&text);
    return g;
}

static bool answer(session *s, const di_lines *lines, di_error *err) {
    report r = {.status = "ok", .ignored = "", .first_mask = s->masks.count};
    di_doc line = {0};
    di_buffer results = {0};
    di_grammar *g =
        di_doc_parse(&line, lines->text, lines->size, &r.why) ? compile(s, &line, &r) : NULL;
    if (g) {
        r.ignored = di_grammar_ignored(g);
        s->compiled++;
        if (!append_results(s, g, &line, &results, &r.why)) {
            results.size = 0;
        }
        r.size = di_grammar_measure(g);
        s->total_bytes += r.size.bytes;
        s->most_bytes = r.size.bytes > s->most_bytes ? r.size.bytes : s->most_bytes;
    }
    if (r.why.code != DI_OK) {
        r.status = r.why.code == DI_ERR_UNSUPPORTED ? "unsupported" : "error";
        s->refused++;
    }
    bool ok =
        add_time(&s->compiles, r.compile_us, err) && append_report(s, &line, &r, &results, err);
    di_grammar_release(g);
    di_buffer_free(&results);
    di_doc_free(&line);
    return ok;
}

static bool print_bench(session *s, di_error *err) {
    double *c = s->compiles.us, *m = s->masks.us;
    size_t nc = s->compiles.count, nm = s->masks.count;
    char text[640];
    int size = snprintf(
        text, sizeof text,
        "{\"grammars\": %zu, \"compiled\": %zu, \"masks\": %zu, \"compile_us\": {\"p50\": %.1f, "
        "\"p99\": %.1f, \"p99.9\": %.1f, \"max\": %.1f}, \"mask_us\": {\"p50\": %.2f, \"p99\": "
        "%.1f, \"p99.9\": %.1f, \"max\": %.1f}, \"bytes\": {\"mean\": %zu, \"max\": %zu}}\n",
        nc, s->compiled, nm, percentile(c, nc, 0.5), percentile(c, nc, 0.99),
        percentile(c, nc, 0.999), percentile(c, nc, 1), percentile(m, nm, 0.5),
        percentile(m, nm, 0.99), percentile(m, nm, 0.999), percentile(m, nm, 1),
        s->compiled ? s->total_bytes / s->compiled : 0, s->most_bytes);
    return di_cli_write(text, (size_t)size, err);
}

static bool open_session(session *s, const di_options *o, di_error *err) {
    const char *model = di_options_text(o, DI_OPT_MODEL, NULL);
    const char *path = di_options_text(o, DI_OPT_TOKENIZER, model);
    s->o = o;
    di_grammar_type_parse(o->values[DI_OPT_TYPE].text, &s->type);
    di_grammar_options_default(&s->options);
    s->options.lenient = o->values[DI_OPT_LENIENT].flag;
    s->options.strict = o->values[DI_OPT_STRICT].flag;
    s->options.any_order = o->values[DI_OPT_ANY_ORDER].flag;
    s->options.max_whitespace =
        (int)di_options_integer(o, DI_OPT_MAX_WHITESPACE, s->options.max_whitespace);
    s->tok = di_tokenizer_open(path, err);
    return s->tok && open_vocab(s, err);
}

int di_command_grammar(const di_options *o) {
    di_error err = {0};
    session s = {0};
    if (!o->values[DI_OPT_MODEL].given && !o->values[DI_OPT_TOKENIZER].given) {
        di_fail(&err, DI_ERR_ARGUMENT, "grammar: --model DIR or --tokenizer FILE is needed");
        (void)di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    bool ok = open_session(&s, o, &err);
    if (ok) {
        di_lines lines;
        ok = di_lines_open(&lines, "-", &err);
        while (ok && di_lines_next(&lines, &err)) {
            ok = di_lines_blank(&lines) || answer(&s, &lines, &err);
        }
        di_lines_close(&lines);
        ok = ok && err.code == DI_OK && (!o->values[DI_OPT_BENCH].flag || print_bench(&s, &err));
    }
    di_vocab_destroy(s.vocab);
    di_tokenizer_close(s.tok);
    di_free(s.mask);
    di_free(s.masks.us);
    di_free(s.compiles.us);
    return ok ? di_cli_finish(DI_EXIT_WELL) : di_cli_fail(&err);
}
