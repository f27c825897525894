/* Router and experts. Which tokens an expert serves is worked out on the card: a list of tiles (an
 * expert and a run of its uses) that the products' grid is laid over, so that an expert's weights
 * are read once a tile and the host learns nothing and waits for nothing. The grid is as large as
 * the worst case needs; blocks behind the last tile end at once.
 *
 * A row's result does not depend on the order in which tokens come to stand in a list. */
#include "product.cuh"

/* ---- router ----------------------------------------------------------------------------------*/

/* Is expert a chosen before expert b? Finite scores first, then larger, then the lower number. */
static __device__ bool before(float va, int a, float vb, int b) {
    bool finite_a = isfinite(va), finite_b = isfinite(vb);
    if (finite_a != finite_b) {
        return finite_a;
    }
    if (finite_a && va != vb) {
        return va > vb;
    }
    return a < b;
}

struct route_call {
    const float *logits, *bias, *bias_vl;
    const uint8_t *image;
    int n, count, top_k;
    float temp, scale;
    bool norm;
    float *score;
    int32_t *experts;
    float *weights;
};

enum { MAX_TOP = 64 };

/* One warp a row. */
static __global__ void route(route_call c) {
    __shared__ int32_t list[MAX_TOP];
    int row = blockIdx.x, lane = threadIdx.x;
    const float *logits = c.logits + (size_t)row * c.count;
    const float *bias = c.image && c.image[row] ? c.bias_vl : c.bias;
    float *score = c.score + (size_t)row * c.count;
    for (int e = lane; e < c.count; e += 32) {
        score[e] = sqrtf(softplus32(logits[e] / c.temp));
    }
    __syncwarp();
    for (int i = 0; i < c.top_k; i++) {
        float best_value = 0;
        int best = -1;
        for (int e = lane; e < c.count; e += 32) {
            bool taken = false;
            for (int j = 0; j < i; j++) {
                taken = taken || list[j] == e;
            }
            float v = score[e] + bias[e];
            if (!taken && (best < 0 || before(v, e, best_value, best))) {
                best_value = v;
                best = e;
            }
        }
        for (int step = 16; step > 0; step /= 2) {
            float v = __shfl_xor_sync(0xffffffffu, best_value, step);
            int e = __shfl_xor_sync(0xffffffffu, best, step);
            if (e >= 0 && (best < 0 || before(v, e, best_value, best))) {
                best_value = v;
                best = e;
            }
        }
        if (lane == 0) {
            list[i] = best;
        }
        __syncwarp();
    }
    if (lane != 0) {
        return;
    }
    for (int i = 1; i < c.top_k; i++) {
        int32_t e = list[i];
        int at = i;
        for (; at > 0 && list[at - 1] > e; at--) {
            list[at] = list[at - 1];
        }
        list[at] = e;
    }
    float sum = 0;
    for (int i = 0; i < c.top_k; i++) {
        sum += score[list[i]];
    }
    for (int i = 0; i < c.top_k; i++) {
        float w = score[list[i]];
        w = c.norm && c.top_k > 1 ? w / (sum + 1e-20f) : w;
        c.experts[(size_t)row * c.top_k + i] = list[i];
        c.weights[(size_t)row * c.top_k + i] = w * c.scale;
    }
}

void dk_route(cudaStream_t s, const float *logits, int n, int num_experts, const float *bias,
              const float *bias_vl, const uint8_t *image, float temp, int top_k, bool norm,
              float scale, float *score, int32_t *experts, float *weights) {
    route_call c = {logits, bias,  bias_vl, image, n,       num_experts, top_k,
                    temp,   scale, norm,    score, experts, weights};
    route<<<n, 32, 0, s>>>(c);
}

/* ---- lists -----------------------------------------------------------------------------------*/

/* One block. counts [num_experts] becomes where an expert's uses begin, and moves on as they are
 * filled in. */
