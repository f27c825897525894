/* The header of a safetensors file: see safetensors_write.h. */
#include "base/safetensors_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool di_safetensors_write_header(di_writer *w, const char *name, int64_t rows, int64_t columns,
                                 di_error *err) {
    char json[256];
    int64_t bytes;
    if (__builtin_mul_overflow(rows, columns, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)sizeof(float), &bytes)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: %" PRId64 " x %" PRId64 " values are too many",
                       name, rows, columns);
    }
    int length = snprintf(json, sizeof json,
                          "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%" PRId64 ",%" PRId64
                          "],\"data_offsets\":[0,%" PRId64 "]}}",
                          name, rows, columns, bytes);
    if (length < 0 || length + 8 > (int)sizeof json) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: the name is too long", name);
    }
    while (length % 8) { /* the data begin at a multiple of 8 bytes */
        json[length++] = ' ';
    }
    unsigned char size[8];
    for (int i = 0; i < 8; i++) {
        size[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    return di_writer_write(w, size, sizeof size, err) &&
           di_writer_write(w, json, (size_t)length, err);
}
