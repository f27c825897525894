/* The oracle: every op in plain C, float64 sums, one loop per line of the formula. Used by tests
 * and by `--backend ref`; never fast, never clever, and it includes nothing of another backend. */
#ifndef DI_OPS_REF_REF_H
#define DI_OPS_REF_REF_H

#include "ops/ops.h"

di_backend *di_ref_create(di_error *err);

#endif
