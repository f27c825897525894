/* A model folder opened: see parts.h. Order matters only in that each room needs those below it. */
#include "engine/parts.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cpuinfo.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/layout.h"
#include "engine/plan.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/ref/ref.h"
#include "ops/timed.h"
#include "text/token_map.h"
#include "weights/checkpoint.h"

enum { OPEN_STEPS = DI_OPEN_STEPS, MIN_BACKTRACKING = 6 };

/* ---- backend and tokenizer --------------------------------------------------------------------*/

bool di_parts_backend_known(const char *name) {
    int device;
    return !name || strcmp(name, "cpu") == 0 || strcmp(name, "ref") == 0 ||
           strcmp(name, "auto") == 0 || di_cuda_parse(name, &device);
}

static bool open_card(di_parts *e, int device, const di_parts_options *o, di_error *err) {
    e->backend = di_cuda_create(device, err);
    if (e->backend) {
        char cards[sizeof e->device - 64];
        di_cuda_free_order(e->backend, o->free_order);
        e->batch_invariant = !o->free_order;
        di_cuda_describe(cards, sizeof cards);
        snprintf(e->device, sizeof e->device, "cuda:%d%s of %s", device,
                 o->free_order ? " with sums in any order" : "", cards);
    }
    return e->backend != NULL;
}

static bool open_processor(di_parts *e, const di_parts_options *o, di_error *err) {
    char features[256];
    int cores = di_cpu_count();
    di_cpu_feature_list(features, sizeof features);
    snprintf(e->device, sizeof e->device, "cpu with %d threads on %d cores, %s",
             o->threads > 0 ? o->threads : cores, cores, features);
    e->batch_invariant = true;
    e->backend = di_cpu_create(&(di_cpu_options){.threads = o->threads}, err);
    return e->backend != NULL;
}

static bool takes_any(const di_parts_options *o) {
    return o->backend && strcmp(o->backend, "auto") == 0;
}

static void tell_why(const di_error *why) {
    di_log(DI_LOG_WARN, "using the CPU: %s", why->message);
}

/* "auto" takes the first card, and without one the CPU, telling why. */
static bool make_backend(di_parts *e, const di_parts_options *o, di_error *err) {
    const char *name = o->backend ? o->backend : "cpu";
    int device = 0;
    if (strcmp(name, "ref") == 0) {
        snprintf(e->device, sizeof e->device, "ref");
        e->batch_invariant = true;
        e->backend = di_ref_create(err);
        return e->backend != NULL;
    }
    if (di_cuda_parse(name, &device)) {
        return open_card(e, device, o, err);
    }
    if (takes_any(o)) {
        di_error why;
        if (open_card(e, 0, o, &why)) {
            return true;
        }
        tell_why(&why);
    }
    return open_processor(e, o, err);
}

static bool open_backend(di_parts *e, const di_parts_options *o, di_error *err) {
    if (make_backend(e, o, err) && o->time_ops) {
        di_backend *timed = di_timed_create(e->backend, err);
        if (!timed) {
            return false;
        }
        e->backend = timed;
        e->time_ops = true;
    }
    return e->backend != NULL;
}

void di_parts_print_times(const di_parts *p, FILE *out) {
    if (p->time_ops) {
        di_timed_print(p->backend, out);
    }
}

/* Prompts are laid out with the tokenizer's control tokens, answers end at the configuration's. */
static bool check_tokens(const di_parts *e, di_error *err) {
    const di_config *c = &e->weights->config;
    if (e->chat.eos != c->eos_token_id || e->chat.bos != c->bos_token_id) {
        return di_fail(err, DI_ERR_FORMAT,
                       "begin and end of sentence are %d and %d, config.json's bos_token_id and "
                       "eos_token_id are %d and %d",
                       e->chat.bos, e->chat.eos, c->bos_token_id, c->eos_token_id);
    }
    if (di_tokenizer_vocab_size(e->tokenizer) > c->vocab_size) {
        return di_fail(err, DI_ERR_FORMAT, "its highest id is %d, config.json's vocab_size is %d",
                       di_tokenizer_vocab_size(e->tokenizer) - 1, c->vocab_size);
    }
    return true;
}

/* Checkpoints made for tests have no tokenizer; then ids are all there is. */
static bool open_tokenizer(di_parts *e, const char *folder, di_error *err) {
    char *path = di_path_join(folder, "tokenizer.json");
    if (!path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for a path", folder);
    }
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        di_log(DI_LOG_WARN,
               "%s is missing: token ids only, and n-gram tables as in checkpoints for tests",
               path);
        di_free(path);
        return true;
    }
    e->tokenizer = di_tokenizer_open(path, err);
    bool ok = e->tokenizer != NULL;
    if (ok && (!di_chat_tokens_find(&e->chat, e->tokenizer, err) || !check_tokens(e, err))) {
        ok = di_fail_prefix(err, "%s", path);
    }
    di_free(path);
    return ok;
}

