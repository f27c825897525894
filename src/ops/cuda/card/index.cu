/* Index scores and selection. Scores become ordered integers, so that the choice is exact: the
 * k-th largest is found digit by digit, and among equals the lower place wins. One block selects
 * for one row; its passes over the row's keys are what bounds it at long contexts. */
#include "state.cuh"

enum {
    PLACES = 64,
    TILES = 4 /* of places, in a block of `scores` */,
    SCORE_THREADS = 256,
    AHEAD = 4
};

static __device__ int64_t visible(const dk_step &step, const dk_seq &seq, int row, int ratio) {
    return (seq.pos0 + (row - seq.row0) + 1) / ratio;
}

/* Q4I of the queries, there and back. A warp takes 32 values. */
static __global__ void prepare_queries(dk_index_call c, long long groups) {
    long long group = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (group >= groups) {
        return;
    }
    long long at = group * 32 + threadIdx.x % 32;
    dk_bf16 v = c.q[(long long)c.first_row * c.heads * c.key_dim + at];
    uint32_t byte = q4i_scale(bf16_value((dk_bf16)group_max(magnitude_bits(v), 32)));
    float scale = e8m0_value(byte);
    c.query[at] = to_bf16(e2m1_value(to_e2m1(bf16_value(v) / scale)) * scale);
}

