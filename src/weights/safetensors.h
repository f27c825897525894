/* One safetensors file, mapped: eight bytes of header length, a JSON header that gives each
 * tensor's dtype, shape and place, then the data. Everything in the file is hostile; a file that
 * opens has tensors of known dtypes whose places fill the data exactly. */
#ifndef DI_WEIGHTS_SAFETENSORS_H
#define DI_WEIGHTS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/tensor.h"
#include "weights/faults.h"

enum { DI_MAX_HEADER_BYTES = 100 << 20 };

typedef struct di_shard_tensor {
    const char *name; /* inside the mapping, not NUL-terminated; printable ASCII without " and \ */
    uint32_t name_length;
    di_dtype dtype; /* as stored: packed FP4 is DI_I8 */
    int rank;
    int64_t shape[DI_MAX_RANK];
    uint64_t begin, end; /* in the data, which start at di_shard.data */
} di_shard_tensor;

typedef struct di_shard {
    char *path; /* owned */
    di_map map;
    const uint8_t *data;
    uint64_t data_bytes;
    di_shard_tensor *tensors; /* owned, sorted by name */
    size_t num_tensors;
} di_shard;

/* Opens and checks a file. False with *err (path, reason, offset) on the first fault. */
bool di_shard_open(di_shard *s, const char *path, di_error *err);

/* The same, telling `faults`. False when the file cannot be used at all; true with faults counted
 * when it could be read but not every tensor is as it should be (those are left out). */
bool di_shard_check(di_shard *s, const char *path, di_faults *faults);

void di_shard_close(di_shard *s);

/* NULL if there is none of that name. */
const di_shard_tensor *di_shard_find(const di_shard *s, const char *name);

/* The tensor of that name with its data in the mapping; false if there is none. */
bool di_shard_get(const di_shard *s, const char *name, di_tensor *out);

/* Offset in the file of byte `at` of the data. */
static inline uint64_t di_shard_file_offset(const di_shard *s, uint64_t at) {
    return (uint64_t)(s->data - s->map.data) + at;
}

/* Orders names of explicit length as memcmp does, a prefix first. */
int di_compare_names(const char *a, size_t a_length, const char *b, size_t b_length);

#endif
