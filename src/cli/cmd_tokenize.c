/* deepinfer tokenize and detokenize: JSON values by lines, in and out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/lines.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

/* Writes what a line becomes. */
typedef bool (*line_fn)(const di_tokenizer *tok, const di_options *o, const json_t *value,
                        const char *where, di_error *err);

static bool tokenize(const di_tokenizer *tok, const di_options *o, const json_t *value,
                     const char *where, di_error *err) {
    if (!json_is_string(value)) {
        return di_fail(err, DI_ERR_FORMAT, "%s: is %s, a string expected", where,
                       di_json_type_name(value));
    }
    di_ids ids = {0};
    di_buffer out = {0};
    bool ok = di_tokenizer_encode(tok, json_string_value(value), json_string_length(value),
                                  o->values[DI_OPT_PLAIN].flag ? DI_ENCODE_PLAIN : DI_ENCODE_ADDED,
                                  &ids, err) ||
              di_fail_prefix(err, "%s", where);
    ok = ok && di_buffer_append_text(&out, "[", err);
    for (size_t i = 0; ok && i < ids.count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%s%d", i ? ", " : "", ids.data[i]);
        ok = di_buffer_append_text(&out, number, err);
    }
    ok = ok && di_buffer_append_text(&out, "]\n", err) && di_cli_write(out.data, out.size, err);
    di_buffer_free(&out);
    di_ids_free(&ids);
    return ok;
}

static bool read_ids(const di_tokenizer *tok, const json_t *value, const char *where, di_ids *ids,
                     di_error *err) {
    if (!json_is_array(value)) {
        return di_fail(err, DI_ERR_FORMAT, "%s: is %s, an array expected", where,
                       di_json_type_name(value));
    }
    int32_t last = di_tokenizer_vocab_size(tok) - 1;
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *id = json_array_get(value, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v > last) {
            char shown[32] = "";
            if (json_is_integer(id)) {
                snprintf(shown, sizeof shown, "%lld", (long long)v);
            }
            return di_fail(err, DI_ERR_FORMAT, "%s: [%zu] is %s, allowed are 0 to %d", where, i,
                           *shown ? shown : di_json_type_name(id), last);
        }
        if (!di_ids_push(ids, (int32_t)v, err)) {
            return false;
        }
    }
    return true;
}

static bool detokenize(const di_tokenizer *tok, const di_options *o, const json_t *value,
                       const char *where, di_error *err) {
    (void)o;
    di_ids ids = {0};
    di_buffer text = {0};
    bool ok = read_ids(tok, value, where, &ids, err) &&
              di_detokenize(tok, ids.data, ids.count, &text, err);
    if (ok) {
        json_t *string = json_stringn(text.data ? text.data : "", text.size);
        char *line = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
        ok = line ? di_cli_write(line, strlen(line), err) && di_cli_write("\n", 1, err)
                  : di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its text", where);
        free(line);
        json_decref(string);
    }
    di_buffer_free(&text);
    di_ids_free(&ids);
    return ok;
}

static int run(const di_options *o, line_fn convert) {
    di_error err = {0};
    di_tokenizer *tok = di_tokenizer_open(o->values[DI_OPT_MODEL].text, &err);
    if (!tok) {
        return di_cli_fail(&err);
    }
    di_lines lines;
    int status = di_lines_open(&lines, "-", &err) ? DI_EXIT_WELL : DI_EXIT_FAILED;
    while (status == DI_EXIT_WELL && di_lines_next(&lines, &err)) {
        if (di_lines_blank(&lines)) {
            continue;
        }
        json_t *value =
            di_json_parse_text(lines.text, lines.size, DI_JSON_MAX_DEPTH, lines.where, &err);
        if (!value || !convert(tok, o, value, lines.where, &err)) {
            status = DI_EXIT_FAILED;
        }
        json_decref(value);
    }
    if (err.code != DI_OK) {
        status = di_cli_fail(&err);
    }
    di_lines_close(&lines);
    di_tokenizer_close(tok);
    return status;
}

int di_command_tokenize(const di_options *o) {
    return run(o, tokenize);
}

int di_command_detokenize(const di_options *o) {
    return run(o, detokenize);
}
