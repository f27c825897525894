/* Metrics: that what is counted is what is written, and that Prometheus's own parser reads it. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "server/metrics.h"
#include "support/cmocka.h"
#include "support/model_files.h"

static char *text_of(di_metrics *m) {
    di_buffer out = {0};
    di_error err = {0};
    if (!di_metrics_write(m, &out, &err)) {
        fail_msg("%s", err.message);
    }
    return out.data;
}

/* The value of the line that begins with `sample` and a blank; fails the test if there is none. */
static double value_of(const char *text, const char *sample) {
    size_t size = strlen(sample);
    for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, sample, size) == 0 && line[size] == ' ') {
            return strtod(line + size, NULL);
        }
    }
    fail_msg("there is no sample %s", sample);
    return NAN;
}

#define VLLM "{model_name=\"a \\\"model\\\"\",engine=\"0\""
#define OURS "{model_name=\"a \\\"model\\\"\""

static di_metrics *full(void) {
    di_metrics *m = di_metrics_create("a \"model\"");
    assert_non_null(m);
    di_metrics_request r = {
        .key_id = "alice",
        .finished = DI_FINISHED_LENGTH,
        .prompt_tokens = 100,
        .cached_tokens = 40,
        .completion_tokens = 11,
        .reasoning_tokens = 3,
        .max_tokens = 11,
        .n = 1,
        .stream = true,
        .ttft_seconds = 0.02,
        .e2e_seconds = 1.25,
        .queue_seconds = 0.005,
        .prefill_seconds = 0.015,
        .decode_seconds = 1,
    };
    di_metrics_finish(m, &r);
    r.n = 0; /* its second answer, which had no token */
    r.prompt_tokens = r.cached_tokens = r.completion_tokens = r.reasoning_tokens = 0;
    r.finished = DI_FINISHED_ABORT;
    r.ttft_seconds = r.prefill_seconds = r.decode_seconds = -1;
    di_metrics_finish(m, &r);
    di_metrics_gap(m, 0.3, 3);
    di_metrics_gap(m, 7000, 1);
    di_metrics_gap(m, NAN, 1);
    di_metrics_http(m, DI_ENDPOINT_CHAT_COMPLETIONS, 200, 1.25);
    di_metrics_http(m, DI_ENDPOINT_CHAT_COMPLETIONS, 418, 0.001);
    di_metrics_http(m, (di_endpoint)99, 404, 0.001);
    di_metrics_connections(m, 1);
    di_metrics_connections(m, 1);
    di_metrics_connections(m, -1);
    di_metrics_in_flight(m, 1);
    di_metrics_journal(m, false);
    di_metrics_event(m, DI_EVENT_DISCONNECT);
    di_metrics_event(m, DI_EVENT_SLOW_READER);
    di_metrics_refused(m, "bob", DI_QUOTA_CONCURRENCY);
    di_engine_stats e = {
        .steps = 5,
        .prompt_tokens = 60,
        .completion_tokens = 11,
        .prefix_tokens_asked = 100,
        .prefix_tokens_hit = 40,
        .running = 2,
        .waiting = 3,
        .blocks = 100,
        .blocks_free = 50,
        .blocks_cached = 25,
        .block_tokens = 128,
        .preemptions = 1,
        .draft_rounds = 10,
        .drafts_verified = 20,
        .drafts_accepted = 13,
        .drafts_verified_at = {10, 10},
        .drafts_accepted_at = {8, 5},
        .device_seconds = 12345.678901,
    };
    di_step_stats steps[2] = {
        {.number = 3, .prompt_tokens = 60, .completion_tokens = 1, .host_seconds = 0.0002},
        {.number = 5, .completion_tokens = 2, .host_seconds = 0.0003, .idle_seconds = 0.002}};
    di_metrics_engine(m, &e, steps, 2);
    di_metrics_engine(m, &e, steps, 2); /* told twice, counted once */
    return m;
}

