/* The row kernels for AVX-512 (F, BW, DQ, VL). */
#define DI_ROW_KERNELS      di_row_kernels_avx512
#define DI_ROW_KERNELS_NAME "avx512"
#include "sample/kernels.inc"