/* token id -> compressed id, [vocab_size], or NULL with *err. */
static int32_t *make_token_map(const di_parts *e, di_error *err) {
    const di_config *c = &e->weights->config;
    int32_t *map = di_alloc((size_t)c->vocab_size * sizeof *map);
    if (!map) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the token map");
        return NULL;
    }
    int32_t wanted = c->engram_compressed_vocab_size, classes = wanted;
    bool ok = true;
    if (!e->tokenizer) {
        di_token_map_synthetic(c->vocab_size, wanted, map);
    } else if (c->num_engram_layers > 0) {
        ok = di_token_map_build(e->tokenizer, c->vocab_size, map, &classes, err) ||
             di_fail_prefix(err, "tokenizer.json");
    } else {
        memset(map, 0, (size_t)c->vocab_size * sizeof *map); /* nobody reads it */
    }
    if (ok && classes != wanted) {
        ok = di_fail(err, DI_ERR_FORMAT,
                     "tokenizer.json gives %d compressed ids, config.json's "
                     "engram_compressed_vocab_size is %d",
                     classes, wanted);
    }
    if (!ok) {
        di_free(map);
        map = NULL;
    }
    return map;
}

/* ---- sizes ------------------------------------------------------------------------------------*/

static bool decide_drafts(di_parts *e, const di_parts_options *o, di_error *err) {
    int block = e->weights->draft ? e->weights->config.dspark_block_size : 0;
    bool fits = block > 0 && o->max_rows >= block;
    e->drafts = o->drafts == DI_DRAFTS_ON || (o->drafts == DI_DRAFTS_IF_ANY && fits);
    if (e->drafts && block == 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "%s has no draft model (mtp.* tensors)", o->model);
    }
    if (e->drafts && !fits) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "max_num_batched_tokens is %d, less than a block of %d drafts "
                       "(dspark_block_size)",
                       o->max_rows, block);
    }
    if (o->drafts == DI_DRAFTS_IF_ANY && block == 0) {
        di_log(DI_LOG_WARN, "no drafts: %s has no draft model (mtp.* tensors)", o->model);
    } else if (o->drafts == DI_DRAFTS_IF_ANY && !fits) {
        di_log(DI_LOG_WARN, "no drafts: max_num_batched_tokens is %d, less than a block of %d",
               o->max_rows, block);
    }
    return true;
}

static bool set_context(di_parts *e, const di_parts_options *o, di_error *err) {
    int64_t most = e->weights->config.max_position_embeddings;
    if (o->max_model_len > most) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "max_model_len is %lld, the model's max_position_embeddings is %lld",
                       (long long)o->max_model_len, (long long)most);
    }
    e->max_model_len = o->max_model_len ? o->max_model_len : most;
    return true;
}

/* A block of drafts may have to be taken back, and snapshots behind a border are still good when
 * the answer has passed it by a block and has another written (sched.h). */
static int backtracking(const di_parts *e) {
    int block = e->drafts ? 2 * e->weights->config.dspark_block_size + 1 : 0;
    return block > MIN_BACKTRACKING ? block : MIN_BACKTRACKING;
}

static int draft_layers(const di_parts *e) {
    return e->drafts ? e->weights->config.num_nextn_predict_layers : 0;
}

void di_parts_layout(const di_parts *e, di_state_layout *l) {
    di_state_layout_fill(l, &e->weights->config, DI_BLOCK_TOKENS, backtracking(e), draft_layers(e));
}

di_cache_options di_parts_least_cache(const di_parts *e) {
    return (di_cache_options){
        .num_blocks = 1,
        .num_slots = 1,
        .max_backtracking = backtracking(e),
        .draft_layers = draft_layers(e),
    };
}

