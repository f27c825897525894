/* Writing a safetensors file of one tensor, row by row, without holding it in memory. */
#ifndef DI_BASE_SAFETENSORS_WRITE_H
#define DI_BASE_SAFETENSORS_WRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"

/* Writes the header of a file whose only tensor is `name`, F32 [rows, columns]. The caller then
 * writes rows * columns little-endian float32 to the same writer. `name` needs no JSON escapes. */
bool di_safetensors_write_header(di_writer *w, const char *name, int64_t rows, int64_t columns,
                                 di_error *err);

#endif
