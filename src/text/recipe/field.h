/* Typed fields of a request's objects. What has the wrong type is refused with DI_ERR_FORMAT,
 * naming where it stands, what was found and what is allowed; DI_ERR_ARGUMENT is left to what is
 * well-formed and still not allowed. A null counts as missing unless the field is needed. */
#ifndef DI_TEXT_RECIPE_FIELD_H
#define DI_TEXT_RECIPE_FIELD_H

#include "text/recipe/value.h"

typedef enum di_need {
    DI_OPTIONAL,
    DI_NEEDED,
} di_need;

/* "where.key is a string, an integer expected". Always false. */
bool di_field_wrong(const char *where, const char *key, const di_value *found, const char *expected,
                    di_error *err);

/* The field's value, whatever its type; NULL with *ok = true if it may be and is missing. */
const di_value *di_field(const di_value *object, const char *where, const char *key, di_need need,
                         bool *ok, di_error *err);

/* *out is left alone if the field is missing; `given` may be NULL. */
bool di_field_string(const di_value *object, const char *where, const char *key, di_need need,
                     di_str *out, bool *given, di_error *err);
bool di_field_bool(const di_value *object, const char *where, const char *key, bool *out,
                   bool *given, di_error *err);
bool di_field_uint(const di_value *object, const char *where, const char *key, uint64_t most,
                   uint64_t *out, bool *given, di_error *err);
bool di_field_real(const di_value *object, const char *where, const char *key, double *out,
                   bool *given, di_error *err);

/* *out is NULL if it is missing. */
bool di_field_object(const di_value *object, const char *where, const char *key, di_need need,
                     const di_value **out, di_error *err);
bool di_field_array(const di_value *object, const char *where, const char *key, di_need need,
                    const di_value **out, di_error *err);

/* One of `count` words; *out is its index and left alone if the field is missing. */
bool di_field_word(const di_value *object, const char *where, const char *key, di_need need,
                   const char *const *words, int count, int *out, di_error *err);

/* "type" of an object that is one of several kinds. */
static inline bool di_field_type(const di_value *object, const char *where,
                                 const char *const *words, int count, int *out, di_error *err) {
    return di_field_word(object, where, "type", DI_NEEDED, words, count, out, err);
}

#endif
