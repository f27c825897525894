/* Doubly linked rings of numbers, their links in one array: the list of what may be evicted, oldest
 * first, is the ring through number 0; blocks of equal content form rings of their own. */
#ifndef DI_CACHE_RING_H
#define DI_CACHE_RING_H

#include <stdint.h>

typedef struct di_link {
    int32_t previous, next;
} di_link;

/* Alone, `n` is its own neighbour. A zeroed link of number 0 is such a ring. */
static inline void di_ring_start(di_link *links, int32_t n) {
    links[n] = (di_link){n, n};
}

/* In front of `at`; in front of 0 is the end of the list. */
static inline void di_ring_insert(di_link *links, int32_t at, int32_t n) {
    int32_t before = links[at].previous;
    links[n] = (di_link){before, at};
    links[before].next = links[at].previous = n;
}

static inline void di_ring_remove(di_link *links, int32_t n) {
    di_link l = links[n];
    links[l.previous].next = l.next;
    links[l.next].previous = l.previous;
    di_ring_start(links, n);
}

#endif
