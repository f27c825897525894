/* What the kernel files offer to the C side of the CUDA backend: launchers, and the structs that
 * kernels take by value. Plain C on both sides. A launcher queues work on the stream and returns;
 * launch errors are read by the caller (card.h, dk_launched). Included only inside ops/cuda/card.
 */
#ifndef DI_OPS_CUDA_KERNELS_H
#define DI_OPS_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t dk_bf16; /* as di_bf16 */

/* Rows of a launch whose grid has them along y, which is how long that may be: dk_mhc_pre,
 * dk_stream_mean, dk_mhc_post, dk_index. */
enum { DK_MOST_ROWS = 65535 };

typedef enum dk_format { DK_BF16, DK_FP8, DK_FP4 } dk_format;

/* ---- matrices ----------------------------------------------------------------------------------
 *
 * A weight matrix as it lies on the card: in the order in which kernels read it. A tile is 64 rows,
 * a chunk of it 64 values of each: its codes, then their scales, in one run of dk_chunk_bytes bytes
 * (codes.cuh says how). Chunks of a tile follow one another, then the next tile; rows and values
 * behind the matrix's end are zeros. Behind the last tile of an FP8 matrix: a byte a row, not 0 if
 * it holds a NaN code. Then, of FP8 and FP4, a byte that is not 0 if a scale is wide: needs more
 * than one factor to decode with (codes.cuh). */
typedef struct dk_matrix {
    dk_format format;
    const uint8_t *data;
    int rows, k; /* as stored, without filling */
    int tiles, chunks;
} dk_matrix;

enum { DK_TILE_ROWS = 64, DK_CHUNK = 64 };

#ifdef __CUDACC__
#define DK_BOTH static constexpr __host__ __device__ __forceinline__
#else
#define DK_BOTH static inline
#endif

DK_BOTH size_t dk_chunk_bytes(dk_format format) {
    return format == DK_BF16 ? 8192 : format == DK_FP8 ? 4096 + 16 : 2048 + 128;
}

DK_BOTH size_t dk_tile_bytes(const dk_matrix *w) {
    return (size_t)w->chunks * dk_chunk_bytes(w->format);
}

/* Where the byte about wide scales lies. */
DK_BOTH size_t dk_matrix_wide(const dk_matrix *w) {
    return (size_t)w->tiles * (dk_tile_bytes(w) + (w->format == DK_FP8 ? DK_TILE_ROWS : 0));
}

DK_BOTH size_t dk_matrix_bytes(const dk_matrix *w) {
    return dk_matrix_wide(w) + (w->format == DK_BF16 ? 0 : 16);
}

/* Fills tiles [first, ...) of w->data (zeros before) from `rows` whole rows as a checkpoint stores
 * them: codes [rows, k], scales [rows / 32 rounded up, k / 32] for FP8, [rows, k / 32] for FP4. */
void dk_pack(cudaStream_t s, const dk_matrix *w, int first, int rows, const uint8_t *codes,
             const uint8_t *scale);

/* Activations lie in planes of 64 values: [planes, rows, 64], pieces of 8 values exchanged as the
 * tensor cores' shared memory wants them (common.cuh). Values of such a buffer: */
DK_BOTH size_t dk_prepared_values(size_t rows, int k) {
    return rows * (size_t)((k + DK_CHUNK - 1) / DK_CHUNK) * DK_CHUNK;
}

/* Exactly one of yb and yf is not NULL; rows lie ldy values apart. add: to what yf holds. q8: yb
 * goes through Q8, rows being ldy values long. */
typedef struct dk_result {
    dk_bf16 *yb;
    float *yf;
    size_t ldy;
    bool add, q8;
} dk_result;

typedef struct dk_target { /* a weight, and where its product goes */
    dk_matrix w;
    dk_result y;
} dk_target;

/* y[t][g * m + i] = x[t][g] . row g * m + i of w, m = w.rows / groups; x [n, groups, k] goes
 * through Q8 first or not. With two targets groups is 1; their weights have one format and k. */
typedef struct dk_product {
    dk_target to[2];
    int targets;
    const dk_bf16 *x; /* NULL: prepared holds them, [groups][n rows], zeros behind k */
    int n, groups;
    bool quantise, free_order; /* free_order: k need not be cut as it is for few rows */
    dk_bf16 *prepared;         /* dk_prepared_values(n * groups, k), if dk_prepares() */
} dk_product;

/* Whether activations must be prepared by a kernel of their own. */
bool dk_prepares(const dk_product *p);
void dk_multiply(cudaStream_t s, const dk_product *p);

