/* Temperatures, and the pricer's making: see spec.h. */
#include "engine/spec.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

enum { MAX_FILE_BYTES = 1 << 16 };

static const double lowest = 0.01, highest = 100;

/* ---- temperatures -----------------------------------------------------------------------------*/

static bool check_temperature(double t, const char *where, int place, di_error *err) {
    return (t >= lowest && t <= highest) ||
           di_fail(err, DI_ERR_ARGUMENT, "%s: number %d is %g, allowed are %g to %g", where,
                   place + 1, t, lowest, highest);
}

static bool parse_list(const char *text, int n, double *out, di_error *err) {
    static const char where[] = "confidence_temperatures";
    int count = 0;
    for (const char *at = text;; at++) {
        char *end;
        double t = strtod(at, &end);
        if (end == at || (*end && *end != ',')) {
            return di_fail(err, DI_ERR_ARGUMENT, "%s is '%s', numbers with commas are allowed",
                           where, text);
        }
        if (!check_temperature(t, where, count, err)) {
            return false;
        }
        if (count < n) {
            out[count] = t;
        }
        count++;
        at = end;
        if (!*at) {
            break;
        }
    }
    for (int j = 1; count == 1 && j < n; j++) {
        out[j] = out[0];
    }
    return count == 1 || count == n ||
           di_fail(err, DI_ERR_ARGUMENT, "%s has %d numbers, allowed are 1 or %d (num_drafts)",
                   where, count, n);
}

static bool read_file(const char *path, int n, double *out, di_error *err) {
    json_t *object = di_json_read(path, MAX_FILE_BYTES, err);
    json_t *array = object ? di_json_array(object, path, "temperatures", err) : NULL;
    bool ok = array != NULL;
    if (ok && json_array_size(array) < (size_t)n) {
        ok = di_fail(err, DI_ERR_FORMAT, "%s: temperatures has %zu numbers, %d are needed", path,
                     json_array_size(array), n);
    }
    for (int j = 0; ok && j < n; j++) {
        out[j] = json_number_value(json_array_get(array, (size_t)j)); /* 0 if it is no number */
        ok = check_temperature(out[j], path, j, err);
    }
    json_decref(object);
    return ok;
}

bool di_temperatures_read(const char *text, const char *model, int n, double *out, di_error *err) {
    if (text) {
        return parse_list(text, n, out, err);
    }
    for (int j = 0; j < n; j++) {
        out[j] = 1;
    }
    char *path = di_path_join(model, DI_CALIBRATION_FILE);
    if (!path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for a path", model);
    }
    bool ok = (access(path, F_OK) != 0 && errno == ENOENT) || read_file(path, n, out, err);
    di_free(path);
    return ok;
}

bool di_temperatures_write(const char *model, const double *temperatures, int n, long rounds,
                           di_error *err) {
    char *path = di_path_join(model, DI_CALIBRATION_FILE);
    json_t *array = json_array(), *object = NULL;
    bool ok = path && array;
    for (int j = 0; ok && j < n; j++) {
        ok = json_array_append_new(array, json_real(temperatures[j])) == 0;
    }
    if (ok) {
        object = json_pack("{s:O, s:I}", "temperatures", array, "rounds", (json_int_t)rounds);
    }
    ok = di_json_write(path ? path : model, object, err);
    json_decref(array);
    di_free(path);
    return ok;
}

/* ---- the pricer -------------------------------------------------------------------------------*/

bool di_spec_open(di_pricer *p, const di_parts *parts, const di_engine_options *o,
                  const di_curve_request *r, di_error *err) {
    di_curves curves;
    di_pricer_options options = {
        .num_drafts = r->num_drafts,
        .max_num_seqs = r->max_num_seqs,
        .priced = o->spec_mode == DI_SPEC_PRICED,
    };
    if (!di_temperatures_read(o->confidence_temperatures, o->model, r->num_drafts,
                              options.temperatures, err) ||
        (options.priced && !di_curves_get(parts, r, &curves, err)) ||
        !di_pricer_create(p, &options, err)) {
        return false;
    }
    if (options.priced) {
        di_cost_init(&p->cost, &curves.step, &curves.draft, false);
    }
    return true;
}
