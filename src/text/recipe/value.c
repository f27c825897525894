/* Reading JSON into a pool: see value.h. */
#include "text/recipe/value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/utf8.h"

/* An array or object that is being read, and where in it the reader is. */
typedef struct frame {
    const struct frame *outer;
    bool object;
    di_str name;  /* of the member, in an object */
    size_t index; /* of the item, in an array */
} frame;

/* Children of open arrays and objects wait on a stack until their number is known. */
typedef struct parser {
    di_pool *pool;
    const char *text;
    size_t size, at;
    int depth, max_depth;
    bool once;          /* a name may come once in an object */
    const frame *frame; /* the innermost, on the C stack */
    size_t values;      /* so far */
    di_named_value *stack;
    size_t count, capacity;
    di_buffer string; /* of a string with escapes in it */
    di_error *err;
} parser;

static bool fail_at(parser *p, size_t at, const char *what) {
    size_t line = 1, begin = 0;
    for (size_t i = 0; i < at && i < p->size; i++) {
        if (p->text[i] == '\n') {
            line++;
            begin = i + 1;
        }
    }
    return di_fail(p->err, DI_ERR_FORMAT, "not valid JSON: %s at line %zu column %zu", what, line,
                   at - begin + 1);
}

static int peek(const parser *p) {
    return p->at < p->size ? (unsigned char)p->text[p->at] : -1;
}

static void skip_space(parser *p) {
    while (p->at < p->size && (p->text[p->at] == ' ' || p->text[p->at] == '\n' ||
                               p->text[p->at] == '\t' || p->text[p->at] == '\r')) {
        p->at++;
    }
}

static bool read_hex(parser *p, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        int c = peek(p);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            return fail_at(p, p->at, "four hexadecimal digits expected");
        }
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* Behind "\u". */
static bool read_unicode_escape(parser *p) {
    size_t begin = p->at;
    uint32_t c, low;
    if (!read_hex(p, &c)) {
        return false;
    }
    if (c >= 0xD800 && c < 0xE000) {
        bool pair = c < 0xDC00 && p->size - p->at >= 2 && p->text[p->at] == '\\' &&
                    p->text[p->at + 1] == 'u';
        p->at += pair ? 2 : 0;
        if (!pair || !read_hex(p, &low) || low < 0xDC00 || low >= 0xE000) {
            return fail_at(p, begin, "half of a surrogate pair");
        }
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    char utf8[4];
    return di_buffer_append(&p->string, utf8, (size_t)di_utf8_encode(c, utf8), p->err);
}

static bool read_escape(parser *p) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(p);
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (found) {
        p->at++;
        return di_buffer_append(&p->string, &to[found - from], 1, p->err);
    }
    if (c != 'u') {
        return fail_at(p, p->at, "an unknown escape");
    }
    p->at++;
    return read_unicode_escape(p);
}

/* At the character behind the opening quote. */
static bool read_string(parser *p, di_str *out) {
    p->string.size = 0;
    for (;;) {
        size_t begin = p->at;
        while (p->at < p->size && p->text[p->at] != '"' && p->text[p->at] != '\\' &&
               (unsigned char)p->text[p->at] >= 0x20) {
            p->at++;
        }
        bool plain = peek(p) == '"' && p->string.size == 0;
        if (!plain && !di_buffer_append(&p->string, p->text + begin, p->at - begin, p->err)) {
            return false;
        }
        int c = peek(p);
        if (c == '"') {
            const char *from = plain ? p->text + begin : p->string.data;
            size_t size = plain ? p->at - begin : p->string.size;
            p->at++;
            return di_pool_copy(p->pool, from, size, out, p->err);
        }
        if (c != '\\') {
            return fail_at(p, p->at, c < 0 ? "a string without an end" : "a control character");
        }
        p->at++;
        if (!read_escape(p)) {
            return false;
        }
    }
}

static bool digits(parser *p) {
    size_t begin = p->at;
    while (peek(p) >= '0' && peek(p) <= '9') {
        p->at++;
    }
    return p->at > begin || fail_at(p, p->at, "a digit expected");
}

static bool read_real(parser *p, size_t begin, di_value *out) {
    char small[64], *copy = small;
    size_t size = p->at - begin;
    if (size >= sizeof small && !(copy = di_alloc(size + 1))) {
        return di_fail(p->err, DI_ERR_NO_MEMORY, "no memory for a number of %zu digits", size);
    }
    memcpy(copy, p->text + begin, size);
    copy[size] = 0;
    *out = (di_value){.type = DI_VALUE_REAL, .real = strtod(copy, NULL)};
    if (copy != small) {
        di_free(copy);
    }
    return isfinite(out->real) || fail_at(p, begin, "a number out of range");
}

