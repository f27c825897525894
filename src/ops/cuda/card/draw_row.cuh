/* A row that is to be drawn, in the shared memory of the blocks that draw it: how they tell each
 * other what they find (pushes where it must be quick, memory that is read behind a barrier
 * elsewhere), how the row gets there with its mask, bias and penalties (sample/transform.c), and
 * its best token. */
#ifndef DI_OPS_CUDA_DRAW_ROW_CUH
#define DI_OPS_CUDA_DRAW_ROW_CUH

#include <cooperative_groups.h>

#include "ops/cuda/card/draw.cuh"
#include "ops/cuda/card/pipe.cuh"
#include "ops/cuda/card/queue.h"

namespace cg = cooperative_groups;

enum {
    MOST_BLOCKS = 8,
    THREADS = 512,
    WARPS = THREADS / 32,
    BINS = 2048,
};

/* ---- what blocks tell each other -------------------------------------------------------------*/

/* Written by its block, read by all after a cluster-wide barrier. Every phase has fields of its
 * own, or a barrier between reading and writing again. */
struct mailbox {
    uint64_t raw_best; /* key, then inverted id: the largest is the best */
    uint64_t sum;
    uint64_t kept;
    uint32_t slice_count; /* of the slice of bins that this block adds up */
    uint64_t slice_sum;
    uint32_t digit; /* found by the block that has the slice */
    uint64_t passed_count, passed_sum, ties;
    int32_t id; /* located; -1: elsewhere */
    int32_t listed;
    int32_t fed_known;
};

/* What blocks push to each other: their best tokens to all, their winners to the first. */
struct __align__(16) pushed {
    float words[4];
};

struct shared_parts {
    pushed best[MOST_BLOCKS], winner[MOST_BLOCKS];
    uint64_t best_here, winner_here; /* barriers */
    mailbox mail;
    uint64_t warp[WARPS], warp_more[WARPS];
    racer warp_racer[WARPS];
    uint32_t counts[BINS], low[BINS], middle[BINS], high[BINS]; /* weights in pieces of 16 bits */
};

struct context {
    cg::cluster_group cluster;
    int blocks, rank;
    shared_parts *s;
    float *row; /* ids begin .. end, and -infinity behind it up to a multiple of 128 */
    int part;   /* ids of a block */
    int begin, end;
    int warp, lane;
};

static __device__ const mailbox *mail_of(context &x, int rank) {
    return &x.cluster.map_shared_rank(x.s, rank)->mail;
}

/* All blocks, which see what the others wrote before. */
static __device__ __forceinline__ void meet(context &x) {
    if (x.blocks > 1) {
        x.cluster.sync();
    } else {
        __syncthreads();
    }
}

/* Barriers for what is pushed; nobody pushes before all are there. */
static __device__ __forceinline__ void open_pushes(context &x) {
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&x.s->best_here), 1);
        barrier_init(shared_address(&x.s->winner_here), 1);
        barriers_ready();
        barrier_expect(shared_address(&x.s->best_here), x.blocks * sizeof(pushed));
        barrier_expect(shared_address(&x.s->winner_here), x.blocks * sizeof(pushed));
    }
    cluster_meet();
}

static __device__ __forceinline__ void push(context &x, pushed *to, const uint64_t *barrier,
                                            int rank, uint64_t a, uint64_t b) {
    const float words[4] = {__uint_as_float((uint32_t)a), __uint_as_float((uint32_t)(a >> 32)),
                            __uint_as_float((uint32_t)b), __uint_as_float((uint32_t)(b >> 32))};
    cluster_push(shared_address(&to[x.rank]), shared_address(barrier), rank, words);
}

static __device__ __forceinline__ uint64_t pushed_word(const pushed &p, int k) {
    return (uint64_t)__float_as_uint(p.words[2 * k + 1]) << 32 | __float_as_uint(p.words[2 * k]);
}

static __device__ __forceinline__ uint64_t warp_max(uint64_t v) {
    uint32_t high = __reduce_max_sync(ALL, (uint32_t)(v >> 32));
    uint32_t low = (uint32_t)(v >> 32) == high ? (uint32_t)v : 0;
    return (uint64_t)high << 32 | __reduce_max_sync(ALL, low);
}

static __device__ uint64_t block_max(context &x, uint64_t v) {
    v = warp_max(v);
    if (x.lane == 0) {
        x.s->warp[x.warp] = v;
    }
    __syncthreads();
    return warp_max(x.lane < WARPS ? x.s->warp[x.lane] : 0);
}

static __device__ uint64_t block_sum(context &x, uint64_t v) {
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) {
        v += __shfl_xor_sync(ALL, v, step);
    }
    __syncthreads();
    if (x.lane == 0) {
        x.s->warp[x.warp] = v;
    }
    __syncthreads();
    uint64_t all = 0;
#pragma unroll 1
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
        all += x.s->warp[w];
    }
    return all;
}

/* ---- the row (sample/transform.c) ------------------------------------------------------------*/

static __device__ float within_float(float x) {
    const float most = 0x1.fffffep127f;
    return x > most ? most : x < -most ? -most : x;
}

