/* What an answer must be, from the request to the engine. */
#include "server/prepare.h"
#include "text/recipe/json_write.h"

static di_schema_type type_of(const di_request *r) {
    bool empty = r->inference.constraint_text.size == 0;
    switch (r->inference.constraint) {
    case DI_CONSTRAINT_JSON:
        return empty ? DI_SCHEMA_JSON_OBJECT : DI_SCHEMA_JSON;
    case DI_CONSTRAINT_REGEX:
        return DI_SCHEMA_REGEX;
    case DI_CONSTRAINT_TOOL_CALL:
        return r->conversation.format == DI_FORMAT_TEXT ? DI_SCHEMA_TOOLS
                                                        : DI_SCHEMA_TOOLS_OR_CONTENT;
    case DI_CONSTRAINT_TOOL_CALL_REQUIRED: /* such an answer has no content */
        return DI_SCHEMA_TOOLS_REQUIRED;
    case DI_CONSTRAINT_NONE:
        break;
    }
    return DI_SCHEMA_NONE;
}

/* Both of them in one text: docs/grammar.md, "A format beside tools". */
static bool write_both(di_request *r, di_str *text, di_error *err) {
    const di_conversation *c = &r->conversation;
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, err);
    di_write_open(&w, '{');
    di_write_key(&w, "tools");
    di_write_raw(&w, r->inference.constraint_text);
    di_write_key(&w, c->format == DI_FORMAT_REGEX ? "regex" : "schema");
    if (c->format == DI_FORMAT_REGEX) {
        di_write_string(&w, c->regex);
    } else if (c->format == DI_FORMAT_SCHEMA) {
        di_write_value(&w, c->schema);
    } else {
        di_write_raw(&w, DI_STR("{\"type\":\"object\"}"));
    }
    if (!r->inference.strict_format) {
        di_write_key(&w, "lenient");
        di_write_bool(&w, true);
    }
    di_write_close(&w, '}');
    bool ok = !w.failed && di_pool_copy(&r->pool, json.data, json.size, text, err);
    di_buffer_free(&json);
    return ok;
}

bool di_prepare_constraint(di_request *r, di_request_params *p, di_error *err) {
    di_schema_type type = type_of(r);
    di_str text = r->inference.constraint_text;
    if (type == DI_SCHEMA_NONE) {
        return true; /* what p has of its own stays */
    }
    if (p->schema_type != DI_SCHEMA_NONE) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "response_format or tools, and a second way to say what the answer must be: "
                       "only one is allowed");
    }
    if (type == DI_SCHEMA_TOOLS_OR_CONTENT && !write_both(r, &text, err)) {
        return false;
    }
    p->schema_type = type;
    if (text.size > 0) {
        p->schema = text.data;
        p->schema_bytes = text.size;
    }
    p->schema_lenient = type == DI_SCHEMA_JSON && !r->inference.strict_format;
    return true;
}
