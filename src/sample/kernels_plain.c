/* The row kernels for any processor; the only set outside x86-64. */
#define DI_ROW_KERNELS      di_row_kernels_plain
#define DI_ROW_KERNELS_NAME "plain"
#include "sample/kernels.inc"