static __device__ uint32_t score_key(float score) {
    uint32_t u = __float_as_uint(score + 0.0f); /* -0 becomes +0 */
    if ((u & 0x7f800000u) == 0x7f800000u) {
        return 0;
    }
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The entry in a place of the row's list, or -1. */
static __device__ int64_t entry_at(const dk_index_call &c, int row, int64_t place, int64_t seen) {
    int64_t entry = place;
    if (c.candidates && !c.build) {
        int64_t block = place / c.block_size;
        int32_t b = block < c.max_blocks ? c.candidates[(size_t)row * c.max_blocks + block] : -1;
        if (b < 0) {
            return -1;
        }
        entry = (int64_t)b * c.block_size + place % c.block_size;
    }
    return entry < seen ? entry : -1;
}

/* Grid: places / (PLACES * TILES), rows. Shared: queries [heads up to 16s][ld], keys [PLACES][ld],
 * dots [heads up to 16s][PLACES + 1]. */
static __global__ void __launch_bounds__(SCORE_THREADS) scores(dk_index_call c) {
    extern __shared__ __align__(16) unsigned char base[];
    int row = c.first_row + blockIdx.y, ld = c.key_dim + 8, groups = c.key_dim / 8;
    int padded = (c.heads + 15) / 16 * 16;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    dk_bf16 *q = (dk_bf16 *)base, *keys = q + padded * ld;
    float *dots = (float *)(keys + PLACES * ld);
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    int64_t seen = visible(c.step, seq, row, c.ratio);
    int64_t first = (int64_t)blockIdx.x * PLACES * TILES;
    if (first >= c.places || (!(c.candidates && !c.build) && first >= seen)) {
        return;
    }
    for (int i = threadIdx.x; i < padded * groups; i += SCORE_THREADS) {
        int h = i / groups;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (h < c.heads) {
            v = *(const uint4 *)(c.query + ((size_t)blockIdx.y * c.heads + h) * c.key_dim +
                                 i % groups * 8);
        }
        *(uint4 *)(q + h * ld + i % groups * 8) = v;
    }
    for (int64_t begin = first; begin < first + PLACES * TILES && begin < c.places;
         begin += PLACES) {
        __syncthreads();
        for (int first = threadIdx.x; first < PLACES * groups; first += AHEAD * SCORE_THREADS) {
            raw_group raw[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int i = first + u * SCORE_THREADS;
                int64_t entry =
                    i < PLACES * groups ? entry_at(c, row, begin + i / groups, seen) : -1;
                raw[u] = {};
                if (entry >= 0) {
                    raw[u] = key_raw(key_row(c.step, seq, c.ratio, entry), c.key_dim, i % groups);
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                int i = first + u * SCORE_THREADS;
                if (i < PLACES * groups) {
                    *(uint4 *)(keys + i / groups * ld + i % groups * 8) = key_values(raw[u]);
                }
            }
        }
        __syncthreads();
        const dk_bf16 *key = keys + (warp * 8 + g) * ld + 2 * t;
        for (int head0 = 0; head0 < padded; head0 += 16) {
            float acc[4] = {};
            const dk_bf16 *low = q + (head0 + g) * ld + 2 * t, *high = low + 8 * ld;
            for (int k = 0; k < c.key_dim; k += 16) {
                uint32_t a[4] = {*(const uint32_t *)(low + k), *(const uint32_t *)(high + k),
                                 *(const uint32_t *)(low + k + 8),
                                 *(const uint32_t *)(high + k + 8)};
                mma_16x8x16(acc, a, *(const uint32_t *)(key + k), *(const uint32_t *)(key + k + 8));
            }
            float *to = dots + (head0 + g) * (PLACES + 1) + warp * 8 + 2 * t;
            to[0] = acc[0];
            to[1] = acc[1];
            to[8 * (PLACES + 1)] = acc[2];
            to[8 * (PLACES + 1) + 1] = acc[3];
        }
        __syncthreads();
        int64_t place = begin + threadIdx.x;
        if (threadIdx.x < PLACES && place < c.places) {
            float sum = 0;
            for (int h = 0; h < c.heads; h++) { /* heads ascending, product and sum apart */
                float dot = dots[h * (PLACES + 1) + threadIdx.x];
                float w = bf16_value(c.weights[(size_t)row * c.heads + h]) * c.factor;
                sum += w * (dot < 0 ? 0 : dot);
            }
            c.keys[(size_t)blockIdx.y * c.places + place] =
                entry_at(c, row, place, seen) < 0 ? 0 : score_key(sum);
        }
    }
}

/* Best entry of each block; the newest visible entry's block comes first of all. */
static __global__ void best_of_blocks(dk_index_call c, int64_t blocks_at_most) {
    int row = c.first_row + blockIdx.y;
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    int64_t seen = visible(c.step, seq, row, c.ratio);
    int64_t block = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t blocks = (seen + c.block_size - 1) / c.block_size;
    if (block >= blocks) {
        return;
    }
    const uint32_t *keys = c.keys + (size_t)blockIdx.y * c.places;
    uint32_t top = 0;
    for (int64_t e = block * c.block_size; e < seen && e < (block + 1) * c.block_size; e++) {
        top = max(top, keys[e]);
    }
    c.block_keys[(size_t)blockIdx.y * blocks_at_most + block] =
        block == blocks - 1 ? 0xffffffffu : top;
}

enum { SELECT_THREADS = 1024, WARPS = SELECT_THREADS / 32, BINS = 2048 };

/* Sum of one number of every warp's, and of those of the warps before. */
static __device__ void scan_warps(int mine, int *scratch, int *before, int *total) {
    int warp = threadIdx.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        scratch[warp] = mine;
    }
    __syncthreads();
    *before = *total = 0;
    for (int w = 0; w < WARPS; w++) {
        *before += w < warp ? scratch[w] : 0;
        *total += scratch[w];
    }
}

/* The k-th largest of n keys, at least k of which are not 0; *above: how many are larger. */
static __device__ uint32_t kth_largest(const uint32_t *keys, int64_t n, int k, int *above) {
    __shared__ int bins[BINS];
    __shared__ uint32_t digit_found;
    __shared__ int above_found;
    const int shifts[3] = {21, 10, 0};
    uint32_t settled = 0, mask = 0;
    *above = 0;
    for (int pass = 0; pass < 3; pass++) {
        int shift = shifts[pass];
        uint32_t digits = pass < 2 ? 0x7ff : 0x3ff;
        for (int i = threadIdx.x; i < BINS; i += SELECT_THREADS) {
            bins[i] = 0;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += SELECT_THREADS) {
            uint32_t key = keys[i];
            if ((key & mask) == settled) {
                atomicAdd(&bins[key >> shift & digits], 1);
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) { /* one warp walks the bins from the top, 32 at a time */
            int lane = threadIdx.x, passed = *above;
            for (int top = (int)digits; top >= 0; top -= 32) {
                int count = top - lane >= 0 ? bins[top - lane] : 0, sum = count;
                for (int step = 1; step < 32; step *= 2) {
                    int v = __shfl_up_sync(0xffffffffu, sum, step);
                    sum += lane >= step ? v : 0;
                }
                unsigned reached = __ballot_sync(0xffffffffu, passed + sum >= k);
                if (reached) {
                    int at = __ffs((int)reached) - 1;
                    if (lane == at) {
                        digit_found = (uint32_t)(top - lane);
                        above_found = passed + sum - count;
                    }
                    break;
                }
                passed += __shfl_sync(0xffffffffu, sum, 31);
            }
        }
        __syncthreads();
        *above = above_found;
        settled |= digit_found << shift;
        mask |= digits << shift;
        __syncthreads();
    }
    return settled;
}

/* The k best of n keys, lower place first among equals, ascending, filled up with -1; keys of 0 are
 * never chosen. A warp lists a run of places of its own. */
static __device__ void choose(const uint32_t *keys, int64_t n, int k, int32_t *chosen) {
    __shared__ int scratch[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, before, valid, above = 0;
    int64_t run = (n + SELECT_THREADS - 1) / SELECT_THREADS * 32;
    int64_t begin = warp * run, end = begin + run < n ? begin + run : n;
    int count = 0;
    for (int64_t i = begin; i < end; i += 32) {
        bool is = i + lane < end && keys[i + lane] != 0;
        count += __popc(__ballot_sync(0xffffffffu, is));
    }
    scan_warps(count, scratch, &before, &valid);
    uint32_t least = 0; /* keys above it are in, and so many of those equal to it */
    int equals = 0;
    if (valid > k) {
        least = kth_largest(keys, n, k, &above);
        equals = k - above;
    }
    int more = 0, same = 0, more_before, same_before, more_total, same_total;
    for (int64_t i = begin; i < end; i += 32) {
        uint32_t key = i + lane < end ? keys[i + lane] : 0;
        more += __popc(__ballot_sync(0xffffffffu, key > least));
        same += __popc(__ballot_sync(0xffffffffu, key == least && key != 0));
    }
    scan_warps(more, scratch, &more_before, &more_total);
    scan_warps(same, scratch, &same_before, &same_total);
    int at = more_before + min(same_before, equals), left = equals - same_before;
    for (int64_t i = begin; i < end; i += 32) {
        uint32_t key = i + lane < end ? keys[i + lane] : 0;
        unsigned lower = (1u << lane) - 1;
        unsigned ties = __ballot_sync(0xffffffffu, key == least && key != 0);
        bool in = key > least || (key == least && key != 0 && __popc(ties & lower) < left);
        unsigned mine = __ballot_sync(0xffffffffu, in);
        if (in) {
            chosen[at + __popc(mine & lower)] = (int32_t)(i + lane);
        }
        at += __popc(mine);
        left -= __popc(ties);
    }
    for (int i = more_total + min(same_total, equals) + threadIdx.x; i < k; i += SELECT_THREADS) {
        chosen[i] = -1;
    }
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_entries(dk_index_call c) {
    int row = c.first_row + blockIdx.x;
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    int64_t seen = visible(c.step, seq, row, c.ratio);
    bool listed = c.candidates && !c.build;
    int32_t *chosen = c.topk + (size_t)row * c.k;
    choose(c.keys + (size_t)blockIdx.x * c.places, listed ? c.places : seen, c.k, chosen);
    __syncthreads();
    for (int i = threadIdx.x; listed && i < c.k; i += SELECT_THREADS) {
        if (chosen[i] >= 0) {
            chosen[i] = (int32_t)entry_at(c, row, chosen[i], seen);
        }
    }
}

static __global__ void __launch_bounds__(SELECT_THREADS)
    select_blocks(dk_index_call c, int64_t blocks_at_most) {
    int row = c.first_row + blockIdx.x;
    dk_seq seq = c.step.seqs[c.step.row_seq[row]];
    int64_t blocks = (visible(c.step, seq, row, c.ratio) + c.block_size - 1) / c.block_size;
    choose(c.block_keys + (size_t)blockIdx.x * blocks_at_most, blocks, c.max_blocks,
           c.candidates + (size_t)row * c.max_blocks);
}

void dk_index(cudaStream_t s, const dk_index_call *c) {
    long long groups = (long long)c->rows * c->heads * (c->key_dim / 32);
    prepare_queries<<<(unsigned)((groups + 7) / 8), 256, 0, s>>>(*c, groups);
    int padded = (c->heads + 15) / 16 * 16;
    size_t bytes = (size_t)(padded + PLACES) * (c->key_dim + 8) * sizeof(dk_bf16) +
                   (size_t)padded * (PLACES + 1) * sizeof(float);
    if (bytes > 48 * 1024) {
        cudaFuncSetAttribute(scores, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    }
    if (c->places > 0) {
        unsigned chunks = (unsigned)((c->places + PLACES * TILES - 1) / (PLACES * TILES));
        scores<<<dim3(chunks, c->rows), SCORE_THREADS, bytes, s>>>(*c);
    }
    select_entries<<<c->rows, SELECT_THREADS, 0, s>>>(*c);
    if (c->candidates && c->build) {
        int64_t most = c->places / c->block_size + 1;
        best_of_blocks<<<dim3((unsigned)((most + 127) / 128), c->rows), 128, 0, s>>>(*c, most);
        select_blocks<<<c->rows, SELECT_THREADS, 0, s>>>(*c, most);
    }
}
