/* Index scores and selection. Keys are decoded once for a group of queries; scores wait as ordered
 * integers (select.c), and each query then chooses on its own. */
#include <math.h>
#include <string.h>

#include "ops/address.h"
#include "ops/cpu/internal.h"

enum { CHUNK = DI_CPU_SLOTS, KEYS_AT_ONCE = 1 << 22 /* scores of a group of queries, 16 MiB */ };

typedef struct index_call {
    di_cpu *cpu;
    const di_step *step;
    const di_seq_rows *seq;
    int source, ratio, heads, key_dim, k, max_blocks, block_size;
    const di_bf16 *q, *weights;
    int32_t *candidates, *topk;
    bool build, alone; /* alone: no team, all loops by this thread */
    /* one group of queries: rows first .. first + count of the sequence */
    int first, count;
    int64_t entries; /* most that any of them sees */
    float *query;    /* [count][heads][query_floats] in lane order, after Q4I */
    float *weight;   /* [count][heads] */
    uint32_t *keys;  /* [count][entries] */
    float *scratch;  /* of each thread */
    size_t query_floats, stride;
} index_call;

static int64_t visible(const index_call *c, int i) {
    return (c->seq->pos0 + c->first + i + 1) / c->ratio;
}

static size_t row_of(const index_call *c, int i) {
    return (size_t)c->seq->row0 + (size_t)c->first + (size_t)i;
}

static void prepare_query(const index_call *c, int i) {
    float factor = (float)(1 / sqrt((double)c->key_dim) / sqrt((double)c->heads));
    for (int h = 0; h < c->heads; h++) {
        size_t from = row_of(c, i) * (size_t)c->heads + (size_t)h;
        size_t to = (size_t)i * (size_t)c->heads + (size_t)h;
        c->cpu->k->quant4(c->q + from * (size_t)c->key_dim, c->key_dim,
                          c->query + to * c->query_floats);
        c->weight[to] = di_bf16_to_f32(c->weights[from]) * factor;
    }
}

/* Scores of query i against n decoded keys. */
static void score(const index_call *c, int i, const float *decoded, int n, float *dot,
                  uint32_t *keys) {
    float scores[CHUNK];
    size_t at = (size_t)i * (size_t)c->heads;
    c->cpu->k->dots(c->query + at * c->query_floats, c->query_floats, c->heads, decoded,
                    c->query_floats, n, c->key_dim, dot, CHUNK);
    c->cpu->k->index_scores(dot, CHUNK, c->heads, c->weight + at, n, scores);
    for (int e = 0; e < n; e++) {
        keys[e] = di_cpu_score_key(scores[e]);
    }
}

static void decode(const index_call *c, int64_t entry, float *out) {
    c->cpu->k->key_row(di_key_row(&c->step->pool, c->seq->blocks, c->source, c->ratio, entry),
                       c->key_dim, out);
}

/* One chunk of entries for all queries of the group that see some of it. */
static void score_chunk(const index_call *c, int64_t begin, float *scratch) {
    float *decoded = scratch, *dot = scratch + (CHUNK + DI_CPU_PAD_ROWS) * c->query_floats;
    int n = c->entries - begin < CHUNK ? (int)(c->entries - begin) : CHUNK;
    for (int e = 0; e < n; e++) {
        decode(c, begin + e, decoded + (size_t)e * c->query_floats);
    }
    for (int i = 0; i < c->count; i++) {
        int64_t seen = visible(c, i) - begin;
        if (seen > 0) {
            score(c, i, decoded, seen < n ? (int)seen : n, dot,
                  c->keys + (size_t)i * (size_t)c->entries + begin);
        }
    }
}

static int num_candidates(const index_call *c, int i) {
    const int32_t *list = c->candidates + row_of(c, i) * (size_t)c->max_blocks;
    int n = 0;
    while (n < c->max_blocks && list[n] >= 0) {
        n++;
    }
    return n;
}

/* Query i against the entries of its candidate blocks, whose keys stand close together; place
 * b * block_size + x belongs to entry list[b] * block_size + x. */
