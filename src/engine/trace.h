/* A Chrome trace of the steps (load it in chrome://tracing or Perfetto): what the host did, what
 * the device did, how many rows. Written by the step thread, one event a line. */
#ifndef DI_ENGINE_TRACE_H
#define DI_ENGINE_TRACE_H

#include "engine/device.h"

typedef struct di_trace di_trace;

di_trace *di_trace_open(const char *path, di_error *err);
/* Ends the file so that it is whole JSON; false if something could not be written. */
bool di_trace_close(di_trace *t, di_error *err);

/* A step that was read at `read` (CLOCK_MONOTONIC seconds) after `host` seconds of the host's work
 * on it in all. t may be NULL. */
void di_trace_step(di_trace *t, const di_work *w, double read, double host);

#endif
