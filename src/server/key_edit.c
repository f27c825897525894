/* Changing key files for `deepinfer key`: see keys.h. A file is locked while it is changed, and
 * what it would become is checked first. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "server/key_file.h"

/* Opens the file and locks it; again, when another process has replaced it meanwhile. -1 with an
 * error. */
static int open_locked(const char *path, int flags, struct stat *s, di_error *err) {
    for (;;) {
        int fd = open(path, flags | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0) {
            di_fail_errno(err, "%s", path);
            return -1;
        }
        struct stat named;
        if (flock(fd, LOCK_EX) != 0 || fstat(fd, s) != 0) {
            di_fail_errno(err, "%s: cannot be locked", path);
            close(fd);
            return -1;
        }
        if (stat(path, &named) == 0 && named.st_ino == s->st_ino && named.st_dev == s->st_dev) {
            return fd;
        }
        close(fd);
    }
}

static bool is_fine(const char *path, const di_buffer *text, di_error *err) {
    di_key_set *set =
        di_key_set_parse(text->data ? text->data : "", text->size, di_key_file_name(path), err);
    di_key_set_release(set);
    return set != NULL;
}

/* ---- appending --------------------------------------------------------------------------------*/

/* In place, so that owner, mode and links stay. */
static bool append_locked(int fd, const struct stat *s, const char *path, const char *line,
                          di_error *err) {
    char *old = NULL;
    size_t size = 0;
    di_buffer added = {0}, whole = {0};
    bool ok = di_key_file_read(path, &old, &size, err) &&
              (size == 0 || old[size - 1] == '\n' || di_buffer_append(&added, "\n", 1, err)) &&
              di_buffer_append_text(&added, line, err) && di_buffer_append(&added, "\n", 1, err) &&
              di_buffer_append(&whole, old, size, err) &&
              di_buffer_append(&whole, added.data, added.size, err) && is_fine(path, &whole, err);
    if (ok && !(di_write_all(fd, added.data, added.size) && fsync(fd) == 0)) {
        ok = di_fail_errno(err, "%s", path);
        (void)!ftruncate(fd, s->st_size);
    }
    di_free(old);
    di_buffer_free(&added);
    di_buffer_free(&whole);
    return ok;
}

bool di_keys_append(const char *path, const char *line, di_error *err) {
    struct stat s;
    if (!di_key_crypto_start(err)) {
        return false;
    }
    int fd = open_locked(path, O_WRONLY | O_CREAT, &s, err);
    if (fd < 0) {
        return false;
    }
    bool ok = append_locked(fd, &s, path, line, err);
    close(fd);
    return ok;
}

/* ---- one more secret --------------------------------------------------------------------------*/

/* The record of a line with the hash in front of at most `keep` of its old ones; free() it. NULL:
 * no memory. */
static char *with_hash(const char *line, size_t size, const char *hash, int keep) {
    json_t *record = json_loadb(line, size, 0, NULL), *hashes = json_array();
    json_t *old = json_object_get(record, "hash");
    json_array_append_new(hashes, json_string(hash));
    for (int i = 0; i < keep && i < DI_KEY_HASHES - 1; i++) {
        json_t *one = json_is_array(old) ? json_array_get(old, (size_t)i) : i == 0 ? old : NULL;
        if (one) {
            json_array_append(hashes, one);
        }
    }
    json_object_set_new(record, "hash", hashes);
    char *text = json_dumps(record, JSON_COMPACT);
    json_decref(record);
    return text;
}

/* The file's text with that line (counted from 1) replaced. */
static bool replace_line(const char *text, size_t size, int number, const char *hash, int keep,
                         di_buffer *out, di_error *err) {
    const char *line = text, *end = text + size;
    for (int i = 1; i < number; i++) {
        line = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1;
    }
    const char *newline = memchr(line, '\n', (size_t)(end - line));
    const char *behind = newline ? newline : end;
    char *fresh = with_hash(line, (size_t)(behind - line), hash, keep);
    bool ok = (fresh || di_fail(err, DI_ERR_NO_MEMORY, "no memory for the record")) &&
              di_buffer_append(out, text, (size_t)(line - text), err) &&
              di_buffer_append_text(out, fresh, err) &&
              di_buffer_append(out, behind, (size_t)(end - behind), err);
    free(fresh);
    return ok;
}

/* Writes a new file beside the old one, like it in mode and owner, and puts it in its place. */
static bool replace_file(const char *path, const struct stat *s, const di_buffer *text,
                         di_error *err) {
    size_t bytes = strlen(path) + sizeof ".new";
    char *name = di_alloc(bytes);
    if (!name) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its name", path);
    }
    snprintf(name, bytes, "%s.new", path);
    unlink(name); /* what an interrupted change has left; the lock keeps others away */
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && di_write_all(fd, text->data, text->size) &&
              fchown(fd, s->st_uid, s->st_gid) == 0 && fchmod(fd, s->st_mode & 0777) == 0 &&
              fsync(fd) == 0 && rename(name, path) == 0;
    if (!ok) {
        di_fail_errno(err, "%s", name);
        unlink(name);
    }
    if (fd >= 0) {
        close(fd);
    }
    di_free(name);
    return ok;
}

static bool add_hash_locked(const struct stat *s, const char *path, const char *id,
                            const char *hash, int keep, di_error *err) {
    char *text = NULL;
    size_t size = 0;
    di_buffer whole = {0};
    bool ok = di_key_file_read(path, &text, &size, err);
    di_key_set *set = ok ? di_key_set_parse(text, size, di_key_file_name(path), err) : NULL;
    if (set) {
        const di_key_record *record = di_key_set_find(set, di_str_of(id));
        ok = record ? replace_line(text, size, record->key.line, hash, keep, &whole, err) &&
                          is_fine(path, &whole, err) && replace_file(path, s, &whole, err)
                    : di_fail(err, DI_ERR_ARGUMENT, "%s has no key '%s'", path, id);
    }
    ok = ok && set;
    di_key_set_release(set);
    di_buffer_free(&whole);
    di_free(text);
    return ok;
}

bool di_keys_add_hash(const char *path, const char *id, const char *hash, int keep, di_error *err) {
    struct stat s;
    if (!di_key_crypto_start(err)) {
        return false;
    }
    int fd = open_locked(path, O_RDWR, &s, err);
    if (fd < 0) {
        return false;
    }
    bool ok = add_hash_locked(&s, path, id, hash, keep, err);
    close(fd);
    return ok;
}