static bool read_number(parser *p, di_value *out) {
    size_t begin = p->at;
    bool negative = peek(p) == '-', whole = true;
    p->at += negative;
    if (peek(p) == '0') {
        p->at++;
    } else if (!digits(p)) {
        return false;
    }
    if (peek(p) == '.') {
        whole = false;
        p->at++;
        if (!digits(p)) {
            return false;
        }
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        whole = false;
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') {
            p->at++;
        }
        if (!digits(p)) {
            return false;
        }
    }
    uint64_t n = 0;
    for (size_t i = begin + negative; whole && i < p->at; i++) {
        whole = !__builtin_mul_overflow(n, 10, &n) &&
                !__builtin_add_overflow(n, (uint64_t)(p->text[i] - '0'), &n);
    }
    if (!whole || (negative && (n == 0 || n > (uint64_t)INT64_MAX + 1))) {
        return read_real(p, begin, out); /* -0 has a sign only as a real */
    }
    if (negative) {
        *out = (di_value){.type = DI_VALUE_INT, .integer = (int64_t)(0 - n)};
    } else {
        *out = (di_value){.type = DI_VALUE_UINT, .uint = n};
    }
    return true;
}

static bool push(parser *p, const di_named_value *member) {
    if (++p->values > DI_VALUE_MAX_COUNT) {
        return fail_at(p, p->at, "more than 1048576 values");
    }
    di_named_value *moved = di_grow(p->stack, p->count, &p->capacity, sizeof *moved);
    if (!moved) {
        return di_fail(p->err, DI_ERR_NO_MEMORY, "no memory for the values of a request");
    }
    p->stack = moved;
    p->stack[p->count++] = *member;
    return true;
}

typedef struct named {
    const di_named_value *member;
    size_t place;
} named;

static int by_name(const void *a, const void *b) {
    const named *x = a, *y = b;
    size_t shorter =
        x->member->name.size < y->member->name.size ? x->member->name.size : y->member->name.size;
    int order = shorter ? memcmp(x->member->name.data, y->member->name.data, shorter) : 0;
    if (order == 0 && x->member->name.size != y->member->name.size) {
        order = x->member->name.size < y->member->name.size ? -1 : 1;
    }
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

/* "messages[3].content[0]": what the frame is a value of. Returns the length, at most size - 1. */
static size_t write_path(const frame *f, char *out, size_t size) {
    if (!f || !f->outer) {
        out[0] = 0;
        return 0;
    }
    const frame *o = f->outer;
    size_t used = write_path(o, out, size);
    int added = o->object ? snprintf(out + used, size - used, "%s%.*s", used ? "." : "",
                                     di_str_shown(o->name, 64), o->name.data)
                          : snprintf(out + used, size - used, "[%zu]", o->index);
    used += added > 0 ? (size_t)added : 0;
    return used < size ? used : size - 1;
}

static bool refuse_double(const parser *p, di_str name) {
    char path[256];
    size_t used = write_path(p->frame, path, sizeof path);
    return di_fail(p->err, DI_ERR_FORMAT,
                   "%s%s%.*s comes twice; in one object each name is allowed once", path,
                   used ? "." : "", di_str_shown(name, 64), name.data);
}

/* Gives the first of equal names the last one's value and drops the others; sorting keeps an object
 * of many members from costing their square. */
static bool merge_members(parser *p, di_named_value *members, size_t *count) {
    named few[16], *sorted = few;
    if (*count > 16 && !(sorted = di_calloc(*count, sizeof *sorted))) {
        return di_fail(p->err, DI_ERR_NO_MEMORY, "no memory for the names of an object");
    }
    for (size_t i = 0; i < *count; i++) {
        sorted[i] = (named){&members[i], i};
    }
    qsort(sorted, *count, sizeof *sorted, by_name);
    bool doubles = false, ok = true;
    for (size_t i = 0, next; i < *count; i = next) {
        for (next = i + 1;
             next < *count && di_str_equal(sorted[i].member->name, sorted[next].member->name);) {
            next++;
        }
        if (p->once && next > i + 1) {
            refuse_double(p, sorted[i].member->name);
            ok = false;
            break;
        }
        members[sorted[i].place].value = members[sorted[next - 1].place].value;
        for (size_t j = i + 1; j < next; j++) {
            members[sorted[j].place].name.data = NULL; /* gone; names of values are never NULL */
            doubles = true;
        }
    }
    if (sorted != few) {
        di_free(sorted);
    }
    size_t kept = 0;
    for (size_t i = 0; doubles && i < *count; i++) {
        if (members[i].name.data) {
            members[kept++] = members[i];
        }
    }
    *count = doubles ? kept : *count;
    return ok;
}

static bool read_value(parser *p, di_value *out);

static bool finish_array(parser *p, size_t base, di_value *out) {
    size_t count = p->count - base;
    di_value *items = di_pool_take(p->pool, count, sizeof *items, p->err);
    if (!items) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        items[i] = p->stack[base + i].value;
    }
    p->count = base;
    *out = (di_value){.type = DI_VALUE_ARRAY, .array = {items, count}};
    return true;
}

