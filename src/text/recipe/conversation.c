/* Conversations: see conversation.h. */
#include "text/recipe/conversation.h"

#include <strings.h>

di_message *di_conversation_add(di_conversation *c, di_pool *pool, di_role role, di_error *err) {
    di_message *m = di_pool_take(pool, 1, sizeof *m, err);
    if (!m) {
        return NULL;
    }
    m->role = role;
    if (c->last) {
        c->last->next = m;
    } else {
        c->first = m;
    }
    c->last = m;
    c->message_count++;
    return m;
}

bool di_message_is_empty(const di_message *m) {
    for (size_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].image || m->parts[i].text.size > 0) {
            return false;
        }
    }
    return m->part_count <= 1; /* blank lines between empty parts are text */
}

bool di_message_set_text(di_message *m, di_pool *pool, di_str text, di_error *err) {
    m->parts = di_pool_take(pool, 1, sizeof *m->parts, err);
    if (!m->parts) {
        return false;
    }
    m->parts[0].text = text;
    m->part_count = 1;
    return true;
}

static bool says_json(di_str text) {
    for (size_t i = 0; i + 4 <= text.size; i++) {
        if (strncasecmp(text.data + i, "json", 4) == 0) {
            return true;
        }
    }
    return false;
}

bool di_conversation_says_json(const di_conversation *c) {
    for (const di_message *m = c->first; m; m = m->next) {
        for (size_t i = 0; i < m->part_count; i++) {
            if (!m->parts[i].image && says_json(m->parts[i].text)) {
                return true;
            }
        }
    }
    return false;
}
