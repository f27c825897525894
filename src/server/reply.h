/* What the server says to one request, apart from streams: status, headers, body; and errors in the
 * shape of the API that was asked. */
#ifndef DI_SERVER_REPLY_H
#define DI_SERVER_REPLY_H

#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/str.h"

/* Whose errors a path has. */
typedef enum di_shape {
    DI_SHAPE_OPENAI,    /* {"error": {"message", "type", "param", "code"}} */
    DI_SHAPE_ANTHROPIC, /* {"type": "error", "error": {"type", "message"}, "request_id"} */
} di_shape;

enum { DI_REPLY_HEADERS = 12, DI_REPLY_NAME_BYTES = 40, DI_REPLY_VALUE_BYTES = 320 };

typedef struct di_reply {
    int status;       /* 0: there is none yet */
    const char *type; /* Content-Type, static */
    di_buffer body;   /* owned */
    di_str fixed;     /* a body that lives as long as the program, instead */
    bool close;       /* the connection, behind it */
    int num_headers;
    struct {
        char name[DI_REPLY_NAME_BYTES], value[DI_REPLY_VALUE_BYTES];
    } headers[DI_REPLY_HEADERS];
} di_reply;

/* Adds a header; one that is too long or too many is left out. */
void di_reply_header(di_reply *r, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Takes the JSON, which is left empty. */
void di_reply_json(di_reply *r, int status, di_buffer *json);

/* An error in full. What is NULL is null or, for `code`, the status's usual one. */
typedef struct di_api_error {
    int status;
    const char *code, *param;
    const char *message;
    int64_t retry_after; /* seconds; 0: no such header */
} di_api_error;

/* For want of memory the body is empty. */
void di_reply_error(di_reply *r, di_shape shape, const di_api_error *error, const char *request_id);

/* Appends the JSON of an error. */
bool di_api_error_write(di_shape shape, const di_api_error *error, const char *request_id,
                        di_buffer *out, di_error *err);

/* The status of an error from our own rooms: 400 for what the client did, 503 for too much under
 * way, else 500. */
int di_status_of(const di_error *err);

/* "invalid_request_error", ...: what the API calls errors of that status. */
const char *di_api_error_type(di_shape shape, int status);

/* Messages and names are cut to a length in bytes: what is no whole character becomes '?'. */
void di_text_repair(char *text);

void di_reply_free(di_reply *r);

#endif
