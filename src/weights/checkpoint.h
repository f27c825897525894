/* A folder of safetensors files taken as one set of tensors: model.safetensors.index.json and the
 * shards it names, or a lone model.safetensors. Owns the mappings that all weights point into. */
#ifndef DI_WEIGHTS_CHECKPOINT_H
#define DI_WEIGHTS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weights/safetensors.h"

enum { DI_MAX_SHARDS = 4096 };

/* A tensor of the folder. The name has lost an optional "model." in front. */
typedef struct di_stored_tensor {
    const char *name; /* not NUL-terminated */
    uint32_t name_length;
    uint32_t shard;
    const di_shard_tensor *tensor;
    int part; /* the di_part it was bound as; -1: by nobody (yet) */
} di_stored_tensor;

typedef struct di_checkpoint {
    char *folder;     /* as given, owned */
    di_shard *shards; /* in the order of their names */
    size_t num_shards;
    di_stored_tensor *tensors; /* sorted by name */
    size_t num_tensors;
    uint64_t total_bytes; /* of all tensors */
    void **copies;        /* tensors that lie misaligned in their file, copied by the binder */
    size_t num_copies, copies_capacity;
} di_checkpoint;

/* Opens and checks the folder's index and shards: index entries and shards must agree tensor by
 * tensor, shard names must be plain file names, and no tensor may lie in two shards. NULL when
 * faults end it (see di_faults_stop); while collecting, unusable shards are left out. */
di_checkpoint *di_checkpoint_open(const char *folder, di_faults *faults);
void di_checkpoint_close(di_checkpoint *c);

/* NULL if there is none of that name. */
di_stored_tensor *di_checkpoint_find(const di_checkpoint *c, const char *name);

/* True if some tensor's name begins with prefix. */
bool di_checkpoint_has_prefix(const di_checkpoint *c, const char *prefix);

const uint8_t *di_stored_data(const di_checkpoint *c, const di_stored_tensor *t);
const char *di_stored_path(const di_checkpoint *c, const di_stored_tensor *t); /* of its file */

#endif
