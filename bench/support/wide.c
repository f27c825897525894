/* The model of full width: see wide.h. */
#include "support/wide.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "ops/cuda/cuda.h"
#include "support/synthetic.h"
#include "weights/inventory.h"

_Noreturn void wide_give_up(const char *what) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

void wide_check(bool ok, const di_error *err) {
    if (!ok) {
        wide_give_up(err->message);
    }
}

/* ---- weights ----------------------------------------------------------------------------------*/

/* Random values of one kind, mapped as often as wanted. */
typedef struct piece {
    int file;
    size_t bytes;
    synthetic_kind kind;
    double mean, deviation;
} piece;

/* Memory that a piece's file is filled through. */
static uint8_t *open_piece(piece *p) {
    void *to = MAP_FAILED;
    p->file = memfd_create("weights", 0);
    if (p->file >= 0 && ftruncate(p->file, (off_t)p->bytes) == 0) {
        to = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->file, 0);
    }
    if (to == MAP_FAILED) {
        wide_give_up("no memory on the host for random weights");
    }
    return to;
}

static piece make_piece(size_t bytes, synthetic_kind kind, double mean, double deviation) {
    piece p = {.bytes = bytes, .kind = kind, .mean = mean, .deviation = deviation};
    uint8_t *to = open_piece(&p);
    synthetic_fill(to, bytes, kind, mean, deviation);
    munmap(to, bytes);
    return p;
}

/* Scales that are all the same. */
static piece make_scales(size_t bytes, uint8_t scale) {
    piece p = {.bytes = bytes};
    uint8_t *to = open_piece(&p);
    memset(to, scale, bytes);
    munmap(to, bytes);
    return p;
}

/* `bytes` of the piece, from a random page on, at an address of their own. */
static void *map_piece(piece p, size_t bytes) {
    const size_t page = 4096;
    size_t room = bytes <= p.bytes ? (p.bytes - bytes) / page + 1 : 0;
    void *at = MAP_FAILED;
    if (room > 0) {
        off_t from = (off_t)(synthetic_random() % room * page);
        at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, p.file, from);
    }
    if (at == MAP_FAILED) {
        wide_give_up("no address space for weights");
    }
    return at;
}

enum { MOST_PIECES = 64 };

typedef struct filler {
    piece expert_piece, expert_scale_piece;
    piece pieces[MOST_PIECES];
    int num_pieces;
    char *expert_codes[DI_MAX_LAYERS], *expert_scales[DI_MAX_LAYERS];
    size_t codes_used, scales_used; /* in the layer under way */
    int layer, num_layers, expert_layers;
} filler;

/* A tensor's values, from a piece that others of the same kind have their own from. */
static void *map_values(filler *f, size_t bytes, synthetic_kind kind, double mean,
                        double deviation) {
    const size_t more = (size_t)16 << 20; /* for tensors to differ */
    for (int i = 0; i < f->num_pieces; i++) {
        const piece *p = &f->pieces[i];
        if (p->kind == kind && p->bytes >= bytes && p->mean == mean && p->deviation == deviation) {
            return map_piece(*p, bytes);
        }
    }
    if (f->num_pieces == MOST_PIECES) {
        wide_give_up("more kinds of weights than thought");
    }
    piece *p = &f->pieces[f->num_pieces++];
    *p = make_piece(bytes + more, kind, mean, deviation);
    return map_piece(*p, bytes);
}

/* What the released model's tensors are like: projections by their deviation, as a multiple of 1 /
 * sqrt(values of a row), norms by their mean. The others: 1, and little around 0. But wo_b has
 * 0.1 instead of 1.9: of random layers attention's results are much the same for all tokens, and
 * these would all go to the same few experts, as no trained router has them do. */
typedef struct likeness {
    const char *name; /* its end */
    double multiple, mean;
} likeness;

