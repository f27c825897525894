/* Launches that overlap. A kernel launched by launch_overlapped may begin before the one in front
 * of it on the stream has ended: what it takes to be set up, and reading of weights, cost no time
 * then.
 *
 * It calls wait_for_predecessors before it touches anything that kernels write; every thread that
 * does so must come behind it. let_successors_begin says that the next kernel may start to be set
 * up; several may be set up and wait, each of which then sees all that was written before it. What
 * they read before they wait must have been there since before the step: weights, arguments. */
#ifndef DI_OPS_CUDA_LAUNCH_CUH
#define DI_OPS_CUDA_LAUNCH_CUH

#include <cuda_runtime_api.h>

__device__ __forceinline__ void wait_for_predecessors() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void let_successors_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* What small kernels begin with. */
__device__ __forceinline__ void begin_overlapped() {
    let_successors_begin();
    wait_for_predecessors();
}

/* cluster: blocks of a cluster along x; above 8 the kernel must allow it. */
template <class Kernel, class... Call>
static cudaError_t launch_overlapped(cudaStream_t s, Kernel *kernel, dim3 grid, int threads,
                                     size_t shared, int cluster, const Call &...call) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = s;
    config.attrs = attributes;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 1;
    if (cluster > 1) {
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = cluster;
        attributes[1].val.clusterDim.y = 1;
        attributes[1].val.clusterDim.z = 1;
        config.numAttrs = 2;
    }
    return cudaLaunchKernelEx(&config, kernel, call...); /* whoever queues reads it too */
}

#endif