static void score_candidates(const index_call *c, int i, int64_t begin, float *scratch) {
    float *decoded = scratch, *dot = scratch + (CHUNK + DI_CPU_PAD_ROWS) * c->query_floats;
    const int32_t *list = c->candidates + row_of(c, i) * (size_t)c->max_blocks;
    int64_t places = (int64_t)num_candidates(c, i) * c->block_size, seen = visible(c, i);
    int n = 0;
    uint32_t *keys = c->keys + (size_t)i * (size_t)c->entries + begin;
    for (; n < CHUNK && begin + n < places; n++) {
        int64_t place = begin + n;
        int64_t entry =
            (int64_t)list[place / c->block_size] * c->block_size + place % c->block_size;
        if (entry >= seen) {
            break; /* only the last block can reach beyond what is visible */
        }
        decode(c, entry, decoded + (size_t)n * c->query_floats);
    }
    score(c, i, decoded, n, dot, keys);
    for (; n < CHUNK && begin + n < places; n++) {
        keys[n] = 0;
    }
}

/* Best entry of each block; the newest visible entry's block comes first of all. Overwrites keys.
 */
static void choose_blocks(const index_call *c, int i, uint32_t *keys) {
    int64_t n = visible(c, i), blocks = (n + c->block_size - 1) / c->block_size;
    for (int64_t b = 0; b < blocks; b++) {
        uint32_t top = 0;
        for (int64_t e = b * c->block_size; e < n && e < (b + 1) * c->block_size; e++) {
            top = keys[e] > top ? keys[e] : top;
        }
        keys[b] = b == blocks - 1 ? UINT32_MAX : top;
    }
    di_cpu_select(keys, blocks, c->max_blocks,
                  c->candidates + row_of(c, i) * (size_t)c->max_blocks);
}

static void choose(const index_call *c, int i) {
    uint32_t *keys = c->keys + (size_t)i * (size_t)c->entries;
    int32_t *chosen = c->topk + row_of(c, i) * (size_t)c->k;
    if (!c->candidates || c->build) {
        di_cpu_select(keys, visible(c, i), c->k, chosen);
        if (c->build && c->candidates) {
            choose_blocks(c, i, keys);
        }
        return;
    }
    const int32_t *list = c->candidates + row_of(c, i) * (size_t)c->max_blocks;
    di_cpu_select(keys, (int64_t)num_candidates(c, i) * c->block_size, c->k, chosen);
    for (int j = 0; j < c->k && chosen[j] >= 0; j++) {
        chosen[j] = list[chosen[j] / c->block_size] * c->block_size + chosen[j] % c->block_size;
    }
}

static void prepare_queries(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        prepare_query(arg, (int)i);
    }
}

static void score_chunks(void *arg, int64_t begin, int64_t end, int member) {
    const index_call *c = arg;
    for (int64_t t = begin; t < end; t++) {
        score_chunk(c, t * CHUNK, c->scratch + (size_t)member * c->stride);
    }
}

static void score_candidate_chunks(void *arg, int64_t begin, int64_t end, int member) {
    const index_call *c = arg;
    int64_t chunks = (c->entries + CHUNK - 1) / CHUNK;
    for (int64_t t = begin; t < end; t++) {
        score_candidates(c, (int)(t / chunks), t % chunks * CHUNK,
                         c->scratch + (size_t)member * c->stride);
    }
}

static void choose_all(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    for (int64_t i = begin; i < end; i++) {
        choose(arg, (int)i);
    }
}

/* The team's loop, or the caller's own. */
static void loop(index_call *c, double work, int64_t n, di_team_pass *pass) {
    if (c->alone) {
        pass(c, 0, n, 0);
    } else {
        di_cpu_for(c->cpu, work, n, pass, c);
    }
}

static double work_of(const index_call *c, int64_t rows, int64_t entries) {
    return (double)rows * (double)entries * c->heads * c->key_dim / 4;
}

static void run_group(index_call *c) {
    bool direct = !c->candidates || c->build;
    int64_t chunks = (c->entries + CHUNK - 1) / CHUNK;
    double work = work_of(c, c->count, c->entries);
    loop(c, work, c->count, prepare_queries);
    loop(c, work, direct ? chunks : chunks * c->count,
         direct ? score_chunks : score_candidate_chunks);
    loop(c, work, c->count, choose_all);
}

/* Places that a query's keys need: its visible entries, or those of all its candidate blocks. */
static int64_t places_needed(const index_call *c, int64_t entries) {
    if (!c->candidates || c->build) {
        return entries;
    }
    int64_t most = (int64_t)c->max_blocks * c->block_size;
    int64_t rounded = (entries + c->block_size - 1) / c->block_size * c->block_size;
    return rounded < most ? rounded : most;
}

/* Most places that a row of the sequence needs; at least 1. */
static int64_t most_places(const index_call *c, const di_seq_rows *seq) {
    int64_t places = places_needed(c, (seq->pos0 + seq->num_rows) / c->ratio);
    return places > 0 ? places : 1;
}

