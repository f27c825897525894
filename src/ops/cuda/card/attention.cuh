/* What both attention kernels share: the list of a query, decoding its records, the softmax of a
 * list block, rotation of queries and results.
 *
 * All heads of a query (64 at a time) stand in one tile, a list block of 64 keys in another; K = V.
 * Sum orders (the same in both kernels, so that their bits are): a score is one chain over the
 * head's dims, 16 at a time; a block's denominator runs over the 8 columns that a thread holds
 * ascending, then over 4 threads as a tree, then over both halves of the block; values are added 16
 * slots at a time onto the faded sum. Probabilities refer to the running maximum of the blocks up
 * to theirs, as docs/numerics.md wants it. */
#ifndef DI_OPS_CUDA_ATTENTION_CUH
#define DI_OPS_CUDA_ATTENTION_CUH

#include "ops/cuda/card/state.cuh"
#include "ops/cuda/card/warpgroup.cuh"

/* ---- lists -----------------------------------------------------------------------------------*/

struct query {
    dk_seq seq;
    int row, head0, slots, windows /* slots that hold window records come first */;
};

static __device__ query query_of(const dk_attention_call &c, int row, int head0) {
    query q = {c.step.seqs[c.step.row_seq[row]], row, head0, 0, 0};
    q.slots = c.window + (q.seq.draft ? q.seq.num_rows : c.topk ? c.k : 0);
    q.windows = q.seq.draft ? q.slots : c.window;
    return q;
}

/* The record in a list slot, or NULL for an empty one. */
static __device__ const uint8_t *slot_record(const dk_attention_call &c, const query &q, int slot) {
    const dk_seq &seq = q.seq;
    int64_t p = seq.pos0 + (q.row - seq.row0);
    if (slot >= q.slots) {
        return NULL;
    }
    if (seq.draft) {
        if (slot >= c.window) { /* the block's own rows, all of them */
            return c.records + (size_t)(seq.row0 + slot - c.window) * c.step.window_bytes;
        }
        p = seq.pos0 - 1; /* what the window ends with */
    }
    if (slot < c.window) {
        int64_t oldest = p - c.window + 1;
        int64_t pos = (oldest > seq.window_start ? oldest : seq.window_start) + slot;
        if (pos > p) {
            return NULL;
        }
        return pos >= seq.pos0
                   ? c.records + (size_t)(seq.row0 + (pos - seq.pos0)) * c.step.window_bytes
                   : ring_row(c.step, seq.slot, pos);
    }
    int32_t entry = c.topk[(size_t)q.row * c.k + slot - c.window];
    return entry < 0 ? NULL : latent_row(c.step, seq, c.ratio, entry);
}

/* ---- records to tiles ------------------------------------------------------------------------
 *
 * Records come to shared memory first, as they lie, by bulk copies; then they are decoded from
 * there. Loops stay rolled: code that runs once is bound by the fetching of it. */

enum { MAX_DIM = 512, STAGED_BYTES = TILE * (MAX_DIM / 2 + MAX_DIM / 16) };

static __device__ __forceinline__ int record_bytes(const dk_attention_call &c, bool latent) {
    return latent ? c.dim / 2 + c.dim / 16 : c.dim + c.dim / 32;
}

/* Bytes from one staged record to the next. */
static __device__ __forceinline__ int staged_pitch(const dk_attention_call &c, bool latent) {
    return (record_bytes(c, latent) + 15) & ~15;
}

/* Begins to bring records of one kind to `staged`: of slots [first, first + count) of a list block
 * whose slots before `windows` hold window records. Thread i < count brings the i-th; each of them
 * arrives at `barrier` once. */
