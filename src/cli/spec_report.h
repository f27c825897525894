/* What --spec-stats shows: how drafts fared, by their place in the block, and how well the times of
 * steps were predicted. */
#ifndef DI_CLI_SPEC_REPORT_H
#define DI_CLI_SPEC_REPORT_H

#include <stdio.h>

#include "deepinfer/deepinfer.h"

/* Sums since the engine was opened. */
void di_spec_report(di_engine *engine, FILE *out);

#endif
