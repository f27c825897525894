/* Steps that are queued: see queue.h.
 *
 * A program's launches are fixed; what differs from step to step is in argument memory. So a step
 * of n rows with logits, one or (where drafts are verified) several a sequence, is filled up to a
 * bucket's number of rows. A filling row is a sequence of its own with one token before it, in slot
 * 0 and block 0, which are nobody's; all of them compute the same and so choose the same experts.
 * Sequences are one more than rows, those at the end having none. Entries that a program stores are
 * as many as rows: a row that closes none stands for the last sequence, whose entries fall into
 * block 0 too. Lengths count by class: launches cover the class's longest sequence, and blocks
 * behind a sequence's end leave at once. With drafts there are programs that keep the draft model's
 * context, of every row, and ones that do not: for steps in which nobody wants it. */
#include "model/queue.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "model/graph.h"

enum {
    MAX_BUCKETS = sizeof((di_buckets *)0)->sizes / sizeof(int),
    MAX_CLASSES = 8,
    FIRST_CLASS = 4096,
    CLASS_STEP = 4
};

static const int32_t nobodys_block[1] = {0};

typedef struct di_programs {
    di_buckets buckets; /* rows */
    int num_classes;
    int64_t classes[MAX_CLASSES];                /* tokens of the longest sequence, ascending */
    di_program *at[2][MAX_CLASSES][MAX_BUCKETS]; /* without the draft model's context, and with */
    bool off;                                    /* recording has failed */
    di_model_counts counts;
} di_programs;

/* ---- buckets ----------------------------------------------------------------------------------*/

/* 1, 2, 4, 8, then every 8th to 64, every 16th to 256, every 64th: filling costs what it reads, of
 * experts above all, and each program some memory. */
static int next_bucket(int rows) {
    return rows < 8 ? 2 * rows : rows + (rows < 64 ? 8 : rows < 256 ? 16 : 64);
}

void di_buckets_choose(di_buckets *b, int most) {
    *b = (di_buckets){0};
    for (int size = 1; size < most && b->count < MAX_BUCKETS - 1; size = next_bucket(size)) {
        b->sizes[b->count++] = size;
    }
    b->sizes[b->count++] = most;
}

int di_buckets_find(const di_buckets *b, int size) {
    int i = 0;
    while (b->sizes[i] < size) {
        i++;
    }
    return i;
}

static void choose_classes(di_programs *p, int64_t longest) {
    int64_t tokens = FIRST_CLASS;
    for (; tokens < longest && p->num_classes < MAX_CLASSES - 1; tokens *= CLASS_STEP) {
        p->classes[p->num_classes++] = tokens;
    }
    p->classes[p->num_classes++] = longest;
}

static int class_of(const di_programs *p, int64_t tokens) {
    int k = 0;
    while (k < p->num_classes - 1 && p->classes[k] < tokens) {
        k++;
    }
    return k;
}

/* ---- filling ----------------------------------------------------------------------------------*/

/* Row i of the small inputs: token t of a part. */
static void fill_row(di_inputs *in, int i, const di_model_rows *p, int t) {
    enum { BACK = DI_MODEL_LOOK_BACK };
    di_pass *pass = &in->all;
    int32_t *before = in->before + (size_t)i * BACK;
    int64_t at = p->pos0 + t;
    pass->rows[i] = i;
    pass->positions[i] = at;
    in->tokens[i] = p->tokens[t];
    in->logit_rows[i] = i;
    in->source[i] = -1;
    for (int k = 1; k <= BACK; k++) {
        before[BACK - k] = k > at ? -1 : k <= t ? p->tokens[t - k] : p->before[BACK - k + t];
    }
}

/* Sequence s of the small inputs: a part's tokens, from row `row` on; returns the row behind. */
static int fill_sequence(di_inputs *in, int s, const di_model_rows *p, int row) {
    in->all.seqs[s] = (di_seq_rows){.row0 = row,
                                    .num_rows = p->num_tokens,
                                    .pos0 = p->pos0,
                                    .blocks = p->blocks,
                                    .slot = p->slot};
    for (int t = 0; t < p->num_tokens; t++) {
        fill_row(in, row + t, p, t);
    }
    return row + p->num_tokens;
}

