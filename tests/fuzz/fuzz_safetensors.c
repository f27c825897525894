/* Any bytes as a safetensors file: opened with what holds of every open file, or refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

/* Tensors lie in the data, have the bytes their shapes ask for, and cover the data exactly. */
static void check(const di_shard *s) {
    uint64_t sum = 0;
    for (size_t i = 0; i < s->num_tensors; i++) {
        const di_shard_tensor *t = &s->tensors[i];
        uint64_t bytes = (uint64_t)di_dtype_bits(t->dtype) / 8;
        require(t->begin <= t->end && t->end <= s->data_bytes);
        for (int k = 0; k < t->rank; k++) {
            require(t->shape[k] >= 0);
            bytes *= (uint64_t)t->shape[k];
        }
        require(bytes == t->end - t->begin);
        require(i == 0 ||
                di_compare_names(t[-1].name, t[-1].name_length, t->name, t->name_length) < 0);
        sum += bytes;
    }
    require(sum == s->data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    static char path[64];
    di_shard s;
    di_faults faults = {.collect = true};
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    bool strict = di_shard_open(&s, path, NULL);
    if (strict) {
        check(&s);
        di_shard_close(&s);
    }
    bool lenient = di_shard_check(&s, path, &faults);
    require(strict == (lenient && faults.count == 0));
    if (lenient) {
        di_shard_close(&s);
    }
    di_faults_destroy(&faults);
    return 0;
}
