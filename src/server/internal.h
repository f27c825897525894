/* The server's inside, for the files of this folder. */
#ifndef DI_SERVER_INTERNAL_H
#define DI_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/access_log.h"
#include "server/generation.h"
#include "server/metrics.h"
#include "server/server.h"

typedef enum di_server_state { DI_SERVER_LIVE, DI_SERVER_DRAINING } di_server_state;

struct di_http;
struct di_peers;
struct di_readers;
struct di_response_store;

struct di_server {
    di_server_options options;
    di_answerer answerer;
    di_recipe_options recipe;
    di_model_name *models; /* [options.num_models], the names in them are ours */
    char fingerprint[48];  /* of system and model */
    di_keys *keys;
    di_quota *quota;
    di_metrics *metrics;
    di_access_log *log;
    struct di_http *http;
    struct di_peers *peers;
    struct di_readers *readers;
    struct di_response_store *stored; /* NULL: responses are not */
    char address[64];
    uint64_t started; /* seconds since 1970 */
    int port;

    atomic_int state;
    atomic_size_t body_bytes;  /* of requests under way */
    atomic_int answers_owed;   /* to requests that are whole; until the last byte is sent */
    atomic_int num_background; /* responses that run without a connection */
    atomic_bool pump_stops;
    pthread_t pump;
    bool pump_started;

    pthread_mutex_t live_lock; /* before a generation's */
    di_generation *live;       /* submitted, not released by both sides */
    int num_live;
};

/* The pump's thread: outputs to generations, once a second the clock. */
void *di_server_pump(void *server);

/* Random hexadecimal digits behind a prefix. */
void di_random_id(const char *prefix, int digits, char *out, size_t size);

#endif
