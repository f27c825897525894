/* Any bytes as text, with the demo model's tokenizer: invalid UTF-8 is refused at the right place;
 * the rest comes back byte for byte, cut by the matcher as by PCRE2, streamed as decoded whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/split.h"
#include "text/tokenizer.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static di_tokenizer *tok;
static di_splitter splitter;

static void must(bool ok) {
    if (!ok) {
        abort();
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    di_error err = {0};
    tok = di_tokenizer_open("models/demo", &err);
    if (!tok || !di_splitter_create(&splitter, di_deepseek_patterns, 3, &err)) {
        fprintf(stderr, "%s (run this from the repository's root)\n", err.message);
        exit(1);
    }
    return 0;
}

/* A digest of where the pieces end. */
typedef struct pieces {
    const char *end;
    uint64_t digest;
} pieces;

static bool note_piece(void *context, const char *piece, size_t size, di_error *err) {
    (void)err;
    pieces *p = context;
    must(size > 0 && piece == p->end);
    p->end = piece + size;
    p->digest = p->digest * 0x100000001B3u + size;
    return true;
}

static void check_split(const char *text, size_t size) {
    pieces ours = {text, 0}, theirs = {text, 0};
    di_error err;
    must(di_split_deepseek(&splitter.classes, text, size, note_piece, &ours, &err));
    must(di_split_patterns(&splitter, text, size, note_piece, &theirs, &err));
    must(ours.end == text + size && theirs.end == text + size && ours.digest == theirs.digest);
}

/* Streams the ids from `cut` on behind a prompt of those before it. */
static void check_stream(const di_ids *ids, size_t cut, const di_buffer *whole) {
    di_detokenizer d;
    di_buffer out = {0};
    di_detokenizer_init(&d, tok);
    di_detokenizer_prime(&d, ids->data, cut);
    for (size_t i = cut; i < ids->count; i++) {
        size_t before = out.size;
        must(di_detokenizer_push(&d, ids->data[i], &out, NULL));
        must(out.size == before || di_utf8_valid(out.data + before, out.size - before, NULL));
    }
    must(di_detokenizer_finish(&d, &out, NULL));
    must(out.size <= whole->size &&
         (out.size == 0 || memcmp(whole->data + whole->size - out.size, out.data, out.size) == 0));
    must(cut > 0 || out.size == whole->size);
    di_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    size_t bad = 0;
    bool valid = di_utf8_valid(text, size, &bad);
    di_ids ids = {0};
    di_error err = {0};
    for (int mode = 0; mode < 2; mode++) {
        ids.count = 0;
        bool ok = di_tokenizer_encode(tok, text, size, mode ? DI_ENCODE_ADDED : DI_ENCODE_PLAIN,
                                      &ids, &err);
        must(ok == valid);
        if (!ok) {
            char where[32];
            snprintf(where, sizeof where, "offset %zu", bad);
            must(strstr(err.message, where) != NULL);
            continue;
        }
        di_buffer whole = {0};
        must(di_detokenize(tok, ids.data, ids.count, &whole, NULL));
        must(whole.size == size && (size == 0 || memcmp(whole.data, text, size) == 0));
        check_stream(&ids, 0, &whole);
        check_stream(&ids, ids.count / 2, &whole);
        check_stream(&ids, ids.count, &whole);
        di_buffer_free(&whole);
    }
    if (valid) {
        check_split(text, size);
    }
    di_ids_free(&ids);
    return 0;
}
