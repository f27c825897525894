/* The attention core. A block is one query and 16 of its heads. Block by block of 64 list slots it
 * decodes the records (as stored: FP8 window, FP4 latents) to BF16 in shared memory, where they are
 * exact, and takes scores and values on tensor cores. What bounds it: few queries, the chain of
 * list blocks; many, decoding, which 16 heads share.
 *
 * Rounding as docs/numerics.md has it; a score's sum is four interleaved chains over the head's
 * dims, a value's sum runs over slots 16 at a time. */
#include "state.cuh"

enum {
    SLOTS = 64,
    HEADS = 16,
    THREADS = 256,
    MAX_TILES = 8,
    LD_P = SLOTS + 8,
    LD_S = SLOTS + 1,
    AHEAD = 8
};

struct shared_parts {
    dk_bf16 *keys, *q, *p; /* [SLOTS][ld], [HEADS][ld], [HEADS][LD_P] */
    float *score;          /* [HEADS][LD_S] */
    float *peak, *total, *fade;
    const uint8_t **record; /* of every list slot, filled up to SLOTS; NULL: an empty one */
};

static size_t shared_bytes(int dim, int slots) {
    size_t ld = (size_t)dim + 8, blocks = ((size_t)slots + SLOTS - 1) / SLOTS;
    return (SLOTS + HEADS) * ld * 2 + HEADS * LD_P * 2 + HEADS * LD_S * 4 + 3 * HEADS * 4 +
           blocks * SLOTS * sizeof(void *);
}

static __device__ shared_parts lay_out(unsigned char *base, int ld) {
    shared_parts s;
    s.keys = (dk_bf16 *)base;
    s.q = s.keys + SLOTS * ld;
    s.p = s.q + HEADS * ld;
    s.score = (float *)(s.p + HEADS * LD_P);
    s.peak = s.score + HEADS * LD_S;
    s.total = s.peak + HEADS;
    s.fade = s.total + HEADS;
    s.record = (const uint8_t **)(s.fade + HEADS);
    return s;
}

/* The record in a list slot of row's query, or NULL for an empty slot. */
static __device__ const uint8_t *slot_record(const dk_attention_call &c, const dk_seq &seq, int row,
                                             int slot) {
    int64_t p = seq.pos0 + (row - seq.row0);
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
    int32_t entry = slot - c.window < c.k ? c.topk[(size_t)row * c.k + slot - c.window] : -1;
    return entry < 0 ? NULL : latent_row(c.step, seq, c.ratio, entry);
}

/* Decodes list slots [begin, begin + SLOTS) to s.keys, zeros for empty ones; false if all are. A
 * warp takes every eighth slot, a lane 8 of its values at a time; the loads of AHEAD slots are
 * under way before the first is decoded. windows: list slots before this one hold window records.
 */
static __device__ bool fill_keys(int dim, int begin, int windows, const shared_parts &s, int ld) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = dim / 8;
    bool mine = threadIdx.x < SLOTS && s.record[begin + threadIdx.x] != NULL;
    if (!__syncthreads_or(mine)) {
        return false;
    }
    for (int group = lane; group < groups; group += 32) {
#pragma unroll
        for (int first = 0; first < SLOTS / 8; first += AHEAD) {
            raw_group raw[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int slot = begin + warp + 8 * (first + u);
                const uint8_t *record = s.record[slot];
                raw[u] = {};
                if (record) {
                    raw[u] = slot < windows ? window_raw(record, dim, group)
                                            : latent_raw(record, dim, group);
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int slot = warp + 8 * (first + u);
                *(uint4 *)(s.keys + slot * ld + group * 8) =
                    begin + slot < windows ? window_values(raw[u]) : latent_values(raw[u]);
            }
        }
    }
    __syncthreads();
    return true;
}

/* Each warp: 8 slots for all heads. */
static __device__ void take_scores(const shared_parts &s, int dim, int ld, float scale) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float acc[4][4] = {};
    const dk_bf16 *key = s.keys + (warp * 8 + g) * ld + 2 * t;
    const dk_bf16 *low = s.q + g * ld + 2 * t, *high = low + 8 * ld;
    for (int k = 0; k < dim; k += 64) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = k + 16 * i;
            if (at < dim) {
                uint32_t a[4] = {*(const uint32_t *)(low + at), *(const uint32_t *)(high + at),
                                 *(const uint32_t *)(low + at + 8),
                                 *(const uint32_t *)(high + at + 8)};
                mma_16x8x16(acc[i], a, *(const uint32_t *)(key + at),
                            *(const uint32_t *)(key + at + 8));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = (acc[0][i] + acc[1][i]) + (acc[2][i] + acc[3][i]);
        s.score[(g + i / 2 * 8) * LD_S + warp * 8 + 2 * t + i % 2] = sum * scale;
    }
}

