/* Index scores: score[t][e] = sum over heads h ascending of weight[t][h] * max(0, Q4I(q[t][h]) .
 * key[e]) for all entries e that a row may see, or those of its candidate blocks; q [rows, heads,
 * key_dim], keys as stored. A warp takes 16 places (entries, or entries of candidate blocks) at a
 * time and all heads of a query: keys go from memory through registers, decoded, into tensor cores
 * as rows, the query's heads as columns; then a lane adds up a place's heads, ascending. Bound by
 * the instructions that decode. The grid depends on the number of rows alone. index_select.cu
 * chooses; both together take 23 us for a row at 8k entries, 42 at 128k (docs/cuda.md).
 *
 * A dot product is one chain over steps of 16 dims, four of each quarter of the key. */
#include "ops/cuda/card/index.cuh"
#include "ops/cuda/card/launch.cuh"

enum { THREADS = 384, WARPS = THREADS / 32, HEADS = 32 /* that a warp holds in registers */ };

/* Q4I of a row's heads, there and back, to shared memory [heads up to 32s][key_dim + PAD]; in each
 * eight values the order in which key codes are decoded: 0 4 1 5 2 6 3 7. A thread takes eight. */
enum { PAD = 8 };

static __device__ void prepare_query(const dk_index_call &c, int row, dk_bf16 *to) {
    int units = c.key_dim / 8, heads = (c.heads + HEADS - 1) / HEADS * HEADS;
    const dk_bf16 *from = c.q + (size_t)row * c.heads * c.key_dim;
    for (int i = threadIdx.x; i < heads * units; i += THREADS) { /* whole warps: units * 32 */
        __align__(16) dk_bf16 v[8] = {}, r[8];
        int head = i / units;
        if (head < c.heads) {
            *(uint4 *)v = *(const uint4 *)(from + (size_t)i * 8);
        }
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            most = max(most, magnitude_bits(v[j]));
        }
        float scale = e8m0_value(q4i_scale(bf16_value((dk_bf16)group_max(most, 4))));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            r[j % 4 * 2 + j / 4] = to_bf16(e2m1_value(to_e2m1(bf16_value(v[j]) / scale)) * scale);
        }
        *(uint4 *)(to + head * (c.key_dim + PAD) + i % units * 8) = *(const uint4 *)r;
    }
}

/* Words (eight codes) of a key are shared out to four threads, `words` to each; a warp holds W of
 * each share at a time, all of them if WHOLE. */
template <int W, bool WHOLE>
static __device__ __forceinline__ int words_of(const dk_index_call &c) {
    return WHOLE ? W : c.key_dim / 32;
}

/* b of the steps of words [first, first + W) for 32 heads. */
template <int W, bool WHOLE>
static __device__ __forceinline__ void load_heads(const dk_index_call &c, const dk_bf16 *query,
                                                  int head0, int first, uint4 (&b)[4][W]) {
    int lane = threadIdx.x % 32, words = words_of<W, WHOLE>(c);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const dk_bf16 *head = query + (head0 + 8 * n + lane / 4) * (c.key_dim + PAD);
#pragma unroll
        for (int w = 0; w < W; w++) {
            b[n][w] = first + w < words
                          ? *(const uint4 *)(head + (lane % 4 * words + first + w) * 8)
                          : make_uint4(0, 0, 0, 0);
        }
    }
}

/* Words [first, first + W) of this thread's share of a key, and their scales. */
template <int W> struct raw_key { uint32_t word[W], scale[W]; };

template <int W, bool WHOLE>
static __device__ __forceinline__ raw_key<W> load_key(const dk_index_call &c, const uint8_t *record,
                                                      int first) {
    int words = words_of<W, WHOLE>(c), begin = threadIdx.x % 4 * words + first;
    raw_key<W> k = {};
#pragma unroll
    for (int w = 0; w < W; w++) {
        if (record && first + w < words) {
            k.word[w] = load_word(record + 4 * (begin + w));
            k.scale[w] = record[16 * words + (W == 4 && WHOLE ? begin : begin + w) / 4];
        }
    }
    return k;
}

/* Both keys of a thread: rows g and g + 8 of the 16 places from `place` on. */
template <int W> struct key_pair {
    const uint8_t *record[2]; /* NULL: there is no entry */
    raw_key<W> raw[2];
};

template <int W, bool WHOLE>
static __device__ __forceinline__ key_pair<W> load_keys(const dk_index_call &c, const index_list &l,
                                                        const dk_seq &seq, int row, int place) {
    key_pair<W> p;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int entry = entry_at(c, l, row, place + threadIdx.x % 32 / 4 + 8 * half);
        p.record[half] = entry < 0 ? NULL : key_row(c.step, seq, c.ratio, entry);
        p.raw[half] = load_key<W, WHOLE>(c, p.record[half], 0);
    }
    return p;
}

/* acc[n] += keys (rows g: low, g + 8: high) times eight heads. */
template <int W>
static __device__ __forceinline__ void add_dots(float (&acc)[4][4], const raw_key<W> &low,
                                                const raw_key<W> &high, const uint4 (&b)[4][W]) {
#pragma unroll
    for (int w = 0; w < W; w++) {
        uint32_t p[4], q[4];
        scale_pair s = make_scale(low.scale[w], 126), t = make_scale(high.scale[w], 126);
        fp4_pairs(low.word[w], p);
        fp4_pairs(high.word[w], q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[i] = scaled(p[i], s);
            q[i] = scaled(q[i], t);
        }
        const uint32_t first[4] = {p[0], q[0], p[1], q[1]}, second[4] = {p[2], q[2], p[3], q[3]};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            mma_16x8x16(acc[n], first, b[n][w].x, b[n][w].y);
            mma_16x8x16(acc[n], second, b[n][w].z, b[n][w].w);
        }
    }
}

