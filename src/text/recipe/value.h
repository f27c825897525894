/* JSON values as the recipe sees them: read from a request, never changed, owned by a pool.
 *
 * base/json.h is for our own files; requests need more. Numbers keep their kind (1, 1.0 and -0
 * differ in a prompt; integers reach 2^64 - 1, larger ones are reals), members keep their order,
 * and of members with one name the last one's value counts, in the first one's place, unless
 * they are refused. */
#ifndef DI_TEXT_RECIPE_VALUE_H
#define DI_TEXT_RECIPE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"

typedef enum di_value_type {
    DI_VALUE_NULL,
    DI_VALUE_BOOL,
    DI_VALUE_UINT,
    DI_VALUE_INT, /* below zero */
    DI_VALUE_REAL,
    DI_VALUE_STRING,
    DI_VALUE_ARRAY,
    DI_VALUE_OBJECT,
} di_value_type;

typedef struct di_value di_value;
typedef struct di_named_value di_named_value;

struct di_value {
    di_value_type type;
    union {
        bool boolean;
        uint64_t uint;
        int64_t integer;
        double real;
        di_str string;
        struct {
            const di_value *items;
            size_t count;
        } array;
        struct {
            const di_named_value *members;
            size_t count;
        } object;
    };
};

struct di_named_value {
    di_str name;
    di_value value;
};

enum {
    DI_VALUE_MAX_DEPTH = 127,
    DI_VALUE_MAX_COUNT = 1 << 20, /* a value takes ten times the space of its text and more */
};

/* Reads exactly one value; strings and lists are copied into the pool. Refused with DI_ERR_FORMAT
 * naming line and column: bad syntax, invalid UTF-8, lone surrogates, control characters in
 * strings, numbers outside double, nesting deeper than max_depth, more
 * than DI_VALUE_MAX_COUNT values in arrays and objects. */
bool di_value_parse(di_pool *pool, const char *text, size_t size, int max_depth, di_value *out,
                    di_error *err);

/* The same, but a name that comes twice in one object is refused too, by its path: a request that
 * two readers could understand in two ways is none. */
bool di_value_parse_once(di_pool *pool, const char *text, size_t size, int max_depth, di_value *out,
                         di_error *err);

/* The member of that name; NULL if there is none or `object` is no object. */
const di_value *di_value_get(const di_value *object, const char *name);

/* The same, but a null counts as missing. */
const di_value *di_value_given(const di_value *object, const char *name);

/* "an object", "a string", ... for messages. */
const char *di_value_type_name(const di_value *value);

static inline bool di_value_is(const di_value *value, di_value_type type) {
    return value && value->type == type;
}

static inline bool di_value_is_string(const di_value *value, const char *text) {
    return value && value->type == DI_VALUE_STRING && di_str_is(value->string, text);
}

#endif
