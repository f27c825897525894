/* Requests that go on from a response that is kept (previous_response_id), that are to be kept
 * (store), and that run without a connection (background). */
#include <string.h>

#include "base/clock.h"
#include "server/internal.h"
#include "server/prepare.h"
#include "server/response_store.h"
#include "text/recipe/field.h"
#include "text/recipe/json_write.h"

/* ---- going on from one ------------------------------------------------------------------------*/

/* Items of a list, or a text as the message that it stands for. */
static bool items_of(di_pool *pool, const di_value *input, di_value *list, di_error *err) {
    *list = (di_value){.type = DI_VALUE_ARRAY};
    if (!input) {
        return true;
    }
    if (input->type != DI_VALUE_STRING) {
        *list = *input;
        return true;
    }
    di_named_value *members = di_pool_take(pool, 2, sizeof *members, err);
    di_value *message = di_pool_take(pool, 1, sizeof *message, err);
    if (!members || !message) {
        return false;
    }
    members[0] =
        (di_named_value){DI_STR("role"), {.type = DI_VALUE_STRING, .string = DI_STR("user")}};
    members[1] = (di_named_value){DI_STR("content"), *input};
    *message = (di_value){.type = DI_VALUE_OBJECT, .object = {members, 2}};
    list->array.items = message;
    list->array.count = 1;
    return true;
}

/* The three lists in one. */
static bool join(di_pool *pool, const di_value *const lists[3], di_value *out, di_error *err) {
    size_t count = 0;
    for (int i = 0; i < 3; i++) {
        count += lists[i]->array.count;
    }
    di_value *items = di_pool_take(pool, count, sizeof *items, err);
    if (!items) {
        return false;
    }
    *out = (di_value){.type = DI_VALUE_ARRAY, .array = {items, count}};
    for (int i = 0; i < 3; i++) {
        if (lists[i]->array.count > 0) {
            memcpy(items, lists[i]->array.items, lists[i]->array.count * sizeof *items);
            items += lists[i]->array.count;
        }
    }
    return true;
}

/* Sets a member of the body, in a list of its own. */
static bool set_member(di_pool *pool, di_value *body, const char *name, const di_value *value,
                       di_error *err) {
    size_t count = body->object.count, at = 0;
    di_named_value *members = di_pool_take(pool, count + 1, sizeof *members, err);
    if (!members) {
        return false;
    }
    memcpy(members, body->object.members, count * sizeof *members);
    while (at < count && !di_str_is(members[at].name, name)) {
        at++;
    }
    members[at] = (di_named_value){di_str_of(name), *value};
    body->object.members = members;
    body->object.count = at == count ? count + 1 : count;
    return true;
}

static bool go_on(di_pool *pool, di_value *body, const di_stored_response *r, di_error *err) {
    enum { DEPTH = DI_VALUE_MAX_DEPTH + 8 }; /* what we wrote around what was let in */
    di_value before, response, now, all;
    static const di_value nothing = {.type = DI_VALUE_ARRAY};
    if (!di_value_parse(pool, r->input.data, r->input.size, DEPTH, &before, err) ||
        !di_value_parse(pool, r->response.data, r->response.size, DEPTH, &response, err) ||
        !items_of(pool, di_value_given(body, "input"), &now, err)) {
        return false;
    }
    if (now.type != DI_VALUE_ARRAY) {
        return true; /* its reader says what is wrong with it */
    }
    const di_value *output = di_value_get(&response, "output");
    const di_value *const lists[] = {&before, output ? output : &nothing, &now};
    return join(pool, lists, &all, err) && set_member(pool, body, "input", &all, err);
}

bool di_stored_spread(di_exchange *x, di_pool *pool, di_value *body, di_error *err) {
    di_response_store *s = x->server->stored;
    di_str id;
    bool given;
    if (!di_field_string(body, "", "previous_response_id", DI_OPTIONAL, &id, &given, err)) {
        return false;
    }
    if (!given) {
        return true;
    }
    if (!s) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "previous_response_id is not supported here: the server keeps no responses "
                       "(--response-store)");
    }
    const di_stored_response *r = di_response_store_get(s, x->tenant.key->id, id, di_now());
    if (!r) {
        di_generation *g = di_generation_find(x->server, x->tenant.key->id, id);
        x->code = "previous_response_not_found";
        di_fail(err, DI_ERR_ARGUMENT, "previous_response_id is \"%.*s\", %s", di_str_shown(id, 100),
                id.data, g ? "which is not complete yet" : "no such response is stored");
        if (g) {
            di_generation_release(g);
        }
        return false;
    }
    bool ok = go_on(pool, body, r, err);
    di_response_store_release(s, r);
    return ok;
}

/* ---- keeping one ------------------------------------------------------------------------------*/

bool di_stored_input(const di_exchange *x, di_request *r, di_buffer *out, di_error *err) {
    bool wanted = true;
    di_value list;
    if (r->protocol != DI_PROTOCOL_RESPONSES) {
        return true;
    }
    if (!di_field_bool(&r->body, "", "store", &wanted, NULL, err) || !x->server->stored ||
        !wanted) {
        return err->code == DI_OK;
    }
    return items_of(&r->pool, di_value_given(&r->body, "input"), &list, err) &&
           di_value_write(&list, DI_JSON_COMPACT, out, err);
}

/* ---- in the background ------------------------------------------------------------------------*/

bool di_background_wanted(const di_exchange *x, const di_generation *g, bool *wanted,
                          di_error *err) {
    const di_request *r = &g->recipe;
    *wanted = false;
    if (r->protocol != DI_PROTOCOL_RESPONSES) {
        return true;
    }
    if (!di_field_bool(&r->body, "", "background", wanted, NULL, err)) {
        return false;
    }
    if (*wanted && !x->server->stored) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "background is not supported here: the server keeps no responses "
                       "(--response-store)");
    }
    if (*wanted && g->input.size == 0) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "background needs store: nobody could ask for what is not kept");
    }
    return !*wanted || !g->stream ||
           di_fail(err, DI_ERR_UNSUPPORTED,
                   "background with stream is not supported: ask for the response by its id");
}

bool di_background_enter(di_exchange *x, di_generation *g, di_error *err) {
    di_server *s = x->server;
    int most = s->options.max_background;
    g->counted = true;
    int before = atomic_fetch_add(&s->num_background, 1);
    if (before >= most) {
        return di_fail(err, DI_ERR_BUSY,
                       "%d responses run in the background, --max-background allows %d", before,
                       most);
    }
    g->charged = x->charged;
    x->charged = 0;
    return true;
}
