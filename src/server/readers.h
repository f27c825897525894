/* Threads that read long bodies. Parsing and tokenising a megabyte takes tens of milliseconds, and
 * the thread that has the sockets would write nobody's answer meanwhile; short bodies it reads
 * itself, for which handing over would take longer than reading. First come, first read. */
#ifndef DI_SERVER_READERS_H
#define DI_SERVER_READERS_H

#include <stdbool.h>

#include "base/error.h"

enum { DI_READERS_LONG = 8192 }; /* bytes of a body that is handed over: up to half a millisecond */

typedef struct di_readers di_readers;

/* What is to be done; it lies in the caller's memory until `run` is called, once. */
typedef struct di_reading_job {
    void (*run)(void *context);
    void *context;
    struct di_reading_job *next;
} di_reading_job;

/* threads 0: nothing is ever taken. NULL with DI_ERR_NO_MEMORY or _IO. */
di_readers *di_readers_create(int threads, di_error *err);

/* False: it was not taken, the caller does it. */
bool di_readers_give(di_readers *r, di_reading_job *job);

/* Nothing is taken any more; returns when all that was taken has been run. NULL is allowed. */
void di_readers_finish(di_readers *r);

void di_readers_destroy(di_readers *r); /* NULL is allowed */

#endif
