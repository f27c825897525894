/* Tenants: see tenant.h. */
#include "server/tenant.h"

#include "server/internal.h"

void di_tenant_leave(di_tenant *t, int64_t input_tokens, int64_t output_tokens) {
    if (t->ticket) {
        di_quota_leave(t->server->quota, t->ticket, input_tokens, output_tokens);
    }
    if (t->key) {
        di_key_release(t->server->keys, t->key);
    }
    *t = (di_tenant){0};
}