/* Entries that rows close, by sequence; then as many as are missing of the last sequence, which
 * stands at position 1 and so closes entry 2 / ratio - 1. */
static void fill_entries(di_pass *pass, int ratio) {
    int n = pass->step.num_rows, count = 0;
    for (int s = 0; s < n; s++) {
        const di_seq_rows *seq = &pass->seqs[s];
        for (int t = 0; t < seq->num_rows; t++) {
            int64_t next = seq->pos0 + t + 1;
            if (next % ratio == 0) {
                pass->entries[ratio][count++] = (di_entry){s, next / ratio - 1};
            }
        }
    }
    while (count < n) {
        pass->entries[ratio][count++] = (di_entry){n, 2 / ratio - 1};
    }
    for (int i = 0; i < n; i++) {
        pass->entry_positions[ratio][i] = pass->entries[ratio][i].entry * ratio;
    }
    pass->num_entries[ratio] = n;
}

/* n parts, filled up to `rows` rows. */
static void fill_small(di_model *m, const di_model_rows *parts, int n, int rows, int64_t tokens) {
    di_inputs *in = m->in = &m->small;
    di_pass *pass = &in->all;
    static const int32_t no_token = 0;
    static const di_model_rows nobody = {.pos0 = 1,
                                         .blocks = nobodys_block,
                                         .tokens = &no_token,
                                         .num_tokens = 1,
                                         .before = {-1, -1, -1, -1, -1, -1, -1}};
    int row = 0, s = 0;
    di_inputs_shape(m, in, rows);
    while (row < rows) {
        row = fill_sequence(in, s, s < n ? &parts[s] : &nobody, row);
        s++;
    }
    for (; s <= rows; s++) {
        pass->seqs[s] = (di_seq_rows){.row0 = rows, .pos0 = 1, .blocks = nobodys_block};
    }
    pass->any_image = false;
    pass->step = (di_step){
        .num_rows = rows,
        .num_seqs = rows + 1,
        .seqs = pass->seqs,
        .pool = *di_cache_pool(m->cache),
        .most_tokens = tokens,
    };
    fill_entries(pass, 1);
    fill_entries(pass, 2);
}

/* The step that the small inputs hold. */
static void run_small(di_model *m, void *unused) {
    (void)unused;
    di_graph_run(m, false);
    di_graph_head(m, m->small.all.step.num_rows);
}

/* ---- programs ---------------------------------------------------------------------------------*/

di_program *di_program_record(di_model *m, bool branches, di_program_fn ops, void *arg) {
    di_error err;
    di_programs *p = m->programs;
    if (p->off || !m->queue->record(m->be)) {
        p->off = true;
        return NULL;
    }
    m->branches = branches;
    ops(m, arg);
    m->branches = false;
    di_program *program = m->queue->recorded(m->be, &err);
    if (!program) {
        p->off = true;
        di_log(DI_LOG_WARN, "steps run op by op: %s", err.message);
    }
    return program;
}

bool di_program_run(di_model *m, di_program **at, bool branches, di_program_fn ops, void *arg) {
    for (int attempt = 0; attempt < 2; attempt++) {
        *at = *at ? *at : di_program_record(m, branches, ops, arg);
        if (*at && m->queue->replay(m->be, *at)) {
            return true;
        }
        m->queue->program_free(m->be, *at);
        *at = NULL;
    }
    ops(m, arg);
    return false;
}

void di_program_count_round(di_model *m, bool recorded) {
    m->programs->counts.recorded_rounds += recorded;
    m->programs->counts.other_rounds += !recorded;
}

