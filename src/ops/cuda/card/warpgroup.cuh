/* Products of tiles in shared memory by a warp group (128 threads whose first is a multiple of
 * 128): Hopper's asynchronous instruction; elsewhere the same steps by the older one.
 *
 * A tile is 64 rows of BF16, its columns cut into chunks of 64: [chunk][row][128 bytes], where the
 * eight 16-byte units of a row stand permuted (tile_unit), as the instruction wants them and
 * without bank conflicts. Tiles begin at multiples of 1024 bytes. Whoever writes one with ordinary
 * stores calls publish_shared() before the barrier behind which it is multiplied. */
#ifndef DI_OPS_CUDA_WARPGROUP_CUH
#define DI_OPS_CUDA_WARPGROUP_CUH

#include "ops/cuda/card/pipe.cuh"

enum { TILE = 64 /* rows, and columns of a chunk */, CHUNK_BYTES = TILE * 128 };

/* Bytes from a tile's beginning to its 8 values from column 8 * unit on. */
static __device__ __forceinline__ int tile_unit(int row, int unit) {
    return unit / 8 * CHUNK_BYTES + row * 128 + ((unit ^ row) & 7) * 16;
}

/* A barrier of `threads` threads; 0 is __syncthreads. */
static __device__ __forceinline__ void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- products --------------------------------------------------------------------------------
 *
 * Accumulators d[i] hold columns [8i, 8i + 8): with g = lane / 4, t = lane % 4, row = 16 * warp of
 * the group + g: d[i][0], d[i][1] are row, columns 8i + 2t and one more; d[i][2], d[i][3] row + 8.
 * A sum runs over steps of 16 ascending, onto what d holds. */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* How a tile lies: 128-byte permutation; `step` bytes between groups of 8 rows, `lead` between
 * chunks (used for values alone). */
static __device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
    const uint64_t lead = CHUNK_BYTES / 16, step = 1024 / 16;
    return (uint64_t)(address >> 4 & 0x3fff) | lead << 16 | step << 32 | 1ull << 62;
}

#define DK_CELLS(i)   "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define DK_CELLS4(i)  DK_CELLS(i), DK_CELLS(i + 1), DK_CELLS(i + 2), DK_CELLS(i + 3)
#define DK_CELLS16(i) DK_CELLS4(i), DK_CELLS4(i + 4), DK_CELLS4(i + 8), DK_CELLS4(i + 12)

/* d += a b; a row of b is a column of d. */
static __device__ __forceinline__ void scores_step(float (&d)[4][4], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "%16, %17, p, 1, 1, 0, 0;\n}"
                 : DK_CELLS4(0)
                 : "l"(a), "l"(b));
}

static __device__ __forceinline__ void scores_step(float (&d)[8][4], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n}"
                 : DK_CELLS4(0), DK_CELLS4(4)
                 : "l"(a), "l"(b));
}

/* d += a b; a row of b is a step of the sum. */
static __device__ __forceinline__ void values_step(float (&d)[8][4], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32, %33, p, 1, 1, 0, 1;\n}"
                 : DK_CELLS4(0), DK_CELLS4(4)
                 : "l"(a), "l"(b));
}

static __device__ __forceinline__ void values_step(float (&d)[32][4], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"
                 ", %128, %129, p, 1, 1, 0, 1;\n}"
                 : DK_CELLS16(0), DK_CELLS16(16)
                 : "l"(a), "l"(b));
}

#undef DK_CELLS
#undef DK_CELLS4
#undef DK_CELLS16

/* Keeps the compiler from moving uses of d across. */
template <int NT> static __device__ __forceinline__ void pin(float (&d)[NT][4]) {
#pragma unroll
    for (int i = 0; i < NT; i++) {
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
    }
}

template <int NT> static __device__ __forceinline__ void begin_steps(float (&d)[NT][4]) {
    pin(d);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

template <int NT> static __device__ __forceinline__ void finish_steps(float (&d)[NT][4]) {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(d);
}

/* The same in every lane, as far as the compiler can see: descriptors then stay in uniform
 * registers, each in its own, and the products need not wait for each other's. */
static __device__ __forceinline__ uint32_t uniform(uint32_t v) {
    return __shfl_sync(0xffffffffu, v, 0);
}

/* d[64 x 8 NT] += q keys^T over `chunks` chunks; keys: a tile, or half of one (row 0 or 32 on). */
template <int NT>
static __device__ __forceinline__ void add_scores(float (&d)[NT][4], uint32_t q, uint32_t keys,
                                                  int chunks) {
    uint64_t a = tile_descriptor(uniform(q)), b = tile_descriptor(uniform(keys));
    const uint64_t next = CHUNK_BYTES / 16;
    /* each way begins and finishes by itself: a branch in between would have products wait for each
     * other */
    if (chunks == 8) {
        begin_steps(d);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            scores_step(d, a + i / 4 * next + i % 4 * 2, b + i / 4 * next + i % 4 * 2);
        }
        finish_steps(d);
    } else {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; chunk++) {
            begin_steps(d);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                scores_step(d, a + chunk * next + k * 2, b + chunk * next + k * 2);
            }
            finish_steps(d);
        }
    }
}

/* d[64 x 8 NT] += p[64 x 64] v[64 x 8 NT]; p: a chunk, v: NT / 8 chunks. */
template <int NT>
static __device__ __forceinline__ void add_values(float (&d)[NT][4], uint32_t p, uint32_t v) {
    uint64_t a = tile_descriptor(uniform(p)), b = tile_descriptor(uniform(v));
    begin_steps(d);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        values_step(d, a + k * 2, b + k * (16 * 128 / 16));
    }
    finish_steps(d);
}

/* Registers of a thread from here on, for all threads of the group. */
#define DK_MORE_REGISTERS(n)  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#define DK_FEWER_REGISTERS(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))

#else

#define DK_MORE_REGISTERS(n)
#define DK_FEWER_REGISTERS(n)

/* a of mma_16x8x16: this warp's 16 rows, 16 columns from unit 2k of a chunk on. */
static __device__ __forceinline__ void load_rows(uint32_t chunk, int k, uint32_t a[4]) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(chunk + tile_unit(row, 2 * k + lane / 16)));
}

template <int NT>
static __device__ __forceinline__ void add_scores(float (&d)[NT][4], uint32_t q, uint32_t keys,
                                                  int chunks) {
    int lane = threadIdx.x % 32;
    for (int at = 0; at < chunks * CHUNK_BYTES; at += CHUNK_BYTES) {
        for (int k = 0; k < 4; k++) {
            uint32_t a[4], b[2];
            load_rows(q + at, k, a);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint32_t from = keys + at + tile_unit(8 * i + lane % 8, 2 * k + lane / 8 % 2);
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                             : "=r"(b[0]), "=r"(b[1])
                             : "r"(from));
                mma_16x8x16(d[i], a, b[0], b[1]);
            }
        }
    }
}

template <int NT>
static __device__ __forceinline__ void add_values(float (&d)[NT][4], uint32_t p, uint32_t v) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t a[4], b[2];
        load_rows(p, k, a);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                         : "=r"(b[0]), "=r"(b[1])
                         : "r"(v + tile_unit(16 * k + lane % 16, i)));
            mma_16x8x16(d[i], a, b[0], b[1]);
        }
    }
}

#endif

#endif
