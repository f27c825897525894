/* What tests of queued steps run on. */
#ifndef TESTS_SUPPORT_QUEUED_H
#define TESTS_SUPPORT_QUEUED_H

/* The card under test (mirror.h), or without one the simulated card (simcard/simcard.h), which is
 * put in the place of the CUDA part: a name for a backend. */
const char *queued_backend(void);

#endif
