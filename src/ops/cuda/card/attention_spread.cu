/* The attention core for few queries, with attention.cu's formula and shapes: a cluster of
 * blocks for 64 heads of one, each with one list block. It takes the scores of its keys, tells
 * its maxima, and hands its probabilities to all and the columns of its keys to the block that
 * adds those columns up, list block by list block. So every sum has the order that attention.cu
 * has, to the bit, and a query takes as long as one list block and what is exchanged. Bound by
 * latencies: fetching of code that runs once, of the query and keys, the cluster's barriers. 15
 * us for one query of 64 heads and 640 keys called by itself, 13 in a recorded step whose keys
 * are there (docs/cuda.md). */
#include "ops/cuda/card/attention.cuh"
#include "ops/cuda/card/launch.cuh"

enum {
    THREADS = 512,
    FETCHERS = 4,  /* the first of the warps that bring other blocks' values */
    MOST = 10,     /* list blocks */
    MOST_TOLD = 9, /* chunks of values that come from other blocks, see told_place */
    TOLD_WORDS = TILE + 1,
    MOST_BLOCKS = 210, /* of threads in a launch: beyond, a block for each query is faster */
};

struct spread_shared {
    /* first the query and its scores, then probabilities, then what is added up */
    union {
        unsigned char p[MOST][CHUNK_BYTES];
        struct {
            unsigned char query[8 * CHUNK_BYTES];
            float4 scores[4][2][128]; /* of the four groups' threads */
        };
        float out[4][TILE][TILE + 8]; /* of the chunks that the block adds up */
    };
    /* values: first the records as they lie */
    unsigned char keys[8 * CHUNK_BYTES], values[MOST_TOLD][CHUNK_BYTES];
    float top[MOST][TILE]; /* of each list block; then how much it fades what was before */
    float sum[MOST][2][TILE], filled[MOST];
    float half_top[2][TILE], peak[TILE], total[4][TILE], inverse[4][TILE];
    const uint8_t *record[TILE];
    uint32_t mine[2]; /* filled slots of this block's */
    uint64_t records_in[2], keys_in, tops_in, values_in, p_in;
};

static_assert(sizeof(spread_shared) <= 227 * 1024, "more than a multiprocessor has");

/* Who adds up what: block `rank` of a cluster takes column chunks rank, rank + size, ... Its own
 * keys it has; those of the other list blocks come to values[told_place]. */
static __device__ int blocks_told(int rank, int blocks) {
    return rank < blocks ? blocks - 1 : blocks;
}

static __device__ int told_place(int rank, int size, int blocks, int chunk, int block) {
    return chunk / size * blocks_told(rank, blocks) + block - (rank < blocks && block > rank);
}

static __device__ int owned_chunks(int rank, int size, int chunks) {
    return rank < chunks ? (chunks - rank + size - 1) / size : 0;
}

/* The running maximum of a head through list blocks before `end`; that of an empty block is
 * -infinity. */
static __device__ __forceinline__ float peak_before(const spread_shared &s, int end, int head) {
    float peak = -1e30f;
#pragma unroll
    for (int b = 0; b < MOST; b++) {
        float top = b < end ? s.top[b][head] : -INFINITY;
        peak = top > peak ? top : peak;
    }
    return peak;
}

/* Columns of this block's keys to those who add them up. One warp a chunk: a thread's copies wait
 * for each other, and so do those of a warp's threads. */
static __device__ void push_keys(spread_shared &s, int rank, int size, int blocks, int chunks) {
    int chunk = threadIdx.x / 32, to = chunk % size;
    if (threadIdx.x % 32 == 0 && chunk < chunks && to != rank) {
        bulk_push(s.values[told_place(to, size, blocks, chunk, rank)], s.keys + chunk * CHUNK_BYTES,
                  CHUNK_BYTES, &s.values_in, to);
    }
}

