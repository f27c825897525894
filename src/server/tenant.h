/* On whose account a request runs: its key and its place in the quotas. */
#ifndef DI_SERVER_TENANT_H
#define DI_SERVER_TENANT_H

#include "server/keys.h"
#include "server/quota.h"

struct di_server;

typedef struct di_tenant {
    struct di_server *server;
    const di_key *key;       /* NULL: none has been let in */
    di_quota_ticket *ticket; /* NULL: counts nothing */
} di_tenant;

/* Gives both back: what it used. Nothing for all zero. */
void di_tenant_leave(di_tenant *t, int64_t input_tokens, int64_t output_tokens);

#endif
