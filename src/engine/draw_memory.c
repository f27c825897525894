/* Draws in argument memory: see draw_memory.h. */
#include "engine/draw_memory.h"

#include "base/alloc.h"

enum { MAX_PAIRS = 1 << 16 };

static void *put(char *base, size_t *end, size_t count, size_t size) {
    return di_place(base, end, count, size, 64);
}

/* What goes to the card, then what comes back. */
static size_t lay_out(di_draw_memory *m, char *base) {
    size_t n = (size_t)m->max_draws, end = 0;
    di_draw_lists *l = &m->lists;
    m->rows = put(base, &end, n, sizeof *m->rows);
    l->masks = put(base, &end, (size_t)l->max_masks, (size_t)l->mask_words * sizeof *l->masks);
    l->pairs = put(base, &end, MAX_PAIRS, sizeof *l->pairs);
    m->tokens = put(base, &end, n, sizeof *m->tokens);
    m->drawn = put(base, &end, n, sizeof *m->drawn);
    m->top = put(base, &end, n * (size_t)(m->max_top > 0 ? m->max_top : 1), sizeof *m->top);
    return end;
}

bool di_draw_memory_create(di_draw_memory *m, di_backend *be, int vocab_size, int max_draws,
                           int max_masks, int max_top, di_error *err) {
    *m = (di_draw_memory){
        .be = be,
        .max_draws = max_draws,
        .max_top = max_top,
        .vocab_size = vocab_size,
        .lists = {.max_pairs = MAX_PAIRS,
                  .max_masks = max_masks,
                  .mask_words = (vocab_size + 31) / 32,
                  .vocab_size = vocab_size},
    };
    m->memory = be->ops->queue->args_create(be, lay_out(m, NULL));
    m->top_ids = di_calloc((size_t)max_top, sizeof *m->top_ids);
    m->top_logprobs = di_calloc((size_t)max_top, sizeof *m->top_logprobs);
    if (!m->memory || !m->top_ids || !m->top_logprobs) {
        di_draw_memory_destroy(m);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d draws", max_draws);
    }
    lay_out(m, m->memory);
    return true;
}

void di_draw_memory_destroy(di_draw_memory *m) {
    if (m->be) {
        m->be->ops->queue->args_destroy(m->be, m->memory);
    }
    di_free(m->top_ids);
    di_free(m->top_logprobs);
    *m = (di_draw_memory){0};
}

void di_draw_memory_send(di_draw_memory *m, int n) {
    const di_queue_ops *ops = m->be->ops->queue;
    const di_draw_lists *l = &m->lists;
    size_t words = (size_t)l->num_masks * (size_t)l->mask_words;
    ops->args_send(m->be, m->rows, (size_t)n * sizeof *m->rows);
    ops->args_send(m->be, l->masks, words * sizeof *l->masks);
    ops->args_send(m->be, l->pairs, (size_t)l->num_pairs * sizeof *l->pairs);
}

void di_draw_memory_draw(di_draw_memory *m, const float *logits, int first, int n,
                         const int32_t *before) {
    di_draw_call call = {
        .logits = logits,
        .vocab_size = m->vocab_size,
        .n = n,
        .rows = m->rows + first,
        .pairs = m->lists.pairs,
        .masks = m->lists.masks,
        .mask_words = m->lists.mask_words,
        .before = before,
        .tokens = m->tokens + first,
        .drawn = m->drawn + first,
        .top = m->top + (size_t)first * (size_t)m->max_top,
        .max_top = m->max_top,
    };
    m->be->ops->queue->draw(m->be, &call);
}

void di_draw_memory_fetch(di_draw_memory *m, int n) {
    const di_queue_ops *ops = m->be->ops->queue;
    bool any_top = false;
    for (int i = 0; i < n; i++) {
        any_top = any_top || m->rows[i].num_top > 0;
    }
    ops->args_fetch(m->be, m->drawn, (size_t)n * sizeof *m->drawn);
    if (any_top) {
        ops->args_fetch(m->be, m->top, (size_t)n * (size_t)m->max_top * sizeof *m->top);
    }
}

void di_draw_memory_queue(di_draw_memory *m, const float *logits, int n, const int32_t *before) {
    di_draw_memory_send(m, n);
    di_draw_memory_draw(m, logits, 0, n, before);
    di_draw_memory_fetch(m, n);
}

void di_draw_memory_scores(di_draw_memory *m, const di_draw *d, int i, di_scored *to) {
    di_logprobs found;
    di_draw_logprobs(d, &m->drawn[i], m->top + (size_t)i * (size_t)m->max_top, m->top_ids,
                     m->top_logprobs, &found);
    to->logprob = (float)found.logprob;
    to->num_top = found.num_top;
    for (int k = 0; k < found.num_top; k++) {
        to->top[k] = (di_logprob){found.top_ids[k], (float)found.top_logprobs[k]};
    }
}