static likeness likeness_of(const di_parameter *p) {
    static const likeness known[] = {
        {"attn.wq_a", 1.6, 0},
        {"attn.wq_b", 0.95, 0},
        {"attn.wkv", 1.8, 0},
        {"attn.wo_a", 1.6, 0},
        {"attn.wo_b", 0.1, 0},
        {".gate.weight", 2.9, 0},
        {".w1", 1.5, 0},
        {".w3", 1.5, 0},
        {".w2", 1.05, 0},
        {"attn_norm.weight", 0, 0.025},
        {"ffn_norm.weight", 0, 0.2},
        {"q_norm.weight", 0, 0.97},
        {"kv_norm.weight", 0, 0.4},
        {"compressor.norm.weight", 0, 0.6},
        {"k_norm.weight", 0, 0.5},
        {"norm.weight", 0, 1},
        {"engram.q_weight", 0, 1},
        {"engram.k_weight", 0, 1},
    };
    size_t length = strlen(p->name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t end = strlen(known[i].name);
        if (end <= length && strcmp(p->name + length - end, known[i].name) == 0) {
            return known[i];
        }
    }
    return (likeness){p->name, 1, 0};
}

/* Mean and deviation of a parameter's values. */
static void spread_of(const di_parameter *p, double *mean, double *deviation) {
    likeness like = likeness_of(p);
    *mean = like.mean;
    if (strcmp(p->name, "embed.weight") == 0) {
        *deviation = 0.12;
    } else if (like.mean != 0) {
        *deviation = like.mean / 10;
    } else {
        *deviation = p->rank == 1 ? 0.01 : like.multiple / sqrt((double)p->shape[1]);
    }
}

static size_t align64(size_t n) {
    return (n + 63) / 64 * 64;
}

/* An expert's data come from its layer's stretch, one behind the other. */
static void fill_expert(filler *f, const di_parameter *p, di_tensor *t, size_t bytes,
                        size_t scales) {
    int layer = 0, stage;
    if (sscanf(p->name, "mtp.%d.", &stage) == 1) {
        layer = f->num_layers + stage;
    } else if (sscanf(p->name, "layers.%d.", &layer) != 1) {
        wide_give_up("an expert outside the layers");
    }
    if (layer != f->layer) {
        f->layer = layer;
        f->codes_used = f->scales_used = 0;
    }
    int own = layer % f->expert_layers;
    t->data = f->expert_codes[own] + f->codes_used;
    t->scale = (uint8_t *)f->expert_scales[own] + f->scales_used;
    f->codes_used += align64(bytes);
    f->scales_used += align64(scales);
    if (f->codes_used > f->expert_piece.bytes || f->scales_used > f->expert_scale_piece.bytes) {
        wide_give_up("a layer's experts are larger than thought");
    }
}

static bool fill_parameter(void *context, const di_parameter *p) {
    filler *f = context;
    static const di_dtype dtypes[] = {
        [DI_STORED_F32] = DI_F32,       [DI_STORED_BF16] = DI_BF16,    [DI_STORED_FP8] = DI_F8_E4M3,
        [DI_STORED_TABLE] = DI_F8_E4M3, [DI_STORED_FP4] = DI_FP4_E2M1,
    };
    di_tensor t = {.dtype = dtypes[p->storage], .rank = p->rank};
    size_t values = 1;
    for (int i = 0; i < p->rank; i++) {
        t.shape[i] = p->shape[i];
        values *= (size_t)p->shape[i];
    }
    size_t bytes = values * (size_t)di_dtype_bits(t.dtype) / 8;
    double mean, deviation;
    spread_of(p, &mean, &deviation);
    if (p->storage < DI_STORED_FP8) {
        synthetic_kind kind = p->storage == DI_STORED_F32 ? SYNTHETIC_F32 : SYNTHETIC_BF16;
        t.data = map_values(f, bytes, kind, mean, deviation);
    } else {
        t.scale_block[0] = p->storage == DI_STORED_FP8 ? 32 : 1;
        t.scale_block[1] = 32;
        size_t rows =
            ((size_t)p->shape[0] + (size_t)t.scale_block[0] - 1) / (size_t)t.scale_block[0];
        size_t scales = rows * (size_t)p->shape[1] / 32;
        if (p->storage == DI_STORED_FP4) {
            fill_expert(f, p, &t, bytes, scales);
        } else {
            piece all = make_scales(scales, synthetic_scale(SYNTHETIC_E4M3, deviation));
            t.data = map_values(f, bytes, SYNTHETIC_E4M3, 0, 0);
            t.scale = map_piece(all, scales);
            close(all.file);
        }
    }
    *p->slot = t;
    return true;
}

