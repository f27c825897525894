/* Responses by their id: GET and DELETE /v1/responses/ID, GET .../input_items, POST .../cancel. One
 * is kept (response_store.h), or it runs in the background and is kept when it ends. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/internal.h"
#include "server/prepare.h"
#include "server/response_store.h"
#include "text/recipe/json_write.h"

enum {
    PAGE_ITEMS = 20,
    MOST_ITEMS = 100,
    DEPTH = DI_VALUE_MAX_DEPTH + 8, /* what we wrote around what was let in */
};

/* Where a response is; one of them, or neither. */
typedef struct place {
    const di_stored_response *stored;
    di_generation *running;
} place;

static const di_stored_response *find_stored(const di_exchange *x) {
    return di_response_store_get(x->server->stored, x->tenant.key->id, x->rest, di_now());
}

/* False with a reply. */
static bool find(di_exchange *x, place *p) {
    di_server *s = x->server;
    *p = (place){0};
    if (s->stored) {
        p->stored = find_stored(x);
        p->running = p->stored ? NULL : di_generation_find(s, x->tenant.key->id, x->rest);
        if (!p->stored && !p->running) {
            p->stored = find_stored(x); /* it may have ended in between */
        }
    }
    if (!p->stored && !p->running) {
        di_exchange_error(x, 404, "response_not_found", "no response %.*s is stored%s",
                          di_str_shown(x->rest, 100), x->rest.data,
                          s->stored ? "" : ": the server keeps none (--response-store)");
    }
    return p->stored || p->running;
}

static void let_go(di_exchange *x, const place *p) {
    if (p->stored) {
        di_response_store_release(x->server->stored, p->stored);
    }
    if (p->running) {
        di_generation_release(p->running);
    }
}

/* Takes the JSON. */
static void reply(di_exchange *x, bool ok, di_buffer *json, const di_error *err) {
    if (ok) {
        di_reply_json(&x->reply, 200, json);
    } else {
        di_exchange_fail(x, err);
        di_buffer_free(json);
    }
}

static void reply_response(di_exchange *x, const place *p) {
    di_error err = {0};
    di_buffer json = {0};
    bool ok = p->stored ? di_buffer_append(&json, p->stored->response.data,
                                           p->stored->response.size, &err)
                        : di_generation_report(p->running, &json, &err);
    reply(x, ok, &json, &err);
}

static const char *argument(const di_exchange *x, const char *name) {
    return x->argument ? x->argument(x->context, name) : NULL;
}

void di_serve_stored(di_exchange *x) {
    const char *stream = argument(x, "stream");
    place p;
    if (stream && strcmp(stream, "false") != 0) {
        di_exchange_error(x, 400, NULL, "stream is %.20s, a stored response is told whole", stream);
    } else if (find(x, &p)) {
        reply_response(x, &p);
        let_go(x, &p);
    }
}

void di_serve_stored_drop(di_exchange *x) {
    di_error err = {0};
    di_buffer json = {0};
    place p;
    if (!find(x, &p)) {
        return;
    }
    if (!p.running || !di_generation_revoke(p.running, true)) { /* if it has ended it is stored */
        di_response_store_drop(x->server->stored, x->tenant.key->id, x->rest);
    }
    let_go(x, &p);
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
    di_write_open(&w, '{');
    di_write_key(&w, "id");
    di_write_string(&w, x->rest);
    di_write_key(&w, "object");
    di_write_text(&w, "response");
    di_write_key(&w, "deleted");
    di_write_bool(&w, true);
    di_write_close(&w, '}');
    reply(x, !w.failed, &json, &err);
}

/* ---- cancel -----------------------------------------------------------------------------------*/

/* Did it run in the background? */
static bool was_background(const di_stored_response *r, bool *background, di_error *err) {
    di_pool pool = {0};
    di_value response;
    bool ok = di_value_parse(&pool, r->response.data, r->response.size, DEPTH, &response, err);
    const di_value *flag = ok ? di_value_get(&response, "background") : NULL;
    *background = di_value_is(flag, DI_VALUE_BOOL) && flag->boolean;
    di_pool_free(&pool);
    return ok;
}