static void test_what_is_counted_is_what_is_written(void **state) {
    (void)state;
    di_metrics *m = full();
    char *text = text_of(m);
    static const struct {
        const char *sample;
        double value;
    } wanted[] = {
        {"vllm:num_requests_running" VLLM "}", 2},
        {"vllm:num_requests_waiting" VLLM "}", 3},
        {"vllm:kv_cache_usage_perc" VLLM "}", 0.25},
        {"vllm:cache_config_info" VLLM ",block_size=\"128\",num_gpu_blocks=\"100\"}", 1},
        {"vllm:prompt_tokens_total" VLLM "}", 100},
        {"vllm:generation_tokens_total" VLLM "}", 11},
        {"vllm:prefix_cache_queries_total" VLLM "}", 100},
        {"vllm:prefix_cache_hits_total" VLLM "}", 40},
        {"vllm:num_preemptions_total" VLLM "}", 1},
        {"vllm:request_success_total" VLLM ",finished_reason=\"length\"}", 1},
        {"vllm:request_success_total" VLLM ",finished_reason=\"abort\"}", 1},
        {"vllm:request_success_total" VLLM ",finished_reason=\"stop\"}", 0},
        {"vllm:time_to_first_token_seconds_bucket" VLLM ",le=\"0.01\"}", 0},
        {"vllm:time_to_first_token_seconds_bucket" VLLM ",le=\"0.02\"}", 1},
        {"vllm:time_to_first_token_seconds_sum" VLLM "}", 0.02},
        {"vllm:time_to_first_token_seconds_count" VLLM "}", 1},
        {"vllm:inter_token_latency_seconds_bucket" VLLM ",le=\"0.075\"}", 0},
        {"vllm:inter_token_latency_seconds_bucket" VLLM ",le=\"0.15\"}", 3},
        {"vllm:inter_token_latency_seconds_bucket" VLLM ",le=\"80\"}", 3},
        {"vllm:inter_token_latency_seconds_bucket" VLLM ",le=\"+Inf\"}", 4},
        {"vllm:inter_token_latency_seconds_sum" VLLM "}", 7000.3},
        {"vllm:request_time_per_output_token_seconds_sum" VLLM "}", 0.1},
        {"vllm:e2e_request_latency_seconds_count" VLLM "}", 2},
        {"vllm:request_inference_time_seconds_sum" VLLM "}", 1.015},
        {"vllm:request_prompt_tokens_sum" VLLM "}", 100},
        {"vllm:request_generation_tokens_count" VLLM "}", 2},
        {"vllm:request_params_n_count" VLLM "}", 1},
        {"vllm:iteration_tokens_total_count" VLLM "}", 2},
        {"vllm:iteration_tokens_total_sum" VLLM "}", 63},
        {"vllm:spec_decode_num_drafts_total" VLLM "}", 10},
        {"vllm:spec_decode_num_accepted_tokens_total" VLLM "}", 13},
        {"vllm:spec_decode_num_accepted_tokens_per_pos_total" VLLM ",position=\"1\"}", 5},
        {"deepinfer:accepted_drafts_bucket" OURS ",le=\"0\"}", 2},
        {"deepinfer:accepted_drafts_bucket" OURS ",le=\"1\"}", 5},
        {"deepinfer:accepted_drafts_bucket" OURS ",le=\"2\"}", 10},
        {"deepinfer:accepted_drafts_sum" OURS "}", 13},
        {"deepinfer:steps_missed_total" OURS "}", 3}, /* 1, 2 and 4 */
        {"deepinfer:step_host_seconds_count" OURS "}", 2},
        {"deepinfer:step_host_seconds_sum" OURS "}", 0.0005},
        {"deepinfer:device_seconds_total" OURS "}", 12345.678901},
        {"deepinfer:reasoning_tokens_total" OURS "}", 3},
        {"deepinfer:requests_streamed_total" OURS "}", 1},
        {"deepinfer:http_requests_total" OURS ",endpoint=\"/v1/chat/completions\",status=\"200\"}",
         1},
        {"deepinfer:http_requests_total" OURS
         ",endpoint=\"/v1/chat/completions\",status=\"other\"}",
         1},
        {"deepinfer:http_requests_total" OURS ",endpoint=\"other\",status=\"404\"}", 1},
        {"deepinfer:http_connections" OURS "}", 1},
        {"deepinfer:quota_journal_ok" OURS "}", 0},
        {"deepinfer:http_requests_in_flight" OURS "}", 1},
        {"deepinfer:server_events_total" OURS ",event=\"disconnect\"}", 1},
        {"deepinfer:key_requests_total" OURS ",key=\"alice\"}", 1},
        {"deepinfer:key_prompt_tokens_total" OURS ",key=\"alice\"}", 100},
        {"deepinfer:key_cached_tokens_total" OURS ",key=\"alice\"}", 40},
        {"deepinfer:key_generation_tokens_total" OURS ",key=\"alice\"}", 11},
        {"deepinfer:key_refused_total" OURS ",key=\"bob\",limit=\"concurrency\"}", 1},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        double found = value_of(text, wanted[i].sample);
        if (fabs(found - wanted[i].value) > 1e-9) {
            fail_msg("%s is %.12g, wanted %.12g", wanted[i].sample, found, wanted[i].value);
        }
    }
    assert_true(value_of(text, "process_resident_memory_bytes" OURS "}") > 1e6);
    assert_true(value_of(text, "process_open_fds" OURS "}") >= 3);
    di_free(text);
    di_metrics_destroy(m);
}