/* The released configuration with n-gram tables of about 24 x 40,000 rows. */
static void read_config(di_config *config) {
    static const struct {
        const char *from, *to;
    } swaps[] = {
        {"\"engram_num_embeddings\": [384006168, 384016682]",
         "\"engram_num_embeddings\": [963078, 970134]"},
        {"\"engram_vocab_size\": 16000000", "\"engram_vocab_size\": 40000"},
    };
    char folder[] = "/tmp/cuda_model.XXXXXX", path[64], *text;
    size_t size;
    di_error err;
    if (!mkdtemp(folder) || !di_file_read("tools/flash-config.json", 1 << 20, &text, &size, &err)) {
        wide_give_up("run it in the project's folder");
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *out = fopen(path, "w");
    const char *at = text;
    for (int i = 0; out && i < 2; i++) {
        const char *found = strstr(at, swaps[i].from);
        if (i == 0 && found > strstr(at, swaps[1].from)) {
            wide_give_up("tools/flash-config.json has another order");
        }
        if (!found) {
            wide_give_up("tools/flash-config.json is another one");
        }
        fprintf(out, "%.*s%s", (int)(found - at), at, swaps[i].to);
        at = found + strlen(swaps[i].from);
    }
    if (!out || fputs(at, out) < 0 || fclose(out) != 0) {
        wide_give_up("cannot write to /tmp");
    }
    bool ok = di_config_read(config, folder, &err);
    unlink(path);
    rmdir(folder);
    di_free(text);
    if (!ok) {
        wide_give_up(err.message);
    }
}

static void make_weights(wide *w) {
    di_error err;
    const di_config *c = &w->weights.config;
    read_config(&w->weights.config);
    size_t expert = 3 * (size_t)c->moe_intermediate_size * (size_t)c->hidden_size;
    size_t experts = (size_t)c->n_routed_experts;
    /* w1 and w3; w2's, 1.05 / sqrt(2304), comes to the same */
    uint8_t scale = synthetic_scale(SYNTHETIC_E2M1, 1.5 / sqrt((double)c->hidden_size));
    filler f = {
        .expert_piece = make_piece((expert / 2 + 4096) * experts, SYNTHETIC_E2M1, 0, 0),
        .expert_scale_piece = make_scales((expert / 32 + 4096) * experts, scale),
        .layer = -1,
        .num_layers = c->num_hidden_layers,
        .expert_layers = w->o.expert_layers,
    };
    for (int l = 0; l < w->o.expert_layers; l++) {
        f.expert_codes[l] =
            mmap(NULL, f.expert_piece.bytes, PROT_READ, MAP_SHARED, f.expert_piece.file, 0);
        f.expert_scales[l] = mmap(NULL, f.expert_scale_piece.bytes, PROT_READ, MAP_SHARED,
                                  f.expert_scale_piece.file, 0);
        if (f.expert_codes[l] == MAP_FAILED || f.expert_scales[l] == MAP_FAILED) {
            wide_give_up("no address space for experts");
        }
    }
    if (!di_weights_allocate(&w->weights, w->o.drafts, &err) ||
        !di_inventory_walk(&w->weights, fill_parameter, &f)) {
        wide_give_up("no memory for the list of weights");
    }
}

/* ---- sequences --------------------------------------------------------------------------------*/

double wide_prefill(wide *w, di_seq *seq, int64_t n) {
    di_error err;
    double start = di_now();
    wide_check(di_seq_reserve(w->cache, seq, n, &err), &err);
    while (seq->len < n) {
        int count = n - seq->len < w->o.chunk ? (int)(n - seq->len) : w->o.chunk;
        di_model_rows rows = di_model_next_rows(seq, w->tokens, count);
        wide_check(di_model_forward(w->model, &rows, 1, NULL, &err), &err);
        seq->len += count;
    }
    return di_now() - start;
}

void wide_copy_sequence(wide *w, di_seq *to, const di_seq *from) {
    di_error err;
    const di_state_pool *pool = di_cache_pool(w->cache);
    size_t block = pool->layout->block_stride, slot = pool->layout->slot_stride;
    wide_check(di_seq_open(w->cache, to, (di_hash){0}, &err), &err);
    wide_check(di_seq_reserve(w->cache, to, from->len + WIDE_MORE, &err), &err);
    for (int i = 0; i < from->num_blocks && i < to->num_blocks; i++) {
        w->be->ops->copy(w->be, pool->blocks + (size_t)to->blocks[i] * block,
                         pool->blocks + (size_t)from->blocks[i] * block, block);
    }
    w->be->ops->copy(w->be, pool->slots + (size_t)to->slot * slot,
                     pool->slots + (size_t)from->slot * slot, slot);
    to->len = from->len;
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static void measure_bandwidth(wide *w) {
    size_t bytes = (size_t)4 << 30;
    void *buffer = w->be->ops->alloc(w->be, bytes);
    di_error err;
    if (!buffer) {
        wide_give_up("the card has no memory left");
    }
    for (int i = 0; i < 8; i++) {
        double start = di_now();
        di_cuda_read_all(w->be, buffer, bytes);
        wide_check(w->be->ops->sync(w->be, &err), &err);
        double rate = (double)bytes / (di_now() - start);
        w->bandwidth = rate > w->bandwidth ? rate : w->bandwidth;
    }
    w->be->ops->free(w->be, buffer);
    printf("reading memory: %.0f GB/s\n", w->bandwidth * 1e-9);
}

static void open_model(wide *w) {
    di_error err;
    int64_t room = w->o.longest + WIDE_MORE;
    int64_t blocks = w->o.max_batch * di_blocks_for(room + DI_BLOCK_TOKENS);
    di_cache_options co = {
        .num_blocks = (int)blocks,
        .num_slots = w->o.max_batch + 1,
        .max_backtracking = w->o.drafts ? 2 * w->weights.config.dspark_block_size + 1 : 6,
        .draft_layers = w->o.drafts ? w->weights.config.num_nextn_predict_layers : 0};
    w->cache = di_cache_create(&w->weights.config, w->be, &co, &err);
    wide_check(w->cache != NULL, &err);
    int32_t *map = di_calloc((size_t)w->weights.config.vocab_size, sizeof *map);
    for (int i = 0; map && i < w->weights.config.vocab_size; i++) {
        map[i] = i % w->weights.config.engram_compressed_vocab_size;
    }
    di_model_options mo = {.max_rows = w->o.chunk,
                           .max_logits = w->o.max_logits,
                           .token_map = map,
                           .drafts = w->o.drafts};
    w->model = map ? di_model_create(&w->weights, w->be, w->cache, &mo, &err) : NULL;
    wide_check(w->model != NULL, &err);
    di_free(map);
    int64_t count = room + 64 * (int64_t)w->o.max_batch;
    w->tokens = di_calloc((size_t)count, sizeof *w->tokens);
    for (int64_t i = 0; w->tokens && i < count; i++) {
        w->tokens[i] = (int32_t)(synthetic_random() % (uint64_t)w->weights.config.vocab_size);
    }
    printf("state of %d sequences: %.1f GiB; 40 layers, experts of %d of them\n", w->o.max_batch,
           (double)di_cache_bytes(&w->weights.config, &co) / (1 << 30), w->o.expert_layers);
    fflush(stdout);
}

/* Layers share experts, so the card's memory is not asked for all of them at once. */
static void reserve_nothing(di_backend *unused, size_t bytes) {
    (void)unused;
    (void)bytes;
}

/* Different experts that rows go to, of calls while it is on. */
static struct {
    di_op_moe *moe;
    bool on;
    int calls, touched;
} counter;

static void count_experts(di_backend *be, const int32_t *experts, size_t uses, int num_experts) {
    bool *seen = di_calloc((size_t)num_experts, sizeof *seen);
    int32_t *host = di_alloc(uses * sizeof *host);
    if (!seen || !host) {
        wide_give_up("the host has no memory left");
    }
    be->ops->download(be, host, experts, uses * sizeof *host);
    for (size_t i = 0; i < uses; i++) {
        counter.touched += !seen[host[i]];
        seen[host[i]] = true;
    }
    counter.calls++;
    di_free(host);
    di_free(seen);
}

static void counted_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                        const float *weights, int top_k, const di_expert *table, int num_experts,
                        const di_expert *shared, float limit, di_bf16 *y) {
    if (counter.on) {
        count_experts(be, experts, (size_t)n * (size_t)top_k, num_experts);
    }
    counter.moe(be, x, n, experts, weights, top_k, table, num_experts, shared, limit, y);
}

static void replace_ops(wide *w) {
    static di_ops ops;
    static di_queue_ops queue;
    ops = *w->be->ops;
    queue = *ops.queue;
    queue.reserve = reserve_nothing;
    counter.moe = ops.moe;
    ops.moe = counted_moe;
    ops.queue = &queue;
    w->be->ops = &ops;
}

/* Everything on the card, and steps recorded. */
static void load(wide *w) {
    di_seq seq = {0};
    di_error err;
    bool recorded = false;
    double start = di_now();
    wide_check(di_model_load(w->model, true, NULL, NULL, &err), &err);
    double loaded = di_now();
    wide_check(
        di_model_prepare(w->model, w->o.max_batch, w->o.max_logits, &recorded, NULL, NULL, &err),
        &err);
    printf("weights loaded   %.1f s; steps %srecorded   %.1f s\n", loaded - start,
           recorded ? "" : "NOT ", di_now() - loaded);
    wide_check(di_seq_open(w->cache, &seq, (di_hash){0}, &err), &err);
    wide_prefill(w, &seq, w->o.chunk); /* takes scratch memory */
    di_seq_close(w->cache, &seq);
    fflush(stdout);
}

bool wide_open(wide *w, const wide_options *o) {
    di_error err;
    *w = (wide){.o = *o};
    if (o->expert_layers < 1 || o->expert_layers > 40) {
        wide_give_up("experts of their own have 1 to 40 layers");
    }
    w->be = di_cuda_create(0, &err);
    if (!w->be) {
        printf("no card: %s\n", err.message);
        return false;
    }
    replace_ops(w);
    measure_bandwidth(w);
    make_weights(w);
    open_model(w);
    load(w);
    return true;
}

void wide_close(wide *w) {
    printf("memory taken, weights and scratch   %.1f GiB\n",
           (double)di_cuda_bytes(w->be) / (1 << 30));
    di_model_destroy(w->model);
    di_cache_destroy(w->cache);
    di_weights_release(&w->weights);
    di_free(w->tokens);
    w->be->ops->destroy(w->be);
}

/* The rows of a step. */
static di_model_rows *step_rows(wide *w, di_seq *seqs, int n, int rows_each) {
    static di_model_rows rows[WIDE_MOST_SEQS];
    for (int i = 0; i < n; i++) {
        rows[i] = di_model_next_rows(&seqs[i], w->tokens + (ptrdiff_t)i * 64, rows_each);
        rows[i].num_logits = rows_each;
        rows[i].no_context = rows_each == 1; /* nobody drafts */
    }
    return rows;
}

double wide_steps(wide *w, di_seq *seqs, int n, int rows_each, int steps) {
    const di_queue_ops *queue = w->be->ops->queue;
    di_error err;
    double begin, end;
    queue->begin(w->be, 0);
    for (int step = 0; step < steps; step++) {
        di_model_rows *rows = step_rows(w, seqs, n, rows_each);
        wide_check(di_model_queue(w->model, rows, n, NULL, NULL, &err), &err);
        for (int i = 0; i < n; i++) {
            seqs[i].len += rows_each;
        }
    }
    queue->end(w->be, 0);
    wide_check(queue->wait(w->be, 0, &begin, &end, &err), &err);
    return (end - begin) / steps;
}

double wide_touched(wide *w, di_seq *seqs, int n) {
    di_error err;
    counter.calls = counter.touched = 0;
    counter.on = true;
    di_model_rows *rows = step_rows(w, seqs, n, 1);
    for (int i = 0; i < n; i++) {
        rows[i].num_logits = 0; /* of them there is no need */
    }
    wide_check(di_model_forward(w->model, rows, n, NULL, &err), &err);
    counter.on = false;
    return counter.calls ? (double)counter.touched / counter.calls : 0;
}
