/* Reading JSON: see json.h. jansson does the parsing; what it does not bound is bounded here. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

/* jansson recurses once a level (its own bound is 2048); ours is checked on the bytes first. */
static bool depth_ok(const char *text, size_t size, int max_depth) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                quoted = false;
            }
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth) {
                return false;
            }
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return true;
}

static json_t *parse(const char *text, size_t size, int max_depth, size_t flags, const char *name,
                     di_error *err) {
    if (!depth_ok(text, size, max_depth)) {
        di_fail(err, DI_ERR_FORMAT, "%s: JSON is nested more than %d levels deep", name, max_depth);
        return NULL;
    }
    json_error_t e;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | flags, &e);
    if (!value) {
        di_fail(err, DI_ERR_FORMAT, "%s: not valid JSON: %s (line %d, column %d)", name, e.text,
                e.line, e.column);
    }
    return value;
}

json_t *di_json_parse(const char *text, size_t size, int max_depth, const char *name,
                      di_error *err) {
    return parse(text, size, max_depth, 0, name, err);
}

json_t *di_json_parse_text(const char *text, size_t size, int max_depth, const char *name,
                           di_error *err) {
    return parse(text, size, max_depth, JSON_ALLOW_NUL, name, err);
}

json_t *di_json_read(const char *path, size_t max_bytes, di_error *err) {
    char *text;
    size_t size;
    if (!di_file_read(path, max_bytes, &text, &size, err)) {
        return NULL;
    }
    json_t *value = di_json_parse(text, size, DI_JSON_MAX_DEPTH, path, err);
    di_free(text);
    return value;
}

const char *di_json_type_name(const json_t *value) {
    if (!value) {
        return "nothing";
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

/* NULL when the key is absent or null. */
static json_t *field(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

static bool wrong(const char *where, const char *key, const json_t *found, const char *wanted,
                  di_error *err) {
    if (!found) {
        return di_fail(err, DI_ERR_FORMAT, "%s: %s is missing (%s expected)", where, key, wanted);
    }
    return di_fail(err, DI_ERR_FORMAT, "%s: %s is %s, %s expected", where, key,
                   di_json_type_name(found), wanted);
}

static bool int_value(const json_t *value, const char *where, const char *key, int64_t low,
                      int64_t high, int64_t *out, di_error *err) {
    if (!json_is_integer(value)) {
        return wrong(where, key, value, "an integer", err);
    }
    int64_t v = json_integer_value(value);
    if (v < low || v > high) {
        return di_fail(err, DI_ERR_FORMAT, "%s: %s is %lld, allowed are %lld to %lld", where, key,
                       (long long)v, (long long)low, (long long)high);
    }
    *out = v;
    return true;
}

bool di_json_int(const json_t *object, const char *where, const char *key, int64_t low,
                 int64_t high, int64_t *out, di_error *err) {
    return int_value(field(object, key), where, key, low, high, out, err);
}

bool di_json_int_or(const json_t *object, const char *where, const char *key, int64_t low,
                    int64_t high, int64_t absent, int64_t *out, di_error *err) {
    *out = absent;
    return !field(object, key) || di_json_int(object, where, key, low, high, out, err);
}

bool di_json_real(const json_t *object, const char *where, const char *key, double low, double high,
                  double *out, di_error *err) {
    json_t *value = field(object, key);
    if (!json_is_number(value)) {
        return wrong(where, key, value, "a number", err);
    }
    double v = json_number_value(value);
    if (!(v >= low && v <= high)) {
        return di_fail(err, DI_ERR_FORMAT, "%s: %s is %g, allowed are %g to %g", where, key, v, low,
                       high);
    }
    *out = v;
    return true;
}

bool di_json_real_or(const json_t *object, const char *where, const char *key, double low,
                     double high, double absent, double *out, di_error *err) {
    *out = absent;
    return !field(object, key) || di_json_real(object, where, key, low, high, out, err);
}

bool di_json_bool_or(const json_t *object, const char *where, const char *key, bool absent,
                     bool *out, di_error *err) {
    json_t *value = field(object, key);
    *out = absent;
    if (!value) {
        return true;
    }
    if (!json_is_boolean(value)) {
        return wrong(where, key, value, "a boolean", err);
    }
    *out = json_is_true(value);
    return true;
}

bool di_json_string(const json_t *object, const char *where, const char *key, const char **out,
                    di_error *err) {
    json_t *value = field(object, key);
    if (!json_is_string(value)) {
        return wrong(where, key, value, "a string", err);
    }
    *out = json_string_value(value);
    return true;
}

bool di_json_int_array(const json_t *object, const char *where, const char *key, int64_t low,
                       int64_t high, int64_t *out, size_t max, size_t *count, di_error *err) {
    json_t *array = di_json_array(object, where, key, err);
    if (!array) {
        return false;
    }
    *count = json_array_size(array);
    if (*count > max) {
        return di_fail(err, DI_ERR_FORMAT, "%s: %s has %zu elements, at most %zu are allowed",
                       where, key, *count, max);
    }
    for (size_t i = 0; i < *count; i++) {
        if (!int_value(json_array_get(array, i), where, key, low, high, &out[i], err)) {
            return false;
        }
    }
    return true;
}

json_t *di_json_object(const json_t *object, const char *where, const char *key, di_error *err) {
    json_t *value = field(object, key);
    if (!json_is_object(value)) {
        wrong(where, key, value, "an object", err);
        return NULL;
    }
    return value;
}

json_t *di_json_array(const json_t *object, const char *where, const char *key, di_error *err) {
    json_t *value = field(object, key);
    if (!json_is_array(value)) {
        wrong(where, key, value, "an array", err);
        return NULL;
    }
    return value;
}

bool di_json_write(const char *path, json_t *object, di_error *err) {
    char *text = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory to write it", path);
    }
    di_writer w;
    size_t size = strlen(text);
    text[size] = '\n'; /* in the terminator's place: it is freed next */
    bool ok = di_writer_open(&w, path, err);
    if (ok && di_writer_write(&w, text, size + 1, err)) {
        ok = di_writer_commit(&w, err);
    } else if (ok) {
        di_writer_abort(&w);
        ok = false;
    }
    free(text);
    return ok;
}
