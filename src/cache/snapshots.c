/* Handing out and evicting snapshots: see snapshots.h. */
#include "cache/snapshots.h"

#include <assert.h>

bool di_snapshots_create(di_snapshots *s, int total) {
    size_t count = (size_t)total + 1;
    *s = (di_snapshots){
        .all = di_calloc(count, sizeof *s->all),
        .links = di_calloc(count, sizeof *s->links),
    };
    return s->all && s->links && di_numbers_create(&s->numbers, total);
}

void di_snapshots_destroy(di_snapshots *s) {
    di_free(s->all);
    di_free(s->links);
    di_numbers_destroy(&s->numbers);
    *s = (di_snapshots){0};
}

int32_t di_snapshots_take(di_snapshots *s) {
    return di_numbers_take(&s->numbers);
}

int32_t di_snapshots_oldest(const di_snapshots *s) {
    return s->links[0].next;
}

void di_snapshots_attach(di_snapshots *s, int32_t n, di_hash hash, int32_t owner) {
    s->all[n] = (di_snapshot){.hash = hash, .owner = owner};
    di_ring_insert(s->links, 0, n);
}

void di_snapshots_release(di_snapshots *s, int32_t n) {
    assert(s->all[n].pins == 0);
    di_ring_remove(s->links, n);
    s->all[n] = (di_snapshot){0};
    di_numbers_return(&s->numbers, n);
}

void di_snapshots_touch(di_snapshots *s, int32_t n) {
    if (s->all[n].pins == 0) {
        di_ring_remove(s->links, n);
        di_ring_insert(s->links, 0, n);
    }
}

void di_snapshots_pin(di_snapshots *s, int32_t n) {
    if (s->all[n].pins++ == 0) {
        di_ring_remove(s->links, n);
    }
}

void di_snapshots_unpin(di_snapshots *s, int32_t n) {
    assert(s->all[n].pins > 0);
    if (--s->all[n].pins == 0) {
        di_ring_insert(s->links, 0, n);
    }
}
