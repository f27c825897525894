/* A card that is none: the CPU backend behind a queue (ops/queue.h), as a library that the program
 * opens in place of the CUDA part (DI_CUDA_LIBRARY). What is queued runs as late as can be, when
 * somebody waits for it; argument memory has a copy of its own, which ops read; recorded ops run
 * when their program does, those of a branch as late as its join allows. So what a card needs of
 * its callers (nothing that changes behind its back, nothing recorded that is not in argument
 * memory, no waits inside a step) is tested where there is no card.
 *
 * Not for it: log-probabilities of what a token was drawn from (processed), weights, speed. */
#ifndef TESTS_SIMCARD_SIMCARD_H
#define TESTS_SIMCARD_SIMCARD_H

#include "ops/ops.h"

/* Draw i of the call, whose pointers are those of the card's copies. False: it is not for this
 * card. */
bool simcard_draw(const di_draw_call *call, int i);

#endif
