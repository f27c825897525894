/* The journal of quotas: see quota_journal.h. */
#include "server/quota_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "server/key_file.h"

static const char first_line[] = "deepinfer-quota 1";

enum { SUM_BYTES = 16, LINE_BYTES = 256 };
#define MOST_BYTES ((size_t)1 << 30)
#define MOST_COUNT ((int64_t)1 << 60)

/* ---- lines ------------------------------------------------------------------------------------*/

static bool append_line(di_buffer *out, const char *text, int length, di_error *err) {
    char sum[SUM_BYTES + 3];
    snprintf(sum, sizeof sum, " %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, (size_t)length));
    return di_buffer_append(out, text, (size_t)length, err) &&
           di_buffer_append(out, sum, SUM_BYTES + 2, err);
}

bool di_quota_record_line(const di_quota_record *r, di_buffer *out, di_error *err) {
    char line[LINE_BYTES];
    int length = 0;
    switch (r->kind) {
    case 'T':
        length = snprintf(line, sizeof line, "T %" PRId64 " %s %" PRId64 " %" PRId64 " %" PRId64,
                          r->day, r->id, r->requests, r->input, r->output);
        break;
    case 'A':
        length = snprintf(line, sizeof line, "A %" PRIu64 " %" PRId64 " %s %" PRId64, r->ticket,
                          r->day, r->id, r->input);
        break;
    case 'P':
        length = snprintf(line, sizeof line, "P %" PRIu64 " %" PRId64, r->ticket, r->output);
        break;
    default:
        length = snprintf(line, sizeof line, "E %" PRIu64 " %" PRId64 " %" PRId64, r->ticket,
                          r->input, r->output);
    }
    return append_line(out, line, length, err);
}

/* The next word of a line: decimal digits up to a blank or the end. */
static bool take_number(const char **at, const char *end, int64_t *out) {
    int64_t value = 0;
    const char *p = *at;
    if (p == end) {
        return false;
    }
    for (; p < end && *p != ' '; p++) {
        if (*p < '0' || *p > '9' || value > MOST_COUNT / 10) {
            return false;
        }
        value = value * 10 + (*p - '0');
    }
    *out = value;
    *at = p < end ? p + 1 : p;
    return true;
}

static bool take_id(const char **at, const char *end, char id[DI_KEY_ID_BYTES + 1]) {
    const char *blank = memchr(*at, ' ', (size_t)(end - *at));
    size_t size = blank ? (size_t)(blank - *at) : 0;
    if (size == 0 || size > DI_KEY_ID_BYTES) {
        return false;
    }
    memcpy(id, *at, size);
    id[size] = 0;
    *at = blank + 1;
    return di_key_id_check(id, NULL);
}

static bool take_ticket(const char **at, const char *end, uint64_t *ticket) {
    int64_t number;
    bool ok = take_number(at, end, &number);
    *ticket = ok ? (uint64_t)number : 0;
    return ok;
}

/* What is in front of the sum. */
static bool read_fields(const char *at, const char *end, di_quota_record *r) {
    *r = (di_quota_record){.kind = at < end ? *at : 0};
    if (end - at < 2 || at[1] != ' ') {
        return false;
    }
    at += 2;
    bool ok;
    switch (r->kind) {
    case 'T':
        ok = take_number(&at, end, &r->day) && take_id(&at, end, r->id) &&
             take_number(&at, end, &r->requests) && take_number(&at, end, &r->input) &&
             take_number(&at, end, &r->output);
        break;
    case 'A':
        ok = take_ticket(&at, end, &r->ticket) && take_number(&at, end, &r->day) &&
             take_id(&at, end, r->id) && take_number(&at, end, &r->input);
        break;
    case 'P':
        ok = take_ticket(&at, end, &r->ticket) && take_number(&at, end, &r->output);
        break;
    case 'E':
        ok = take_ticket(&at, end, &r->ticket) && take_number(&at, end, &r->input) &&
             take_number(&at, end, &r->output);
        break;
    default:
        return false;
    }
    return ok && at == end;
}

/* The sum at the end of a line (without its newline) is right; *end is where it begins. */
static bool sum_fits(const char *line, size_t size, const char **end) {
    if (size <= SUM_BYTES + 1 || size > LINE_BYTES || line[size - SUM_BYTES - 1] != ' ') {
        return false;
    }
    char sum[SUM_BYTES + 1];
    *end = line + size - SUM_BYTES - 1;
    snprintf(sum, sizeof sum, "%016" PRIx64, (uint64_t)XXH3_64bits(line, (size_t)(*end - line)));
    return memcmp(sum, *end + 1, SUM_BYTES) == 0;
}

/* ---- replay -----------------------------------------------------------------------------------*/

/* Whether a whole line with a right sum begins anywhere behind `at`. */
static bool any_whole_line(const char *text, size_t size, size_t at) {
    const char *end;
    while (at < size) {
        const char *newline = memchr(text + at, '\n', size - at);
        if (!newline) {
            return false;
        }
        if (sum_fits(text + at, (size_t)(newline - text) - at, &end)) {
            return true;
        }
        at = (size_t)(newline - text) + 1;
    }
    return false;
}

/* Whether a file without a whole first line may be one of which no more was written; a power
 * failure may leave zeros for the rest. */
static bool may_begin_journal(const char *text, size_t size) {
    size_t length = size;
    while (length > 0 && text[length - 1] == 0) {
        length--;
    }
    size_t most = strlen(first_line);
    return memcmp(text, first_line, length < most ? length : most) == 0 ||
           any_whole_line(text, size, 0);
}

bool di_journal_replay(const char *text, size_t size, const char *name, di_quota_record_fn replay,
                       void *user, size_t *whole, di_error *err) {
    size_t at = 0;
    for (int64_t number = 1; at < size; number++) {
        const char *newline = memchr(text + at, '\n', size - at), *end;
        size_t length = newline ? (size_t)(newline - text) - at : size - at;
        if (!newline || !sum_fits(text + at, length, &end)) {
            if (at == 0 && !may_begin_journal(text, size)) {
                return di_fail(err, DI_ERR_FORMAT, "%s is no journal of quotas", name);
            }
            if (newline && any_whole_line(text, size, at + length + 1)) {
                return di_fail(err, DI_ERR_FORMAT,
                               "%s, line %" PRId64 ": the checksum is wrong, and whole records "
                               "follow; put a copy back, or move it away to count from zero",
                               name, number);
            }
            break; /* a torn end */
        }
        di_quota_record record;
        bool is_first = (size_t)(end - text) - at == strlen(first_line) &&
                        memcmp(text + at, first_line, strlen(first_line)) == 0;
        if (is_first != (number == 1)) {
            return di_fail(err, DI_ERR_FORMAT, "%s, line %" PRId64 ": %s", name, number,
                           is_first ? "a first line in the middle"
                                    : "is not the first line of a journal that this program knows");
        }
        if (!is_first) {
            if (!read_fields(text + at, end, &record)) {
                return di_fail(err, DI_ERR_FORMAT,
                               "%s, line %" PRId64 ": is no record that this program knows", name,
                               number);
            }
            if (!replay(user, &record, err)) {
                return di_fail_prefix(err, "%s, line %" PRId64, name, number);
            }
        }
        at += length + 1;
    }
    *whole = at < size ? at : size;
    return true;
}

/* ---- files ------------------------------------------------------------------------------------*/

bool di_journal_append(di_journal *j, const char *lines, size_t size, di_error *err) {
    if (!di_write_all(j->fd, lines, size)) {
        di_fail_errno(err, "%s", j->path);
        (void)!ftruncate(j->fd, j->size);
        return false;
    }
    j->size += (int64_t)size;
    return true;
}

bool di_journal_sync(const di_journal *j, di_error *err) {
    return fdatasync(j->fd) == 0 || di_fail_errno(err, "%s", j->path);
}

static bool append_first_line(di_journal *j, di_error *err) {
    di_buffer line = {0};
    bool ok = append_line(&line, first_line, (int)strlen(first_line), err) &&
              di_journal_append(j, line.data, line.size, err);
    di_buffer_free(&line);
    return ok;
}

/* The lock belongs to the file, not to its name: another process may have put a new one there. */
static bool lock_journal(const di_journal *j, di_error *err) {
    struct stat here, there;
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK ? di_fail(err, DI_ERR_BUSY,
                                              "%s is used by another process; each server needs a "
                                              "journal of its own",
                                              j->path)
                                    : di_fail_errno(err, "%s: cannot be locked", j->path);
    }
    if (fstat(j->fd, &here) != 0 || stat(j->path, &there) != 0) {
        return di_fail_errno(err, "%s", j->path);
    }
    if (here.st_ino != there.st_ino || here.st_dev != there.st_dev) {
        return di_fail(err, DI_ERR_BUSY, "%s was just replaced by another process", j->path);
    }
    if (!S_ISREG(here.st_mode)) {
        return di_fail(err, DI_ERR_IO, "%s is not a regular file", j->path);
    }
    return true;
}

