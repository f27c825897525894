/* Parameters of requests: defaults, ranges, and the model's generation_config.json. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/constraint.h"
#include "engine/internal.h"

enum { MAX_FILE_BYTES = 1 << 20 };

static const di_sampling plain = {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = -1};

bool di_struct_read(void *ours, size_t our_bytes, const void *theirs, const char *name,
                    di_error *err) {
    size_t their_bytes = 0;
    if (theirs) {
        memcpy(&their_bytes, theirs, sizeof their_bytes);
    }
    if (their_bytes < sizeof their_bytes) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s was not set up by its init function", name);
    }
    memcpy(ours, theirs, their_bytes < our_bytes ? their_bytes : our_bytes);
    return true;
}

static bool read_fields(di_sampling *p, const json_t *root, const char *path, di_error *err) {
    bool do_sample;
    int64_t top_k;
    if (!di_json_real_or(root, path, "temperature", 0, DI_MAX_TEMPERATURE, plain.temperature,
                         &p->temperature, err) ||
        !di_json_real_or(root, path, "top_p", 0, 1, plain.top_p, &p->top_p, err) ||
        !di_json_real_or(root, path, "min_p", 0, 1, plain.min_p, &p->min_p, err) ||
        !di_json_int_or(root, path, "top_k", -1, INT32_MAX, plain.top_k, &top_k, err) ||
        !di_json_bool_or(root, path, "do_sample", true, &do_sample, err)) {
        return false;
    }
    p->top_k = top_k;
    if (!do_sample) {
        p->temperature = 0;
    }
    return di_sampling_check(p, err) || di_fail_prefix(err, "%s", path);
}

bool di_defaults_read(di_sampling *defaults, const char *folder, di_error *err) {
    *defaults = plain;
    char *path = di_path_join(folder, "generation_config.json");
    if (!path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for a path", folder);
    }
    bool ok = true;
    if (access(path, F_OK) == 0 || errno != ENOENT) {
        json_t *root = di_json_read(path, MAX_FILE_BYTES, err);
        ok = root && read_fields(defaults, root, path, err);
        json_decref(root);
    }
    di_free(path);
    return ok;
}

void di_request_params_init(const di_engine *engine, di_request_params *params,
                            size_t struct_bytes) {
    const di_sampling *p = engine ? &engine->defaults : &plain;
    di_request_params ours = {
        .struct_bytes = struct_bytes,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .top_k = p->top_k,
        .min_p = p->min_p,
        .n = 1,
        .repetition_penalty = 1,
        .bound_token_id = -1,
        .schema_max_whitespace = DI_SCHEMA_WHITESPACE,
    };
    memset(params, 0, struct_bytes);
    memcpy(params, &ours, struct_bytes < sizeof ours ? struct_bytes : sizeof ours);
}

static bool int_in(const char *name, int64_t value, int64_t low, int64_t high, di_error *err) {
    return (value >= low && value <= high) ||
           di_fail(err, DI_ERR_ARGUMENT, "%s is %lld, allowed are %lld to %lld", name,
                   (long long)value, (long long)low, (long long)high);
}

static bool real_in(const char *name, double value, double low, double high, di_error *err) {
    return (value >= low && value <= high) || /* false for a NaN */
           di_fail(err, DI_ERR_ARGUMENT, "%s is %g, allowed are %g to %g", name, value, low, high);
}

static bool list_is_there(const char *name, const void *list, size_t count, di_error *err) {
    return list || count == 0 ||
           di_fail(err, DI_ERR_ARGUMENT, "%s is NULL with %zu elements", name, count);
}

static bool check_numbers(const di_request_params *p, di_error *err) {
    di_sampling shape = {p->temperature, p->top_p, p->min_p, p->top_k};
    if (p->max_tokens < 0 || p->max_tokens > INT32_MAX) { /* 0 is how absence is written */
        return di_fail(err, DI_ERR_ARGUMENT, "max_tokens is %lld, allowed are 1 to %d",
                       (long long)p->max_tokens, INT32_MAX);
    }
    return di_sampling_check(&shape, err) && int_in("n", p->n, 1, DI_MAX_CHOICES, err) &&
           real_in("repetition_penalty", p->repetition_penalty, DI_MIN_REPETITION_PENALTY,
                   DI_MAX_REPETITION_PENALTY, err) &&
           real_in("presence_penalty", p->presence_penalty, -2, 2, err) &&
           real_in("frequency_penalty", p->frequency_penalty, -2, 2, err) &&
           int_in("min_tokens", p->min_tokens, 0, INT32_MAX, err) &&
           int_in("top_logprobs", p->top_logprobs, 0, DI_MAX_LOGPROBS, err) &&
           int_in("schema_max_whitespace", p->schema_max_whitespace, 0, 1000, err) &&
           real_in("deadline", p->deadline, 0, 1e9, err);
}

static bool check_lists(const di_request_params *p, di_error *err) {
    return list_is_there("stop", p->stop, p->num_stop, err) &&
           list_is_there("stop_token_ids", p->stop_token_ids, p->num_stop_token_ids, err) &&
           list_is_there("bad_words", p->bad_words, p->num_bad_words, err) &&
           list_is_there("logit_bias", p->logit_bias, p->num_logit_bias, err) &&
           list_is_there("allowed_token_ids", p->allowed_token_ids, p->num_allowed_token_ids,
                         err) &&
           list_is_there("golden_token_ids", p->golden_token_ids, p->num_golden_token_ids, err) &&
           list_is_there("trigger_token_ids", p->trigger_token_ids, p->num_trigger_token_ids, err);
}

/* What depends on two parameters. */
static bool check_together(const di_request_params *p, di_error *err) {
    if (p->max_tokens > 0 && p->min_tokens > p->max_tokens) {
        return di_fail(err, DI_ERR_ARGUMENT, "min_tokens is %lld, max_tokens only %lld",
                       (long long)p->min_tokens, (long long)p->max_tokens);
    }
    if (p->num_golden_token_ids > 0 && p->n > 1) {
        return di_fail(err, DI_ERR_ARGUMENT, "n is %d, with golden_token_ids only 1 is allowed",
                       p->n);
    }
    if (p->top_logprobs > 0 && !p->logprobs && !p->prompt_logprobs) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "top_logprobs is %d without logprobs or prompt_logprobs", p->top_logprobs);
    }
    return true;
}

bool di_params_read(di_request_params *ours, const di_request_params *theirs, di_error *err) {
    di_request_params_init(NULL, ours, sizeof *ours);
    return di_struct_read(ours, sizeof *ours, theirs, "di_request_params", err) &&
           check_numbers(ours, err) && check_lists(ours, err) && check_together(ours, err) &&
           di_constraint_check(ours, err);
}

bool di_request_params_check(const di_request_params *params, di_error *err) {
    di_request_params ours;
    return di_params_read(&ours, params, err);
}
