/* Reading a stream line by line: see lines.h. */
#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/cli.h"

/* Signals may be taken by another thread, or come just before the wait begins: look anew. */
enum { READ_BYTES = 65536, LOOK_MS = 100 };

bool di_lines_open(di_lines *lines, const char *path, di_error *err) {
    bool standard = strcmp(path, "-") == 0;
    *lines = (di_lines){.name = standard ? "standard input" : path};
    lines->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    return lines->fd >= 0 || di_fail_errno(err, "%s", path);
}

/* Room for READ_BYTES more and a NUL behind them. */
static bool make_room(di_lines *l) {
    if (l->begin > 0) {
        memmove(l->buffer, l->buffer + l->begin, l->end - l->begin);
        l->scanned -= l->begin;
        l->end -= l->begin;
        l->begin = 0;
    }
    size_t wanted = l->end + READ_BYTES + 1;
    if (l->capacity < wanted) {
        wanted += l->capacity; /* long lines: in proportion */
        char *buffer = di_realloc(l->buffer, wanted);
        if (!buffer) {
            return false;
        }
        l->buffer = buffer;
        l->capacity = wanted;
    }
    return true;
}

/* One read. False when there is nothing to be read yet. */
static bool fill(di_lines *l) {
    if (l->end - l->begin > DI_LINES_MAX_BYTES) {
        l->ended = l->too_long = true;
        return true;
    }
    if (!make_room(l)) {
        l->ended = true;
        l->fault = ENOMEM;
        return true;
    }
    ssize_t n = read(l->fd, l->buffer + l->end, READ_BYTES);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return false;
    }
    l->ended = n <= 0;
    l->fault = n < 0 ? errno : 0;
    l->end += n > 0 ? (size_t)n : 0;
    return true;
}

/* The newline that ends the next line, or NULL. */
static char *find_end(di_lines *l) {
    char *newline =
        l->scanned < l->end ? memchr(l->buffer + l->scanned, '\n', l->end - l->scanned) : NULL;
    l->scanned = newline ? (size_t)(newline - l->buffer) : l->end;
    return newline;
}

static bool can_read(const di_lines *l, int timeout_ms) {
    struct pollfd in = {.fd = l->fd, .events = POLLIN};
    return poll(&in, 1, timeout_ms) > 0;
}

bool di_lines_ready(di_lines *lines) {
    while (!find_end(lines) && !lines->ended) {
        if (!can_read(lines, 0) || !fill(lines)) {
            return false;
        }
    }
    return true;
}

bool di_lines_next(di_lines *lines, di_error *err) {
    char *newline;
    while (!(newline = find_end(lines)) && !lines->ended) {
        if (di_signals_interrupted()) { /* the caller asks for it */
            return false;
        }
        if (!can_read(lines, 0)) {
            (void)fflush(stdout); /* di_cli_finish tells what could not be written */
        }
        if (can_read(lines, LOOK_MS)) {
            fill(lines);
        }
    }
    if (lines->fault) {
        errno = lines->fault;
        return di_fail_errno(err, "%s", lines->name);
    }
    if (lines->too_long) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s line %ld is longer than %zu MiB", lines->name,
                       lines->number + 1, DI_LINES_MAX_BYTES >> 20);
    }
    if (lines->begin == lines->end) {
        return false;
    }
    size_t end = newline ? (size_t)(newline - lines->buffer) : lines->end;
    lines->text = lines->buffer + lines->begin;
    lines->size = end - lines->begin;
    lines->begin = lines->scanned = newline ? end + 1 : end;
    if (lines->size > 0 && lines->text[lines->size - 1] == '\r') {
        lines->size--;
    }
    lines->text[lines->size] = 0;
    lines->number++;
    snprintf(lines->where, sizeof lines->where, "%.96s line %ld", lines->name, lines->number);
    return true;
}

bool di_lines_blank(const di_lines *lines) {
    return strspn(lines->text, " \t\r\n") == lines->size;
}

void di_lines_close(di_lines *lines) {
    if (lines->fd > STDIN_FILENO) {
        close(lines->fd);
    }
    di_free(lines->buffer);
    *lines = (di_lines){0};
}
