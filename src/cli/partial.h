/* An output of many lines that takes long: it grows as OUT.partial, line by line, and is renamed to
 * OUT when whole. What an interruption leaves can be continued; a file OUT is always a whole one.
 */
#ifndef DI_CLI_PARTIAL_H
#define DI_CLI_PARTIAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/error.h"

typedef struct di_partial {
    FILE *stream;
    char *path;      /* NULL: standard output */
    char *temporary; /* path + ".partial"; NULL also where path is a device or a pipe */
    int64_t lines;   /* whole ones in it */
    int64_t failed;  /* of those it was resumed with: hold an "error" */
    off_t bytes;     /* of the whole lines */
    bool whole;      /* resumed, but OUT was there and OUT.partial was not: nothing is open */
} di_partial;

/* "-" is standard output; that, a device and a pipe are written to directly. Without `resume` an
 * OUT.partial that is there is an error; with it, it is continued: its lines must be JSON objects
 * with "index" 0, 1, 2, ...; a torn last line is taken away. A file that another process writes is
 * refused. */
bool di_partial_open(di_partial *p, const char *path, bool resume, di_error *err);

/* Writes and flushes a line; `line` has its newline. */
bool di_partial_write(di_partial *p, const char *line, size_t bytes, di_error *err);

/* Exactly one of these ends it. Commit renames; if it fails the partial file stays. Abort leaves
 * the whole lines, and no file if there are none; it returns whether a file is left. */
bool di_partial_commit(di_partial *p, di_error *err);
bool di_partial_abort(di_partial *p);

#endif
