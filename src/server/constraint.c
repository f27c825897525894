/* What an answer must be, from the request to the engine. With tools the calls are held to their
 * schemas and the text around them is free: a response format beside them stands in the prompt
 * only. */
#include "server/prepare.h"

static di_schema_type type_of(const di_request *r) {
    bool empty = r->inference.constraint_text.size == 0;
    switch (r->inference.constraint) {
    case DI_CONSTRAINT_JSON:
        return empty ? DI_SCHEMA_JSON_OBJECT : DI_SCHEMA_JSON;
    case DI_CONSTRAINT_REGEX:
        return DI_SCHEMA_REGEX;
    case DI_CONSTRAINT_TOOL_CALL:
        return DI_SCHEMA_TOOLS;
    case DI_CONSTRAINT_TOOL_CALL_REQUIRED:
        return DI_SCHEMA_TOOLS_REQUIRED;
    case DI_CONSTRAINT_NONE:
        break;
    }
    return DI_SCHEMA_NONE;
}

bool di_prepare_constraint(const di_request *r, di_request_params *p, di_error *err) {
    di_schema_type type = type_of(r);
    if (type == DI_SCHEMA_NONE) {
        return true; /* what p has of its own stays */
    }
    if (p->schema_type != DI_SCHEMA_NONE) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "response_format or tools, and a second way to say what the answer must be: "
                       "only one is allowed");
    }
    p->schema_type = type;
    if (r->inference.constraint_text.size > 0) {
        p->schema = r->inference.constraint_text.data;
        p->schema_bytes = r->inference.constraint_text.size;
    }
    p->schema_lenient = type == DI_SCHEMA_JSON && !r->inference.strict_format;
    return true;
}
