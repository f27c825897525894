/* Memory of the CUDA backend: scratch, the ring that host arrays are copied through, steps, and
 * weights, which are uploaded once and found again by their host address. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "ops/cuda/card/card.h"

/* ---- scratch ----------------------------------------------------------------------------------*/

static void *take(di_card *c, size_t bytes) {
    void *p = NULL;
    cudaError_t result = cudaMalloc(&p, bytes ? bytes : 1);
    if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        di_card_short(c, bytes);
        return NULL;
    }
    if (!di_card_check(c, result)) {
        return NULL;
    }
    c->bytes += bytes;
    return p;
}

/* Branches share the tiles, which one makes for another, and the keys of an index search, which are
 * large, and of which no two searches are under way at a time. */
static int scratch_of(const di_card *c, di_card_use use) {
    bool shared = use == DI_CARD_USE_TILES || use == DI_CARD_USE_KEYS;
    return (int)use + (shared ? 0 : c->branches.now * DI_CARD_NUM_USES);
}

void *di_card_scratch(di_card *c, di_card_use use, size_t count, size_t size) {
    size_t bytes;
    if (!di_mul_size(count, size, &bytes)) {
        di_card_short(c, SIZE_MAX);
        return NULL;
    }
    int at = scratch_of(c, use);
    if (c->scratch[at].bytes < bytes || !c->scratch[at].data) {
        di_card_waits(c, "more scratch memory");
        c->scratch_version++;
        cudaFree(c->scratch[at].data); /* waits for what may still use it */
        c->bytes -= c->scratch[at].bytes;
        c->scratch[at].bytes = 0;
        c->scratch[at].data = take(c, bytes);
        c->scratch[at].bytes = c->scratch[at].data ? bytes : 0;
    }
    return c->scratch[at].data;
}

/* ---- host arrays ------------------------------------------------------------------------------*/

void *di_card_ring_take(di_card *c, size_t bytes) {
    di_card_ring *r = &c->ring;
    bytes = (bytes + DI_CARD_ALIGNMENT - 1) / DI_CARD_ALIGNMENT * DI_CARD_ALIGNMENT;
    if (r->used + bytes > DI_CARD_SEGMENT_BYTES) {
        if (!di_card_check(c, cudaEventRecord(r->done[r->segment], c->stream))) {
            return NULL;
        }
        r->segment = (r->segment + 1) % DI_CARD_SEGMENTS;
        r->used = 0;
        if (cudaEventQuery(r->done[r->segment]) == cudaErrorNotReady) {
            cudaGetLastError();
            di_card_waits(c, "a full ring of host arrays");
        }
        if (!di_card_check(c, cudaEventSynchronize(r->done[r->segment]))) {
            return NULL;
        }
    }
    void *p = r->memory + (size_t)r->segment * DI_CARD_SEGMENT_BYTES + r->used;
    r->used += bytes;
    return p;
}

bool di_card_upload(di_card *c, void *to, const void *from, size_t bytes) {
    const unsigned char *at = from;
    if (c->recording) { /* a replay would copy what the ring holds by then */
        return di_card_check(c, cudaErrorStreamCaptureUnsupported);
    }
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < DI_CARD_SEGMENT_BYTES ? bytes - done : DI_CARD_SEGMENT_BYTES;
        void *pinned = di_card_ring_take(c, n);
        if (!pinned) {
            return false;
        }
        memcpy(pinned, at + done, n);
        if (!di_card_check(c, cudaMemcpyAsync((unsigned char *)to + done, pinned, n,
                                              cudaMemcpyHostToDevice, c->stream))) {
            return false;
        }
        done += n;
    }
    return true;
}

