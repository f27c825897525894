/* See draft_round.h. Draws lie column by column, as the model's rounds want their tokens. */
#include "engine/draft_round.h"

#include "model/queue.h"

static void draw_column(void *user, int n, int j) {
    di_draft_round *r = user;
    di_draw_memory_draw(r->draws, di_model_logits(r->model), j * n, n, NULL);
}

bool di_draft_round_create(di_draft_round *r, di_model *m, di_draw_memory *draws, int columns,
                           di_error *err) {
    *r = (di_draft_round){.model = m, .draws = draws, .columns = columns};
    di_draft_rounds_options o = {columns, draw_column, r, draws->tokens};
    r->programs = di_draft_rounds_create(m, &o, err);
    return r->programs != NULL;
}

void di_draft_round_destroy(di_draft_round *r) {
    di_draft_rounds_destroy(r->programs);
    *r = (di_draft_round){0};
}

void di_draft_round_begin(di_draft_round *r, int n) {
    r->filled = di_draft_rounds_filled(r->programs, n);
    r->draws->lists.num_pairs = r->draws->lists.num_masks = 0;
}

static int place_of(const di_draft_round *r, int i, int j) {
    return j * r->filled + i;
}

di_draw *di_draft_round_draw(di_draft_round *r, int i, int j) {
    return &r->draws->rows[place_of(r, i, j)];
}

const di_drawn *di_draft_round_drawn(const di_draft_round *r, int i, int j) {
    return &r->draws->drawn[place_of(r, i, j)];
}

bool di_draft_round_run(di_draft_round *r, const di_draft_rows *parts, int n, float *confidence,
                        di_error *err) {
    int size = di_model_draft_size(r->model);
    for (int i = 0; i < r->filled; i++) {
        for (int j = 0; j < r->columns; j++) {
            di_draw *d = di_draft_round_draw(r, i, j);
            if (i >= n) {
                *d = (di_draw){.forced = 0, .mask = -1, .floor = 1};
            }
            d->logits = i * size + j;
        }
    }
    di_draw_memory_send(r->draws, r->filled * r->columns);
    if (!di_draft_rounds_queue(r->programs, parts, n, err)) {
        return false;
    }
    di_draw_memory_fetch(r->draws, r->filled * r->columns);
    return di_draft_rounds_wait(r->programs, n, confidence, err);
}
