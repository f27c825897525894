/* What a step's rows are: see resolve.h. */
#include "engine/resolve.h"

#include <string.h>

#include "base/alloc.h"

bool di_resolver_create(di_resolver *r, int max_num_seqs, int num_drafts, di_error *err) {
    size_t n = (size_t)max_num_seqs, stride = (size_t)num_drafts;
    *r = (di_resolver){.stride = num_drafts};
    r->survival = di_calloc(n * stride, sizeof *r->survival);
    r->limits = di_calloc(n, sizeof *r->limits);
    r->lengths = di_calloc(n, sizeof *r->lengths);
    if (!r->survival || !r->limits || !r->lengths) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for drafts of %d sequences", max_num_seqs);
    }
    return di_price_scratch_create(&r->scratch, max_num_seqs * num_drafts, err);
}

void di_resolver_destroy(di_resolver *r) {
    di_price_scratch_destroy(&r->scratch);
    di_free(r->survival);
    di_free(r->limits);
    di_free(r->lengths);
    *r = (di_resolver){0};
}

/* The part's tokens lie in the work's own memory. */
static int32_t *tokens_of(di_model_rows *part) {
    return (int32_t *)part->tokens;
}

static void look_back_at(di_model_rows *part, int32_t token) {
    memmove(part->before, part->before + 1, sizeof part->before - sizeof *part->before);
    part->before[DI_MODEL_LOOK_BACK - 1] = token;
}

/* The row goes on behind what the step before gave: its last token is the input, and those before
 * that were accepted drafts, whose rows are done. A row that failed there has ended, and any token
 * will do for its wasted part. */
static void follow(di_work *w, int i) {
    const di_row_result *r = &w->before->results[w->source[i]];
    di_model_rows *part = &w->parts[i];
    int given = r->failed ? 0 : r->num_tokens;
    for (int k = 0; k + 1 < given; k++) {
        look_back_at(part, r->tokens[k].id);
        part->pos0++;
    }
    tokens_of(part)[part->num_tokens - 1] = given > 0 ? r->tokens[given - 1].id : 0;
}

/* How many drafts each row has verified. Those at hand and not verified now never will be. */
static void share(di_resolver *r, di_work *w) {
    int rows = w->plan.num_rows;
    for (int i = 0; i < rows; i++) {
        const di_plan_row *row = &w->plan.rows[i];
        const di_row_sampler *s = w->samplers[i];
        int most = row->outputs > 1 ? row->outputs - 1 : 0;
        r->limits[i] = most < s->num_drafts ? most : s->num_drafts;
        memcpy(r->survival + (size_t)i * (size_t)r->stride, s->survival,
               (size_t)r->limits[i] * sizeof *r->survival);
    }
    di_slots at_hand = {r->survival, r->limits, rows, r->stride};
    di_price_share(&at_hand, w->plan.num_drafts, &r->scratch, r->lengths);
    for (int i = 0; i < rows; i++) {
        di_model_rows *part = &w->parts[i];
        di_row_sampler *s = w->samplers[i];
        int n = r->lengths[i];
        memcpy(tokens_of(part) + part->num_tokens, s->drafts, (size_t)n * sizeof *s->drafts);
        part->num_tokens += n;
        part->num_logits += n;
        w->outputs[i] += n;
        s->num_drafts = w->outputs[i] > 0 ? 0 : s->num_drafts;
    }
}

void di_resolve_plain(di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        if (w->source[i] >= 0 && !w->before->queued) {
            follow(w, i);
        }
        if (w->outputs[i] > 0) {
            w->samplers[i]->num_drafts = 0; /* those at hand never will be verified */
        }
    }
}

void di_resolve(di_resolver *r, di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        if (w->source[i] >= 0) {
            follow(w, i);
        }
    }
    if (r->stride > 0) {
        share(r, w);
    }
}
