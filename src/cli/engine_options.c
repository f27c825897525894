/* From the command line to the engine: see engine_options.h. */
#include "cli/engine_options.h"

#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "engine/calibration.h"
#include "text/chat.h"

static void on_progress(void *user, int done, int total) {
    di_progress_show(user, done, total);
}

enum { DEFAULT_NUM_SEQS = 64, DEFAULT_REPLAY_KEEP = 140 };

int di_cli_max_num_seqs(const di_options *o) {
    return (int)di_options_integer(o, DI_OPT_MAX_NUM_SEQS, DEFAULT_NUM_SEQS);
}

static di_replay_mode replay_mode(const di_options *o) {
    const char *mode = di_options_text(o, DI_OPT_REPLAY_MODE, "off");
    return strcmp(mode, "mask") == 0      ? DI_REPLAY_MASK
           : strcmp(mode, "compact") == 0 ? DI_REPLAY_COMPACT
                                          : DI_REPLAY_OFF;
}

static di_spec_mode spec_mode(const di_options *o) {
    const char *mode = di_options_text(o, DI_OPT_SPEC_MODE, "priced");
    return strcmp(mode, "off") == 0     ? DI_SPEC_OFF
           : strcmp(mode, "fixed") == 0 ? DI_SPEC_FIXED
                                        : DI_SPEC_PRICED;
}

/* 0 where a share was given. */
static int64_t gpu_memory(const di_options *o) {
    return o->values[DI_OPT_GPU_MEMORY].real > 0 ? 0 : di_options_integer(o, DI_OPT_GPU_MEMORY, 0);
}

/* Options that were given and that others given beside them leave without a meaning. */
static void tell_what_is_idle(const di_options *o) {
    di_spec_mode mode = spec_mode(o);
    bool off = mode == DI_SPEC_OFF ||
               (o->values[DI_OPT_NUM_DRAFTS].given && o->values[DI_OPT_NUM_DRAFTS].integer == 0);
    bool unpriced = off || mode != DI_SPEC_PRICED;
    const char *backend = di_options_text(o, DI_OPT_BACKEND, "cpu");
    bool no_card = strcmp(backend, "cpu") == 0 || strcmp(backend, "ref") == 0;
    const struct {
        di_option_id option;
        bool idle;
        const char *why;
    } rules[] = {
        {DI_OPT_NUM_DRAFTS, mode == DI_SPEC_OFF && o->values[DI_OPT_NUM_DRAFTS].integer > 0,
         "--spec-mode is off"},
        {DI_OPT_CONFIDENCE_TEMPERATURE, off, "there are no drafts"},
        {DI_OPT_COST_CACHE, unpriced, "only --spec-mode priced measures costs"},
        {DI_OPT_COST_CACHE_TTL, unpriced, "only --spec-mode priced measures costs"},
        {DI_OPT_GPU_MEMORY, no_card, "the backend uses no card"},
        {DI_OPT_REPLAY_KEEP_TOKENS, replay_mode(o) == DI_REPLAY_OFF, "--replay-mode is off"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].idle && o->values[rules[i].option].given) {
            di_log(DI_LOG_WARN, "--%s changes nothing: %s", di_option_table[rules[i].option].name,
                   rules[i].why);
        }
    }
}

/* A flag that is on unless --no-NAME. */
static bool denied(const di_options *o, di_option_id id) {
    return o->values[id].given && !o->values[id].flag;
}

static void set_engine_options(const di_options *o, int max_queue, di_engine_options *options) {
    const di_option_value *v = o->values;
    options->model = v[DI_OPT_MODEL].text;
    options->backend = di_options_text(o, DI_OPT_BACKEND, NULL);
    options->threads = (int)di_options_integer(o, DI_OPT_THREADS, 0);
    options->max_model_len = di_options_integer(o, DI_OPT_MAX_MODEL_LEN, 0);
    options->max_num_batched_tokens =
        (int)di_options_integer(o, DI_OPT_MAX_NUM_BATCHED_TOKENS, options->max_num_batched_tokens);
    options->max_mixed_prefill_tokens =
        (int)di_options_integer(o, DI_OPT_MAX_MIXED_PREFILL_TOKENS, 0);
    options->max_logprobs = (int)di_options_integer(o, DI_OPT_MAX_LOGPROBS, options->max_logprobs);
    options->kv_memory = di_options_integer(o, DI_OPT_KV_MEMORY, 0);
    options->gpu_memory_share = v[DI_OPT_GPU_MEMORY].real;
    options->gpu_memory = gpu_memory(o);
    options->host_memory = di_options_integer(o, DI_OPT_HOST_MEMORY, 0);
    options->no_prefix_cache = denied(o, DI_OPT_PREFIX_CACHE);
    options->synchronous = v[DI_OPT_SYNC].flag;
    options->no_batch_invariance = denied(o, DI_OPT_BATCH_INVARIANT);
    options->replay_mode = replay_mode(o);
    if (options->replay_mode != DI_REPLAY_OFF) {
        options->replay_keep_tokens = di_cli_replay_keep(o);
    }
    options->num_drafts = (int)di_options_integer(o, DI_OPT_NUM_DRAFTS, -1);
    options->spec_mode = spec_mode(o);
    options->cost_cache = di_options_text(o, DI_OPT_COST_CACHE, NULL);
    options->cost_cache_seconds = (int)di_options_integer(o, DI_OPT_COST_CACHE_TTL, 0);
    options->confidence_temperatures = di_options_text(o, DI_OPT_CONFIDENCE_TEMPERATURE, NULL);
    options->max_queue = (int)di_options_integer(o, DI_OPT_MAX_QUEUE, max_queue);
    options->trace_file = di_options_text(o, DI_OPT_TRACE, NULL);
}

