/* A card on which everything can go wrong: the C of the CUDA part (src/ops/cuda/card) above a CUDA
 * runtime of the tests' own, whose calls fail when they are told to and whose kernels compute
 * nothing. A library that the program opens in place of the CUDA part (DI_CUDA_LIBRARY), to see on
 * machines without a card what is said of each fault, that nothing hangs and nothing is kept.
 *
 * BADCARD in the environment says what is wrong, words with commas between them:
 *
 *   driver=N      CUDA version that the driver offers, 0: there is none (13000)
 *   cards=N       how many there are (1)
 *   capability=N  10 times the cards' compute capability (90)
 *   memory=N      MiB of a card (8192)
 *   NAME=E        calls of the function NAME fail with error E, NAME@N=E the N-th alone
 *
 * Tests that have opened the library themselves use the functions, by dlsym. */
#ifndef TESTS_BADCARD_BADCARD_H
#define TESTS_BADCARD_BADCARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The n-th call from now on that can fail does, with the runtime's error number `error`; 0: none.
 * stays: so does every call behind it, as on a card with a fault, until the next badcard_fail_at.
 * Returns how many calls were made since the last badcard_fail_at. */
uint64_t badcard_fail_at(uint64_t n, int error, bool stays);

/* The function that failed on that account; NULL: none has. */
const char *badcard_failed(void);

/* Streams, events, graphs, pieces of memory that have been made and not been given back. */
size_t badcard_left(void);

/* For kernels.c: a launch, which fails or not; a kernel's fault, told by the next call that waits.
 */
void badcard_launch(const char *name);
void badcard_launch_rows(const char *name, int rows); /* along y */
void badcard_trap(void);

#endif
