/* A backend whose buffers are host memory, in front of one whose buffers are not: every op's arrays
 * are brought over, each into a buffer of its own, and what it wrote is brought back. So cases and
 * models that look into their buffers run on a card unchanged, and a memory checker sees where each
 * array ends. Slow, and thorough. */
#ifndef TESTS_SUPPORT_MIRROR_H
#define TESTS_SUPPORT_MIRROR_H

#include <stdbool.h>

#include "ops/ops.h"

/* Takes the inner backend over. forget (or NULL): called after every op, since weights of tests
 * come and go. */
di_backend *mirror_create(di_backend *inner, void (*forget)(di_backend *be));

/* TEST_BACKEND=cuda[:N]: tests of the CPU backend run on the card instead. */
bool card_under_test(void);

/* TEST_SMALL=1: under a tool that makes a card slow (compute-sanitizer), tests keep to the least
 * work that reaches every way through its kernels. */
bool small_form(void);

/* A mirror before that card; fails the test if there is none. passing: weights come and go. */
di_backend *mirror_of_card(bool passing);

#endif