/* Each warp: two heads. Lanes hold slots lane and lane + 32. */
static __device__ void softmax(const shared_parts &s, int begin) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HEADS / (THREADS / 32); i++) {
        int h = threadIdx.x / 32 + i * (THREADS / 32);
        float a = s.record[begin + lane] ? s.score[h * LD_S + lane] : -INFINITY;
        float b = s.record[begin + lane + 32] ? s.score[h * LD_S + lane + 32] : -INFINITY;
        float old = s.peak[h], top = a > old ? a : old;
        top = b > top ? b : top;
        for (int step = 16; step > 0; step /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, top, step);
            top = other > top ? other : top;
        }
        a = exp32(a - top);
        b = exp32(b - top);
        s.p[h * LD_P + lane] = to_bf16(a);
        s.p[h * LD_P + lane + 32] = to_bf16(b);
        float sum = a + __shfl_down_sync(0xffffffffu, a, 16);
        sum += b;
        sum += __shfl_down_sync(0xffffffffu, b, 16);
        for (int step = 8; step > 0; step /= 2) {
            sum += __shfl_down_sync(0xffffffffu, sum, step);
        }
        __syncwarp(); /* all have read the old peak */
        if (lane == 0) {
            float fade = exp32(old - top);
            s.total[h] = s.total[h] * fade + sum;
            s.peak[h] = top;
            s.fade[h] = fade;
        }
    }
}

/* b0 and b1 of two steps of 16 slots: columns [col, col + 8) of keys, slots from `slot` on. */
static __device__ void load_values(const shared_parts &s, int ld, int slot, int col,
                                   uint32_t b[4]) {
    const dk_bf16 *from = s.keys + (slot + threadIdx.x % 32) * ld + col;
    unsigned at = (unsigned)__cvta_generic_to_shared(from);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

/* Each warp: every eighth tile of 8 dims, for all heads. */
static __device__ void add_values(const shared_parts &s, int dim, int ld,
                                  float (&out)[MAX_TILES][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const dk_bf16 *low = s.p + g * LD_P + 16 * k + 2 * t, *high = low + 8 * LD_P;
        a[k][0] = *(const uint32_t *)low;
        a[k][1] = *(const uint32_t *)high;
        a[k][2] = *(const uint32_t *)(low + 8);
        a[k][3] = *(const uint32_t *)(high + 8);
    }
    float low_fade = s.fade[g], high_fade = s.fade[g + 8];
#pragma unroll
    for (int i = 0; i < MAX_TILES; i++) {
        int col = (warp + 8 * i) * 8;
        if (col >= dim) {
            break;
        }
        out[i][0] *= low_fade;
        out[i][1] *= low_fade;
        out[i][2] *= high_fade;
        out[i][3] *= high_fade;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t b[4];
            load_values(s, ld, 32 * half, col, b);
            mma_16x8x16(out[i], a[2 * half], b[0], b[1]);
            mma_16x8x16(out[i], a[2 * half + 1], b[2], b[3]);
        }
    }
}

static __device__ void begin_heads(const dk_attention_call &c, const shared_parts &s, size_t row,
                                   int head0, int ld) {
    int groups = c.dim / 8;
    for (int i = threadIdx.x; i < HEADS * groups; i += THREADS) {
        int h = i / groups, group = i % groups;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (head0 + h < c.heads) {
            v = *(const uint4 *)(c.q + (row * c.heads + head0 + h) * c.dim + group * 8);
        }
        *(uint4 *)(s.q + h * ld + group * 8) = v;
    }
    if (threadIdx.x < HEADS) {
        s.peak[threadIdx.x] = -1e30f;
        s.total[threadIdx.x] = 0;
    }
}

static __device__ void finish_heads(const dk_attention_call &c, const shared_parts &s, size_t row,
                                    int head0, const float (&out)[MAX_TILES][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int h = g + 8 * half;
        if (head0 + h >= c.heads) {
            continue;
        }
        float total = s.total[h] + exp32(c.sink[head0 + h] - s.peak[h]);
        dk_bf16 *to = c.out + (row * c.heads + head0 + h) * c.dim + 2 * t;
#pragma unroll
        for (int i = 0; i < MAX_TILES; i++) {
            int col = (warp + 8 * i) * 8;
            if (col < c.dim) {
                to[col] = to_bf16(out[i][2 * half] / total);
                to[col + 1] = to_bf16(out[i][2 * half + 1] / total);
            }
        }
    }
}

static __global__ void __launch_bounds__(THREADS) attention(dk_attention_call c) {
    extern __shared__ __align__(16) unsigned char base[];
    int row = blockIdx.x, head0 = blockIdx.y * HEADS, ld = c.dim + 8;
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    shared_parts s = lay_out(base, ld);
    int slots = c.window + (seq.draft ? seq.num_rows : c.topk ? c.k : 0);
    int windows = seq.draft ? slots : c.window;
    float out[MAX_TILES][4] = {};
    for (int slot = threadIdx.x; slot < (slots + SLOTS - 1) / SLOTS * SLOTS; slot += THREADS) {
        s.record[slot] = slot < slots ? slot_record(c, seq, row, slot) : NULL;
    }
    begin_heads(c, s, row, head0, ld);
    __syncthreads();
    for (int begin = 0; begin < slots; begin += SLOTS) {
        if (fill_keys(c.dim, begin, windows, s, ld)) {
            take_scores(s, c.dim, ld, c.scale);
            __syncthreads();
            softmax(s, begin);
            __syncthreads();
            add_values(s, c.dim, ld, out);
        }
        __syncthreads();
    }
    finish_heads(c, s, row, head0, out);
}

void dk_attention(cudaStream_t s, const dk_attention_call *c) {
    size_t bytes = shared_bytes(c->dim, c->most_slots);
    cudaFuncSetAttribute(attention, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    attention<<<dim3(c->step.num_rows, (c->heads + HEADS - 1) / HEADS), THREADS, bytes, s>>>(*c);
}
