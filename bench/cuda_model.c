/* A whole model of DeepSeek-V4.1-Flash's width, all 40 layers of it, on a card: prefill in tokens a
 * second, and a step of decoding at several batch sizes and contexts, beside the time that reading
 * what it must read would take at the bandwidth measured in the same run.
 *
 *   bench/cuda_model [--expert-layers N] [--batch N] [CONTEXT...]
 *
 * Weights are random codes with scales as in the released model. As all of its routed experts
 * (272 GB) fit on no card, only N layers have experts of their own (13), and layer l uses those of
 * layer l % N: a step still reads as many bytes, far more than any cache holds. n-gram tables are
 * small ones, for the same reason.
 *
 * Steps of decoding run as the engine's do: recorded, queued one behind the other. They end with
 * logits, not with drawn tokens. The head is timed alone too and taken off where a layer's time is
 * told, as it does not grow with the layers. --batch runs one batch size, of 1 to 256.
 *
 * On the host the weights are a few pieces of memory that stand at many addresses; on the card each
 * address has a copy of its own. Without a card it says so and does nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "cache/cache.h"
#include "model/queue.h"
#include "ops/cuda/cuda.h"
#include "weights/inventory.h"

enum {
    CHUNK = 8192,    /* rows of a prefill step */
    MAX_BATCH = 256, /* sequences */
    STEPS = 8,       /* of decoding, queued at once */
    RUNS = 3,        /* of so many steps */
};

static di_backend *be;
static di_weights weights;
static di_cache *cache;
static di_model *model;
static double bandwidth; /* bytes a second */
static int expert_layers = 13, only_batch;
static uint64_t state = 1;

static _Noreturn void give_up(const char *what) {
    fprintf(stderr, "bench/cuda_model: %s\n", what);
    exit(1);
}

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- weights ----------------------------------------------------------------------------------*/

/* Random values of one kind, mapped as often as wanted. */
typedef struct piece {
    int file;
    size_t bytes;
} piece;

typedef uint64_t (*eight_bytes)(void);

static uint64_t random_codes(void) {
    return next_random() & 0xbfbfbfbfbfbfbfbfu; /* no NaN among them */
}

static uint64_t random_scales(void) { /* 2^-9 .. 2^-6 */
    return 0x7676767676767676u + (next_random() & 0x0303030303030303u);
}

static uint64_t random_bf16(void) { /* up to 2^-3, of either sign */
    return (next_random() & 0x807f807f807f807fu) |
           (0x3c003c003c003c00u + (next_random() & 0x0180018001800180u));
}

static uint64_t random_f32(void) { /* up to 2^-3, of either sign */
    return (next_random() & 0x807fffff807fffffu) | 0x3d0000003d000000u;
}

static piece make_piece(const char *name, size_t bytes, eight_bytes value) {
    piece p = {.file = memfd_create(name, 0), .bytes = bytes};
    uint64_t *to = MAP_FAILED;
    if (p.file >= 0 && ftruncate(p.file, (off_t)bytes) == 0) {
        to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p.file, 0);
    }
    if (to == MAP_FAILED) {
        give_up("no memory on the host for random weights");
    }
    for (size_t i = 0; i < bytes / 8; i++) {
        to[i] = value();
    }
    munmap(to, bytes);
    return p;
}

/* `bytes` of the piece, from a random page on, at an address of their own. */
static void *map_piece(piece p, size_t bytes) {
    const size_t page = 4096;
    size_t room = bytes <= p.bytes ? (p.bytes - bytes) / page + 1 : 0;
    void *at = MAP_FAILED;
    if (room > 0) {
        at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, p.file, (off_t)(next_random() % room * page));
    }
    if (at == MAP_FAILED) {
        give_up("no address space for weights");
    }
    return at;
}

typedef struct filler {
    piece codes, scales, bf16, f32;
    char *expert_codes[DI_MAX_LAYERS], *expert_scales[DI_MAX_LAYERS];
    size_t codes_used, scales_used; /* in the layer under way */
    int layer;
} filler;

static size_t align64(size_t n) {
    return (n + 63) / 64 * 64;
}