bool di_card_host_arrays(di_card *c, di_card_part *parts, int count) {
    size_t total = 0, at[3] = {0};
    bool copies = false;
    for (int i = 0; i < count; i++) {
        parts[i].device = parts[i].host ? di_card_on_card(c, parts[i].host) : NULL;
        copies = copies || (parts[i].host && !parts[i].device);
        at[i] = total;
        total += (parts[i].bytes + DI_CARD_ALIGNMENT - 1) / DI_CARD_ALIGNMENT * DI_CARD_ALIGNMENT;
    }
    unsigned char *base = copies ? di_card_scratch(c, DI_CARD_USE_HOST, total, 1) : NULL;
    bool ok = base || !copies;
    for (int i = 0; i < count && ok; i++) {
        if (parts[i].host && !parts[i].device) {
            parts[i].device = base + at[i];
            ok = di_card_upload(c, parts[i].device, parts[i].host, parts[i].bytes);
        }
    }
    return ok;
}

/* ---- steps ------------------------------------------------------------------------------------*/

static bool grow(unsigned char **p, size_t *capacity, size_t bytes) {
    if (*capacity < bytes) {
        unsigned char *moved = di_realloc(*p, bytes * 2);
        if (!moved) {
            return false;
        }
        *p = moved;
        *capacity = bytes * 2;
    }
    return true;
}

static size_t table_blocks(const di_step *step, const di_seq_rows *seq) {
    int64_t tokens = step->pool.layout->block_tokens, end = seq->pos0 + seq->num_rows;
    return seq->blocks ? (size_t)((end + tokens - 1) / tokens) : 0;
}

/* Sequences, then the sequence of each row, then all block tables. */
static size_t pack_step(const di_step *step, unsigned char *to) {
    dk_seq *seqs = (dk_seq *)to;
    int32_t *row_seq = (int32_t *)(seqs + step->num_seqs), *tables = row_seq + step->num_rows;
    size_t used = 0;
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        size_t blocks = table_blocks(step, s);
        memset(&seqs[i], 0, sizeof seqs[i]); /* padding is compared too */
        seqs[i].row0 = s->row0;
        seqs[i].num_rows = s->num_rows;
        seqs[i].pos0 = s->pos0;
        seqs[i].window_start = s->window_start;
        seqs[i].table = (int32_t)used;
        seqs[i].slot = s->slot;
        seqs[i].draft = s->draft;
        for (int t = 0; t < s->num_rows; t++) {
            row_seq[s->row0 + t] = i;
        }
        if (blocks) {
            memcpy(tables + used, s->blocks, blocks * sizeof *tables);
        }
        used += blocks;
    }
    return (size_t)((unsigned char *)(tables + used) - to);
}

static size_t packed_bytes(const di_step *step) {
    size_t bytes = (size_t)step->num_seqs * sizeof(dk_seq) + (size_t)step->num_rows * 4;
    for (int i = 0; i < step->num_seqs; i++) {
        bytes += table_blocks(step, &step->seqs[i]) * 4;
    }
    return bytes;
}

static bool upload_step(di_card *c, const di_step *step) {
    size_t bytes = packed_bytes(step);
    if (!grow(&c->staging, &c->staging_capacity, bytes)) {
        return di_card_short(c, bytes);
    }
    bytes = pack_step(step, c->staging);
    if (bytes == c->step_bytes && memcmp(c->staging, c->step, bytes) == 0) {
        return true; /* all layers of a step share one copy */
    }
    c->step_bytes = 0;
    if (!grow(&c->step, &c->step_capacity, bytes)) {
        return di_card_short(c, bytes);
    }
    void *to = di_card_scratch(c, DI_CARD_USE_STEP, bytes, 1);
    if (!to || !di_card_upload(c, to, c->staging, bytes)) {
        return false;
    }
    memcpy(c->step, c->staging, bytes);
    c->step_bytes = bytes;
    return true;
}

void di_card_step_send(di_card *c, const di_step *step) {
    bool ok;
    if (c->recording) { /* nothing runs: room is all it needs */
        uint64_t version = c->scratch_version;
        ok = di_card_scratch(c, DI_CARD_USE_STEP, packed_bytes(step), 1) != NULL;
        c->step_bytes = version == c->scratch_version ? c->step_bytes : 0;
    } else {
        ok = upload_step(c, step);
    }
    c->sent = ok ? step : NULL;
}

