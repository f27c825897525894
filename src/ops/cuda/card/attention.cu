/* The attention core for many queries: out = rope^-1(bf16(sum_j p_j v_j / (sum_j p_j + exp(sink -
 * m)))), p_j = exp(q . v_j * scale - m), m the running maximum, over `window` keys and k chosen
 * entries of each query; q and out [rows, heads, dim], a list of up to 640 records of 512 values. A
 * block of threads for 64 heads of one, list block by list block. One warp group decodes records
 * (as stored: FP8 window, FP4 latents) into two tiles in turn; two others share the scores of a
 * tile by slots, and the values by dims. Bound by tensor cores and, between them, by the
 * exponentials: 132 TFLOP/s for 256 queries of their own contexts, 142 for 2,048 of one
 * (bench/results/2026-11-30-h200-rows.txt). Few queries go to attention_spread.cu.
 *
 * attention.cuh has the sum orders. */
#include "ops/cuda/card/attention.cuh"
#include "ops/cuda/card/launch.cuh"

enum { TILES = 2, THREADS = 384, DECODERS = 128 };

struct row_shared {
    unsigned char q[8 * CHUNK_BYTES], keys[TILES][8 * CHUNK_BYTES], p[CHUNK_BYTES];
    unsigned char staged[STAGED_BYTES]; /* a block's latents, or half a block's window records */
    float top[2][TILE], sum[2][TILE];   /* of a block's halves */
    uint64_t full[TILES], empty[TILES], staged_in[2]; /* window records, latents */
};

/* Behind row_shared: the records of the list, filled up to whole blocks, and a bit for each that is
 * one. */
static __host__ __device__ size_t row_bytes(int slots) {
    size_t padded = ((size_t)slots + TILE - 1) / TILE * TILE;
    return sizeof(row_shared) + padded * sizeof(void *) + padded / 8;
}

struct row_list {
    const uint8_t **record;
    uint32_t *filled;
    int blocks;
};

/* Brings one kind of a block's records, in two halves where they are large, and decodes them. The
 * tile is waited for behind the first request. *steps: staged so far. */
static __device__ __forceinline__ void decode_kind(const dk_attention_call &c, row_shared &s,
                                                   const uint8_t *const *record, int windows,
                                                   bool latent, uint64_t *empty, int parity,
                                                   unsigned char *tile, int *steps) {
    int thread = threadIdx.x % DECODERS, count = latent ? TILE : TILE / 2;
#pragma unroll 1
    for (int first = 0; first < TILE; first += count) {
        uint64_t *staged = &s.staged_in[latent];
        stage_records(c, record, first, count, windows, latent, thread, s.staged, staged);
        warp_wait(empty, parity);
        warp_wait(staged, steps[latent]++ % 2);
        unpack_records<DECODERS / 32>(c, record, first, count, windows, latent, thread / 32,
                                      s.staged, tile);
        named_barrier(5, DECODERS);
    }
}

static __device__ void decode_list(const dk_attention_call &c, const query &q, row_shared &s,
                                   const row_list &l) {
    int done = 0, steps[2] = {};
#pragma unroll 1
    for (int block = 0; block < l.blocks; block++) {
        if ((l.filled[2 * block] | l.filled[2 * block + 1]) == 0) {
            continue;
        }
        int tile = done % TILES, windows = q.windows - block * TILE;
#pragma unroll 1
        for (int kind = windows > 0 ? 0 : 1; kind < (windows < TILE ? 2 : 1); kind++) {
            decode_kind(c, s, l.record + block * TILE, windows, kind == 1, &s.empty[tile],
                        done / TILES % 2 ^ 1, s.keys[tile], steps);
        }
        publish_shared();
        barrier_arrive(&s.full[tile]);
        done++;
    }
}

/* A warp group's results, columns [256 * group, 256 * (group + 1)) of all heads: divided, rounded,
 * rotated back. They go by way of those columns of the query, which no other group uses any more.
 */
static __device__ __forceinline__ void put_results(const dk_attention_call &c, const query &q,
                                                   row_shared &s, float (&out)[32][4],
                                                   const float (&total)[2], int group) {
    int thread = threadIdx.x % 128, lane = thread % 32, t = lane % 4;
    int row = thread / 32 * 16 + lane / 4, unit = group * 32 + lane;
    named_barrier(3 + group, 128); /* the group's last product has read what is overwritten */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float inverse = 1 / total[half];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float a = divide(out[i][2 * half], total[half], inverse);
            float b = divide(out[i][2 * half + 1], total[half], inverse);
            *(uint32_t *)(s.q + tile_unit(row + 8 * half, group * 32 + i) + 4 * t) =
                to_bf16(a) | (uint32_t)to_bf16(b) << 16;
        }
    }
    named_barrier(3 + group, 128);
    if (unit * 8 >= c.dim) {
        return;
    }
    turn r[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        r[j] = turn_of(c, q.row, unit * 4 + j);
    }
    dk_bf16 *to = c.out + ((size_t)q.row * c.heads + q.head0) * c.dim + unit * 8;
