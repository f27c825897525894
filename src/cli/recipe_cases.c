/* Cases of the prompt recipe: see recipe_cases.h. Offsets count characters, times are 0, ids of
 * answers are "ID", and the random part of a call's id is "*". */
#include "cli/recipe_cases.h"

#include "cli/recipe_case.h"
#include "text/recipe/field.h"
#include "text/recipe/image.h"
#include "text/recipe/json_write.h"
#include "text/recipe/render.h"

/* ---- requests ---- */

static bool read_switch(const di_value *options, const char *key, const char *on, const char *off,
                        bool *out, di_error *err) {
    const char *const words[] = {off, on};
    int word = *out;
    bool ok = di_field_word(options, "options", key, DI_OPTIONAL, words, 2, &word, err);
    *out = word;
    return ok;
}

static bool read_bound(const di_value *options, const char *key, uint32_t *out, di_error *err) {
    uint64_t value = *out;
    bool ok = di_field_uint(options, "options", key, UINT32_MAX, &value, NULL, err);
    *out = (uint32_t)value;
    return ok;
}

static bool read_options(const one_case *c, di_recipe_options *o) {
    const di_value *options;
    di_recipe_options_init(o);
    o->server = c->server;
    return di_field_object(c->input, "input", "options", DI_OPTIONAL, &options, c->err) &&
           di_field_bool(options, "options", "default_thinking_mode", &o->default_thinking, NULL,
                         c->err) &&
           read_switch(options, "reasoning_content_behavior", "reject", "fill_empty",
                       &o->reject_missing_reasoning, c->err) &&
           read_switch(options, "responses_web_search", "reject", "drop",
                       &o->responses_web_search_fails, c->err) &&
           read_switch(options, "messages_web_search", "drop", "reject",
                       &o->messages_web_search_drops, c->err) &&
           read_bound(options, "thinking_max_tokens_upper_bound", &o->thinking_max_tokens,
                      c->err) &&
           read_bound(options, "non_thinking_max_tokens_upper_bound", &o->chat_max_tokens, c->err);
}

bool di_recipe_read_request(one_case *c, const di_value *body) {
    di_recipe_options options;
    int protocol = DI_PROTOCOL_CHAT;
    di_str text = DI_STR("");
    di_buffer written = {0};
    bool given,
        ok = read_options(c, &options) &&
             di_field_word(c->input, "input", "protocol", DI_OPTIONAL, di_protocol_names,
                           DI_NUM_PROTOCOLS, &protocol, c->err) &&
             di_field_string(c->input, "input", "body_text", DI_OPTIONAL, &text, &given, c->err);
    if (ok && !given) {
        body = body ? body : di_value_get(c->input, "body");
        ok = body ? di_value_write(body, DI_JSON_COMPACT, &written, c->err)
                  : di_fail(c->err, DI_ERR_FORMAT, "input has no body");
        text = (di_str){written.data, written.size};
    }
    di_request_free(&c->request);
    ok = ok && di_request_parse(&c->request, (di_protocol)protocol, text.data, text.size, &options,
                                c->err);
    di_buffer_free(&written);
    return ok;
}

/* ---- render ---- */

uint64_t di_recipe_characters(const char *text, size_t size) {
    uint64_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return n;
}

static void write_optional_text(di_writer *w, const char *key, const char *text) {
    di_write_key(w, key);
    if (text) {
        di_write_text(w, text);
    } else {
        di_write_null(w);
    }
}

static void write_optional_uint(di_writer *w, const char *key, bool given, uint64_t value) {
    di_write_key(w, key);
    if (given) {
        di_write_uint(w, value);
    } else {
        di_write_null(w);
    }
}

static void write_special(di_writer *w, const di_chat_prompt *p) {
    uint64_t at = 0;
    di_write_key(w, "special");
    di_write_open(w, '[');
    for (size_t i = 0; i < p->count; i++) {
        const di_chat_segment *s = &p->segments[i];
        uint64_t size = di_recipe_characters(p->text.data + s->begin, s->size);
        if (s->control >= 0) {
            di_write_open(w, '[');
            di_write_uint(w, at);
            di_write_uint(w, at + size);
            di_write_close(w, ']');
        }
        at += size;
    }
    di_write_close(w, ']');
}

static void write_image(di_writer *w, const di_image *image) {
    const char *kind = image->data_url ? "data_url" : "url";
    di_write_open(w, '{');
    di_write_key(w, "kind");
    di_write_text(w, kind);
    di_write_key(w, "detail");
    di_write_text(w, image->detail);
    di_write_key(w, kind);
    di_write_string(w, image->url);
    di_write_key(w, "path");
    di_write_string(w, image->path);
    di_write_close(w, '}');
}

