/* Steps that are queued: see queue.h.
 *
 * A program's launches are fixed; what differs from step to step is in argument memory. So a step
 * of n rows with logits, one or (where drafts are verified) several a sequence, is filled up to a
 * bucket's number of rows. A filling row is a sequence of its own with one token before it, in slot
 * 0 and block 0, which are nobody's; all of them compute the same and so choose the same experts.
 * Sequences are one more than rows, those at the end having none. Entries that a program stores are
 * as many as rows: a row that closes none stands for the last sequence, whose entries fall into
 * block 0 too. Lengths count by class: launches cover the class's longest sequence, and blocks
 * behind a sequence's end leave at once. */
#include "model/queue.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "model/graph.h"

enum { MAX_BUCKETS = 96, MAX_CLASSES = 8, FIRST_CLASS = 4096, CLASS_STEP = 4 };

static const int32_t nobodys_block[1] = {0};

typedef struct di_programs {
    int num_buckets, buckets[MAX_BUCKETS]; /* rows, ascending */
    int num_classes;
    int64_t classes[MAX_CLASSES]; /* tokens of the longest sequence, ascending */
    di_program *at[MAX_CLASSES][MAX_BUCKETS];
    bool off; /* recording has failed */
    uint64_t programs, others;
} di_programs;

/* ---- buckets ----------------------------------------------------------------------------------*/

/* 1, 2, 4, 8, then every 8th to 64, every 16th to 256, every 64th: filling costs what it reads, of
 * experts above all, and each program some memory. */
static int next_bucket(int rows) {
    return rows < 8 ? 2 * rows : rows + (rows < 64 ? 8 : rows < 256 ? 16 : 64);
}

static void choose_buckets(di_programs *p, int most) {
    for (int rows = 1; rows < most && p->num_buckets < MAX_BUCKETS - 1; rows = next_bucket(rows)) {
        p->buckets[p->num_buckets++] = rows;
    }
    p->buckets[p->num_buckets++] = most;
}

static void choose_classes(di_programs *p, int64_t longest) {
    int64_t tokens = FIRST_CLASS;
    for (; tokens < longest && p->num_classes < MAX_CLASSES - 1; tokens *= CLASS_STEP) {
        p->classes[p->num_classes++] = tokens;
    }
    p->classes[p->num_classes++] = longest;
}