/* This block's probabilities and sums to those that add up, which are 8 at most. */
static __device__ void push_probabilities(spread_shared &s, int rank, int size, int chunks) {
    int warp = threadIdx.x / 32, to = warp % 8;
    if (threadIdx.x % 32 == 0 && to < min(size, chunks) && to != rank) {
        const void *what = warp < 8 ? (const void *)s.p[rank] : s.sum[rank];
        bulk_push(what, what, warp < 8 ? CHUNK_BYTES : sizeof s.sum[rank], &s.p_in, to);
    }
}

/* The same by way of memory, which is to say the second cache: it sends them to all at once, where
 * eight copies from block to block take twice as long. */
static __device__ void send_probabilities(const dk_attention_call &c, spread_shared &s, int rank,
                                          int size, int chunks) {
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0 && warp < 2) {
        size_t at = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * TILE_BLOCKS + rank;
        unsigned char *there = c.told + at * DK_TOLD_BYTES + warp * CHUNK_BYTES;
        void *here = warp == 0 ? (void *)s.p[rank] : s.sum[rank];
        uint32_t bytes = warp == 0 ? CHUNK_BYTES : sizeof s.sum[rank];
        unsigned others = ((1u << min(size, chunks)) - 1) & ~(1u << rank);
        put_back(there, here, bytes);
        if (others) {
            bulk_copy_for(others, here, there, bytes, &s.p_in);
        }
    }
}

/* This block's maxima and whether it is filled, to every block of the cluster: TOLD_WORDS each. */
static __device__ void tell_tops(spread_shared &s, int rank, int size) {
    int head = threadIdx.x % TILE;
    float a = s.half_top[0][head], b = s.half_top[1][head], top = b > a ? b : a;
    for (int to = threadIdx.x / TILE; to < size; to += THREADS / TILE) {
        push_word(&s.top[rank][head], top, &s.tops_in, to);
        if (head == 0) {
            push_word(&s.filled[rank], (s.mine[0] | s.mine[1]) != 0, &s.tops_in, to);
        }
    }
}

/* Maxima become fades; the last maximum goes to s.peak. */
static __device__ __forceinline__ void make_fades(spread_shared &s, int blocks) {
    enum { EACH = (MOST * TILE + THREADS - 1) / THREADS };
    int head = threadIdx.x % TILE, first = threadIdx.x / TILE;
    float fade[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int block = min(first + i * (THREADS / TILE), blocks - 1);
        float old = peak_before(s, block, head), top = s.top[block][head];
        top = top > old ? top : old;
        fade[i] = old - top;
        if (block == blocks - 1) {
            s.peak[head] = top;
        }
    }
    exp_below(fade);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int block = first + i * (THREADS / TILE);
        if (block < blocks) {
            s.top[block][head] = fade[i];
        }
    }
    __syncthreads();
}

/* What a list block adds to one chunk of columns. */
struct addend {
    uint32_t p, values;
    float fade[2], sum[2];
};

static __device__ __forceinline__ addend load_addend(spread_shared &s, int rank, int blocks,
                                                     int chunk, int first_place, int block,
                                                     int row) {
    int place = first_place + block - (rank < blocks && block > rank);
    addend a;
    a.p = shared_address(s.p[block]);
    a.values = shared_address(block == rank ? s.keys + chunk * CHUNK_BYTES : s.values[place]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int head = row + 8 * half;
        a.fade[half] = s.top[block][head];
        a.sum[half] = s.sum[block][0][head] + s.sum[block][1][head];
    }
    return a;
}