void di_programs_destroy(di_model *m) {
    di_programs *p = m->programs;
    for (int k = 0; p && k < 2 * p->num_classes; k++) {
        for (int b = 0; b < p->buckets.count; b++) {
            m->queue->program_free(m->be, p->at[k % 2][k / 2][b]);
        }
    }
    di_free(p);
    m->programs = NULL;
}

/* ---- before the first step --------------------------------------------------------------------*/

/* One sequence with as many rows as there can be, at the end of the longest context. */
static void run_longest(di_model *m, int64_t tokens) {
    di_inputs *in = m->in = &m->any;
    int n = m->o.max_rows < tokens ? m->o.max_rows : (int)tokens;
    int logits = m->o.max_logits < n ? m->o.max_logits : n;
    in->all.seqs[0] = (di_seq_rows){.num_rows = n, .pos0 = tokens - n};
    in->all.step = (di_step){
        .num_rows = n,
        .num_seqs = 1,
        .seqs = in->all.seqs,
        .pool = *di_cache_pool(m->cache),
        .most_tokens = tokens,
    };
    in->all.any_image = false;
    di_graph_fill(&in->all);
    m->context = m->o.drafts;
    di_graph_run(m, false);
    di_graph_head(m, logits);
}

/* The largest round of drafts; draws take no scratch memory. */
static void run_largest_round(di_model *m) {
    int n = di_model_draft_seqs(m);
    m->in = &m->any;
    di_draft_fill(m, NULL, 0, n);
    di_draft_stages(m);
    for (int j = 0; j < m->c->dspark_block_size; j++) {
        di_draft_correct(m, n, j, m->in->draft_before);
    }
}

/* Block tables of as many sequences as there can be, up to 16 MiB of them in all, and sequences
 * that only fill a program up, as many as rows. */
static void send_largest_step(di_model *m, int64_t tokens, int seqs) {
    enum { MOST_ENTRIES = 4 << 20 };
    di_inputs *in = &m->any;
    int n = seqs < in->max_rows ? seqs : in->max_rows;
    int64_t fit = (int64_t)(MOST_ENTRIES / n) * DI_BLOCK_TOKENS;
    for (int i = 0; i <= in->max_rows; i++) {
        int64_t end = i > n ? 1 : fit < tokens ? fit : tokens;
        in->all.seqs[i] = (di_seq_rows){.num_rows = 1, .pos0 = end, .blocks = nobodys_block};
    }
    in->all.step = (di_step){.num_rows = in->max_rows,
                             .num_seqs = in->max_rows + 1,
                             .seqs = in->all.seqs,
                             .pool = *di_cache_pool(m->cache)};
    m->queue->step_send(m->be, &in->all.step);
}

bool di_model_measure(di_model *m, int64_t max_model_len, int max_seqs, di_error *err) {
    if (!m->device_hash && m->hasher.num_layers > 0) {
        return true; /* the host picks rows of tables out: that cannot be recorded */
    }
    if (!m->queue->record(m->be)) {
        return m->be->ops->sync(m->be, err); /* taken when it is used, then */
    }
    send_largest_step(m, max_model_len, max_seqs);
    run_longest(m, max_model_len);
    if (m->o.drafts) {
        run_largest_round(m);
    }
    bool ok = m->queue->dropped(m->be, err);
    if (!ok && err->code != DI_ERR_NO_MEMORY) {
        di_log(DI_LOG_WARN, "scratch memory is taken when it is used: %s", err->message);
        return true;
    }
    return ok;
}

/* The programs for short sequences, of up to so many rows. */
static void record_all(di_model *m, bool context, int rows, di_model_progress progress,
                       void *user) {
    di_programs *p = m->programs;
    int last = di_buckets_find(&p->buckets, rows);
    m->context = context;
    for (int b = last; b >= 0 && !p->off; b--) { /* the largest takes the most scratch */
        if (progress) {
            progress(user, last - b, last + 1);
        }
        fill_small(m, NULL, 0, p->buckets.sizes[b], p->classes[0]);
        p->at[context][0][b] = di_program_record(m, true, run_small, NULL);
    }
    m->in = &m->any;
}

