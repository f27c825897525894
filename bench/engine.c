/* Decoding many requests at once on the demo model: tokens/s by batch size, against one at a time
 * in the same run; the device's idle share between steps; and where the time goes, by op.
 *
 *     engine [MODEL] [TOKENS] [BACKEND]
 *
 * Goals: 64 at once at least 3 times one at a time on 2 cores; never fewer tokens/s for more
 * requests; idle share at 64 below 2 %. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "deepinfer/deepinfer.h"

typedef struct measured {
    double tokens_per_second, idle_share, host_us;
} measured;

static const char *backend;

static di_engine *open_engine(const char *model, bool time_ops) {
    di_error err = {0};
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = model;
    o.backend = backend;
    o.max_num_seqs = 128;
    o.time_ops = time_ops;
    di_engine *e = di_engine_open(&o, &err);
    if (!e) {
        fprintf(stderr, "engine: %s\n", err.message);
        exit(1);
    }
    return e;
}

/* `batch` requests of `tokens` tokens each, all begun at once; time from the first token of the
 * last to begin. Prompts differ, so nothing is shared. */
static measured run(di_engine *e, int batch, int tokens) {
    di_error err = {0};
    di_queue *q = di_queue_create(e, &err);
    di_engine_stats before = {.struct_bytes = sizeof before}, after = before;
    int begun = 0, ended = 0;
    long counted = 0;
    double start = 0, end = 0;
    for (int i = 0; i < batch; i++) {
        int32_t ids[16] = {0};
        for (int k = 1; k < 16; k++) {
            ids[k] = 260 + (i * 131 + k * 17) % 3000;
        }
        di_prompt p;
        di_prompt_init(&p, sizeof p);
        p.token_ids = ids;
        p.num_token_ids = 16;
        di_request_params params;
        di_request_params_init(e, &params, sizeof params);
        params.temperature = 0.7;
        params.ignore_eos = true;
        params.max_tokens = tokens;
        if (!di_submit(e, q, &p, &params, NULL, &err)) {
            fprintf(stderr, "engine: %s\n", err.message);
            exit(1);
        }
    }
    while (ended < batch) {
        di_output *out = di_queue_wait(q, -1);
        if (!out) {
            continue;
        }
        begun +=
            out->completion_tokens > 0 && out->completion_tokens == (int64_t)out->num_token_ids;
        counted += start > 0 && ended == 0 ? (long)out->num_token_ids : 0;
        if (start == 0 && begun >= batch) {
            start = di_now();
            di_engine_get_stats(e, &before);
        }
        if (out->finish_reason != DI_FINISH_NONE && ended++ == 0) {
            end = di_now();
            di_engine_get_stats(e, &after);
        }
        di_output_free(out);
    }
    di_queue_destroy(q);
    double device = after.device_seconds - before.device_seconds;
    double idle = after.device_idle_seconds - before.device_idle_seconds;
    double steps = (double)(after.steps - before.steps);
    return (measured){
        .tokens_per_second = (double)counted / (end - start),
        .idle_share = idle / (idle + device),
        .host_us =
            steps > 0 ? 1e6 * (after.host_seconds_total - before.host_seconds_total) / steps : 0,
    };
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "models/demo";
    int tokens = argc > 2 ? atoi(argv[2]) : 96;
    backend = argc > 3 ? argv[3] : NULL;
    di_engine *e = open_engine(model, false);
    run(e, 2, 16);
    double one = 0;
    printf("decode on %s, %d tokens a request\n", model, tokens);
    printf("%6s %12s %8s %10s %12s\n", "batch", "tokens/s", "x one", "idle", "host us/step");
    for (int batch = 1; batch <= 128; batch *= 2) {
        measured m = run(e, batch, tokens);
        one = batch == 1 ? m.tokens_per_second : one;
        printf("%6d %12.0f %8.2f %9.2f%% %12.1f\n", batch, m.tokens_per_second,
               m.tokens_per_second / one, 100 * m.idle_share, m.host_us);
        fflush(stdout);
    }
    di_engine_close(e);
    for (int batch = 1; batch <= 64; batch *= 64) {
        e = open_engine(model, true);
        run(e, batch, tokens);
        printf("\nwhere a batch of %d spends its time\n", batch);
        di_engine_print_op_times(e, stdout);
        di_engine_close(e);
    }
    return 0;
}
