/* Any bytes as what a model writes: the first two choose the parser's settings and the cuts. The
 * cuts change nothing, and in repair mode the arguments of every call are a JSON object. */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/recipe/parser.h"
#include "text/recipe/value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok) {
    if (!ok) {
        abort();
    }
}

/* All that came out; arguments of the call in progress. */
typedef struct heard {
    const di_parsing *how;
    di_buffer all, arguments;
    bool in_call;
    int last; /* kind of piece, -1: none yet */
} heard;

static void check_arguments(heard *h) {
    di_pool pool = {0};
    di_value value;
    if (h->in_call && h->how->repair) {
        must(di_value_parse(&pool, h->arguments.data, h->arguments.size, DI_VALUE_MAX_DEPTH, &value,
                            NULL));
        must(value.type == DI_VALUE_OBJECT);
    }
    di_pool_free(&pool);
    h->arguments.size = 0;
}

static bool hear(void *context, const di_piece *piece, di_error *err) {
    heard *h = context;
    bool begins = piece->kind == DI_PIECE_CALL, argument = piece->kind > DI_PIECE_CALL;
    if (begins) {
        check_arguments(h);
        h->in_call = true;
    }
    if (argument) {
        must(h->in_call);
        must(di_buffer_append(&h->arguments, piece->text.data, piece->text.size, err));
    }
    int kind = argument ? DI_PIECE_ARGUMENTS : (int)piece->kind;
    if (kind != h->last || begins) { /* pieces of one kind join */
        must(di_buffer_append(&h->all, &"RCNA"[kind], 1, err));
    }
    h->last = kind;
    return di_buffer_append(&h->all, piece->text.data, piece->text.size, err);
}

static int listen(heard *h, const char *text, size_t size, unsigned step) {
    di_parser *p = di_parser_create(h->how, hear, h, NULL);
    must(p != NULL);
    for (size_t at = 0, to, n = 0; at < size; at = to, n++) {
        for (to = at + 1; to < size && (((unsigned char)text[to] & 0xC0) == 0x80 || to < at + step);
             to++) {
        }
        must(di_parser_push(p, text + at, to - at, DI_SOURCE_TEXT, n, NULL));
    }
    must(di_parser_finish(p, true, NULL));
    int stop = di_parser_stop(p);
    di_parser_destroy(p);
    if (stop < 0) {
        check_arguments(h);
    }
    return stop;
}

static void forget(heard *h) {
    di_buffer_free(&h->all);
    di_buffer_free(&h->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const di_str stops[] = {{"END", 3}, {"\n\n", 2}, {"</th", 4}};
    if (size < 2 || !di_utf8_valid((const char *)data + 2, size - 2, NULL)) {
        return 0;
    }
    const di_parsing how = {
        .tool_calls = data[0] & 1,
        .starts_in_tool_calls = (data[0] & 3) == 3,
        .repair = data[0] & 4,
        .json = (data[0] & 12) == 12, /* the recipe's own JSON mode depends on the cuts */
        .stage = (di_stage)(data[0] >> 4 & 3),
        .stops = stops,
        .stop_count = data[0] >> 6,
    };
    heard whole = {.how = &how, .last = -1}, cut = {.how = &how, .last = -1};
    int stop = listen(&whole, (const char *)data + 2, size - 2, 1u << 30);
    must(listen(&cut, (const char *)data + 2, size - 2, data[1] % 16u) == stop);
    must(whole.all.size == cut.all.size);
    must(whole.all.size == 0 || memcmp(whole.all.data, cut.all.data, whole.all.size) == 0);
    forget(&whole);
    forget(&cut);
    return 0;
}
