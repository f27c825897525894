/* The k best of a row's scores, in ascending order of entries, -1 behind them; scores [rows,
 * places] as keys that order as they do (index.cu). A cluster of blocks for each row, each with
 * a run of the places, most of which it holds in shared memory. The k-th largest is found digit
 * by digit (8 bits), counts being exchanged within the cluster; among equals the lower place
 * wins. Candidate blocks are chosen in the same launch by clusters of their own. Exact, so the
 * cluster's size does not matter to the result. Bound by latencies: a cluster's barrier for each
 * digit. 17 us of the 23 that a row at 8k entries takes (docs/cuda.md). */
#include "ops/cuda/card/index.cuh"
#include "ops/cuda/card/launch.cuh"
#include "ops/cuda/card/warpgroup.cuh"

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    RUN = 16 * THREADS, /* keys held, and listed at a time */
    GROUPS = RUN / 32,  /* of keys */
    BINS = 256,
    MOST_BLOCKS = 8, /* of a cluster */
};

struct select_shared {
    uint32_t held[RUN];       /* the first of this block's keys */
    uint32_t bins[BINS * 32]; /* a counter for each lane: no two lanes meet */
    uint32_t count[4][BINS];  /* this block's, of each digit; read by the others */
    uint32_t total[BINS], found[2] /* digit, larger ones */;
    uint32_t chosen[2];     /* this block's larger and equal keys; read by the others */
    ushort2 before[GROUPS]; /* larger and equal keys of a run before a group of 32 */
    uint2 warp_total[WARPS];
};

/* What is chosen from: a row's places, or blocks of its entries, which count as their best entry,
 * the newest one before all. */
struct contest {
    index_list list;
    const uint32_t *keys;
    int n, row, k, block_size; /* 0: places */
    int32_t *out;
};

static __device__ contest contest_of(const dk_index_call &c, int index, bool blocks) {
    int row = c.first_row + index;
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    contest t = {list_of(c, seq, row), c.keys + (size_t)index * c.places};
    t.row = row;
    t.n = t.list.places;
    t.k = blocks ? c.max_blocks : c.k;
    t.block_size = blocks ? c.block_size : 0;
    t.out = (blocks ? c.candidates : c.topk) + (size_t)row * t.k;
    if (blocks) {
        t.n = (t.n + c.block_size - 1) / c.block_size;
    }
    return t;
}

/* A block's best entry, eight of them at a time on their way. */
static __device__ __forceinline__ uint32_t best_of_block(const contest &t, int i) {
    int begin = i * t.block_size, end = min(begin + t.block_size, t.list.places);
    uint32_t top = 0;
#pragma unroll 1
    for (int first = begin; first < end; first += 8) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            top = max(top, first + j < end ? t.keys[first + j] : 0);
        }
    }
    return i == t.n - 1 ? 0xffffffffu : top;
}

static __device__ __forceinline__ uint32_t key_at(const contest &t, int i) {
    return t.block_size ? best_of_block(t, i) : t.keys[i];
}

/* The keys [begin, end) of a block. */
struct run_of_keys {
    int begin, end;
};

static __device__ __forceinline__ uint32_t key_of(const select_shared &s, const contest &t, int i,
                                                  run_of_keys r) {
    int at = i - r.begin;
    return i >= r.end ? 0 : at < RUN ? s.held[at] : key_at(t, i);
}

static __device__ __forceinline__ void hold_keys(select_shared &s, const contest &t,
                                                 run_of_keys r) {
    int n = min(r.end - r.begin, (int)RUN);
    if (t.block_size) {
#pragma unroll 1
        for (int at = threadIdx.x; at < n; at += THREADS) {
            s.held[at] = best_of_block(t, r.begin + at);
        }
        return;
    }
#pragma unroll 8
    for (int at = threadIdx.x; at < n; at += THREADS) {
        s.held[at] = t.keys[r.begin + at];
    }
}

/* The digit in which the key with `k` keys before it lies, by the counts of the whole cluster, and
 * how many keys have a larger one. Returns false if there are fewer than k keys. */
