/* The draw of tokens: sample/row.h on the card, with the same token for the same logits. Everything
 * that decides is float32 arithmetic rounded step by step (nothing is fused) or integers, so the
 * order of sums is free; docs/sampling.md states the rules, src/sample/ is what this must equal
 * (tests/engine/test_draws.c compares).
 *
 * A row is drawn by a cluster of 8 blocks, each with an eighth of the transformed row in its shared
 * memory; what one block finds out, the others read there. Bound by instructions: a pass over
 * 129,280 weights takes some 5 us. */
#include <cooperative_groups.h>

#include "ops/cuda/card/queue.h"

namespace cg = cooperative_groups;

enum {
    BLOCKS = 8,
    THREADS = 512,
    WARPS = THREADS / 32,
    BINS = 2048,
    SLICE = BINS / BLOCKS, /* bins that one block adds up for all */
    ALL = 0xffffffff,
};

/* ---- arithmetic (sample/arithmetic.h) --------------------------------------------------------*/

static __device__ __forceinline__ float exp2_fraction(float f) {
    float g = 0x1.c946d2p-14f;
    g = __fadd_rn(__fmul_rn(g, f), -0x1.4e2aeap-10f);
    g = __fadd_rn(__fmul_rn(g, f), 0x1.39e3fcp-7f);
    g = __fadd_rn(__fmul_rn(g, f), -0x1.c6948ep-5f);
    g = __fadd_rn(__fmul_rn(g, f), 0x1.ebfacp-3f);
    g = __fadd_rn(__fmul_rn(g, f), -0x1.62e42cp-1f);
    return __fadd_rn(__fmul_rn(g, f), 1.0f);
}

static __device__ __forceinline__ float octaves_to_46(float y) {
    uint32_t bits = __float_as_uint(y), limit = 0x42380000; /* 46.0f */
    return __uint_as_float(bits < limit ? bits : limit);
}

/* floor(2^46 * 2^-y), 0 from y = 46 on. */
static __device__ __forceinline__ uint64_t weight_of(float y) {
    float near = octaves_to_46(y);
    int32_t n = (int32_t)near;
    uint32_t bits = __float_as_uint(exp2_fraction(__fsub_rn(near, (float)n)));
    uint64_t mantissa = (bits & 0x7fffff) | 0x800000;
    uint32_t left = (bits >> 23) - (127 + 23 - 46);
    return n >= 46 ? 0 : mantissa << left >> (uint32_t)n;
}

/* Larger for larger floats; -0 and +0 are one value. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t b = __float_as_uint(__fadd_rn(x, 0.0f));
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

static __device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffff : ~key);
}

struct words4 {
    uint32_t w[4];
};

/* Philox4x32-10. */
static __device__ words4 random_words(uint64_t seed, uint64_t position, uint32_t kind,
                                      uint32_t index) {
    uint32_t x0 = (uint32_t)position, x1 = (uint32_t)(position >> 32), x2 = kind, x3 = index;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t a_high = __umulhi(0xD2511F53u, x0), a_low = 0xD2511F53u * x0;
        uint32_t b_high = __umulhi(0xCD9E8D57u, x2), b_low = 0xCD9E8D57u * x2;
        x0 = b_high ^ x1 ^ k0;
        x1 = b_low;
        x2 = a_high ^ x3 ^ k1;
        x3 = a_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{x0, x1, x2, x3}};
}

enum { KIND_TARGET = 0, KIND_COUPLED = 4 };

/* -ln((2 word + 1) / 2^33) in units of 2^-56. */
static __device__ uint64_t noise_of(uint32_t word) {
    uint64_t t = (uint64_t)word * 2 + 1;
    int k = __clzll((long long)t) - 31;
    int64_t z = (int64_t)(t << k);
    if (z < 6074001000ll) {
        z = z * 2;
        k = k + 1;
    }
    float f = __fmul_rn((float)(z - (1ll << 33)), 0x1p-33f);
    float q = 0x1.66456ep-4f;
    q = __fadd_rn(__fmul_rn(q, f), -0x1.2562c2p-3f);
    q = __fadd_rn(__fmul_rn(q, f), 0x1.3198b6p-3f);
    q = __fadd_rn(__fmul_rn(q, f), -0x1.535278p-3f);
    q = __fadd_rn(__fmul_rn(q, f), 0x1.98d016p-3f);
    q = __fadd_rn(__fmul_rn(q, f), -0x1.0004c4p-2f);
    q = __fadd_rn(__fmul_rn(q, f), 0x1.5556fcp-2f);
    q = __fadd_rn(__fmul_rn(q, f), -0x1.fffffap-2f);
    q = __fadd_rn(__fmul_rn(q, f), 1.0f);
    float fq = __fmul_rn(f, q), kl = __fmul_rn((float)k, 0x1.62e43p-1f);
    return (uint64_t)(int64_t)__fmul_rn(__fsub_rn(kl, fq), 0x1p56f);
}

