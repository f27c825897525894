/* Rounds of drafts as programs: see draft.h. What a round computes is draft.c's; here it is
 * recorded and filled up, as steps are (queue.c). */
#include <string.h>

#include "base/alloc.h"
#include "model/graph.h"
#include "model/queue.h"

struct di_draft_rounds {
    di_model *m;
    di_draft_rounds_options o;
    di_inputs in;
    float *confidence;  /* [columns, di_draft_stride] page-locked */
    di_buckets buckets; /* sequences */
    di_program *at[sizeof((di_buckets *)0)->sizes / sizeof(int)];
};

/* The rows of a bucket are those of m->in. */
static void run_round(di_model *m, void *arg) {
    const di_draft_rounds *r = arg;
    int n = m->in->all.step.num_seqs;
    di_draft_stages(m);
    for (int j = 0; j < r->o.columns; j++) {
        const int32_t *before = j ? r->o.tokens + (size_t)(j - 1) * (size_t)n : m->in->draft_before;
        di_draft_correct(m, n, j, before);
        r->o.draw(r->o.user, n, j);
    }
}

static void fill(di_draft_rounds *r, const di_draft_rows *parts, int n, int bucket) {
    int filled = r->buckets.sizes[bucket];
    r->m->in = &r->in;
    di_inputs_shape(r->m, &r->in, filled * r->m->c->dspark_block_size);
    di_draft_fill(r->m, parts, n, filled);
}

static size_t confidence_bytes(const di_draft_rounds *r) {
    return (size_t)r->o.columns * di_draft_stride(r->m->c, &r->m->o) * sizeof(float);
}

di_draft_rounds *di_draft_rounds_create(di_model *m, const di_draft_rounds_options *o,
                                        di_error *err) {
    di_draft_rounds *r = di_calloc(1, sizeof *r);
    int most = di_model_draft_seqs(m), rows = most * m->c->dspark_block_size;
    bool ok = r != NULL;
    if (ok) {
        r->m = m;
        r->o = *o;
        r->confidence = m->queue->args_create(m->be, confidence_bytes(r));
        ok = r->confidence && di_inputs_create(m, &r->in, rows, rows);
    }
    if (!ok) {
        di_draft_rounds_destroy(r);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for rounds of %d drafts", rows);
        return NULL;
    }
    di_buckets_choose(&r->buckets, most);
    for (int b = r->buckets.count - 1; b >= 0; b--) { /* the largest takes the most scratch */
        fill(r, NULL, 0, b);
        r->at[b] = di_program_record(m, false, run_round, r);
    }
    m->in = &m->any;
    if (!m->be->ops->sync(m->be, err)) {
        di_draft_rounds_destroy(r);
        return NULL;
    }
    return r;
}

void di_draft_rounds_destroy(di_draft_rounds *r) {
    for (int b = 0; r && b < r->buckets.count; b++) {
        r->m->queue->program_free(r->m->be, r->at[b]);
    }
    if (r) {
        di_inputs_destroy(r->m, &r->in);
        r->m->queue->args_destroy(r->m->be, r->confidence);
    }
    di_free(r);
}

int di_draft_rounds_filled(const di_draft_rounds *r, int n) {
    return r->buckets.sizes[di_buckets_find(&r->buckets, n)];
}

bool di_draft_rounds_queue(di_draft_rounds *r, const di_draft_rows *parts, int n, di_error *err) {
    di_model *m = r->m;
    if (!di_draft_check(m, parts, n, err)) {
        return false;
    }
    int bucket = di_buckets_find(&r->buckets, n);
    fill(r, parts, n, bucket);
    di_inputs_send(m, r->in.memory, r->in.bytes);
    m->queue->step_send(m->be, &r->in.all.step);
    di_program_count_round(m, di_program_run(m, &r->at[bucket], false, run_round, r));
    m->in = &m->any;
    return true;
}

bool di_draft_rounds_wait(di_draft_rounds *r, int n, float *confidence, di_error *err) {
    di_model *m = r->m;
    size_t stride = di_draft_stride(m->c, &m->o), size = (size_t)m->c->dspark_block_size;
    m->be->ops->download(m->be, r->confidence, m->a.confidence, confidence_bytes(r));
    if (!m->be->ops->sync(m->be, err)) {
        return false;
    }
    for (size_t i = 0; i < (size_t)n; i++) {
        for (size_t j = 0; j < (size_t)r->o.columns; j++) {
            confidence[i * size + j] = r->confidence[j * stride + i];
        }
    }
    return true;
}
