/* Model folders to damage: temporary copies of checkpoints, and safetensors files made to order.
 * Everything here fails the running test if it cannot do its work. */
#ifndef TESTS_SUPPORT_MODEL_FILES_H
#define TESTS_SUPPORT_MODEL_FILES_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* A new folder below $TMPDIR or /tmp, in fresh memory; files_remove deletes it and frees the name.
 */
char *files_folder(void);
void files_remove(char *folder);

/* "folder/name" in one of a few static buffers. */
const char *files_path(const char *folder, const char *name);

/* Below $TESTDATA (build/testdata), absolute, in fresh memory. */
char *files_testdata(const char *name);

/* A folder as of files_folder with links to all the files of `from`. */
char *files_copy(const char *from);

/* The same of the tiny checkpoint into *state, and files_remove of it: set-up and tear-down of
 * tests that damage it. */
int files_copy_tiny(void **state);
int files_remove_copy(void **state);

/* Writes a file; a link of that name is replaced, not followed. */
void files_write(const char *folder, const char *name, const void *data, size_t size);
void files_write_text(const char *folder, const char *name, const char *text);
void *files_read(const char *path, size_t *size); /* free() it */

/* Takes the mtp.* tensors out of the index; their file must hold nothing else. */
void files_drop_draft(const char *folder);

json_t *files_read_json(const char *path);
void files_write_json(const char *folder, const char *name, const json_t *value);

/* A safetensors file in parts, read by jansson and so independent of the code under test. */
typedef struct shard_parts {
    json_t *header;
    uint8_t *data, *file; /* data points into file, which is free()d */
    size_t size;          /* of data */
} shard_parts;

void shard_read(shard_parts *s, const char *path);
void shard_write(const shard_parts *s, const char *folder, const char *name);
void shard_free(shard_parts *s);

/* A file of this header text and that many data bytes of zero. */
void shard_write_text(const char *folder, const char *name, const char *header, size_t data_bytes);

#endif
