/* The one symbol of libdeepinfer-cuda.so, and what both sides of it agree on. Structs of every kind
 * go across, so both must be of one build: size, version and revision tell. */
#ifndef DI_OPS_CUDA_PART_H
#define DI_OPS_CUDA_PART_H

#include "base/error.h"
#include "ops/ops.h"

typedef struct di_cuda_part {
    size_t size;
    const char *(*version)(void), *(*revision)(void); /* base/version.h */
    di_backend *(*create)(int device, di_error *err);
    void (*describe)(char *text, size_t size);
    void (*free_order)(di_backend *be, bool allowed);
    void (*forget)(di_backend *be);
    size_t (*bytes)(const di_backend *be);
    void (*read_all)(di_backend *be, const void *buffer, size_t bytes);
} di_cuda_part;

extern const di_cuda_part di_cuda_part_table;

#endif
