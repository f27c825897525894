/* Any text as the index of a folder of two shards: whatever it says, only those two are opened. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static char folder[] = "/tmp/fuzz-index-XXXXXX";

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void write_file(const char *name, const void *data, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
}

static void write_shard(const char *name, const char *first, const char *second) {
    char file[512] = {0};
    int n = snprintf(file + 8, sizeof file - 8,
                     "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                     "\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                     first, second);
    uint64_t length = (uint64_t)n;
    memcpy(file, &length, 8);
    write_file(name, file, (size_t)n + 10);
}

static void remove_folder(void) {
    static const char *const names[] = {"a.safetensors", "b.safetensors",
                                        "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    require(mkdtemp(folder) != NULL);
    atexit(remove_folder);
    write_shard("a.safetensors", "model.x", "y");
    write_shard("b.safetensors", "z", "model.model.w");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    write_file("model.safetensors.index.json", data, size);
    di_faults strict = {0}, lenient = {.collect = true};
    di_checkpoint *c = di_checkpoint_open(folder, &strict);
    if (c) {
        require(c->num_shards >= 1 && c->num_shards <= 2);
        require(c->num_tensors == 2 * c->num_shards && c->total_bytes == c->num_tensors);
        require(di_checkpoint_find(c, "x") || di_checkpoint_find(c, "z"));
        di_checkpoint_close(c);
    }
    di_checkpoint *d = di_checkpoint_open(folder, &lenient);
    require((c != NULL) == (d && lenient.count == 0));
    di_checkpoint_close(d);
    di_faults_destroy(&strict);
    di_faults_destroy(&lenient);
    return 0;
}
