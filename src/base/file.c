/* Files: see file.h. All paths come from users or from index files that were checked before. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"

static int open_regular(const char *path, size_t *size, di_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        di_fail_errno(err, "%s", path);
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) {
        di_fail_errno(err, "%s", path);
    } else if (!S_ISREG(st.st_mode)) {
        di_fail(err, DI_ERR_IO, "%s: is not a regular file", path);
    } else {
        *size = (size_t)st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

bool di_map_open(di_map *map, const char *path, di_error *err) {
    size_t size = 0;
    int fd = open_regular(path, &size, err);
    if (fd < 0) {
        return false;
    }
    void *data = MAP_FAILED;
    if (size == 0) {
        di_fail(err, DI_ERR_FORMAT, "%s: the file is empty", path);
    } else {
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            di_fail_errno(err, "%s: cannot map %zu bytes", path, size);
        }
    }
    close(fd);
    if (data == MAP_FAILED) {
        return false;
    }
    *map = (di_map){data, size};
    return true;
}

void di_map_close(di_map *map) {
    if (map->data) {
        munmap((void *)map->data, map->size);
    }
    *map = (di_map){0};
}

static bool read_all(int fd, char *data, size_t size, const char *path, di_error *err) {
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, data + done, size - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return di_fail_errno(err, "%s", path);
        }
        if (n == 0) {
            return di_fail(err, DI_ERR_IO, "%s: ended at byte %zu of %zu", path, done, size);
        }
        done += (size_t)n;
    }
    return true;
}

bool di_file_read(const char *path, size_t max_bytes, char **data, size_t *size, di_error *err) {
    int fd = open_regular(path, size, err);
    if (fd < 0) {
        return false;
    }
    char *buffer = NULL;
    bool ok = false;
    if (*size > max_bytes) {
        di_fail(err, DI_ERR_FORMAT, "%s: %zu bytes, at most %zu are allowed", path, *size,
                max_bytes);
    } else if (!(buffer = di_alloc(*size + 1))) {
        di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for %zu bytes", path, *size);
    } else {
        ok = read_all(fd, buffer, *size, path, err);
    }
    close(fd);
    if (!ok) {
        di_free(buffer);
        return false;
    }
    buffer[*size] = 0;
    *data = buffer;
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------*/

bool di_write_all(int fd, const char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, data + done, size - done);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* The names of temporary files that are there. Global because a handler of signals has no other way
 * to know; atomic because writers belong to any thread. */
enum { MOST_REMEMBERED = 8 };
static _Atomic(char *) temporaries[MOST_REMEMBERED];

/* Puts `now` in place of the first `before`. */
static void swap_name(char *before, char *now) {
    for (int i = 0; i < MOST_REMEMBERED; i++) {
        char *expected = before;
        if (atomic_compare_exchange_strong(&temporaries[i], &expected, now)) {
            return;
        }
    }
}

void di_writers_unlink(void) {
    for (int i = 0; i < MOST_REMEMBERED; i++) {
        const char *path = atomic_load(&temporaries[i]);
        if (path) {
            unlink(path);
        }
    }
}

/* The names. */
static void forget(di_writer *w) {
    if (w->temporary) {
        swap_name(w->temporary, NULL);
    }
    di_free(w->path);
    di_free(w->temporary);
    *w = (di_writer){0};
}

/* Opens a temporary file beside w->path. */
static bool open_temporary(di_writer *w, di_error *err) {
    size_t length = strlen(w->path);
    w->temporary = di_alloc(length + 8);
    if (!w->temporary) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", w->path);
    }
    snprintf(w->temporary, length + 8, "%s.XXXXXX", w->path);
    int fd = mkostemp(w->temporary, O_CLOEXEC);
    if (fd < 0) {
        di_fail_errno(err, "%s: cannot create a file beside it", w->path);
        return false;
    }
    mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(fd, 0666 & ~mask); /* mkstemp makes 0600; a result file follows the umask */
    w->stream = fdopen(fd, "wb");
    if (!w->stream) {
        di_fail_errno(err, "%s", w->path);
        close(fd);
        unlink(w->temporary);
        return false;
    }
    swap_name(NULL, w->temporary);
    return true;
}

bool di_writer_open(di_writer *w, const char *path, di_error *err) {
    *w = (di_writer){0};
    if (strcmp(path, "-") == 0) {
        w->stream = stdout;
        return true;
    }
    char *target = realpath(path, NULL); /* a link stays one; what it points to is replaced */
    w->path = di_strdup(target ? target : path);
    free(target);
    if (!w->path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", path);
    }
    struct stat st;
    bool ok;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a device or a pipe stays what it is */
        w->stream = fopen(path, "wbe");
        ok = w->stream || di_fail_errno(err, "%s", path);
    } else {
        ok = open_temporary(w, err);
    }
    if (!ok) {
        forget(w);
    }
    return ok;
}

bool di_writer_write(di_writer *w, const void *data, size_t bytes, di_error *err) {
    if (bytes && fwrite(data, 1, bytes, w->stream) != bytes) {
        return di_fail_errno(err, "%s: cannot write", w->path ? w->path : "standard output");
    }
    return true;
}

void di_writer_abort(di_writer *w) {
    if (w->path && w->stream) {
        fclose(w->stream);
    }
    if (w->temporary) {
        unlink(w->temporary);
    }
    forget(w);
}

bool di_writer_commit(di_writer *w, di_error *err) {
    const char *name = w->path ? w->path : "standard output";
    bool ok = fflush(w->stream) == 0 && !ferror(w->stream);
    if (ok && w->path) {
        ok = fsync(fileno(w->stream)) == 0 || errno == EINVAL || errno == EROFS;
        ok = fclose(w->stream) == 0 && ok;
        w->stream = NULL;
        ok = ok && (!w->temporary || rename(w->temporary, w->path) == 0);
    }
    if (!ok) {
        di_fail_errno(err, "%s: cannot write", name);
        di_writer_abort(w);
        return false;
    }
    forget(w);
    return true;
}

char *di_path_join(const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name), bytes;
    if (!di_add_size(a, b, &bytes) || !di_add_size(bytes, 2, &bytes)) {
        return NULL;
    }
    char *path = di_alloc(bytes);
    if (path) {
        snprintf(path, bytes, "%s%s%s", folder, a && folder[a - 1] == '/' ? "" : "/", name);
    }
    return path;
}