/* An expert's data come from its layer's stretch, one behind the other. */
static void fill_expert(filler *f, const di_parameter *p, di_tensor *t, size_t bytes,
                        size_t scales) {
    int layer = 0;
    if (sscanf(p->name, "layers.%d.", &layer) != 1 || layer < 0 || layer >= DI_MAX_LAYERS) {
        give_up("an expert outside the layers");
    }
    if (layer != f->layer) {
        f->layer = layer;
        f->codes_used = f->scales_used = 0;
    }
    int own = layer % expert_layers;
    t->data = f->expert_codes[own] + f->codes_used;
    t->scale = (uint8_t *)f->expert_scales[own] + f->scales_used;
    f->codes_used += align64(bytes);
    f->scales_used += align64(scales);
    if (f->codes_used > f->codes.bytes || f->scales_used > f->scales.bytes) {
        give_up("a layer's experts are larger than thought");
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
    if (p->storage < DI_STORED_FP8) {
        t.data = map_piece(p->storage == DI_STORED_F32 ? f->f32 : f->bf16, bytes);
    } else {
        t.scale_block[0] = p->storage == DI_STORED_FP8 ? 32 : 1;
        t.scale_block[1] = 32;
        size_t rows =
            ((size_t)p->shape[0] + (size_t)t.scale_block[0] - 1) / (size_t)t.scale_block[0];
        size_t scales = rows * (size_t)p->shape[1] / 32;
        if (p->storage == DI_STORED_FP4) {
            fill_expert(f, p, &t, bytes, scales);
        } else {
            t.data = map_piece(f->codes, bytes);
            t.scale = map_piece(f->scales, scales);
        }
    }
    *p->slot = t;
    return true;
}

/* The released configuration with n-gram tables of about 24 x 40,000 rows. */
static void read_config(void) {
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
        give_up("run it in the project's folder");
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *out = fopen(path, "w");
    const char *at = text;
    for (int i = 0; out && i < 2; i++) {
        const char *found = strstr(at, swaps[i].from);
        if (i == 0 && found > strstr(at, swaps[1].from)) {
            give_up("tools/flash-config.json has another order");
        }
        if (!found) {
            give_up("tools/flash-config.json is another one");
        }
        fprintf(out, "%.*s%s", (int)(found - at), at, swaps[i].to);
        at = found + strlen(swaps[i].from);
    }
    if (!out || fputs(at, out) < 0 || fclose(out) != 0) {
        give_up("cannot write to /tmp");
    }
    bool ok = di_config_read(&weights.config, folder, &err);
    unlink(path);
    rmdir(folder);
    di_free(text);
    if (!ok) {
        give_up(err.message);
    }
}

static void make_weights(void) {
    di_error err;
    read_config();
    const di_config *c = &weights.config;
    size_t expert = 3 * (size_t)c->moe_intermediate_size * (size_t)c->hidden_size;
    size_t experts = (size_t)c->n_routed_experts;
    filler f = {
        .codes = make_piece("codes", (expert / 2 + 4096) * experts, random_codes),
        .scales = make_piece("scales", (expert / 32 + 4096) * experts, random_scales),
        .bf16 = make_piece("bf16", (size_t)3 << 29, random_bf16),
        .f32 = make_piece("f32", (size_t)16 << 20, random_f32),
        .layer = -1,
    };
    for (int l = 0; l < expert_layers; l++) {
        f.expert_codes[l] = mmap(NULL, f.codes.bytes, PROT_READ, MAP_SHARED, f.codes.file, 0);
        f.expert_scales[l] = mmap(NULL, f.scales.bytes, PROT_READ, MAP_SHARED, f.scales.file, 0);
        if (f.expert_codes[l] == MAP_FAILED || f.expert_scales[l] == MAP_FAILED) {
            give_up("no address space for experts");
        }
    }
    if (!di_weights_allocate(&weights, false, &err) ||
        !di_inventory_walk(&weights, fill_parameter, &f)) {
        give_up("no memory for the list of weights");
    }
}

/* ---- what a step must read --------------------------------------------------------------------*/

static bool add_bytes(void *context, const di_parameter *p) {
    double *bytes = context;
    double values = (double)p->shape[0] * (double)(p->rank > 1 ? p->shape[1] : 1);
    if (p->part != DI_PART_EXPERTS && p->part != DI_PART_ENGRAM_TABLES &&
        p->part != DI_PART_EMBED_HEAD) {
        *bytes += values * (double)di_dtype_bits(p->slot->dtype) / 8;
    }
    return true;
}

/* Weights outside the experts once, the experts that n rows are expected to touch, and of each
 * sequence's state the window, the selected entries and the index keys. */
static double bytes_of_step(int n, int64_t context) {
    const di_config *c = &weights.config;
    double dense = 0, experts = c->n_routed_experts, touched, state_bytes = 0;
    di_inventory_walk(&weights, add_bytes, &dense);
    double miss = 1 - (double)c->num_experts_per_tok / experts, none = 1;
    for (int i = 0; i < n; i++) {
        none *= miss;
    }
    touched = experts * (1 - none);
    double expert = 3.0 * c->moe_intermediate_size * c->hidden_size * (0.5 + 1.0 / 32);
    const di_state_layout *layout = di_cache_pool(cache)->layout;
    for (int l = 0; l < c->num_hidden_layers; l++) {
        int ratio = c->layers[l].ratio;
        state_bytes += (double)c->sliding_window * (double)layout->window_bytes;
        if (ratio > 0) {
            state_bytes += (double)c->index_topk * (double)layout->latent_bytes;
        }
        if (ratio > 0 && c->layers[l].index_source == l) {
            double entries = (double)context / ratio;
            bool few = l > c->candidate_source_layer_id; /* looks at candidates only */
            double most = (double)c->candidate_topk_blocks * c->candidate_block_size;
            state_bytes += (few && entries > most ? most : entries) * (double)layout->key_bytes;
        }
    }
    return dense + touched * expert * c->num_hidden_layers + n * state_bytes;
}

/* ---- sequences --------------------------------------------------------------------------------*/

/* Random ones. Sequences have their contexts in common, but go on with other tokens each, so that
 * they touch other experts. */
static int32_t *tokens;

static void check(bool ok, const di_error *err) {
    if (!ok) {
        give_up(err->message);
    }
}

/* The first sequence's first n tokens in chunks; seconds of the whole. */
static double prefill(di_seq *seq, int64_t n) {
    di_error err;
    double start = di_now();
    check(di_seq_reserve(cache, seq, n, &err), &err);
    while (seq->len < n) {
        int count = n - seq->len < CHUNK ? (int)(n - seq->len) : CHUNK;
        di_model_rows rows = di_model_next_rows(seq, tokens, count);
        check(di_model_forward(model, &rows, 1, NULL, &err), &err);
        seq->len += count;
    }
    return di_now() - start;
}

/* Another sequence with the same state in memory of its own. */
static void copy_sequence(di_seq *to, const di_seq *from) {
    di_error err;
    const di_state_pool *pool = di_cache_pool(cache);
    size_t block = pool->layout->block_stride, slot = pool->layout->slot_stride;
    check(di_seq_open(cache, to, (di_hash){0}, &err), &err);
    check(di_seq_reserve(cache, to, from->len + 4096, &err), &err);
    for (int i = 0; i < from->num_blocks && i < to->num_blocks; i++) {
        be->ops->copy(be, pool->blocks + (size_t)to->blocks[i] * block,
                      pool->blocks + (size_t)from->blocks[i] * block, block);
    }
    be->ops->copy(be, pool->slots + (size_t)to->slot * slot,
                  pool->slots + (size_t)from->slot * slot, slot);
    to->len = from->len;
}

/* Seconds of a step in which each of n sequences gets a token, on average over STEPS of them that
 * are queued one behind the other. */
static double decode_steps(di_seq *seqs, int n) {
    static di_model_rows rows[MAX_BATCH];
    const di_queue_ops *queue = be->ops->queue;
    di_error err;
    double begin, end;
    queue->begin(be, 0);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < n; i++) {
            rows[i] = di_model_next_rows(&seqs[i], tokens + (ptrdiff_t)i * 64, 1);
            rows[i].num_logits = 1;
        }
        check(di_model_queue(model, rows, n, NULL, NULL, &err), &err);
        for (int i = 0; i < n; i++) {
            seqs[i].len++;
        }
    }
    queue->end(be, 0);
    check(queue->wait(be, 0, &begin, &end, &err), &err);
    return (end - begin) / STEPS;
}

