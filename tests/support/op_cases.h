/* Cases for ops: each runs one op on made-up arrays and leaves its results behind; they are then
 * held against the oracle's and against those of every instruction set and number of threads. */
#ifndef TESTS_SUPPORT_OP_CASES_H
#define TESTS_SUPPORT_OP_CASES_H

#include "support/arrays.h"

typedef enum part_kind { PART_BF16, PART_F32, PART_I32, PART_BYTES } part_kind;

/* One array of results, and how far from the oracle it may be (float kinds): `ulp` steps of BF16
 * (of 2^-20 of a value for f32), or `small` times the array's largest finite value for results that
 * are small by cancellation; at most one value in `one_in` may differ at all. */
typedef struct part {
    part_kind kind;
    size_t n;
    const void *data;
    int ulp, one_in;
    float small;
} part;

typedef struct results {
    part parts[256];
    int n;
    bool lacking; /* an allocation may fail in this run, and results be missing */
} results;

void add_part(results *r, part_kind kind, const void *data, size_t n, part tolerance);

/* Within a case: two of its results must be the same, unless they may be missing. */
void expect_same(const results *r, const void *got, const void *want, size_t bytes);

/* f32 sums of k terms of like size err by about sqrt(k) * 2^-24 of the largest result: far below a
 * BF16 step, so a result differs only when it lies next to a tie. */
static const part one_step __attribute__((unused)) = {.ulp = 1, .small = 0x1p-17f, .one_in = 50};
static const part fine
    __attribute__((unused)) = {.ulp = 16, .small = 0x1p-18f, .one_in = 1}; /* f32 results */
static const part exact __attribute__((unused)) = {0};

typedef void case_fn(di_backend *be, arrays *a, results *r);

/* Fails the test, naming `who`, unless got is want: within the tolerances (integers and bytes:
 * equal) if `want` is the oracle's, else to the bit (NaNs as a class). */
void compare(const results *got, const results *want, bool oracle, const char *who);

/* Runs a case with plain kernels on one thread, compares with the oracle (if it has anything to
 * say) and then with every instruction set on 1, 2 and 3 threads. With TEST_BACKEND=cuda: runs it
 * on a card instead (mirror.h), where the same tolerances hold. */
void check_case(case_fn *f, bool against_oracle);

/* Each allocation of an op failing in turn: nothing crashes, sync says so once, and after that the
 * same backend works. Without the test build's failing allocator, the round without a fault. */
void check_lack_of_memory(case_fn *f);

#endif