static __device__ float penalised(const di_draw &d, float x, uint32_t in_output) {
    if (x == -INFINITY) {
        return x;
    }
    x = within_float(x > 0 ? __fdiv_rn(x, d.repetition) : __fmul_rn(x, d.repetition));
    if (in_output > 0) {
        x = __fsub_rn(x, __fmul_rn(d.frequency, (float)in_output));
        x = within_float(__fsub_rn(x, d.presence));
    }
    return x;
}

/* The block's part of the row to its shared memory, each thread the groups of four that it is to
 * look at. No registers are in between, so that all of it is on its way at once. */
static __device__ void bring_row(context &x, const float *logits) {
    const bool whole = (uint64_t)logits % 16 == 0;
#pragma unroll 1
    for (int i = threadIdx.x * 4; x.begin + i < x.end; i += THREADS * 4) {
        uint32_t to = shared_address(x.row + i);
        const float *from = logits + x.begin + i;
        int there = min(x.end - x.begin - i, 4);
        if (whole && there == 4) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                         "l"(__cvta_generic_to_global(from))
                         : "memory");
        } else {
#pragma unroll 1
            for (int j = 0; j < there; j++) {
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 4 * j),
                             "l"(__cvta_generic_to_global(from + j))
                             : "memory");
            }
            for (int j = there; j < 4; j++) {
                x.row[i + j] = -INFINITY;
            }
        }
    }
    int n = (x.end - x.begin + 3) & ~3, i = n + (int)threadIdx.x;
    if (i < ((n + 127) & ~127)) {
        x.row[i] = -INFINITY;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* The thread's best token: key, then inverted id; all ones if the row has what it must not have.
 * Where there is a mask, what it forbids becomes -infinity. */
static __device__ uint64_t look_at_row(context &x, const uint32_t *mask) {
    float best = -INFINITY;
    int id = 0;
    bool bad = false;
#pragma unroll 1
    for (int i = threadIdx.x * 4; x.begin + i < x.end; i += THREADS * 4) {
        float4 *at = (float4 *)(x.row + i);
        float4 four = *at;
        float v[4] = {four.x, four.y, four.z, four.w};
        if (mask) {
            uint32_t bits = mask[(x.begin + i) / 32] >> ((x.begin + i) % 32);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                bad = bad || !(v[j] < INFINITY);
                v[j] = bits >> j & 1 ? v[j] : -INFINITY;
            }
            *at = {v[0], v[1], v[2], v[3]};
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bad = bad || !(v[j] < INFINITY); /* +infinity, or no number */
            id = v[j] > best ? x.begin + i + j : id;
            best = v[j] > best ? v[j] : best;
        }
    }
    return (uint64_t)(bad ? ALL : key_of(best)) << 32 | (uint32_t)~id;
}

/* Bias and penalties. */
static __device__ __noinline__ void apply_lists(float *row, int begin, int end, int32_t *fed_known,
                                                const di_draw_pair *pairs, const di_draw *d,
                                                int fed) {
    if (threadIdx.x == 0) {
        *fed_known = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < d->num_bias; i += THREADS) {
        di_draw_pair p = pairs[d->first_bias + i];
        if (p.id >= begin && p.id < end && row[p.id - begin] > -INFINITY) {
            float *v = &row[p.id - begin];
            *v = within_float(__fadd_rn(*v, __uint_as_float(p.value)));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; d->penalise && i < d->num_counts; i += THREADS) {
        di_draw_pair p = pairs[d->first_count + i];
        if (p.id >= begin && p.id < end) {
            uint32_t count = (p.value & ~DI_DRAW_IN_PROMPT) + (p.id == fed);
            row[p.id - begin] = penalised(*d, row[p.id - begin], count);
            if (p.id == fed) {
                *fed_known = 1;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && fed >= begin && fed < end && !*fed_known) {
        row[fed - begin] = penalised(*d, row[fed - begin], 1);
    }
    __syncthreads();
}

/* Reads the row and leaves it transformed in shared memory; the block's best token, as
 * look_at_row() has it. */
static __device__ uint64_t open_row(context &x, const di_draw_call &c, const di_draw *d,
                                    const float *logits) {
    const uint32_t *mask = d->mask >= 0 ? c.masks + (size_t)d->mask * c.mask_words : NULL;
    bool listed = d->num_bias > 0 || d->penalise;
    bring_row(x, logits);
    for (;;) {
        uint64_t best = look_at_row(x, mask);
        if (!listed) {
            return block_max(x, best);
        }
        if (__syncthreads_or(best >> 32 == ALL)) {
            return ~0ull;
        }
        int fed = d->penalise && d->fed >= 0 ? c.before[d->fed] : -1;
        apply_lists(x.row, x.begin, x.end, &x.s->mail.fed_known, c.pairs, d, fed);
        listed = false;
        mask = NULL;
    }
}

/* Of all blocks, for those that need it: the first, or all. */
static __device__ uint64_t best_of_all(context &x, uint64_t best, bool for_all) {
    if (x.warp == 0 && x.lane < (for_all ? x.blocks : 1)) {
        push(x, x.s->best, &x.s->best_here, x.lane, best, 0);
    }
    if (!for_all && x.rank > 0) {
        return 0;
    }
    barrier_wait(shared_address(&x.s->best_here), 0);
    return warp_max(x.lane < x.blocks ? pushed_word(x.s->best[x.lane], 0) : 0);
}

#endif