enum { LD_DOTS = HEADS + 4 };

/* Positive parts of 16 places' dots with 32 heads, to rows [place][head]. */
static __device__ __forceinline__ void put_dots(const float (&acc)[4][4], float *dots) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = acc[n][2 * half], y = acc[n][2 * half + 1];
            *(float2 *)(dots + (g + 8 * half) * LD_DOTS + 8 * n + 2 * t) =
                make_float2(x < 0 ? 0 : x, y < 0 ? 0 : y);
        }
    }
}

/* sum += weighted dots of a place, heads ascending, product and sum apart. */
static __device__ __forceinline__ float add_heads(const float *weight, const float *dots,
                                                  float sum) {
#pragma unroll
    for (int h = 0; h < HEADS; h += 4) {
        float4 w = *(const float4 *)(weight + h), d = *(const float4 *)(dots + h);
        sum += w.x * d.x;
        sum += w.y * d.y;
        sum += w.z * d.z;
        sum += w.w * d.w;
    }
    return sum;
}

static __device__ __forceinline__ int padded_heads(const dk_index_call &c) {
    return (c.heads + HEADS - 1) / HEADS * HEADS;
}

/* Grid: shares of the places, rows. A warp takes 32 places at a time. Shared: weights and query,
 * zeros behind the last head; each warp's dots. */
template <int W, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 1) scores(dk_index_call c) {
    extern __shared__ __align__(16) float weight[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *dots = weight + padded_heads(c) + warp * 32 * LD_DOTS;
    dk_bf16 *query = (dk_bf16 *)(weight + padded_heads(c) + WARPS * 32 * LD_DOTS);
    int row = c.first_row + blockIdx.y, words = words_of<W, WHOLE>(c);
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    index_list l = list_of(c, seq, row);
    int stride = gridDim.x * WARPS * 32, place = (blockIdx.x + gridDim.x * warp) * 32;
    begin_overlapped();
    if ((int)blockIdx.x * 32 >= l.places) {
        return; /* the first warp's place is the block's least */
    }
    for (int h = threadIdx.x; h < padded_heads(c); h += THREADS) {
        weight[h] = h < c.heads ? bf16_value(c.weights[(size_t)row * c.heads + h]) * c.factor : 0;
    }
    key_pair<W> now = load_keys<W, WHOLE>(c, l, seq, row, place);
    prepare_query(c, row, query);
    __syncthreads();
    uint4 b[4][W];
    load_heads<W, WHOLE>(c, query, 0, 0, b);
    uint32_t *keys = c.keys + (size_t)blockIdx.y * c.places;
    for (; place < l.places; place += stride) {
        float sum = 0;
        bool there = entry_at(c, l, row, place + lane) >= 0;
        for (int head0 = 0; head0 < c.heads; head0 += HEADS) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                /* behind this half comes the other, and then the next places' first */
                int ahead = half == 0                 ? place + 16
                            : head0 + HEADS < c.heads ? place
                                                      : place + stride;
                key_pair<W> next = load_keys<W, WHOLE>(c, l, seq, row, ahead);
                float acc[4][4] = {};
                for (int first = 0; first < words; first += W) {
                    if (!WHOLE || c.heads > HEADS) {
                        load_heads<W, WHOLE>(c, query, head0, first, b);
                    }
                    if (first == 0) {
                        add_dots<W>(acc, now.raw[0], now.raw[1], b);
                    } else {
                        add_dots<W>(acc, load_key<W, WHOLE>(c, now.record[0], first),
                                    load_key<W, WHOLE>(c, now.record[1], first), b);
                    }
                }
                put_dots(acc, dots + half * 16 * LD_DOTS);
                now = next;
            }
            __syncwarp();
            sum = add_heads(weight + head0, dots + lane * LD_DOTS, sum);
            __syncwarp();
        }
        if (place + lane < l.places) {
            keys[place + lane] = there ? score_key(sum) : 0;
        }
    }
}

template <int W, bool WHOLE> static void launch(cudaStream_t s, const dk_index_call &c) {
    enum { BLOCKS = 132, LEAST = 4 }; /* as many as a card holds at once, shared out to the rows */
    int padded = (c.heads + HEADS - 1) / HEADS * HEADS;
    size_t bytes = padded * (sizeof(float) + (size_t)(c.key_dim + PAD) * sizeof(dk_bf16)) +
                   WARPS * 32 * LD_DOTS * sizeof(float);
    if (bytes > 48 * 1024) {
        cudaFuncSetAttribute(scores<W, WHOLE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    }
    int share = BLOCKS / c.rows > LEAST ? BLOCKS / c.rows : LEAST;
    launch_overlapped(s, scores<W, WHOLE>, dim3(share, c.rows), THREADS, bytes, 1, c);
}

void dk_index(cudaStream_t s, const dk_index_call *c) {
    switch (c->key_dim) {
    case 32:
        launch<1, true>(s, *c);
        break;
    case 64:
        launch<2, true>(s, *c);
        break;
    case 128:
        launch<4, true>(s, *c);
        break;
    default:
        launch<4, false>(s, *c);
        break;
    }
    dk_index_select(s, c);
}