bool di_model_prepare(di_model *m, int max_seqs, int max_rows, bool *recorded,
                      di_model_progress progress, void *user, di_error *err) {
    int most = max_rows < m->o.max_rows ? max_rows : m->o.max_rows;
    most = most < m->o.max_logits ? most : m->o.max_logits;
    di_programs *p = m->programs = di_calloc(1, sizeof *p);
    if (!p || !di_inputs_create(m, &m->small, most, most)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for steps of %d rows", most);
    }
    di_buckets_choose(&p->buckets, most);
    choose_classes(p, m->c->max_position_embeddings);
    if (di_model_can_queue(m) && m->o.drafts) {
        record_all(m, true, most, progress, user);
    }
    if (di_model_can_queue(m)) {
        record_all(m, false, max_seqs < most ? max_seqs : most, m->o.drafts ? NULL : progress,
                   user);
    }
    *recorded = !p->off && di_model_can_queue(m);
    return m->be->ops->sync(m->be, err);
}

/* ---- steps ------------------------------------------------------------------------------------*/

bool di_model_can_queue(const di_model *m) {
    return m->queue && m->programs && (m->device_hash || m->hasher.num_layers == 0);
}

/* The number of rows if all of them have logits and nothing is of a prompt that replays; else 0.
 * fed: tokens come from the step before, one for each part. */
static int small_rows(const di_model *m, const di_model_rows *parts, int n, bool fed) {
    int rows = 0;
    for (int i = 0; i < n; i++) {
        const di_model_rows *p = &parts[i];
        if (p->num_logits != p->num_tokens || p->image || p->replay_from > 0 ||
            p->num_tokens > m->small.room - rows || (fed && p->num_tokens > 1)) {
            return 0;
        }
        rows += p->num_tokens;
    }
    return rows;
}

static bool any_wants_context(const di_model *m, const di_model_rows *parts, int n) {
    for (int i = 0; m->o.drafts && i < n; i++) {
        if (!parts[i].no_context) {
            return true;
        }
    }
    return false;
}

static void queue_small(di_model *m, const di_model_rows *parts, int n, int rows,
                        const int32_t *source, const int32_t *drawn) {
    di_programs *p = m->programs;
    int64_t longest = 0;
    for (int i = 0; i < n; i++) {
        int64_t end = parts[i].pos0 + parts[i].num_tokens;
        longest = end > longest ? end : longest;
    }
    int bucket = di_buckets_find(&p->buckets, rows), class = class_of(p, longest);
    m->context = any_wants_context(m, parts, n);
    fill_small(m, parts, n, p->buckets.sizes[bucket], p->classes[class]);
    di_inputs *in = &m->small;
    if (source) {
        memcpy(in->source, source, (size_t)n * sizeof *source);
    }
    di_inputs_send(m, in->memory, in->bytes);
    m->queue->step_send(m->be, &in->all.step);
    if (source) {
        m->queue->feed(m->be, in->tokens, in->source, n, drawn);
    }
    bool recorded = di_program_run(m, &p->at[m->context][class][bucket], true, run_small, NULL);
    p->counts.recorded_steps += recorded;
    p->counts.other_steps += !recorded;
}

bool di_model_queue(di_model *m, const di_model_rows *parts, int num_parts, const int32_t *source,
                    const int32_t *drawn, di_error *err) {
    if (!di_model_check(m, parts, num_parts, true, err)) {
        return false;
    }
    int rows = small_rows(m, parts, num_parts, source != NULL);
    if (rows > 0) {
        queue_small(m, parts, num_parts, rows, source, drawn);
    } else {
        m->programs->counts.other_steps++;
        di_model_run(m, parts, num_parts, source, drawn);
    }
    return true;
}

const float *di_model_logits(const di_model *m) {
    return m->a.logits;
}

di_model_counts di_model_get_counts(const di_model *m) {
    return m->programs ? m->programs->counts : (di_model_counts){0};
}
