/* Patterns of tokenizer files through PCRE2, see regex.h. */
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

struct di_regex {
    pcre2_code *code;
};

struct di_regex_run {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static void *allocate(size_t size, void *unused) {
    (void)unused;
    return di_alloc(size);
}

static void release(void *p, void *unused) {
    (void)unused;
    di_free(p);
}

/* Unicode's White_Space, inside a class. PCRE2's own \s has U+180E as well, which lost that
 * property in Unicode 6.3 and which Oniguruma does not count. */
#define SPACES "\\x{9}-\\x{d}\\x{85}\\p{Z}"

/* What is being translated. */
typedef struct translation {
    const char *pattern, *at; /* *at is the next character */
    bool in_class;
    di_buffer out;
    di_error *err;
} translation;

static bool refuse(const translation *t, const char *what, size_t length) {
    return di_fail(t->err, DI_ERR_UNSUPPORTED,
                   "pattern \"%.200s\": \"%.*s\" at byte %zu is not supported", t->pattern,
                   (int)length, what, (size_t)(what - t->pattern));
}

static bool copy(translation *t, size_t length) {
    const char *from = t->at;
    t->at += length;
    return di_buffer_append(&t->out, from, length, t->err);
}

/* \p{L}, \P{Lu}: general categories only; scripts and the rest are not needed, so not compared. */
static bool translate_property(translation *t) {
    static const char groups[] = "LMNPSZC";
    const char *p = t->at;
    bool ok = p[2] == '{' && p[3] && strchr(groups, p[3]) &&
              (p[4] == '}' || (p[4] >= 'a' && p[4] <= 'z' && p[5] == '}'));
    if (!ok) {
        const char *end = strchr(p, '}');
        return refuse(t, p, end ? (size_t)(end - p) + 1 : strlen(p));
    }
    return copy(t, p[4] == '}' ? 5 : 6);
}

static bool translate_escape(translation *t) {
    const char *p = t->at;
    switch (p[1]) {
    case 'p':
    case 'P':
        return translate_property(t);
    case 's':
        t->at += 2;
        return di_buffer_append_text(&t->out, t->in_class ? SPACES : "[" SPACES "]", t->err);
    case 'S':
        if (t->in_class) {
            return refuse(t, p, 2);
        }
        t->at += 2;
        return di_buffer_append_text(&t->out, "[^" SPACES "]", t->err);
    case 'r':
    case 'n':
    case 't':
        return copy(t, 2);
    default:
        if (p[1] && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", p[1])) {
            return copy(t, 2);
        }
        return refuse(t, p, p[1] ? 2 : 1);
    }
}

/* {3}, {1,3}, {2,}; Oniguruma reads {,3} and what may follow a brace differently. */
static bool translate_count(translation *t) {
    const char *p = t->at + 1;
    size_t digits = strspn(p, "0123456789"), length = digits;
    if (p[length] == ',') {
        length++;
        length += strspn(p + length, "0123456789");
    }
    bool ok = digits > 0 && length <= 11 && p[length] == '}';
    if (!ok || (p[length + 1] && strchr("?+*{", p[length + 1]))) {
        return refuse(t, t->at, strcspn(t->at, "}") + (strchr(t->at, '}') != NULL));
    }
    return copy(t, length + 2);
}

static bool translate_class_character(translation *t) {
    const char *p = t->at;
    switch (*p) {
    case '[':
        return refuse(t, p, 1);
    case '&':
        return p[1] == '&' ? refuse(t, p, 2) : copy(t, 1);
    case '\\':
        return translate_escape(t);
    case ']':
        t->in_class = false;
        return copy(t, 1);
    default:
        return copy(t, 1);
    }
}

static bool translate_character(translation *t) {
    const char *p = t->at;
    switch (*p) {
    case '[':
        t->in_class = true;
        /* An empty class or one that begins with "]" is read in more than one way. */
        return p[1] == ']' || (p[1] == '^' && p[2] == ']') ? refuse(t, p, 2)
                                                           : copy(t, p[1] == '^' ? 2 : 1);
    case '\\':
        return translate_escape(t);
    case '(':
        if (p[1] == '*' || (p[1] == '?' && (!p[2] || !strchr(":=!", p[2])))) {
            return refuse(t, p, p[2] ? 3 : 2);
        }
        return copy(t, p[1] == '?' ? 3 : 1);
    case '{':
        return translate_count(t);
    case '.':
    case '^':
    case '$':
        return refuse(t, p, 1);
    default:
        return copy(t, 1);
    }
}

static bool translate(translation *t) {
    while (*t->at) {
        if (!(t->in_class ? translate_class_character(t) : translate_character(t))) {
            return false;
        }
    }
    return true;
}

static bool compile(di_regex *r, const char *pattern, const di_buffer *translated, di_error *err) {
    pcre2_general_context *memory = pcre2_general_context_create(allocate, release, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    int code = 0;
    size_t offset = 0;
    if (context) {
        r->code =
            pcre2_compile((PCRE2_SPTR)translated->data, translated->size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (!r->code) {
        if (!context || code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a pattern");
        }
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return di_fail(err, DI_ERR_FORMAT, "pattern \"%.200s\": %s", pattern, why);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "pattern \"%.200s\" can match an empty text",
                       pattern);
    }
    /* Where the system forbids new code at run time this fails, and matching is only slower. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return true;
}

di_regex *di_regex_compile(const char *pattern, di_error *err) {
    translation t = {.pattern = pattern, .at = pattern, .err = err};
    di_regex *r = di_calloc(1, sizeof *r);
    bool ok = r != NULL;
    if (!ok) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a pattern");
    }
    ok = ok && di_buffer_append_text(&t.out, "", err) && translate(&t) &&
         compile(r, pattern, &t.out, err);
    di_buffer_free(&t.out);
    if (!ok) {
        di_regex_free(r);
        return NULL;
    }
    return r;
}

void di_regex_free(di_regex *r) {
    if (r) {
        pcre2_code_free(r->code);
        di_free(r);
    }
}

di_regex_run *di_regex_run_create(di_error *err) {
    pcre2_general_context *memory = pcre2_general_context_create(allocate, release, NULL);
    di_regex_run *run = di_calloc(1, sizeof *run);
    if (memory && run) {
        run->data = pcre2_match_data_create(1, memory);
        run->context = pcre2_match_context_create(memory);
        run->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, memory);
    }
    pcre2_general_context_free(memory);
    if (!run || !run->data || !run->context) {
        di_regex_run_free(run);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory to match a pattern");
        return NULL;
    }
    /* Patterns come with the model, texts may be large: no limit but memory's. */
    pcre2_set_match_limit(run->context, UINT32_MAX);
    if (run->stack) {
        pcre2_jit_stack_assign(run->context, NULL, run->stack);
    }
    return run;
}

void di_regex_run_free(di_regex_run *run) {
    if (run) {
        pcre2_match_data_free(run->data);
        pcre2_match_context_free(run->context);
        pcre2_jit_stack_free(run->stack);
        di_free(run);
    }
}

int di_regex_find(const di_regex *r, di_regex_run *run, const char *text, size_t size, size_t from,
                  size_t *begin, size_t *end, di_error *err) {
    int n = pcre2_match(r->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, run->data,
                        run->context);
    if (n == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    if (n < 0) {
        char why[128] = "";
        pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why);
        di_fail(err, n == PCRE2_ERROR_NOMEMORY ? DI_ERR_NO_MEMORY : DI_ERR_INTERNAL,
                "splitting the text into words: %s", why);
        return -1;
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(run->data);
    *begin = at[0];
    *end = at[1];
    return 1;
}
