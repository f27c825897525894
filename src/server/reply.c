/* Replies and errors: see reply.h. */
#include "server/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/recipe/json_write.h"

void di_reply_header(di_reply *r, const char *name, const char *format, ...) {
    if (r->num_headers == DI_REPLY_HEADERS) {
        return;
    }
    char *value = r->headers[r->num_headers].value;
    va_list args;
    va_start(args, format);
    int size = vsnprintf(value, DI_REPLY_VALUE_BYTES, format, args);
    va_end(args);
    if (size >= 0 && size < DI_REPLY_VALUE_BYTES) {
        snprintf(r->headers[r->num_headers++].name, DI_REPLY_NAME_BYTES, "%s", name);
    }
}

void di_reply_json(di_reply *r, int status, di_buffer *json) {
    r->status = status;
    r->type = "application/json";
    di_buffer_free(&r->body);
    r->body = *json;
    *json = (di_buffer){0};
}

int di_status_of(const di_error *err) {
    switch (err->code) {
    case DI_ERR_ARGUMENT:
    case DI_ERR_FORMAT:
    case DI_ERR_UNSUPPORTED:
        return 400;
    case DI_ERR_BUSY:
    case DI_ERR_NO_MEMORY:
    case DI_ERR_CANCELLED:
        return 503;
    case DI_OK:
    case DI_ERR_IO:
    case DI_ERR_INTERNAL:
    case DI_ERR_DEVICE:
        break;
    }
    return 500;
}

const char *di_api_error_type(di_shape shape, int status) {
    bool anthropic = shape == DI_SHAPE_ANTHROPIC;
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return anthropic ? "request_too_large" : "invalid_request_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return anthropic ? "overloaded_error" : "server_error";
    case 504:
        return anthropic ? "timeout_error" : "server_error";
    default:
        break;
    }
    return status < 500 ? "invalid_request_error" : anthropic ? "api_error" : "server_error";
}

static const char *usual_code(int status) {
    switch (status) {
    case 401:
        return "invalid_api_key";
    case 404:
        return "not_found";
    case 405:
        return "method_not_allowed";
    case 408:
    case 504:
        return "timeout";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_exceeded";
    case 503:
        return "overloaded";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

static void write_text_or_null(di_writer *w, const char *key, const char *text) {
    di_write_key(w, key);
    if (text) {
        di_write_text(w, text);
    } else {
        di_write_null(w);
    }
}

bool di_api_error_write(di_shape shape, const di_api_error *error, const char *request_id,
                        di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    const char *type = di_api_error_type(shape, error->status);
    di_write_open(&w, '{');
    if (shape == DI_SHAPE_ANTHROPIC) {
        di_write_key(&w, "type");
        di_write_text(&w, "error");
    }
    di_write_key(&w, "error");
    di_write_open(&w, '{');
    if (shape == DI_SHAPE_ANTHROPIC) {
        di_write_key(&w, "type");
        di_write_text(&w, type);
        di_write_key(&w, "message");
        di_write_text(&w, error->message);
    } else {
        di_write_key(&w, "message");
        di_write_text(&w, error->message);
        di_write_key(&w, "type");
        di_write_text(&w, type);
        write_text_or_null(&w, "param", error->param);
        di_write_key(&w, "code");
        di_write_text(&w, error->code ? error->code : usual_code(error->status));
    }
    di_write_close(&w, '}');
    if (shape == DI_SHAPE_ANTHROPIC || error->status >= 500) {
        di_write_key(&w, "request_id");
        di_write_text(&w, request_id);
    }
    di_write_close(&w, '}');
    return !w.failed;
}

void di_reply_error(di_reply *r, di_shape shape, const di_api_error *error,
                    const char *request_id) {
    di_buffer json = {0};
    if (!di_api_error_write(shape, error, request_id, &json, NULL)) {
        di_buffer_free(&json);
    }
    di_reply_json(r, error->status, &json);
    if (error->retry_after > 0) {
        di_reply_header(r, "Retry-After", "%lld", (long long)error->retry_after);
    }
    if (error->status == 401) {
        di_reply_header(r, "WWW-Authenticate", "Bearer");
    }
}

void di_text_repair(char *text) {
    uint32_t code;
    size_t size = strlen(text);
    for (size_t at = 0; at < size;) {
        int n = di_utf8_next(text + at, size - at, &code);
        if (n > 0 && code != DI_UTF8_MALFORMED) {
            at += (size_t)n;
            continue;
        }
        size_t bad = n > 0 ? (size_t)n : size - at;
        memset(text + at, '?', bad);
        at += bad;
    }
}

void di_reply_free(di_reply *r) {
    di_buffer_free(&r->body);
    *r = (di_reply){0};
}
