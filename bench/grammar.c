/* How long grammars take to compile and masks to make: one thread, the V4 tokenizer's vocabulary,
 * every token of valid instances of many schemas. Each figure is the best of three whole passes in
 * time that the thread computed, so that a busy machine's interruptions fall away while the first
 * mask of every state counts.
 *
 *   grammar [TOKENIZER [SCHEMAS.jsonl]]
 *
 * By default the schemas of $BENCH_SCHEMAS, or else some made by tools/grammar-sample.py.
 * grammar_peer.py runs llguidance and XGrammar on the same; the times of each schema, for
 * percentiles over those that a peer compiled too, go to the file $BENCH_RAW if it is named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "engine/vocabulary.h"
#include "grammar/doc.h"
#include "grammar/grammar.h"

enum { PASSES = 3, MAX_FILE = 1 << 30 };
#define STOP_TOKEN "<｜end▁of▁sentence｜>"

/* Microseconds of the events of a pass, in order; of later passes the smaller ones are kept. */
typedef struct times {
    double *us;
    size_t count, capacity;
    size_t at; /* in this pass */
} times;

/* What belongs to a schema among the times. */
typedef struct part {
    bool compiled;
    size_t compile, mask, num_masks;
} part;

typedef struct bench {
    di_tokenizer *tok;
    di_vocab *vocab;
    uint32_t *mask;
    times compiles, masks, pushes;
    part *parts;
    size_t num_parts, cap_parts;
    size_t compiled, refused, wrong, let_in, bytes, most_bytes, states;
} bench;

_Noreturn static void die(const di_error *err) {
    fprintf(stderr, "grammar: %s\n", err->message);
    exit(1);
}

static void note(times *t, double seconds) {
    double us = seconds * 1e6;
    if (t->at == t->count) {
        double *grown = di_grow(t->us, t->count, &t->capacity, sizeof *grown);
        if (!grown) {
            exit(1);
        }
        t->us = grown;
        t->us[t->count++] = us;
    } else if (us < t->us[t->at]) {
        t->us[t->at] = us;
    }
    t->at++;
}

/* A line for each schema: the compile's time and those of its masks. */
static void write_raw(const bench *b, const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        exit(1);
    }
    for (size_t i = 0; i < b->num_parts; i++) {
        const part *p = &b->parts[i];
        if (p->compiled) {
            fprintf(f, "%.3f", b->compiles.us[p->compile]);
        }
        for (size_t k = 0; k < p->num_masks; k++) {
            fprintf(f, " %.3f", b->masks.us[p->mask + k]);
        }
        fprintf(f, "\n");
    }
    fclose(f);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, times *t) {
    static const double shares[] = {0.5, 0.9, 0.99, 0.999, 1};
    double sum = 0;
    if (t->count == 0) {
        printf("deepinfer    %-8s none\n", what);
        return;
    }
    qsort(t->us, t->count, sizeof *t->us, by_size);
    for (size_t i = 0; i < t->count; i++) {
        sum += t->us[i];
    }
    printf("deepinfer    %-8s n %8zu  mean %9.2f", what, t->count, sum / (double)t->count);
    for (int s = 0; s < 5; s++) {
        size_t at = (size_t)(shares[s] * (double)t->count);
        printf("  %s %9.2f", (const char *[]){"p50", "p90", "p99", "p99.9", "max"}[s],
               t->us[at < t->count ? at : t->count - 1]);
    }
    printf(" us\n");
}

/* Follows an instance as far as it is allowed; times count for valid ones. */
static void follow(bench *b, di_grammar *g, const di_doc *line, uint32_t data, bool valid) {
    di_error err;
    di_buffer text = {0};
    di_ids ids = {0};
    di_matcher *m = di_matcher_create(g, &err);
    if (!m || !di_doc_write(line, data, &text, &err) ||
        !di_tokenizer_encode(b->tok, text.data, text.size, DI_ENCODE_PLAIN, &ids, &err)) {
        die(&err);
    }
    bool ok = true;
    for (size_t i = 0; ok && i < ids.count; i++) {
        double begin = di_thread_now();
        ok = di_matcher_mask(m, b->mask, &err);
        double middle = di_thread_now();
        ok = ok && di_matcher_push(m, ids.data[i], &err);
        if (valid) {
            note(&b->pushes, di_thread_now() - middle);
            note(&b->masks, middle - begin);
        }
    }
    ok = ok && di_matcher_may_end(m);
    b->wrong += valid && !ok;
    b->let_in += !valid && ok;
    di_matcher_destroy(m);
    di_ids_free(&ids);
    di_buffer_free(&text);
}

