/* Reading a file or standard input line by line, past stdio, so that it can be told whether the
 * next line would have to be waited for. */
#ifndef DI_CLI_LINES_H
#define DI_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* A longer line is an error: /dev/zero has no line's end. The longest context in JSON has a tenth.
 */
#define DI_LINES_MAX_BYTES ((size_t)64 << 20)

typedef struct di_lines {
    char *text;       /* the current line, without its end; NUL-terminated, until the next call */
    size_t size;      /* of it */
    long number;      /* of it, from 1 */
    const char *name; /* "standard input", or the path, borrowed */
    char where[128];  /* "NAME line N", for messages */

    int fd;
    char *buffer;
    size_t begin, scanned, end, capacity; /* unread bytes; up to scanned no newline is among them */
    bool ended;                           /* nothing more comes; fault says why, 0 = the end */
    int fault;
    bool too_long; /* the line under way has more than DI_LINES_MAX_BYTES */
} di_lines;

/* "-" is standard input, of which nothing may have been read before. Needs di_lines_close also
 * after a failure. */
bool di_lines_open(di_lines *lines, const char *path, di_error *err);

/* False at the end and after a signal (then *err is as it was), when reading failed, and at a line
 * that is too long. Where a line must be waited for, standard output is flushed first: whoever
 * writes it may want the answer to the one before. */
bool di_lines_next(di_lines *lines, di_error *err);

/* Whether di_lines_next would return at once. */
bool di_lines_ready(di_lines *lines);

/* Nothing but white space. */
bool di_lines_blank(const di_lines *lines);

void di_lines_close(di_lines *lines); /* of all zero: nothing */

#endif
