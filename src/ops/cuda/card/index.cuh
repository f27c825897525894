/* What index scores and selection share: the places of a row's list, and scores as ordered
 * integers, so that the choice is exact. */
#ifndef DI_OPS_CUDA_INDEX_CUH
#define DI_OPS_CUDA_INDEX_CUH

#include "ops/cuda/card/state.cuh"

/* Places of a row's list are its visible entries, or, one block behind the other, those of its
 * candidate blocks. */
struct index_list {
    int seen, places;
    bool listed;
};

static __device__ __forceinline__ index_list list_of(const dk_index_call &c, const dk_seq &seq,
                                                     int row) {
    index_list l = {0, 0, c.candidates && !c.build};
    l.seen = l.places = (int)((seq.pos0 + (row - seq.row0) + 1) / c.ratio);
    if (l.listed) {
        int blocks = (l.seen + c.block_size - 1) / c.block_size;
        l.places = min(blocks, c.max_blocks) * c.block_size;
    }
    return l;
}

/* The entry in a place, or -1. */
static __device__ __forceinline__ int entry_at(const dk_index_call &c, const index_list &l, int row,
                                               int place) {
    int entry = place;
    if (place >= l.places) {
        return -1;
    }
    if (l.listed) {
        uint32_t at = (uint32_t)place, size = (uint32_t)c.block_size;
        int32_t block = c.candidates[(size_t)row * c.max_blocks + at / size];
        if (block < 0) {
            return -1;
        }
        entry = block * c.block_size + (int)(at % size);
    }
    return entry < l.seen ? entry : -1;
}

/* 0: never chosen. */
static __device__ __forceinline__ uint32_t score_key(float score) {
    uint32_t u = __float_as_uint(score + 0.0f); /* -0 becomes +0 */
    if ((u & 0x7f800000u) == 0x7f800000u) {
        return 0;
    }
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Chooses by c->keys (index_select.cu). */
void dk_index_select(cudaStream_t s, const dk_index_call *c);

#endif
