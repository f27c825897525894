/* Reading a stream line by line: see lines.h. */
#include "cli/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

void di_lines_open(di_lines *lines, FILE *stream, const char *name) {
    *lines = (di_lines){.stream = stream, .name = name};
}

bool di_lines_next(di_lines *lines, di_error *err) {
    ssize_t n;
    do {
        clearerr(lines->stream);
        errno = 0;
        n = getline(&lines->text, &lines->capacity, lines->stream);
    } while (n < 0 && errno == EINTR && !di_signals_interrupted());
    if (n < 0 && errno == EINTR) { /* Ctrl-C: the caller asks for it */
        return false;
    }
    if (n < 0) {
        return ferror(lines->stream) || errno == ENOMEM ? di_fail_errno(err, "%s", lines->name)
                                                        : false;
    }
    if (n > 0 && lines->text[n - 1] == '\n') {
        lines->text[--n] = 0;
    }
    if (n > 0 && lines->text[n - 1] == '\r') {
        lines->text[--n] = 0;
    }
    lines->size = (size_t)n;
    lines->number++;
    snprintf(lines->where, sizeof lines->where, "%.96s line %ld", lines->name, lines->number);
    return true;
}

bool di_lines_blank(const di_lines *lines) {
    return strspn(lines->text, " \t\r\n") == lines->size;
}

void di_lines_close(di_lines *lines) {
    free(lines->text); /* getline's */
    *lines = (di_lines){0};
}
