/* Keys of attention for few queries, decoded beforehand, bf16(code * scale): a row's list of up
 * to 640 records to tiles of 64 slots by dim values. Beside the queries' products, and chosen
 * entries once for all layers that share the choice. attention_spread.cu then brings whole
 * tiles. Bound by latencies: addresses of records, records, stores. */
#include "ops/cuda/card/attention.cuh"
#include "ops/cuda/card/launch.cuh"

enum { THREADS = 128, SLOTS = 16 /* of a list block that a block of threads decodes */ };

/* Grid: slots of list blocks from `first` on, SLOTS at a time; rows. All are of one kind. */
template <bool LATENT>
static __global__ void __launch_bounds__(THREADS) decode_keys(dk_attention_call c, int first) {
    enum { VALUES = LATENT ? 32 : 16, AHEAD = SLOTS * MAX_DIM / VALUES / THREADS };
    __shared__ const uint8_t *record[SLOTS];
    int block = first + blockIdx.x / (TILE / SLOTS), part = blockIdx.x % (TILE / SLOTS);
    int row = blockIdx.y, pieces = c.dim / VALUES;
    size_t at = tile_index(row, block);
    unsigned char *tile = c.tiles + at * TILE_BYTES;
    begin_overlapped();
    if (threadIdx.x < 32) {
        int slot = part * SLOTS + threadIdx.x;
        const uint8_t *from = NULL;
        if (threadIdx.x < SLOTS) {
            from = slot_record(c, query_of(c, row, 0), block * TILE + slot);
            record[threadIdx.x] = from;
        }
        unsigned filled = __ballot_sync(0xffffffffu, from != NULL);
        if (threadIdx.x == 0) {
            ((uint16_t *)c.filled)[at * (TILE / SLOTS) + part] = (uint16_t)filled;
        }
    }
    __syncthreads();
    record_piece piece[AHEAD] = {}; /* zeros in empty slots */
#pragma unroll
    for (int u = 0; u < AHEAD; u++) { /* all on their way at once */
        int task = threadIdx.x + u * THREADS, slot = task / pieces;
        if (slot < SLOTS && record[slot]) {
            piece[u] = load_piece(record[slot], task % pieces, c.dim, LATENT);
        }
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        int task = threadIdx.x + u * THREADS, slot = task / pieces;
        if (slot < SLOTS && LATENT) {
            put_latent(tile, part * SLOTS + slot, task % pieces, piece[u]);
        } else if (slot < SLOTS) {
            put_window(tile, part * SLOTS + slot, task % pieces, piece[u]);
        }
    }
}

bool dk_attention_takes_tiles(const dk_attention_call *c) {
    bool even = c->window % TILE == 0 && c->k % TILE == 0 && c->dim % TILE == 0;
    return even && c->wide && c->dim <= MAX_DIM && c->most_slots == c->window + c->k &&
           c->most_slots <= TILE_BLOCKS * TILE && dk_attention_spread_size(c) > 0;
}

void dk_attention_keys(cudaStream_t s, const dk_attention_call *c, bool window, bool entries) {
    int windows = c->window / TILE, parts = TILE / SLOTS, rows = c->step.num_rows;
    if (window && windows > 0) {
        launch_overlapped(s, decode_keys<false>, dim3(windows * parts, rows), THREADS, 0, 1, *c, 0);
    }
    if (entries && c->k > 0) {
        launch_overlapped(s, decode_keys<true>, dim3(c->k / TILE * parts, rows), THREADS, 0, 1, *c,
                          windows);
    }
}