static int bucket_of(const di_programs *p, int rows) {
    int b = 0;
    while (p->buckets[b] < rows) {
        b++;
    }
    return b;
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
    di_inputs *in = &m->small;
    di_pass *pass = &in->all;
    static const int32_t no_token = 0;
    static const di_model_rows nobody = {.pos0 = 1,
                                         .blocks = nobodys_block,
                                         .tokens = &no_token,
                                         .num_tokens = 1,
                                         .before = {-1, -1, -1, -1, -1, -1, -1}};
    int row = 0, s = 0;
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

static void run_small(di_model *m, int rows) {
    m->context = m->o.drafts; /* a program is for every step */
    di_graph_run(m, false);
    di_graph_head(m, rows);
}

/* ---- programs ---------------------------------------------------------------------------------*/

/* Records the step that the small inputs hold; NULL: that cannot be. */
static di_program *record(di_model *m, int rows) {
    di_error err;
    di_programs *p = m->programs;
    if (p->off || !m->queue->record(m->be)) {
        p->off = true;
        return NULL;
    }
    m->branches = true;
    run_small(m, rows);
    m->branches = false;
    di_program *program = m->queue->recorded(m->be, &err);
    if (!program) {
        p->off = true;
        di_log(DI_LOG_WARN, "steps run op by op: %s", err.message);
    }
    return program;
}

static void run_program(di_model *m, int bucket, int class) {
    di_programs *p = m->programs;
    di_program **at = &p->at[class][bucket];
    int rows = p->buckets[bucket];
    if (!*at) {
        *at = record(m, rows);
    }
    if (*at && !m->queue->replay(m->be, *at)) {
        m->queue->program_free(m->be, *at);
        *at = record(m, rows);
        if (*at && !m->queue->replay(m->be, *at)) {
            m->queue->program_free(m->be, *at);
            *at = NULL;
        }
    }
    p->programs += *at != NULL;
    p->others += *at == NULL;
    if (!*at) {
        run_small(m, rows);
    }
}

void di_programs_destroy(di_model *m) {
    di_programs *p = m->programs;
    for (int k = 0; p && k < p->num_classes; k++) {
        for (int b = 0; b < p->num_buckets; b++) {
            m->queue->program_free(m->be, p->at[k][b]);
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

/* Block tables of as many sequences as there can be, up to 16 MiB of them in all. */
static void send_largest_step(di_model *m, int64_t tokens, int seqs) {
    enum { MOST_ENTRIES = 4 << 20 };
    di_inputs *in = &m->any;
    int n = seqs < in->max_rows ? seqs : in->max_rows;
    int64_t fit = (int64_t)(MOST_ENTRIES / n) * DI_BLOCK_TOKENS;
    for (int i = 0; i <= n; i++) {
        in->all.seqs[i] = (di_seq_rows){
            .num_rows = 1, .pos0 = fit < tokens ? fit : tokens, .blocks = nobodys_block};
    }
    in->all.step = (di_step){.num_rows = in->max_rows,
                             .num_seqs = n + 1,
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
    bool ok = m->queue->dropped(m->be, err);
    if (!ok && err->code != DI_ERR_NO_MEMORY) {
        di_log(DI_LOG_WARN, "scratch memory is taken when it is used: %s", err->message);
        return true;
    }
    return ok;
}

bool di_model_prepare(di_model *m, int max_rows, bool *recorded, di_model_progress progress,
                      void *user, di_error *err) {
    int most = max_rows < m->o.max_rows ? max_rows : m->o.max_rows;
    most = most < m->o.max_logits ? most : m->o.max_logits;
    di_programs *p = m->programs = di_calloc(1, sizeof *p);
    if (!p || !di_inputs_create(m, &m->small, most, most)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for steps of %d rows", most);
    }
    choose_buckets(p, most);
    choose_classes(p, m->c->max_position_embeddings);
    m->in = &m->small;
    for (int b = p->num_buckets - 1; b >= 0 && !p->off && di_model_can_queue(m); b--) {
        if (progress) {
            progress(user, p->num_buckets - 1 - b, p->num_buckets);
        }
        fill_small(m, NULL, 0, p->buckets[b], p->classes[0]);
        p->at[0][b] = record(m, p->buckets[b]);
    }
    m->in = &m->any;
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
            p->num_tokens > m->small.max_rows - rows || (fed && p->num_tokens > 1)) {
            return 0;
        }
        rows += p->num_tokens;
    }
    return rows;
}

static void queue_small(di_model *m, const di_model_rows *parts, int n, int rows,
                        const int32_t *source, const int32_t *drawn) {
    di_programs *p = m->programs;
    di_inputs *in = m->in = &m->small;
    int64_t longest = 0;
    for (int i = 0; i < n; i++) {
        int64_t end = parts[i].pos0 + parts[i].num_tokens;
        longest = end > longest ? end : longest;
    }
    int bucket = bucket_of(p, rows), class = class_of(p, longest);
    fill_small(m, parts, n, p->buckets[bucket], p->classes[class]);
    if (source) {
        memcpy(in->source, source, (size_t)n * sizeof *source);
    }
    di_inputs_send(m, in->memory, in->bytes);
    m->queue->step_send(m->be, &in->all.step);
    if (source) {
        m->queue->feed(m->be, in->tokens, in->source, n, drawn);
    }
    run_program(m, bucket, class);
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
        m->programs->others++;
        di_model_run(m, parts, num_parts, source, drawn);
    }
    return true;
}

const float *di_model_logits(const di_model *m) {
    return m->a.logits;
}

void di_model_step_counts(const di_model *m, uint64_t *programs, uint64_t *others) {
    *programs = m->programs ? m->programs->programs : 0;
    *others = m->programs ? m->programs->others : 0;
}
