/* What quota.c keeps of each key id: buckets of a minute and counters of a day. Not for several
 * threads: quota.c holds its lock. */
#ifndef DI_SERVER_QUOTA_ACCOUNTS_H
#define DI_SERVER_QUOTA_ACCOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/quota.h"

/* A token bucket by what is used of it, so that a limit may change under it: `used` shrinks by
 * limit / 60 a second; above the limit it is debt. */
typedef struct di_bucket {
    double used, at; /* at this second of the monotonic clock */
} di_bucket;

typedef struct di_quota_account {
    char id[DI_KEY_ID_BYTES + 1];
    di_bucket requests_minute, input_minute, output_minute;
    int running; /* requests under way */
    /* Of `day`; what requests under way may still use is in `reserved`. */
    int64_t day, requests, input, output, reserved;
    int64_t open; /* of `requests`, those under way */
} di_quota_account;

typedef struct di_accounts {
    di_quota_account **all; /* in order of appearance */
    size_t count, capacity;
    uint32_t *slots; /* hash table of 1 + index, 0 = empty; num_slots is a power of two */
    size_t num_slots;
} di_accounts;

/* The account of that id, made if there was none; NULL: short of memory. */
di_quota_account *di_accounts_get(di_accounts *a, const char *id);
void di_accounts_free(di_accounts *a);

/* Counters begin anew when the day is another. */
void di_account_turn(di_quota_account *account, int64_t day);

/* Seconds to wait before `amount` can be taken from a bucket of `limit` a minute (more than all of
 * it counts as all); 0: now. */
double di_bucket_wait(di_bucket *b, int64_t limit, int64_t amount, double now);
void di_bucket_take(di_bucket *b, int64_t limit, int64_t amount, double now); /* may be negative */
di_quota_bucket di_bucket_status(di_bucket *b, int64_t limit, double now);

/* Sums of counters from files: held at 2^60. */
static inline int64_t di_count_add(int64_t a, int64_t b) {
    const int64_t most = (int64_t)1 << 60;
    return a > most - b ? most : a + b;
}

#endif
