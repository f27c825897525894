/* The tools of OpenAI's responses: functions, namespaces of them, apply_patch, and which of them
 * must be called. The rest is in protocol_responses.c. */
#include <stdio.h>

#include "base/buffer.h"
#include "text/recipe/field.h"
#include "text/recipe/reading.h"
#include "text/recipe/texts.h"

bool di_join_tool_names(di_reading *x, di_str space, di_str name, di_str *out) {
    const char *between = x->r->conversation.version == DI_MODEL_V41 ? "::" : "__";
    di_buffer text = {0};
    bool ok = di_buffer_append(&text, space.data, space.size, x->err) &&
              di_buffer_append(&text, between, 2, x->err) &&
              di_buffer_append(&text, name.data, name.size, x->err) &&
              di_pool_copy(x->pool, text.data, text.size, out, x->err);
    di_buffer_free(&text);
    return ok;
}

static bool read_function(di_reading *x, const di_value *object, const char *where, di_tool *out) {
    if (!di_field_string(object, where, "name", DI_NEEDED, &out->name, NULL, x->err) ||
        !di_field_string(object, where, "description", DI_OPTIONAL, &out->description,
                         &out->has_description, x->err) ||
        !di_field_bool(object, where, "strict", &out->strict, &out->has_strict, x->err)) {
        return false;
    }
    out->parameters = di_value_given(object, "parameters");
    out->in_name = out->name;
    return true;
}

/* A name that is taken gets a number behind it. */
static bool make_unique(di_reading *x, di_tool *tool) {
    di_str wanted = tool->name;
    for (size_t n = 1;; n++) {
        bool taken = false;
        for (const di_tool *t = x->tools; !taken && t < tool; t++) {
            taken = di_str_equal(t->name, tool->name);
        }
        if (!taken) {
            return true;
        }
        char *name = di_pool_take(x->pool, wanted.size + 24, 1, x->err);
        if (!name) {
            return false;
        }
        memcpy(name, wanted.data, wanted.size);
        int end = snprintf(name + wanted.size, 24, "_%zu", n);
        tool->name = (di_str){name, wanted.size + (size_t)end};
    }
}

/* In V4.1 the namespace's description stands over that of each of its tools. */
static bool join_descriptions(di_reading *x, di_str space, di_tool *tool) {
    if (space.size == 0 || x->r->conversation.version != DI_MODEL_V41) {
        return true;
    }
    di_buffer text = {0};
    bool ok = di_buffer_append(&text, space.data, space.size, x->err) &&
              di_buffer_append(&text, "\n", 1, x->err) &&
              (!tool->has_description ||
               di_buffer_append(&text, tool->description.data, tool->description.size, x->err)) &&
              di_pool_copy(x->pool, text.data, text.size, &tool->description, x->err);
    di_buffer_free(&text);
    tool->has_description = true;
    return ok;
}

enum { MOST_SPACED_TOOLS = 512 }; /* finding free names costs their cube at worst */

static bool read_namespace(di_reading *x, const di_value *object, size_t index) {
    static const char *const types[] = {"function", "custom"};
    char where[DI_PATH_BYTES];
    di_str name, description = DI_STR("");
    const di_value *tools;
    int type;
    snprintf(where, sizeof where, "tools[%zu]", index);
    if (!di_field_string(object, where, "name", DI_NEEDED, &name, NULL, x->err) ||
        !di_field_string(object, where, "description", DI_OPTIONAL, &description, NULL, x->err) ||
        !di_field_array(object, where, "tools", DI_NEEDED, &tools, x->err)) {
        return false;
    }
    snprintf(where, sizeof where, "tools[%zu].name", index);
    if (!di_check_tool_name(name, where, x->err)) {
        return false;
    }
    for (size_t i = 0; i < tools->array.count; i++) {
        const di_value *inner = &tools->array.items[i];
        snprintf(where, sizeof where, "tools[%zu].tools[%zu]", index, i);
        if (inner->type != DI_VALUE_OBJECT) {
            return di_field_wrong("", where, inner, "an object", x->err);
        }
        di_tool *out = &x->tools[x->tool_count];
        if (!di_field_type(inner, where, types, 2, &type, x->err) ||
            !read_function(x, inner, where, out)) {
            return false;
        }
        if (type == 1) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "Currently custom tools are not allowed inside a namespace. Found "
                           "custom tool '%.*s' in %s.",
                           di_str_shown(out->name, 96), out->name.data, where);
        }
        if (x->tool_count >= MOST_SPACED_TOOLS) {
            return di_fail(x->err, DI_ERR_ARGUMENT, "tools: more than %d tools in namespaces",
                           MOST_SPACED_TOOLS);
        }
        snprintf(where, sizeof where, "tools[%zu].tools[%zu].name", index, i);
        out->space = name;
        if (!di_check_tool(x, out, where, false) ||
            !di_join_tool_names(x, name, out->in_name, &out->name) || !make_unique(x, out) ||
            !join_descriptions(x, description, out)) {
            return false;
        }
        x->tool_count++;
    }
    return true;
}

