/* Temperatures of the confidence head, fitted to how its promises were kept: for each place of the
 * block, what the head said (before the sigmoid) of drafts whose test counted, and whether they
 * were accepted. */
#ifndef DI_ENGINE_CALIBRATION_H
#define DI_ENGINE_CALIBRATION_H

#include "deepinfer/deepinfer.h"
#include "sched/job.h"

enum { DI_CALIBRATION_BINS = 64 }; /* over [-8, 8]; what lies outside counts at the ends */

typedef struct di_calibration {
    double tests[DI_MAX_DRAFTS][DI_CALIBRATION_BINS], hits[DI_MAX_DRAFTS][DI_CALIBRATION_BINS];
} di_calibration; /* all zero: nothing seen */

void di_calibration_note(di_calibration *c, int place, double z, bool accepted);

/* What the tests of a place say at a temperature. */
typedef struct di_calibration_fit {
    double tests, observed, expected; /* count; shares accepted, and promised on average */
    double error; /* mean distance of both, bin by bin: the expected calibration error */
    double loss;  /* mean -log of what was promised for what came */
} di_calibration_fit;

di_calibration_fit di_calibration_judge(const di_calibration *c, int place, double temperature);

/* The temperature of the least loss, from 1/8 to 8; with few tests drawn to 1 (64 of them count as
 * much as that). */
double di_calibration_temperature(const di_calibration *c, int place);

/* Tests of an engine's drafts so far, what the head said taken at temperature 1 whatever the
 * engine's is; returns the number of drafts in a block, 0 without drafts. Any thread. */
int di_engine_get_calibration(di_engine *e, di_calibration *c);

#endif