static bool write_images(one_case *c) {
    const di_image *const *images;
    size_t count;
    if (!di_recipe_images(&c->request.conversation, &c->pool, &images, &count, c->err)) {
        return false;
    }
    if (count > 0) {
        di_write_key(c->w, "images");
        di_write_open(c->w, '[');
        for (size_t i = 0; i < count; i++) {
            write_image(c->w, images[i]);
        }
        di_write_close(c->w, ']');
    }
    return true;
}

static void write_inference(di_writer *w, const di_inference *f) {
    di_write_key(w, "inference");
    di_write_open(w, '{');
    write_optional_uint(w, "max_tokens", f->has_max_tokens, f->max_tokens);
    di_write_key(w, "temperature");
    di_write_real(w, (double)f->temperature);
    di_write_key(w, "top_p");
    di_write_real(w, (double)f->top_p);
    di_write_key(w, "logprobs");
    di_write_bool(w, f->logprobs);
    write_optional_uint(w, "top_logprobs", f->has_top_logprobs, f->top_logprobs);
    write_optional_uint(w, "seed", f->has_seed, f->seed);
    di_write_key(w, "output_constraint");
    if (f->constraint == DI_CONSTRAINT_NONE) {
        di_write_null(w);
    } else {
        di_write_open(w, '{');
        di_write_key(w, "kind");
        di_write_text(w, di_constraint_names[f->constraint]);
        di_write_key(w, "schema");
        di_write_string(w, f->constraint_text);
        di_write_close(w, '}');
    }
    di_write_close(w, '}');
}

static void write_parsing(di_writer *w, const di_parsing *p) {
    di_write_key(w, "parsing");
    di_write_open(w, '{');
    di_write_key(w, "parse_tool_calls");
    di_write_bool(w, p->tool_calls);
    di_write_key(w, "starts_in_tool_calls");
    di_write_bool(w, p->starts_in_tool_calls);
    di_write_key(w, "parse_json_output");
    di_write_bool(w, p->json);
    write_optional_text(w, "thinking_initial_stage", di_stage_names[p->stage]);
    di_write_key(w, "stop_sequences");
    di_write_open(w, '[');
    for (size_t i = 0; i < p->stop_count; i++) {
        di_write_string(w, p->stops[i]);
    }
    di_write_close(w, ']');
    di_write_close(w, '}');
}

static void write_rendered(one_case *c, const di_chat_prompt *p, const di_ids *ids) {
    static const char *const levels[] = {NULL, "low", "high", "xhigh", "max"};
    const di_conversation *conversation = &c->request.conversation;
    di_writer *w = c->w;
    di_write_key(w, "model_version");
    di_write_text(w, conversation->version == DI_MODEL_V41 ? "v41" : "v4");
    di_write_key(w, "thinking");
    di_write_bool(w, conversation->thinking);
    write_optional_text(w, "effort", levels[conversation->level]);
    di_write_key(w, "prompt");
    di_write_string(w, (di_str){p->text.data, p->text.size});
    write_special(w, p);
    di_write_key(w, "ids");
    di_write_open(w, '[');
    for (size_t i = 0; i < ids->count; i++) {
        di_write_uint(w, (uint64_t)ids->data[i]);
    }
    di_write_close(w, ']');
}

static bool render_case(one_case *c) {
    di_chat_prompt prompt = {0};
    di_ids ids = {0};
    bool ok = di_recipe_read_request(c, NULL) &&
              di_recipe_render(c->tokens, &c->request.conversation, &prompt, c->err) &&
              di_chat_encode(c->tokens, &prompt, &ids, c->err);
    if (ok) {
        di_write_open(c->w, '{');
        write_rendered(c, &prompt, &ids);
        ok = write_images(c);
        write_inference(c->w, &c->request.inference);
        write_parsing(c->w, &c->request.parsing);
        di_write_key(c->w, "stream");
        di_write_bool(c->w, c->request.stream);
        di_write_close(c->w, '}');
    }
    di_chat_prompt_free(&prompt);
    di_ids_free(&ids);
    return ok;
}

/* ---- numbers ---- */

static bool max_tokens_case(one_case *c) {
    uint64_t prompt = 0, context = 0;
    uint32_t most;
    if (!di_recipe_read_request(c, NULL) ||
        !di_field_uint(c->input, "input", "prompt_tokens", UINT32_MAX, &prompt, NULL, c->err) ||
        !di_field_uint(c->input, "input", "context_limit", UINT32_MAX, &context, NULL, c->err) ||
        !di_request_max_tokens(&c->request, prompt, context, &most, c->err)) {
        return false;
    }
    di_write_open(c->w, '{');
    di_write_key(c->w, "max_tokens");
    di_write_uint(c->w, most);
    di_write_close(c->w, '}');
    return true;
}

