/* Reading and writing JSON for schemas; see doc.h. */
#include "grammar/doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

typedef struct parser {
    di_doc *d;
    const char *text;
    size_t size, at;
    char *out; /* where the next decoded byte goes */
    int depth;
    di_error *err;
} parser;

static bool fail(parser *p, const char *what) {
    long line = 1, column = 1;
    for (size_t i = 0; i < p->at && i < p->size; i++) {
        column = p->text[i] == '\n' ? 1 : column + ((p->text[i] & 0xC0) != 0x80);
        line += p->text[i] == '\n';
    }
    return di_fail(p->err, DI_ERR_ARGUMENT, "line %ld, column %ld: %s", line, column, what);
}

static int peek(const parser *p) {
    return p->at < p->size ? (uint8_t)p->text[p->at] : -1;
}

static void skip_space(parser *p) {
    while (peek(p) == ' ' || peek(p) == '\t' || peek(p) == '\n' || peek(p) == '\r') {
        p->at++;
    }
}

static bool hex4(parser *p, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++) {
        int c = peek(p);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            return fail(p, "\\u needs four hexadecimal digits");
        }
        *value = *value << 4 | (uint32_t)digit;
        p->at++;
    }
    return true;
}

static bool unicode_escape(parser *p) {
    uint32_t c, low;
    if (!hex4(p, &c)) {
        return false;
    }
    if (c >= 0xD800 && c <= 0xDFFF) {
        if (c >= 0xDC00 || p->size - p->at < 6 || p->text[p->at] != '\\' ||
            p->text[p->at + 1] != 'u') {
            return fail(p, "half a surrogate pair");
        }
        p->at += 2;
        if (!hex4(p, &low)) {
            return false;
        }
        if (low < 0xDC00 || low > 0xDFFF) {
            return fail(p, "half a surrogate pair");
        }
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    p->out += di_utf8_encode(c, p->out);
    return true;
}

/* At the opening quote. The decoded text is never longer than the written one. */
static bool string(parser *p, const char **text, uint32_t *size) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    *text = p->out;
    p->at++;
    for (;;) {
        int c = peek(p);
        if (c < 0x20) {
            return fail(p, c < 0 ? "a string is not closed" : "a control character in a string");
        }
        p->at++;
        if (c == '"') {
            break;
        }
        if (c != '\\') {
            *p->out++ = (char)c;
            continue;
        }
        c = peek(p);
        const char *name = c > 0 && c < 0x80 ? strchr(names, c) : NULL;
        if (name) {
            p->at++;
            *p->out++ = values[name - names];
        } else if (c == 'u') {
            p->at++;
            if (!unicode_escape(p)) {
                return false;
            }
        } else {
            return fail(p, "an unknown escape");
        }
    }
    *size = (uint32_t)(p->out - *text);
    return true;
}

static size_t digits(parser *p) {
    size_t begin = p->at;
    while (peek(p) >= '0' && peek(p) <= '9') {
        p->at++;
    }
    return p->at - begin;
}

static bool number(parser *p, const char **text, uint32_t *size) {
    size_t begin = p->at;
    p->at += peek(p) == '-';
    bool ok = peek(p) == '0' ? ++p->at > 0 : digits(p) > 0;
    if (ok && peek(p) == '.') {
        p->at++;
        ok = digits(p) > 0;
    }
    if (ok && (peek(p) | 32) == 'e') {
        p->at++;
        p->at += peek(p) == '-' || peek(p) == '+';
        ok = digits(p) > 0;
    }
    if (!ok) {
        return fail(p, "a value is expected");
    }
    *size = (uint32_t)(p->at - begin);
    *text = p->out;
    memcpy(p->out, p->text + begin, *size);
    p->out += *size;
    return true;
}

static bool add_node(parser *p, uint32_t parent, uint32_t *out) {
    di_doc_node *nodes = di_grow(p->d->nodes, p->d->count, &p->d->capacity, sizeof *nodes);
    if (!nodes) {
        return di_fail(p->err, DI_ERR_NO_MEMORY, "no memory for a JSON text");
    }
    p->d->nodes = nodes;
    *out = (uint32_t)p->d->count++;
    nodes[*out] = (di_doc_node){.parent = parent, .first = DI_DOC_NONE, .next = DI_DOC_NONE};
    return true;
}

