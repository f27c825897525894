/* The engine: opens the parts, starts the device's thread and the step thread on them, and is what
 * callers talk to. Called through deepinfer.h. Holds no policy: that is sched/, loop.c and
 * request.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/version.h"
#include "engine/chat_tokens.h"
#include "engine/internal.h"
#include "engine/plan.h"
#include "engine/request.h"

enum {
    DEFAULT_BATCHED_TOKENS = 512,
    MAX_BATCHED_TOKENS = 65536,
    DEFAULT_MIXED_TOKENS = 256,
    DEFAULT_NUM_SEQS = 64,
    MAX_NUM_SEQS = 4096,
    DEFAULT_LOGPROBS = 20,
    PROMPT_LOGIT_ROWS = 64, /* rows of logits a step beside those that sample */
    SNAPSHOT_INTERVAL = 2048,
    SEQUENCES_BACKTRACK = 6,
    GRAMMAR_BYTES = 512 << 20, /* of compiled grammars that are kept */
    DEFAULT_DRAFTS = 5,
    DEFAULT_COST_CACHE_SECONDS = 3600,
};

int di_api_version(void) {
    return DI_API_VERSION;
}

const char *di_version(void) {
    return di_version_string();
}

/* ---- options ----------------------------------------------------------------------------------*/

void di_engine_options_init(di_engine_options *options, size_t struct_bytes) {
    di_engine_options ours = {
        .struct_bytes = struct_bytes,
        .max_num_batched_tokens = DEFAULT_BATCHED_TOKENS,
        .max_num_seqs = DEFAULT_NUM_SEQS,
        .max_logprobs = DEFAULT_LOGPROBS,
    };
    memset(options, 0, struct_bytes);
    memcpy(options, &ours, struct_bytes < sizeof ours ? struct_bytes : sizeof ours);
}

static bool in_range(const char *name, int64_t value, int64_t low, int64_t high, di_error *err) {
    return (value >= low && value <= high) ||
           di_fail(err, DI_ERR_ARGUMENT, "%s is %lld, allowed are %lld to %lld", name,
                   (long long)value, (long long)low, (long long)high);
}

static bool check_share(const di_engine_options *o, di_error *err) {
    return (o->gpu_memory_share >= 0 && o->gpu_memory_share <= 1) ||
           di_fail(err, DI_ERR_ARGUMENT, "gpu_memory_share is %g, allowed are 0 to 1",
                   o->gpu_memory_share);
}

static bool check_options(const di_engine_options *o, di_error *err) {
    if (!o->model || !*o->model) {
        return di_fail(err, DI_ERR_ARGUMENT, "model is empty, a folder is needed");
    }
    if (!di_parts_backend_known(o->backend)) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "backend is '%s', allowed are cpu, cuda, cuda:N, auto and ref", o->backend);
    }
    /* threads: the backend knows its limits */
    return in_range("max_num_batched_tokens", o->max_num_batched_tokens, 1, MAX_BATCHED_TOKENS,
                    err) &&
           in_range("max_model_len", o->max_model_len, 0, INT32_MAX, err) &&
           in_range("max_num_seqs", o->max_num_seqs, 1, MAX_NUM_SEQS, err) &&
           in_range("max_mixed_prefill_tokens", o->max_mixed_prefill_tokens, 0, MAX_BATCHED_TOKENS,
                    err) &&
           in_range("num_drafts", o->num_drafts, -1, DI_MAX_DRAFTS, err) &&
           in_range("spec_mode", o->spec_mode, DI_SPEC_PRICED, DI_SPEC_OFF, err) &&
           in_range("cost_cache_seconds", o->cost_cache_seconds, 0, INT32_MAX, err) &&
           in_range("max_queue", o->max_queue, 0, INT32_MAX, err) &&
           in_range("max_logprobs", o->max_logprobs, 0, DI_MAX_LOGPROBS, err) &&
           in_range("kv_memory", o->kv_memory, 0, INT64_MAX, err) &&
           in_range("host_memory", o->host_memory, 0, INT64_MAX, err) &&
           in_range("gpu_memory", o->gpu_memory, 0, INT64_MAX, err) && check_share(o, err) &&
           in_range("replay_mode", o->replay_mode, DI_REPLAY_OFF, DI_REPLAY_COMPACT, err);
}

/* The kept rows must fill every window that decoding can look back on. */
static bool set_replay(di_engine *e, const di_engine_options *o, di_error *err) {
    const di_config *c = &e->parts.weights->config;
    int64_t least = c->sliding_window + SEQUENCES_BACKTRACK;
    e->replay_mode = o->replay_mode;
    e->replay_keep = o->replay_keep_tokens;
    if (o->replay_mode == DI_REPLAY_OFF) {
        return true;
    }
    if (c->boundary_layer >= c->num_hidden_layers) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "replay_mode: the model has no decoder half to replay");
    }
    return in_range("replay_keep_tokens", o->replay_keep_tokens, least, INT32_MAX, err);
}