/* Memory of one thread for the chunk it is at. */
static size_t chunk_floats(const index_call *c) {
    return (CHUNK + DI_CPU_PAD_ROWS) * c->query_floats + (size_t)c->heads * CHUNK;
}

static void run_rows(index_call *c, int group) {
    for (c->first = 0; c->first < c->seq->num_rows; c->first += group) {
        int left = c->seq->num_rows - c->first;
        c->count = left < group ? left : group;
        c->entries = places_needed(c, visible(c, c->count - 1));
        run_group(c);
    }
}

/* One sequence by the whole team. */
static void run_sequence(index_call *c) {
    int64_t places = most_places(c, c->seq), limit = KEYS_AT_ONCE / places;
    int group = limit < c->cpu->threads    ? c->cpu->threads
                : limit < c->seq->num_rows ? (int)limit
                                           : c->seq->num_rows;
    size_t queries = (size_t)group * (size_t)c->heads;
    c->query = di_cpu_scratch(c->cpu, DI_CPU_USE_A, queries, c->query_floats * sizeof(float));
    c->weight = di_cpu_scratch(c->cpu, DI_CPU_USE_B, queries, sizeof(float));
    c->keys =
        di_cpu_scratch(c->cpu, DI_CPU_USE_LIST, (size_t)group, (size_t)places * sizeof *c->keys);
    c->scratch = di_cpu_thread_scratch(c->cpu, chunk_floats(c), &c->stride);
    if (!c->cpu->failed) {
        run_rows(c, group);
    }
}

/* Many small sequences: each by one member, with memory of its own. */
typedef struct sequences_loop {
    const index_call *call;
    size_t queries; /* most of one sequence: rows times heads */
    float *memory;
    size_t stride;
} sequences_loop;

static void run_sequences(void *arg, int64_t begin, int64_t end, int member) {
    const sequences_loop *l = arg;
    index_call c = *l->call;
    c.alone = true;
    c.query = l->memory + (size_t)member * l->stride;
    c.weight = c.query + l->queries * c.query_floats;
    c.scratch = c.weight + l->queries;
    c.keys = (uint32_t *)(c.scratch + chunk_floats(&c));
    for (int64_t s = begin; s < end; s++) {
        c.seq = &c.step->seqs[s];
        run_rows(&c, c.seq->num_rows);
    }
}

static void run(index_call *c) {
    const di_step *step = c->step;
    double total = 0, largest = 0;
    int64_t rows = 0, keys = 0; /* the most of one sequence */
    for (int s = 0; s < step->num_seqs; s++) {
        const di_seq_rows *seq = &step->seqs[s];
        int64_t places = most_places(c, seq);
        double work = work_of(c, seq->num_rows, places);
        total += work;
        largest = work > largest ? work : largest;
        rows = seq->num_rows > rows ? seq->num_rows : rows;
        keys = seq->num_rows * places > keys ? seq->num_rows * places : keys;
    }
    if (largest > total / c->cpu->threads || keys > KEYS_AT_ONCE / c->cpu->threads) {
        for (int s = 0; s < step->num_seqs && !c->cpu->failed; s++) {
            c->seq = &step->seqs[s];
            run_sequence(c);
        }
        return;
    }
    sequences_loop l = {.call = c, .queries = (size_t)rows * (size_t)c->heads};
    size_t floats = l.queries * (c->query_floats + 1) + chunk_floats(c) + (size_t)keys;
    l.memory = di_cpu_thread_scratch(c->cpu, floats, &l.stride);
    if (l.memory) {
        di_cpu_for(c->cpu, total, step->num_seqs, run_sequences, &l);
    }
}

void di_cpu_index_topk(di_backend *be, const di_step *step, int source, int ratio, const di_bf16 *q,
                       const di_bf16 *weights, int heads, int key_dim, int k, int32_t *candidates,
                       bool build, int max_blocks, int block_size, int32_t *topk) {
    index_call c = {
        .cpu = di_cpu_of(be),
        .step = step,
        .source = source,
        .ratio = ratio,
        .heads = heads,
        .key_dim = key_dim,
        .k = k,
        .max_blocks = max_blocks,
        .block_size = block_size,
        .q = q,
        .weights = weights,
        .candidates = candidates,
        .topk = topk,
        .build = build,
        .query_floats = di_cpu_row_floats(key_dim),
    };
    if (!c.cpu->failed && step->num_seqs > 0) {
        run(&c);
    }
}
