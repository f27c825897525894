/* The product of stored weights with prepared activations, for any number of rows: what linear.cu
 * and moe.cu share.
 *
 * A block has WG tiles of 64 weight rows, one for each group of four warps, and one tile of up to
 * COLS activation rows. Its last warp keeps a ring of shared memory filled: a stage holds CH chunks
 * of every tile as they lie in memory and the activations of the same chunks. The others turn codes
 * into tensor-core operands in registers (codes.cuh), while the tensor cores work on the chunk
 * before.
 *
 * An element's sum runs over its slice's steps of 16 values, ascending; slices are added ascending.
 * How k is cut depends on the weight's shape alone, so a row's results do not depend on its
 * company.
 *
 * What bounds it: reading weights for few rows, where decoding needs 2 to 2.5 instructions a
 * weight; shared memory with 64, of which reading activations takes half; that and the tensor cores
 * for many. */
#ifndef DI_OPS_CUDA_PRODUCT_CUH
#define DI_OPS_CUDA_PRODUCT_CUH

#include "ops/cuda/card/codes.cuh"
#include "ops/cuda/card/mma.cuh"
#include "ops/cuda/card/pipe.cuh"

/* How a block is built that has WG tiles of weight rows and up to COLS activation rows, and of
 * which BLOCKS fit a multiprocessor. PAIRED: two neighbouring blocks form a cluster and share what
 * they read of the activations. OWN_ROWS: the block writes its activations to shared memory itself,
 * once, and stages hold weights alone. */
template <int COLS_, int WG_, int BLOCKS_, bool OWN_ROWS_ = false> struct block_shape {
    enum {
        COLS = COLS_,
        WG = WG_,
        CH = COLS <= 64 ? 2 : 1,
        PAIRED = COLS > 64,
        BLOCKS = BLOCKS_,
        OWN_ROWS = OWN_ROWS_,
        CONSUMERS = WG * 128,
        /* With a whole warp group of producers the consumers can have its registers. */
        THREADS = CONSUMERS + (PAIRED ? 128 : 32),
        ROWS = WG * DK_TILE_ROWS,
        PITCH = ROWS + 4, /* of the tile of results, in floats */
    };
};

enum { RING_ALIGNMENT = 1024, RING_MAX_STAGES = 12, SHARED_MAX = 227 * 1024 };

/* Shared memory: barriers, `ahead` bytes of the block's own, then stages; when all is done, the
 * tile of results in place of the stages. A stage: CH times `columns` rows of activations (unless
 * OWN_ROWS), then the chunks of the block's tiles. */
struct ring {
    uint32_t full, empty; /* barriers: address of stage 0's */
    uint32_t sums;        /* a barrier for whoever cuts k (linear.cu) */
    uint32_t data;
    uint8_t *at; /* generic address of `data` */
    int columns, stages, stage_bytes, weights_at;
};

/* Activations of a stage, and all of it. Host and card agree on this. */
template <class S> DK_BOTH int stage_rows_bytes(int columns) {
    return S::OWN_ROWS ? 0 : S::CH * columns * 128;
}

template <class S> DK_BOTH int stage_bytes(int columns, size_t chunk_bytes) {
    int bytes = stage_rows_bytes<S>(columns) + S::CH * S::WG * (int)chunk_bytes;
    return (bytes + RING_ALIGNMENT - 1) / RING_ALIGNMENT * RING_ALIGNMENT;
}

/* Dynamic shared memory of a block: what fits, but no more than the ring can use. */
template <class S> static size_t shared_bytes(size_t chunk_bytes, int ahead = 0) {
    int most = SHARED_MAX / S::BLOCKS - (S::BLOCKS - 1) * 1024; /* the system takes 1 KB a block */
    int ring = RING_MAX_STAGES * stage_bytes<S>(S::COLS, chunk_bytes) + 2 * RING_ALIGNMENT + ahead;
    return (size_t)(ring < most ? ring : most);
}

/* Room for activations that a block brings itself; what is read behind them belongs to nobody. */
static __host__ __device__ __forceinline__ int own_bytes(int chunks, int rows) {
    return chunks * rows * 128 / RING_ALIGNMENT * RING_ALIGNMENT + 2 * RING_ALIGNMENT;
}

