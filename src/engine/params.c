/* Parameters of requests: defaults, ranges, and the model's generation_config.json. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
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
    };
    memset(params, 0, struct_bytes);
    memcpy(params, &ours, struct_bytes < sizeof ours ? struct_bytes : sizeof ours);
}

bool di_params_read(di_request_params *ours, const di_request_params *theirs, di_error *err) {
    di_request_params_init(NULL, ours, sizeof *ours);
    if (!di_struct_read(ours, sizeof *ours, theirs, "di_request_params", err)) {
        return false;
    }
    if (ours->max_tokens < 0 || ours->max_tokens > INT32_MAX) {
        return di_fail(err, DI_ERR_ARGUMENT, "max_tokens is %lld, allowed are 1 to %d",
                       (long long)ours->max_tokens, INT32_MAX);
    }
    di_sampling p = {ours->temperature, ours->top_p, ours->min_p, ours->top_k};
    return di_sampling_check(&p, err);
}

bool di_request_params_check(const di_request_params *params, di_error *err) {
    di_request_params ours;
    return di_params_read(&ours, params, err);
}