/* Seconds of the head's product of n rows. */
static double head_alone(int n) {
    const di_queue_ops *queue = be->ops->queue;
    di_error err;
    double begin, end, best = 1;
    di_bf16 *x = be->ops->alloc(be, (size_t)n * (size_t)weights.config.hidden_size * sizeof *x);
    for (int run = 0; x && run < RUNS; run++) {
        queue->begin(be, 0);
        for (int i = 0; i < STEPS; i++) {
            be->ops->linear_f32(be, x, n, &weights.head, (float *)di_model_logits(model));
        }
        queue->end(be, 0);
        check(queue->wait(be, 0, &begin, &end, &err), &err);
        best = (end - begin) / STEPS < best ? (end - begin) / STEPS : best;
    }
    be->ops->free(be, x);
    return best;
}

static void decode(di_seq *seqs, int n, int64_t context) {
    double layers = weights.config.num_hidden_layers, took = 1, head = head_alone(n);
    for (int run = 0; run <= RUNS; run++) { /* the first one records */
        double seconds = decode_steps(seqs, n);
        took = run > 0 && seconds < took ? seconds : took;
    }
    double floor = bytes_of_step(n, context) / bandwidth;
    double head_floor = 2.0 * weights.config.vocab_size * weights.config.hidden_size / bandwidth;
    printf("decode, batch %3d, context %6lld   %8.2f ms a step, %5.1f %% of the floor's speed   "
           "head %5.2f ms   a layer %7.1f us, floor %7.1f us   %5.1f %%\n",
           n, (long long)context, took * 1e3, 100 * (floor + head_floor) / took, head * 1e3,
           (took - head) * 1e6 / layers, floor * 1e6 / layers, 100 * floor / (took - head));
    fflush(stdout);
}