/* Fewer drafts than a block are its first ones. */
static bool set_drafts(di_engine *e, const di_engine_options *o, di_error *err) {
    int block = e->parts.weights->config.dspark_block_size;
    e->num_drafts = !e->parts.drafts ? 0 : o->num_drafts >= 0 ? o->num_drafts : DEFAULT_DRAFTS;
    if (o->num_drafts < 0) {
        e->num_drafts = e->num_drafts < block ? e->num_drafts : block;
    }
    e->max_masks = 1 + e->num_drafts;
    e->sched_options.max_drafts = e->num_drafts;
    return e->num_drafts == 0 || in_range("num_drafts", e->num_drafts, 0, block, err);
}

static int most_drafts(const di_engine_options *o) {
    return o->spec_mode == DI_SPEC_OFF ? 0 : o->num_drafts >= 0 ? o->num_drafts : DEFAULT_DRAFTS;
}

static void set_sched_options(di_engine *e, const di_engine_options *o) {
    int batched = o->max_num_batched_tokens;
    int seqs = o->max_num_seqs < batched ? o->max_num_seqs : batched; /* each needs a row */
    int mixed = o->max_mixed_prefill_tokens ? o->max_mixed_prefill_tokens : DEFAULT_MIXED_TOKENS;
    e->sched_options = (di_sched_options){
        .max_num_seqs = seqs,
        .max_num_batched_tokens = batched,
        .max_mixed_prefill_tokens = mixed,
        .max_logits = seqs * (1 + most_drafts(o)) + PROMPT_LOGIT_ROWS,
        .snapshot_interval = SNAPSHOT_INTERVAL,
        .host_bytes = (size_t)o->host_memory,
    };
}

/* ---- opening and closing ----------------------------------------------------------------------*/

static bool open_parts(di_engine *e, const di_engine_options *o, di_error *err) {
    di_parts_options p = {
        .model = o->model,
        .backend = o->backend,
        .threads = o->threads,
        .max_model_len = o->max_model_len,
        .max_num_seqs = e->sched_options.max_num_seqs,
        .max_rows = e->sched_options.max_num_batched_tokens,
        .max_logits = e->sched_options.max_logits,
        .most_drafts = most_drafts(o),
        .kv_memory = o->kv_memory,
        .gpu_memory = o->gpu_memory,
        .gpu_memory_share = o->gpu_memory_share,
        .queue_steps = true,
        .free_order = o->no_batch_invariance,
        .no_prefix_cache = o->no_prefix_cache,
        .replay_by_mask = o->replay_mode == DI_REPLAY_MASK,
        .time_ops = o->time_ops,
        .drafts = most_drafts(o) == 0 ? DI_DRAFTS_OFF
                  : o->num_drafts < 0 ? DI_DRAFTS_IF_ANY
                                      : DI_DRAFTS_ON,
        .progress = o->progress,
        .user = o->user,
    };
    return di_parts_open(&e->parts, &p, err) && set_drafts(e, o, err) && set_replay(e, o, err) &&
           di_defaults_read(&e->defaults, o->model, err);
}

/* What moving state costs, before any has been moved: one slot, there and back, the quicker of two
 * times, for the first touches its memory. */
static bool time_moves(di_engine *e, di_error *err) {
    di_backend *be = e->parts.backend;
    const di_state_pool *pool = di_cache_pool(e->parts.cache);
    size_t bytes = pool->layout->slot_stride;
    void *host = di_alloc(bytes);
    if (!host) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to time moves of state");
    }
    for (int i = 0; i < 2; i++) {
        double begin = di_now();
        be->ops->download(be, host, pool->slots, bytes);
        be->ops->upload(be, pool->slots, host, bytes);
        double each = (di_now() - begin) / 2 / (double)bytes;
        e->costs.byte_seconds =
            i == 0 || each < e->costs.byte_seconds ? each : e->costs.byte_seconds;
    }
    di_free(host);
    return true;
}

/* Called by a thread that compiles: requests may be waiting for it. */
static void note_compiled(void *engine) {
    di_engine *e = engine;
    pthread_mutex_lock(&e->lock);
    e->compiled = true;
    pthread_cond_broadcast(&e->called);
    pthread_mutex_unlock(&e->lock);
}

static bool open_grammars(di_engine *e, di_error *err) {
    di_grammars_options o = {
        .tokenizer = e->parts.tokenizer,
        .num_bits = e->parts.weights->config.vocab_size,
        .stop = e->parts.weights->config.eos_token_id,
        .max_bytes = GRAMMAR_BYTES,
        .ready = note_compiled,
        .user = e,
    };
    return !o.tokenizer || (e->grammars = di_grammars_create(&o, err)) != NULL;
}