static __device__ bool find_digit(select_shared &s, int pass, int size, uint32_t k, uint32_t *digit,
                                  uint32_t *above) {
    int bin = BINS - 1 - threadIdx.x; /* the largest first */
    if (threadIdx.x < BINS) {
        uint32_t sum = 0, v[MOST_BLOCKS];
#pragma unroll
        for (int r = 0; r < MOST_BLOCKS; r++) { /* all on their way at once */
            v[r] = r < size ? remote_load(remote_address(&s.count[pass][bin], r)) : 0;
        }
#pragma unroll
        for (int r = 0; r < MOST_BLOCKS; r++) {
            sum += v[r];
        }
        s.total[threadIdx.x] = sum;
    }
    if (threadIdx.x == 0) {
        s.found[0] = BINS;
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* each lane eight bins */
        uint32_t mine[8], sum = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            mine[j] = s.total[threadIdx.x * 8 + j];
            sum += mine[j];
        }
        uint32_t to = sum;
        for (int step = 1; step < 32; step *= 2) {
            uint32_t v = __shfl_up_sync(0xffffffffu, to, step);
            to += (int)threadIdx.x >= step ? v : 0;
        }
        uint32_t passed = to - sum;
        if (passed < k && to >= k) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (passed < k && passed + mine[j] >= k) {
                    s.found[0] = BINS - 1 - (threadIdx.x * 8 + j);
                    s.found[1] = passed;
                }
                passed += mine[j];
            }
        }
    }
    __syncthreads();
    *digit = s.found[0];
    *above = s.found[1];
    __syncthreads();
    return *digit < BINS;
}

/* Counts this block's keys whose upper digits are settled, by the digit at `shift`. */
static __device__ void count_digits(select_shared &s, const contest &t, run_of_keys r, int pass,
                                    uint32_t settled) {
    int shift = 24 - 8 * pass;
    uint32_t mask = pass ? ~0u << (shift + 8) : 0, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < BINS * 32; i += THREADS) {
        s.bins[i] = 0;
    }
    __syncthreads();
#pragma unroll 2
    for (int i = r.begin + threadIdx.x; i < r.end; i += THREADS) {
        uint32_t key = key_of(s, t, i, r);
        if (key != 0 && (key & mask) == settled) {
            atomicAdd(&s.bins[(key >> shift & 255) * 32 + lane], 1);
        }
    }
    __syncthreads();
    int bin = threadIdx.x / 4;
    uint32_t sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) { /* starting apart, for the sake of banks */
        sum += s.bins[bin * 32 + (lane + 4 * j) % 32];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane % 4 == 0) {
        s.count[pass][bin] = sum;
    }
}

/* A key's place relative to the least one that is chosen. */
static __device__ __forceinline__ bool is_more(uint32_t key, uint32_t least) {
    return key > least;
}

static __device__ __forceinline__ bool is_same(uint32_t key, uint32_t least) {
    return key == least && key != 0;
}

/* This block's larger and equal keys, to s.chosen. */
static __device__ void count_chosen(select_shared &s, const contest &t, run_of_keys r,
                                    uint32_t least) {
    uint32_t more = 0, same = 0;
#pragma unroll 2
    for (int i = r.begin + threadIdx.x; i < r.end; i += THREADS) {
        uint32_t key = key_of(s, t, i, r);
        more += is_more(key, least);
        same += is_same(key, least);
    }
    for (int step = 16; step > 0; step /= 2) {
        more += __shfl_xor_sync(0xffffffffu, more, step);
        same += __shfl_xor_sync(0xffffffffu, same, step);
    }
    if (threadIdx.x % 32 == 0) {
        s.warp_total[threadIdx.x / 32] = make_uint2(more, same);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        uint2 v = s.warp_total[threadIdx.x];
        for (int step = 16; step > 0; step /= 2) {
            v.x += __shfl_xor_sync(0xffffffffu, v.x, step);
            v.y += __shfl_xor_sync(0xffffffffu, v.y, step);
        }
        if (threadIdx.x == 0) {
            s.chosen[0] = v.x;
            s.chosen[1] = v.y;
        }
    }
}

/* Writes what is chosen of the keys [first, first + RUN), ascending. *before: larger and equal keys
 * before these; moves on. */
static __device__ void list_run(select_shared &s, const dk_index_call &c, const contest &t,
                                run_of_keys r, int first, uint32_t least, uint32_t equals,
                                uint2 *before) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int groups = (min(r.end - first, (int)RUN) + 31) / 32;
    unsigned lower = (1u << lane) - 1;
#pragma unroll 2
    for (int group = warp; group < groups; group += WARPS) {
        uint32_t key = key_of(s, t, first + group * 32 + lane, r);
        unsigned more = __ballot_sync(0xffffffffu, is_more(key, least));
        unsigned same = __ballot_sync(0xffffffffu, is_same(key, least));
        if (lane == 0) {
            s.before[group] = make_ushort2(__popc(more), __popc(same));
        }
    }
    __syncthreads();
    /* sums over the groups before: a thread a group */
    uint32_t x = 0, y = 0;
    if ((int)threadIdx.x < groups) {
        x = s.before[threadIdx.x].x;
        y = s.before[threadIdx.x].y;
    }
    uint32_t to_x = x, to_y = y;
    for (int step = 1; step < 32; step *= 2) {
        uint32_t a = __shfl_up_sync(0xffffffffu, to_x, step);
        uint32_t b = __shfl_up_sync(0xffffffffu, to_y, step);
        to_x += lane >= step ? a : 0;
        to_y += lane >= step ? b : 0;
    }
    if (lane == 31) {
        s.warp_total[warp] = make_uint2(to_x, to_y);
    }
    __syncthreads();
    uint2 base = make_uint2(0, 0), all = make_uint2(0, 0);
    for (int w = 0; w < GROUPS / 32; w++) {
        uint2 v = s.warp_total[w];
        base.x += w < warp ? v.x : 0;
        base.y += w < warp ? v.y : 0;
        all.x += v.x;
        all.y += v.y;
    }
    if ((int)threadIdx.x < groups) {
        s.before[threadIdx.x] = make_ushort2(base.x + to_x - x, base.y + to_y - y);
    }
    __syncthreads();