static bool replay_file(di_journal *j, di_quota_record_fn replay, void *user, di_error *err) {
    struct stat s;
    char *text = NULL;
    size_t size = 0, whole = 0;
    if (fstat(j->fd, &s) != 0) {
        return di_fail_errno(err, "%s", j->path);
    }
    if (s.st_size > 0) {
        if (!di_file_read(j->path, MOST_BYTES, &text, &size, err)) {
            return false;
        }
        bool ok =
            di_journal_replay(text, size, di_key_file_name(j->path), replay, user, &whole, err);
        di_free(text);
        if (!ok) {
            return false;
        }
    }
    if (whole < size) {
        di_log(DI_LOG_WARN, "%s: the last %zu bytes are torn and were cut off", j->path,
               size - whole);
        if (ftruncate(j->fd, (off_t)whole) != 0) {
            return di_fail_errno(err, "%s", j->path);
        }
    }
    j->size = (int64_t)whole;
    return whole > 0 || append_first_line(j, err);
}

bool di_journal_open(di_journal *j, const char *path, di_quota_record_fn replay, void *user,
                     di_error *err) {
    *j = (di_journal){.path = di_strdup(path), .fd = -1};
    if (!j->path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", path);
    }
    j->fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    bool ok = j->fd >= 0 ? lock_journal(j, err) && replay_file(j, replay, user, err)
                         : di_fail_errno(err, "%s", path);
    if (!ok) {
        di_journal_close(j);
    }
    return ok;
}