#pragma unroll 1
    for (int head = thread / 32; head < TILE && q.head0 + head < c.heads; head += 4) {
        uint4 v = *(const uint4 *)(s.q + tile_unit(head, unit));
        *(uint4 *)(to + (size_t)head * c.dim) =
            make_uint4(rotate_pair(r[0], -1, v.x), rotate_pair(r[1], -1, v.y),
                       rotate_pair(r[2], -1, v.z), rotate_pair(r[3], -1, v.w));
    }
}

/* group: 0 or 1. */
static __device__ void attend(const dk_attention_call &c, const query &q, row_shared &s,
                              const row_list &l, int group) {
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4, done = 0;
    int chunks = (c.dim + TILE - 1) / TILE;
    float out[32][4] = {}, peak[2] = {-1e30f, -1e30f}, total[2] = {};
#pragma unroll 1
    for (int block = 0; block < l.blocks; block++) {
        if ((l.filled[2 * block] | l.filled[2 * block + 1]) == 0) {
            continue;
        }
        int tile = done % TILES;
        float scores[4][4] = {}, top[2], sum[2], fade[2];
        float2 mine[2][4];
        warp_wait(&s.full[tile], done / TILES % 2);
        uint32_t keys = shared_address(s.keys[tile]);
        add_scores(scores, shared_address(s.q), keys + group * (32 * 128), chunks);
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                mine[half][i] = make_float2(scores[i][2 * half], scores[i][2 * half + 1]);
            }
            top[half] = scale_scores(mine[half], l.filled[2 * block + group], c.scale);
            if (lane % 4 == 0) {
                s.top[group][row + 8 * half] = top[half];
            }
        }
        named_barrier(1, 256);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float a = s.top[0][row + 8 * half], b = s.top[1][row + 8 * half];
            top[half] = a > peak[half] ? a : peak[half];
            top[half] = b > top[half] ? b : top[half];
            fade[half] = peak[half] - top[half];
            peak[half] = top[half];
        }
        exp_below(fade);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] = put_probabilities(mine[half], top[half], row + 8 * half, 4 * group, s.p);
        }
        if (lane % 4 == 0) {
            s.sum[group][row] = sum[0];
            s.sum[group][row + 8] = sum[1];
        }
        publish_shared();
        named_barrier(2, 256);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[half] =
                total[half] * fade[half] + (s.sum[0][row + 8 * half] + s.sum[1][row + 8 * half]);
        }
        fade_out(out, fade);
        if (group * 4 < chunks) {
            add_values(out, shared_address(s.p), keys + group * 4 * CHUNK_BYTES);
        }
        if (lane == 0) {
            barrier_arrive(&s.empty[tile]);
        }
        done++;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int head = min(q.head0 + row + 8 * half, c.heads - 1);
        total[half] += di_expf(c.sink[head] - peak[half]);
    }
    put_results(c, q, s, out, total, group);
}

static __global__ void __launch_bounds__(THREADS, 1) attend_row(dk_attention_call c) {
    extern __shared__ __align__(1024) unsigned char base[];
    row_shared &s = *(row_shared *)base;
    query q = query_of(c, blockIdx.x, blockIdx.y * TILE);
    row_list l;
    begin_overlapped();
    l.record = (const uint8_t **)(base + sizeof s);
    l.blocks = (q.slots + TILE - 1) / TILE;
    l.filled = (uint32_t *)(l.record + l.blocks * TILE);
    for (int slot = threadIdx.x; slot < l.blocks * TILE; slot += THREADS) {
        const uint8_t *record = slot_record(c, q, slot);
        unsigned filled = __ballot_sync(0xffffffffu, record != NULL);
        l.record[slot] = record;
        if (slot % 32 == 0) {
            l.filled[slot / 32] = filled;
        }
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; i++) {
            barrier_init(&s.full[i], DECODERS);
            barrier_init(&s.empty[i], (THREADS - DECODERS) / 32);
        }
        barrier_init(&s.staged_in[0], TILE / 2);
        barrier_init(&s.staged_in[1], TILE);
        barriers_ready();
    }
    turn r = first_turn(c, q);
    load_query(c, q, threadIdx.x, THREADS, s.q);
    __syncthreads();
    rotate_query(c, q, r, THREADS, s.q);
    publish_shared();
    __syncthreads();
    if (threadIdx.x >= THREADS - DECODERS) {
        DK_FEWER_REGISTERS(88); /* 3 groups have 3 * 168 at first, and no more */
        decode_list(c, q, s, l);
    } else {
        DK_MORE_REGISTERS(208);
        attend(c, q, s, l, threadIdx.x / 128);
    }
}

void dk_attention(cudaStream_t s, const dk_attention_call *c) {
    if (dk_attention_spread(s, c)) {
        return;
    }
    size_t bytes = row_bytes(c->most_slots);
    cudaFuncSetAttribute(attend_row, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_overlapped(s, attend_row, dim3(c->step.num_rows, (c->heads + TILE - 1) / TILE), THREADS,
                      bytes, 1, *c);
}
