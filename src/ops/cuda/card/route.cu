/* The router: which experts a row goes to, and with what weights. s = sqrt(softplus(logit /
 * temp)); the top_k largest of s + bias, in ascending number, each with scale * s / (sum of
 * theirs + 1e-20); logits [n, experts]. A block takes a row: all of its threads form scores,
 * then one warp takes the best one by one. Bound by latencies, that chain above all: 3.9 us of a
 * recorded layer of 171 for one row of 384 experts (bench/results/2026-11-30-h200-rows.txt). */
#include "ops/cuda/card/common.cuh"
#include "ops/cuda/card/launch.cuh"

struct route_call {
    const float *logits, *bias, *bias_vl;
    const uint8_t *image;
    int count, top_k;
    float temp, scale;
    bool norm;
    int32_t *experts;
    float *weights;
};

enum { THREADS = 512, MAX_TOP = 64, HELD = 16 /* keys of a lane in registers */ };

/* Larger for experts that are chosen before: finite scores before others, then larger ones. */
static __device__ __forceinline__ uint32_t choice_key(float v) {
    uint32_t u = __float_as_uint(v + 0.0f); /* -0 becomes +0 */
    return !isfinite(v) ? 1 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The best of a lane's keys, and its expert; -1: none is left. Lane's experts: lane, lane + 32, ...
 */
struct best_key {
    uint32_t key;
    int expert;
};

static __device__ __forceinline__ best_key best_of_lane(const uint32_t (&held)[HELD],
                                                        const uint32_t *keys, int count) {
    best_key best = {0, -1};
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        bool better = held[i] > best.key; /* the lower number among equals */
        best.key = better ? held[i] : best.key;
        best.expert = better ? i * 32 + (int)threadIdx.x % 32 : best.expert;
    }
#pragma unroll 1
    for (int e = HELD * 32 + threadIdx.x % 32; e < count; e += 32) {
        if (keys[e] > best.key) {
            best = {keys[e], e};
        }
    }
    return best;
}

/* One warp: the top_k largest keys, lower numbers first among equals; taken ones become 0. */
static __device__ __forceinline__ void choose(uint32_t *keys, int count, int top_k, int32_t *list) {
    uint32_t held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int e = i * 32 + threadIdx.x % 32;
        held[i] = e < count ? keys[e] : 0;
    }
    best_key best = best_of_lane(held, keys, count);
#pragma unroll 1
    for (int i = 0; i < top_k; i++) {
        uint32_t top = __reduce_max_sync(0xffffffffu, best.key);
        bool mine = best.key == top && best.expert >= 0;
        int first = __reduce_min_sync(0xffffffffu, mine ? best.expert : count);
        if (mine && best.expert == first) {
            list[i] = first;
            if (first >= HELD * 32) {
                keys[first] = 0;
            }
#pragma unroll
            for (int j = 0; j < HELD; j++) {
                held[j] = first / 32 == j ? 0 : held[j];
            }
        }
        best = best_of_lane(held, keys, count);
    }
    __syncwarp();
}

/* One warp: the list in ascending order, with its weights. */
static __device__ __forceinline__ void write_choice(const route_call &c, const float *score,
                                                    const int32_t *list, int32_t *sorted) {
    int lane = threadIdx.x % 32;
    size_t to = (size_t)blockIdx.x * c.top_k;
    for (int i = lane; i < c.top_k; i += 32) {
        int rank = 0;
        for (int j = 0; j < c.top_k; j++) {
            rank += list[j] < list[i];
        }
        sorted[rank] = list[i];
    }
    __syncwarp();
    float sum = 0;
    for (int i = 0; i < c.top_k; i++) {
        sum += score[sorted[i]];
    }
    for (int i = lane; i < c.top_k; i += 32) {
        float w = score[sorted[i]];
        w = c.norm && c.top_k > 1 ? w / (sum + 1e-20f) : w;
        c.experts[to + i] = sorted[i];
        c.weights[to + i] = w * c.scale;
    }
}

/* Shared: scores and keys, [count] each. It lets the next kernels begin late, for these take all
 * there is and would keep other branches of a recorded step waiting. */
static __global__ void __launch_bounds__(THREADS) route(route_call c) {
    extern __shared__ float score[];
    __shared__ int32_t list[MAX_TOP], sorted[MAX_TOP];
    uint32_t *keys = (uint32_t *)score + c.count;
    const float *logits = c.logits + (size_t)blockIdx.x * c.count;
    const float *bias = c.image && c.image[blockIdx.x] ? c.bias_vl : c.bias;
    wait_for_predecessors();
    let_successors_begin();
#pragma unroll 1
    for (int e = threadIdx.x; e < c.count; e += THREADS) {
        float s = sqrtf(di_softplusf(logits[e] / c.temp));
        score[e] = s;
        keys[e] = choice_key(s + bias[e]);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        choose(keys, c.count, c.top_k, list);
        write_choice(c, score, list, sorted);
    }
}

void dk_route(cudaStream_t s, const float *logits, int n, int num_experts, const float *bias,
              const float *bias_vl, const uint8_t *image, float temp, int top_k, bool norm,
              float scale, int32_t *experts, float *weights) {
    route_call c = {logits, bias,  bias_vl, image,   num_experts, top_k,
                    temp,   scale, norm,    experts, weights};
    launch_overlapped(s, route, dim3(n), THREADS, 2 * sizeof(float) * (size_t)num_experts, 1, c);
}
