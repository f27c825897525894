/* Keys of attention for few queries, decoded beforehand: beside the queries' products, and chosen
 * entries once for all layers that share the choice. attention_spread.cu then brings whole tiles.
 * Bound by latencies: addresses of records, records, stores. */
#include "attention.cuh"
#include "launch.cuh"

enum { THREADS = 256 };

/* Grid: list blocks from `first` on, rows. All slots of a block are of one kind. */
static __global__ void __launch_bounds__(THREADS) decode_keys(dk_attention_call c, int first) {
    __shared__ const uint8_t *record[TILE];
    int block = first + blockIdx.x, row = blockIdx.y;
    size_t at = tile_index(row, block);
    unsigned char *tile = c.tiles + at * TILE_BYTES;
    begin_overlapped();
    if (threadIdx.x < TILE) {
        query q = query_of(c, row, 0);
        record[threadIdx.x] = slot_record(c, q, block * TILE + threadIdx.x);
        unsigned filled = __ballot_sync(0xffffffffu, record[threadIdx.x] != NULL);
        if (threadIdx.x % 32 == 0) {
            c.filled[2 * at + threadIdx.x / 32] = filled;
        }
    }
    __syncthreads();
    bool latent = block * TILE >= c.window;
    int values = latent ? 32 : 16, pieces = c.dim / values;
#pragma unroll 2
    for (int task = threadIdx.x; task < TILE * pieces; task += THREADS) {
        int slot = task / pieces, i = task % pieces;
        if (!record[slot]) {
            for (int unit = 0; unit < values / 8; unit++) {
                *(uint4 *)(tile + tile_unit(slot, i * (values / 8) + unit)) =
                    make_uint4(0, 0, 0, 0);
            }
        } else if (latent) {
            put_latent(tile, slot, i, record[slot], c.dim);
        } else {
            put_window(tile, slot, i, record[slot], c.dim);
        }
    }
}

bool dk_attention_takes_tiles(const dk_attention_call *c) {
    bool even = c->window % TILE == 0 && c->k % TILE == 0 && c->dim % TILE == 0;
    return even && c->wide && c->dim <= MAX_DIM && c->most_slots == c->window + c->k &&
           c->most_slots <= TILE_BLOCKS * TILE && dk_attention_spread_size(c) > 0;
}

void dk_attention_keys(cudaStream_t s, const dk_attention_call *c, int first, int count) {
    if (count > 0) {
        launch_overlapped(s, decode_keys, dim3(count, c->step.num_rows), THREADS, 0, 1, *c, first);
    }
}
