/* Dtypes and tensors. A di_tensor never owns its data. */
#ifndef DI_BASE_TENSOR_H
#define DI_BASE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

typedef enum di_dtype {
    DI_DTYPE_NONE = 0, /* an absent tensor */
    DI_F32,
    DI_BF16,
    DI_F8_E4M3,  /* 1 sign, 4 exponent (bias 7), 3 mantissa; "fn": no infinities, 0x7f/0xff NaN */
    DI_F8_E8M0,  /* 2^(byte - 127); 255 = NaN */
    DI_FP4_E2M1, /* two codes a byte, even column in the low nibble; stored as I8 in safetensors */
    DI_I8,
    DI_U8,
    DI_I32,
    DI_I64,
    DI_F16,
    DI_F64,
} di_dtype;

#define DI_MAX_RANK 4

/* shape is logical: an FP4 matrix [n, k] occupies n * k / 2 bytes. Rows lie close together
 * (row-major, no gaps). Quantised matrices carry E8M0 scales, one per block of
 * scale_block[0] x scale_block[1] elements, themselves row-major
 * [ceil(shape[0] / scale_block[0]), shape[1] / scale_block[1]]. */
typedef struct di_tensor {
    di_dtype dtype;
    int rank;
    int64_t shape[DI_MAX_RANK];
    const void *data;
    const uint8_t *scale; /* NULL unless quantised */
    int scale_block[2];   /* {32, 32} FP8 matrices; {1, 32} MXFP4 matrices and engram tables */
} di_tensor;

/* A gated feed-forward: w1 (gate) and w3 (up) [inter, hidden], w2 (down) [hidden, inter]. */
typedef struct di_expert {
    di_tensor w1, w2, w3;
} di_expert;

/* Bits of one element: 32, 16, 8 or 4; 0 for DI_DTYPE_NONE. */
int di_dtype_bits(di_dtype dtype);
const char *di_dtype_name(di_dtype dtype); /* as safetensors spells it; FP4_E2M1 as "FP4" */

#endif
