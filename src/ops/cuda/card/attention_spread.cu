/* The attention core for few queries: a cluster of blocks for 64 heads of one, each with one list
 * block. It takes the scores of its keys, tells its maxima, and hands its probabilities to all and
 * the columns of its keys to the block that adds those columns up, list block by list block. So
 * every sum has the order that attention.cu has, to the bit, and a query takes as long as one list
 * block and what is exchanged. Bound by latencies: the records' addresses, the cluster's barriers.
 */
#include "ops/cuda/card/attention.cuh"
#include "ops/cuda/card/launch.cuh"

enum {
    THREADS = 512,
    MOST = 10,     /* list blocks */
    MOST_TOLD = 9, /* chunks of values that come from other blocks, see told_place */
    TOLD_WORDS = TILE + 1,
    MOST_BLOCKS = 210, /* of threads in a launch: beyond, a block for each query is faster */
};

struct spread_shared {
    /* first the query, 8 chunks; then probabilities */
    unsigned char p[MOST][CHUNK_BYTES];
    /* values: first the records as they lie */
    unsigned char keys[8 * CHUNK_BYTES], values[MOST_TOLD][CHUNK_BYTES];
    float top[MOST][TILE]; /* of each list block; then how much it fades what was before */
    float sum[MOST][2][TILE], filled[MOST];
    float half_top[2][TILE], peak[TILE];
    const uint8_t *record[TILE];
    uint32_t mine[2]; /* filled slots of this block's */
    uint64_t records_in[2], keys_in, tops_in, values_in, p_in;
};

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

/* Columns of this block's keys to those who add them up. One thread a chunk. */
static __device__ void push_keys(spread_shared &s, int rank, int size, int blocks, int chunks) {
    int chunk = threadIdx.x, to = chunk % size;
    if (chunk < chunks && to != rank) {
        push(s.values[told_place(to, size, blocks, chunk, rank)], s.keys + chunk * CHUNK_BYTES,
             CHUNK_BYTES, &s.values_in, to);
    }
}

