/* Fields of requests: see field.h. */
#include "text/recipe/field.h"

#include <stdio.h>

#define COLON(where) (*(where) ? ": " : "")

bool di_field_wrong(const char *where, const char *key, const di_value *found, const char *expected,
                    di_error *err) {
    return di_fail(err, DI_ERR_FORMAT, "%s%s%s is %s, %s expected", where, COLON(where), key,
                   di_value_type_name(found), expected);
}

const di_value *di_field(const di_value *object, const char *where, const char *key, di_need need,
                         bool *ok, di_error *err) {
    const di_value *value = di_value_get(object, key);
    *ok = value || need == DI_OPTIONAL ||
          di_fail(err, DI_ERR_FORMAT, "%s%s%s is missing", where, COLON(where), key);
    return value && (value->type != DI_VALUE_NULL || need == DI_NEEDED) ? value : NULL;
}

bool di_field_string(const di_value *object, const char *where, const char *key, di_need need,
                     di_str *out, bool *given, di_error *err) {
    bool ok;
    const di_value *value = di_field(object, where, key, need, &ok, err);
    if (given) {
        *given = value != NULL;
    }
    if (value && value->type != DI_VALUE_STRING) {
        return di_field_wrong(where, key, value, "a string", err);
    }
    if (value) {
        *out = value->string;
    }
    return ok;
}

bool di_field_bool(const di_value *object, const char *where, const char *key, bool *out,
                   bool *given, di_error *err) {
    const di_value *value = di_value_given(object, key);
    if (given) {
        *given = value != NULL;
    }
    if (value && value->type != DI_VALUE_BOOL) {
        return di_field_wrong(where, key, value, "true or false", err);
    }
    if (value) {
        *out = value->boolean;
    }
    return true;
}

bool di_field_uint(const di_value *object, const char *where, const char *key, uint64_t most,
                   uint64_t *out, bool *given, di_error *err) {
    const di_value *value = di_value_given(object, key);
    if (given) {
        *given = value != NULL;
    }
    if (!value) {
        return true;
    }
    if (value->type == DI_VALUE_INT || (value->type == DI_VALUE_UINT && value->uint > most)) {
        return di_fail(err, DI_ERR_FORMAT, "%s%s%s is outside 0 to %llu", where, COLON(where), key,
                       (unsigned long long)most);
    }
    if (value->type != DI_VALUE_UINT) {
        return di_field_wrong(where, key, value, "an integer", err);
    }
    *out = value->uint;
    return true;
}

bool di_field_real(const di_value *object, const char *where, const char *key, double *out,
                   bool *given, di_error *err) {
    const di_value *value = di_value_given(object, key);
    if (given) {
        *given = value != NULL;
    }
    if (!value) {
        return true;
    }
    switch (value->type) {
    case DI_VALUE_UINT:
        *out = (double)value->uint;
        return true;
    case DI_VALUE_INT:
        *out = (double)value->integer;
        return true;
    case DI_VALUE_REAL:
        *out = value->real;
        return true;
    default:
        return di_field_wrong(where, key, value, "a number", err);
    }
}

static bool field_list(const di_value *object, const char *where, const char *key, di_need need,
                       di_value_type type, const di_value **out, di_error *err) {
    bool ok;
    *out = di_field(object, where, key, need, &ok, err);
    if (*out && (*out)->type != type) {
        return di_field_wrong(where, key, *out, type == DI_VALUE_OBJECT ? "an object" : "an array",
                              err);
    }
    return ok;
}

bool di_field_object(const di_value *object, const char *where, const char *key, di_need need,
                     const di_value **out, di_error *err) {
    return field_list(object, where, key, need, DI_VALUE_OBJECT, out, err);
}

bool di_field_array(const di_value *object, const char *where, const char *key, di_need need,
                    const di_value **out, di_error *err) {
    return field_list(object, where, key, need, DI_VALUE_ARRAY, out, err);
}

static bool unknown_word(const char *where, const char *key, di_str found, const char *const *words,
                         int count, di_error *err) {
    char allowed[256] = "";
    int at = 0;
    for (int i = 0; i < count && at < (int)sizeof allowed; i++) {
        at += snprintf(allowed + at, sizeof allowed - (size_t)at, "%s%s",
                       i == 0           ? ""
                       : i + 1 == count ? " and "
                                        : ", ",
                       words[i]);
    }
    return di_fail(err, DI_ERR_FORMAT, "%s%s%s is \"%.*s\", allowed are %s", where, COLON(where),
                   key, di_str_shown(found, 64), found.data, allowed);
}

bool di_field_word(const di_value *object, const char *where, const char *key, di_need need,
                   const char *const *words, int count, int *out, di_error *err) {
    di_str word = DI_STR("");
    bool given;
    if (!di_field_string(object, where, key, need, &word, &given, err)) {
        return false;
    }
    for (int i = 0; given && i < count; i++) {
        if (di_str_is(word, words[i])) {
            *out = i;
            return true;
        }
    }
    return !given || unknown_word(where, key, word, words, count, err);
}