struct racer {
    uint64_t noise, weight;
    int32_t id;
};

static __device__ bool beats(const racer &a, const racer &b) {
    uint64_t left_high = __umul64hi(a.noise, b.weight), left_low = a.noise * b.weight;
    uint64_t right_high = __umul64hi(b.noise, a.weight), right_low = b.noise * a.weight;
    if (left_high != right_high) {
        return left_high < right_high;
    }
    return left_low < right_low || (left_low == right_low && a.id < b.id);
}

static __device__ float race_bound(const racer &r) {
    double ratio =
        __ddiv_rn((double)r.noise * 0x1p-56, (double)r.weight * 0x1p-46);
    return (float)(ratio * 0x1p31 * (1 + 0x1p-16));
}

/* ---- what blocks tell each other -------------------------------------------------------------*/

struct cut {
    float value;
    int32_t last_id;
    uint64_t floor;
};

/* Written by its block, read by all after a cluster-wide barrier. Every phase has fields of its
 * own, or a barrier between reading and writing again. */
struct mailbox {
    uint64_t best, raw_best; /* key, then inverted id: the largest is the best */
    uint32_t bad;
    uint64_t sum;
    uint64_t kept;
    uint32_t slice_count; /* of the slice of bins that this block adds up */
    uint64_t slice_sum;
    uint32_t digit; /* found by the block that has the slice */
    uint64_t passed_count, passed_sum, ties;
    racer first;
    int32_t id; /* located; -1: elsewhere */
    int32_t listed;
    int32_t fed_known;
};

struct shared_parts {
    mailbox mail;
    uint64_t warp[WARPS];
    racer warp_racer[WARPS];
    uint32_t counts[BINS], low[BINS], middle[BINS], high[BINS]; /* weights in pieces of 16 bits */
    uint32_t slice_counts[SLICE];
    uint64_t slice_sums[SLICE];
};

struct context {
    cg::cluster_group cluster;
    unsigned rank;
    shared_parts *s;
    float *row;      /* ids begin .. end */
    int part;        /* ids of a block */
    int begin, end;
    int warp, lane;
};

static __device__ const mailbox *mail_of(context &x, int rank) {
    return &x.cluster.map_shared_rank(x.s, rank)->mail;
}

template <typename T, typename F> static __device__ T block_reduce(context &x, T v, F join) {
    for (int step = 16; step > 0; step /= 2) {
        v = join(v, __shfl_xor_sync(ALL, v, step));
    }
    __syncthreads();
    if (x.lane == 0) {
        x.s->warp[x.warp] = v;
    }
    __syncthreads();
    T all = x.s->warp[0];
    for (int w = 1; w < WARPS; w++) {
        all = join(all, (T)x.s->warp[w]);
    }
    return all;
}

static __device__ uint64_t block_sum(context &x, uint64_t v) {
    return block_reduce(x, v, [](uint64_t a, uint64_t b) { return a + b; });
}