static __device__ __forceinline__ void
stage_records(const dk_attention_call &c, const uint8_t *const *record, int first, int count,
              int windows, bool latent, int thread, unsigned char *staged, uint64_t *barrier) {
    if (thread >= count) {
        return;
    }
    const uint8_t *from = record[first + thread];
    int bytes = record_bytes(c, latent);
    unsigned char *to = staged + thread * staged_pitch(c, latent);
    if (!from || (first + thread >= windows) != latent) {
        barrier_arrive(barrier);
    } else if (c.wide) {
        barrier_expect(barrier, bytes);
        bulk_copy(to, from, bytes, barrier);
    } else { /* of small models alone */
#pragma unroll 4
        for (int i = 0; i < bytes; i++) {
            to[i] = from[i];
        }
        barrier_arrive(barrier);
    }
}

static __device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

/* Four E2M1 codes (the low half of w) as BF16 in order. Both bytes of a magnitude are looked up
 * among eight in a register pair; a byte with its top bit set, picked by a negative code, gives all
 * ones, and else itself. */
static __device__ __forceinline__ uint2 e2m1_values(uint32_t w) {
    uint32_t magnitude = w & 0x7777u;
    uint32_t high = permute(0x3f3f3f00u, 0x40404040u, magnitude);
    uint32_t low = permute(0xc0800000u, 0xc0804000u, magnitude);
    uint32_t sign = permute(0x80808080u, 0x80808080u, w);
    high |= sign << 7 & 0x80808080u;
    return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}

static __device__ __forceinline__ uint4 scaled_e2m1(uint32_t w, uint32_t scale) {
    uint2 a = e2m1_values(w), b = e2m1_values(w >> 16);
    return make_uint4(mul_bf16x2(a.x, scale), mul_bf16x2(a.y, scale), mul_bf16x2(b.x, scale),
                      mul_bf16x2(b.y, scale));
}

/* A piece of a record as it lies: 16 bytes of codes, and their scales. */
struct record_piece {
    uint4 codes;
    uint32_t scales;
};

/* Values [32i, 32i + 32) of a latent, [16i, 16i + 16) of a window record. */
static __device__ __forceinline__ record_piece load_piece(const uint8_t *record, int i, int dim,
                                                          bool latent) {
    record_piece p = {*(const uint4 *)(record + 16 * i), 0};
    if (latent) {
        p.scales = *(const uint16_t *)(record + dim / 2 + 2 * i);
    } else {
        p.scales = record[dim + i / 2];
    }
    return p;
}

static __device__ __forceinline__ void put_latent(unsigned char *tile, int slot, int i,
                                                  const record_piece &p) {
    uint32_t first = twice(to_bf16(e4m3_value(p.scales & 255)));
    uint32_t second = twice(to_bf16(e4m3_value(p.scales >> 8)));
    *(uint4 *)(tile + tile_unit(slot, 4 * i)) = scaled_e2m1(p.codes.x, first);
    *(uint4 *)(tile + tile_unit(slot, 4 * i + 1)) = scaled_e2m1(p.codes.y, first);
    *(uint4 *)(tile + tile_unit(slot, 4 * i + 2)) = scaled_e2m1(p.codes.z, second);
    *(uint4 *)(tile + tile_unit(slot, 4 * i + 3)) = scaled_e2m1(p.codes.w, second);
}

static __device__ __forceinline__ void put_window(unsigned char *tile, int slot, int i,
                                                  const record_piece &p) {
    scale_pair s = make_scale(p.scales, 120);
    float factor = e8m0_value(p.scales);
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        uint2 a = fp8_values(half ? p.codes.z : p.codes.x, s, factor);
        uint2 b = fp8_values(half ? p.codes.w : p.codes.y, s, factor);
        *(uint4 *)(tile + tile_unit(slot, 2 * i + half)) = make_uint4(a.x, a.y, b.x, b.y);
    }
}

/* Staged records as rows of a tile, zeros in empty slots and behind dim. A warp takes 8 slots and 4
 * pieces of 16 bytes of each at a time: neighbouring lanes write to all banks. */
