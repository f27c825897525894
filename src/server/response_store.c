/* Stored responses: see response_store.h. A hash table finds them by id; each key has a list of its
 * own, oldest first. */
#include "server/response_store.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/checked.h"

enum { BUCKETS = 1 << 14 };

typedef struct owner owner;

typedef struct record {
    di_stored_response public; /* first */
    owner *owner;
    struct record *next_in_bucket;
    struct record *older, *newer; /* of the owner's */
    double stored;
    size_t bytes;
    int holders; /* the table is one */
    size_t id_size;
    char text[]; /* id, response, input */
} record;

/* A key that has some. */
struct owner {
    owner *next;
    record *oldest, *newest;
    size_t count, bytes;
    char key_id[];
};

struct di_response_store {
    di_response_store_options options;
    pthread_mutex_t lock;
    record *buckets[BUCKETS];
    owner *owners;
    size_t count, bytes;
};

di_response_store *di_response_store_create(const di_response_store_options *o, di_error *err) {
    di_response_store *s = di_calloc(1, sizeof *s);
    if (!s) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for stored responses");
        return NULL;
    }
    s->options = *o;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

/* ---- under the lock ---------------------------------------------------------------------------*/

static record **bucket_of(di_response_store *s, const char *id, size_t size) {
    return &s->buckets[XXH3_64bits(id, size) % BUCKETS];
}

static owner *find_owner(di_response_store *s, const char *key_id) {
    owner *o = s->owners;
    while (o && strcmp(o->key_id, key_id) != 0) {
        o = o->next;
    }
    return o;
}

static owner *make_owner(di_response_store *s, const char *key_id) {
    size_t size = strlen(key_id) + 1;
    owner *o = di_calloc(1, sizeof *o + size);
    if (o) {
        memcpy(o->key_id, key_id, size);
        o->next = s->owners;
        s->owners = o;
    }
    return o;
}

static void drop_owner(di_response_store *s, owner *gone) {
    owner **link = &s->owners;
    while (*link != gone) {
        link = &(*link)->next;
    }
    *link = gone->next;
    di_free(gone);
}

static void let_go(record *r) {
    if (--r->holders == 0) {
        di_free(r);
    }
}

/* Takes it off all lists; with the last one of a key its owner goes too. */
static void take_out(di_response_store *s, record *r) {
    owner *o = r->owner;
    record **link = bucket_of(s, r->text, r->id_size);
    while (*link != r) {
        link = &(*link)->next_in_bucket;
    }
    *link = r->next_in_bucket;
    *(r->older ? &r->older->newer : &o->oldest) = r->newer;
    *(r->newer ? &r->newer->older : &o->newest) = r->older;
    o->count--;
    o->bytes -= r->bytes;
    s->count--;
    s->bytes -= r->bytes;
    if (o->count == 0) {
        drop_owner(s, o);
    }
    let_go(r);
}

static void put_in(di_response_store *s, owner *o, record *r) {
    record **bucket = bucket_of(s, r->text, r->id_size);
    r->owner = o;
    r->next_in_bucket = *bucket;
    *bucket = r;
    r->older = o->newest;
    *(o->newest ? &o->newest->newer : &o->oldest) = r;
    o->newest = r;
    o->count++;
    o->bytes += r->bytes;
    s->count++;
    s->bytes += r->bytes;
}

static record *find(di_response_store *s, const char *key_id, di_str id) {
    record *r = *bucket_of(s, id.data, id.size);
    while (r && !(r->id_size == id.size && memcmp(r->text, id.data, id.size) == 0 &&
                  strcmp(r->owner->key_id, key_id) == 0)) {
        r = r->next_in_bucket;
    }
    return r;
}

static void expire(di_response_store *s, double now) {
    for (owner *o = s->owners, *next; o; o = next) {
        next = o->next; /* o goes with its last response */
        for (size_t n = o->count; n > 0 && now - o->oldest->stored >= s->options.max_age; n--) {
            take_out(s, o->oldest);
        }
    }
}

/* The oldest response of the key that holds most; there is one. */
static record *first_victim(const di_response_store *s) {
    const owner *most = s->owners;
    for (const owner *o = most->next; o; o = o->next) {
        most = o->bytes > most->bytes ? o : most;
    }
    return most->oldest;
}

/* ---- the store --------------------------------------------------------------------------------*/

void di_response_store_destroy(di_response_store *s) {
    if (!s) {
        return;
    }
    while (s->owners) {
        take_out(s, s->owners->oldest);
    }
    pthread_mutex_destroy(&s->lock);
    di_free(s);
}

static record *make_record(di_str id, di_str response, di_str input, double now) {
    size_t id_size = id.size, bytes;
    if (!di_add_size(sizeof(record) + id_size, response.size, &bytes) ||
        !di_add_size(bytes, input.size, &bytes)) {
        return NULL;
    }
    record *r = di_calloc(1, bytes);
    if (!r) {
        return NULL;
    }
    char *at = r->text;
    memcpy(at, id.data, id_size);
    r->public.response =
        (di_str){memcpy(at + id_size, response.data, response.size), response.size};
    r->public.input =
        (di_str){memcpy(at + id_size + response.size, input.data, input.size), input.size};
    r->id_size = id_size;
    r->bytes = bytes;
    r->stored = now;
    r->holders = 1;
    return r;
}

bool di_response_store_put(di_response_store *s, const char *key_id, const char *id,
                           di_str response, di_str input, double now) {
    record *r = make_record(di_str_of(id), response, input, now);
    if (!r || r->bytes > s->options.max_bytes || s->options.max_per_key == 0) {
        di_free(r);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    expire(s, now);
    while (s->owners && s->bytes + r->bytes > s->options.max_bytes) {
        take_out(s, first_victim(s));
    }
    owner *o = find_owner(s, key_id);
    if (o && o->count >= s->options.max_per_key) {
        take_out(s, o->oldest);
        o = find_owner(s, key_id); /* it may have been the last */
    }
    o = o ? o : make_owner(s, key_id);
    if (o) {
        put_in(s, o, r);
    }
    pthread_mutex_unlock(&s->lock);
    if (!o) {
        di_free(r);
    }
    return o != NULL;
}

const di_stored_response *di_response_store_get(di_response_store *s, const char *key_id, di_str id,
                                                double now) {
    pthread_mutex_lock(&s->lock);
    expire(s, now);
    record *r = find(s, key_id, id);
    if (r) {
        r->holders++;
    }
    pthread_mutex_unlock(&s->lock);
    return r ? &r->public : NULL;
}

void di_response_store_release(di_response_store *s, const di_stored_response *r) {
    pthread_mutex_lock(&s->lock);
    let_go((record *)r);
    pthread_mutex_unlock(&s->lock);
}

bool di_response_store_drop(di_response_store *s, const char *key_id, di_str id) {
    pthread_mutex_lock(&s->lock);
    record *r = find(s, key_id, id);
    if (r) {
        take_out(s, r);
    }
    pthread_mutex_unlock(&s->lock);
    return r != NULL;
}

void di_response_store_expire(di_response_store *s, double now) {
    pthread_mutex_lock(&s->lock);
    expire(s, now);
    pthread_mutex_unlock(&s->lock);
}

void di_response_store_usage(di_response_store *s, size_t *count, size_t *bytes) {
    pthread_mutex_lock(&s->lock);
    *count = s->count;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->lock);
}
