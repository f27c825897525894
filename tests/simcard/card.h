/* What the files of the simulated card share. */
#ifndef TESTS_SIMCARD_CARD_H
#define TESTS_SIMCARD_CARD_H

#include "simcard/simcard.h"

enum { MAX_REGIONS = 16, MAX_WEIGHTS = 1 << 15, TOTAL_BYTES = 1 << 30 };

typedef struct simcard simcard;

typedef struct sim_call {
    void (*run)(simcard *c, void *args);
    void *args;
} sim_call;

typedef struct calls {
    sim_call *items;
    size_t count, capacity;
} calls;

struct di_program {
    calls calls;
};

typedef struct region {
    unsigned char *host, *there;
    size_t bytes;
} region;

struct simcard {
    di_backend base;
    di_backend *inner;
    region regions[MAX_REGIONS];
    int num_regions;
    calls queue;
    size_t next;           /* of the queue, that has not run */
    di_program *recording; /* or NULL */
    calls branches[DI_QUEUE_BRANCHES];
    int branch;          /* that calls are recorded on, from 1; 0: the main line */
    size_t step_room;    /* bytes that a step may take without more memory */
    const di_step *sent; /* whose sequences the queue's end has; NULL: nobody's */
    di_step there;       /* the sequences that the card has now */
    int ends[2];         /* by place: ends of steps that are queued and not reached */
    double begun[2], ended[2];
    bool in_step, guard;
    char fault[200];                  /* "": none */
    const void *weights[MAX_WEIGHTS]; /* that have been loaded: a hash table */
    int num_weights;
};

static inline simcard *simcard_of(di_backend *be) {
    return (simcard *)be;
}

/* Remembers the first fault: that `what` did something. */
void simcard_fault(simcard *c, const char *what, const char *why);
/* The host waits: all that is queued runs. */
void simcard_wait(simcard *c, const char *what);
/* Queues a call, or writes it down; the arguments are copied. */
void simcard_push(simcard *c, void (*run)(simcard *c, void *args), const void *args, size_t bytes);
/* The card's copy of argument memory; NULL: the array has none. */
void *simcard_there(const simcard *c, const void *host);
/* An op is given a weight. */
void simcard_use_weight(simcard *c, const void *host);
/* The step as an op is given it; and when the op runs, with the card's own sequences. */
di_step simcard_given_step(simcard *c, const di_step *step);
bool simcard_enter_step(simcard *c, di_step *step);

extern const di_ops simcard_ops; /* the ops alone (ops.c) */

#endif