/* ---- experts ----------------------------------------------------------------------------------*/

typedef struct dk_expert { /* one expert's matrices; all experts have one shape */
    const uint8_t *w1, *w3, *w2;
} dk_expert;

/* A tile is some uses of one expert: a run of slots. An expert's slots begin at a multiple of 8. */
typedef struct dk_tile {
    int32_t expert, first, count;
} dk_tile;

typedef struct dk_moe {
    int n, top_k, num_experts, d;
    int tile_rows, max_tiles, slots; /* rows of a tile: 8, 64 or 256 */
    const int32_t *experts;          /* [n, top_k] */
    const float *weights;            /* [n, top_k] */
    const dk_expert *table;          /* [num_experts], on the card */
    dk_matrix up, down;              /* shapes of the routed experts; data unused */
    const dk_expert *shared;         /* [1], on the card */
    dk_matrix shared_up, shared_down;
    float limit;
    const dk_bf16 *x;          /* [n, d] */
    dk_bf16 *x_routed;         /* prepared, a row a slot */
    dk_bf16 *x_shared;         /* prepared, a row a token */
    int32_t *num_tiles;        /* [1] */
    dk_tile *tiles;            /* [max_tiles] */
    int32_t *slot;             /* [n * top_k], of a use */
    int32_t *place;            /* [slots], row of out */
    float *weight;             /* [slots] */
    dk_bf16 *mid, *mid_shared; /* prepared t, [slots] and [n] */
    dk_bf16 *out;              /* [n, top_k + 1, d] */
    unsigned *tickets;         /* [DK_MOE_TICKETS], zeros before and after */
    bool unlisted;             /* few tokens need no lists; dk_moe_run says so */
    dk_bf16 *y;                /* [n, d] */
} dk_moe;

enum { DK_MOE_TICKETS = 2048 };

/* Slots that the worst case needs. */
DK_BOTH int dk_moe_slots(int n, int top_k, int num_experts) {
    int pairs = n * top_k;
    return pairs + 7 * (pairs < num_experts ? pairs : num_experts);
}

void dk_moe_run(cudaStream_t s, const dk_moe *m);

void dk_route(cudaStream_t s, const float *logits, int n, int num_experts, const float *bias,
              const float *bias_vl, const uint8_t *image, float temp, int top_k, bool norm,
              float scale, int32_t *experts, float *weights);

/* ---- state of sequences -----------------------------------------------------------------------*/

typedef struct dk_seq {
    int32_t row0, num_rows;
    int64_t pos0, window_start;
    int32_t table; /* where its block table begins in dk_step.tables */
    int32_t slot, draft;
} dk_seq;

/* di_step on the card, with the offsets of the layer or source at hand. */
typedef struct dk_step {
    int num_rows, num_seqs;
    const dk_seq *seqs;
    const int32_t *row_seq; /* [num_rows] */
    const int32_t *tables;
    uint8_t *blocks, *slots;
    size_t block_stride, slot_stride;
    int block_tokens, ring_rows, group_rows;
    size_t window_bytes, latent_bytes, key_bytes, group_bytes;
    size_t latent_offset, key_offset, ring_offset, group_offset;
} dk_step;

typedef struct dk_entry {
    int32_t seq;
    int64_t entry;
} dk_entry;

void dk_window_make(cudaStream_t s, const dk_bf16 *kv, int n, int dim, const dk_bf16 *norm,
                    float eps, const float *cosine, const float *sine, int half, uint8_t *records);
void dk_window_store(cudaStream_t s, const dk_step *step, const uint8_t *records);
void dk_compress(cudaStream_t s, const dk_step *step, int ratio, const float *k, const float *g,
                 const dk_entry *entries, int m, int dim, dk_bf16 *latents);
void dk_entry_store(cudaStream_t s, const dk_step *step, int ratio, const dk_entry *entries, int m,
                    const dk_bf16 *latents, int dim, const dk_bf16 *keys, int key_dim);

/* Decoded list blocks: 64 slots of up to 512 values, as tensor cores read them. */
enum {
    DK_TILE_BLOCKS = 10,
    DK_TILE_BYTES = 64 * 512 * 2,
    DK_TOLD_BYTES = 64 * 64 * 2 + 2 * 64 * 4, /* probabilities of 64 heads, sums of their halves */
};