static __global__ void __launch_bounds__(1024) make_lists(dk_moe c) {
    extern __shared__ int32_t counts[];
    __shared__ int32_t running[2]; /* uses, tiles */
    int pairs = c.n * c.top_k;
    for (int e = threadIdx.x; e < c.num_experts; e += blockDim.x) {
        counts[e] = 0;
    }
    if (threadIdx.x == 0) {
        running[0] = running[1] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        atomicAdd(&counts[c.experts[i]], 1);
    }
    __syncthreads();
    /* experts in groups of 32 by one warp: a scan over the group, carried on */
    if (threadIdx.x < 32) {
        int lane = threadIdx.x;
        for (int first = 0; first < c.num_experts; first += 32) {
            int e = first + lane, count = e < c.num_experts ? counts[e] : 0;
            int tiles = (count + c.tile_rows - 1) / c.tile_rows;
            int uses_to = count, tiles_to = tiles;
            for (int step = 1; step < 32; step *= 2) {
                int u = __shfl_up_sync(0xffffffffu, uses_to, step);
                int v = __shfl_up_sync(0xffffffffu, tiles_to, step);
                uses_to += lane >= step ? u : 0;
                tiles_to += lane >= step ? v : 0;
            }
            int begin = running[0] + uses_to - count, tile = running[1] + tiles_to - tiles;
            for (int i = 0; i < tiles; i++) {
                int left = count - i * c.tile_rows;
                c.tiles[tile + i] = {e, begin + i * c.tile_rows, min(left, c.tile_rows)};
            }
            if (e < c.num_experts) {
                counts[e] = begin;
            }
            __syncwarp();
            if (lane == 31) {
                running[0] += uses_to;
                running[1] += tiles_to;
            }
            __syncwarp();
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *c.num_tiles = running[1];
    }
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        int token = i / c.top_k, e = c.experts[i], rank = 0;
        for (int j = 0; j < c.top_k; j++) { /* lists come sorted; be sure */
            int other = c.experts[token * c.top_k + j];
            rank += other < e || (other == e && j < i % c.top_k);
        }
        int at = atomicAdd(&counts[e], 1);
        c.token[at] = token;
        c.place[at] = token * (c.top_k + 1) + rank;
        c.weight[at] = c.weights[i];
    }
}

/* ---- products --------------------------------------------------------------------------------*/

/* The uses that a block of a product serves. The first tiles of the grid are the shared expert's,
 * which all tokens use; then come the routed ones'. */
struct uses {
    int first, count;
    const dk_expert *expert;
};

static __device__ __forceinline__ int shared_tiles(const dk_moe &c, int rows) {
    return (c.n + rows - 1) / rows;
}

template <bool SHARED> static __device__ __forceinline__ uses uses_of(const dk_moe &c, int rows) {
    uses u = {0, 0, c.shared};
    if (SHARED) {
        u.first = blockIdx.y * rows;
        u.count = min(rows, c.n - u.first);
        return u;
    }
    int tile = blockIdx.y - shared_tiles(c, rows);
    if (tile < *c.num_tiles) {
        dk_tile t = c.tiles[tile];
        u = {t.first, t.count, c.table + t.expert};
    }
    return u;
}

/* t of 32 of an expert's inner rows: both products, SwiGLU, Q8. */
template <int F, int NT, bool SHARED>
static __device__ __forceinline__ void up_block(const dk_moe &c, float *shared) {
    const dk_matrix &w = SHARED ? c.shared_up : c.up;
    uses u = uses_of<SHARED>(c, NT * 8);
    int slice = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.x * 32;
    if (u.count <= 0 || row0 >= w.rows) {
        return;
    }
    const dk_bf16 *x = SHARED ? c.x_shared : c.x_routed;
    weight_rows rows[4];
#pragma unroll
    for (int m = 0; m < 4; m++) {
        rows[m] = rows_of(w, m < 2 ? u.expert->w1 : u.expert->w3,
                          m < 2 ? u.expert->s1 : u.expert->s3, row0 + m % 2 * 16);
    }
    const dk_bf16 *b[NT];
#pragma unroll
    for (int t = 0; t < NT; t++) {
        int use = t * 8 + lane / 4;
        int token = use >= u.count ? 0 : SHARED ? u.first + use : c.token[u.first + use];
        b[t] = use < u.count ? x + (size_t)token * w.kp : NULL;
    }
    float acc[4][NT][4];
    int begin = slice * w.slice_chunks;
    slice_product<F, 4, NT>((queue<4> *)shared + slice, rows, b, begin,
                            min(begin + w.slice_chunks, w.chunks), acc);
    put_slice<4, NT>(acc, shared, slice, w.slices);
    __syncthreads();
    const dk_matrix &next = SHARED ? c.shared_down : c.down;
    dk_bf16 *mid = SHARED ? c.mid_shared : c.mid;
    int place = prepared_place(next.format, row0 + lane);
    for (int use = slice; use < u.count; use += blockDim.x / 32) {
        float a = take_cell<4, NT>(shared, w.slices, lane, use);
        float v = take_cell<4, NT>(shared, w.slices, 32 + lane, use);
        float weight = SHARED ? 1.0f : c.weight[u.first + use];
        dk_bf16 t = swiglu(round_bf16(a), round_bf16(v), weight, c.limit);
        mid[(size_t)(u.first + use) * next.kp + place] = to_bf16(q8_round_trip(t));
    }
}