/* One chunk of columns, by one warp group: this block's i-th, to s.out and its denominators. */
static __device__ __forceinline__ void add_chunk(const dk_attention_call &c, const query &q,
                                                 spread_shared &s, int rank, int size, int blocks,
                                                 int i, float (&out)[8][4], float (&total)[2]) {
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    int chunk = rank + i * size, first_place = i * blocks_told(rank, blocks);
    unsigned left = __ballot_sync(0xffffffffu, lane < blocks && s.filled[lane] != 0);
    float sink[2] = {c.sink[min(q.head0 + row, c.heads - 1)],
                     c.sink[min(q.head0 + row + 8, c.heads - 1)]};
    addend next = load_addend(s, rank, blocks, chunk, first_place, max(__ffs(left) - 1, 0), row);
#pragma unroll 1
    while (left) {
        addend now = next;
        left &= left - 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[half] = total[half] * now.fade[half] + now.sum[half];
        }
        fade_out(out, now.fade);
        next = load_addend(s, rank, blocks, chunk, first_place, max(__ffs(left) - 1, 0), row);
        add_values(out, now.p, now.values);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += di_expf(sink[half] - s.peak[row + 8 * half]);
    }
}

/* The sums of a chunk's columns, which this group has, to where all threads finish them. */
static __device__ __forceinline__ void keep_sums(spread_shared &s, int i, const float (&out)[8][4],
                                                 const float (&total)[2]) {
    int lane = threadIdx.x % 32, t = lane % 4, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int unit = 0; unit < 8; unit++) {
            *(float2 *)&s.out[i][row + 8 * half][8 * unit + 2 * t] =
                make_float2(out[unit][2 * half], out[unit][2 * half + 1]);
        }
        if (t == 0) {
            s.total[i][row + 8 * half] = total[half];
            s.inverse[i][row + 8 * half] = 1 / total[half];
        }
    }
}

/* Results of one chunk: divided, rounded, rotated back. A warp a head, a pair a thread. */
static __device__ __forceinline__ void put_results(const dk_attention_call &c, const query &q,
                                                   const spread_shared &s, int chunk, int i) {
    int lane = threadIdx.x % 32, pair = chunk * (TILE / 2) + lane;
    if (2 * pair >= c.dim) {
        return;
    }
    turn r = turn_of(c, q.row, pair);
    dk_bf16 *to = c.out + ((size_t)q.row * c.heads + q.head0) * c.dim + 2 * pair;
#pragma unroll 2
    for (int head = threadIdx.x / 32; head < TILE; head += THREADS / 32) {
        float2 v = *(const float2 *)&s.out[i][head][2 * lane];
        float total = s.total[i][head], inverse = s.inverse[i][head];
        uint32_t word = to_bf16(divide(v.x, total, inverse)) |
                        (uint32_t)to_bf16(divide(v.y, total, inverse)) << 16;
        if (q.head0 + head < c.heads) {
            *(uint32_t *)(to + (size_t)head * c.dim) = rotate_pair(r, -1, word);
        }
    }
}

/* The columns that this block adds up of the others' keys, from decoded tiles: not before its own
 * keys and the query are there, which are needed first. Some warps, each a copy at a time. */
static __device__ void fetch_values(const dk_attention_call &c, spread_shared &s, int row, int rank,
                                    int size, int blocks, int chunks) {
    const unsigned char *tiles = c.tiles + tile_index(row, 0) * TILE_BYTES;
    int told = blocks_told(rank, blocks), all = owned_chunks(rank, size, chunks) * told;
#pragma unroll 1
    for (int place = threadIdx.x / 32 - FETCHERS; place < all; place += THREADS / 32 - FETCHERS) {
        int chunk = rank + place / told * size, block = place % told;
        block += rank < blocks && block >= rank;
        bulk_copy(s.values[place], tiles + (size_t)block * TILE_BYTES + chunk * CHUNK_BYTES,
                  CHUNK_BYTES, &s.values_in);
    }
}

