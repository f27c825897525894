/* Where a record of a sequence's state lies on the card (the address function of ops.h), and how
 * its values are read. */
#ifndef DI_OPS_CUDA_STATE_CUH
#define DI_OPS_CUDA_STATE_CUH

#include "ops/cuda/card/common.cuh"

__device__ __forceinline__ uint8_t *ring_row(const dk_step &s, int slot, int64_t pos) {
    return s.slots + (size_t)slot * s.slot_stride + s.ring_offset +
           (size_t)((uint32_t)pos % (uint32_t)s.ring_rows) * s.window_bytes;
}

__device__ __forceinline__ float *group_row(const dk_step &s, int slot, int64_t pos) {
    return (float *)(s.slots + (size_t)slot * s.slot_stride + s.group_offset +
                     (size_t)((uint32_t)pos % (uint32_t)s.group_rows) * s.group_bytes);
}

/* The block of entry e, and e's row in it. */
__device__ __forceinline__ uint8_t *entry_block(const dk_step &s, const dk_seq &seq, int ratio,
                                                int64_t e, int *row) {
    uint32_t per_block = (uint32_t)s.block_tokens / (uint32_t)ratio, at = (uint32_t)e;
    *row = (int)(at % per_block);
    return s.blocks + (size_t)s.tables[seq.table + at / per_block] * s.block_stride;
}

__device__ __forceinline__ uint8_t *latent_row(const dk_step &s, const dk_seq &seq, int ratio,
                                               int64_t e) {
    int row;
    uint8_t *block = entry_block(s, seq, ratio, e, &row);
    return block + s.latent_offset + (size_t)row * s.latent_bytes;
}

__device__ __forceinline__ uint8_t *key_row(const dk_step &s, const dk_seq &seq, int ratio,
                                            int64_t e) {
    int row;
    uint8_t *block = entry_block(s, seq, ratio, e, &row);
    return block + s.key_offset + (size_t)row * s.key_bytes;
}

/* 4 bytes at any address: records of odd sizes lie at odd places. */
__device__ __forceinline__ uint32_t load_word(const uint8_t *p) {
    if (((size_t)p & 3) == 0) {
        return *(const uint32_t *)p;
    }
    return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The low and the high halves of two words: from decoding order back to the order of a record. */
__device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, 0x5410);
}

__device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, 0x7632);
}

__device__ __forceinline__ uint32_t scaled(uint32_t pair, const scale_pair &s) {
    pair = mul_bf16x2(pair, s.first);
    return s.both ? mul_bf16x2(pair, s.second) : pair;
}

/* 4 E4M3 codes with a scale that is a power of two. */
__device__ __forceinline__ uint2 fp8_values(uint32_t w, const scale_pair &s, float scale) {
    uint32_t even, odd;
    if (fp8_nans(w) & 0x80808080u) { /* rare: NaN codes look like numbers to the fast way */
        even = to_bf16(e4m3_value(w & 255) * scale) |
               (uint32_t)to_bf16(e4m3_value(w >> 16 & 255) * scale) << 16;
        odd = to_bf16(e4m3_value(w >> 8 & 255) * scale) |
              (uint32_t)to_bf16(e4m3_value(w >> 24) * scale) << 16;
    } else {
        fp8_pairs(w, &even, &odd);
        even = scaled(even, s);
        odd = scaled(odd, s);
    }
    return make_uint2(low_halves(even, odd), high_halves(even, odd));
}

/* Values [8i, 8i + 8) of a record as they lie there: loaded first, decoded when they have come. All
 * zeros decode to zeros. */
struct raw_group {
    uint32_t low, high, scale;
};

__device__ __forceinline__ raw_group window_raw(const uint8_t *record, int dim, int i) {
    return {load_word(record + 8 * i), load_word(record + 8 * i + 4), record[dim + i / 4]};
}

__device__ __forceinline__ raw_group latent_raw(const uint8_t *record, int dim, int i) {
    return {load_word(record + 4 * i), 0, record[dim / 2 + i / 2]};
}

__device__ __forceinline__ raw_group key_raw(const uint8_t *record, int dim, int i) {
    return {load_word(record + 4 * i), 0, record[dim / 2 + i / 4]};
}

/* E4M3 codes, an E8M0 for 32: exact in BF16, in order. */
__device__ __forceinline__ uint4 window_values(raw_group raw) {
    scale_pair s = make_scale(raw.scale, 120);
    float scale = e8m0_value(raw.scale);
    uint2 a = fp8_values(raw.low, s, scale), b = fp8_values(raw.high, s, scale);
    return make_uint4(a.x, a.y, b.x, b.y);
}

__device__ __forceinline__ uint4 fp4_values(uint32_t w, const scale_pair &s) {
    uint32_t p[4];
    fp4_pairs(w, p);
    for (int i = 0; i < 4; i++) {
        p[i] = scaled(p[i], s);
    }
    return make_uint4(low_halves(p[0], p[1]), low_halves(p[2], p[3]), high_halves(p[0], p[1]),
                      high_halves(p[2], p[3]));
}

/* The same of a latent: E2M1, an E4M3 for 16. */
__device__ __forceinline__ uint4 latent_values(raw_group raw) {
    scale_pair s = {twice(0x7e80u), twice(to_bf16(e4m3_value(raw.scale))), true};
    return fp4_values(raw.low, s);
}

/* And of an index key: E2M1, an E8M0 for 32. */
__device__ __forceinline__ uint4 key_values(raw_group raw) {
    return fp4_values(raw.low, make_scale(raw.scale, 126));
}

#endif