void di_journal_close(di_journal *j) {
    if (j->fd >= 0) {
        close(j->fd);
    }
    di_free(j->path);
    *j = (di_journal){.fd = -1};
}

/* ---- replacing --------------------------------------------------------------------------------*/

void di_journal_discard(di_journal *fresh) {
    unlink(fresh->path);
    di_journal_close(fresh);
}

bool di_journal_prepare(const di_journal *j, const char *lines, size_t size, di_journal *fresh,
                        di_error *err) {
    size_t bytes = strlen(j->path) + sizeof ".new";
    *fresh = (di_journal){.path = di_alloc(bytes), .fd = -1};
    if (!fresh->path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", j->path);
    }
    snprintf(fresh->path, bytes, "%s.new", j->path);
    unlink(fresh->path); /* what a killed process has left */
    fresh->fd = open(fresh->path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fresh->fd < 0) {
        di_fail_errno(err, "%s", fresh->path);
        di_journal_close(fresh);
        return false;
    }
    bool ok = (flock(fresh->fd, LOCK_EX | LOCK_NB) == 0 ||
               di_fail_errno(err, "%s: cannot be locked", fresh->path)) &&
              append_first_line(fresh, err) &&
              (size == 0 || di_journal_append(fresh, lines, size, err)) &&
              di_journal_sync(fresh, err);
    if (!ok) {
        di_journal_discard(fresh);
    }
    return ok;
}

/* Copies j's bytes [from, size) behind fresh's. */
static bool copy_rest(const di_journal *j, int64_t from, di_journal *fresh, di_error *err) {
    char bytes[16384];
    while (from < j->size) {
        int64_t left = j->size - from;
        size_t most = left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes;
        ssize_t n = pread(j->fd, bytes, most, (off_t)from);
        if (n <= 0) {
            return di_fail_errno(err, "%s", j->path);
        }
        if (!di_journal_append(fresh, bytes, (size_t)n, err)) {
            return false;
        }
        from += n;
    }
    return true;
}

void di_journal_sync_name(const di_journal *j) {
    const char *path = j->path;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? di_strndup(path, (size_t)(slash - path) + 1) : di_strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    di_free(folder);
}

bool di_journal_replace(di_journal *j, int64_t from, di_journal *fresh, di_error *err) {
    if (!copy_rest(j, from, fresh, err)) {
        di_journal_discard(fresh);
        return false;
    }
    if (rename(fresh->path, j->path) != 0) {
        di_fail_errno(err, "%s: cannot be renamed to %s", fresh->path, j->path);
        di_journal_discard(fresh);
        return false;
    }
    close(j->fd);
    j->fd = fresh->fd;
    j->size = fresh->size;
    di_free(fresh->path);
    *fresh = (di_journal){.fd = -1};
    return true;
}