bool di_parts_size_cache(di_parts *e, const di_parts_options *o, size_t budget, bool capped,
                         di_cache_options *c, di_error *err) {
    di_state_layout l;
    di_parts_layout(e, &l);
    size_t slots = (size_t)o->max_num_seqs * l.slot_stride;
    size_t most = (size_t)di_blocks_for(e->max_model_len) * (size_t)o->max_num_seqs;
    size_t least = slots + (l.slot_stride + l.block_stride) * 2;
    if (budget < least) {
        return di_fail(err, DI_ERR_NO_MEMORY,
                       "kv_memory is %zu bytes, at least %zu are needed (max_num_seqs is %d)",
                       budget, least, o->max_num_seqs);
    }
    size_t snapshots = o->no_prefix_cache ? 0 : (budget - slots) / 8 / l.slot_stride + 1;
    size_t cap = (size_t)o->max_num_seqs * 4 + 16;
    snapshots = snapshots < cap ? snapshots : cap;
    snapshots = o->no_prefix_cache ? 0 : snapshots;
    size_t blocks = (budget - slots - snapshots * l.slot_stride) / l.block_stride;
    blocks = !capped || blocks < most ? blocks : most;
    *c = di_parts_least_cache(e);
    c->num_blocks = (int)(blocks < DI_CACHE_MOST ? blocks : DI_CACHE_MOST);
    c->num_slots = o->max_num_seqs;
    c->num_snapshots = (int)snapshots;
    e->num_blocks = c->num_blocks;
    e->num_slots = c->num_slots;
    e->num_snapshots = c->num_snapshots;
    return true;
}

/* The cache, of the budget's size; on a card the smallest one, until plan.c knows what is left. */
static bool open_cache(di_parts *e, const di_parts_options *o, di_error *err) {
    di_cache_options cache = di_parts_least_cache(e);
    size_t budget = o->kv_memory > 0 ? (size_t)o->kv_memory : di_memory_available() / 4;
    bool ok =
        e->backend->ops->queue || di_parts_size_cache(e, o, budget, o->kv_memory == 0, &cache, err);
    e->cache = ok ? di_cache_create(&e->weights->config, e->backend, &cache, err) : NULL;
    return e->cache != NULL;
}

/* On the backend that there is. */
static bool make_model(di_parts *e, const di_parts_options *o, const int32_t *map, di_error *err) {
    di_plan_start start;
    di_model_options model = {
        .max_rows = o->max_rows,
        .max_logits = o->max_logits,
        .token_map = map,
        .replay_by_mask = o->replay_by_mask,
        .drafts = e->drafts,
        .max_draft_seqs = o->max_num_seqs,
    };
    e->weight_bytes = e->weights->checkpoint->total_bytes;
    e->work_bytes = di_model_activation_bytes(&e->weights->config, &model);
    di_plan_begin(e, o, &start);
    bool ok = open_cache(e, o, err);
    e->model = ok ? di_model_create(e->weights, e->backend, e->cache, &model, err) : NULL;
    ok = e->model && (!e->backend->ops->queue || di_plan_card(e, o, &start, err));
    return ok || di_plan_failed(e, err);
}

static void close_model(di_parts *e) {
    di_model_destroy(e->model);
    di_cache_destroy(e->cache);
    if (e->backend) {
        e->backend->ops->destroy(e->backend);
    }
    e->model = NULL;
    e->cache = NULL;
    e->backend = NULL;
}

/* "auto" takes the CPU too where the card has not the memory for this model. */
static bool open_model(di_parts *e, const di_parts_options *o, di_error *err) {
    int32_t *map = make_token_map(e, err);
    if (!map) {
        return false;
    }
    bool ok = make_model(e, o, map, err);
    if (!ok && err->code == DI_ERR_NO_MEMORY && e->backend->ops->queue && takes_any(o)) {
        tell_why(err);
        close_model(e);
        ok = open_processor(e, o, err) && make_model(e, o, map, err);
    }
    di_free(map);
    return ok;
}

/* ---- all of it --------------------------------------------------------------------------------*/

static bool open_step(di_parts *e, const di_parts_options *o, int step, di_error *err) {
    switch (step) {
    case 0:
        e->weights = di_weights_open(o->model, err);
        return e->weights && decide_drafts(e, o, err) && set_context(e, o, err);
    case 1:
        return open_tokenizer(e, o->model, err);
    case 2:
        return open_backend(e, o, err);
    default:
        return open_model(e, o, err);
    }
}

bool di_parts_open(di_parts *e, const di_parts_options *o, di_error *err) {
    *e = (di_parts){0};
    int total = OPEN_STEPS + di_plan_progress_steps(o->backend);
    for (int step = 0; step < OPEN_STEPS; step++) {
        if (o->progress) {
            o->progress(o->user, step, total);
        }
        if (!open_step(e, o, step, err)) {
            di_parts_close(e);
            return false;
        }
    }
    if (o->progress) {
        o->progress(o->user, total, total);
    }
    return true;
}

void di_parts_close(di_parts *e) {
    close_model(e);
    di_tokenizer_close(e->tokenizer);
    di_weights_close(e->weights);
    *e = (di_parts){0};
}
