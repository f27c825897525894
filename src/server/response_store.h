/* Responses that clients may come back to (/v1/responses with `store`), in memory only: what was
 * asked, as items, and what was answered. Bounded by bytes, by number for each key, and by age;
 * when it is full, the key that holds most loses its oldest. Nobody finds another key's. Any thread
 * may call anything. */
#ifndef DI_SERVER_RESPONSE_STORE_H
#define DI_SERVER_RESPONSE_STORE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/str.h"

typedef struct di_response_store di_response_store;

typedef struct di_response_store_options {
    size_t max_bytes;   /* of all */
    size_t max_per_key; /* responses */
    double max_age;     /* seconds */
} di_response_store_options;

/* One of them; never changes. */
typedef struct di_stored_response {
    di_str response; /* JSON, as it was told */
    di_str input;    /* JSON array of all items before it, those of earlier responses included */
} di_stored_response;

di_response_store *di_response_store_create(const di_response_store_options *o, di_error *err);
void di_response_store_destroy(di_response_store *s); /* NULL is allowed */

/* Keeps copies, unless they alone are larger than the store, or memory is short: false. */
bool di_response_store_put(di_response_store *s, const char *key_id, const char *id,
                           di_str response, di_str input, double now);

/* NULL: there is none of that id of that key. di_response_store_release it. */
const di_stored_response *di_response_store_get(di_response_store *s, const char *key_id, di_str id,
                                                double now);
void di_response_store_release(di_response_store *s, const di_stored_response *r);

/* False: there was none. */
bool di_response_store_drop(di_response_store *s, const char *key_id, di_str id);

/* Drops what has become too old. */
void di_response_store_expire(di_response_store *s, double now);

/* Responses and bytes that are kept now. */
void di_response_store_usage(di_response_store *s, size_t *count, size_t *bytes);

#endif