__device__ __forceinline__ uint32_t dynamic_shared_bytes() {
    uint32_t bytes;
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

/* ahead: a multiple of RING_ALIGNMENT. */
template <class S>
__device__ __forceinline__ ring place_ring(dk_format format, int columns, int ahead = 0) {
    extern __shared__ __align__(1024) uint8_t dynamic_shared[];
    ring r;
    uint32_t base = shared_address(dynamic_shared);
    uint32_t aligned = (base + RING_ALIGNMENT - 1) / RING_ALIGNMENT * RING_ALIGNMENT;
    r.full = aligned;
    r.empty = aligned + RING_MAX_STAGES * 8;
    r.sums = aligned + RING_MAX_STAGES * 16;
    r.data = aligned + RING_ALIGNMENT + ahead;
    r.at = dynamic_shared + (r.data - base);
    r.stage_bytes = stage_bytes<S>(columns, dk_chunk_bytes(format));
    r.columns = columns;
    r.weights_at = stage_rows_bytes<S>(columns);
    int room = (int)(dynamic_shared_bytes() - (r.data - base));
    r.stages = min(room / r.stage_bytes, (int)RING_MAX_STAGES);
    return r;
}

/* One thread, before it loads anything. */
template <class S> __device__ __forceinline__ void init_ring(const ring &r) {
    for (int i = 0; i < r.stages; i++) {
        barrier_init(r.full + i * 8, 1);
        barrier_init(r.empty + i * 8, S::PAIRED ? S::WG * 8 : S::CONSUMERS);
    }
    barriers_ready();
}

/* All threads, before they use barriers of the ring, or a paired block brings rows. */
template <class S> __device__ __forceinline__ void share_ring() {
    if (S::PAIRED) {
        cluster_meet();
    } else {
        __syncthreads();
    }
}

/* One block's work: chunks [begin, end) of its tiles and of `count` rows of activations. These are
 * prepared, or lie as a tensor in memory; then a whole tile of rows is brought, some of them from
 * outside. */
template <class S> struct product_job {
    const uint8_t *tile[S::WG];          /* chunk 0 */
    const dk_bf16 *x;                    /* plane 0 of the first row */
    size_t plane;                        /* values from one plane to the next */
    const CUtensorMap *tensor;           /* or NULL */
    int group, row;                      /* of the tensor */
    int count, begin, end, slice_chunks; /* slices begin at multiples of slice_chunks */
    uint32_t wide;                       /* not 0: the tiles' matrices have wide scales */

    __device__ __forceinline__ int rows() const {
        return tensor ? (int)S::COLS : count;
    }
};

/* Registers go from a paired block's producers to its consumers. */
template <class S> __device__ __forceinline__ void share_registers(bool consumer) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
    if (S::PAIRED && consumer) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    } else if (S::PAIRED) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    }
#endif
}

/* ---- producer --------------------------------------------------------------------------------*/

template <class S>
__device__ __forceinline__ void load_weights(const ring &r, const product_job<S> &j, int stage,
                                             int chunk, uint32_t chunk_bytes) {

    int chunks = min((int)S::CH, j.end - chunk);
    uint32_t bytes = chunks * chunk_bytes, barrier = r.full + stage * 8;
    uint32_t to = r.data + stage * r.stage_bytes + r.weights_at;
    barrier_expect(barrier, S::WG * bytes + (S::OWN_ROWS ? 0 : chunks * j.rows() * 128));
#pragma unroll
    for (int wg = 0; wg < S::WG; wg++) {
        const uint8_t *from = j.tile[wg] + (size_t)chunk * chunk_bytes;
        if (S::PAIRED) { /* other tiles of rows come back to them */
            bulk_copy(to + wg * S::CH * chunk_bytes, from, bytes, barrier);
        } else {
            bulk_copy_once(to + wg * S::CH * chunk_bytes, from, bytes, barrier);
        }
    }
}

template <class S>
__device__ __forceinline__ void load_rows(const ring &r, const product_job<S> &j, int stage,
                                          int chunk) {

    int chunks = min((int)S::CH, j.end - chunk), first = 0, rows = j.rows();
    if (S::PAIRED) { /* each block of the pair brings half, to both */
        int half = (rows + 1) / 2;
        first = cluster_rank() ? half : 0;
        rows = cluster_rank() ? rows - half : half;
    }
    for (int i = 0; i < chunks && rows > 0; i++) {
        uint32_t to = r.data + stage * r.stage_bytes + (i * r.columns + first) * 128;
        uint32_t barrier = r.full + stage * 8;
        const dk_bf16 *from = j.x + (size_t)(chunk + i) * j.plane + first * DK_CHUNK;
        int value = (chunk + i) * DK_CHUNK;
        if (j.tensor && S::PAIRED) {
            tensor_copy_to_both(to, j.tensor, value, j.group, j.row + first, barrier);
        } else if (j.tensor) {
            tensor_copy(to, j.tensor, value, j.group, j.row, barrier);
        } else if (S::PAIRED) {
            bulk_copy_for(3, to, from, rows * 128, barrier);
        } else {
            bulk_copy(to, from, rows * 128, barrier);
        }
    }
}

