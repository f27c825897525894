/* n-gram tables and the op that uses them. A table that was loaded (ops/queue.h) is read by the
 * card, from its own memory or from the host's; of one that was not, the host picks the rows of a
 * step out, which is what tests and machines without the memory do. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "ops/cuda/card/card.h"
#include "ops/cuda/card/ops.h"
#include "ops/cuda/card/queue.h"

/* ---- tables -----------------------------------------------------------------------------------*/

/* Bytes of codes and scales. */
static void table_bytes(const di_tensor *table, size_t bytes[2]) {
    bytes[0] = (size_t)table->shape[0] * (size_t)table->shape[1];
    bytes[1] = bytes[0] / 32;
}

static void give_back(di_card_table *t) {
    for (int i = 0; i < 2 && t->owned[i]; i++) {
        if (t->kind == DI_TABLE_CARD) {
            cudaFree(t->owned[i]);
        } else if (t->kind == DI_TABLE_REGISTERED) {
            cudaHostUnregister(t->owned[i]);
        } else {
            cudaFreeHost(t->owned[i]);
        }
        t->owned[i] = NULL;
    }
    cudaGetLastError();
}

/* Memory of one kind with the table's bytes i in it; where the card sees it, or NULL. */
static const uint8_t *settle(di_card *c, di_card_table *t, int i, const void *host, size_t bytes) {
    void *seen = NULL;
    bool ok;
    if (t->kind == DI_TABLE_CARD) {
        ok = cudaMalloc(&t->owned[i], bytes) == cudaSuccess &&
             cudaMemcpyAsync(t->owned[i], host, bytes, cudaMemcpyHostToDevice, c->stream) ==
                 cudaSuccess;
        return ok ? t->owned[i] : NULL;
    }
    ok = cudaHostAlloc(&t->owned[i], bytes, cudaHostAllocMapped) == cudaSuccess;
    if (ok) {
        memcpy(t->owned[i], host, bytes);
    }
    ok = ok && cudaHostGetDevicePointer(&seen, t->owned[i], 0) == cudaSuccess;
    return ok ? seen : NULL;
}

/* Locks the pages of a mapped file that hold codes and scales. Where these lie close together, they
 * are locked as one, for no page can be locked twice. */
static bool lock_pages(di_card_table *t, int i, const char *begin, const char *end,
                       const uint8_t **seen) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), lead = (size_t)(uintptr_t)begin % page;
    char *from = (char *)begin - lead;
    size_t bytes = ((size_t)(end - from) + page - 1) / page * page;
    unsigned flags = cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    void *there = NULL;
    bool ok = cudaHostRegister(from, bytes, flags) == cudaSuccess;
    t->owned[i] = ok ? from : NULL;
    ok = ok && cudaHostGetDevicePointer(&there, from, 0) == cudaSuccess;
    *seen = ok ? (const uint8_t *)there + lead : NULL;
    return ok;
}

static bool register_pages(di_card_table *t, const di_tensor *table) {
    enum { CLOSE = 1 << 24 };
    size_t bytes[2];
    const uint8_t *seen;
    table_bytes(table, bytes);
    const char *codes = table->data, *scales = (const char *)table->scale;
    const char *low = codes < scales ? codes : scales;
    const char *codes_end = codes + bytes[0], *scales_end = scales + bytes[1];
    const char *high = codes_end > scales_end ? codes_end : scales_end;
    bool ok;
    if ((size_t)(high - low) <= bytes[0] + bytes[1] + CLOSE) {
        ok = lock_pages(t, 0, low, high, &seen);
        t->data = ok ? seen + (codes - low) : NULL;
        t->scale = ok ? seen + (scales - low) : NULL;
    } else {
        ok = lock_pages(t, 0, codes, codes_end, &t->data) &&
             lock_pages(t, 1, scales, scales_end, &t->scale);
    }
    if (!ok) {
        give_back(t);
    }
    cudaGetLastError();
    return ok;
}

static bool load_as(di_card *c, di_card_table *t, const di_tensor *table) {
    size_t bytes[2];
    table_bytes(table, bytes);
    t->data = settle(c, t, 0, table->data, bytes[0]);
    t->scale = t->data ? settle(c, t, 1, table->scale, bytes[1]) : NULL;
    if (!t->data || !t->scale) {
        give_back(t);
        cudaGetLastError();
        return false;
    }
    return true;
}