bool di_card_step(di_card *c, const di_step *step, int layer, dk_step *out) {
    const di_state_layout *l = step->pool.layout;
    if (step != c->sent && !upload_step(c, step)) {
        return false;
    }
    c->sent = step == c->sent ? step : NULL; /* another one lies there now */
    const dk_seq *seqs = c->scratch[DI_CARD_USE_STEP].data;
    const int32_t *row_seq = (const int32_t *)(seqs + step->num_seqs);
    *out = (dk_step){
        .num_rows = step->num_rows,
        .num_seqs = step->num_seqs,
        .seqs = seqs,
        .row_seq = row_seq,
        .tables = row_seq + step->num_rows,
        .blocks = step->pool.blocks,
        .slots = step->pool.slots,
        .block_stride = l->block_stride,
        .slot_stride = l->slot_stride,
        .block_tokens = l->block_tokens,
        .ring_rows = l->ring_rows,
        .group_rows = l->group_rows,
        .window_bytes = l->window_bytes,
        .latent_bytes = l->latent_bytes,
        .key_bytes = l->key_bytes,
        .group_bytes = l->group_bytes,
        .latent_offset = l->latent_offset[layer],
        .key_offset = l->key_offset[layer],
        .ring_offset = l->ring_offset[layer],
        .group_offset = l->group_offset[layer],
    };
    return true;
}

/* ---- weights ----------------------------------------------------------------------------------*/

/* Begins a slab with room for `bytes`, and for more unless it is to be `exact`. */
static bool add_slab(di_card *c, size_t bytes, bool exact) {
    di_card_slab *slabs = di_grow(c->slabs, c->num_slabs, &c->slab_capacity, sizeof *c->slabs);
    if (!slabs) {
        return di_card_short(c, sizeof *slabs);
    }
    c->slabs = slabs;
    size_t size = bytes > DI_CARD_SLAB_BYTES ? bytes : DI_CARD_SLAB_BYTES, left = 0, total = 0;
    if (exact || (cudaMemGetInfo(&left, &total) == cudaSuccess && left < size)) {
        size = bytes; /* a small model on a card that is nearly full */
    }
    unsigned char *data = take(c, size);
    if (!data) {
        return false;
    }
    c->slabs[c->num_slabs++] = (di_card_slab){data, size};
    c->slab_used = 0;
    c->weight_bytes += size;
    return true;
}

/* Zeroed memory that lives until di_card_forget. */
static void *take_weight(di_card *c, size_t bytes) {
    if (c->recording) {
        di_card_check(c, cudaErrorStreamCaptureUnsupported);
        return NULL;
    }
    di_card_waits(c, "a weight that was not loaded");
    bytes = (bytes + DI_CARD_ALIGNMENT - 1) / DI_CARD_ALIGNMENT * DI_CARD_ALIGNMENT;
    bool fits = c->num_slabs > 0 && bytes <= c->slabs[c->num_slabs - 1].bytes - c->slab_used;
    if (!fits && !add_slab(c, bytes, false)) {
        return NULL;
    }
    void *p = c->slabs[c->num_slabs - 1].data + c->slab_used;
    c->slab_used += bytes;
    return di_card_check(c, cudaMemsetAsync(p, 0, bytes, c->stream)) ? p : NULL;
}

static size_t place_of(const di_card *c, const void *host) {
    uint64_t h = (uint64_t)(uintptr_t)host * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h >> 20) & (c->num_places - 1);
    while (c->weights[i].host && c->weights[i].host != host) {
        i = (i + 1) & (c->num_places - 1);
    }
    return i;
}

static di_card_weight *find_weight(di_card *c, const void *host) {
    di_card_weight *w = c->num_places ? &c->weights[place_of(c, host)] : NULL;
    return w && w->host ? w : NULL;
}

static bool keep_weight(di_card *c, const void *host, const dk_matrix *m) {
    if (c->num_weights * 2 >= c->num_places) {
        size_t old_places = c->num_places, places = old_places ? old_places * 2 : 1024;
        di_card_weight *old = c->weights, *weights = di_calloc(places, sizeof *weights);
        if (!weights) {
            return di_card_short(c, places * sizeof *weights);
        }
        c->weights = weights;
        c->num_places = places;
        for (size_t i = 0; i < old_places; i++) {
            if (old[i].host) {
                c->weights[place_of(c, old[i].host)] = old[i];
            }
        }
        di_free(old);
    }
    c->weights[place_of(c, host)] = (di_card_weight){host, *m};
    c->num_weights++;
    return true;
}

