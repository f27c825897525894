/* The draw of tokens: sample/row.h on the card, with the same token for the same logits, f32 [rows,
 * vocabulary]. Everything that decides is float32 arithmetic rounded step by step (nothing is
 * fused) or integers, so the order of sums is free; docs/sampling.md states the rules, src/sample/
 * is what this must equal (tests/engine/test_draws.c compares).
 *
 * A row is drawn by a block, or by a cluster of blocks if it is long. Each has its part of the
 * transformed row in its shared memory; what one block finds out, it pushes into the others'. Rows
 * without filters and log-probabilities, most of them, are read once for the best token and run
 * through once more for the race; a draw of few rows is bound by fetching instructions, so that
 * their way through the kernel is short. Many greedy rows are bound by reading their logits: one of
 * 129,280 tokens takes 3.4 us, 256 take 52.9, 55 % of the bandwidth; at temperature 1 12 and 157
 * us (docs/cuda.md, with filters too). */
#include "ops/cuda/card/draw_row.cuh"

enum { ONE_BLOCK = 8192 }; /* tokens that one block draws from */

/* ---- weights ---------------------------------------------------------------------------------*/

/* Where filters end, and the least weight that is kept. */
struct cut {
    float value;
    int32_t last_id;
    uint64_t floor;
};

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
    meet(x);
    uint64_t sum = 0;
#pragma unroll 1
    for (int b = 0; b < x.blocks; b++) {
        sum += mail_of(x, b)->sum;
    }
    meet(x);
    return sum;
}

static __device__ uint64_t sum_of_weights(context &x, const shaped &r) {
    uint64_t sum = 0;
#pragma unroll 1
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
#pragma unroll 1
    for (int b = threadIdx.x; b < BINS; b += THREADS) {
        x.s->counts[b] = x.s->low[b] = x.s->middle[b] = x.s->high[b] = 0;
    }
    __syncthreads();
#pragma unroll 1
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

/* Bins that a block adds up for all, the upper ones the last block's; and of those the thread's
 * own, the upper ones the first thread's. */
struct slice {
    int first, count;
    uint64_t tokens, sum;
};

static __device__ void add_bin(context &x, int b, uint64_t *tokens, uint64_t *sum) {
    *tokens = *sum = 0;
#pragma unroll 1
    for (int other = 0; other < x.blocks; other++) {
        const shared_parts *s = x.cluster.map_shared_rank(x.s, other);
        *tokens += s->counts[b];
        *sum += s->low[b] + ((uint64_t)s->middle[b] << 16) + ((uint64_t)s->high[b] << 32);
    }
}

static __device__ slice add_slice(context &x) {
    int bins = BINS / x.blocks, each = max(bins / THREADS, 1), mine = (int)threadIdx.x * each;
    slice s = {(x.rank + 1) * bins - 1 - mine, mine < bins ? each : 0, 0, 0};
#pragma unroll 1
    for (int k = 0; k < s.count; k++) {
        uint64_t tokens, sum;
        add_bin(x, s.first - k, &tokens, &sum);
        s.tokens += tokens;
        s.sum += sum;
    }
    uint64_t tokens = block_sum(x, s.tokens), sum = block_sum(x, s.sum);
    if (threadIdx.x == 0) {
        x.s->mail.slice_count = (uint32_t)tokens;
        x.s->mail.slice_sum = sum;
    }
    return s;
}

/* The bin of the block's slice in which the prefix ends: found by the thread that has it. */
static __device__ void walk_slice(context &x, end_search e, const slice &mine) {
    uint64_t tokens = mine.tokens, sum = mine.sum;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
        uint64_t t = __shfl_up_sync(ALL, tokens, step), s = __shfl_up_sync(ALL, sum, step);
        tokens += x.lane >= step ? t : 0;
        sum += x.lane >= step ? s : 0;
    }
    __syncthreads();
    if (x.lane == 31) {
        x.s->warp[x.warp] = tokens;
        x.s->warp_more[x.warp] = sum;
    }
    __syncthreads();
    e.count_before += tokens - mine.tokens;
    e.sum_before += sum - mine.sum;
#pragma unroll 1
    for (int w = 0; w < x.warp; w++) {
        e.count_before += x.s->warp[w];
        e.sum_before += x.s->warp_more[w];
    }
    if (mine.count == 0 || ends_in(e, 0, 0) || !ends_in(e, mine.tokens, mine.sum)) {
        return;
    }
    for (int b = mine.first;; b--) {
        add_bin(x, b, &tokens, &sum);
        if (ends_in(e, tokens, sum)) {
            x.s->mail.digit = (uint32_t)b;
            x.s->mail.passed_count = e.count_before;
            x.s->mail.passed_sum = e.sum_before;
            x.s->mail.ties = tokens;
            x.s->mail.kept = sum;
            return;
        }
        e.count_before += tokens;
        e.sum_before += sum;
    }
}