#pragma unroll 2
    for (int group = warp; group < groups; group += WARPS) {
        int place = first + group * 32 + lane;
        uint32_t key = key_of(s, t, place, r);
        bool larger = is_more(key, least), equal = is_same(key, least);
        unsigned more = __ballot_sync(0xffffffffu, larger);
        unsigned same = __ballot_sync(0xffffffffu, equal);
        uint32_t at_x = before->x + s.before[group].x + __popc(more & lower);
        uint32_t at_y = before->y + s.before[group].y + __popc(same & lower);
        if (larger || (equal && at_y < equals)) {
            t.out[at_x + min(at_y, equals)] =
                t.block_size ? place : entry_at(c, t.list, t.row, place);
        }
    }
    before->x += all.x;
    before->y += all.y;
    __syncthreads();
}

/* Larger and equal keys of the whole cluster, and of its blocks before this one. */
static __device__ void count_before(select_shared &s, int rank, int size, uint2 *before,
                                    uint2 *all) {
    *before = *all = make_uint2(0, 0);
#pragma unroll
    for (int r = 0; r < MOST_BLOCKS; r++) {
        uint32_t x = r < size ? remote_load(remote_address(&s.chosen[0], r)) : 0;
        uint32_t y = r < size ? remote_load(remote_address(&s.chosen[1], r)) : 0;
        before->x += r < rank ? x : 0;
        before->y += r < rank ? y : 0;
        all->x += x;
        all->y += y;
    }
}

/* A barrier of all blocks that take part. */
static __device__ __forceinline__ void meet(int size) {
    if (size > 1) {
        cluster_barrier();
    } else {
        __syncthreads();
    }
}

/* Grid: blocks of a cluster, rows, what to choose: entries, candidate blocks. */
static __global__ void __launch_bounds__(THREADS, 1) choose(dk_index_call c) {
    extern __shared__ __align__(16) unsigned char base[];
    select_shared &s = *(select_shared *)base;
    contest t = contest_of(c, blockIdx.y, blockIdx.z != 0);
    int rank = cluster_rank(), size = cluster_size();
    begin_overlapped();
    if (t.list.places <= RUN) { /* one block is faster alone */
        if (rank > 0) {
            return;
        }
        size = 1;
    }
    int share = (t.n + size - 1) / size;
    run_of_keys r = {min(rank * share, t.n), min((rank + 1) * share, t.n)};
    uint32_t least = 0, above = 0, k = t.k;
    bool enough = true; /* else all keys are chosen */
    hold_keys(s, t, r);
#pragma unroll 1
    for (int pass = 0; pass < 4 && enough; pass++) {
        uint32_t digit, larger;
        count_digits(s, t, r, pass, least);
        meet(size);
        enough = find_digit(s, pass, size, k - above, &digit, &larger);
        if (enough) {
            least |= digit << (24 - 8 * pass);
            above += larger;
        }
    }
    uint32_t equals = enough ? k - above : 0;
    uint2 before, all;
    least = enough ? least : 0;
    count_chosen(s, t, r, least);
    meet(size);
    count_before(s, rank, size, &before, &all);
#pragma unroll 1
    for (int first = r.begin; first < r.end; first += RUN) {
        list_run(s, c, t, r, first, least, equals, &before);
    }
    for (uint32_t i = all.x + min(all.y, equals) + threadIdx.x; rank == 0 && i < k; i += THREADS) {
        t.out[i] = -1;
    }
    meet(size); /* nobody's counts are still read */
}

void dk_index_select(cudaStream_t s, const dk_index_call *c) {
    int kinds = c->candidates && c->build ? 2 : 1, rows = c->rows * kinds;
    int size = rows <= 16 ? MOST_BLOCKS : rows <= 32 ? 4 : rows <= 64 ? 2 : 1;
    cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(select_shared));
    launch_overlapped(s, choose, dim3(size, c->rows, kinds), THREADS, sizeof(select_shared), size,
                      *c);
}
