/* What benchmarks of the card's ops share: the card, data on it, and times beside the bandwidth of
 * reading its memory, measured in the same run. For one thread; whatever fails ends the program. */
#ifndef BENCH_SUPPORT_CARD_H
#define BENCH_SUPPORT_CARD_H

#include <stdbool.h>
#include <stddef.h>

#include "ops/cuda/cuda.h"
#include "ops/queue.h"

/* Sizes of DeepSeek-V4.1-Flash. */
enum {
    HIDDEN = 5120,
    INTER = 2304,
    EXPERTS = 384,
    TOP_K = 6,
    Q_LORA = 1280,
    HEADS = 64,
    HEAD_DIM = 512,
    ROPE_HALF = 32,
    WINDOW = 128,
    INDEX_TOPK = 512,
    INDEX_HEADS = 32,
    INDEX_DIM = 128,
    O_GROUPS = 8,
    O_LORA = 1024,
    HC = 4,
    BLOCK_TOKENS = 128,
    RING_ROWS = 136,
    MAX_ROWS = 8192,
};

enum { PIECE = 1 << 20 }; /* bytes of random data, repeated as often as needed */

extern di_backend *be; /* the card */
extern int only_rows;  /* 0, or the number of rows that is asked for */

/* Opens card 0 and measures; of the program's arguments the first picks lines or parts by a piece
 * of their name, the second what takes rows by their number. False, told, without a card. */
bool card_open(int argc, char **argv);
void card_close(void);

_Noreturn void give_up(const char *what);
void wait_for_all(void);

/* A synthetic weight at an address of its own: weights are visited in turn so that none is found in
 * a cache again. On the host they are one small piece of memory that stands at many
 * addresses; on the card every address has a copy of its own. */
di_tensor make_weight(di_dtype dtype, int64_t rows, int64_t k);
size_t weight_bytes(const di_tensor *w);

/* Memory of the card: as it is; filled with a piece, again and again; n BF16 values of about unit
 * size that Q8 does not change; random bytes under a mask. */
void *device(size_t bytes);
void fill(void *to, size_t bytes, const void *piece);
di_bf16 *device_bf16(size_t n);
void *device_bytes(size_t n, uint64_t mask);

/* Seconds of one call f(user, i), i going round from 0 to cycle - 1: the median of 5 runs of as
 * many calls as fill 20 ms; called one by one, or recorded as one program of `cycle`. */
typedef void call_fn(void *user, int i);
double per_call(call_fn *f, void *user, int cycle);
double per_recorded_call(call_fn *f, void *user, int cycle);

/* Whether a line of that name was asked for; a line, beside the bandwidth, with the clock that the
 * card had in the latest timing (the lowest of its 5 runs). Power may hold it back: then bytes take
 * the longer the more is computed with them. */
bool wanted(const char *name);
void tell(const char *name, double seconds, double bytes, double flops);

#endif