static bool word(parser *p, const char *name, di_doc_type type, uint32_t node) {
    size_t length = strlen(name);
    if (p->size - p->at < length || memcmp(p->text + p->at, name, length) != 0) {
        return fail(p, "a value is expected");
    }
    p->at += length;
    p->d->nodes[node].type = (uint8_t)type;
    return true;
}

/* Members by name, to find those that stand twice. */
static int by_key(const void *pa, const void *pb) {
    const di_doc_node *a = *(const di_doc_node *const *)pa, *b = *(const di_doc_node *const *)pb;
    uint32_t n = a->key_size < b->key_size ? a->key_size : b->key_size;
    int c = n ? memcmp(a->key, b->key, n) : 0;
    return c ? c : (a->key_size > b->key_size) - (a->key_size < b->key_size);
}

static bool check_unique(parser *p, uint32_t object) {
    const di_doc_node *nodes = p->d->nodes;
    uint32_t count = nodes[object].count, n = 0;
    if (count < 2) {
        return true;
    }
    const di_doc_node **sorted = di_realloc_array(NULL, count, sizeof *sorted);
    if (!sorted) {
        return di_fail(p->err, DI_ERR_NO_MEMORY, "no memory for a JSON text");
    }
    for (uint32_t i = nodes[object].first; i != DI_DOC_NONE; i = nodes[i].next) {
        sorted[n++] = &nodes[i];
    }
    qsort(sorted, count, sizeof *sorted, by_key);
    bool unique = true;
    for (uint32_t i = 1; unique && i < count; i++) {
        unique = by_key(&sorted[i - 1], &sorted[i]) != 0;
    }
    di_free(sorted);
    return unique || fail(p, "an object has two members of one name");
}

static bool value(parser *p, uint32_t parent, uint32_t *out);

static bool members(parser *p, uint32_t node, bool object) {
    uint32_t last = DI_DOC_NONE;
    int close = object ? '}' : ']';
    p->at++;
    skip_space(p);
    if (peek(p) == close) {
        p->at++;
        return true;
    }
    for (;;) {
        const char *key = NULL;
        uint32_t key_size = 0, child;
        skip_space(p);
        if (object) {
            if (peek(p) != '"') {
                return fail(p, "a member's name in quotes is expected");
            }
            if (!string(p, &key, &key_size)) {
                return false;
            }
            skip_space(p);
            if (peek(p) != ':') {
                return fail(p, "':' is expected");
            }
            p->at++;
        }
        if (!value(p, node, &child)) {
            return false;
        }
        di_doc_node *nodes = p->d->nodes;
        nodes[child].key = key;
        nodes[child].key_size = key_size;
        nodes[child].index = nodes[node].count++;
        *(last == DI_DOC_NONE ? &nodes[node].first : &nodes[last].next) = child;
        last = child;
        skip_space(p);
        if (peek(p) == close) {
            p->at++;
            return !object || check_unique(p, node);
        }
        if (peek(p) != ',') {
            return fail(p, object ? "',' or '}' is expected" : "',' or ']' is expected");
        }
        p->at++;
    }
}

static bool value(parser *p, uint32_t parent, uint32_t *out) {
    uint32_t node = 0;
    skip_space(p);
    if (!add_node(p, parent, &node)) {
        return false;
    }
    *out = node;
    const char *text = NULL;
    uint32_t size = 0;
    bool ok;
    switch (peek(p)) {
    case '{':
    case '[': {
        bool object = peek(p) == '{';
        p->d->nodes[node].type = object ? DI_DOC_OBJECT : DI_DOC_ARRAY;
        if (++p->depth > DI_DOC_MAX_DEPTH) {
            return fail(p, "nested deeper than 200");
        }
        ok = members(p, node, object);
        p->depth--;
        return ok;
    }
    case '"':
        ok = string(p, &text, &size);
        p->d->nodes[node].type = DI_DOC_STRING;
        break;
    case 't':
        return word(p, "true", DI_DOC_TRUE, node);
    case 'f':
        return word(p, "false", DI_DOC_FALSE, node);
    case 'n':
        return word(p, "null", DI_DOC_NULL, node);
    default:
        ok = number(p, &text, &size);
        p->d->nodes[node].type = DI_DOC_NUMBER;
    }
    p->d->nodes[node].text = text;
    p->d->nodes[node].size = size;
    return ok;
}