static __device__ uint64_t block_max(context &x, uint64_t v) {
    return block_reduce(x, v, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
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

static __device__ uint64_t rank_of(float x, int id) {
    return (uint64_t)key_of(x) << 32 | (uint32_t)~id;
}

/* Reads the row, looks for what must not be in it, and leaves it transformed in shared memory. */
static __device__ void open_row(context &x, const di_draw_call &c, const di_draw &d,
                                const float *logits) {
    const uint32_t *mask = d.mask >= 0 ? c.masks + (size_t)d.mask * c.mask_words : NULL;
    uint64_t raw_best = 0;
    bool bad = false;
    for (int i = x.begin + threadIdx.x; i < x.end; i += THREADS) {
        float v = logits[i];
        uint32_t bits = __float_as_uint(v);
        bad = bad || (bits & 0x7fffffff) > 0x7f800000 || bits == 0x7f800000;
        uint64_t place = rank_of(v, i);
        raw_best = place > raw_best ? place : raw_best;
        x.row[i - x.begin] = !mask || mask[i / 32] >> (i % 32) & 1 ? v : -INFINITY;
    }
    if (threadIdx.x == 0) {
        x.s->mail.fed_known = 0;
        x.s->mail.listed = 0;
    }
    bad = __syncthreads_or(bad);
    for (int i = threadIdx.x; i < d.num_bias; i += THREADS) {
        di_draw_pair p = c.pairs[d.first_bias + i];
        if (p.id >= x.begin && p.id < x.end && x.row[p.id - x.begin] > -INFINITY) {
            float *v = &x.row[p.id - x.begin];
            *v = within_float(__fadd_rn(*v, __uint_as_float(p.value)));
        }
    }
    __syncthreads();
    int fed = d.penalise && d.fed >= 0 ? c.before[d.fed] : -1;
    for (int i = threadIdx.x; d.penalise && i < d.num_counts; i += THREADS) {
        di_draw_pair p = c.pairs[d.first_count + i];
        if (p.id >= x.begin && p.id < x.end) {
            uint32_t count = (p.value & ~DI_DRAW_IN_PROMPT) + (p.id == fed);
            x.row[p.id - x.begin] = penalised(d, x.row[p.id - x.begin], count);
            if (p.id == fed) {
                x.s->mail.fed_known = 1;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && fed >= x.begin && fed < x.end && !x.s->mail.fed_known) {
        x.row[fed - x.begin] = penalised(d, x.row[fed - x.begin], 1);
    }
    __syncthreads();
    uint64_t best = 0;
    for (int i = x.begin + threadIdx.x; i < x.end; i += THREADS) {
        uint64_t place = rank_of(x.row[i - x.begin], i);
        best = place > best ? place : best;
    }
    best = block_max(x, best);
    raw_best = block_max(x, raw_best);
    if (threadIdx.x == 0) {
        x.s->mail.best = best;
        x.s->mail.raw_best = raw_best;
        x.s->mail.bad = bad;
    }
}

/* A row at a temperature. */
struct shaped {
    float best, c;
    int32_t best_id;
    cut end;
    uint64_t kept_sum;
};

static __device__ uint64_t weight_at(const shaped &r, float x) {
    return weight_of(__fmul_rn(__fsub_rn(r.best, x), r.c));
}

static __device__ bool cut_keeps(const cut &c, float x, int id, uint64_t weight) {
    return (x > c.value || (x == c.value && id <= c.last_id)) && weight >= c.floor;
}

static __device__ uint64_t kept_weight(const shaped &r, float x, int id) {
    uint64_t w = weight_at(r, x);
    return cut_keeps(r.end, x, id, w) ? w : 0;
}

/* Of all blocks; the barrier makes mail.sum fit for the next one. */
static __device__ uint64_t cluster_sum(context &x, uint64_t v) {
    v = block_sum(x, v);
    if (threadIdx.x == 0) {
        x.s->mail.sum = v;
    }
    x.cluster.sync();
    uint64_t sum = 0;
    for (int b = 0; b < BLOCKS; b++) {
        sum += mail_of(x, b)->sum;
    }
    x.cluster.sync();
    return sum;
}

static __device__ uint64_t sum_of_weights(context &x, const shaped &r) {
    uint64_t sum = 0;
    for (int i = threadIdx.x; i < x.end - x.begin; i += THREADS) {
        sum += weight_at(r, x.row[i]);
    }
    return cluster_sum(x, sum);
}

/* ---- where top_k and top_p end (sample/select.c) ---------------------------------------------*/

struct end_search {
    uint64_t k, mass, count_before, sum_before;
};

static __device__ bool ends_in(const end_search &e, uint64_t count, uint64_t sum) {
    return e.count_before + count >= e.k || e.sum_before + sum >= e.mass;
}

static __device__ uint64_t ties_kept(const end_search &e, uint64_t ties, uint64_t weight) {
    uint64_t kept = e.k - e.count_before < ties ? e.k - e.count_before : ties;
    uint64_t left = e.mass - e.sum_before;
    if (weight > 0) {
        uint64_t fit = left / weight + (left % weight != 0);
        kept = fit < kept ? fit : kept;
    }
    return kept;
}

/* Histograms of counts and weights of this block's keys that begin with `prefix`. */
static __device__ void fill_bins(context &x, const shaped &r, uint32_t prefix, uint32_t mask,
                                 int shift) {
    for (int b = threadIdx.x; b < BINS; b += THREADS) {
        x.s->counts[b] = x.s->low[b] = x.s->middle[b] = x.s->high[b] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < x.end - x.begin; i += THREADS) {
        float v = x.row[i];
        uint32_t key = key_of(v);
        if ((key & mask) == prefix && v > -INFINITY) {
            int b = key >> shift & (BINS - 1);
            uint64_t w = weight_at(r, v);
            atomicAdd(&x.s->counts[b], 1u);
            if (w > 0) {
                atomicAdd(&x.s->low[b], (uint32_t)w & 0xffff);
                atomicAdd(&x.s->middle[b], (uint32_t)(w >> 16) & 0xffff);
                atomicAdd(&x.s->high[b], (uint32_t)(w >> 32));
            }
        }
    }
}

/* This block's slice of the bins, added up over all blocks. */
static __device__ void add_slice(context &x) {
    uint64_t count = 0, sum = 0;
    if (threadIdx.x < SLICE) {
        int b = x.rank * SLICE + threadIdx.x;
        for (int other = 0; other < BLOCKS; other++) {
            const shared_parts *s = x.cluster.map_shared_rank(x.s, other);
            count += s->counts[b];
            sum += s->low[b] + ((uint64_t)s->middle[b] << 16) + ((uint64_t)s->high[b] << 32);
        }
        x.s->slice_counts[threadIdx.x] = (uint32_t)count;
        x.s->slice_sums[threadIdx.x] = sum;
    }
    count = block_sum(x, count);
    sum = block_sum(x, sum);
    if (threadIdx.x == 0) {
        x.s->mail.slice_count = (uint32_t)count;
        x.s->mail.slice_sum = sum;
    }
}

/* The bin of the block's slice in which the prefix ends; by one thread, for it is rare and short. */
static __device__ void walk_slice(context &x, end_search e) {
    int b = SLICE - 1;
    while (!ends_in(e, x.s->slice_counts[b], x.s->slice_sums[b]) && b > 0) {
        e.count_before += x.s->slice_counts[b];
        e.sum_before += x.s->slice_sums[b];
        b--;
    }
    x.s->mail.digit = (uint32_t)(x.rank * SLICE + b);
    x.s->mail.passed_count = e.count_before;
    x.s->mail.passed_sum = e.sum_before;
    x.s->mail.ties = x.s->slice_counts[b];
    x.s->mail.kept = x.s->slice_sums[b];
}

/* The first id, ascending, at which the inclusive sum over ids of weight(i) exceeds `left`, which
 * is below the sum of all. A warp adds up a run of the block's ids; the one whose run it lies in
 * looks closer. */
template <typename F>
static __device__ int32_t locate(context &x, uint64_t left, F weight) {
    int n = x.end - x.begin, run = (x.part / WARPS + 31) / 32 * 32;
    int from = x.warp * run, to = from + run < n ? from + run : n;
    uint64_t mine = 0;
    for (int i = from + x.lane; i < to; i += 32) {
        mine += weight(i);
    }
    for (int step = 16; step > 0; step /= 2) {
        mine += __shfl_xor_sync(ALL, mine, step);
    }
    __syncthreads();
    if (x.lane == 0) {
        x.s->warp[x.warp] = mine;
    }
    if (threadIdx.x == 0) {
        x.s->mail.id = -1;
    }
    __syncthreads();
    uint64_t all = 0, before_warp = 0;
    for (int w = 0; w < WARPS; w++) {
        before_warp += w < x.warp ? x.s->warp[w] : 0;
        all += x.s->warp[w];
    }
    if (threadIdx.x == 0) {
        x.s->mail.sum = all;
    }
    x.cluster.sync();
    uint64_t before = 0;
    for (int b = 0; b < (int)x.rank; b++) {
        before += mail_of(x, b)->sum;
    }
    bool here = before <= left && left < before + all;
    left -= before + before_warp; /* wraps where it is not here */
    if (here && left < mine) {
        for (int i = from + x.lane; i - x.lane < to; i += 32) {
            uint64_t w = i < to ? weight(i) : 0, sum = w;
            for (int step = 1; step < 32; step *= 2) {
                uint64_t v = __shfl_up_sync(ALL, sum, step);
                sum += x.lane >= step ? v : 0;
            }
            unsigned reached = __ballot_sync(ALL, sum > left);
            if (reached) {
                if (x.lane == __ffs((int)reached) - 1) {
                    x.s->mail.id = x.begin + i;
                }
                break;
            }
            left -= __shfl_sync(ALL, sum, 31);
        }
    }
    x.cluster.sync();
    int32_t id = -1;
    for (int b = 0; b < BLOCKS; b++) {
        int32_t there = mail_of(x, b)->id;
        id = there >= 0 ? there : id;
    }
    x.cluster.sync();
    return id;
}

/* False: the prefix goes on to the row's end. */
static __device__ bool find_end(context &x, const shaped &r, end_search e, cut *end) {
    const int shifts[3] = {21, 10, 0};
    uint32_t prefix = 0, mask = 0;
    uint64_t ties = 0, tie_sum = 0;
    for (int pass = 0; pass < 3; pass++) {
        /* the last digit has 10 bits: of its 11 here the upper one is settled */
        fill_bins(x, r, prefix, mask, shifts[pass]);
        x.cluster.sync();
        add_slice(x);
        x.cluster.sync();
        int owner = BLOCKS - 1;
        for (; owner >= 0; owner--) {
            const mailbox *m = mail_of(x, owner);
            if (ends_in(e, m->slice_count, m->slice_sum)) {
                break;
            }
            e.count_before += m->slice_count;
            e.sum_before += m->slice_sum;
        }
        if (owner < 0) {
            x.cluster.sync();
            return false;
        }
        if ((int)x.rank == owner && threadIdx.x == 0) {
            walk_slice(x, e);
        }
        x.cluster.sync();
        const mailbox *m = mail_of(x, owner);
        e.count_before = m->passed_count;
        e.sum_before = m->passed_sum;
        ties = m->ties;
        tie_sum = m->kept;
        prefix |= m->digit << shifts[pass];
        mask |= (uint32_t)(BINS - 1) << shifts[pass];
        x.cluster.sync();
    }
    uint64_t kept = ties_kept(e, ties, tie_sum / ties);
    end->value = value_of(prefix);
    end->last_id = locate(x, kept - 1, [&](int i) {
        return (uint64_t)(x.row[i] > -INFINITY && key_of(x.row[i]) == prefix);
    });
    return true;
}

/* floor(sum * fraction), the fraction being mantissa * 2^-shift. */
static __device__ uint64_t exact_share(uint64_t sum, uint64_t mantissa, int shift) {
    uint64_t high = __umul64hi(sum, mantissa), low = sum * mantissa;
    if (shift > 127) {
        return 0;
    }
    if (shift >= 64) {
        return high >> (shift - 64);
    }
    return high << (64 - shift) | low >> shift; /* shift is 53 or more */
}

/* Sets the cut and, if anybody needs it, the sum of what is kept. */
static __device__ void shape(context &x, const di_draw &d, int vocab_size, bool need_sum,
                             shaped *r) {
    end_search e = {~0ull, ~0ull, 0, 0};
    bool by_count = d.top_k > 0 && d.top_k < vocab_size, by_mass = d.p_mantissa != 0;
    uint64_t sum = by_mass ? sum_of_weights(x, *r) : 0;
    r->end = {-INFINITY, INT32_MAX, d.floor};
    if (by_count) {
        e.k = (uint64_t)d.top_k;
    }
    if (by_mass) {
        e.mass = exact_share(sum, d.p_mantissa, d.p_shift) + 1;
    }
    if (by_count || (by_mass && e.mass <= sum)) {
        find_end(x, *r, e, &r->end);
    }
    r->kept_sum = 0;
    if (need_sum) {
        uint64_t kept = 0;
        for (int i = threadIdx.x; i < x.end - x.begin; i += THREADS) {
            kept += kept_weight(*r, x.row[i], x.begin + i);
        }
        r->kept_sum = cluster_sum(x, kept);
    }
}

/* ---- the two draws (sample/row.c) ------------------------------------------------------------*/

static __device__ int32_t draw_by_sum(context &x, const di_draw &d, const shaped &r) {
    words4 words = random_words(d.seed, d.position, KIND_TARGET, 0);
    uint64_t u = (uint64_t)words.w[0] << 32 | words.w[1];
    uint64_t left = __umul64hi(u, r.kept_sum);
    return locate(x, left, [&](int i) { return kept_weight(r, x.row[i], x.begin + i); });
}

static __device__ racer better(const racer &a, const racer &b) {
    return beats(a, b) ? a : b;
}

static __device__ racer shuffled(const racer &r, int step) {
    return {__shfl_xor_sync(ALL, r.noise, step), __shfl_xor_sync(ALL, r.weight, step),
            __shfl_xor_sync(ALL, r.id, step)};
}

static __device__ void race_four(context &x, const di_draw &d, const shaped &r, int first,
                                 racer *best, float *bound) {
    float share[4], top = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int at = first - x.begin + j;
        float v = first + j < x.end ? x.row[at] : -INFINITY;
        float near = octaves_to_46(__fmul_rn(__fsub_rn(r.best, v), r.c));
        int32_t n = (int32_t)near;
        uint32_t g = __float_as_uint(exp2_fraction(__fsub_rn(near, (float)n)));
        share[j] = __uint_as_float(g - ((uint32_t)n << 23)); /* 2^-y */
        top = fmaxf(top, share[j]);
    }
    if (*bound * (top + 0x1p-46f) < 0.2499f) {
        return; /* even the smallest noise there is would be too much */
    }
    words4 words = random_words(d.seed, d.position, KIND_COUPLED, (uint32_t)first / 4);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float gap = (float)(int32_t)(~words.w[j] >> 1);
        int id = first + j;
        if (id < x.end && gap <= *bound * share[j]) {
            uint64_t w = kept_weight(r, x.row[id - x.begin], id);
            if (w > 0) {
                *best = better({noise_of(words.w[j]), w, id}, *best);
                *bound = race_bound(*best);
            }
        }
    }
}

static __device__ int32_t draw_by_race(context &x, const di_draw &d, const shaped &r) {
    words4 words = random_words(d.seed, d.position, KIND_COUPLED, (uint32_t)r.best_id / 4);
    racer best = {noise_of(words.w[r.best_id % 4]), 1ull << 46, r.best_id};
    float bound = race_bound(best);
    for (int first = x.begin + threadIdx.x * 4; first < x.end; first += THREADS * 4) {
        race_four(x, d, r, first, &best, &bound);
    }
    for (int step = 16; step > 0; step /= 2) {
        best = better(shuffled(best, step), best);
    }
    __syncthreads();
    if (x.lane == 0) {
        x.s->warp_racer[x.warp] = best;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) {
            best = better(x.s->warp_racer[w], best);
        }
        x.s->mail.first = best;
    }
    x.cluster.sync();
    best = mail_of(x, 0)->first;
    for (int b = 1; b < BLOCKS; b++) {
        best = better(mail_of(x, b)->first, best);
    }
    x.cluster.sync();
    return best.id;
}

/* ---- log-probabilities (sample/logprobs.c) ---------------------------------------------------*/

/* The num_top likeliest tokens of the row that shared memory holds, unless `end` cuts them off. */
static __device__ void list_top(context &x, const di_draw &d, const shaped &r, di_draw_pair *top) {
    cut most = {-INFINITY, INT32_MAX, 0};
    end_search e = {(uint64_t)d.num_top, ~0ull, 0, 0};
    find_end(x, r, e, &most);
    int32_t *listed = &x.cluster.map_shared_rank(x.s, 0)->mail.listed;
    for (int i = threadIdx.x; i < x.end - x.begin; i += THREADS) {
        float v = x.row[i];
        int id = x.begin + i;
        if (v > -INFINITY && cut_keeps(most, v, id, 1) &&
            (!d.processed || cut_keeps(r.end, v, id, weight_at(r, v)))) {
            int at = atomicAdd(listed, 1);
            top[at] = {id, __float_as_uint(v)};
        }
    }
}

/* Puts the model's own row back, at temperature 1. */
static __device__ void open_raw(context &x, const float *logits, uint64_t raw_best, shaped *r) {
    __syncthreads();
    for (int i = x.begin + threadIdx.x; i < x.end; i += THREADS) {
        x.row[i - x.begin] = logits[i];
    }
    __syncthreads();
    r->best = value_of((uint32_t)(raw_best >> 32));
    r->c = (float)0x1.71547652b82fep+0; /* log2(e) */
    r->end = {-INFINITY, INT32_MAX, 1};
    r->kept_sum = sum_of_weights(x, *r);
}

/* ---- the row, all of it ----------------------------------------------------------------------*/

static __device__ int32_t draw_token(context &x, const di_draw &d, int vocab_size, shaped *r) {
    bool sum = d.processed || (!d.race && d.forced < 0);
    if (!d.greedy && (d.forced < 0 || d.processed)) {
        r->c = d.octaves;
        shape(x, d, vocab_size, sum, r);
    }
    if (d.forced >= 0) {
        return d.forced;
    }
    return d.greedy ? r->best_id : d.race ? draw_by_race(x, d, *r) : draw_by_sum(x, d, *r);
}

static __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    draw(di_draw_call c, int part) {
    extern __shared__ __align__(16) unsigned char base[];
    const di_draw d = c.rows[blockIdx.y];
    const float *logits = c.logits + (size_t)d.logits * c.vocab_size;
    context x = {cg::this_cluster(), 0, (shared_parts *)base,
                 (float *)(base + sizeof(shared_parts)), part};
    x.rank = x.cluster.block_rank();
    x.begin = min((int)x.rank * part, c.vocab_size);
    x.end = min(x.begin + part, c.vocab_size);
    x.warp = threadIdx.x / 32;
    x.lane = threadIdx.x % 32;
    open_row(x, c, d, logits);
    x.cluster.sync();
    uint64_t best = 0, raw_best = 0;
    bool bad = false;
    for (int b = 0; b < BLOCKS; b++) {
        const mailbox *m = mail_of(x, b);
        best = m->best > best ? m->best : best;
        raw_best = m->raw_best > raw_best ? m->raw_best : raw_best;
        bad = bad || m->bad;
    }
    shaped r = {value_of((uint32_t)(best >> 32)), 0, (int32_t)~(uint32_t)best};
    r.end = {-INFINITY, INT32_MAX, 1};
    di_drawn out = {};
    out.status = bad                                                  ? DI_DRAW_BAD_LOGITS
                 : r.best == -INFINITY || raw_best >> 32 <= 0x007fffffu ? DI_DRAW_NO_TOKEN
                                                                      : DI_DRAW_OK;
    if (out.status == DI_DRAW_OK) {
        out.token = draw_token(x, d, c.vocab_size, &r);
    }
    if (out.status == DI_DRAW_OK && d.logprobs) {
        if (!d.processed) {
            open_raw(x, logits, raw_best, &r);
        }
        if (d.num_top > 0) {
            list_top(x, d, r, c.top + (size_t)blockIdx.y * c.max_top);
        }
        x.cluster.sync();
        out.chosen = x.cluster.map_shared_rank(x.row, out.token / part)[out.token % part];
        out.kept = !d.processed || kept_weight(r, out.chosen, out.token) > 0;
        out.best = r.best;
        out.sum = r.kept_sum;
        out.num_top = mail_of(x, 0)->listed;
    }
    if (x.rank == 0 && threadIdx.x == 0) {
        c.tokens[blockIdx.y] = out.token;
        c.drawn[blockIdx.y] = out;
    }
    x.cluster.sync(); /* nobody leaves while others read its memory */
}

cudaError_t dk_draw(cudaStream_t s, const di_draw_call *c) {
    int part = (c->vocab_size + BLOCKS - 1) / BLOCKS;
    part = (part + 127) / 128 * 128; /* whole words of masks, whole groups of random words */
    size_t bytes = sizeof(shared_parts) + (size_t)part * sizeof(float);
    cudaError_t result =
        cudaFuncSetAttribute(draw, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result == cudaSuccess) {
        draw<<<dim3(BLOCKS, (unsigned)c->n), THREADS, bytes, s>>>(*c, part);
        result = cudaGetLastError();
    }
    return result;
}