static void run_line(bench *b, const char *json, size_t size) {
    di_error err;
    di_doc line = {0};
    di_buffer schema = {0};
    di_grammar_options o;
    di_grammar_options_default(&o);
    if (!di_doc_parse(&line, json, size, &err) ||
        !di_doc_write(&line, di_doc_member(&line, 0, "schema"), &schema, &err)) {
        die(&err);
    }
    double begin = di_thread_now();
    di_grammar *g =
        di_grammar_compile(b->vocab, DI_GRAMMAR_JSON_SCHEMA, schema.data, schema.size, &o, &err);
    double took = di_thread_now() - begin;
    b->refused += !g;
    part p = {.compiled = g != NULL, .compile = b->compiles.at, .mask = b->masks.at};
    if (g) {
        b->compiled++;
        note(&b->compiles, took);
        uint32_t tests = di_doc_member(&line, 0, "tests");
        for (uint32_t i = line.nodes[tests].first; i != DI_DOC_NONE; i = line.nodes[i].next) {
            uint32_t valid = di_doc_member(&line, i, "valid");
            follow(b, g, &line, di_doc_member(&line, i, "data"),
                   line.nodes[valid].type == DI_DOC_TRUE);
        }
        di_grammar_size z = di_grammar_measure(g);
        b->bytes += z.bytes;
        b->states += z.states;
        b->most_bytes = z.bytes > b->most_bytes ? z.bytes : b->most_bytes;
        di_grammar_release(g);
    }
    p.num_masks = b->masks.at - p.mask;
    part *parts = di_grow(b->parts, b->num_parts, &b->cap_parts, sizeof *parts);
    if (!parts) {
        exit(1);
    }
    b->parts = parts;
    b->parts[b->num_parts++] = p;
    di_buffer_free(&schema);
    di_doc_free(&line);
}

int main(int argc, char **argv) {
    const char *data = getenv("TESTDATA") ? getenv("TESTDATA") : "build/testdata";
    char tokenizer[512], file[512];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer-v4", data);
    snprintf(file, sizeof file, "%s/grammar/schemas.jsonl", data);
    const char *named = getenv("BENCH_SCHEMAS");
    const char *path = argc > 1 ? argv[1] : tokenizer;
    const char *schemas = argc > 2 ? argv[2] : named ? named : file;
    bench b = {0};
    di_error err;
    char *text;
    size_t size;
    if (!(b.tok = di_tokenizer_open(path, &err)) ||
        !di_file_read(schemas, MAX_FILE, &text, &size, &err)) {
        die(&err);
    }
    double begin = di_thread_now();
    int32_t n = di_tokenizer_vocab_size(b.tok), stop = di_tokenizer_id(b.tok, STOP_TOKEN);
    b.vocab = di_vocabulary_create(b.tok, n, stop, &err);
    if (!b.vocab || !(b.mask = di_calloc((size_t)b.vocab->num_words, sizeof *b.mask))) {
        die(&err);
    }
    /* The peer finds its files by these two lines. */
    printf("tokenizer: %s\nschemas:   %s\n", path, schemas);
    printf("vocabulary of %d tokens sorted in %.0f ms\n", n, 1e3 * (di_thread_now() - begin));
    for (int pass = 0; pass < PASSES; pass++) {
        b.compiled = b.refused = b.wrong = b.let_in = b.bytes = b.states = b.num_parts = 0;
        b.compiles.at = b.masks.at = b.pushes.at = 0;
        for (const char *at = text, *end; at < text + size; at = end + 1) {
            end = memchr(at, '\n', (size_t)(text + size - at));
            end = end ? end : text + size;
            if (end > at) {
                run_line(&b, at, (size_t)(end - at));
            }
        }
    }
    if (getenv("BENCH_RAW")) {
        write_raw(&b, getenv("BENCH_RAW"));
    }
    report("compile", &b.compiles);
    report("mask", &b.masks);
    report("push", &b.pushes);
    printf("deepinfer    %zu schemas refused, %zu valid instances refused, %zu invalid accepted\n",
           b.refused, b.wrong, b.let_in);
    printf("deepinfer    a grammar %.2f MB after use (largest %.2f), %.0f states of %.0f bytes; a "
           "matcher 8 bytes a token\n",
           (double)b.bytes / 1e6 / (double)b.compiled, (double)b.most_bytes / 1e6,
           (double)b.states / (double)b.compiled, (double)b.bytes / (double)b.states);
    di_free(text);
    di_free(b.mask);
    di_free(b.compiles.us);
    di_free(b.masks.us);
    di_free(b.pushes.us);
    di_free(b.parts);
    di_vocab_destroy(b.vocab);
    di_tokenizer_close(b.tok);
    return 0;
}
