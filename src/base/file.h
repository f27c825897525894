/* Files: mapping for reading, whole small files, and writing that never leaves half a file. */
#ifndef DI_BASE_FILE_H
#define DI_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* A file mapped read-only. Not a regular file, or empty: an error. The content is hostile and may
 * even shrink while mapped (then SIGBUS; the CLI turns it into a message). */
typedef struct di_map {
    const uint8_t *data;
    size_t size;
} di_map;

bool di_map_open(di_map *map, const char *path, di_error *err);
void di_map_close(di_map *map);

/* Reads a whole file of at most max_bytes; *data is NUL-terminated (the NUL is not in *size) and
 * freed with di_free. */
bool di_file_read(const char *path, size_t max_bytes, char **data, size_t *size, di_error *err);

/* All of it to an open file; false with errno. */
bool di_write_all(int fd, const char *data, size_t size);

/* Writing to PATH: goes to a temporary name in the same folder; di_writer_commit flushes, syncs and
 * renames, di_writer_abort removes it. "-" is standard output; that, and a PATH that is a device or
 * a pipe, is written to directly, and abort can take nothing back.
 * Exactly one of commit and abort ends a writer that was opened; commit that fails has aborted. */
typedef struct di_writer {
    FILE *stream;
    char *path, *temporary; /* NULL for standard output; temporary also for a device or a pipe */
} di_writer;

bool di_writer_open(di_writer *w, const char *path, di_error *err);
bool di_writer_write(di_writer *w, const void *data, size_t bytes, di_error *err);
bool di_writer_commit(di_writer *w, di_error *err);
void di_writer_abort(di_writer *w);

/* Removes the temporary files of all writers (the first eight of those open at once): for handlers
 * of signals that end the program, which may call it at any time. */
void di_writers_unlink(void);

/* "folder/name" in fresh memory, NULL if short of it. */
char *di_path_join(const char *folder, const char *name);

#endif