static bool open_pricer(di_engine *e, const di_engine_options *o, di_error *err) {
    int ttl = o->cost_cache_seconds > 0 ? o->cost_cache_seconds : DEFAULT_COST_CACHE_SECONDS;
    di_curve_request r = {
        .model = o->model,
        .device = e->parts.device,
        .time_ops = o->time_ops,
        .max_num_seqs = e->sched_options.max_num_seqs,
        .max_rows = e->sched_options.max_num_batched_tokens,
        .max_logits = e->sched_options.max_logits,
        .num_drafts = e->num_drafts,
        .cache = o->cost_cache && *o->cost_cache ? o->cost_cache : NULL,
        .ttl = ttl,
    };
    return e->num_drafts == 0 || di_spec_open(&e->pricer, &e->parts, o, &r, err);
}

static bool open_sched(di_engine *e, di_error *err) {
    e->sched = di_sched_create(&e->sched_options, e->parts.cache, err);
    if (e->sched && e->num_drafts > 0) {
        di_sched_set_pricer(e->sched, &e->pricer);
    }
    return e->sched != NULL;
}

static bool start(di_engine *e, const di_engine_options *o, di_error *err) {
    di_device_options d = {
        .cache = e->parts.cache,
        .model = e->parts.model,
        .backend = e->parts.backend,
        .vocab_size = e->parts.weights->config.vocab_size,
        .max_logits = e->sched_options.max_logits,
        .threads = o->threads,
        .num_drafts = e->num_drafts,
        .block_size = e->parts.weights->config.dspark_block_size,
        .queues_steps = e->parts.queues_steps,
        .max_num_seqs = e->sched_options.max_num_seqs,
        .max_logprobs = o->max_logprobs,
    };
    e->costs.token_seconds = 1e-3; /* until the first prompt has been computed */
    if (!time_moves(e, err) || !open_pricer(e, o, err) ||
        !di_work_create(&e->works[0], &e->sched_options, o->max_logprobs, e->num_drafts, err) ||
        !di_work_create(&e->works[1], &e->sched_options, o->max_logprobs, e->num_drafts, err) ||
        !open_sched(e, err) || (o->trace_file && !(e->trace = di_trace_open(o->trace_file, err))) ||
        !(e->device = di_device_create(&d, err))) {
        return di_plan_failed(&e->parts, err);
    }
    e->started = di_thread_start(&e->thread, di_engine_loop, e, "the step thread", err);
    return e->started;
}

di_engine *di_engine_open(const di_engine_options *options, di_error *err) {
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    if (!di_struct_read(&o, sizeof o, options, "di_engine_options", err) ||
        !check_options(&o, err)) {
        return NULL;
    }
    di_engine *e = di_calloc(1, sizeof *e);
    if (!e) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the engine");
        return NULL;
    }
    e->synchronous = o.synchronous;
    e->max_logprobs = o.max_logprobs;
    e->max_queue = o.max_queue;
    e->inbox_end = &e->inbox;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->called, &monotonic);
    pthread_condattr_destroy(&monotonic);
    set_sched_options(e, &o);
    if (!open_parts(e, &o, err) || !open_grammars(e, err) || !start(e, &o, err)) {
        di_engine_close(e);
        return NULL;
    }
    return e;
}

void di_engine_close(di_engine *e) {
    if (!e) {
        return;
    }
    if (e->started) {
        pthread_mutex_lock(&e->lock);
        e->closing = true;
        pthread_cond_broadcast(&e->called);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    di_device_destroy(e->device);
    di_error err;
    if (!di_trace_close(e->trace, &err)) {
        di_log(DI_LOG_WARN, "trace: %s", err.message);
    }
    di_sched_destroy(e->sched);
    di_pricer_destroy(&e->pricer);
    di_work_destroy(&e->works[0]);
    di_work_destroy(&e->works[1]);
    di_grammars_destroy(e->grammars);
    di_parts_close(&e->parts);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->called);
    di_free(e);
}

bool di_engine_usable(di_engine *e, di_error *err) {
    pthread_mutex_lock(&e->lock);
    bool lost = e->lost;
    di_error loss = e->loss;
    pthread_mutex_unlock(&e->lock);
    return !lost || di_fail(err, loss.code, "%s", loss.message);
}

