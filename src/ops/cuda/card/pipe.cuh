/* What moves data ahead of the tensor cores: barriers in shared memory, bulk copies, clusters of
 * blocks. Addresses are 32-bit ones of shared memory, as the instructions want them. */
#ifndef DI_OPS_CUDA_PIPE_CUH
#define DI_OPS_CUDA_PIPE_CUH

#include <cuda.h> /* CUtensorMap alone: nothing of the driver is linked */

#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers --------------------------------------------------------------------------------*/

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes them known to the copy engine and to the other blocks of the cluster. */
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and has the phase wait for so many bytes more. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* At the same barrier of block `rank` of the cluster. Says that reading is over, and no more: an
 * explicit release to the cluster would wait for all of the thread's memory accesses. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n\t.reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* Until the phase of this parity is over. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{\n\t.reg .pred p;\n"
                 "AGAIN:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
                 "@p bra DONE;\n\t"
                 "bra AGAIN;\n"
                 "DONE:\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- copies ----------------------------------------------------------------------------------*/

/* `bytes` (a multiple of 16) to shared memory, counted at the barrier. */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The same of what is read once a step: the second cache gives it up first, and keeps what the next
 * layers come back to, code among it. */
__device__ __forceinline__ void bulk_copy_once(uint32_t to, const void *from, uint32_t bytes,
                                               uint32_t barrier) {
    asm volatile("{\n\t.reg .b64 once;\n\t"
                 "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n\t"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], once;\n\t}" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The same to the same place in two blocks of a cluster. */
__device__ __forceinline__ void bulk_copy_to_both(uint32_t to, const void *from, uint32_t bytes,
                                                  uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"((uint16_t)3)
                 : "memory");
}

/* Brings a tensor's description, which the first copy would wait for. */
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box of a tensor: 64 values of some rows, pieces exchanged as common.cuh says; what lies outside
 * becomes zeros, and counts. At value x of group y of row z. */
__device__ __forceinline__ void tensor_copy(uint32_t to, const CUtensorMap *map, int x, int y,
                                            int z, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void tensor_copy_to_both(uint32_t to, const CUtensorMap *map, int x,
                                                    int y, int z, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"((uint16_t)3)
                 : "memory");
}

/* ---- clusters --------------------------------------------------------------------------------*/

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all blocks of the cluster, where nothing was written that another block reads. */
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\t"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* 16 bytes to shared memory of block `rank`, counted at its barrier; both addresses are this
 * block's own for the same places. */
__device__ __forceinline__ void cluster_push(uint32_t to, uint32_t barrier, uint32_t rank,
                                             const float (&v)[4]) {
    asm volatile("{\n\t.reg .b32 there, counted;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 counted, %1, %2;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[there], {%3, %4, %5, %6}, [counted];\n\t}" ::"r"(to),
                 "r"(barrier), "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

#endif
