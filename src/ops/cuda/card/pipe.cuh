/* What moves data ahead of the tensor cores: barriers in shared memory, bulk copies, clusters of
 * blocks. Addresses are 32-bit ones of shared memory, as the instructions want them; what takes
 * pointers instead does the same with what they point to. */
#ifndef DI_OPS_CUDA_PIPE_CUH
#define DI_OPS_CUDA_PIPE_CUH

#include <cuda.h> /* CUtensorMap alone: nothing of the driver is linked */

#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* This thread's stores to shared memory become visible to tensor cores and to bulk copies. */
__device__ __forceinline__ void publish_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- barriers --------------------------------------------------------------------------------*/

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

__device__ __forceinline__ void barrier_init(uint64_t *barrier, int arrivals) {
    barrier_init(shared_address(barrier), arrivals);
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

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    barrier_expect(shared_address(barrier), bytes);
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    barrier_arrive(shared_address(barrier));
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

/* The same for a whole warp, which goes on together. */
__device__ __forceinline__ void warp_wait(uint64_t *barrier, int parity) {
    barrier_wait(shared_address(barrier), parity);
    __syncwarp();
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

__device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t bytes,
                                          uint64_t *barrier) {
    bulk_copy(shared_address(to), from, bytes, shared_address(barrier));
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

/* The same to the same place in those blocks of a cluster whose bits are set, counted at the
 * barrier at the same place in each. */
__device__ __forceinline__ void bulk_copy_for(unsigned blocks, uint32_t to, const void *from,
                                              uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier),
                 "h"((uint16_t)blocks)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy_for(unsigned blocks, void *to, const void *from,
                                              uint32_t bytes, uint64_t *barrier) {
    bulk_copy_for(blocks, shared_address(to), from, bytes, shared_address(barrier));
}

/* To the card's memory, and waits until that has been done. */
__device__ __forceinline__ void put_back(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;\n"
                 "cp.async.bulk.wait_group 0;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(shared_address(from)), "r"(bytes)
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

__device__ __forceinline__ int cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

__device__ __forceinline__ int cluster_size() {
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return (int)size;
}

/* All threads of all blocks of the cluster, where nothing was written that another block reads. */
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\t"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* Every thread of every block arrives; what was written before is seen by whoever has waited. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}

/* Where p lies in another block's shared memory. */
__device__ __forceinline__ uint32_t remote_address(const void *p, int rank) {
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_address(p)), "r"(rank));
    return r;
}

__device__ __forceinline__ uint32_t remote_load(uint32_t from) {
    uint32_t v;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

/* 4 bytes to the same place in another block's shared memory, counted at its barrier. */
__device__ __forceinline__ void push_word(const float *to, float v, uint64_t *barrier, int rank) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     remote_address(to, rank)),
                 "r"(__float_as_uint(v)), "r"(remote_address(barrier, rank))
                 : "memory");
}

/* `bytes` (a multiple of 16) there; counted at its barrier, same place too. */
__device__ __forceinline__ void bulk_push(const void *to, const void *from, uint32_t bytes,
                                          uint64_t *barrier, int rank) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], "
                 "[%1], %2, [%3];" ::"r"(remote_address(to, rank)),
                 "r"(shared_address(from)), "r"(bytes), "r"(remote_address(barrier, rank))
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
