/* A kernel that fails: DI_CUDA_TRAP=OP puts it in front of that op's kernels, so that tests see
 * what becomes of a fault. */
#include "ops/cuda/card/queue.h"

/* One thread, once. */
static __global__ void trap(void) {
    __trap();
}

void dk_trap(cudaStream_t s) {
    trap<<<1, 1, 0, s>>>();
}
