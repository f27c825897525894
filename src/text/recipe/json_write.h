/* Writing JSON: values in the two spellings the recipe needs, and a writer for what we say.
 *
 * COMPACT is the spelling of answers, events and constraints; PYTHON is what the model was taught:
 * json.dumps(value, ensure_ascii=False), with ", " and ": " and Python's spelling of numbers. */
#ifndef DI_TEXT_RECIPE_JSON_WRITE_H
#define DI_TEXT_RECIPE_JSON_WRITE_H

#include "base/buffer.h"
#include "text/recipe/value.h"

typedef enum di_json_style {
    DI_JSON_COMPACT,
    DI_JSON_PYTHON,
} di_json_style;

/* Writes one value after the other, with commas where they belong. What fails sets `failed` and
 * makes the rest do nothing, so that only the end needs to be looked at. */
typedef struct di_writer {
    di_buffer *out;
    di_error *err;
    di_json_style style;
    bool failed;
    bool comma; /* something stands before the next value */
} di_writer;

static inline di_writer di_writer_to(di_buffer *out, di_json_style style, di_error *err) {
    return (di_writer){.out = out, .err = err, .style = style};
}

void di_write_open(di_writer *w, char bracket); /* '{' or '[' */
void di_write_close(di_writer *w, char bracket);
void di_write_key(di_writer *w, const char *name);
void di_write_null(di_writer *w);
void di_write_bool(di_writer *w, bool value);
void di_write_uint(di_writer *w, uint64_t value);
void di_write_real(di_writer *w, double value); /* what is not finite becomes null */
void di_write_text(di_writer *w, const char *text);
void di_write_string(di_writer *w, di_str text);
void di_write_value(di_writer *w, const di_value *value);
void di_write_raw(di_writer *w, di_str json); /* a value that is JSON already */

/* Appends a text's characters as they stand between the quotes of a JSON string. */
bool di_json_escape(di_buffer *out, const char *text, size_t size, di_error *err);

/* Appends a value. */
bool di_value_write(const di_value *value, di_json_style style, di_buffer *out, di_error *err);

#endif
