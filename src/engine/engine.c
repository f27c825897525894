/* The engine: opens a model folder, puts the rooms together, owns all of them. Called by faces
 * through deepinfer.h. Holds no policy of sampling or text; see generate.c and prompt.c. */
#include "engine/engine.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "engine/internal.h"
#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"
#include "text/token_map.h"

enum { DEFAULT_BATCHED_TOKENS = 512, MAX_BATCHED_TOKENS = 65536, OPEN_STEPS = 4 };

int di_api_version(void) {
    return DI_API_VERSION;
}

const char *di_version(void) {
    return di_version_string();
}

void di_engine_options_init(di_engine_options *options, size_t struct_bytes) {
    di_engine_options ours = {
        .struct_bytes = struct_bytes,
        .max_num_batched_tokens = DEFAULT_BATCHED_TOKENS,
    };
    memset(options, 0, struct_bytes);
    memcpy(options, &ours, struct_bytes < sizeof ours ? struct_bytes : sizeof ours);
}

static bool check_options(const di_engine_options *o, di_error *err) {
    if (!o->model || !*o->model) {
        return di_fail(err, DI_ERR_ARGUMENT, "model is empty, a folder is needed");
    }
    if (o->backend && strcmp(o->backend, "cpu") != 0 && strcmp(o->backend, "ref") != 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "backend is '%s', allowed are cpu and ref",
                       o->backend);
    }
    if (o->max_num_batched_tokens < 1 || o->max_num_batched_tokens > MAX_BATCHED_TOKENS) {
        return di_fail(err, DI_ERR_ARGUMENT, "max_num_batched_tokens is %d, allowed are 1 to %d",
                       o->max_num_batched_tokens, MAX_BATCHED_TOKENS);
    }
    if (o->max_model_len < 0) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "max_model_len is %lld, allowed are 0 (the model's) and above",
                       (long long)o->max_model_len);
    }
    return true; /* threads: the backend knows its limits */
}

static bool open_backend(di_engine *e, const di_engine_options *o, di_error *err) {
    if (o->backend && strcmp(o->backend, "ref") == 0) {
        e->backend = di_ref_create(err);
    } else {
        e->backend = di_cpu_create(&(di_cpu_options){.threads = o->threads}, err);
    }
    return e->backend != NULL;
}

/* Prompts are laid out with the tokenizer's control tokens, answers end at the configuration's. */
static bool check_tokens(const di_engine *e, di_error *err) {
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
static bool open_tokenizer(di_engine *e, const char *folder, di_error *err) {
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
static int32_t *make_token_map(const di_engine *e, di_error *err) {
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

static bool set_context(di_engine *e, const di_engine_options *o, di_error *err) {
    int64_t most = e->weights->config.max_position_embeddings;
    if (o->max_model_len > most) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "max_model_len is %lld, the model's max_position_embeddings is %lld",
                       (long long)o->max_model_len, (long long)most);
    }
    e->max_model_len = o->max_model_len ? o->max_model_len : most;
    int64_t rows = o->max_num_batched_tokens;
    e->max_rows = (int)(rows < e->max_model_len ? rows : e->max_model_len);
    return true;
}

static bool open_model(di_engine *e, di_error *err) {
    const di_config *c = &e->weights->config;
    di_cache_options cache = {
        .num_blocks = (int)di_blocks_for(e->max_model_len),
        .num_slots = 1,
    };
    e->cache = di_cache_create(c, e->backend, &cache, err);
    int32_t *map = e->cache ? make_token_map(e, err) : NULL;
    if (!map) {
        return false;
    }
    di_model_options model = {
        .max_rows = e->max_rows,
        .max_logits = e->max_logits,
        .token_map = map,
    };
    e->model = di_model_create(e->weights, e->backend, e->cache, &model, err);
    di_free(map);
    if (!e->model) {
        return false;
    }
    size_t floats;
    if (!di_mul_size((size_t)e->max_logits, (size_t)c->vocab_size, &floats) ||
        !(e->logits = di_realloc_array(NULL, floats, sizeof *e->logits))) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d rows of %d logits", e->max_logits,
                       c->vocab_size);
    }
    e->scratch = di_sample_scratch_create(c->vocab_size, err);
    return e->scratch != NULL;
}

