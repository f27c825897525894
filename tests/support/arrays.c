/* Random arrays for tests of ops: see arrays.h. */
#include "support/arrays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats.h"

void arrays_free(arrays *a) {
    while (a->num_owned > 0) {
        free(a->owned[--a->num_owned]);
    }
}

void *arrays_take(arrays *a, size_t count, size_t size) {
    void *p = aligned_alloc(64, (count * size + 63) / 64 * 64 + 64); /* not counted as the code's */
    if (!p || a->num_owned == (int)(sizeof a->owned / sizeof *a->owned)) {
        abort();
    }
    memset(p, 0, count * size);
    a->owned[a->num_owned++] = p;
    return p;
}

uint64_t random_bits(arrays *a) { /* splitmix64 */
    uint64_t z = a->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int random_below(arrays *a, int n) {
    return (int)(random_bits(a) >> 33) % n;
}

float random_unit(arrays *a) {
    return (float)(random_bits(a) >> 40) * 0x1p-24f;
}

float random_normal(arrays *a) {
    float sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += random_unit(a);
    }
    return sum;
}

static float wild(arrays *a, float x) {
    switch (random_below(a, 8)) {
    case 0:
        return -0.0f;
    case 1:
        return 0;
    case 2:
        return x * 0x1p-130f; /* denormal */
    case 3:
        return ldexpf(x, random_below(a, 40) - 20);
    default:
        return x;
    }
}

di_bf16 *random_bf16(arrays *a, size_t rows, size_t cols, float size, values_kind kind) {
    di_bf16 *x = arrays_take(a, rows * cols, sizeof *x);
    for (size_t i = 0; i < rows * cols; i++) {
        float v = random_normal(a) * size;
        x[i] = di_bf16_from_f32(kind == VALUES_CALM ? v : wild(a, v));
    }
    for (size_t r = 0; kind == VALUES_BROKEN && r < rows; r += 2) {
        static const float broken[] = {INFINITY, -INFINITY, NAN, 0x1.fep127f};
        size_t at = r * cols + (size_t)random_below(a, (int)cols);
        x[at] = di_bf16_from_f32(broken[random_below(a, 4)]);
    }
    return x;
}

float *random_f32(arrays *a, size_t n, float size) {
    float *x = arrays_take(a, n, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_normal(a) * size;
    }
    return x;
}

static uint8_t *random_scales(arrays *a, size_t n, int around) {
    uint8_t *s = arrays_take(a, n, 1);
    for (size_t i = 0; i < n; i++) {
        s[i] = (uint8_t)(around - 1 + random_below(a, 3));
    }
    return s;
}

static uint8_t *random_e4m3(arrays *a, size_t n) {
    uint8_t *codes = arrays_take(a, n, 1);
    for (size_t i = 0; i < n; i++) {
        codes[i] = di_e4m3_from_f32(random_normal(a) * 100);
    }
    return codes;
}

di_bf16 *through_q8(arrays *a, const di_bf16 *x, size_t rows, size_t k) {
    di_bf16 *y = arrays_take(a, rows * k, sizeof *y);
    for (size_t i = 0; i < rows * k; i += 32) {
        float most = 0;
        for (size_t j = i; j < i + 32; j++) {
            most = fmaxf(most, fabsf(di_bf16_to_f32(x[j])));
        }
        float scale = di_e8m0_to_f32(di_q8_scale(most));
        for (size_t j = i; j < i + 32; j++) {
            float v = di_e4m3_to_f32(di_e4m3_from_f32(di_bf16_to_f32(x[j]) / scale));
            y[j] = di_bf16_from_f32(v * scale);
        }
    }
    return y;
}

di_tensor random_tensor(arrays *a, di_dtype dtype, int64_t rows, int64_t cols) {
    di_tensor t = {.dtype = dtype, .rank = 2, .shape = {rows, cols}};
    size_t n = (size_t)rows * (size_t)cols, blocks = (size_t)(cols / 32);
    float size = 1 / sqrtf((float)cols);
    int log_size = (int)floorf(log2f(size));
    if (dtype == DI_F32) {
        t.data = random_f32(a, n, size);
    } else if (dtype == DI_BF16) {
        t.data = random_bf16(a, (size_t)rows, (size_t)cols, size, VALUES_CALM);
    } else if (dtype == DI_F8_E4M3) {
        t.data = random_e4m3(a, n);
        t.scale = random_scales(a, (size_t)((rows + 31) / 32) * blocks, 127 + log_size - 6);
        t.scale_block[0] = t.scale_block[1] = 32;
    } else {
        uint8_t *pairs = arrays_take(a, n / 2, 1);
        for (size_t i = 0; i < n / 2; i++) {
            pairs[i] = (uint8_t)random_bits(a);
        }
        t.data = pairs;
        t.scale = random_scales(a, (size_t)rows * blocks, 127 + log_size - 1);
        t.scale_block[0] = 1;
        t.scale_block[1] = 32;
    }
    return t;
}

di_tensor random_table(arrays *a, int64_t rows, int64_t cols) {
    di_tensor t = {.dtype = DI_F8_E4M3, .rank = 2, .shape = {rows, cols}, .scale_block = {1, 32}};
    t.data = random_e4m3(a, (size_t)rows * (size_t)cols);
    t.scale = random_scales(a, (size_t)(rows * (cols / 32)), 120);
    return t;
}

di_state_layout *small_layout(arrays *a, int head_dim, int key_dim, int block_tokens, int ring_rows,
                              int group_rows) {
    di_state_layout *l = arrays_take(a, 1, sizeof *l);
    memset(l->latent_offset, 0xff, sizeof l->latent_offset);
    memset(l->key_offset, 0xff, sizeof l->key_offset);
    memset(l->ring_offset, 0xff, sizeof l->ring_offset);
    memset(l->group_offset, 0xff, sizeof l->group_offset);
    l->block_tokens = block_tokens;
    l->ring_rows = ring_rows;
    l->group_rows = group_rows;
    l->window_bytes = (size_t)head_dim + (size_t)head_dim / 32;
    l->latent_bytes = (size_t)head_dim / 2 + (size_t)head_dim / 16;
    l->key_bytes = (size_t)key_dim / 2 + (size_t)key_dim / 32;
    l->group_bytes = (size_t)head_dim * 2 * sizeof(float);
    l->key_offset[0] = 0;
    l->latent_offset[0] = (l->key_bytes * (size_t)block_tokens + 63) / 64 * 64;
    l->block_stride = (l->latent_offset[0] + l->latent_bytes * (size_t)block_tokens + 63) / 64 * 64;
    l->ring_offset[0] = 0;
    l->group_offset[0] = (l->window_bytes * (size_t)ring_rows + 63) / 64 * 64;
    l->slot_stride = (l->group_offset[0] + l->group_bytes * (size_t)group_rows + 63) / 64 * 64;
    return l;
}

di_state_pool small_pool(arrays *a, const di_state_layout *layout, int num_blocks, int num_slots) {
    return (di_state_pool){
        .layout = layout,
        .blocks = arrays_take(a, (size_t)num_blocks, layout->block_stride),
        .slots = arrays_take(a, (size_t)num_slots, layout->slot_stride),
    };
}
