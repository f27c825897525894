/* Reading a stream line by line. */
#ifndef DI_CLI_LINES_H
#define DI_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

typedef struct di_lines {
    FILE *stream; /* borrowed */
    char *text;   /* of the current line, without its end; NUL-terminated */
    size_t size, capacity;
    long number; /* from 1 */
    const char *name;
    char where[128]; /* "NAME line N", for messages */
} di_lines;

void di_lines_open(di_lines *lines, FILE *stream, const char *name);

/* False at the end and after Ctrl-C (then *err is as it was), and when reading failed. */
bool di_lines_next(di_lines *lines, di_error *err);

/* Nothing but white space. */
bool di_lines_blank(const di_lines *lines);

void di_lines_close(di_lines *lines); /* not the stream */

#endif
