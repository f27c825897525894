/* JSON out: see json_write.h. */
#include "text/recipe/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void put(di_writer *w, const char *text, size_t size) {
    w->failed = w->failed || !di_buffer_append(w->out, text, size, w->err);
}

/* Before a value: the comma that parts it from the one before. */
static void separate(di_writer *w) {
    if (w->comma) {
        put(w, ", ", w->style == DI_JSON_PYTHON ? 2 : 1);
    }
    w->comma = true;
}

void di_write_open(di_writer *w, char bracket) {
    separate(w);
    put(w, &bracket, 1);
    w->comma = false;
}

void di_write_close(di_writer *w, char bracket) {
    put(w, &bracket, 1);
    w->comma = true;
}

static void write_name(di_writer *w, di_str name) {
    di_write_string(w, name);
    put(w, ": ", w->style == DI_JSON_PYTHON ? 2 : 1);
    w->comma = false;
}

void di_write_key(di_writer *w, const char *name) {
    write_name(w, di_str_of(name));
}

void di_write_null(di_writer *w) {
    separate(w);
    put(w, "null", 4);
}

void di_write_bool(di_writer *w, bool value) {
    separate(w);
    put(w, value ? "true" : "false", value ? 4 : 5);
}

void di_write_uint(di_writer *w, uint64_t value) {
    char text[24];
    separate(w);
    put(w, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, value));
}

static void write_int(di_writer *w, int64_t value) {
    char text[24];
    separate(w);
    put(w, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

/* The fewest digits that read back as the same number; *exponent is the first digit's. */
static int shortest_digits(double value, char digits[20], int *exponent) {
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (precision == 16 || strtod(text, NULL) == value) {
            break;
        }
    }
    int count = 0;
    const char *c = text;
    for (; *c != 'e'; c++) {
        if (*c >= '0' && *c <= '9') {
            digits[count++] = *c;
        }
    }
    while (count > 1 && digits[count - 1] == '0') {
        count--;
    }
    *exponent = atoi(c + 1);
    return count;
}

static int repeat(char *out, int at, char c, int times) {
    for (int i = 0; i < times; i++) {
        out[at++] = c;
    }
    return at;
}

/* 1e16 and above and small numbers get an exponent; where small begins and whether the exponent has
 * two digits at least is what the styles differ in. */
static int spell_real(double value, di_json_style style, char out[48]) {
    char digits[20] = "0";
    int exponent = 0, at = 0;
    if (signbit(value)) {
        out[at++] = '-';
        value = -value;
    }
    int count = shortest_digits(value, digits, &exponent);
    bool python = style == DI_JSON_PYTHON;
    if (exponent >= 16 || exponent < (python ? -4 : -5)) {
        out[at++] = digits[0];
        if (count > 1) {
            out[at++] = '.';
            memcpy(out + at, digits + 1, (size_t)count - 1);
            at += count - 1;
        }
        return at + snprintf(out + at, 8, python ? "e%c%02d" : "e%c%d", exponent < 0 ? '-' : '+',
                             abs(exponent));
    }
    if (exponent < 0) {
        at = repeat(out, at, '0', 1);
        out[at++] = '.';
        at = repeat(out, at, '0', -exponent - 1);
        memcpy(out + at, digits, (size_t)count);
        return at + count;
    }
    for (int i = 0; i <= exponent || i < count; i++) {
        if (i == exponent + 1) {
            out[at++] = '.';
        }
        out[at++] = i < count ? digits[i] : '0';
    }
    if (count <= exponent + 1) {
        out[at++] = '.';
        out[at++] = '0';
    }
    return at;
}

void di_write_real(di_writer *w, double value) {
    char text[48];
    if (!isfinite(value)) {
        di_write_null(w);
        return;
    }
    separate(w);
    put(w, text, (size_t)spell_real(value, w->style, text));
}

void di_write_text(di_writer *w, const char *text) {
    di_write_string(w, di_str_of(text));
}

void di_write_string(di_writer *w, di_str text) {
    separate(w);
    put(w, "\"", 1);
    w->failed = w->failed || !di_json_escape(w->out, text.data, text.size, w->err);
    put(w, "\"", 1);
}

void di_write_raw(di_writer *w, di_str json) {
    separate(w);
    put(w, json.data, json.size);
}

void di_write_value(di_writer *w, const di_value *v) {
    switch (v->type) {
    case DI_VALUE_NULL:
        di_write_null(w);
        break;
    case DI_VALUE_BOOL:
        di_write_bool(w, v->boolean);
        break;
    case DI_VALUE_UINT:
        di_write_uint(w, v->uint);
        break;
    case DI_VALUE_INT:
        write_int(w, v->integer);
        break;
    case DI_VALUE_REAL:
        di_write_real(w, v->real);
        break;
    case DI_VALUE_STRING:
        di_write_string(w, v->string);
        break;
    case DI_VALUE_ARRAY: /* values are at most DI_VALUE_MAX_DEPTH deep, and so is this */
        di_write_open(w, '[');
        for (size_t i = 0; i < v->array.count && !w->failed; i++) {
            di_write_value(w, &v->array.items[i]);
        }
        di_write_close(w, ']');
        break;
    case DI_VALUE_OBJECT:
        di_write_open(w, '{');
        for (size_t i = 0; i < v->object.count && !w->failed; i++) {
            write_name(w, v->object.members[i].name);
            di_write_value(w, &v->object.members[i].value);
        }
        di_write_close(w, '}');
        break;
    }
}

bool di_json_escape(di_buffer *out, const char *text, size_t size, di_error *err) {
    static const char short_form[32] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    size_t done = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        char escape[8] = {'\\', (char)c};
        int length = 2;
        if (c < 0x20) {
            escape[1] = short_form[c];
            length = short_form[c] ? 2 : snprintf(escape, sizeof escape, "\\u%04x", c);
        }
        if (!di_buffer_append(out, text + done, i - done, err) ||
            !di_buffer_append(out, escape, (size_t)length, err)) {
            return false;
        }
        done = i + 1;
    }
    return done == size || di_buffer_append(out, text + done, size - done, err);
}

bool di_value_write(const di_value *value, di_json_style style, di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, style, err);
    di_write_value(&w, value);
    return !w.failed;
}
