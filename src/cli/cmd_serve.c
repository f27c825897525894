/* deepinfer serve: the engine behind HTTP, until a signal ends it. The work is src/server/'s. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "server/server.h"

enum { DEFAULT_QUEUE = 1024, DEFAULT_DRAIN_SECONDS = 300, MOST_NAMES = 64 };

/* ---- options ----------------------------------------------------------------------------------*/

/* The names between the commas, in one piece of memory. */
static bool split_names(char *text, const char **names, size_t *count, di_error *err) {
    *count = 0;
    for (char *rest = text, *name; (name = strsep(&rest, ",")) != NULL;) {
        bool twice = false;
        for (size_t i = 0; i < *count; i++) {
            twice = twice || strcmp(names[i], name) == 0;
        }
        if (!*name || twice || *count == MOST_NAMES) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "--served-model-name: 1 to %d names, none of them empty or twice, are "
                           "needed",
                           MOST_NAMES);
        }
        names[(*count)++] = name;
    }
    return true;
}

static double seconds(const di_options *o, di_option_id id, double absent) {
    return o->values[id].given ? o->values[id].real : absent;
}

static void set_options(const di_options *o, di_server_options *s) {
    const char *log = di_options_text(o, DI_OPT_ACCESS_LOG, s->access_log);
    const di_option_value *v = o->values;
    s->host = di_options_text(o, DI_OPT_HOST, s->host);
    s->port = (int)di_options_integer(o, DI_OPT_PORT, s->port);
    s->key_file = di_options_text(o, DI_OPT_API_KEY_FILE, NULL);
    s->quota_journal = di_options_text(o, DI_OPT_QUOTA_JOURNAL, NULL);
    s->tls_cert = di_options_text(o, DI_OPT_TLS_CERT, NULL);
    s->tls_key = di_options_text(o, DI_OPT_TLS_KEY, NULL);
    s->insecure_no_auth = v[DI_OPT_INSECURE_NO_AUTH].flag;
    s->no_thinking = v[DI_OPT_THINKING_DEFAULT].given && !v[DI_OPT_THINKING_DEFAULT].flag;
    s->threads = (int)di_options_integer(o, DI_OPT_HTTP_THREADS, s->threads);
    s->reader_threads = (int)di_options_integer(o, DI_OPT_READER_THREADS, s->reader_threads);
    s->max_connections = (int)di_options_integer(o, DI_OPT_MAX_CONNECTIONS, s->max_connections);
    s->max_header_bytes =
        (size_t)di_options_integer(o, DI_OPT_MAX_HEADER, (int64_t)s->max_header_bytes);
    s->max_body_bytes = (size_t)di_options_integer(o, DI_OPT_MAX_BODY, (int64_t)s->max_body_bytes);
    s->max_bodies_bytes =
        (size_t)di_options_integer(o, DI_OPT_MAX_BODIES, (int64_t)s->max_bodies_bytes);
    s->max_stream_bytes =
        (size_t)di_options_integer(o, DI_OPT_MAX_STREAM, (int64_t)s->max_stream_bytes);
    s->response_store_bytes = (size_t)di_options_integer(o, DI_OPT_RESPONSE_STORE, 0);
    s->response_store_per_key =
        (int)di_options_integer(o, DI_OPT_RESPONSE_STORE_PER_KEY, s->response_store_per_key);
    s->max_background = (int)di_options_integer(o, DI_OPT_MAX_BACKGROUND, s->max_background);
    s->response_store_seconds = seconds(o, DI_OPT_RESPONSE_STORE_AGE, s->response_store_seconds);
    s->header_seconds = seconds(o, DI_OPT_HEADER_TIMEOUT, s->header_seconds);
    s->body_seconds = seconds(o, DI_OPT_BODY_TIMEOUT, s->body_seconds);
    s->idle_seconds = seconds(o, DI_OPT_IDLE_TIMEOUT, s->idle_seconds);
    s->keepalive_seconds = seconds(o, DI_OPT_SSE_KEEPALIVE, s->keepalive_seconds);
    s->access_log = strcmp(log, "none") == 0 ? NULL : log;
}

