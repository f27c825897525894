/* Facts about dtypes. */
#include "base/tensor.h"

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
    [DI_DTYPE_NONE] = {"none", 0}, [DI_F32] = {"F32", 32},        [DI_BF16] = {"BF16", 16},
    [DI_F8_E4M3] = {"F8_E4M3", 8}, [DI_F8_E8M0] = {"F8_E8M0", 8}, [DI_FP4_E2M1] = {"FP4", 4},
    [DI_I8] = {"I8", 8},           [DI_U8] = {"U8", 8},           [DI_I32] = {"I32", 32},
    [DI_I64] = {"I64", 64},        [DI_F16] = {"F16", 16},        [DI_F64] = {"F64", 64},
};

int di_dtype_bits(di_dtype dtype) {
    return dtypes[dtype].bits;
}

const char *di_dtype_name(di_dtype dtype) {
    return dtypes[dtype].name;
}
