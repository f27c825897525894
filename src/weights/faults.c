/* Collecting faults: see faults.h. */
#include "weights/faults.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"

bool di_fault_error(di_faults *f, const di_error *fault) {
    if (f->count++ == 0) {
        f->first = *fault;
    }
    if (fault->code == DI_ERR_NO_MEMORY) {
        f->out_of_memory = true;
        f->first = *fault;
    }
    if (di_faults_stop(f)) {
        return false;
    }
    if (f->num_messages < DI_MAX_KEPT_FAULTS) {
        char **grown = di_grow(f->messages, f->num_messages, &f->capacity, sizeof *grown);
        f->messages = grown ? grown : f->messages;
        char *text = grown ? di_strdup(fault->message) : NULL;
        if (!text) {
            f->out_of_memory = true;
            return di_fail(&f->first, DI_ERR_NO_MEMORY, "no memory for a list of faults");
        }
        f->messages[f->num_messages++] = text;
    }
    return true;
}

bool di_fault(di_faults *f, di_error_code code, const char *format, ...) {
    char text[DI_ERROR_MESSAGE_BYTES];
    di_error fault;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    di_fail(&fault, code, "%s", text);
    return di_fault_error(f, &fault);
}

bool di_faults_stop(const di_faults *f) {
    return f->out_of_memory || (!f->collect && f->count > 0);
}

void di_faults_destroy(di_faults *f) {
    for (size_t i = 0; i < f->num_messages; i++) {
        di_free(f->messages[i]);
    }
    di_free(f->messages);
    *f = (di_faults){0};
}
