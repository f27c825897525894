/* The CUDA backend as the rest of the program sees it. Its code and the CUDA runtime live in a
 * shared object of their own, libdeepinfer-cuda.so, which is opened when a card is asked for: the
 * program itself needs no CUDA. docs/cuda.md. */
#ifndef DI_OPS_CUDA_CUDA_H
#define DI_OPS_CUDA_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "ops/ops.h"

/* A backend on card number `device`. NULL with *err: DI_ERR_UNSUPPORTED when there is no such card
 * or it cannot be used (no CUDA in this build, no driver or an old one, a processor that the
 * kernels were not built for), DI_ERR_NO_MEMORY when the card has none left. Destroy with
 * ops->destroy.
 *
 * Weights (every di_tensor given to an op) are in host memory and are uploaded when first used;
 * the copy is found again by the host address, so they must stay where and as they are while the
 * backend lives. */
di_backend *di_cuda_create(int device, di_error *err);

/* "cuda", "cuda:0", "cuda:7" -> the card's number; false for any other text. */
bool di_cuda_parse(const char *text, int *device);

/* One line on what this build has and this machine offers. */
void di_cuda_describe(char *text, size_t size);

/* Whether sums may be formed in the order that suits the number of rows best, so that a row's last
 * bits depend on its company. At first they may not. be: of di_cuda_create. */
void di_cuda_free_order(di_backend *be, bool allowed);

/* The rest is for measuring and tests; be is a backend of di_cuda_create. */

/* Forgets all uploaded weights, after which their host memory may change or go. */
void di_cuda_forget(di_backend *be);

/* Bytes of the card's memory that weights, tables, scratch memory and arguments have taken; buffers
 * (ops->alloc) are not among them. */
size_t di_cuda_bytes(const di_backend *be);

/* Queues one read of all of a buffer of the card; of 0 bytes: a launch of nothing. For benches. */
void di_cuda_read_all(di_backend *be, const void *buffer, size_t bytes);

#endif