template <class S> __device__ __forceinline__ int loads_of(const product_job<S> &j) {
    return (j.end - j.begin + S::CH - 1) / S::CH;
}

/* One thread, the one that has made the ring: weights that fit it are under way before anything
 * else happens. */
template <class S>
__device__ __forceinline__ void produce_early(const ring &r, const product_job<S> &j,
                                              dk_format format) {
    int early = min(loads_of(j), r.stages);
    for (int i = 0; i < early; i++) {
        load_weights<S>(r, j, i, j.begin + i * S::CH, (uint32_t)dk_chunk_bytes(format));
    }
}

/* The same thread: everything else. */
template <class S>
__device__ __forceinline__ void produce(const ring &r, const product_job<S> &j, dk_format format) {

    uint32_t chunk_bytes = (uint32_t)dk_chunk_bytes(format);
    int loads = loads_of(j), early = min(loads, r.stages);
    if (!S::OWN_ROWS) {
        wait_for_predecessors();
        for (int i = 0; i < early; i++) {
            load_rows<S>(r, j, i, j.begin + i * S::CH);
        }
    }
    int stage = 0, parity = 0;
    for (int i = early; i < loads; i++) {
        barrier_wait(r.empty + stage * 8, parity);
        load_weights<S>(r, j, stage, j.begin + i * S::CH, chunk_bytes);
        if (!S::OWN_ROWS) {
            load_rows<S>(r, j, stage, j.begin + i * S::CH);
        }
        if (++stage == r.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
}

/* ---- consumers -------------------------------------------------------------------------------*/

/* Tells the producer, and the pair's other one, that a stage is done with. Every lane does so for
 * itself: one for its warp would have to wait for the others, which costs 3 % where rows are few.
 * For pairs one lane does, as an arrival at the other block costs more. */
template <bool PAIRED> __device__ __forceinline__ void release_stage(const ring &r, int stage) {
    if (!PAIRED) {
        barrier_arrive(r.empty + stage * 8);
        return;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(r.empty + stage * 8);
    }
    if (threadIdx.x % 32 == 1) {
        barrier_arrive_at(r.empty + stage * 8, cluster_rank() ^ 1);
    }
}

/* Activations that a block has brought itself: their descriptor, and the step from one chunk to the
 * next and from one step of 16 values to the next, both as in descriptors. */
struct own_rows {
    uint32_t first;
    int chunk, step;
};

/* The sums of one tile by N columns, in acc. SLICED: several slices, added up in total instead.
 * Everything about the ring but its base is known to the compiler here. */
template <int F, int N, class S, bool SLICED>
__device__ __forceinline__ void consume(const ring &r, const product_job<S> &j, own_rows own,
                                        float (&acc)[N / 8][4], float (&total)[N / 8][4]) {
    constexpr int chunk_bytes = (int)dk_chunk_bytes((dk_format)F);
    constexpr int bytes = stage_bytes<S>(N, chunk_bytes), at = stage_rows_bytes<S>(N);
    int wg = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    uint32_t weights = r.data + at + wg * S::CH * chunk_bytes;
    typename raw_codes<F>::place mine = raw_codes<F>::place_of(weights, warp, lane);
    uint32_t rows = descriptor_of(r.data);
    int stage = -1, parity = 1, before = -1, last = j.end;
    uint32_t wide = j.wide;
    keep(rows);
    keep(last);
    for (int begin = j.begin; begin < last;) {
        int end = SLICED ? min(begin + j.slice_chunks, last) : last;
        operands a[2];
        chunk_rows now = 0;
        raw_codes<F> raw;
        for (int chunk = begin; chunk < end; chunk += 2) {
#pragma unroll
            for (int u = 0; u < 2; u++) {
                if (u == 1 && chunk + 1 >= end) {
                    break;
                }
                constexpr bool single = S::CH == 1;
                /* BF16 codes would go where a product still reads its operands. */
                constexpr bool ahead = !single && F != DK_BF16;
                int in = single ? 0 : u; /* chunk of the stage */
                if (single || u == 0) {
                    if (++stage == r.stages || stage == 0) {
                        stage = 0;
                        parity ^= 1;
                    }
                    now = chunk_rows_at(rows + stage * (bytes / 16));
                    barrier_wait(r.full + stage * 8, parity);
                }
                if (!ahead || u == 0) {
                    raw.load(mine, stage * bytes + in * chunk_bytes);
                }
                keep(wide); /* without a branch here products would wait for each other (C7513) */
                raw.decode(a[u], wide != 0);
                if (ahead && u == 0) { /* the stage's other chunk, if it has one */
                    raw.load(mine, stage * bytes + chunk_bytes);
                }
                bool first = u == 0 && chunk == begin;
                if constexpr (S::OWN_ROWS) {
                    mma_own_chunk(acc, a[u], own.first + (chunk + u - j.begin) * own.chunk,
                                  own.step, first);
                } else {
                    mma_chunk<N>(acc, a[u], now + in * N * 8, first);
                }
                mma_wait<1>(); /* the chunk before is done */
                if (single || u == 0) {
                    if (before >= 0) {
                        release_stage<S::PAIRED>(r, before);
                    }
                    before = stage;
                }
            }
        }
        mma_wait<0>();
        if (SLICED) {
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    total[i][c] = begin == j.begin ? acc[i][c] : total[i][c] + acc[i][c];
                }
            }
        }
        begin = end;
    }
}

