/* Host arrays of a step: see di_inputs in graph.h. */
#include <string.h>

#include "base/alloc.h"
#include "model/graph.h"
#include "model/rope.h"

static void *place(char *base, size_t *end, size_t count, size_t size) {
    return di_place(base, end, count, size, 16);
}

static void lay_out_pass(char *base, size_t *end, size_t n, di_pass *p) {
    p->rows = place(base, end, n, sizeof *p->rows);
    p->positions = place(base, end, n, sizeof *p->positions);
    p->image = place(base, end, n, sizeof *p->image);
    for (int ratio = 1; ratio <= 2; ratio++) {
        p->entries[ratio] = place(base, end, n, sizeof *p->entries[ratio]);
        p->entry_positions[ratio] = place(base, end, n, sizeof *p->entry_positions[ratio]);
    }
}

/* Returns all bytes; in->bytes becomes those that a step sends. */
static size_t lay_out(const di_model *m, char *base, di_inputs *in) {
    const di_config *c = m->c;
    size_t n = (size_t)in->max_rows, end = 0, half = (size_t)c->qk_rope_head_dim / 2;
    size_t logits = (size_t)(in->max_logits > in->max_rows ? in->max_logits : in->max_rows);
    size_t engram = (size_t)c->num_engram_layers * (size_t)c->engram_columns;
    in->freq[0] = place(base, &end, half, sizeof(float)); /* in front: of any shape */
    in->freq[1] = place(base, &end, half, sizeof(float));
    in->tokens = place(base, &end, n, sizeof *in->tokens);
    in->before = place(base, &end, n, DI_MODEL_LOOK_BACK * sizeof *in->before);
    in->source = place(base, &end, n, sizeof *in->source);
    in->logit_rows = place(base, &end, logits, sizeof *in->logit_rows);
    in->draft_before = place(base, &end, n, sizeof *in->draft_before);
    lay_out_pass(base, &end, n, &in->all);
    lay_out_pass(base, &end, n, &in->kept);
    in->bytes = end;
    in->engram_rows = place(base, &end, n, engram * sizeof *in->engram_rows);
    in->bytes = m->device_hash ? in->bytes : end;
    return end;
}

bool di_inputs_create(di_model *m, di_inputs *in, int max_rows, int max_logits) {
    size_t seqs = (size_t)max_rows + 1;
    *in = (di_inputs){.max_rows = max_rows, .max_logits = max_logits, .room = max_rows};
    size_t bytes = lay_out(m, NULL, in);
    in->memory = m->queue ? m->queue->args_create(m->be, bytes) : di_calloc(1, bytes);
    in->all.seqs = di_calloc(seqs, sizeof *in->all.seqs);
    in->kept.seqs = di_calloc(seqs, sizeof *in->kept.seqs);
    if (!in->memory || !in->all.seqs || !in->kept.seqs) {
        return false;
    }
    lay_out(m, in->memory, in);
    di_rope_frequencies(m->c, false, in->freq[0]);
    di_rope_frequencies(m->c, true, in->freq[1]);
    return true;
}

void di_inputs_shape(di_model *m, di_inputs *in, int rows) {
    in->max_rows = in->max_logits = rows;
    lay_out(m, in->memory, in);
}

void di_inputs_hash_on_device(di_model *m, bool on) {
    m->device_hash = on;
    for (int i = 0; i < 2; i++) {
        di_inputs *in = i ? &m->small : &m->any;
        if (in->memory) {
            lay_out(m, in->memory, in);
        }
    }
}

void di_inputs_destroy(di_model *m, di_inputs *in) {
    if (m->queue) {
        m->queue->args_destroy(m->be, in->memory);
    } else {
        di_free(in->memory);
    }
    di_free(in->all.seqs);
    di_free(in->kept.seqs);
    *in = (di_inputs){0};
}

void di_inputs_send(di_model *m, const void *from, size_t bytes) {
    if (m->queue) {
        m->queue->args_send(m->be, from, bytes);
    }
}