template <int WARPS>
static __device__ __forceinline__ void
unpack_records(const dk_attention_call &c, const uint8_t *const *record, int first, int count,
               int windows, bool latent, int warp, const unsigned char *staged,
               unsigned char *tile) {
    int lane = threadIdx.x % 32, eights = count / 8, pitch = staged_pitch(c, latent);
    int pieces = (c.dim + TILE - 1) / TILE * (latent ? 2 : 4), values = latent ? 32 : 16;
#pragma unroll 1
    for (int task = warp; task < (pieces + 3) / 4 * eights; task += WARPS) {
        int row = task % eights * 8 + lane % 8, i = task / eights * 4 + lane / 8;
        int slot = first + row;
        if (i >= pieces || (slot >= windows) != latent) {
            continue;
        }
        if (!record[slot] || i * values >= c.dim) {
            for (int unit = 0; unit < values / 8; unit++) {
                *(uint4 *)(tile + tile_unit(slot, i * (values / 8) + unit)) =
                    make_uint4(0, 0, 0, 0);
            }
        } else if (latent) {
            put_latent(tile, slot, i, load_piece(staged + row * pitch, i, c.dim, true));
        } else {
            put_window(tile, slot, i, load_piece(staged + row * pitch, i, c.dim, false));
        }
    }
}

/* ---- queries and results ---------------------------------------------------------------------
 *
 * Two values of a head that are rotated together are one word of a tile. Loops stay rolled. */

/* Of a pair of a row's values; `turns`: it is one of those that are rotated. */
struct turn {
    bool turns;
    float cosine, sine;
};

static __device__ __forceinline__ turn turn_of(const dk_attention_call &c, int row, int pair) {
    int first = c.dim / 2 - c.half;
    size_t at = (size_t)row * c.half + pair - first;
    if (pair < first || pair >= c.dim / 2) {
        return {false, 1, 0};
    }
    return {true, c.cosine[at], c.sine[at]};
}

static __device__ __forceinline__ uint32_t rotate_pair(const turn &r, float sign, uint32_t pair) {
    float a = __uint_as_float(pair << 16), b = __uint_as_float(pair & 0xffff0000u);
    float sine = sign * r.sine;
    uint32_t turned = to_bf16(a * r.cosine - b * sine) | (uint32_t)to_bf16(a * sine + b * r.cosine)
                                                             << 16;
    return r.turns ? turned : pair;
}

/* Begins to copy 16 bytes to shared memory; or zeros. */
static __device__ __forceinline__ void copy_unit(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
}

/* The heads of a query as a tile, zeros behind the last head and behind dim. By `threads` threads,
 * a multiple of 64; each has a unit of its own, and all that it brings is on its way at once. */