/* ---- signals ----------------------------------------------------------------------------------*/

/* Those that end or reload are waited for; blocked before the first thread is made, so that no
 * other takes them. */
static void block_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
}

static int wait_signal(const sigset_t *set, double timeout) {
    struct timespec time = {(time_t)timeout, (long)((timeout - (double)(time_t)timeout) * 1e9)};
    return sigtimedwait(set, NULL, &time);
}

static void reload(di_server *s) {
    di_error err = {0};
    if (di_server_reload(s, &err)) {
        fprintf(stderr, "deepinfer: reloaded\n");
    } else {
        di_log(DI_LOG_ERROR, "reload: %s; what was in force stays so", err.message);
    }
}

static const double look_after = 1; /* the engine, in seconds */

/* Until the first signal that ends it, then until all has ended or another one comes. False with
 * *err: the card has failed for good, and whoever starts servers may start another. */
static bool serve(di_server *s, di_engine *engine, const sigset_t *set, double drain_seconds,
                  di_error *err) {
    int got;
    while ((got = wait_signal(set, look_after)) != SIGTERM && got != SIGINT) {
        if (got == SIGHUP) {
            reload(s);
        }
        if (!di_engine_usable(engine, err)) {
            return false;
        }
    }
    di_server_drain(s);
    int running = di_server_running(s);
    if (running > 0) {
        fprintf(stderr,
                "deepinfer: ending; %d answer%s under way, which a second signal cuts off\n",
                running, running == 1 ? "" : "s");
    } else {
        fprintf(stderr, "deepinfer: ending\n");
    }
    double until = di_now() + drain_seconds;
    while (di_server_running(s) > 0 && di_now() < until) {
        got = wait_signal(set, 0.05);
        if (got == SIGTERM || got == SIGINT) {
            break;
        }
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------------*/

static bool run(const di_options *o, const di_server_options *options, const sigset_t *set,
                di_error *err) {
    di_engine *engine = di_server_check(options, err)
                            ? di_cli_open_engine(o, di_cli_max_num_seqs(o), DEFAULT_QUEUE, err)
                            : NULL;
    di_answerer answerer = {0};
    di_server *s = NULL;
    bool ok = engine && di_answerer_open(&answerer, engine, err) &&
              (s = di_server_start(options, &answerer, err));
    if (ok) {
        fprintf(stderr, "deepinfer: serving %s at %s://%s\n", options->models[0],
                options->tls_cert ? "https" : "http", di_server_address(s));
        ok = serve(s, engine, set, seconds(o, DI_OPT_DRAIN_TIMEOUT, DEFAULT_DRAIN_SECONDS), err);
    }
    di_server_stop(s);
    if (answerer.self) {
        di_answerer_close(&answerer);
    }
    di_engine_close(engine);
    return ok;
}

int di_command_serve(const di_options *o) {
    di_error err = {0};
    di_server_options options;
    const char *names[MOST_NAMES];
    sigset_t set;
    di_server_options_init(&options);
    set_options(o, &options);
    char *text = di_strdup(di_options_text(o, DI_OPT_SERVED_MODEL_NAME, "DeepSeek-V4.1-Flash"));
    if (!text) {
        di_fail(&err, DI_ERR_NO_MEMORY, "no memory for the names of the model");
        return di_cli_fail(&err);
    }
    options.models = names;
    bool usage = split_names(text, names, &options.num_models, &err);
    bool ok = usage;
    if (ok) {
        block_signals(&set);
        ok = run(o, &options, &set, &err);
    }
    di_free(text);
    if (ok) {
        return DI_EXIT_WELL;
    }
    int status = di_cli_fail(&err);
    return usage ? status : DI_EXIT_USAGE;
}
