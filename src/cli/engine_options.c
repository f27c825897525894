/* From the command line to the engine: see engine_options.h. */
#include "cli/engine_options.h"

#include "cli/cli.h"
#include "cli/progress.h"
#include "text/chat.h"

static void on_progress(void *user, int done, int total) {
    di_progress_show(user, done, total);
}

di_engine *di_cli_open_engine(const di_options *o, di_error *err) {
    di_progress progress;
    di_progress_begin(&progress, "loading", o->values[DI_OPT_QUIET].flag);
    di_engine_options options;
    di_engine_options_init(&options, sizeof options);
    options.model = o->values[DI_OPT_MODEL].text;
    options.backend = di_options_text(o, DI_OPT_BACKEND, NULL);
    options.threads = (int)di_options_integer(o, DI_OPT_THREADS, 0);
    options.max_model_len = di_options_integer(o, DI_OPT_MAX_MODEL_LEN, 0);
    options.max_num_batched_tokens =
        (int)di_options_integer(o, DI_OPT_MAX_NUM_BATCHED_TOKENS, options.max_num_batched_tokens);
    options.progress = on_progress;
    options.user = &progress;
    di_engine *engine = di_engine_open(&options, err);
    di_progress_end(&progress);
    if (engine) {
        di_signals_catch_interrupt();
    }
    return engine;
}

bool di_cli_open_parts(const di_options *o, int chunk, di_parts *parts, di_error *err) {
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
        .no_prefix_cache = true,
        .progress = on_progress,
        .user = &progress,
    };
    bool ok = di_parts_open(parts, &options, err);
    di_progress_end(&progress);
    if (ok) {
        di_signals_catch_interrupt();
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