/* ---- the run ----------------------------------------------------------------------------------*/

static void measure_bandwidth(void) {
    size_t bytes = (size_t)4 << 30;
    void *buffer = be->ops->alloc(be, bytes);
    di_error err;
    if (!buffer) {
        give_up("the card has no memory left");
    }
    for (int i = 0; i < 8; i++) {
        double start = di_now();
        di_cuda_read_all(be, buffer, bytes);
        check(be->ops->sync(be, &err), &err);
        double rate = (double)bytes / (di_now() - start);
        bandwidth = rate > bandwidth ? rate : bandwidth;
    }
    be->ops->free(be, buffer);
    printf("reading memory: %.0f GB/s\n", bandwidth * 1e-9);
}

static void open_model(int64_t longest) {
    di_error err;
    int64_t blocks = MAX_BATCH * di_blocks_for(longest + 4096 + 128);
    di_cache_options co = {
        .num_blocks = (int)blocks, .num_slots = MAX_BATCH + 1, .max_backtracking = 6};
    cache = di_cache_create(&weights.config, be, &co, &err);
    check(cache != NULL, &err);
    int32_t *map = di_calloc((size_t)weights.config.vocab_size, sizeof *map);
    for (int i = 0; map && i < weights.config.vocab_size; i++) {
        map[i] = i % weights.config.engram_compressed_vocab_size;
    }
    di_model_options mo = {.max_rows = CHUNK, .max_logits = MAX_BATCH, .token_map = map};
    model = map ? di_model_create(&weights, be, cache, &mo, &err) : NULL;
    check(model != NULL, &err);
    di_free(map);
    int64_t count = longest + 4096 + 64 * MAX_BATCH;
    tokens = di_calloc((size_t)count, sizeof *tokens);
    for (int64_t i = 0; tokens && i < count; i++) {
        tokens[i] = (int32_t)(next_random() % (uint64_t)weights.config.vocab_size);
    }
    printf("state of %d sequences: %.1f GiB; 40 layers, experts of %d of them\n", MAX_BATCH,
           (double)di_cache_bytes(&weights.config, &co) / (1 << 30), expert_layers);
    fflush(stdout);
}

