/* What the engine needs to draft: temperatures of the confidence head, and the pricer with its
 * costs. */
#ifndef DI_ENGINE_SPEC_H
#define DI_ENGINE_SPEC_H

#include "deepinfer/deepinfer.h"
#include "engine/spec_curve.h"
#include "sched/pricer.h"

/* The file of `deepinfer calibrate`, in the model's folder. */
#define DI_CALIBRATION_FILE "draft_calibration.json"

/* Temperatures of n drafts, from `text` (one number, or n with commas), else (NULL) from the
 * model's DI_CALIBRATION_FILE if there is one, else 1. Refused by name: numbers that are not
 * between 0.01 and 100, another count. */
bool di_temperatures_read(const char *text, const char *model, int n, double *out, di_error *err);

/* Writes that file for n drafts. */
bool di_temperatures_write(const char *model, const double *temperatures, int n, long rounds,
                           di_error *err);

/* A pricer as the options want it. Steps are measured (or their costs read) only if drafts are
 * priced. */
bool di_spec_open(di_pricer *p, const di_parts *parts, const di_engine_options *o,
                  const di_curve_request *r, di_error *err);

#endif