static void test_prometheus_own_parser_reads_it(void **state) {
    (void)state;
    const char *python = getenv("PYTHON");
    char *folder = files_folder(), command[8192];
    di_metrics *m = full();
    char *text = text_of(m);
    files_write_text(folder, "metrics", text);
    di_free(text);
    di_metrics_destroy(m);
    snprintf(command, sizeof command, "%s tests/server/parse_metrics.py %s >/dev/null",
             python ? python : "/usr/bin/python3", files_path(folder, "metrics"));
    int status = system(command);
    files_remove(folder);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("# Python has no prometheus_client\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_names_without_end_share_one_label(void **state) {
    (void)state;
    di_metrics *m = di_metrics_create("m");
    char id[DI_KEY_ID_BYTES + 1];
    for (int i = 0; i < 3 * DI_METRICS_KEYS; i++) {
        snprintf(id, sizeof id, "key-%d", i);
        di_metrics_finish(m, &(di_metrics_request){.key_id = id, .n = 1});
    }
    char *text = text_of(m);
    int lines = 0;
    for (const char *p = text; (p = strstr(p, "\ndeepinfer:key_requests_total{")); p++) {
        lines++;
    }
    assert_int_equal(lines, DI_METRICS_KEYS + 1);
    assert_true(value_of(text, "deepinfer:key_requests_total{model_name=\"m\",key=\"other\"}") ==
                2 * DI_METRICS_KEYS);
    di_free(text);
    di_metrics_destroy(m);
}

/* ---- many threads -----------------------------------------------------------------------------*/

enum { THREADS = 4, EACH = 20000 };

static void *count(void *arg) {
    di_metrics *m = arg;
    char id[16];
    for (int i = 0; i < EACH; i++) {
        snprintf(id, sizeof id, "k%d", i % 300);
        di_metrics_finish(m, &(di_metrics_request){
                                 .key_id = id, .n = 1, .prompt_tokens = 2, .ttft_seconds = 0.5});
        di_metrics_gap(m, 0.01, 2);
    }
    return NULL;
}

static void test_threads_lose_no_count(void **state) {
    (void)state;
    di_metrics *m = di_metrics_create("m");
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count, m), 0);
    }
    for (int i = 0; i < 20; i++) {
        di_free(text_of(m)); /* reading while they count */
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    char *text = text_of(m);
    double requests = 0;
    char sample[96];
    for (int i = 0; i < 300; i++) {
        snprintf(sample, sizeof sample,
                 "deepinfer:key_requests_total{model_name=\"m\",key=\"k%d\"}", i);
        requests += value_of(text, sample);
    }
    assert_true(requests == THREADS * EACH);
    assert_true(
        value_of(text, "vllm:time_to_first_token_seconds_sum{model_name=\"m\",engine=\"0\"}") ==
        0.5 * THREADS * EACH);
    assert_true(
        value_of(text, "vllm:inter_token_latency_seconds_count{model_name=\"m\",engine=\"0\"}") ==
        2.0 * THREADS * EACH);
    di_free(text);
    di_metrics_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_counted_is_what_is_written),
        cmocka_unit_test(test_prometheus_own_parser_reads_it),
        cmocka_unit_test(test_names_without_end_share_one_label),
        cmocka_unit_test(test_threads_lose_no_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