/* This block's records to a tile of keys; the query comes meanwhile. */
static __device__ __forceinline__ void decode_block(const dk_attention_call &c, const query &q,
                                                    spread_shared &s, int rank) {
    int windows = q.windows - rank * TILE, warp = threadIdx.x / 32;
    int first = windows > 0 ? 0 : 1, behind = windows < TILE ? 2 : 1; /* kinds */
    if (threadIdx.x < TILE) {
        const uint8_t *record = slot_record(c, q, rank * TILE + threadIdx.x);
        unsigned filled = __ballot_sync(0xffffffffu, record != NULL);
        s.record[threadIdx.x] = record;
        s.mine[threadIdx.x / 32] = filled;
        stage_records(c, s.record, 0, TILE, windows, first == 1, threadIdx.x, s.values[0],
                      &s.records_in[first]);
    } else {
        load_query(c, q, threadIdx.x - TILE, THREADS - TILE, s.query);
    }
    __syncthreads();
#pragma unroll 1
    for (int kind = first; kind < behind; kind++) {
        if (kind > first) {
            stage_records(c, s.record, 0, TILE, windows, true, threadIdx.x, s.values[0],
                          &s.records_in[1]);
        }
        warp_wait(&s.records_in[kind], 0);
        unpack_records<THREADS / 32>(c, s.record, 0, TILE, windows, kind == 1, warp, s.values[0],
                                     s.keys);
        __syncthreads();
    }
}

/* All scores of the block's keys by one warp group, which needs least of shared memory's bandwidth;
 * then an eighth of a head's for each thread of all groups: of half group % 2, heads row or row + 8
 * by group / 2. */
static __device__ void form_scores(spread_shared &s, int chunks) {
    float scores[8][4] = {};
    add_scores(scores, shared_address(s.query), shared_address(s.keys), chunks);
#pragma unroll
    for (int part = 0; part < 8; part++) {
        int to = part / 2, first = to % 2 * 4 + part % 2 * 2, upper = to / 2 * 2;
        s.scores[to][part % 2][threadIdx.x % 128] =
            make_float4(scores[first][upper], scores[first][upper + 1], scores[first + 1][upper],
                        scores[first + 1][upper + 1]);
    }
}