/* One that has ended stays as it is, so that whoever cancels twice is told the same. */
void di_serve_stored_cancel(di_exchange *x) {
    di_error err = {0};
    bool background = true;
    place p;
    if (!find(x, &p)) {
        return;
    }
    if (p.running) {
        di_generation_revoke(p.running, false);
    }
    if (p.stored && !was_background(p.stored, &background, &err)) {
        di_exchange_fail(x, &err);
    } else if (!background) {
        di_exchange_error(x, 400, NULL,
                          "response %.*s did not run in the background, nothing can be cancelled",
                          di_str_shown(x->rest, 100), x->rest.data);
    } else {
        reply_response(x, &p);
    }
    let_go(x, &p);
}

/* ---- input items ------------------------------------------------------------------------------*/

typedef struct item_page {
    size_t limit;
    bool ascending;
    const char *after; /* NULL: from the beginning */
} item_page;

/* False with a reply. */
static bool read_page(di_exchange *x, item_page *page) {
    const char *limit = argument(x, "limit"), *order = argument(x, "order");
    *page = (item_page){.limit = PAGE_ITEMS, .after = argument(x, "after")};
    if (limit) {
        size_t size = strlen(limit);
        bool number = size > 0 && size < 4 && strspn(limit, "0123456789") == size;
        page->limit = number ? (size_t)atoi(limit) : 0;
        if (page->limit < 1 || page->limit > MOST_ITEMS) {
            di_exchange_error(x, 400, NULL, "limit is %.20s, 1 to %d is allowed", limit,
                              MOST_ITEMS);
            return false;
        }
    }
    page->ascending = order && strcmp(order, "asc") == 0;
    if (order && !page->ascending && strcmp(order, "desc") != 0) {
        di_exchange_error(x, 400, NULL, "order is %.20s, asc or desc is allowed", order);
        return false;
    }
    return true;
}

static di_str type_of(const di_value *item) {
    const di_value *type = di_value_get(item, "type");
    return di_value_is(type, DI_VALUE_STRING) ? type->string : DI_STR("message");
}

/* Its own, or one that its place in the response makes. */
static di_str id_of(const di_exchange *x, const di_value *item, size_t at, char made[160]) {
    static const struct {
        const char *type, *prefix;
    } kinds[] = {{"message", "msg"},          {"reasoning", "rs"},
                 {"function_call", "fc"},     {"function_call_output", "fco"},
                 {"custom_tool_call", "ctc"}, {"custom_tool_call_output", "ctco"}};
    const di_value *id = di_value_get(item, "id");
    const char *prefix = "item";
    if (di_value_is(id, DI_VALUE_STRING) && id->string.size > 0) {
        return id->string;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        prefix = di_str_is(type_of(item), kinds[i].type) ? kinds[i].prefix : prefix;
    }
    snprintf(made, 160, "%s_in_%.*s_%zu", prefix, di_str_shown(x->rest, 100), x->rest.data, at);
    return di_str_of(made);
}

/* A text that stands for one part is told as that part. */
static void write_content(di_writer *w, const di_value *item) {
    const di_value *content = di_value_get(item, "content"), *role = di_value_get(item, "role");
    bool answer = di_value_is_string(role, "assistant");
    di_write_key(w, "content");
    if (!di_value_is(content, DI_VALUE_STRING)) {
        if (content) {
            di_write_value(w, content);
        } else {
            di_write_null(w);
        }
        return;
    }
    di_write_open(w, '[');
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_text(w, answer ? "output_text" : "input_text");
    di_write_key(w, "text");
    di_write_string(w, content->string);
    if (answer) {
        di_write_key(w, "annotations");
        di_write_open(w, '[');
        di_write_close(w, ']');
    }
    di_write_close(w, '}');
    di_write_close(w, ']');
}

