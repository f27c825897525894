/* Outputs that grow under another name: see partial.h. */
#include "cli/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/json.h"
#include "cli/cli.h"

/* ---- what is there ----------------------------------------------------------------------------*/

/* Whether a line is the answer to request `index`; counts errors. */
static bool read_answer(di_partial *p, const char *line, size_t size, int64_t index) {
    json_t *object = di_json_parse_text(line, size, DI_JSON_MAX_DEPTH, "", NULL);
    json_t *number = json_object_get(object, "index");
    bool ok = json_is_integer(number) && json_integer_value(number) == index;
    if (ok) {
        p->failed += json_object_get(object, "error") != NULL;
    }
    json_decref(object);
    return ok;
}

/* Counts the whole lines. Only the last one, without a newline, may be torn. */
static bool count_lines(di_partial *p, di_error *err) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    bool ok = true;
    while (ok && (size = getline(&line, &capacity, p->stream)) > 0 && line[size - 1] == '\n') {
        ok = read_answer(p, line, (size_t)size - 1, p->lines);
        if (!ok) {
            di_fail(err, DI_ERR_FORMAT,
                    "%s line %lld: is no answer with index %lld, so it cannot be resumed",
                    p->temporary, (long long)p->lines + 1, (long long)p->lines);
            break;
        }
        p->lines++;
        p->bytes += size;
    }
    if (ok && ferror(p->stream)) {
        ok = di_fail_errno(err, "%s", p->temporary);
    }
    free(line); /* getline's */
    return ok;
}

static bool resume_at_end(di_partial *p, di_error *err) {
    return count_lines(p, err) && ((ftruncate(fileno(p->stream), p->bytes) == 0 &&
                                    fseeko(p->stream, p->bytes, SEEK_SET) == 0) ||
                                   di_fail_errno(err, "%s", p->temporary));
}

/* ---- opening ----------------------------------------------------------------------------------*/

static bool open_temporary(di_partial *p, bool resume, di_error *err) {
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_EXCL);
    int fd = open(p->temporary, flags, 0666);
    if (fd < 0 && errno == EEXIST) {
        return di_fail(err, DI_ERR_IO,
                       "%s is there, left by an interrupted run: --resume continues it; remove it "
                       "to begin anew",
                       p->temporary);
    }
    if (fd < 0) {
        return di_fail_errno(err, "%s", p->temporary);
    }
    p->stream = fdopen(fd, "r+b");
    if (!p->stream) {
        close(fd);
        return di_fail_errno(err, "%s", p->temporary);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return di_fail(err, DI_ERR_IO, "%s: another process is writing it", p->temporary);
    }
    return !resume || resume_at_end(p, err);
}

static bool open_path(di_partial *p, bool resume, di_error *err) {
    struct stat st;
    bool there = stat(p->path, &st) == 0;
    if (there && !S_ISREG(st.st_mode)) { /* a device or a pipe stays what it is */
        if (resume) {
            return di_fail(err, DI_ERR_ARGUMENT, "%s: only a file can be resumed", p->path);
        }
        p->stream = fopen(p->path, "wbe");
        return p->stream || di_fail_errno(err, "%s", p->path);
    }
    size_t length = strlen(p->path);
    p->temporary = di_alloc(length + sizeof ".partial");
    if (!p->temporary) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", p->path);
    }
    snprintf(p->temporary, length + sizeof ".partial", "%s.partial", p->path);
    if (resume && there && access(p->temporary, F_OK) != 0) {
        p->whole = true;
        return true;
    }
    return open_temporary(p, resume, err);
}

/* What abort and commit leave in memory. */
static void forget(di_partial *p) {
    di_free(p->path);
    di_free(p->temporary);
    *p = (di_partial){0};
}

bool di_partial_open(di_partial *p, const char *path, bool resume, di_error *err) {
    *p = (di_partial){0};
    if (strcmp(path, "-") == 0) {
        p->stream = stdout;
        return !resume || di_fail(err, DI_ERR_ARGUMENT, "--resume needs --output FILE");
    }
    char *target = realpath(path, NULL); /* a link stays one; what it points to is replaced */
    p->path = di_strdup(target ? target : path);
    free(target);
    bool ok = p->path ? open_path(p, resume, err)
                      : di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", path);
    if (!ok) {
        if (p->stream) {
            fclose(p->stream);
        }
        forget(p);
        return false;
    }
    di_signals_guard(p->lines == 0 && !p->whole ? p->temporary : NULL);
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------*/

bool di_partial_write(di_partial *p, const char *line, size_t bytes, di_error *err) {
    if (fwrite(line, 1, bytes, p->stream) != bytes || fflush(p->stream) != 0) {
        return di_fail_errno(err, "%s: cannot write", p->path ? p->path : "standard output");
    }
    p->lines++;
    p->bytes += (off_t)bytes;
    di_signals_guard(NULL); /* from now on there is something worth keeping */
    return true;
}

bool di_partial_abort(di_partial *p) {
    bool left = p->temporary && p->lines > 0;
    di_signals_guard(NULL);
    if (p->stream && p->path) {
        fclose(p->stream); /* a line that failed may be torn */
        left = left && truncate(p->temporary, p->bytes) == 0;
    }
    if (p->temporary && p->stream && !left) {
        unlink(p->temporary);
    }
    forget(p);
    return left;
}

bool di_partial_commit(di_partial *p, di_error *err) {
    const char *name = p->path ? p->path : "standard output";
    di_signals_guard(NULL);
    bool ok = p->whole || (fflush(p->stream) == 0 && !ferror(p->stream));
    if (ok && p->path && !p->whole) {
        ok = fsync(fileno(p->stream)) == 0 || errno == EINVAL || errno == EROFS;
        ok = fclose(p->stream) == 0 && ok;
        p->stream = NULL;
        ok = ok && (!p->temporary || rename(p->temporary, p->path) == 0);
    }
    if (!ok) {
        di_fail_errno(err, "%s: cannot write", name);
    }
    if (p->stream && p->path) {
        fclose(p->stream);
    }
    forget(p);
    return ok;
}
