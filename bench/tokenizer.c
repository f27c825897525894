/* How fast text becomes ids and ids become text: one thread, best of several runs.
 *
 *   tokenizer [FOLDER or tokenizer.json [TEXT.txt]]
 *
 * By default DeepSeek-V4's tokenizer and a novel from the test data. tokenizer_peer.py times the
 * `tokenizers` library on the same files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "text/detokenizer.h"
#include "text/split.h"
#include "text/tokenizer.h"

enum { RUNS = 15 };

_Noreturn static void die(const di_error *err) {
    fprintf(stderr, "tokenizer: %s\n", err->message);
    exit(1);
}

static void report(const char *name, size_t bytes, size_t count, const char *unit, double best) {
    printf("%-28s %9zu bytes %8zu %-7s %9.3f ms %8.1f MiB/s\n", name, bytes, count, unit,
           1e3 * best, (double)bytes / best / 1048576);
}

static void bench_encode(const di_tokenizer *tok, const char *name, const char *text, size_t size,
                         di_ids *ids) {
    double best = 1e9;
    di_error err;
    for (int run = 0; run < RUNS; run++) {
        ids->count = 0;
        double start = di_now();
        if (!di_tokenizer_encode(tok, text, size, DI_ENCODE_ADDED, ids, &err)) {
            die(&err);
        }
        double took = di_now() - start;
        best = took < best ? took : best;
    }
    report(name, size, ids->count, "ids", best);
}

static void bench_repeated(const di_tokenizer *tok, const char *name, const char *unit,
                           size_t count) {
    size_t each = strlen(unit);
    char *text = malloc(each * count);
    for (size_t i = 0; text && i < count; i++) {
        /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): a piece of a text that has a size */
        memcpy(text + i * each, unit, each);
    }
    di_ids ids = {0};
    bench_encode(tok, name, text, each * count, &ids);
    di_ids_free(&ids);
    free(text);
}

static void bench_decode(const di_tokenizer *tok, const di_ids *ids) {
    double best = 1e9;
    di_error err;
    di_buffer text = {0};
    for (int run = 0; run < RUNS; run++) {
        text.size = 0;
        double start = di_now();
        if (!di_detokenize(tok, ids->data, ids->count, &text, &err)) {
            die(&err);
        }
        double took = di_now() - start;
        best = took < best ? took : best;
    }
    report("decode", text.size, ids->count, "ids", best);
    di_buffer_free(&text);
}

static bool count_piece(void *context, const char *piece, size_t size, di_error *err) {
    (void)piece;
    (void)size;
    (void)err;
    ++*(size_t *)context;
    return true;
}

static void bench_split(const char *text, size_t size, bool patterns) {
    di_splitter s;
    di_error err;
    size_t pieces = 0;
    double best = 1e9;
    if (!di_splitter_create(&s, di_deepseek_patterns, 3, &err)) {
        die(&err);
    }
    for (int run = 0; run < RUNS; run++) {
        pieces = 0;
        double start = di_now();
        bool ok = patterns ? di_split_patterns(&s, text, size, count_piece, &pieces, &err)
                           : di_split_deepseek(&s.classes, text, size, count_piece, &pieces, &err);
        double took = di_now() - start;
        if (!ok) {
            die(&err);
        }
        best = took < best ? took : best;
    }
    report(patterns ? "split, by PCRE2" : "split, by our own matcher", size, pieces, "pieces",
           best);
    di_splitter_destroy(&s);
}

int main(int argc, char **argv) {
    const char *data = getenv("TESTDATA") ? getenv("TESTDATA") : "build/testdata";
    char folder[512], file[512];
    snprintf(folder, sizeof folder, "%s/tokenizer-v4", data);
    snprintf(file, sizeof file, "%s/text/english.txt", data);
    const char *tokenizer_path = argc > 1 ? argv[1] : folder,
               *text_path = argc > 2 ? argv[2] : file;

    di_error err;
    double start = di_now();
    di_tokenizer *tok = di_tokenizer_open(tokenizer_path, &err);
    double load = di_now() - start;
    char *text;
    size_t size;
    if (!tok || !di_file_read(text_path, (size_t)1 << 30, &text, &size, &err)) {
        die(&err);
    }
    /* The peer finds its files by these two lines. */
    printf("tokenizer: %s\ntext:      %s\n", tokenizer_path, text_path);
    printf("%-28s %53.3f ms\n", "open", 1e3 * load);
    di_ids ids = {0};
    bench_encode(tok, "encode", text, size, &ids);
    bench_decode(tok, &ids);
    bench_encode(tok, "encode, a short prompt", text, size < 200 ? size : 200, &ids);
    bench_split(text, size, false);
    bench_split(text, size, true);
    bench_repeated(tok, "encode, 40,000 Han", "漢", 40000);
    bench_repeated(tok, "encode, one letter", "a", 512 << 10);
    di_ids_free(&ids);
    di_free(text);
    di_tokenizer_close(tok);
    return 0;
}