static __device__ __forceinline__ void load_query(const dk_attention_call &c, const query &q,
                                                  int thread, int threads, unsigned char *tile) {
    int unit = thread % 64;
    const dk_bf16 *from = c.q + ((size_t)q.row * c.heads + q.head0) * c.dim + unit * 8;
    if (unit < (c.dim + TILE - 1) / TILE * 8) {
#pragma unroll 1
        for (int head = thread / 64; head < TILE; head += threads / 64) {
            bool there = q.head0 + head < c.heads && unit * 8 < c.dim;
            copy_unit(shared_address(tile + tile_unit(head, unit)),
                      there ? from + (size_t)head * c.dim : c.q, there);
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Of the first pair that rotate_query gives this thread, to be loaded early. */
static __device__ __forceinline__ turn first_turn(const dk_attention_call &c, const query &q) {
    return turn_of(c, q.row, c.dim / 2 - c.half + threadIdx.x % 32);
}

/* Rotates what load_query has brought, behind a barrier. r: first_turn's. */
static __device__ __forceinline__ void rotate_query(const dk_attention_call &c, const query &q,
                                                    turn r, int threads, unsigned char *tile) {
    int thread = threadIdx.x, first = c.dim / 2 - c.half + thread % 32;
#pragma unroll 1
    for (int pair = first; pair < c.dim / 2; pair += 32) {
        if (pair > first) {
            r = turn_of(c, q.row, pair);
        }
#pragma unroll 1
        for (int head = thread / 32; head < TILE; head += threads / 32) {
            uint32_t *at = (uint32_t *)(tile + tile_unit(head, pair / 4) + pair % 4 * 4);
            *at = rotate_pair(r, 1, *at);
        }
    }
}

/* A quotient as the division rounds it, from the rounded inverse of the denominator; an infinite
 * one (of an empty list) gives 0. */
static __device__ __forceinline__ float divide(float x, float total, float inverse) {
    float y = x * inverse, rest = fmaf(-y, total, x);
    return total < 0x1p100f ? fmaf(rest, inverse, y) : y;
}

/* ---- softmax ---------------------------------------------------------------------------------
 *
 * A thread holds eight of a head's 32 scores in half a block, as add_scores leaves them: the
 * columns 8i + 2t and one more. */

/* di_expf of N values that are not above 0, step by step side by side: one alone waits for itself.
 */
template <int N> static __device__ __forceinline__ void exp_below(float (&v)[N]) {
    const double round = 0x1.8p52;
    double r[N], p[N];
    long long power[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        double x = v[j] < -200.0f ? -200.0f : v[j];
        double shifted = x * 0x1.71547652b82fep+0 + round, n = shifted - round;
        power[j] = __double_as_longlong(shifted) << 52;
        r[j] = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
        p[j] = 1.0 / 362880;
    }
    const double factor[9] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                              1.0 / 6,     0.5,        1.0,       1.0};
#pragma unroll
    for (int i = 0; i < 9; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            p[j] = p[j] * r[j] + factor[i];
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        v[j] =
            (float)__longlong_as_double((long long)((unsigned long long)__double_as_longlong(p[j]) +
                                                    (unsigned long long)power[j]));
    }
}

/* Scales a thread's scores of one head and takes empty slots out (filled: a bit for each of the 32
 * slots); the largest of the head's half. A NaN is never larger. */
static __device__ __forceinline__ float scale_scores(float2 (&s)[4], uint32_t filled, float scale) {
    uint32_t mine = filled >> threadIdx.x % 4 * 2;
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i].x = mine >> 8 * i & 1 ? s[i].x * scale : -INFINITY;
        s[i].y = mine >> (8 * i + 1) & 1 ? s[i].y * scale : -INFINITY;
        top = s[i].x > top ? s[i].x : top;
        top = s[i].y > top ? s[i].y : top;
    }
    for (int step = 1; step < 4; step *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, step);
        top = other > top ? other : top;
    }
    return top;
}

/* One head's eight scores of a thread (i: columns 8i + 2t, and one more) to probabilities, into row
 * `row` of a chunk (unit0: where the half begins); the sum over the half. */
static __device__ __forceinline__ float put_probabilities(const float2 (&s)[4], float top, int row,
                                                          int unit0, unsigned char *chunk) {
    int t = threadIdx.x % 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        float p[4] = {s[i].x - top, s[i].y - top, s[i + 1].x - top, s[i + 1].y - top};
        exp_below(p);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            sum += p[2 * j];
            sum += p[2 * j + 1];
            *(uint32_t *)(chunk + tile_unit(row, unit0 + i + j) + 4 * t) =
                to_bf16(p[2 * j]) | (uint32_t)to_bf16(p[2 * j + 1]) << 16;
        }
    }
    for (int step = 1; step < 4; step *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    return sum;
}

template <int NT>
static __device__ __forceinline__ void fade_out(float (&out)[NT][4], const float (&fade)[2]) {
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            out[i][j] *= fade[j / 2];
        }
    }
}

/* attention_keys.cu: tiles of list blocks in memory, TILE_BYTES apart, TILE_BLOCKS to a row, and
 * which slots are filled, two words a block. */
enum { TILE_BLOCKS = DK_TILE_BLOCKS, TILE_BYTES = DK_TILE_BYTES };

static __device__ __forceinline__ size_t tile_index(int row, int block) {
    return (size_t)row * TILE_BLOCKS + block;
}

/* attention_spread.cu: a cluster for each query, a block of threads for each list block. */
bool dk_attention_spread(cudaStream_t s, const dk_attention_call *c);
/* Blocks of such a cluster; 0: the call is not for it. */
int dk_attention_spread_size(const dk_attention_call *c);

#endif
