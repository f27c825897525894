/* What a request costs beside HTTP and the engine: its key, its quota, its counters; each beside a
 * ceiling of the same run: the hashes alone, the bytes of its records written to a file alone, and
 * atomic additions alone. Then the same on several threads, which share a lock or cache lines. */
#include <fcntl.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/quota.h"

enum { ROUNDS = 7, KEYS = 1000, MOST_THREADS = 4 };

static char folder[] = "/tmp/deepinfer-bench-XXXXXX";

static const char *path(const char *name) {
    static char text[128];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static void die(const char *what, const di_error *err) {
    fprintf(stderr, "%s: %s\n", what, err ? err->message : "");
    exit(1);
}

typedef struct work {
    di_keys *keys;
    char token[DI_KEY_TOKEN_BYTES];
    di_quota *quota;
    di_key key;
    di_metrics *metrics;
    int fd;
    atomic_ullong counter;
    int count; /* calls of one timing */
} work;

/* ---- what is timed ----------------------------------------------------------------------------*/

static void admit(work *w) {
    const di_key *key;
    if (di_keys_admit(w->keys, di_str_of(w->token), &key) != DI_KEY_FINE) {
        die("the key is refused", NULL);
    }
    di_key_release(w->keys, key);
}

static void hash_only(work *w) {
    unsigned char hash[DI_KEY_HASH_BYTES];
    static const unsigned char salt[DI_KEY_SALT_BYTES];
    for (int i = 0; i < DI_KEY_HASHES; i++) {
        crypto_generichash(hash, sizeof hash, (const unsigned char *)w->token, DI_KEY_SECRET_BYTES,
                           salt, sizeof salt);
    }
}

static void use_quota(work *w) {
    di_quota_refusal no;
    int64_t granted;
    di_quota_ticket *t = di_quota_enter(w->quota, &w->key, &no);
    if (!t || !di_quota_reserve(w->quota, t, 100, 200, 200, &granted, &no)) {
        die(no.message, NULL);
    }
    for (int i = 0; i < 64; i++) {
        di_quota_progress(t, i);
    }
    di_quota_leave(w->quota, t, 100, 64);
}

/* As long as a begun and an ended record. */
static void write_only(work *w) {
    static const char begun[] = "A 1000000 20786 key-500 100 0123456789abcdef\n";
    static const char ended[] = "E 1000000 100 64 0123456789abcdef\n";
    if (write(w->fd, begun, sizeof begun - 1) < 0 || write(w->fd, ended, sizeof ended - 1) < 0) {
        die("write", NULL);
    }
}

/* A request of 64 tokens, one output each. */
static void count_request(work *w) {
    for (int i = 0; i < 63; i++) {
        di_metrics_gap(w->metrics, 0.0123, 1);
    }
    di_metrics_request r = {.key_id = "key-500",
                            .prompt_tokens = 100,
                            .completion_tokens = 64,
                            .n = 1,
                            .ttft_seconds = 0.1,
                            .e2e_seconds = 1,
                            .queue_seconds = 0.01,
                            .prefill_seconds = 0.09,
                            .decode_seconds = 0.9};
    di_metrics_finish(w->metrics, &r);
    di_metrics_http(w->metrics, DI_ENDPOINT_CHAT_COMPLETIONS, 200, 1);
}

static void add_only(work *w) {
    for (int i = 0; i < 2 * 63; i++) { /* a bucket and a sum */
        atomic_fetch_add_explicit(&w->counter, 1, memory_order_relaxed);
    }
}

/* ---- timing -----------------------------------------------------------------------------------*/

typedef struct job {
    work *w;
    void (*call)(work *w);
} job;

static void *run(void *arg) {
    const job *j = arg;
    for (int i = 0; i < j->w->count; i++) {
        j->call(j->w);
    }
    return NULL;
}

/* Microseconds a call, all threads together; the best of some rounds. */
static double time_of(work *w, void (*call)(work *w), int threads, int count) {
    double best = 1e9;
    job j = {w, call};
    w->count = count / threads;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t ids[MOST_THREADS];
        double begin = di_now();
        for (int i = 1; i < threads; i++) {
            pthread_create(&ids[i], NULL, run, &j);
        }
        run(&j);
        for (int i = 1; i < threads; i++) {
            pthread_join(ids[i], NULL);
        }
        double took = (di_now() - begin) * 1e6 / (double)(w->count * threads);
        best = took < best ? took : best;
    }
    return best;
}