static bool open_all(di_engine *e, const di_engine_options *o, di_error *err) {
    for (int step = 0; step < OPEN_STEPS; step++) {
        if (o->progress) {
            o->progress(o->user, step, OPEN_STEPS);
        }
        bool ok = false;
        switch (step) {
        case 0:
            e->weights = di_weights_open(o->model, err);
            ok = e->weights && set_context(e, o, err);
            break;
        case 1:
            ok = open_tokenizer(e, o->model, err) && di_defaults_read(&e->defaults, o->model, err);
            break;
        case 2:
            ok = open_backend(e, o, err);
            break;
        default:
            ok = open_model(e, err);
        }
        if (!ok) {
            return false;
        }
    }
    if (o->progress) {
        o->progress(o->user, OPEN_STEPS, OPEN_STEPS);
    }
    return true;
}

di_engine *di_engine_open_for_logits(const di_engine_options *options, int max_logits,
                                     di_error *err) {
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
    e->max_logits = max_logits;
    if (!open_all(e, &o, err)) {
        di_engine_close(e);
        return NULL;
    }
    return e;
}

di_engine *di_engine_open(const di_engine_options *options, di_error *err) {
    return di_engine_open_for_logits(options, 1, err);
}

void di_engine_close(di_engine *e) {
    if (!e) {
        return;
    }
    if (e->cache) {
        di_seq_close(e->cache, &e->seq);
    }
    if (e->model) {
        di_model_destroy(e->model);
    }
    if (e->cache) {
        di_cache_destroy(e->cache);
    }
    if (e->backend) {
        e->backend->ops->destroy(e->backend);
    }
    di_tokenizer_close(e->tokenizer);
    if (e->weights) {
        di_weights_close(e->weights);
    }
    di_ids_free(&e->held);
    di_free(e->logits);
    di_sample_scratch_destroy(e->scratch);
    di_free(e);
}

void di_engine_get_info(const di_engine *e, di_engine_info *info) {
    const di_config *c = &e->weights->config;
    di_engine_info ours = {
        .struct_bytes = info->struct_bytes,
        .vocab_size = c->vocab_size,
        .max_model_len = e->max_model_len,
        .bos_token_id = c->bos_token_id,
        .eos_token_id = c->eos_token_id,
        .has_tokenizer = e->tokenizer != NULL,
    };
    size_t bytes = info->struct_bytes;
    memcpy(info, &ours, bytes < sizeof ours ? bytes : sizeof ours);
}

void di_cancel(di_engine *e) {
    atomic_store(&e->cancelled, true);
}

bool di_engine_restart_sequence(di_engine *e, di_error *err) {
    di_seq_close(e->cache, &e->seq);
    e->held.count = 0;
    return di_seq_open(e->cache, &e->seq, (di_hash){0}, err);
}

bool di_engine_step(di_engine *e, const int32_t *tokens, int num_tokens, int num_logits,
                    di_error *err) {
    bool ok = di_seq_reserve(e->cache, &e->seq, e->seq.len + num_tokens, err);
    for (int i = 0; ok && i < num_tokens; i++) {
        ok = di_ids_push(&e->held, tokens[i], err);
    }
    if (ok) {
        di_model_rows rows = di_model_next_rows(&e->seq, e->held.data, num_tokens);
        rows.num_logits = num_logits;
        ok = di_model_forward(e->model, &rows, 1, num_logits ? e->logits : NULL, err);
        e->seq.len += num_tokens;
    }
    if (!ok) {
        di_seq_close(e->cache, &e->seq);
        e->held.count = 0;
    }
    return ok;
}

bool di_engine_logits(di_engine *e, const int32_t *token_ids, size_t num_token_ids, int chunk,
                      di_logits_fn rows, void *user, di_error *err) {
    di_prompt prompt;
    di_prompt_init(&prompt, sizeof prompt);
    prompt.token_ids = token_ids;
    prompt.num_token_ids = num_token_ids;
    di_ids ids = {0};
    bool ok = di_prompt_encode(e, &prompt, &ids, err) && di_engine_restart_sequence(e, err);
    for (size_t done = 0; ok && done < ids.count;) {
        size_t left = ids.count - done;
        int n = left < (size_t)chunk ? (int)left : chunk;
        n = n < e->max_rows ? n : e->max_rows;
        ok = di_engine_step(e, ids.data + done, n, n, err) && rows(user, e->logits, n, err);
        done += (size_t)n;
    }
    di_ids_free(&ids);
    return ok;
}
