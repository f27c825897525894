/* Accounts of keys: see quota_accounts.h. */
#include "server/quota_accounts.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"

/* ---- the table --------------------------------------------------------------------------------*/

static size_t slot_of(const di_accounts *a, const char *id) {
    size_t slot = (size_t)XXH3_64bits(id, strlen(id)) & (a->num_slots - 1);
    while (a->slots[slot] && strcmp(a->all[a->slots[slot] - 1]->id, id) != 0) {
        slot = (slot + 1) & (a->num_slots - 1);
    }
    return slot;
}

/* Keeps at least half of the slots empty. */
static bool make_room(di_accounts *a) {
    di_quota_account **all = di_grow((void *)a->all, a->count, &a->capacity, sizeof *a->all);
    if (!all) {
        return false;
    }
    a->all = all;
    if (2 * (a->count + 1) <= a->num_slots) {
        return true;
    }
    di_accounts larger = *a;
    larger.num_slots = a->num_slots ? 2 * a->num_slots : 64;
    larger.slots = di_calloc(larger.num_slots, sizeof *larger.slots);
    if (!larger.slots) {
        return false;
    }
    for (size_t i = 0; i < a->count; i++) {
        larger.slots[slot_of(&larger, a->all[i]->id)] = (uint32_t)i + 1;
    }
    di_free(a->slots);
    *a = larger;
    return true;
}

di_quota_account *di_accounts_get(di_accounts *a, const char *id) {
    if (a->num_slots > 0) {
        uint32_t found = a->slots[slot_of(a, id)];
        if (found) {
            return a->all[found - 1];
        }
    }
    di_quota_account *account = make_room(a) ? di_calloc(1, sizeof *account) : NULL;
    if (account) {
        snprintf(account->id, sizeof account->id, "%s", id);
        a->slots[slot_of(a, id)] = (uint32_t)a->count + 1;
        a->all[a->count++] = account;
    }
    return account;
}

void di_accounts_free(di_accounts *a) {
    for (size_t i = 0; i < a->count; i++) {
        di_free(a->all[i]);
    }
    di_free((void *)a->all);
    di_free(a->slots);
    *a = (di_accounts){0};
}

void di_account_turn(di_quota_account *account, int64_t day) {
    if (account->day != day) {
        account->day = day;
        account->requests = account->input = account->output = 0;
        account->reserved = account->open = 0;
    }
}

/* ---- buckets ----------------------------------------------------------------------------------*/

static void refill(di_bucket *b, int64_t limit, double now) {
    double passed = now > b->at ? now - b->at : 0;
    b->used -= passed * (double)limit / 60;
    b->used = b->used > 0 ? b->used : 0;
    b->at = now;
}

double di_bucket_wait(di_bucket *b, int64_t limit, int64_t amount, double now) {
    if (limit == 0) {
        return 0;
    }
    refill(b, limit, now);
    double wanted = (double)(amount < limit ? amount : limit);
    double missing = b->used + wanted - (double)limit;
    /* Sums of shares of a second are not exact: a millionth of a token does not make one wait. */
    return missing > 1e-6 ? missing * 60 / (double)limit : 0;
}

void di_bucket_take(di_bucket *b, int64_t limit, int64_t amount, double now) {
    if (limit > 0) {
        refill(b, limit, now);
        b->used += (double)amount;
        b->used = b->used > 0 ? b->used : 0;
    }
}

di_quota_bucket di_bucket_status(di_bucket *b, int64_t limit, double now) {
    di_quota_bucket s = {.limit = limit};
    if (limit > 0) {
        refill(b, limit, now);
        double left = (double)limit - b->used;
        s.remaining = left > 0 ? (int64_t)(left + 1e-6) : 0;
        s.reset_seconds = b->used * 60 / (double)limit;
    }
    return s;
}