static bool image_case(one_case *c, bool with_size) {
    uint64_t width = 0, height = 0;
    int detail = DI_DETAIL_HIGH;
    di_image_plan plan;
    if (!di_field_uint(c->input, "input", "width", UINT32_MAX, &width, NULL, c->err) ||
        !di_field_uint(c->input, "input", "height", UINT32_MAX, &height, NULL, c->err) ||
        !di_field_word(c->input, "input", "detail", DI_OPTIONAL, di_image_details, DI_NUM_DETAILS,
                       &detail, c->err) ||
        !(with_size ? di_image_plan_detail((int64_t)width, (int64_t)height, detail, &plan, c->err)
                    : di_image_plan_make((int64_t)width, (int64_t)height, &plan, c->err))) {
        return false;
    }
    di_write_open(c->w, '{');
    if (with_size) {
        di_write_key(c->w, "width");
        di_write_uint(c->w, (uint64_t)plan.width);
        di_write_key(c->w, "height");
        di_write_uint(c->w, (uint64_t)plan.height);
    }
    di_write_key(c->w, "tokens");
    di_write_uint(c->w, (uint64_t)plan.tokens);
    di_write_close(c->w, '}');
    return true;
}

static bool image_tokens_case(one_case *c) {
    return image_case(c, false);
}

static bool image_size_case(one_case *c) {
    return image_case(c, true);
}

/* ---- cases ---- */

static void write_error(di_writer *w, const di_error *why) {
    di_write_key(w, "error");
    di_write_open(w, '{');
    di_write_key(w, "kind");
    if (why->code == DI_ERR_FORMAT) {
        di_write_text(w, "body");
    } else {
        di_write_text(w, "request");
        di_write_key(w, "status");
        di_write_uint(w, 400);
    }
    di_write_key(w, "message");
    di_write_text(w, why->message);
    di_write_close(w, '}');
}

static bool is_the_clients_fault(di_error_code code) {
    return code == DI_ERR_FORMAT || code == DI_ERR_ARGUMENT || code == DI_ERR_UNSUPPORTED;
}

static bool run_case(one_case *c, const di_value *whole, bool (*run)(one_case *), di_buffer *out,
                     di_error *err) {
    di_buffer output = {0};
    di_error why = {0};
    di_writer result = di_writer_to(&output, DI_JSON_COMPACT, err);
    c->w = &result;
    c->err = &why;
    bool done = run(c);
    if (!done && !is_the_clients_fault(why.code)) {
        *err = why;
    }
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    bool ok = !result.failed && (done || is_the_clients_fault(why.code));
    if (ok) {
        di_write_open(&w, '{');
        di_write_key(&w, "name");
        di_write_value(&w, di_value_get(whole, "name"));
        if (done) {
            di_write_key(&w, "output");
            di_write_raw(&w, (di_str){output.data, output.size});
        } else {
            write_error(&w, &why);
        }
        di_write_close(&w, '}');
        ok = !w.failed && di_buffer_append(out, "\n", 1, err);
    }
    di_buffer_free(&output);
    return ok;
}

bool di_recipe_case(const di_chat_tokens *tokens, bool server, const char *line, size_t size,
                    di_buffer *out, di_error *err) {
    static const char *const kinds[] = {"render",     "parse",        "splits",    "roundtrip",
                                        "max_tokens", "image_tokens", "image_size"};
    static bool (*const runs[])(one_case *) = {
        render_case,     di_recipe_parse_case, di_recipe_splits_case, di_recipe_roundtrip_case,
        max_tokens_case, image_tokens_case,    image_size_case};
    one_case c = {.tokens = tokens, .server = server, .err = err};
    di_value whole;
    di_str name = DI_STR("");
    int kind = 0;
    bool ok =
        di_value_parse(&c.pool, line, size, DI_VALUE_MAX_DEPTH + 2, &whole, err) &&
        (whole.type == DI_VALUE_OBJECT ||
         di_fail(err, DI_ERR_FORMAT, "is %s, an object expected", di_value_type_name(&whole))) &&
        di_field_string(&whole, "", "name", DI_NEEDED, &name, NULL, err) &&
        di_field_word(&whole, "", "kind", DI_NEEDED, kinds, 7, &kind, err) &&
        di_field_object(&whole, "", "input", DI_NEEDED, &c.input, err) &&
        run_case(&c, &whole, runs[kind], out, err);
    di_request_free(&c.request);
    di_pool_free(&c.pool);
    return ok;
}