/* Grid: list blocks (a cluster), groups of heads, queries. TILES: keys have been decoded. */
template <bool TILES>
static __global__ void __launch_bounds__(THREADS, 1) attend_spread(dk_attention_call c) {
    extern __shared__ __align__(1024) unsigned char base[];
    spread_shared &s = *(spread_shared *)base;
    query q = query_of(c, blockIdx.z, blockIdx.y * TILE);
    int rank = cluster_rank(), size = cluster_size(), group = threadIdx.x / 128;
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    int blocks = (q.slots + TILE - 1) / TILE, chunks = (c.dim + TILE - 1) / TILE;
    int owned = owned_chunks(rank, size, chunks);
    if (threadIdx.x == 0) {
        uint32_t told = blocks_told(rank, blocks), to_owner = owned > 0;
        barrier_init(&s.records_in[0], TILE);
        barrier_init(&s.records_in[1], TILE);
        barrier_init(&s.keys_in, 1);
        barrier_init(&s.tops_in, 1);
        barrier_init(&s.values_in, 1);
        barrier_init(&s.p_in, 1);
        barriers_ready();
        barrier_expect(&s.tops_in, blocks * TOLD_WORDS * sizeof(float));
        barrier_expect(&s.values_in, owned * told * CHUNK_BYTES);
        barrier_expect(&s.p_in, to_owner * told * (CHUNK_BYTES + sizeof s.sum[0]));
    }
    __syncthreads();
    wait_for_predecessors();
    turn r = first_turn(c, q);
    if (TILES) {
        if (rank < blocks) {
            if (threadIdx.x == THREADS - 32) {
                uint32_t bytes = chunks * CHUNK_BYTES;
                barrier_expect(&s.keys_in, bytes);
                bulk_copy(s.keys, c.tiles + tile_index(q.row, rank) * TILE_BYTES, bytes,
                          &s.keys_in);
            } else if (threadIdx.x < 2) {
                s.mine[threadIdx.x] = __ldcg(c.filled + 2 * tile_index(q.row, rank) + threadIdx.x);
            }
            load_query(c, q, threadIdx.x, THREADS, s.query);
        }
        __syncthreads();
    } else if (rank < blocks) {
        decode_block(c, q, s, rank);
    }
    if (rank < blocks) {
        rotate_query(c, q, r, THREADS, s.query);
    }
    publish_shared();
    __syncthreads();
    cluster_arrive();                                 /* barriers are there, and room for values */
    int half = group % 2, head = row + group / 2 * 8; /* of this thread's scores */
    float2 mine[4];
    if (TILES && rank < blocks) {
        warp_wait(&s.keys_in, 0);
    }
    if (TILES && group > 0 && lane == 0) {
        fetch_values(c, s, q.row, rank, size, blocks, chunks);
    }
    if (rank < blocks) {
        if (group == 0) {
            form_scores(s, chunks);
        }
        __syncthreads();
        *(float4 *)&mine[0] = s.scores[group][0][threadIdx.x % 128];
        *(float4 *)&mine[2] = s.scores[group][1][threadIdx.x % 128];
        float top = scale_scores(mine, s.mine[half], c.scale);
        if (lane % 4 == 0) {
            s.half_top[half][head] = top;
        }
    }
    cluster_wait();
    if (rank < blocks) {
        if (!TILES) {
            push_keys(s, rank, size, blocks, chunks);
        }
        __syncthreads(); /* nothing of this block's is left where probabilities come */
        tell_tops(s, rank, size);
    }
    warp_wait(&s.tops_in, 0);
    if (rank < blocks) {
        float sum =
            put_probabilities(mine, peak_before(s, rank + 1, head), head, 4 * half, s.p[rank]);
        if (lane % 4 == 0) {
            s.sum[rank][half][head] = sum;
        }
        publish_shared();
        __syncthreads();
        if (TILES) {
            send_probabilities(c, s, rank, size, chunks);
        } else {
            push_probabilities(s, rank, size, chunks);
        }
    }
    if (owned > 0) {
        make_fades(s, blocks);
        warp_wait(&s.values_in, 0);
        warp_wait(&s.p_in, 0);
    }
    let_successors_begin(); /* not before: they bring weights, and what we bring would wait */
    cluster_arrive();       /* all that was sent here has come */
    float out[8][4] = {}, total[2] = {};
    if (group < owned) { /* at most four are: a cluster has two blocks at least */
        add_chunk(c, q, s, rank, size, blocks, group, out, total);
    }
    __syncthreads(); /* probabilities have been read */
    if (group < owned) {
        keep_sums(s, group, out, total);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < owned; i++) {
        put_results(c, q, s, rank + i * size, i);
    }
    cluster_wait(); /* and so has all that was sent from here */
}

int dk_attention_spread_size(const dk_attention_call *c) {
    int size = (c->most_slots + TILE - 1) / TILE, groups = (c->heads + TILE - 1) / TILE;
    size = size == 1 ? 2 : size;              /* a block that is no cluster's cannot tell itself */
    size = size == 6 || size == 7 ? 8 : size; /* or they would have too many chunks to keep */
    bool few = (long long)c->step.num_rows * groups * size <= MOST_BLOCKS;
    return size >= 1 && size <= MOST && few ? size : 0;
}

template <bool TILES> static bool launch_spread(cudaStream_t s, const dk_attention_call *c) {
    int size = dk_attention_spread_size(c), groups = (c->heads + TILE - 1) / TILE;
    if (size == 0) {
        return false;
    }
    cudaFuncSetAttribute(attend_spread<TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(spread_shared));
    cudaFuncSetAttribute(attend_spread<TILES>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (launch_overlapped(s, attend_spread<TILES>, dim3(size, groups, c->step.num_rows), THREADS,
                          sizeof(spread_shared), size, *c) != cudaSuccess) {
        cudaGetLastError(); /* a card with fewer multiprocessors together */
        return false;
    }
    return true;
}

bool dk_attention_spread(cudaStream_t s, const dk_attention_call *c) {
    return c->tiles ? launch_spread<true>(s, c) : launch_spread<false>(s, c);
}