template <class S> __device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"r"((int)S::CONSUMERS) : "memory");
}

/* Whether one of a warp group's threads says yes: a barrier of the group. */
static __device__ __forceinline__ bool group_any(bool yes) {
    int any;
    asm volatile("{\n\t.reg .pred p, q;\n\t"
                 "setp.ne.b32 p, %2, 0;\n\t"
                 "barrier.cta.red.or.pred q, %1, 128, p;\n\t"
                 "selp.b32 %0, 1, 0, q;\n\t}"
                 : "=r"(any)
                 : "r"(2 + (int)threadIdx.x / 128), "r"((int)yes)
                 : "memory");
    return any;
}

/* Counts a warp group that has written its part to memory. True in the last of `all`: it sees what
 * the others have written, and the ticket is zero again. */
__device__ __forceinline__ bool last_to_come(unsigned *ticket, unsigned all) {
    bool last = false;
    group_any(false);
    if (threadIdx.x % 128 == 0) {
        unsigned before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(__cvta_generic_to_global(ticket))
                     : "memory");
        last = before == all - 1;
        if (last) {
            *ticket = 0;
        }
    }
    return group_any(last);
}

/* Sums to shared memory, [column][row of the block]. */
template <int N, class S>
__device__ __forceinline__ void put_results(const ring &r, const float (&sum)[N / 8][4]) {

    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    consumers_sync<S>(); /* the ring is dry */
    float *to = (float *)r.at + row;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        int col = i * 8 + lane % 4 * 2;
        to[col * S::PITCH] = sum[i][0];
        to[(col + 1) * S::PITCH] = sum[i][1];
        to[col * S::PITCH + 8] = sum[i][2];
        to[(col + 1) * S::PITCH + 8] = sum[i][3];
    }
}

template <int F, int N, class S>
__device__ __forceinline__ void consume_columns(const ring &r, const product_job<S> &j,
                                                own_rows own = {}) {
    float acc[N / 8][4];
    consume<F, N, S, false>(r, j, own, acc, acc);
    put_results<N, S>(r, acc);
}

/* Sums of 8 rows of a column. */
struct eight {
    float v[8];
};

__device__ __forceinline__ eight eight_of(float4 low, float4 high) {
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

template <class S> __device__ __forceinline__ eight take_eight(const ring &r, int row, int col) {
    const float4 *from = (const float4 *)((const float *)r.at + col * S::PITCH + row);
    return eight_of(from[0], from[1]);
}

/* Which of 8 rows have a NaN code: a byte each, not 0. data: where the matrix lies; rows behind its
 * last tile have none. */
__device__ __forceinline__ uint2 nan_rows(const dk_matrix &w, const uint8_t *data, int row) {
    if (w.format != DK_FP8 || row >= w.tiles * DK_TILE_ROWS) {
        return make_uint2(0, 0);
    }
    return __ldg((const uint2 *)(data + (size_t)w.tiles * dk_tile_bytes(&w) + row));
}

/* Whether it has wide scales: not 0. The load is under way from here on. */
__device__ __forceinline__ uint32_t wide_scales(const dk_matrix &w, const uint8_t *data) {
    return w.format == DK_BF16 ? 0 : load_byte_now(data + dk_matrix_wide(&w));
}

/* All sums of such a row are NaN. */
__device__ __forceinline__ void spread_nans(uint2 flags, eight *sums) {
    if ((flags.x | flags.y) == 0) {
        return;
    }
#pragma unroll
    for (int u = 0; u < 8; u++) {
        if ((u < 4 ? flags.x : flags.y) >> 8 * (u % 4) & 255) {
            sums->v[u] = __uint_as_float(0x7fc00000u);
        }
    }
}

__device__ __forceinline__ uint4 bf16_of(const eight &sums) {
    uint32_t w[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        w[p] = to_bf16(sums.v[2 * p]) | (uint32_t)to_bf16(sums.v[2 * p + 1]) << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