static bool read_custom(di_reading *x, const di_value *object, const char *where) {
    di_tool *out = &x->tools[x->tool_count];
    if (!di_field_string(object, where, "name", DI_NEEDED, &out->name, NULL, x->err)) {
        return false;
    }
    if (!di_str_is(out->name, "apply_patch")) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Unsupported custom tool: '%.*s'. Only 'apply_patch' is supported.",
                       di_str_shown(out->name, 96), out->name.data);
    }
    di_value *parameters = di_pool_take(x->pool, 1, sizeof *parameters, x->err);
    if (!parameters ||
        !di_value_parse(x->pool, di_apply_patch_parameters.data, di_apply_patch_parameters.size,
                        DI_VALUE_MAX_DEPTH, parameters, x->err)) {
        return false;
    }
    out->in_name = out->name;
    out->has_description = true;
    out->description = x->r->conversation.version == DI_MODEL_V4 ? di_apply_patch_description_v4
                                                                 : di_apply_patch_description;
    out->parameters = parameters;
    out->custom = true;
    x->tool_count++;
    return true;
}

static bool read_tool(di_reading *x, const di_value *object, size_t index) {
    char where[DI_PATH_BYTES];
    di_str type = DI_STR("");
    snprintf(where, sizeof where, "tools[%zu]", index);
    if (object->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, object, "an object", x->err);
    }
    if (!di_field_string(object, where, "type", DI_NEEDED, &type, NULL, x->err)) {
        return false;
    }
    if (di_str_is(type, "function")) {
        di_tool *out = &x->tools[x->tool_count++];
        char place[DI_PATH_BYTES + 16];
        snprintf(place, sizeof place, "%s.name", where);
        return read_function(x, object, where, out) && di_check_tool(x, out, place, false);
    }
    if (di_str_is(type, "namespace")) {
        return read_namespace(x, object, index);
    }
    if (di_str_is(type, "custom")) {
        return read_custom(x, object, where);
    }
    bool web_search = di_str_is(type, "web_search") || di_str_is(type, "web_search_2025_08_26");
    if (web_search && x->o->responses_web_search_fails) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Server tools are not supported");
    }
    return !x->o->server || web_search ||
           di_fail(x->err, DI_ERR_ARGUMENT, "%s: tools of type \"%.*s\" are not supported", where,
                   di_str_shown(type, 64), type.data);
}

static bool read_tools(di_reading *x) {
    const di_value *tools;
    if (!di_field_array(x->body, "", "tools", DI_OPTIONAL, &tools, x->err)) {
        return false;
    }
    size_t count = tools ? tools->array.count : 0, most = count;
    for (size_t i = 0; i < count; i++) {
        const di_value *inner = di_value_get(&tools->array.items[i], "tools");
        most += di_value_is(inner, DI_VALUE_ARRAY) ? inner->array.count : 0;
    }
    x->tools = di_pool_take(x->pool, most, sizeof *x->tools, x->err);
    for (size_t i = 0; x->tools && i < count; i++) {
        if (!read_tool(x, &tools->array.items[i], i)) {
            return false;
        }
    }
    return x->tools && di_check_tool_names(x);
}

static bool read_tool_choice(di_reading *x) {
    static const char *const words[] = {"auto", "none", "required"};
    static const char *const types[] = {"function", "custom", "web_search",
                                        "web_search_2025_08_26"};
    const di_value *choice = di_value_given(x->body, "tool_choice");
    int word = DI_CHOICE_AUTO, type = 0;
    if (!choice || choice->type != DI_VALUE_OBJECT) {
        bool ok = di_field_word(x->body, "", "tool_choice", DI_OPTIONAL, words, 3, &word, x->err);
        x->choice = (di_tool_choice)word;
        return ok;
    }
    if (!di_field_type(choice, "tool_choice", types, 4, &type, x->err)) {
        return false;
    }
    if (type >= 2) {
        return !x->o->responses_web_search_fails ||
               di_fail(x->err, DI_ERR_ARGUMENT, "Server tools are not supported");
    }
    x->choice_named = true;
    x->choice = DI_CHOICE_REQUIRED;
    return di_field_string(choice, "tool_choice", "name", DI_NEEDED, &x->choice_name, NULL, x->err);
}

bool di_read_responses_tools(di_reading *x) {
    return read_tool_choice(x) && read_tools(x);
}
