/* Logits of every position: see logits.h. */
#include "engine/logits.h"

#include "base/alloc.h"

static bool check_ids(const di_parts *p, const int32_t *ids, int64_t n, di_error *err) {
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

static bool run_chunk(di_parts *p, di_seq *seq, const int32_t *ids, int n, int64_t replay_from,
                      float *logits, di_logits_fn rows, void *user, di_error *err) {
    if (!di_seq_reserve(p->cache, seq, seq->len + n, err)) {
        return false;
    }
    di_model_rows part = di_model_next_rows(seq, ids, n);
    int64_t kept = seq->len + n - (replay_from > seq->len ? replay_from : seq->len);
    part.num_logits = kept > 0 ? (int)kept : 0;
    part.replay_from = replay_from;
    if (!di_model_forward(p->model, &part, 1, logits, err)) {
        return false;
    }
    seq->len += n;
    return part.num_logits == 0 || rows(user, logits, part.num_logits, err);
}

bool di_logits_run(di_parts *p, const int32_t *ids, int64_t n, int chunk, int64_t replay_from,
                   di_logits_fn rows, void *user, di_error *err) {
    di_seq seq = {0};
    if (!check_ids(p, ids, n, err)) {
        return false;
    }
    size_t vocab_size = (size_t)p->weights->config.vocab_size;
    float *logits = di_realloc_array(NULL, (size_t)chunk, vocab_size * sizeof *logits);
    bool ok = logits || di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d rows of %zu logits", chunk,
                                vocab_size);
    ok = ok && di_seq_open(p->cache, &seq, (di_hash){0, 0}, err);
    while (ok && seq.len < n) {
        int next = n - seq.len < chunk ? (int)(n - seq.len) : chunk;
        ok = run_chunk(p, &seq, ids, next, replay_from, logits, rows, user, err);
    }
    di_seq_close(p->cache, &seq);
    di_free(logits);
    return ok;
}