/* As it was sent, with what may be left out of it: id, type, status. */
static void write_item(const di_exchange *x, di_writer *w, const di_value *item, size_t at) {
    char made[160], name[64];
    bool message = di_str_is(type_of(item), "message"), status = false;
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_string(w, id_of(x, item, at, made));
    di_write_key(w, "type");
    di_write_string(w, type_of(item));
    for (size_t i = 0; di_value_is(item, DI_VALUE_OBJECT) && i < item->object.count; i++) {
        const di_named_value *m = &item->object.members[i];
        bool ours = di_str_is(m->name, "id") || di_str_is(m->name, "type") ||
                    (message && di_str_is(m->name, "content"));
        if (!ours && m->name.size < sizeof name) {
            status = status || di_str_is(m->name, "status");
            snprintf(name, sizeof name, "%.*s", (int)m->name.size, m->name.data);
            di_write_key(w, name);
            di_write_value(w, &m->value);
        }
    }
    if (!status) {
        di_write_key(w, "status");
        di_write_text(w, "completed");
    }
    if (message) {
        write_content(w, item);
    }
    di_write_close(w, '}');
}

/* The k-th of the list, in the order that is asked for. */
static size_t at_of(const item_page *page, size_t count, size_t k) {
    return page->ascending ? k : count - 1 - k;
}

/* Where the page begins; false: there is no item of that id. */
static bool find_start(const di_exchange *x, const item_page *page, const di_value *items,
                       size_t *start) {
    char made[160];
    size_t count = items->array.count;
    for (*start = 0; page->after && *start < count; ++*start) {
        size_t at = at_of(page, count, *start);
        if (di_str_is(id_of(x, &items->array.items[at], at, made), page->after)) {
            ++*start;
            return true;
        }
    }
    return !page->after;
}

static void write_end_id(const di_exchange *x, di_writer *w, const char *key, const di_value *items,
                         size_t at) {
    char made[160];
    di_write_key(w, key);
    if (at < items->array.count) {
        di_write_string(w, id_of(x, &items->array.items[at], at, made));
    } else {
        di_write_null(w);
    }
}

static void write_page(const di_exchange *x, di_writer *w, const item_page *page,
                       const di_value *items, size_t start) {
    size_t count = items->array.count, left = count - start;
    size_t end = start + (left < page->limit ? left : page->limit);
    di_write_open(w, '{');
    di_write_key(w, "object");
    di_write_text(w, "list");
    di_write_key(w, "data");
    di_write_open(w, '[');
    for (size_t k = start; k < end; k++) {
        size_t at = at_of(page, count, k);
        write_item(x, w, &items->array.items[at], at);
    }
    di_write_close(w, ']');
    bool any = end > start;
    write_end_id(x, w, "first_id", items, any ? at_of(page, count, start) : count);
    write_end_id(x, w, "last_id", items, any ? at_of(page, count, end - 1) : count);
    di_write_key(w, "has_more");
    di_write_bool(w, end < count);
    di_write_close(w, '}');
}

static void list_items(di_exchange *x, const item_page *page, di_str input) {
    di_error err = {0};
    di_pool pool = {0};
    di_buffer json = {0};
    di_value items;
    size_t start;
    if (!di_value_parse(&pool, input.data, input.size, DEPTH, &items, &err)) {
        di_exchange_fail(x, &err);
    } else if (!find_start(x, page, &items, &start)) {
        di_exchange_error(x, 400, NULL, "after is %.100s, no input item has that id", page->after);
    } else {
        di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
        write_page(x, &w, page, &items, start);
        reply(x, !w.failed, &json, &err);
    }
    di_pool_free(&pool);
}

void di_serve_stored_items(di_exchange *x) {
    item_page page;
    place p;
    if (read_page(x, &page) && find(x, &p)) {
        list_items(x, &page,
                   p.stored ? p.stored->input
                            : (di_str){p.running->input.data, p.running->input.size});
        let_go(x, &p);
    }
}