static bool finish_object(parser *p, size_t base, di_value *out) {
    size_t count = p->count - base;
    if (count > 1 && !merge_members(p, p->stack + base, &count)) {
        return false;
    }
    di_named_value *members = di_pool_take(p->pool, count, sizeof *members, p->err);
    if (!members) {
        return false;
    }
    if (count > 0) {
        memcpy(members, p->stack + base, count * sizeof *members);
    }
    p->count = base;
    *out = (di_value){.type = DI_VALUE_OBJECT, .object = {members, count}};
    return true;
}

static bool read_name(parser *p, di_str *name) {
    if (peek(p) != '"') {
        return fail_at(p, p->at, "a name in quotes expected");
    }
    p->at++;
    if (!read_string(p, name)) {
        return false;
    }
    skip_space(p);
    if (peek(p) != ':') {
        return fail_at(p, p->at, "':' expected");
    }
    p->at++;
    return true;
}

/* What stands between the brackets, the closing one included; `f` is the innermost frame. */
static bool read_members(parser *p, frame *f, di_value *out) {
    size_t base = p->count;
    bool object = f->object;
    char end = object ? '}' : ']';
    skip_space(p);
    for (bool more = peek(p) != end; more;) {
        di_named_value member = {0};
        skip_space(p);
        if (object && !read_name(p, &member.name)) {
            return false;
        }
        f->name = member.name;
        if (!read_value(p, &member.value) || !push(p, &member)) {
            return false;
        }
        f->index++;
        skip_space(p);
        more = peek(p) == ',';
        if (!more && peek(p) != end) {
            return fail_at(p, p->at, object ? "',' or '}' expected" : "',' or ']' expected");
        }
        p->at += more;
    }
    p->at++;
    return object ? finish_object(p, base, out) : finish_array(p, base, out);
}

/* At the character behind the bracket. */
static bool read_list(parser *p, bool object, di_value *out) {
    if (++p->depth > p->max_depth) {
        return fail_at(p, p->at, "too many levels of nesting");
    }
    frame f = {.outer = p->frame, .object = object};
    p->frame = &f;
    bool ok = read_members(p, &f, out);
    p->frame = f.outer;
    p->depth--;
    return ok;
}

static bool read_word(parser *p, const char *word, di_value value, di_value *out) {
    size_t size = strlen(word);
    if (p->size - p->at < size || memcmp(p->text + p->at, word, size) != 0) {
        return fail_at(p, p->at, "a value expected");
    }
    p->at += size;
    *out = value;
    return true;
}

static bool read_value(parser *p, di_value *out) {
    skip_space(p);
    switch (peek(p)) {
    case '{':
    case '[':
        return read_list(p, p->text[p->at++] == '{', out);
    case '"':
        p->at++;
        *out = (di_value){.type = DI_VALUE_STRING};
        return read_string(p, &out->string);
    case 't':
        return read_word(p, "true", (di_value){.type = DI_VALUE_BOOL, .boolean = true}, out);
    case 'f':
        return read_word(p, "false", (di_value){.type = DI_VALUE_BOOL}, out);
    case 'n':
        return read_word(p, "null", (di_value){.type = DI_VALUE_NULL}, out);
    case -1:
        return fail_at(p, p->at, "a value expected, the text ends");
    default:
        if (peek(p) == '-' || (peek(p) >= '0' && peek(p) <= '9')) {
            return read_number(p, out);
        }
        return fail_at(p, p->at, "a value expected");
    }
}

static bool parse(parser *p, di_value *out) {
    size_t bad;
    bool ok = di_utf8_valid(p->text, p->size, &bad) || fail_at(p, bad, "invalid UTF-8");
    ok = ok && read_value(p, out);
    if (ok) {
        skip_space(p);
        ok = p->at == p->size || fail_at(p, p->at, "something behind the value");
    }
    di_free(p->stack);
    di_buffer_free(&p->string);
    return ok;
}

bool di_value_parse(di_pool *pool, const char *text, size_t size, int max_depth, di_value *out,
                    di_error *err) {
    parser p = {.pool = pool, .text = text, .size = size, .max_depth = max_depth, .err = err};
    return parse(&p, out);
}

bool di_value_parse_once(di_pool *pool, const char *text, size_t size, int max_depth, di_value *out,
                         di_error *err) {
    parser p = {.pool = pool, .text = text, .size = size, .max_depth = max_depth, .err = err};
    p.once = true;
    return parse(&p, out);
}

const di_value *di_value_get(const di_value *object, const char *name) {
    if (!di_value_is(object, DI_VALUE_OBJECT)) {
        return NULL;
    }
    size_t size = strlen(name);
    for (size_t i = 0; i < object->object.count; i++) {
        di_str n = object->object.members[i].name;
        if (n.size == size && memcmp(n.data, name, size) == 0) {
            return &object->object.members[i].value;
        }
    }
    return NULL;
}

const di_value *di_value_given(const di_value *object, const char *name) {
    const di_value *value = di_value_get(object, name);
    return value && value->type != DI_VALUE_NULL ? value : NULL;
}

const char *di_value_type_name(const di_value *value) {
    static const char *const names[] = {"null",     "a boolean", "an integer", "an integer",
                                        "a number", "a string",  "an array",   "an object"};
    return value ? names[value->type] : "nothing";
}