void di_card_table_load(di_card *c, const di_tensor *table, bool on_card) {
    if (di_card_table_find(c, table)) {
        return;
    }
    di_card_table *tables =
        di_grow(c->tables, c->num_tables, &c->table_capacity, sizeof *c->tables);
    if (!tables) {
        di_card_short(c, sizeof *tables);
        return;
    }
    c->tables = tables;
    di_card_table t = {.host = table->data, .kind = DI_TABLE_CARD};
    bool ok = on_card && !c->host_tables && load_as(c, &t, table);
    if (!ok) { /* as the file's pages where they are, else as a copy of them */
        t.kind = DI_TABLE_REGISTERED;
        ok = register_pages(&t, table);
    }
    if (!ok) {
        t.kind = DI_TABLE_COPY;
        ok = load_as(c, &t, table);
    }
    if (ok) {
        size_t bytes[2];
        table_bytes(table, bytes);
        t.bytes = t.kind == DI_TABLE_CARD ? bytes[0] + bytes[1] : 0;
        c->bytes += t.bytes;
        c->tables[c->num_tables++] = t;
    }
}

const di_card_table *di_card_table_find(const di_card *c, const di_tensor *table) {
    for (size_t i = 0; i < c->num_tables; i++) {
        if (c->tables[i].host == table->data) {
            return &c->tables[i];
        }
    }
    return NULL;
}

void di_card_tables_drop(di_card *c) {
    while (c->num_tables > 0) {
        c->bytes -= c->tables[--c->num_tables].bytes;
        give_back(&c->tables[c->num_tables]);
    }
}

/* ---- picked by the host -----------------------------------------------------------------------*/

typedef struct engram_call {
    int columns, width;
    const di_tensor *table;
    const int64_t *rows;
} engram_call;

enum { ENGRAM_TOKENS = 1024 };

/* Codes, scales and numbers of up to ENGRAM_TOKENS tokens from *t on that are not skipped. */
typedef struct engram_batch {
    uint8_t *codes, *scales;
    int32_t *tokens;
    int count;
} engram_batch;

static void pick_rows(const engram_call *e, int *t, int n, int most, engram_batch *b) {
    size_t width = (size_t)e->width, columns = (size_t)e->columns;
    const uint8_t *data = e->table->data;
    for (b->count = 0; *t < n && b->count < most; (*t)++) {
        const int64_t *rows = e->rows + (size_t)*t * columns;
        if (rows[0] < 0) {
            continue;
        }
        for (size_t i = 0; i < columns; i++) {
            size_t to = (size_t)b->count * columns + i;
            memcpy(b->codes + to * width, data + (size_t)rows[i] * width, width);
            memcpy(b->scales + to * (width / 32), e->table->scale + (size_t)rows[i] * (width / 32),
                   width / 32);
        }
        b->tokens[b->count++] = *t;
    }
}

/* Tokens whose rows fit a segment of the ring. */
static int engram_tokens(const engram_call *e) {
    size_t bytes = (size_t)e->columns * (size_t)(e->width + e->width / 32) + sizeof(int32_t);
    size_t fit = DI_CARD_SEGMENT_BYTES / 2 / bytes;
    return fit < 1 ? 1 : fit < ENGRAM_TOKENS ? (int)fit : ENGRAM_TOKENS;
}

/* What both ways share: weights, and scratch memory for `most` tokens at a time. */
typedef struct engram_parts {
    const dk_bf16 *qw, *kw;
    dk_product wkv; /* of `most` prepared rows, with [most, (hc + 1) * d] */
} engram_parts;

static bool find_parts(di_card *c, const di_tensor *wkv, const di_tensor *q_weight,
                       const di_tensor *k_weight, size_t norm_bytes, size_t most, engram_parts *p) {
    p->qw = di_card_array(c, q_weight->data, norm_bytes);
    p->kw = di_card_array(c, k_weight->data, norm_bytes);
    p->wkv = (dk_product){.targets = 1, .groups = 1};
    if (!p->qw || !p->kw || !di_card_matrix(c, wkv, &p->wkv.to[0].w)) {
        return false;
    }
    size_t m = (size_t)p->wkv.to[0].w.rows, values = dk_prepared_values(most, p->wkv.to[0].w.k);
    p->wkv.prepared = di_card_scratch(c, DI_CARD_USE_X, values, sizeof(dk_bf16));
    p->wkv.to[0].y =
        (dk_result){.yb = di_card_scratch(c, DI_CARD_USE_Y, most, m * sizeof(dk_bf16)), .ldy = m};
    return p->wkv.prepared && p->wkv.to[0].y.yb;
}