/* The first id, ascending, at which the inclusive sum over ids of weight(i) exceeds `left`, which
 * is below the sum of all. A warp adds up a run of the block's ids; the one whose run it lies in
 * looks closer. */
template <typename F> static __device__ int32_t locate(context &x, uint64_t left, F weight) {
    int n = x.end - x.begin, run = (x.part / WARPS + 31) / 32 * 32;
    int from = x.warp * run, to = from + run < n ? from + run : n;
    uint64_t mine = 0;
#pragma unroll 1
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
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
        before_warp += w < x.warp ? x.s->warp[w] : 0;
        all += x.s->warp[w];
    }
    if (threadIdx.x == 0) {
        x.s->mail.sum = all;
    }
    meet(x);
    uint64_t before = 0;
#pragma unroll 1
    for (int b = 0; b < x.rank; b++) {
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
    meet(x);
    int32_t id = -1;
#pragma unroll 1
    for (int b = 0; b < x.blocks; b++) {
        int32_t there = mail_of(x, b)->id;
        id = there >= 0 ? there : id;
    }
    meet(x);
    return id;
}

/* False: the prefix goes on to the row's end. */
static __device__ bool find_end(context &x, const shaped &r, end_search e, cut *end) {
    uint32_t prefix = 0, mask = 0;
    uint64_t ties = 0, tie_sum = 0;
#pragma unroll 1
    for (int pass = 0; pass < 3; pass++) {
        /* the last digit has 10 bits: of its 11 here the upper one is settled */
        int shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
        fill_bins(x, r, prefix, mask, shift);
        meet(x);
        slice mine = add_slice(x);
        meet(x);
        int owner = x.blocks - 1;
        for (; owner >= 0; owner--) {
            const mailbox *m = mail_of(x, owner);
            if (ends_in(e, m->slice_count, m->slice_sum)) {
                break;
            }
            e.count_before += m->slice_count;
            e.sum_before += m->slice_sum;
        }
        if (owner < 0) {
            meet(x);
            return false;
        }
        if (x.rank == owner) {
            walk_slice(x, e, mine);
        }
        meet(x);
        const mailbox *m = mail_of(x, owner);
        e.count_before = m->passed_count;
        e.sum_before = m->passed_sum;
        ties = m->ties;
        tie_sum = m->kept;
        prefix |= m->digit << shift;
        mask |= (uint32_t)(BINS - 1) << shift;
        meet(x);
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
#pragma unroll 1
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

/* The winner of a warp's, in lane 0. Ratios that are about equal are compared exactly. */
static __device__ racer winner_of_warp(racer mine) {
    uint32_t bits = __float_as_uint(ratio_of(mine)); /* positive: their order is the bits' */
    uint32_t least = __reduce_min_sync(ALL, bits);
    float near = __uint_as_float(least) * (1 + 0x1p-17f);
    unsigned close = __ballot_sync(ALL, __uint_as_float(bits) <= near);
    close = near < INFINITY ? close : 1; /* else nobody has one */
    racer best = nobody();
#pragma unroll 1
    for (; close; close &= close - 1) {
        int lane = __ffs((int)close) - 1;
        racer other = {__shfl_sync(ALL, mine.noise, lane), __shfl_sync(ALL, mine.mark, lane)};
        best = beats(other, best) ? other : best;
    }
    return best;
}

static __device__ __forceinline__ float of_four(const float4 &v, int j) {
    float low = j & 1 ? v.y : v.x, high = j & 1 ? v.w : v.z;
    return j & 2 ? high : low;
}

/* 2^-y from above, but for an error that race_bound() has room for. */
static __device__ __forceinline__ float share_of(const shaped &r, float v) {
    float y = __fmul_rn(__fsub_rn(v, r.best), r.c), share; /* upside down */
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(y));
    return share;
}

/* The thread's winner among its groups of four tokens. At first every thread looks at the best
 * token, wherever that is: what the others must beat. Then a warp's threads tell each other. */
static __device__ racer race_thread(context &x, const di_draw &d, const shaped &r) {
    racer best = nobody();
    float bound = INFINITY;
    float4 v = {r.best, r.best, r.best, r.best};
    int at = x.warp * 128 - THREADS * 4, id = r.best_id & ~3;
    unsigned among = 1u << (r.best_id & 3);
#pragma unroll 1
    for (;;) {
        float4 share = {share_of(r, v.x), share_of(r, v.y), share_of(r, v.z), share_of(r, v.w)};
        float top = fmaxf(fmaxf(share.x, share.y), fmaxf(share.z, share.w));
        if (!(bound * (top + 0x1p-46f) < 0.2499f)) { /* else the least noise would be too much */
            words4 words = random_words(d.seed, d.position, KIND_COUPLED, (uint32_t)id / 4);
            uint4 w = {words.w[0], words.w[1], words.w[2], words.w[3]};
            unsigned left = (float)(int32_t)(~w.x >> 1) <= bound * share.x;
            left |= ((float)(int32_t)(~w.y >> 1) <= bound * share.y) << 1;
            left |= ((float)(int32_t)(~w.z >> 1) <= bound * share.z) << 2;
            left |= ((float)(int32_t)(~w.w >> 1) <= bound * share.w) << 3;
            left &= among;
#pragma unroll 1
            for (; left; left &= left - 1) {
                int j = __ffs((int)left) - 1;
                uint32_t low = j & 1 ? w.y : w.x, high = j & 1 ? w.w : w.z;
                uint64_t weight = kept_weight(r, of_four(v, j), id + j);
                racer other = racer_of(noise_of(j & 2 ? high : low), weight, id + j);
                if (weight > 0 && beats(other, best)) {
                    best = other;
                    bound = race_bound(ratio_of(best));
                }
            }
        }
        bound = __uint_as_float(__reduce_min_sync(ALL, __float_as_uint(bound)));
        best = at < 0 ? nobody() : best; /* whoever has the best token meets it again */
        at += THREADS * 4;
        if (x.begin + at >= x.end) {
            return best;
        }
        v = *(const float4 *)(x.row + at + x.lane * 4);
        id = x.begin + at + x.lane * 4;
        among = 15;
    }
}

/* In the first block's first warp; the others have no more to do for it, and learn nothing. */
static __device__ int32_t draw_by_race(context &x, const di_draw &d, const shaped &r) {
    racer best = race_thread(x, d, r);
#pragma unroll 1
    for (int level = 0;; level++) { /* of warps, of blocks */
        best = winner_of_warp(best);
        if (level == 0) {
            if (x.lane == 0) {
                x.s->warp_racer[x.warp] = best;
            }
            __syncthreads();
            if (x.warp > 0) {
                return -1;
            }
            best = x.lane < WARPS ? x.s->warp_racer[x.lane] : nobody();
        } else if (level == 1 && x.blocks > 1) {
            if (x.lane == 0) {
                push(x, x.s->winner, &x.s->winner_here, 0, best.noise, best.mark);
            }
            if (x.rank > 0) {
                return -1;
            }
            barrier_wait(shared_address(&x.s->winner_here), 0);
            best = nobody();
            if (x.lane < x.blocks) {
                best = {pushed_word(x.s->winner[x.lane], 0), pushed_word(x.s->winner[x.lane], 1)};
            }
        } else {
            return id_of(best);
        }
    }
}

/* ---- log-probabilities (sample/logprobs.c) ---------------------------------------------------*/

/* The num_top likeliest tokens of the row that shared memory holds, unless `end` cuts them off. */
static __device__ void list_top(context &x, const di_draw &d, const shaped &r, di_draw_pair *top) {
    cut most = {-INFINITY, INT32_MAX, 0};
    end_search e = {(uint64_t)d.num_top, ~0ull, 0, 0};
    find_end(x, r, e, &most);
    int32_t *listed = &x.cluster.map_shared_rank(x.s, 0)->mail.listed;
#pragma unroll 1
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
static __device__ void open_raw(context &x, const float *logits, shaped *r) {
    __syncthreads();
    bring_row(x, logits);
    uint64_t best = block_max(x, look_at_row(x, NULL));
    if (threadIdx.x == 0) {
        x.s->mail.raw_best = best;
    }
    meet(x);
    for (int b = 0; b < x.blocks; b++) {
        best = max(best, mail_of(x, b)->raw_best);
    }
    r->best = value_of((uint32_t)(best >> 32));
    r->c = (float)0x1.71547652b82fep+0; /* log2(e) */
    r->end = {-INFINITY, INT32_MAX, 1};
    r->kept_sum = sum_of_weights(x, *r);
}

/* ---- the row, all of it ----------------------------------------------------------------------*/

static __device__ bool filters(const di_draw &d, int vocab_size) {
    return (d.top_k > 0 && d.top_k < vocab_size) || d.p_mantissa != 0;
}

/* Log-probabilities: the rest of what a row may have to tell, by all threads of all blocks. */
static __device__ __noinline__ di_drawn score(context x, const di_draw_call &c, const di_draw &d,
                                              const float *logits, shaped r, int32_t token) {
    di_drawn out = {};
    if (threadIdx.x == 0) {
        x.s->mail.listed = 0;
        x.s->mail.id = token;
    }
    meet(x);
    out.token = mail_of(x, 0)->id; /* a race is only known there */
    if (!d.processed) {
        open_raw(x, logits, &r);
    }
    if (d.num_top > 0) {
        list_top(x, d, r, c.top + (size_t)blockIdx.y * c.max_top);
    }
    meet(x);
    out.chosen = x.cluster.map_shared_rank(x.row, out.token / x.part)[out.token % x.part];
    out.kept = !d.processed || kept_weight(r, out.chosen, out.token) > 0;
    out.best = r.best;
    out.sum = r.kept_sum;
    out.num_top = mail_of(x, 0)->listed;
    meet(x); /* nobody leaves while others read its memory */
    return out;
}

/* Grid: parts of a row (a cluster), rows. */
static __global__ void __launch_bounds__(THREADS, 2)
    draw(const __grid_constant__ di_draw_call c, int part) {
    extern __shared__ __align__(16) unsigned char base[];
    context x = {cg::this_cluster(),
                 (int)gridDim.x,
                 (int)blockIdx.x,
                 (shared_parts *)base,
                 (float *)(base + sizeof(shared_parts)),
                 part};
    x.begin = min(x.rank * part, c.vocab_size);
    x.end = min(x.begin + part, c.vocab_size);
    x.warp = threadIdx.x / 32;
    x.lane = threadIdx.x % 32;
    let_successors_begin();
    if (x.blocks > 1) {
        open_pushes(x);
    }
    wait_for_predecessors();
    const di_draw *d = &c.rows[blockIdx.y];
    const float *logits = c.logits + (size_t)d->logits * c.vocab_size;
    bool simple = d->greedy || d->forced >= 0;
    bool alone = simple && !d->logprobs; /* the first block ends the draw */
    uint64_t best = open_row(x, c, d, logits);
    if (x.blocks > 1) {
        best = best_of_all(x, best, !alone);
        if (alone && x.rank > 0) {
            return;
        }
    }
    shaped r = {value_of((uint32_t)(best >> 32)), d->octaves, (int32_t) ~(uint32_t)best};
    r.end = {-INFINITY, INT32_MAX, d->floor};
    di_drawn out = {};
    out.status = best >> 32 == ALL     ? DI_DRAW_BAD_LOGITS
                 : r.best == -INFINITY ? DI_DRAW_NO_TOKEN
                                       : DI_DRAW_OK;
    bool ok = out.status == DI_DRAW_OK, sum = d->processed || !(d->race || simple);
    if (ok && !d->greedy && (sum || filters(*d, c.vocab_size)) && (d->forced < 0 || sum)) {
        shape(x, *d, c.vocab_size, sum, &r);
    }
    if (ok) {
        out.token = d->forced >= 0 ? d->forced
                    : d->greedy    ? r.best_id
                    : d->race      ? draw_by_race(x, *d, r)
                                   : draw_by_sum(x, *d, r);
    }
    if (ok && d->logprobs) {
        out = score(x, c, *d, logits, r, out.token);
    }
    if (x.rank == 0 && threadIdx.x == 0) {
        c.tokens[blockIdx.y] = out.token;
        c.drawn[blockIdx.y] = out;
    }
}

static cudaError_t draw_rows(cudaStream_t s, const di_draw_call *c) {
    int blocks = c->vocab_size > ONE_BLOCK ? MOST_BLOCKS : 1;
    int part = (c->vocab_size + blocks - 1) / blocks;
    part = (part + 127) / 128 * 128; /* whole words of masks, whole groups of random words */
    size_t bytes = sizeof(shared_parts) + (size_t)part * sizeof(float);
    cudaError_t result =
        cudaFuncSetAttribute(draw, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return result != cudaSuccess ? result
                                 : launch_overlapped(s, draw, dim3(blocks, (unsigned)c->n), THREADS,
                                                     bytes, blocks, *c, part);
}

cudaError_t dk_draw(cudaStream_t s, const di_draw_call *c) {
    cudaError_t result = cudaSuccess;
    for (int first = 0; first < c->n && result == cudaSuccess; first += DK_MOST_ROWS) {
        di_draw_call part = *c;
        part.n = min(c->n - first, (int)DK_MOST_ROWS);
        part.rows += first;
        part.tokens += first;
        part.drawn += first;
        part.top += (size_t)first * c->max_top;
        result = draw_rows(s, &part);
    }
    return result;
}
