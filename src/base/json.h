/* Reading JSON with jansson under our rules: bounded depth, no duplicate keys, 64-bit integers
 * read exactly or refused, errors that name file, field, what was found and what was allowed. */
#ifndef DI_BASE_JSON_H
#define DI_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define DI_JSON_MAX_DEPTH 64

/* Parses exactly one JSON value. `name` stands in messages ("config.json", "line 3"). Refused:
 * duplicate keys, nesting deeper than max_depth, integers outside int64, reals outside double,
 * invalid UTF-8, NUL characters in strings, anything behind the value but white space. */
json_t *di_json_parse(const char *text, size_t size, int max_depth, const char *name,
                      di_error *err);

/* The same, but strings may hold NUL characters: for texts, which are read with their length. */
json_t *di_json_parse_text(const char *text, size_t size, int max_depth, const char *name,
                           di_error *err);

/* di_file_read + di_json_parse. */
json_t *di_json_read(const char *path, size_t max_bytes, di_error *err);

/* Writes an object to a file, which is never seen half written; takes `object` (NULL: there was no
 * memory for it). */
bool di_json_write(const char *path, json_t *object, di_error *err);

/* Fields of an object. `where` prefixes the key in messages. The *_or forms give `absent` when the
 * key is missing (null counts as missing); the others fail then. A value of another type or outside
 * [low, high] is always an error. Reals accept integers. */
bool di_json_int(const json_t *object, const char *where, const char *key, int64_t low,
                 int64_t high, int64_t *out, di_error *err);
bool di_json_int_or(const json_t *object, const char *where, const char *key, int64_t low,
                    int64_t high, int64_t absent, int64_t *out, di_error *err);
bool di_json_real(const json_t *object, const char *where, const char *key, double low, double high,
                  double *out, di_error *err);
bool di_json_real_or(const json_t *object, const char *where, const char *key, double low,
                     double high, double absent, double *out, di_error *err);
bool di_json_bool_or(const json_t *object, const char *where, const char *key, bool absent,
                     bool *out, di_error *err);
/* The string stays owned by the object. */
bool di_json_string(const json_t *object, const char *where, const char *key, const char **out,
                    di_error *err);
/* *count <= max integers into out. */
bool di_json_int_array(const json_t *object, const char *where, const char *key, int64_t low,
                       int64_t high, int64_t *out, size_t max, size_t *count, di_error *err);
/* Object or array of that key; NULL with an error if missing or of another type. */
json_t *di_json_object(const json_t *object, const char *where, const char *key, di_error *err);
json_t *di_json_array(const json_t *object, const char *where, const char *key, di_error *err);

/* "an object", "a string", ... for messages; of NULL "nothing". */
const char *di_json_type_name(const json_t *value);

#endif
