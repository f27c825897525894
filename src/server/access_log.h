/* The access log: a JSON object a line for each request, written when it has been answered. It
 * never holds prompts, answers or keys. Any thread may write, and none waits: where the file takes
 * nothing, lines wait up to a limit and then are lost and counted. */
#ifndef DI_SERVER_ACCESS_LOG_H
#define DI_SERVER_ACCESS_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct di_access_log di_access_log;

/* A path to append to, "-" for standard output, NULL for none. */
di_access_log *di_access_log_open(const char *path, di_error *err);
void di_access_log_close(di_access_log *log); /* writes what waits; NULL is allowed */

/* Opens the path again, after it was moved away. With an error the old file goes on. */
bool di_access_log_reopen(di_access_log *log, di_error *err);

/* Texts may be "" and then are left out; tokens are left out below zero. */
typedef struct di_access_entry {
    const char *request_id, *client, *key_id, *method, *path, *model, *traceparent, *tracestate,
        *finish;
    int status;
    bool stream;
    size_t bytes; /* of the body that was sent */
    double seconds, ttft_seconds;
    int64_t prompt_tokens, cached_tokens, completion_tokens;
} di_access_entry;

void di_access_log_write(di_access_log *log, const di_access_entry *e);

/* Lines that could not be written. */
size_t di_access_log_lost(const di_access_log *log);

#endif