int di_cli_replay_keep(const di_options *o) {
    return (int)di_options_integer(o, DI_OPT_REPLAY_KEEP_TOKENS, DEFAULT_REPLAY_KEEP);
}

static di_engine *open_engine(const di_options *o, di_engine_options *options, di_error *err) {
    di_progress progress;
    di_progress_begin(&progress, "loading", o->values[DI_OPT_QUIET].flag);
    options->progress = on_progress;
    options->user = &progress;
    di_engine *engine = di_engine_open(options, err);
    di_progress_end(&progress);
    if (engine) {
        di_signals_catch();
    }
    return engine;
}

di_engine *di_cli_open_engine(const di_options *o, int max_num_seqs, int max_queue, di_error *err) {
    di_engine_options options;
    di_engine_options_init(&options, sizeof options);
    tell_what_is_idle(o);
    set_engine_options(o, max_queue, &options);
    options.max_num_seqs = max_num_seqs;
    return open_engine(o, &options, err);
}

di_engine *di_cli_open_calibrating(const di_options *o, int max_num_seqs, di_error *err) {
    di_engine_options options;
    di_engine_options_init(&options, sizeof options);
    set_engine_options(o, 0, &options);
    options.max_num_seqs = max_num_seqs;
    options.spec_mode = DI_SPEC_FIXED;
    options.confidence_temperatures = "1";
    di_engine *engine = open_engine(o, &options, err);
    di_calibration unused;
    if (engine && di_engine_get_calibration(engine, &unused) == 0) {
        di_fail(err, DI_ERR_UNSUPPORTED, "%s: there are no drafts to calibrate (mtp.* tensors)",
                options.model);
        di_engine_close(engine);
        engine = NULL;
    }
    return engine;
}

bool di_cli_open_parts(const di_options *o, int chunk, bool replay_by_mask, di_parts *parts,
                       di_error *err) {
    di_progress progress;
    di_progress_begin(&progress, "loading", o->values[DI_OPT_QUIET].flag);
    di_parts_options options = {
        .model = o->values[DI_OPT_MODEL].text,
        .backend = di_options_text(o, DI_OPT_BACKEND, NULL),
        .threads = (int)di_options_integer(o, DI_OPT_THREADS, 0),
        .max_model_len = di_options_integer(o, DI_OPT_MAX_MODEL_LEN, 0),
        .max_num_seqs = 1,
        .max_rows = chunk,
        .max_logits = chunk,
        .gpu_memory = gpu_memory(o),
        .gpu_memory_share = o->values[DI_OPT_GPU_MEMORY].real,
        .free_order = denied(o, DI_OPT_BATCH_INVARIANT),
        .no_prefix_cache = true,
        .replay_by_mask = replay_by_mask,
        .progress = on_progress,
        .user = &progress,
    };
    bool ok = di_parts_open(parts, &options, err);
    di_progress_end(&progress);
    if (ok) {
        di_signals_catch();
    }
    return ok;
}

void di_cli_params(const di_options *o, const di_engine *engine, di_request_params *params) {
    const di_option_value *v = o->values;
    di_request_params_init(engine, params, sizeof *params);
    if (v[DI_OPT_TEMPERATURE].given) {
        params->temperature = v[DI_OPT_TEMPERATURE].real;
    }
    if (v[DI_OPT_TOP_P].given) {
        params->top_p = v[DI_OPT_TOP_P].real;
    }
    if (v[DI_OPT_MIN_P].given) {
        params->min_p = v[DI_OPT_MIN_P].real;
    }
    if (v[DI_OPT_REPETITION_PENALTY].given) {
        params->repetition_penalty = v[DI_OPT_REPETITION_PENALTY].real;
    }
    params->presence_penalty = v[DI_OPT_PRESENCE_PENALTY].real; /* 0 if not given */
    params->frequency_penalty = v[DI_OPT_FREQUENCY_PENALTY].real;
    params->priority = (int)di_options_integer(o, DI_OPT_PRIORITY, 0);
    params->top_k = di_options_integer(o, DI_OPT_TOP_K, params->top_k);
    params->max_tokens = di_options_integer(o, DI_OPT_MAX_TOKENS, params->max_tokens);
    params->has_seed = v[DI_OPT_SEED].given;
    params->seed = v[DI_OPT_SEED].seed;
    params->ignore_eos = v[DI_OPT_IGNORE_EOS].flag;
}

bool di_cli_effort(const di_options *o, int *effort, di_error *err) {
    const di_option_value *think = &o->values[DI_OPT_THINK], *level = &o->values[DI_OPT_EFFORT];
    *effort = think->flag ? DI_EFFORT_HIGH : DI_EFFORT_OFF;
    if (!level->given) {
        return true;
    }
    if (!di_effort_parse(level->text, effort, err)) {
        return di_fail_prefix(err, "--effort");
    }
    if (think->given && !think->flag) {
        *effort = DI_EFFORT_OFF;
    }
    return true;
}
