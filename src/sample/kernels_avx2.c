/* The row kernels for AVX2. */
#define DI_ROW_KERNELS      di_row_kernels_avx2
#define DI_ROW_KERNELS_NAME "avx2"
#include "sample/kernels.inc"