void di_engine_get_info(const di_engine *e, di_engine_info *info) {
    const di_config *c = &e->parts.weights->config;
    const di_state_layout *l = di_cache_pool(e->parts.cache)->layout;
    di_engine_info ours = {
        .struct_bytes = info->struct_bytes,
        .vocab_size = c->vocab_size,
        .max_model_len = e->parts.max_model_len,
        .bos_token_id = c->bos_token_id,
        .eos_token_id = c->eos_token_id,
        .has_tokenizer = e->parts.tokenizer != NULL,
        .batch_invariant = e->parts.batch_invariant,
        .weight_bytes = (int64_t)e->parts.weight_bytes,
        .work_bytes = (int64_t)e->parts.work_bytes,
        .slot_bytes = (int64_t)l->slot_stride,
        .block_bytes = (int64_t)l->block_stride,
        .num_blocks = e->parts.num_blocks,
        .num_slots = e->parts.num_slots,
        .num_snapshots = e->parts.num_snapshots,
        .block_tokens = l->block_tokens,
    };
    ours.state_bytes = (1 + (int64_t)ours.num_slots + ours.num_snapshots) * ours.slot_bytes +
                       (1 + ours.num_blocks) * ours.block_bytes; /* numbers 0 are nobody's */
    size_t bytes = info->struct_bytes;
    memcpy(info, &ours, bytes < sizeof ours ? bytes : sizeof ours);
}

const char *di_engine_token_bytes(const di_engine *e, int32_t token_id, size_t *bytes) {
    const di_tokenizer *tok = e->parts.tokenizer;
    *bytes = 0;
    return tok && token_id >= 0 && token_id < e->parts.weights->config.vocab_size
               ? di_tokenizer_token_bytes(tok, token_id, bytes)
               : NULL;
}

const di_chat_tokens *di_engine_chat_tokens(const di_engine *e) {
    return e->parts.tokenizer ? &e->parts.chat : NULL;
}

void di_engine_get_stats(di_engine *e, di_engine_stats *stats) {
    pthread_mutex_lock(&e->lock);
    di_engine_stats ours = e->stats;
    pthread_mutex_unlock(&e->lock);
    ours.block_tokens = DI_BLOCK_TOKENS;
    size_t bytes = ours.struct_bytes = stats->struct_bytes;
    memcpy(stats, &ours, bytes < sizeof ours ? bytes : sizeof ours);
}

void di_engine_print_op_times(di_engine *e, void *stream) {
    di_parts_print_times(&e->parts, stream);
}

/* ---- requests ---------------------------------------------------------------------------------*/

/* Takes a request into the inbox; its number, or 0 when there are too many. The step thread may be
 * done with it before this returns. */
static uint64_t accept_request(di_engine *e, di_request *r, di_error *err) {
    pthread_mutex_lock(&e->lock);
    uint64_t id = 0;
    if (e->max_queue == 0 || e->num_requests < e->max_queue) {
        id = r->id = ++e->next_id;
        e->num_requests++;
        e->stats.requests++;
        *e->inbox_end = r;
        e->inbox_end = &r->next;
        r->next_known = e->known;
        r->link_known = &e->known;
        if (e->known) {
            e->known->link_known = &r->next_known;
        }
        e->known = r;
        if (r->pin) {
            r->pin->request = id;
            r->pin->next = e->pins;
            e->pins = r->pin;
            r->pin = NULL;
        }
        pthread_cond_broadcast(&e->called);
    }
    int under_way = e->num_requests;
    pthread_mutex_unlock(&e->lock);
    if (id == 0) {
        di_fail(err, DI_ERR_BUSY, "%d requests are under way, max_queue allows %d", under_way,
                e->max_queue);
    }
    return id;
}

uint64_t di_submit(di_engine *e, di_queue *queue, const di_prompt *prompt,
                   const di_request_params *params, void *tag, di_error *err) {
    di_request *r = di_request_create(e, queue, prompt, params, tag, err);
    if (!r) {
        return 0;
    }
    di_queue_attach(queue);
    uint64_t id = accept_request(e, r, err);
    if (id == 0) {
        di_queue_detach(queue);
        di_request_release(r);
        di_request_release(r);
    }
    return id;
}

bool di_cancel(di_engine *e, uint64_t request) {
    bool found = false;
    pthread_mutex_lock(&e->lock);
    for (di_request *r = e->known; r && !found; r = r->next_known) {
        if (r->id == request) {
            found = true;
            atomic_store(&r->cancelled, true);
            e->cancels = true;
            pthread_cond_broadcast(&e->called);
        }
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

void di_engine_cancel_queue(di_engine *e, const di_queue *queue) {
    pthread_mutex_lock(&e->lock);
    for (di_request *r = e->known; r; r = r->next_known) {
        if (r->queue == queue) {
            atomic_store(&r->cancelled, true);
            e->cancels = true;
        }
    }
    pthread_cond_broadcast(&e->called);
    pthread_mutex_unlock(&e->lock);
}