/* The prepared rows through wkv, and into the streams of their tokens. */
static void add_rows(di_card *c, const engram_parts *p, int count, const int32_t *tokens, int hc,
                     int d, float eps, di_bf16 *h) {
    dk_product wkv = p->wkv;
    wkv.n = count;
    dk_multiply(c->stream, &wkv);
    dk_engram_gate(c->stream, tokens, count, wkv.to[0].y.yb, p->qw, p->kw, hc, d, eps, h);
}

static void engram_picked(di_card *c, const engram_call *e, int n, size_t most,
                          const engram_parts *p, int hc, int d, float eps, di_bf16 *h) {
    size_t k = (size_t)e->columns * (size_t)e->width;
    size_t code_bytes = most * k, bytes = code_bytes + most * (k / 32 + sizeof(int32_t)) + 64;
    uint8_t *device = di_card_scratch(c, DI_CARD_USE_HOST, bytes, 1);
    if (c->recording) {
        di_card_check(c, cudaErrorStreamCaptureUnsupported);
    }
    for (int t = 0; device && !c->fault_op && t < n;) {
        size_t tokens = code_bytes + (most * (k / 32) + 63) / 64 * 64;
        uint8_t *pinned = di_card_ring_take(c, bytes);
        if (!pinned) {
            break;
        }
        engram_batch b = {pinned, pinned + code_bytes, (int32_t *)(void *)(pinned + tokens), 0};
        pick_rows(e, &t, n, (int)most, &b);
        if (b.count == 0) {
            break;
        }
        di_card_check(c, cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, c->stream));
        dk_engram_rows(c->stream, device, device + code_bytes, b.count, (int)k, p->wkv.prepared);
        add_rows(c, p, b.count, (const int32_t *)(const void *)(device + tokens), hc, d, eps, h);
    }
}

/* ---- read by the card -------------------------------------------------------------------------*/

/* rows: on the card. */
static void engram_gathered(di_card *c, const di_card_table *table, const engram_call *e,
                            const int64_t *rows, int n, int most, const engram_parts *p, int hc,
                            int d, float eps, di_bf16 *h) {
    size_t k = (size_t)e->columns * (size_t)e->width, tokens = (size_t)most;
    int32_t *list = di_card_scratch(c, DI_CARD_USE_LIST, tokens, sizeof *list);
    uint8_t *codes = di_card_scratch(c, DI_CARD_USE_HOST, tokens, k + k / 32);
    for (int t = 0; list && codes && t < n; t += most) {
        int count = n - t < most ? n - t : most;
        dk_ngram_rows r = {
            .data = table->data,
            .scale = table->scale,
            .rows = rows + (size_t)t * (size_t)e->columns,
            .columns = e->columns,
            .width = e->width,
            .first = t,
            .codes = codes,
            .scales = codes + tokens * k,
            .tokens = list,
        };
        dk_gather_ngrams(c->stream, &r, count);
        dk_engram_rows(c->stream, r.codes, r.scales, count, (int)k, p->wkv.prepared);
        add_rows(c, p, count, list, hc, d, eps, h);
    }
}

void di_card_engram(di_backend *be, const int64_t *rows, int n, int columns, const di_tensor *table,
                    const di_tensor *wkv, const di_tensor *q_weight, const di_tensor *k_weight,
                    int hc, int d, float eps, di_bf16 *h) {
    di_card *c = di_card_of(be);
    engram_call e = {columns, (int)table->shape[1], table, rows};
    size_t norm = (size_t)hc * (size_t)d * sizeof(di_bf16);
    engram_parts p;
    if (n <= 0 || !di_card_enter(c, "engram")) {
        return;
    }
    const di_card_table *there = di_card_table_find(c, table);
    const int64_t *rows_there = di_card_on_card(c, rows);
    int most = there && rows_there ? (n < ENGRAM_TOKENS ? n : ENGRAM_TOKENS) : engram_tokens(&e);
    if (!find_parts(c, wkv, q_weight, k_weight, norm, (size_t)most, &p)) {
        di_card_leave(c);
        return;
    }
    if (there && rows_there) {
        engram_gathered(c, there, &e, rows_there, n, most, &p, hc, d, eps, h);
    } else {
        engram_picked(c, &e, n, (size_t)most, &p, hc, d, eps, h);
    }
    di_card_leave(c);
}