/* 32 outputs of one expert. */
template <int F, int NT, bool SHARED>
static __device__ __forceinline__ void down_block(const dk_moe &c, float *shared) {
    const dk_matrix &w = SHARED ? c.shared_down : c.down;
    uses u = uses_of<SHARED>(c, NT * 8);
    int slice = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.x * 32;
    if (u.count <= 0) {
        return;
    }
    const dk_bf16 *mid = SHARED ? c.mid_shared : c.mid;
    weight_rows rows[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        rows[m] = rows_of(w, u.expert->w2, u.expert->s2, row0 + m * 16);
    }
    const dk_bf16 *b[NT];
#pragma unroll
    for (int t = 0; t < NT; t++) {
        int use = t * 8 + lane / 4;
        b[t] = use < u.count ? mid + (size_t)(u.first + use) * w.kp : NULL;
    }
    float acc[2][NT][4];
    int begin = slice * w.slice_chunks;
    slice_product<F, 2, NT>((queue<2> *)shared + slice, rows, b, begin,
                            min(begin + w.slice_chunks, w.chunks), acc);
    put_slice<2, NT>(acc, shared, slice, w.slices);
    __syncthreads();
    for (int use = slice; use < u.count; use += blockDim.x / 32) {
        size_t place = SHARED ? (size_t)(u.first + use) * (c.top_k + 1) + c.top_k
                              : (size_t)c.place[u.first + use];
        float sum = take_cell<2, NT>(shared, w.slices, lane, use);
        c.out[place * c.d + row0 + lane] = to_bf16(sum);
    }
}

/* Grid: rows / 32, tiles. A warp a slice; warps that one of the two kinds of expert has no slice
 * for only help with the end. */
template <int F, int FS, int NT>
static __global__ void __launch_bounds__(256, NT == 1 ? 2 : 1) up(dk_moe c) {
    extern __shared__ __align__(16) float shared[];
    if ((int)blockIdx.y < shared_tiles(c, NT * 8)) {
        up_block<FS, NT, true>(c, shared);
    } else {
        up_block<F, NT, false>(c, shared);
    }
}

template <int F, int FS, int NT>
static __global__ void __launch_bounds__(256, NT == 1 ? 2 : 1) down(dk_moe c) {
    extern __shared__ __align__(16) float shared[];
    if ((int)blockIdx.y < shared_tiles(c, NT * 8)) {
        down_block<FS, NT, true>(c, shared);
    } else {
        down_block<F, NT, false>(c, shared);
    }
}

/* y = bf16(routed ones in ascending expert number, then the shared one). */
static __global__ void combine(dk_moe c) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)c.n * c.d) {
        return;
    }
    size_t token = i / c.d, at = i % c.d;
    float sum = 0;
    for (int j = 0; j <= c.top_k; j++) {
        sum += bf16_value(c.out[(token * (c.top_k + 1) + j) * c.d + at]);
    }
    c.y[i] = to_bf16(sum);
}

template <int F, int FS, int NT> static void launch(cudaStream_t s, const dk_moe &c) {
    int tiles = (c.n + NT * 8 - 1) / (NT * 8) + c.max_tiles;
    int up_slices = max(c.up.slices, c.shared_up.slices);
    int down_slices = max(c.down.slices, c.shared_down.slices);
    size_t up_bytes = product_bytes<4, NT>(up_slices),
           down_bytes = product_bytes<2, NT>(down_slices);
    cudaFuncSetAttribute(up<F, FS, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)up_bytes);
    cudaFuncSetAttribute(down<F, FS, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)down_bytes);
    int rows = max(c.up.rows, c.shared_up.rows);
    up<F, FS, NT><<<dim3(rows / 32, tiles), 32 * up_slices, up_bytes, s>>>(c);
    down<F, FS, NT><<<dim3(c.d / 32, tiles), 32 * down_slices, down_bytes, s>>>(c);
}

template <int F, int FS> static void launch_rows(cudaStream_t s, const dk_moe &c) {
    if (c.tile_rows == 8) {
        launch<F, FS, 1>(s, c);
    } else if (c.tile_rows == 16) {
        launch<F, FS, 2>(s, c);
    } else {
        launch<F, FS, 4>(s, c);
    }
}

/* Routed experts are FP4 or FP8 matrices, and so is the shared one. */
void dk_moe_run(cudaStream_t s, const dk_moe *m) {
    make_lists<<<1, 1024, (size_t)m->num_experts * sizeof(int32_t), s>>>(*m);
    bool fp4 = m->up.format == DK_FP4, shared_fp4 = m->shared_up.format == DK_FP4;
    if (fp4 && !shared_fp4) {
        launch_rows<DK_FP4, DK_FP8>(s, *m);
    } else if (fp4) {
        launch_rows<DK_FP4, DK_FP4>(s, *m);
    } else if (!shared_fp4) {
        launch_rows<DK_FP8, DK_FP8>(s, *m);
    } else {
        launch_rows<DK_FP8, DK_FP4>(s, *m);
    }
    size_t cells = (size_t)m->n * m->d;
    combine<<<(unsigned)((cells + 255) / 256), 256, 0, s>>>(*m);
}
