/* What metrics.c counts, as Prometheus reads it (text format 0.0.4). */
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/version.h"
#include "server/metrics_internal.h"

/* The text being written; after a failure nothing more is. */
typedef struct writer {
    di_buffer *out;
    di_error *err;
    bool ok;
    const di_metrics *m;
    const char *name; /* of the family that was begun last */
    bool engine_label;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof text) {
        length = 0;
    }
    w->ok = w->ok && di_buffer_append(w->out, text, (size_t)length, w->err);
}

static void put_text(writer *w, const char *text) {
    w->ok = w->ok && di_buffer_append_text(w->out, text, w->err);
}

/* Families of vLLM's names carry its engine label. */
static void family(writer *w, const char *name, const char *type, const char *help) {
    w->name = name;
    w->engine_label = strncmp(name, "vllm:", 5) == 0;
    put(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* "name{model_name="...",LABELS" up to the closing brace. labels: "" or "a=\"b\"". */
static void begin_sample(writer *w, const char *suffix, const char *labels) {
    put(w, "%s%s{model_name=\"", w->name, suffix);
    put_text(w, w->m->model);
    put(w, "\"%s%s%s}", w->engine_label ? ",engine=\"0\"" : "", *labels ? "," : "", labels);
}

static void sample_count(writer *w, const char *suffix, const char *labels, uint64_t value) {
    begin_sample(w, suffix, labels);
    put(w, " %" PRIu64 "\n", value);
}

static void sample_real(writer *w, const char *labels, double value) {
    begin_sample(w, "", labels);
    put(w, " %.15g\n", value);
}

static void counter(writer *w, const char *name, const char *help, uint64_t value) {
    family(w, name, "counter", help);
    sample_count(w, "", "", value);
}

static void gauge(writer *w, const char *name, const char *help, double value) {
    family(w, name, "gauge", help);
    sample_real(w, "", value);
}

static uint64_t load(const di_counter *c) {
    return atomic_load_explicit((di_counter *)c, memory_order_relaxed);
}

/* Buckets are read one by one while others count: _count is their sum, so the text agrees with
 * itself. */
static void histogram_samples(writer *w, const char *labels, const di_histogram *h) {
    uint64_t count = 0;
    char all[128];
    const char *comma = *labels ? "," : "";
    for (int i = 0; i < h->bounds->count; i++) {
        count += load(&h->buckets[i]);
        snprintf(all, sizeof all, "%s%sle=\"%.9g\"", labels, comma, h->bounds->at[i]);
        sample_count(w, "_bucket", all, count);
    }
    count += load(&h->buckets[h->bounds->count]);
    snprintf(all, sizeof all, "%s%sle=\"+Inf\"", labels, comma);
    sample_count(w, "_bucket", all, count);
    begin_sample(w, "_sum", labels);
    uint64_t sum = load(&h->sum_millionths);
    put(w, " %" PRIu64 ".%06" PRIu64 "\n", sum / 1000000, sum % 1000000);
    sample_count(w, "_count", labels, count);
}

static void histogram(writer *w, const char *name, const char *help, const di_histogram *h) {
    family(w, name, "histogram", help);
    histogram_samples(w, "", h);
}

/* ---- families ---------------------------------------------------------------------------------*/

static void write_engine(writer *w) {
    const di_engine_stats *e = &w->m->engine;
    double blocks = e->blocks > 0 ? (double)e->blocks : 1;
    gauge(w, "vllm:num_requests_running", "Requests being computed.", e->running);
    gauge(w, "vllm:num_requests_waiting", "Requests waiting for their first step.", e->waiting);
    gauge(w, "vllm:kv_cache_usage_perc",
          "Share of cache blocks that running requests hold; 1 is all.",
          (double)(e->blocks - e->blocks_free - e->blocks_cached) / blocks);
    gauge(w, "deepinfer:kv_cache_kept_perc",
          "Share of cache blocks kept for prefixes that may come again, free for who needs them.",
          (double)e->blocks_cached / blocks);
    family(w, "vllm:cache_config_info", "gauge", "Size of the cache.");
    char labels[96];
    snprintf(labels, sizeof labels, "block_size=\"%" PRId64 "\",num_gpu_blocks=\"%" PRId64 "\"",
             e->block_tokens, e->blocks);
    sample_real(w, labels, 1);
    counter(w, "vllm:prompt_tokens_total",
            "Prompt tokens read, those taken from the cache included.",
            e->prompt_tokens + e->prefix_tokens_hit);
    counter(w, "vllm:generation_tokens_total", "Tokens generated.", e->completion_tokens);
    counter(w, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            e->prefix_tokens_asked);
    counter(w, "vllm:prefix_cache_hits_total", "Prompt tokens found there.", e->prefix_tokens_hit);
    counter(w, "vllm:num_preemptions_total", "Answers that had to give way to others.",
            e->preemptions);
    counter(w, "deepinfer:requests_submitted_total", "Requests the engine accepted.", e->requests);
    counter(w, "deepinfer:requests_cancelled_total", "Requests that ended because of a cancel.",
            e->cancelled);
    counter(w, "deepinfer:requests_failed_total", "Requests that ended with an error.", e->failed);
    counter(w, "deepinfer:steps_total", "Steps of the engine.", e->steps);
    counter(w, "deepinfer:steps_missed_total", "Steps that the histograms below do not hold.",
            w->m->missed_steps);
    family(w, "deepinfer:device_seconds_total", "counter", "Time the device computed.");
    sample_real(w, "", e->device_seconds);
    family(w, "deepinfer:device_idle_seconds_total", "counter",
           "Time the device waited for a step though requests ran.");
    sample_real(w, "", e->device_idle_seconds);
    family(w, "deepinfer:host_seconds_total", "counter",
           "Time the host planned steps and read results.");
    sample_real(w, "", e->host_seconds_total);
    histogram(w, "deepinfer:step_host_seconds",
              "Time of the host for a step: planning it, reading its results.", &w->m->step_host);
    histogram(w, "deepinfer:step_device_seconds", "Time of the device for a step.",
              &w->m->step_device);
    histogram(w, "deepinfer:step_idle_seconds",
              "Time the device waited for a step though requests ran.", &w->m->step_idle);
    histogram(w, "vllm:iteration_tokens_total", "Tokens read and generated in a step.",
              &w->m->step_tokens);
}

/* How many drafts of a round were accepted: accepted_at[k] rounds accepted more than k. */
static void write_drafts(writer *w) {
    const di_engine_stats *e = &w->m->engine;
    enum { PLACES = sizeof e->drafts_accepted_at / sizeof *e->drafts_accepted_at };
    char labels[48];
    counter(w, "vllm:spec_decode_num_drafts_total", "Rounds of drafts verified.", e->draft_rounds);
    counter(w, "vllm:spec_decode_num_draft_tokens_total", "Drafted tokens verified.",
            e->drafts_verified);
    counter(w, "vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.",
            e->drafts_accepted);
    int used = PLACES;
    while (used > 0 && e->drafts_verified_at[used - 1] == 0) {
        used--;
    }
    family(w, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
           "Drafted tokens accepted, by their place in the block.");
    for (int i = 0; i < used; i++) {
        snprintf(labels, sizeof labels, "position=\"%d\"", i);
        sample_count(w, "", labels, e->drafts_accepted_at[i]);
    }
    family(w, "deepinfer:accepted_drafts", "histogram", "Drafted tokens accepted in a round.");
    for (int k = 0; k < PLACES; k++) {
        snprintf(labels, sizeof labels, "le=\"%d\"", k);
        sample_count(w, "_bucket", labels, e->draft_rounds - e->drafts_accepted_at[k]);
    }
    sample_count(w, "_bucket", "le=\"+Inf\"", e->draft_rounds);
    sample_count(w, "_sum", "", e->drafts_accepted);
    sample_count(w, "_count", "", e->draft_rounds);
}

static void write_requests(writer *w) {
    static const char *const reasons[DI_NUM_FINISHED] = {"stop", "length", "abort", "error",
                                                         "tool_calls"};
    const di_metrics *m = w->m;
    char labels[64];
    family(w, "vllm:request_success_total", "counter", "Answers that ended, by why they did.");
    for (int i = 0; i < DI_NUM_FINISHED; i++) {
        snprintf(labels, sizeof labels, "finished_reason=\"%s\"", reasons[i]);
        sample_count(w, "", labels, load(&m->finished[i]));
    }
    counter(w, "deepinfer:requests_streamed_total", "Requests answered as a stream.",
            load(&m->streamed));
    counter(w, "deepinfer:reasoning_tokens_total", "Tokens generated as reasoning.",
            load(&m->reasoning_tokens));
    histogram(w, "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
              &m->ttft);
    histogram(w, "vllm:inter_token_latency_seconds",
              "Between two tokens of an answer; of several that come at once each counts its part.",
              &m->gap);
    histogram(w, "vllm:request_time_per_output_token_seconds",
              "Mean time between tokens, of each answer.", &m->per_token);
    histogram(w, "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.",
              &m->e2e);
    histogram(w, "vllm:request_queue_time_seconds", "From acceptance to the first step.",
              &m->queue);
    histogram(w, "vllm:request_prefill_time_seconds", "From the first step to the first token.",
              &m->prefill);
    histogram(w, "vllm:request_decode_time_seconds", "From the first token to the last.",
              &m->decode);
    histogram(w, "vllm:request_inference_time_seconds", "From the first step to the last token.",
              &m->inference);
    histogram(w, "vllm:request_prompt_tokens", "Tokens of a request's prompt.", &m->prompt_tokens);
    histogram(w, "vllm:request_generation_tokens", "Tokens of an answer.", &m->completion_tokens);
    histogram(w, "vllm:request_params_max_tokens", "max_tokens, of requests that name it.",
              &m->max_tokens);
    histogram(w, "vllm:request_params_n", "n: answers asked for.", &m->answers);
}

static void write_http(writer *w) {
    static const char *const endpoints[DI_NUM_ENDPOINTS] = {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
        "/",
        "other",
    };
    static const char *const events[DI_NUM_EVENTS] = {
        "disconnect",  "slow_reader",  "slow_reader_gone", "queue_full", "timeout",
        "bad_request", "unauthorized", "parser_repair",    "reload",     "reload_failed",
    };
    const di_metrics *m = w->m;
    char labels[96];
    family(w, "deepinfer:http_requests_total", "counter", "Requests answered.");
    for (int e = 0; e < DI_NUM_ENDPOINTS; e++) {
        for (int s = 0; s < DI_NUM_STATUSES; s++) {
            uint64_t count = load(&m->http_requests[e][s]);
            char status[8] = "other";
            if (s < DI_NUM_STATUSES - 1) {
                snprintf(status, sizeof status, "%d", di_statuses[s]);
            }
            snprintf(labels, sizeof labels, "endpoint=\"%s\",status=\"%s\"", endpoints[e], status);
            if (count > 0) {
                sample_count(w, "", labels, count);
            }
        }
    }
    family(w, "deepinfer:http_request_duration_seconds", "histogram",
           "From a request's arrival to the end of its answer.");
    for (int e = 0; e < DI_NUM_ENDPOINTS; e++) {
        snprintf(labels, sizeof labels, "endpoint=\"%s\"", endpoints[e]);
        histogram_samples(w, labels, &m->http_seconds[e]);
    }
    gauge(w, "deepinfer:http_connections", "Connections open.",
          (double)atomic_load((atomic_int_least64_t *)&m->connections));
    gauge(w, "deepinfer:http_requests_in_flight", "Requests being answered.",
          (double)atomic_load((atomic_int_least64_t *)&m->in_flight));
    histogram(w, "deepinfer:request_read_seconds",
              "From the end of a request's body to its acceptance by the engine.",
              &m->request_read);
    histogram(w, "deepinfer:answer_wait_seconds",
              "From when the engine had something to tell to when its connection took it.",
              &m->answer_wait);
    gauge(w, "deepinfer:stored_responses", "Responses kept for clients to come back to.",
          (double)atomic_load((atomic_size_t *)&m->stored));
    gauge(w, "deepinfer:stored_response_bytes", "Memory that they take.",
          (double)atomic_load((atomic_size_t *)&m->stored_bytes));
    gauge(w, "deepinfer:background_responses", "Responses that run without a connection.",
          atomic_load((atomic_int *)&m->background));
    counter(w, "deepinfer:long_requests_total",
            "Requests that were so long that a thread of its own read them.",
            load(&m->long_requests));
    counter(w, "deepinfer:access_log_lost_total",
            "Lines of the access log that could not be written.",
            atomic_load((atomic_size_t *)&m->log_lost));
    gauge(w, "deepinfer:quota_journal_ok",
          "1: the quotas of a day can be written down; 0: requests of keys that have one get 503.",
          atomic_load((atomic_bool *)&m->journal_broken) ? 0 : 1);
    family(w, "deepinfer:server_events_total", "counter", "What befell the server.");
    for (int i = 0; i < DI_NUM_EVENTS; i++) {
        snprintf(labels, sizeof labels, "event=\"%s\"", events[i]);
        sample_count(w, "", labels, load(&m->events[i]));
    }
}

typedef enum key_member { KEY_REQUESTS, KEY_PROMPT, KEY_CACHED, KEY_COMPLETION } key_member;

static const di_counter *member_of(const di_key_counts *k, key_member member) {
    const di_counter *const of[] = {&k->requests, &k->prompt_tokens, &k->cached_tokens,
                                    &k->completion_tokens};
    return of[member];
}

/* The i-th of the keys' counts, the last being all others; NULL: an empty slot. */
static const di_key_counts *key_at(const di_metrics *m, int i) {
    if (i == DI_KEY_SLOTS) {
        return &m->other_keys;
    }
    return atomic_load_explicit((_Atomic(di_key_counts *) *)&m->keys[i], memory_order_acquire);
}

static void write_key_family(writer *w, const char *name, const char *help, key_member member) {
    family(w, name, "counter", help);
    for (int i = 0; i <= DI_KEY_SLOTS; i++) {
        const di_key_counts *k = key_at(w->m, i);
        if (k && (i < DI_KEY_SLOTS || load(member_of(k, member)) > 0)) {
            char labels[64];
            snprintf(labels, sizeof labels, "key=\"%s\"", k->id);
            sample_count(w, "", labels, load(member_of(k, member)));
        }
    }
}

static void write_keys(writer *w) {
    write_key_family(w, "deepinfer:key_requests_total", "Requests by API key.", KEY_REQUESTS);
    write_key_family(w, "deepinfer:key_prompt_tokens_total", "Prompt tokens by API key.",
                     KEY_PROMPT);
    write_key_family(w, "deepinfer:key_cached_tokens_total",
                     "Prompt tokens from the cache by API key.", KEY_CACHED);
    write_key_family(w, "deepinfer:key_generation_tokens_total", "Tokens generated by API key.",
                     KEY_COMPLETION);
    family(w, "deepinfer:key_refused_total", "counter",
           "Requests refused by a limit of their API key.");
    for (int i = 0; i <= DI_KEY_SLOTS; i++) {
        const di_key_counts *k = key_at(w->m, i);
        for (int r = 1; k && r < DI_QUOTA_NUM_REASONS; r++) {
            if (load(&k->refused[r]) > 0) {
                char labels[96];
                snprintf(labels, sizeof labels, "key=\"%s\",limit=\"%s\"", k->id,
                         di_quota_reason_name((di_quota_reason)r));
                sample_count(w, "", labels, load(&k->refused[r]));
            }
        }
    }
}

/* The process, by the names that Prometheus's own libraries use. */
static void write_process(writer *w) {
    char labels[160];
    snprintf(labels, sizeof labels, "version=\"%.48s\",revision=\"%.48s\"", di_version_string(),
             di_git_revision());
    family(w, "deepinfer:build_info", "gauge", "What runs.");
    sample_real(w, labels, 1);
    family(w, "process_start_time_seconds", "gauge", "Since 1970.");
    begin_sample(w, "", "");
    put(w, " %.3f\n", w->m->started);
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    family(w, "process_cpu_seconds_total", "counter", "Processor time used.");
    sample_real(w, "", (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long total, resident;
    if (f && fscanf(f, "%llu %llu", &total, &resident) == 2) {
        gauge(w, "process_resident_memory_bytes", "Memory in use.",
              (double)resident * (double)sysconf(_SC_PAGESIZE));
    }
    if (f) {
        (void)fclose(f);
    }
    DIR *fds = opendir("/proc/self/fd");
    if (fds) {
        double count = -3; /* ".", ".." and the folder itself */
        while (readdir(fds)) {
            count++;
        }
        closedir(fds);
        gauge(w, "process_open_fds", "Files and connections open.", count);
    }
}

bool di_metrics_write(di_metrics *m, di_buffer *out, di_error *err) {
    writer w = {.out = out, .err = err, .ok = true, .m = m};
    pthread_mutex_lock(&m->engine_lock);
    write_engine(&w);
    write_drafts(&w);
    pthread_mutex_unlock(&m->engine_lock);
    write_requests(&w);
    write_http(&w);
    write_keys(&w);
    write_process(&w);
    return w.ok;
}