/* The driver copies no range that lies partly in locked pages, as an n-gram table's may be. */
static bool copy_bytes(di_card *c, void *to, const void *from, size_t bytes) {
    if (c->num_tables > 0) {
        return di_card_upload(c, to, from, bytes);
    }
    return bytes == 0 ||
           di_card_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->stream));
}

static dk_matrix shape_of(const di_tensor *w) {
    dk_matrix m = {.rows = (int)w->shape[0], .k = (int)w->shape[1]};
    m.format = w->dtype == DI_F8_E4M3 ? DK_FP8 : w->dtype == DI_FP4_E2M1 ? DK_FP4 : DK_BF16;
    m.tiles = (m.rows + DK_TILE_ROWS - 1) / DK_TILE_ROWS;
    m.chunks = (m.k + DK_CHUNK - 1) / DK_CHUNK;
    return m;
}

enum { PACK_BYTES = 64 << 20 }; /* about what waits on the card to be packed */

/* Copies rows by way of scratch memory and puts them into the kernels' order. */
static bool upload_matrix(di_card *c, const di_tensor *w, const dk_matrix *m) {
    size_t width = (size_t)m->k * (size_t)di_dtype_bits(w->dtype) / 8;
    size_t tile_bytes = width * DK_TILE_ROWS, scale_width = w->scale ? (size_t)m->k / 32 : 0;
    size_t tiles = PACK_BYTES / (tile_bytes ? tile_bytes : 1), block = DK_TILE_ROWS;
    size_t scale_rows = w->scale ? (size_t)w->scale_block[0] : 1; /* rows that share scales */
    tiles = tiles < 1 ? 1 : tiles > 32768 ? 32768 : tiles;
    tiles = tiles < (size_t)m->tiles ? tiles : (size_t)m->tiles;
    size_t codes = tiles * tile_bytes + DI_CARD_ALIGNMENT;
    unsigned char *raw =
        di_card_scratch(c, DI_CARD_USE_PACK, codes + tiles * block * scale_width, 1);
    for (size_t tile = 0; raw && tile < (size_t)m->tiles; tile += tiles) {
        size_t first = tile * block, rows = (size_t)m->rows - first;
        rows = rows < tiles * block ? rows : tiles * block;
        if (!copy_bytes(c, raw, (const uint8_t *)w->data + first * width, rows * width) ||
            !copy_bytes(c, raw + codes,
                        w->scale ? w->scale + first / scale_rows * scale_width : raw,
                        (rows + scale_rows - 1) / scale_rows * scale_width)) {
            return false;
        }
        dk_pack(c->stream, m, (int)tile, (int)rows, raw, raw + codes);
    }
    return raw != NULL;
}

size_t di_card_matrix_bytes(const di_tensor *w) {
    dk_matrix m = shape_of(w);
    return dk_matrix_bytes(&m);
}

void di_card_reserve(di_card *c, size_t bytes) {
    add_slab(c, bytes, true);
}

bool di_card_matrix(di_card *c, const di_tensor *w, dk_matrix *out) {
    di_card_weight *known = find_weight(c, w->data);
    if (known) {
        *out = known->matrix;
        return out->rows > 0 || di_card_check(c, cudaErrorInvalidValue); /* stored as an array */
    }
    dk_matrix m = shape_of(w);
    m.data = take_weight(c, dk_matrix_bytes(&m));
    if (!m.data || !upload_matrix(c, w, &m)) {
        return false;
    }
    *out = m;
    return keep_weight(c, w->data, &m);
}

const void *di_card_array(di_card *c, const void *host, size_t bytes) {
    di_card_weight *known = find_weight(c, host);
    if (known && known->matrix.rows > 0) { /* packed: no array */
        di_card_check(c, cudaErrorInvalidValue);
        return NULL;
    }
    if (known) {
        return known->matrix.data;
    }
    dk_matrix m = {.data = take_weight(c, bytes)};
    if (!m.data || !copy_bytes(c, (void *)m.data, host, bytes) || !keep_weight(c, host, &m)) {
        return NULL;
    }
    return m.data;
}