static __device__ void push_probabilities(spread_shared &s, int rank, int size, int chunks) {
    int to = threadIdx.x;
    if (to < size && to < chunks && to != rank) {
        push(s.p[rank], s.p[rank], CHUNK_BYTES, &s.p_in, to);
        push(s.sum[rank], s.sum[rank], sizeof s.sum[rank], &s.p_in, to);
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

/* One chunk of columns, by one warp group. */
static __device__ void add_chunk(const dk_attention_call &c, const query &q, spread_shared &s,
                                 int rank, int size, int blocks, int chunk, int group) {
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float out[8][4] = {}, total[2] = {}, fade[2];
#pragma unroll 1
    for (int block = 0; block < blocks; block++) {
        if (s.filled[block] == 0) {
            continue;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int head = row + 8 * half;
            fade[half] = s.top[block][head];
            total[half] =
                total[half] * fade[half] + (s.sum[block][0][head] + s.sum[block][1][head]);
        }
        fade_out(out, fade);
        const unsigned char *values = block == rank
                                          ? s.keys + chunk * CHUNK_BYTES
                                          : s.values[told_place(rank, size, blocks, chunk, block)];
        add_values(out, shared_address(s.p[block]), shared_address(values));
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int head = min(q.head0 + row + 8 * half, c.heads - 1);
        total[half] += di_expf(c.sink[head] - s.peak[row + 8 * half]);
    }
    put_results(c, q, out, total, chunk * 8, s.keys, 1 + group);
}

/* This block's keys, and the columns that it adds up of the others', from decoded tiles. One
 * thread. */
static __device__ void fetch_tiles(const dk_attention_call &c, spread_shared &s, int row, int rank,
                                   int size, int blocks, int chunks) {
    const unsigned char *tiles = c.tiles + tile_index(row, 0) * TILE_BYTES;
    if (rank < blocks) {
        uint32_t bytes = chunks * CHUNK_BYTES;
        barrier_expect(&s.keys_in, bytes);
        fetch(s.keys, tiles + (size_t)rank * TILE_BYTES, bytes, &s.keys_in);
    }
#pragma unroll 1
    for (int chunk = rank; chunk < chunks; chunk += size) {
#pragma unroll 1
        for (int block = 0; block < blocks; block++) {
            if (block != rank) {
                fetch(s.values[told_place(rank, size, blocks, chunk, block)],
                      tiles + (size_t)block * TILE_BYTES + chunk * CHUNK_BYTES, CHUNK_BYTES,
                      &s.values_in);
            }
        }
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
        load_query(c, q, threadIdx.x - TILE, THREADS - TILE, s.p[0]);
    }
    __syncthreads();
#pragma unroll 1
    for (int kind = first; kind < behind; kind++) {
        if (kind > first) {
            stage_records(c, s.record, 0, TILE, windows, true, threadIdx.x, s.values[0],
                          &s.records_in[1]);
        }
        barrier_wait(&s.records_in[kind], 0);
        unpack_records<THREADS / 32>(c, s.record, 0, TILE, windows, kind == 1, warp, s.values[0],
                                     s.keys);
        __syncthreads();
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
    let_successors_begin();
    if (threadIdx.x == 0) {
        uint32_t told = blocks_told(rank, blocks), to_owner = owned > 0;
        barrier_init(&s.records_in[0], TILE);
        barrier_init(&s.records_in[1], TILE);
        barrier_init(&s.keys_in, 1);
        barrier_init(&s.tops_in, 1);
        barrier_init(&s.values_in, 1);
        barrier_init(&s.p_in, 1);
        barrier_publish();
        barrier_expect(&s.tops_in, blocks * TOLD_WORDS * sizeof(float));
        barrier_expect(&s.values_in, owned * told * CHUNK_BYTES);
        barrier_expect(&s.p_in, to_owner * told * (CHUNK_BYTES + sizeof s.sum[0]));
    }
    __syncthreads();
    wait_for_predecessors();
    if (TILES) {
        if (threadIdx.x == 0) {
            fetch_tiles(c, s, q.row, rank, size, blocks, chunks);
        }
        if (rank < blocks) {
            if (threadIdx.x < 2) {
                s.mine[threadIdx.x] = __ldcg(c.filled + 2 * tile_index(q.row, rank) + threadIdx.x);
            }
            load_query(c, q, threadIdx.x, THREADS, s.p[0]);
        }
    } else if (rank < blocks) {
        decode_block(c, q, s, rank);
    }
    publish_tile();
    __syncthreads();
    cluster_arrive(); /* barriers are there, and room for values */
    float scores[4][4] = {}, top[2];
    int half = group % 2, upper = group / 2; /* of the block's keys; of a thread's two heads */
    if (rank < blocks) {
        if (TILES) {
            barrier_wait(&s.keys_in, 0);
        }
        /* two groups form the same scores, and then share them out between themselves */
        add_scores(scores, shared_address(s.p[0]), shared_address(s.keys) + half * (32 * 128),
                   chunks);
        scale_scores(scores, s.mine[half], c.scale, top);
        if (lane % 4 == 0 && upper == 0) {
            s.half_top[half][row] = top[0];
            s.half_top[half][row + 8] = top[1];
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
    barrier_wait(&s.tops_in, 0);
    if (rank < blocks) {
        int head = row + upper * 8;
        float2 mine[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mine[i] = upper ? make_float2(scores[i][2], scores[i][3])
                            : make_float2(scores[i][0], scores[i][1]);
        }
        float sum =
            put_probabilities(mine, peak_before(s, rank + 1, head), head, 4 * half, s.p[rank]);
        if (lane % 4 == 0) {
            s.sum[rank][half][head] = sum;
        }
        publish_tile();
        __syncthreads();
        push_probabilities(s, rank, size, chunks);
    }
    if (owned > 0) {
        make_fades(s, blocks);
        barrier_wait(&s.values_in, 0);
        barrier_wait(&s.p_in, 0);
    }
    cluster_arrive(); /* all that was sent here has come */
#pragma unroll 1
    for (int i = group; i < owned; i += THREADS / 128) {
        add_chunk(c, q, s, rank, size, blocks, rank + i * size, group);
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