static void show(const char *what, work *w, void (*call)(work *w), const char *ceiling,
                 void (*least)(work *w), int count) {
    double one = time_of(w, call, 1, count), two = time_of(w, call, 2, count);
    double four = time_of(w, call, 4, count), floor = least ? time_of(w, least, 1, count) : 0;
    printf("%-34s %8.2f us   2 threads %6.2f   4 threads %6.2f", what, one, two, four);
    if (least) {
        printf("   %s %.2f us (%.2f of it)", ceiling, floor, floor / one);
    }
    putchar('\n');
}

static void make_keys(work *w) {
    di_error err = {0};
    char token[DI_KEY_TOKEN_BYTES], hash[2 * DI_KEY_TOKEN_BYTES], id[32];
    FILE *f = fopen(path("keys"), "we");
    if (!f || fchmod(fileno(f), 0600) != 0) {
        die("keys", NULL);
    }
    for (int i = 0; i < KEYS; i++) {
        snprintf(id, sizeof id, "key-%d", i);
        if (!di_key_make(id, token, hash, &err)) {
            die("a key", &err);
        }
        fprintf(f, "{\"id\": \"%s\", \"hash\": \"%s\", \"tokens_per_day\": 1000000000000}\n", id,
                hash);
        if (i == KEYS / 2) {
            memcpy(w->token, token, sizeof token);
        }
    }
    fclose(f);
    double begin = di_now();
    w->keys = di_keys_open(path("keys"), &err);
    if (!w->keys) {
        die("keys", &err);
    }
    printf("%d keys read in %.1f ms\n", KEYS, (di_now() - begin) * 1e3);
}

static di_quota *open_quota(const char *journal) {
    di_error err = {0};
    di_quota_options o = {.journal = journal};
    di_quota *q = di_quota_open(&o, &err);
    if (!q) {
        die("quota", &err);
    }
    return q;
}

int main(void) {
    work w = {.key = {.id = "key-500",
                      .limits = {.tokens_per_day = (int64_t)1 << 50,
                                 .requests_per_minute = 1000000000,
                                 .concurrency = 1000}}};
    if (!mkdtemp(folder)) {
        die("mkdtemp", NULL);
    }
    make_keys(&w);
    show("a key", &w, admit, "4 hashes", hash_only, 100000);
    w.quota = open_quota(NULL);
    show("a quota, in memory", &w, use_quota, NULL, NULL, 100000);
    di_quota_close(w.quota);
    w.quota = open_quota(path("journal"));
    w.fd = open(path("plain"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    show("a quota, with its journal", &w, use_quota, "2 writes", write_only, 30000);
    di_quota_close(w.quota);
    w.metrics = di_metrics_create("model");
    show("counters of an answer of 64 tokens", &w, count_request, "126 additions", add_only, 30000);
    di_buffer text = {0};
    double begin = di_now();
    di_metrics_write(w.metrics, &text, NULL);
    printf("/metrics: %zu bytes in %.2f ms\n", text.size, (di_now() - begin) * 1e3);
    di_buffer_free(&text);
    di_metrics_destroy(w.metrics);
    di_keys_close(w.keys);
    close(w.fd);
    const char *const names[] = {"keys", "journal", "plain"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unlink(path(names[i]));
    }
    rmdir(folder);
    return 0;
}
