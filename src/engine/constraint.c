/* Parameters of structured output; see constraint.h. */
#include "engine/constraint.h"

#include "base/error.h"

static bool is_tools(di_schema_type type) {
    return type == DI_SCHEMA_TOOLS || type == DI_SCHEMA_TOOLS_REQUIRED;
}

static bool check_text(const di_request_params *p, di_error *err) {
    bool given = p->schema && (p->schema_bytes > 0 || *p->schema);
    switch (p->schema_type) {
    case DI_SCHEMA_NONE:
    case DI_SCHEMA_JSON_OBJECT:
        return !given || di_fail(err, DI_ERR_ARGUMENT, "schema is given, but schema_type is %s",
                                 p->schema_type ? "json_object, which takes none" : "missing");
    case DI_SCHEMA_JSON:
        return true;
    case DI_SCHEMA_REGEX:
    case DI_SCHEMA_EBNF:
    case DI_SCHEMA_TOOLS:
    case DI_SCHEMA_TOOLS_REQUIRED:
        return given || di_fail(err, DI_ERR_ARGUMENT, "schema is missing");
    }
    return di_fail(err, DI_ERR_ARGUMENT, "schema_type is %d, allowed are %d to %d",
                   (int)p->schema_type, DI_SCHEMA_NONE, DI_SCHEMA_TOOLS_REQUIRED);
}

static bool lists(const int32_t *ids, size_t count, int32_t id) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* An id that must come in the free text for the schema ever to begin. */
static bool can_come(const di_request_params *p, const char *name, int32_t id, di_error *err) {
    if (id < 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s holds %d, which is no token id", name, id);
    }
    if (lists(p->stop_token_ids, p->num_stop_token_ids, id)) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "%s can never appear: %d is in stop_token_ids and ends the answer", name,
                       id);
    }
    if (p->allowed_token_ids && !lists(p->allowed_token_ids, p->num_allowed_token_ids, id)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s can never appear: %d is not in allowed_token_ids",
                       name, id);
    }
    return true;
}

static bool check_trigger(const di_request_params *p, di_error *err) {
    size_t count = p->num_trigger_token_ids;
    if (count == 0) {
        return p->bound_token_id < 0 ||
               di_fail(err, DI_ERR_ARGUMENT,
                       "bound_token_id is %d without trigger_token_ids: there is nothing to bound",
                       p->bound_token_id);
    }
    if (p->schema_type == DI_SCHEMA_NONE || is_tools(p->schema_type)) {
        return di_fail(err, DI_ERR_ARGUMENT, "trigger_token_ids are given, but schema_type is %s",
                       p->schema_type ? "tools, which has its own trigger" : "missing");
    }
    if (count > DI_MAX_TRIGGER) {
        return di_fail(err, DI_ERR_ARGUMENT, "trigger_token_ids has %zu ids, allowed are %d", count,
                       DI_MAX_TRIGGER);
    }
    if (p->max_tokens > 0 && (size_t)p->max_tokens <= count) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "trigger_token_ids has %zu ids, max_tokens is %lld: nothing can follow it",
                       count, (long long)p->max_tokens);
    }
    for (size_t i = 0; i < count; i++) {
        if (!can_come(p, "trigger_token_ids", p->trigger_token_ids[i], err)) {
            return false;
        }
    }
    return p->bound_token_id < -1
               ? di_fail(err, DI_ERR_ARGUMENT, "bound_token_id is %d, which is no token id",
                         p->bound_token_id)
               : p->bound_token_id == -1 || can_come(p, "bound_token_id", p->bound_token_id, err);
}

bool di_constraint_check(const di_request_params *p, di_error *err) {
    return check_text(p, err) && check_trigger(p, err);
}
