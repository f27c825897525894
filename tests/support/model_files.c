/* Model folders to damage: see model_files.h. */
#include "support/model_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/cmocka.h"

char *files_folder(void) {
    const char *base = getenv("TMPDIR");
    char *folder = NULL;
    assert_true(asprintf(&folder, "%s/deepinfer-test-XXXXXX", base ? base : "/tmp") > 0);
    assert_non_null(mkdtemp(folder));
    return folder;
}

void files_remove(char *folder) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            assert_int_equal(remove(files_path(folder, e->d_name)), 0);
        }
    }
    closedir(d);
    assert_int_equal(rmdir(folder), 0);
    free(folder);
}

const char *files_path(const char *folder, const char *name) {
    static char buffers[8][4096];
    static int next;
    char *path = buffers[next++ % 8];
    assert_true(snprintf(path, sizeof *buffers, "%s/%s", folder, name) < (int)sizeof *buffers);
    return path;
}

char *files_testdata(const char *name) {
    const char *base = getenv("TESTDATA");
    char *path = realpath(files_path(base ? base : "build/testdata", name), NULL);
    if (!path) {
        print_error("%s is missing from the test data\n", name);
    }
    assert_non_null(path);
    return path;
}

char *files_copy(const char *from) {
    char *folder = files_folder(), *source = realpath(from, NULL);
    assert_non_null(source);
    DIR *d = opendir(source);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] != '.') {
            assert_int_equal(symlink(files_path(source, e->d_name), files_path(folder, e->d_name)),
                             0);
        }
    }
    closedir(d);
    free(source);
    return folder;
}

int files_copy_tiny(void **state) {
    char *tiny = files_testdata("tiny");
    *state = files_copy(tiny);
    free(tiny);
    return 0;
}

int files_remove_copy(void **state) {
    files_remove(*state);
    return 0;
}

void files_write(const char *folder, const char *name, const void *data, size_t size) {
    const char *path = files_path(folder, name);
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void files_write_text(const char *folder, const char *name, const char *text) {
    files_write(folder, name, text, strlen(text));
}

void *files_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    data[*size] = 0;
    return data;
}

json_t *files_read_json(const char *path) {
    json_t *value = json_load_file(path, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    return value;
}

void files_write_json(const char *folder, const char *name, const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    assert_non_null(text);
    files_write_text(folder, name, text);
    free(text);
}

void shard_read(shard_parts *s, const char *path) {
    size_t size;
    uint64_t length;
    s->file = files_read(path, &size);
    memcpy(&length, s->file, 8);
    s->header = json_loadb((char *)s->file + 8, length, 0, NULL);
    assert_non_null(s->header);
    s->data = s->file + 8 + length;
    s->size = size - 8 - length;
}

static void write_parts(const char *folder, const char *name, const char *header,
                        const uint8_t *data, size_t size) {
    uint64_t length = strlen(header);
    uint8_t *file = malloc(8 + length + size);
    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    if (data) {
        memcpy(file + 8 + length, data, size);
    } else {
        memset(file + 8 + length, 0, size);
    }
    files_write(folder, name, file, 8 + length + size);
    free(file);
}

void shard_write(const shard_parts *s, const char *folder, const char *name) {
    char *header = json_dumps(s->header, JSON_COMPACT);
    assert_non_null(header);
    write_parts(folder, name, header, s->data, s->size);
    free(header);
}

void shard_free(shard_parts *s) {
    json_decref(s->header);
    free(s->file);
}

void shard_write_text(const char *folder, const char *name, const char *header, size_t data_bytes) {
    write_parts(folder, name, header, NULL, data_bytes);
}

void files_drop_draft(const char *folder) {
    static const char index_name[] = "model.safetensors.index.json";
    json_t *index = files_read_json(files_path(folder, index_name));
    json_t *map = json_object_get(index, "weight_map");
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(map, next, name, value) {
        if (strncmp(name, "mtp.", 4) == 0) {
            json_object_del(map, name);
        }
    }
    json_object_del(index, "metadata");
    files_write_json(folder, index_name, index);
    json_decref(index);
}
