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

/* One block. counts becomes where an expert's uses begin, then is used up as the fill moves on. */
static __global__ void make_lists(dk_moe c) {
    __shared__ int32_t running[2]; /* uses, tiles */
    int pairs = c.n * c.top_k;
    for (int e = threadIdx.x; e <= c.num_experts; e += blockDim.x) {
        c.counts[e] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        atomicAdd(&c.counts[c.experts[i]], 1);
    }
    if (threadIdx.x == 0) {
        running[0] = running[1] = 0;
    }
    __syncthreads();
    /* experts in groups of 32 by one warp: a scan over the group, carried on */
    if (threadIdx.x < 32) {
        int lane = threadIdx.x;
        for (int first = 0; first < c.num_experts; first += 32) {
            int e = first + lane, count = e < c.num_experts ? c.counts[e] : 0;
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
                c.counts[e] = begin;
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
        int at = atomicAdd(&c.counts[e], 1);
        c.token[at] = token;
        c.place[at] = token * (c.top_k + 1) + rank;
        c.weight[at] = c.weights[i];
    }
}

/* ---- products --------------------------------------------------------------------------------*/

/* The uses that a block of a product serves; the shared expert's are all tokens. */
struct uses {
    int first, count;
    const dk_expert *expert;
};

template <bool SHARED> static __device__ __forceinline__ uses uses_of(const dk_moe &c, int rows) {
    uses u = {0, 0, c.shared};
    if (SHARED) {
        u.first = blockIdx.y * rows;
        u.count = min(rows, c.n - u.first);
    } else if ((int)blockIdx.y < *c.num_tiles) {
        dk_tile tile = c.tiles[blockIdx.y];
        u = {tile.first, tile.count, c.table + tile.expert};
    }
    return u;
}

/* t of 32 of an expert's inner rows: both products, SwiGLU, Q8. Grid: inner rows / 32, tiles. */
template <int F, int NT, bool SHARED> static __global__ void up(dk_moe c) {
    extern __shared__ float shared[];
    const dk_matrix &w = SHARED ? c.shared_up : c.up;
    uses u = uses_of<SHARED>(c, NT * 8);
    if (u.count <= 0) {
        return;
    }
    int slice = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.x * 32;
    const dk_bf16 *x = SHARED ? c.x_shared : c.x_routed;
    weight_rows rows[4];
#pragma unroll
    for (int m = 0; m < 4; m++) {
        rows[m] = rows_of(w, m < 2 ? u.expert->w1 : u.expert->w3,
                          m < 2 ? u.expert->s1 : u.expert->s3, row0 + m % 2 * 16, w.rows - 1);
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
    slice_product<F, 4, NT>(rows, b, begin, min(begin + w.slice_chunks, w.chunks), acc);
    put_slice<4, NT>(acc, shared, slice);
    __syncthreads();
    const dk_matrix &next = SHARED ? c.shared_down : c.down;
    dk_bf16 *mid = SHARED ? c.mid_shared : c.mid;
    int place = prepared_place(next.format, row0 + lane);
    for (int use = slice; use < u.count; use += w.slices) {
        float a = take_cell<4, NT>(shared, w.slices, lane, use);
        float v = take_cell<4, NT>(shared, w.slices, 32 + lane, use);
        float weight = SHARED ? 1.0f : c.weight[u.first + use];
        dk_bf16 t = swiglu(round_bf16(a), round_bf16(v), weight, c.limit);
        mid[(size_t)(u.first + use) * next.kp + place] = to_bf16(q8_round_trip(t));
    }
}

/* Outputs of one expert: grid: rows of w2 / 32, tiles. */
template <int F, int NT, bool SHARED> static __global__ void down(dk_moe c) {
    extern __shared__ float shared[];
    const dk_matrix &w = SHARED ? c.shared_down : c.down;
    uses u = uses_of<SHARED>(c, NT * 8);
    if (u.count <= 0) {
        return;
    }
    int slice = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = blockIdx.x * 32;
    const dk_bf16 *mid = SHARED ? c.mid_shared : c.mid;
    weight_rows rows[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        rows[m] = rows_of(w, u.expert->w2, u.expert->s2, row0 + m * 16, w.rows - 1);
    }
    const dk_bf16 *b[NT];
#pragma unroll
    for (int t = 0; t < NT; t++) {
        int use = t * 8 + lane / 4;
        b[t] = use < u.count ? mid + (size_t)(u.first + use) * w.kp : NULL;
    }
    float acc[2][NT][4];
    int begin = slice * w.slice_chunks;
    slice_product<F, 2, NT>(rows, b, begin, min(begin + w.slice_chunks, w.chunks), acc);
    put_slice<2, NT>(acc, shared, slice);
    __syncthreads();
    for (int use = slice; use < u.count; use += w.slices) {
        size_t place = SHARED ? (size_t)(u.first + use) * (c.top_k + 1) + c.top_k
                              : (size_t)c.place[u.first + use];
        if (row0 + lane < w.rows) {
            float sum = take_cell<2, NT>(shared, w.slices, lane, use);
            c.out[place * c.d + row0 + lane] = to_bf16(sum);
        }
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

template <int F, int NT, bool SHARED>
static void launch(cudaStream_t s, const dk_moe &c, int tiles) {
    const dk_matrix &u = SHARED ? c.shared_up : c.up, &d = SHARED ? c.shared_down : c.down;
    size_t up_bytes = (size_t)u.slices * 64 * (NT * 8 + 1) * sizeof(float);
    size_t down_bytes = (size_t)d.slices * 32 * (NT * 8 + 1) * sizeof(float);
    if (up_bytes > 48 * 1024) {
        cudaFuncSetAttribute(up<F, NT, SHARED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)up_bytes);
    }
    if (down_bytes > 48 * 1024) {
        cudaFuncSetAttribute(down<F, NT, SHARED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)down_bytes);
    }
    up<F, NT, SHARED><<<dim3(u.rows / 32, tiles), 32 * u.slices, up_bytes, s>>>(c);
    down<F, NT, SHARED><<<dim3((d.rows + 31) / 32, tiles), 32 * d.slices, down_bytes, s>>>(c);
}

template <int F, bool SHARED> static void launch_rows(cudaStream_t s, const dk_moe &c) {
    int rows = SHARED ? (c.n <= 8 ? 8 : c.n <= 16 ? 16 : 32) : c.tile_rows;
    int tiles = SHARED ? (c.n + rows - 1) / rows : c.max_tiles;
    if (rows == 8) {
        launch<F, 1, SHARED>(s, c, tiles);
    } else if (rows == 16) {
        launch<F, 2, SHARED>(s, c, tiles);
    } else {
        launch<F, 4, SHARED>(s, c, tiles);
    }
}

/* Routed experts are FP4 or FP8 matrices, and so is the shared one. */
void dk_moe_run(cudaStream_t s, const dk_moe *m) {
    make_lists<<<1, 1024, 0, s>>>(*m);
    if (m->up.format == DK_FP4) {
        launch_rows<DK_FP4, false>(s, *m);
    } else {
        launch_rows<DK_FP8, false>(s, *m);
    }
    if (m->shared_up.format == DK_FP4) {
        launch_rows<DK_FP4, true>(s, *m);
    } else {
        launch_rows<DK_FP8, true>(s, *m);
    }
    size_t cells = (size_t)m->n * m->d;
    combine<<<(unsigned)((cells + 255) / 256), 256, 0, s>>>(*m);
}
