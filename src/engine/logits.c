/* Logits of every position: see logits.h. */
#include "engine/logits.h"

#include "base/alloc.h"

bool di_scorer_check(const di_parts *p, const int32_t *ids, int64_t n, di_error *err) {
    int vocab_size = p->weights->config.vocab_size;
    if (n < 1 || n > p->max_model_len) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "the prompt has %lld tokens, the context holds at most %lld", (long long)n,
                       (long long)p->max_model_len);
    }
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "prompt_token_ids[%lld] is %d, allowed are 0 to %d", (long long)i,
                           ids[i], vocab_size - 1);
        }
    }
    return true;
}

bool di_scorer_open(di_scorer *s, di_parts *parts, int chunk, di_error *err) {
    size_t vocab_size = (size_t)parts->weights->config.vocab_size;
    *s = (di_scorer){.parts = parts, .chunk = chunk};
    s->logits = di_realloc_array(NULL, (size_t)chunk, vocab_size * sizeof *s->logits);
    bool ok = s->logits || di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d rows of %zu logits",
                                   chunk, vocab_size);
    ok = ok && di_seq_open(parts->cache, &s->seq, (di_hash){0, 0}, err);
    if (!ok) {
        di_scorer_close(s);
    }
    return ok;
}

void di_scorer_close(di_scorer *s) {
    if (s->parts) {
        di_seq_close(s->parts->cache, &s->seq);
    }
    di_free(s->logits);
    *s = (di_scorer){0};
}

bool di_scorer_step(di_scorer *s, const int32_t *ids, int64_t upto, int64_t replay_from,
                    di_error *err) {
    int64_t from = s->seq.len, kept = upto - (replay_from > from ? replay_from : from);
    if (!di_seq_reserve(s->parts->cache, &s->seq, upto, err)) {
        return false;
    }
    di_model_rows part = di_model_next_rows(&s->seq, ids, (int)(upto - from));
    part.num_logits = s->num_rows = kept > 0 ? (int)kept : 0;
    part.replay_from = replay_from;
    if (!di_model_forward(s->parts->model, &part, 1, s->logits, err)) {
        return false;
    }
    s->seq.len = upto;
    return true;
}

bool di_logits_run(di_parts *p, const int32_t *ids, int64_t n, int chunk, int64_t replay_from,
                   di_logits_fn rows, void *user, di_error *err) {
    di_scorer s;
    if (!di_scorer_check(p, ids, n, err) || !di_scorer_open(&s, p, chunk, err)) {
        return false;
    }
    bool ok = true;
    while (ok && s.seq.len < n) {
        int64_t upto = n - s.seq.len < chunk ? n : s.seq.len + chunk;
        ok = di_scorer_step(&s, ids, upto, replay_from, err) &&
             (s.num_rows == 0 || rows(user, s.logits, s.num_rows, err));
    }
    di_scorer_close(&s);
    return ok;
}
