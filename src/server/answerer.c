/* The engine as what answers: see answerer.h. */
#include "server/answerer.h"

#include "base/alloc.h"
#include "base/error.h"
#include "engine/chat_tokens.h"

typedef struct engine_answerer {
    di_engine *engine;
    di_queue *queue;
} engine_answerer;

static void engine_params(void *self, di_request_params *params) {
    engine_answerer *e = self;
    di_request_params_init(e->engine, params, sizeof *params);
}

static uint64_t engine_submit(void *self, const di_prompt *prompt, const di_request_params *params,
                              void *tag, di_error *err) {
    engine_answerer *e = self;
    return di_submit(e->engine, e->queue, prompt, params, tag, err);
}

static bool engine_cancel(void *self, uint64_t request) {
    engine_answerer *e = self;
    return di_cancel(e->engine, request);
}

static di_output *engine_wait(void *self, int timeout_ms) {
    engine_answerer *e = self;
    return di_queue_wait(e->queue, timeout_ms);
}

static void engine_release(void *self, di_output *out) {
    (void)self;
    di_output_free(out);
}

static void engine_wake(void *self) {
    engine_answerer *e = self;
    di_queue_wake(e->queue);
}

bool di_answerer_open(di_answerer *a, di_engine *engine, di_error *err) {
    di_engine_info info = {.struct_bytes = sizeof info};
    di_engine_stats stats = {.struct_bytes = sizeof stats};
    di_engine_get_info(engine, &info);
    di_engine_get_stats(engine, &stats);
    const di_chat_tokens *chat = di_engine_chat_tokens(engine);
    if (!chat) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "the model's folder has no tokenizer.json, which the server needs");
    }
    engine_answerer *e = di_calloc(1, sizeof *e);
    if (!e) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the server");
    }
    e->engine = engine;
    e->queue = di_queue_create(engine, err);
    if (!e->queue) {
        di_free(e);
        return false;
    }
    int64_t room = stats.blocks * stats.block_tokens;
    *a = (di_answerer){
        .self = e,
        .chat = chat,
        .vocab_size = info.vocab_size,
        .max_model_len = info.max_model_len,
        .max_tokens = room > 0 && room < info.max_model_len ? room : info.max_model_len,
        .engine = engine,
        .params = engine_params,
        .submit = engine_submit,
        .cancel = engine_cancel,
        .wait = engine_wait,
        .release = engine_release,
        .wake = engine_wake,
    };
    return true;
}

void di_answerer_close(di_answerer *a) {
    engine_answerer *e = a->self;
    if (e) {
        di_queue_destroy(e->queue);
    }
    di_free(e);
    *a = (di_answerer){0};
}
