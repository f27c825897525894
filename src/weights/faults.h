/* Where the checks of a checkpoint send what they find: opening stops at the first fault,
 * inspecting collects them all. */
#ifndef DI_WEIGHTS_FAULTS_H
#define DI_WEIGHTS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct di_faults {
    bool collect; /* set by the owner: go on after a fault */

    size_t count;    /* all faults, also those beyond DI_MAX_KEPT_FAULTS */
    di_error first;  /* the first one */
    char **messages; /* collect: the first DI_MAX_KEPT_FAULTS, owned */
    size_t num_messages, capacity;
    bool out_of_memory; /* ends every check */
} di_faults;

enum { DI_MAX_KEPT_FAULTS = 10000 };

/* Records a fault. True when the check may go on: `if (!di_fault(f, ...)) return false;` */
bool di_fault(di_faults *f, di_error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with a fault that another function has put into words. */
bool di_fault_error(di_faults *f, const di_error *fault);

/* True when nothing more should be checked: always false while collecting, memory permitting. */
bool di_faults_stop(const di_faults *f);

void di_faults_destroy(di_faults *f);

#endif