const dk_expert *di_card_experts(di_card *c, const di_expert *table, int count) {
    di_card_weight *known = find_weight(c, table);
    if (known) {
        return (const dk_expert *)known->matrix.data;
    }
    dk_expert *list = di_calloc((size_t)count, sizeof *list);
    if (!list) {
        di_card_short(c, (size_t)count * sizeof *list);
        return NULL;
    }
    bool ok = true;
    for (int e = 0; e < count && ok; e++) {
        dk_matrix w1, w2, w3;
        ok = di_card_matrix(c, &table[e].w1, &w1) && di_card_matrix(c, &table[e].w2, &w2) &&
             di_card_matrix(c, &table[e].w3, &w3);
        if (ok) {
            list[e] = (dk_expert){w1.data, w3.data, w2.data};
        }
    }
    size_t bytes = (size_t)count * sizeof *list;
    dk_matrix m = {.data = ok ? take_weight(c, bytes) : NULL};
    ok = m.data && di_card_upload(c, (void *)m.data, list, bytes) && keep_weight(c, table, &m);
    di_free(list);
    return ok ? (const dk_expert *)m.data : NULL;
}

static void drop_slabs(di_card *c, size_t keep) {
    while (c->num_slabs > keep) {
        di_card_slab *last = &c->slabs[--c->num_slabs];
        cudaFree(last->data);
        c->bytes -= last->bytes;
        c->weight_bytes -= last->bytes;
    }
    c->slab_used = 0;
}

/* The first slab is kept for what comes next. */
void di_card_forget(di_card *c) {
    di_card_check(c, cudaStreamSynchronize(c->stream));
    di_card_tables_drop(c);
    drop_slabs(c, 1);
    di_free(c->weights);
    c->weights = NULL;
    c->num_weights = c->num_places = 0;
}

/* ---- all of it --------------------------------------------------------------------------------*/

bool di_card_memory_create(di_card *c, di_error *err) {
    size_t bytes = (size_t)DI_CARD_SEGMENTS * DI_CARD_SEGMENT_BYTES;
    cudaError_t result = cudaHostAlloc((void **)&c->ring.memory, bytes, cudaHostAllocDefault);
    for (int i = 0; i < DI_CARD_SEGMENTS && result == cudaSuccess; i++) {
        result = cudaEventCreateWithFlags(&c->ring.done[i], cudaEventDisableTiming);
    }
    if (result != cudaSuccess) {
        return di_fail(err, DI_ERR_NO_MEMORY, "cuda:%d: %zu bytes of page-locked memory: %s",
                       c->device, bytes, cudaGetErrorString(result));
    }
    size_t tickets = (DI_CARD_TICKETS + DK_MOE_TICKETS) * sizeof *c->tickets;
    c->tickets = take(c, tickets);
    if (!c->tickets || !di_card_check(c, cudaMemsetAsync(c->tickets, 0, tickets, c->stream))) {
        return di_fail(err, DI_ERR_NO_MEMORY, "cuda:%d: no memory on the card", c->device);
    }
    return true;
}

void di_card_memory_destroy(di_card *c) {
    di_card_tables_drop(c);
    di_free(c->tables);
    for (int i = 0; i < c->num_regions; i++) {
        cudaFreeHost(c->regions[i].host);
        cudaFree(c->regions[i].device);
    }
    drop_slabs(c, 0);
    di_free(c->slabs);
    di_free(c->weights);
    for (size_t i = 0; i < sizeof c->scratch / sizeof *c->scratch; i++) {
        cudaFree(c->scratch[i].data);
    }
    for (int i = 0; i < DI_CARD_SEGMENTS; i++) {
        if (c->ring.done[i]) {
            cudaEventDestroy(c->ring.done[i]);
        }
    }
    cudaFree(c->tickets);
    cudaFreeHost(c->ring.memory);
    di_free(c->step);
    di_free(c->staging);
}
