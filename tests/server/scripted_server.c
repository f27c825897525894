/* The server on the scripted engine, as a program of its own for tests in Python and for
 * benchmarks:
 *
 *     scripted_server FOLDER [NAME=VALUE ...]
 *
 * with the tokenizer of FOLDER. Names: port, threads, reader_threads, max_queue, fixed_tokens,
 * max_connections, max_body, max_stream, store, store_per_key, store_age, max_background, header,
 * body, idle, keepalive (seconds), keys, journal, tls_cert, tls_key, log, model_len. It prints its
 * address on standard output, one line {"submitted", "finished", "cancelled", "running"} for each
 * SIGUSR1, drains on SIGTERM, reloads on SIGHUP. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "server/server.h"
#include "support/scripted.h"

static bool set(di_server_options *o, di_scripted_options *s, const char *name, const char *value) {
    const struct {
        const char *name;
        int *integer;
        size_t *size;
        double *seconds;
        const char **text;
    } table[] = {
        {"port", .integer = &o->port},
        {"threads", .integer = &o->threads},
        {"reader_threads", .integer = &o->reader_threads},
        {"max_connections", .integer = &o->max_connections},
        {"max_queue", .integer = &s->max_queue},
        {"fixed_tokens", .integer = &s->fixed_tokens},
        {"max_body", .size = &o->max_body_bytes},
        {"max_bodies", .size = &o->max_bodies_bytes},
        {"store", .size = &o->response_store_bytes},
        {"store_per_key", .integer = &o->response_store_per_key},
        {"max_background", .integer = &o->max_background},
        {"store_age", .seconds = &o->response_store_seconds},
        {"max_stream", .size = &o->max_stream_bytes},
        {"header", .seconds = &o->header_seconds},
        {"body", .seconds = &o->body_seconds},
        {"idle", .seconds = &o->idle_seconds},
        {"keepalive", .seconds = &o->keepalive_seconds},
        {"keys", .text = &o->key_file},
        {"journal", .text = &o->quota_journal},
        {"tls_cert", .text = &o->tls_cert},
        {"tls_key", .text = &o->tls_key},
        {"log", .text = &o->access_log},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, name) != 0) {
            continue;
        }
        if (table[i].integer) {
            *table[i].integer = atoi(value);
        } else if (table[i].size) {
            *table[i].size = (size_t)atoll(value);
        } else if (table[i].seconds) {
            *table[i].seconds = atof(value);
        } else {
            *table[i].text = value;
        }
        return true;
    }
    if (strcmp(name, "model_len") == 0) {
        s->max_model_len = atoll(value);
        return true;
    }
    return false;
}

static void print_stats(di_scripted *engine) {
    di_scripted_stats stats;
    di_scripted_get_stats(engine, &stats);
    printf("{\"submitted\": %llu, \"finished\": %llu, \"cancelled\": %llu, \"running\": %d}\n",
           (unsigned long long)stats.submitted, (unsigned long long)stats.finished,
           (unsigned long long)stats.cancelled, stats.running);
    fflush(stdout);
}

static void serve(di_server *s, di_scripted *engine, const sigset_t *signals) {
    for (bool draining = false; !draining || di_server_running(s) > 0;) {
        struct timespec patience = {0, 20000000};
        int got = sigtimedwait(signals, NULL, &patience);
        if (got == SIGUSR1) {
            print_stats(engine);
        } else if (got == SIGHUP) {
            di_error err = {0};
            fprintf(stderr, "%s\n", di_server_reload(s, &err) ? "reloaded" : err.message);
        } else if (got == SIGTERM && !draining) {
            di_server_drain(s);
            draining = true;
        } else if (got == SIGTERM) {
            return;
        }
    }
}

/* Whoever started it may be killed before it can end it. */
static void end_with_parent(void) {
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        exit(1);
    }
}

int main(int argc, char **argv) {
    static const char *const models[] = {"DeepSeek-V4.1-Flash", "other"};
    di_server_options o;
    di_scripted_options script = {0};
    di_error err = {0};
    end_with_parent();
    di_server_options_init(&o);
    o.models = models;
    o.num_models = 2;
    o.port = 0;
    o.access_log = NULL;
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value) {
            *value++ = 0;
        }
        if (!value || !set(&o, &script, argv[i], value)) {
            fprintf(stderr, "scripted_server: what is %s?\n", argv[i]);
            return 2;
        }
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    di_scripted *engine = argc > 1 ? di_scripted_open(argv[1], &script, &err) : NULL;
    di_answerer answerer = {0};
    di_server *s = NULL;
    if (engine) {
        answerer = di_scripted_answerer(engine);
        s = di_server_start(&o, &answerer, &err);
    }
    if (!s) {
        fprintf(stderr, "scripted_server: %s\n", err.message);
        return 1;
    }
    printf("%s\n", di_server_address(s));
    fflush(stdout);
    serve(s, engine, &signals);
    di_server_stop(s);
    print_stats(engine);
    di_scripted_close(engine);
    return 0;
}
