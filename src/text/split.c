/* Pre-tokenisation by patterns, see split.h. */
#include "text/split.h"

#include <string.h>

static bool is_deepseek(const char *const *patterns, int count) {
    return count == 3 && strcmp(patterns[0], di_deepseek_patterns[0]) == 0 &&
           strcmp(patterns[1], di_deepseek_patterns[1]) == 0 &&
           strcmp(patterns[2], di_deepseek_patterns[2]) == 0;
}

bool di_splitter_create(di_splitter *s, const char *const *patterns, int count, di_error *err) {
    *s = (di_splitter){.deepseek = is_deepseek(patterns, count)};
    if (count > DI_SPLIT_MOST_PATTERNS) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "%d split patterns (at most %d are supported)",
                       count, (int)DI_SPLIT_MOST_PATTERNS);
    }
    for (; s->count < count; s->count++) {
        s->patterns[s->count] = di_regex_compile(patterns[s->count], err);
        if (!s->patterns[s->count]) {
            di_splitter_destroy(s);
            return false;
        }
    }
    if (s->deepseek && !di_char_classes_create(&s->classes, err)) {
        di_splitter_destroy(s);
        return false;
    }
    return true;
}

void di_splitter_destroy(di_splitter *s) {
    for (int i = 0; i < s->count; i++) {
        di_regex_free(s->patterns[i]);
    }
    di_char_classes_destroy(&s->classes);
    *s = (di_splitter){0};
}

typedef struct cut {
    const di_splitter *splitter;
    di_regex_run *run;
    di_piece_fn *piece;
    void *context;
    di_error *err;
} cut;

/* Cuts one piece by the patterns from `level` on. Recursion is as deep as there are patterns. */
static bool cut_piece(const cut *c, int level, const char *text, size_t size) {
    if (size == 0) {
        return true;
    }
    if (level == c->splitter->count) {
        return c->piece(c->context, text, size, c->err);
    }
    for (size_t from = 0; from < size;) {
        size_t begin, end;
        int found = di_regex_find(c->splitter->patterns[level], c->run, text, size, from, &begin,
                                  &end, c->err);
        if (found < 0) {
            return false;
        }
        if (found == 0) {
            return cut_piece(c, level + 1, text + from, size - from);
        }
        if (!cut_piece(c, level + 1, text + from, begin - from) ||
            !cut_piece(c, level + 1, text + begin, end - begin)) {
            return false;
        }
        from = end;
    }
    return true;
}

bool di_split_patterns(const di_splitter *s, const char *text, size_t size, di_piece_fn *piece,
                       void *context, di_error *err) {
    di_regex_run *run = di_regex_run_create(err);
    cut c = {s, run, piece, context, err};
    bool ok = run && cut_piece(&c, 0, text, size);
    di_regex_run_free(run);
    return ok;
}

bool di_split(const di_splitter *s, const char *text, size_t size, di_piece_fn *piece,
              void *context, di_error *err) {
    return s->deepseek ? di_split_deepseek(&s->classes, text, size, piece, context, err)
                       : di_split_patterns(s, text, size, piece, context, err);
}