typedef struct dk_attention_call {
    dk_step step;
    int window, ratio, heads, dim, k;
    int most_slots;             /* of any row's list */
    int half;                   /* of the values that are rotated */
    bool wide;                  /* all records lie at multiples of 16 bytes */
    const float *cosine, *sine; /* [rows, half] */
    const dk_bf16 *q;
    const uint8_t *records;
    const int32_t *topk;
    const float *sink;
    float scale;
    dk_bf16 *out;
    /* decoded beforehand, or NULL: [rows, DK_TILE_BLOCKS] tiles, and two words each of filled slots
     */
    unsigned char *tiles;
    uint32_t *filled;
    /* then, too: [rows, groups of 64 heads, DK_TILE_BLOCKS] pieces of DK_TOLD_BYTES, to work in */
    unsigned char *told;
} dk_attention_call;

void dk_attention(cudaStream_t s, const dk_attention_call *c);

/* Whether tiles serve calls of this shape; and decoding of a window's keys, of chosen entries. */
bool dk_attention_takes_tiles(const dk_attention_call *c);
void dk_attention_keys(cudaStream_t s, const dk_attention_call *c, bool window, bool entries);

typedef struct dk_index_call {
    dk_step step;
    int ratio, heads, key_dim, k, max_blocks, block_size;
    int first_row, rows; /* the step's rows that this launch serves */
    int64_t places;      /* most of any row: entries, or places of its candidate blocks */
    float factor;
    const dk_bf16 *q, *weights;
    int32_t *candidates, *topk;
    bool build;
    uint32_t *keys; /* [rows, places] */
} dk_index_call;

void dk_index(cudaStream_t s, const dk_index_call *c);

/* ---- rows -------------------------------------------------------------------------------------*/

void dk_embed(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *table, int d, int hc,
              dk_bf16 *h, float *pre);
void dk_gather(cudaStream_t s, const void *from, const int32_t *rows, int n, size_t bytes,
               void *to);
/* out[t] = bf16(mean over the streams), rows ldo values apart. */
void dk_stream_mean(cudaStream_t s, const dk_bf16 *h, int n, int hc, int d, dk_bf16 *out,
                    size_t ldo);
/* y or q8 may be NULL. */
void dk_rms_norm(cudaStream_t s, const dk_bf16 *x, const dk_bf16 *w, float eps, int n, int dim,
                 dk_bf16 *y, dk_bf16 *q8);
void dk_rope_table(cudaStream_t s, const int64_t *positions, int n, const float *freq, int half,
                   float *cosine, float *sine);
void dk_rope(cudaStream_t s, dk_bf16 *x, int n, int heads, int dim, const float *cosine,
             const float *sine, int half, bool inverse);

typedef struct dk_mix {
    int n, hc, width, mixes, sinkhorn_iters; /* width: hc * d, mixes: (2 + hc) * hc */
    int part; /* values of one of 128 parts of the width; dk_mhc_mix sets it */
    float norm_eps, hc_eps;
    const dk_bf16 *h;
    const float *fn, *base, *scale;
    double *sums;      /* [n, mixes + 1, 16], the square sum last */
    unsigned *tickets; /* [n], zeros before and after */
    float *pre, *post, *comb;
} dk_mix;

void dk_mhc_mix(cudaStream_t s, const dk_mix *m);
void dk_mhc_pre(cudaStream_t s, const dk_bf16 *h, const float *pre, int n, int hc, int d,
                dk_bf16 *out);

typedef struct dk_expand {
    int n, hc, d;
    const dk_bf16 *y;
    const float *post, *comb;
    dk_bf16 *h;
    const float *pre; /* these and x: where norm is not NULL */
    const dk_bf16 *norm;
    float norm_eps;
    dk_bf16 *x, *q8; /* q8 may be NULL */
} dk_expand;

void dk_mhc_post(cudaStream_t s, const dk_expand *e);

/* codes [n, k] E4M3 and scales [n, k / 32] E8M0 -> prepared activations. */
void dk_engram_rows(cudaStream_t s, const uint8_t *codes, const uint8_t *scales, int n, int k,
                    dk_bf16 *out);
/* kv [n, hc + 1, d]; h row tokens[i] takes what kv row i gives it; -1: nobody does. */
void dk_engram_gate(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *kv,
                    const dk_bf16 *qw, const dk_bf16 *kw, int hc, int d, float eps, dk_bf16 *h);

/* ---- measuring --------------------------------------------------------------------------------*/

/* Reads `bytes` once with 16-byte loads: the ceiling that bandwidth-bound kernels are held against.
 * 0 bytes: a launch that does nothing and overlaps as others do. */
void dk_read_all(cudaStream_t s, const void *from, size_t bytes, uint32_t *sink);

#ifdef __cplusplus
}
#endif

#endif