/* Layers share experts, so the card's memory is not asked for all of them at once. */
static void reserve_nothing(di_backend *unused, size_t bytes) {
    (void)unused;
    (void)bytes;
}

static void reserve_as_needed(void) {
    static di_ops ops;
    static di_queue_ops queue;
    ops = *be->ops;
    queue = *ops.queue;
    queue.reserve = reserve_nothing;
    ops.queue = &queue;
    be->ops = &ops;
}

/* Everything on the card, and steps recorded. */
static void load(void) {
    di_seq seq = {0};
    di_error err;
    bool recorded = false;
    double start = di_now();
    check(di_model_load(model, true, NULL, NULL, &err), &err);
    double loaded = di_now();
    check(di_model_prepare(model, MAX_BATCH, &recorded, NULL, NULL, &err), &err);
    printf("weights loaded   %.1f s; steps %srecorded   %.1f s\n", loaded - start,
           recorded ? "" : "NOT ", di_now() - loaded);
    check(di_seq_open(cache, &seq, (di_hash){0}, &err), &err);
    prefill(&seq, CHUNK); /* takes scratch memory */
    di_seq_close(cache, &seq);
    fflush(stdout);
}

static void run_context(int64_t context) {
    static di_seq seqs[MAX_BATCH];
    static const int batches[] = {1, 8, 64, 256};
    di_error err;
    int have = 1;
    memset(seqs, 0, sizeof seqs);
    check(di_seq_open(cache, &seqs[0], (di_hash){0}, &err), &err);
    double took = prefill(&seqs[0], context);
    printf("prefill of %lld tokens, chunks of %d   %9.1f tokens/s (%.2f s)\n", (long long)context,
           CHUNK, (double)context / took, took);
    check(di_seq_reserve(cache, &seqs[0], context + 4096, &err), &err);
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        int batch = only_batch ? only_batch : batches[b];
        for (; have < batch; have++) {
            copy_sequence(&seqs[have], &seqs[0]);
        }
        decode(seqs, batch, context);
        if (only_batch) {
            break;
        }
    }
    for (int i = 0; i < have; i++) {
        di_seq_close(cache, &seqs[i]);
    }
}

int main(int argc, char **argv) {
    int64_t contexts[8], longest = 0;
    int count = 0;
    di_error err;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--expert-layers") == 0 && i + 1 < argc) {
            expert_layers = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc) {
            only_batch = atoi(argv[++i]);
        } else if (count < 8) {
            contexts[count++] = atoll(argv[i]);
        }
    }
    if (count == 0) {
        contexts[count++] = 8192;
        contexts[count++] = 131072;
    }
    for (int i = 0; i < count; i++) {
        longest = contexts[i] > longest ? contexts[i] : longest;
        if (contexts[i] < 1 || contexts[i] > 1000000) {
            give_up("contexts are 1 to 1000000 tokens");
        }
    }
    if (expert_layers < 1 || expert_layers > 40) {
        give_up("--expert-layers takes 1 to 40");
    }
    if (only_batch < 0 || only_batch > MAX_BATCH) {
        give_up("--batch takes 1 to 256");
    }
    be = di_cuda_create(0, &err);
    if (!be) {
        printf("no card: %s\n", err.message);
        return 0;
    }
    reserve_as_needed();
    measure_bandwidth();
    make_weights();
    open_model(longest > CHUNK ? longest : CHUNK);
    load();
    for (int i = 0; i < count; i++) {
        run_context(contexts[i]);
    }
    printf("memory taken on the card   %.1f GiB\n", (double)di_cuda_bytes(be) / (1 << 30));
    di_model_destroy(model);
    di_cache_destroy(cache);
    di_weights_release(&weights);
    be->ops->destroy(be);
    return 0;
}