bool di_doc_parse(di_doc *d, const char *text, size_t size, di_error *err) {
    *d = (di_doc){0};
    parser p = {.d = d, .text = text, .size = size, .err = err};
    size_t bad;
    if (!di_utf8_valid(text, size, &bad)) {
        p.at = bad;
        return fail(&p, "not UTF-8");
    }
    if (size >= UINT32_MAX || !(d->text = di_alloc(size + 1))) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a JSON text of %zu bytes", size);
    }
    p.out = d->text;
    uint32_t root;
    bool ok = value(&p, DI_DOC_NONE, &root);
    if (ok) {
        skip_space(&p);
        ok = p.at == size || fail(&p, "more text behind the value");
    }
    if (!ok) {
        di_doc_free(d);
    }
    return ok;
}

void di_doc_free(di_doc *d) {
    di_free(d->nodes);
    di_free(d->text);
    *d = (di_doc){0};
}

uint32_t di_doc_member(const di_doc *d, uint32_t object, const char *key) {
    if (d->nodes[object].type != DI_DOC_OBJECT) {
        return DI_DOC_NONE;
    }
    size_t size = strlen(key);
    uint32_t i = d->nodes[object].first;
    while (i != DI_DOC_NONE &&
           (d->nodes[i].key_size != size || memcmp(d->nodes[i].key, key, size) != 0)) {
        i = d->nodes[i].next;
    }
    return i;
}

bool di_doc_write_string(const char *text, size_t size, di_buffer *out, di_error *err) {
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    bool ok = di_buffer_append(out, "\"", 1, err);
    size_t from = 0;
    for (size_t i = 0; ok && i < size; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        char escape[8] = {'\\'};
        const char *v = c ? strchr(values, c) : NULL;
        if (v) {
            escape[1] = names[v - values];
        } else {
            snprintf(escape + 1, sizeof escape - 1, "u%04x", c);
        }
        ok = di_buffer_append(out, text + from, i - from, err) &&
             di_buffer_append_text(out, escape, err);
        from = i + 1;
    }
    return ok && di_buffer_append(out, text + from, size - from, err) &&
           di_buffer_append(out, "\"", 1, err);
}

bool di_doc_write(const di_doc *d, uint32_t node, di_buffer *out, di_error *err) {
    static const char *const words[] = {"null", "false", "true"};
    const di_doc_node *n = &d->nodes[node];
    if (n->type <= DI_DOC_TRUE) {
        return di_buffer_append_text(out, words[n->type], err);
    }
    if (n->type == DI_DOC_NUMBER) {
        return di_buffer_append(out, n->text, n->size, err);
    }
    if (n->type == DI_DOC_STRING) {
        return di_doc_write_string(n->text, n->size, out, err);
    }
    bool object = n->type == DI_DOC_OBJECT;
    bool ok = di_buffer_append(out, object ? "{" : "[", 1, err);
    for (uint32_t i = n->first; ok && i != DI_DOC_NONE; i = d->nodes[i].next) {
        ok = (i == n->first || di_buffer_append(out, ",", 1, err)) &&
             (!object || (di_doc_write_string(d->nodes[i].key, d->nodes[i].key_size, out, err) &&
                          di_buffer_append(out, ":", 1, err))) &&
             di_doc_write(d, i, out, err);
    }
    return ok && di_buffer_append(out, object ? "}" : "]", 1, err);
}

void di_doc_pointer(const di_doc *d, uint32_t node, char *out, size_t size) {
    uint32_t path[DI_DOC_MAX_DEPTH + 1];
    int depth = 0;
    for (uint32_t i = node; d->nodes[i].parent != DI_DOC_NONE; i = d->nodes[i].parent) {
        path[depth++] = i;
    }
    size_t n = (size_t)snprintf(out, size, "#");
    while (depth > 0 && n + 16 < size) {
        const di_doc_node *at = &d->nodes[path[--depth]];
        if (!at->key) {
            n += (size_t)snprintf(out + n, size - n, "/%u", at->index);
            continue;
        }
        out[n++] = '/';
        for (uint32_t k = 0; k < at->key_size && n + 8 < size; k++) {
            char c = at->key[k];
            if (c == '~' || c == '/') {
                out[n++] = '~';
                c = c == '~' ? '0' : '1';
            }
            out[n++] = c;
        }
        out[n] = 0;
    }
}
