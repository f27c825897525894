#include "support/sched_sim.h"

#include <stdlib.h>
#include <string.h>

#include "ops/cpu/cpu.h"
#include "support/cmocka.h"
#include "support/configs.h"

#define CHECK(s, ok, ...)                                                                          \
    do {                                                                                           \
        if (!(ok)) {                                                                               \
            print_message("seed %llu, turn %ld: ", (unsigned long long)(s)->o.seed, (s)->turn);    \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

/* Backtracking: what snapshots need with five drafts. */
enum { MAX_BEST_IDLE = 4, MAX_MODEL_BLOCKS = 64, BACKTRACKING = 11 };

static void *must(void *p) {
    assert_non_null(p);
    return p;
}

/* ---- the device's arithmetic ---- */

static uint64_t mix(uint64_t state, uint64_t value) {
    state = (state ^ value) * 0x9e3779b97f4a7c15u;
    state ^= state >> 29;
    return state * 0xbf58476d1ce4e5b9u;
}

static int32_t token_of(uint64_t state) {
    return (int32_t)(state >> 40) % 1000;
}

/* What a slot holds: a ring of the newest states, so that drafts can be taken back. */
enum { SLOT_RING = BACKTRACKING };

typedef struct slot_state {
    struct {
        int64_t len;
        uint64_t state;
    } ring[SLOT_RING]; /* behind len tokens, at len % SLOT_RING */
} slot_state;

static slot_state *slot_memory(const sim *s, int32_t slot) {
    const di_state_pool *pool = di_cache_pool(s->cache);
    return (slot_state *)(pool->slots + (size_t)slot * pool->layout->slot_stride);
}

/* State behind each of its tokens. */
static uint64_t *block_memory(const sim *s, int32_t block) {
    const di_state_pool *pool = di_cache_pool(s->cache);
    return (uint64_t *)(pool->blocks + (size_t)block * pool->layout->block_stride);
}

/* ---- opening and closing ---- */

sim_options sim_defaults(void) {
    return (sim_options){
        .num_blocks = 40,
        .num_snapshots = 16,
        .sched = {.max_num_seqs = 8,
                  .max_num_batched_tokens = 256,
                  .max_mixed_prefill_tokens = 64,
                  .max_logits = 8 + 16,
                  .snapshot_interval = 4 * DI_BLOCK_TOKENS},
    };
}

static void open_work(sim_work *w, const sim_options *o) {
    size_t n = (size_t)o->sched.max_num_seqs;
    assert_true(di_plan_create(&w->plan, &o->sched, NULL));
    w->rows = must(calloc(n, sizeof *w->rows));
    w->results = must(calloc(n * (1 + DI_MAX_DRAFTS), sizeof *w->results));
    w->emitted = must(calloc(n, sizeof *w->emitted));
    w->made = must(calloc(n, sizeof *w->made));
    w->tokens = must(
        calloc((size_t)o->sched.max_num_batched_tokens + n * DI_MAX_DRAFTS, sizeof *w->tokens));
    w->blocks = must(calloc(n * MAX_MODEL_BLOCKS, sizeof *w->blocks));
}

void sim_open(sim *s, const sim_options *o) {
    di_error err = {0};
    *s = (sim){.o = *o, .costs = {.token_seconds = 1e-3, .byte_seconds = 1e-9}};
    s->config = small_config((MAX_MODEL_BLOCKS - 1) * DI_BLOCK_TOKENS);
    di_cache_options c = {
        .num_blocks = o->num_blocks,
        .num_slots = o->sched.max_num_seqs,
        .num_snapshots = o->num_snapshots,
        .max_backtracking = BACKTRACKING,
        .compare_tokens = true,
    };
    s->be = must(di_cpu_create(&(di_cpu_options){.threads = 1}, &err));
    s->cache = di_cache_create(&s->config, s->be, &c, &err);
    s->sched = s->cache ? di_sched_create(&o->sched, s->cache, &err) : NULL;
    CHECK(s, s->sched, "%s", err.message);
    const di_state_layout *l = di_cache_pool(s->cache)->layout;
    assert_true(l->block_stride >= DI_BLOCK_TOKENS * sizeof(uint64_t));
    assert_true(l->slot_stride >= sizeof(slot_state));
    open_work(&s->works[0], o);
    open_work(&s->works[1], o);
}

static void free_job(sim_job *job) {
    free(job->job.tokens);
    free(job->wanted);
    free(job->states);
    free(job);
}

void sim_close(sim *s) {
    di_cache_stats stats;
    CHECK(s, s->num_alive == 0, "%d jobs have not ended", s->num_alive);
    sim_check(s);
    di_cache_get_stats(s->cache, &stats);
    CHECK(s, stats.blocks_free + stats.blocks_cached == stats.blocks,
          "of %d blocks %d are free and %d cached", stats.blocks, stats.blocks_free,
          stats.blocks_cached);
    CHECK(s, stats.slots_free == stats.slots, "of %d slots %d are free", stats.slots,
          stats.slots_free);
    for (int i = 0; i < s->num_jobs; i++) {
        free_job(s->jobs[i]);
    }
    for (int i = 0; i < 2; i++) {
        sim_work *w = &s->works[i];
        di_plan_destroy(&w->plan);
        free(w->rows);
        free(w->results);
        free(w->emitted);
        free(w->made);
        free(w->tokens);
        free(w->blocks);
    }
    free(s->jobs);
    di_sched_destroy(s->sched);
    di_cache_destroy(s->cache);
    s->be->ops->destroy(s->be);
}

void sim_check(const sim *s) {
    di_error err;
    CHECK(s, di_sched_check(s->sched, &err) && di_cache_check(s->cache, &err), "%s", err.message);
}

/* ---- jobs ---- */

void sim_prompt(int32_t *tokens, int64_t n, int branch, int64_t fork) {
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i % 900) + (i < fork ? 0 : 1000 * (branch + 1));
    }
}

static void foretell(sim_job *job, const int32_t *prompt, int64_t n, int64_t max_len) {
    uint64_t state = mix(1, job->job.salt.low);
    for (int64_t i = 0; i < max_len; i++) {
        job->states[i] = state;
        job->wanted[i] = i < n ? prompt[i] : token_of(state);
        state = mix(state, (uint64_t)job->wanted[i]);
    }
    job->states[max_len] = state;
}

sim_job *sim_add(sim *s, const di_job *like, const int32_t *prompt, int64_t n, int64_t max_len) {
    sim_job *job = must(calloc(1, sizeof *job));
    size_t room = (size_t)max_len;
    job->job = like ? *like : (di_job){0};
    job->job.owner = job;
    job->job.num_prompt = job->job.num_tokens = n;
    job->job.max_len = job->stop_at = max_len;
    job->job.tokens = must(calloc(room, sizeof *job->job.tokens));
    job->wanted = must(calloc(room, sizeof *job->wanted));
    job->states = must(calloc(room + 1, sizeof *job->states));
    job->first_token = job->last_token = -1;
    memcpy(job->job.tokens, prompt, (size_t)n * sizeof *prompt);
    foretell(job, prompt, n, max_len);
    if (s->num_jobs == s->job_capacity) {
        s->job_capacity = s->job_capacity ? 2 * s->job_capacity : 64;
        s->jobs = must(realloc(s->jobs, (size_t)s->job_capacity * sizeof(sim_job *)));
    }
    s->jobs[s->num_jobs++] = job;
    s->num_alive++;
    assert_true(di_sched_add(s->sched, &job->job, NULL));
    return job;
}

static void note_done(sim *s, sim_job *job) {
    if (job->job.ended && job->job.queued == 0 && !job->done) {
        job->done = true;
        s->num_alive--;
    }
}

void sim_end(sim *s, sim_job *job) {
    if (!job->job.ended) {
        di_sched_end(s->sched, &job->job);
        CHECK(s, job->job.ended && job->job.state == DI_JOB_NEW, "a job has not ended");
        note_done(s, job);
    }
}

/* ---- the device ---- */

static void move_state(sim *s, sim_work *w, bool to_host) {
    for (size_t i = 0; i < w->plan.num_moves; i++) {
        di_plan_move *m = &w->plan.moves[i];
        if (m->to_host == to_host && to_host) {
            di_seq_export(s->cache, &m->seq, m->host->data);
        } else if (m->to_host == to_host) {
            di_seq_import(s->cache, &m->seq, m->host->len, m->host->data);
        }
    }
}

static void copy_slots(sim *s, const sim_work *w) {
    for (int i = 0; i < w->plan.num_copies; i++) {
        *slot_memory(s, w->plan.copies[i].to) = *slot_memory(s, w->plan.copies[i].from);
    }
}

/* The end of each block that lies before pos0. */
static void check_history(const sim *s, const sim_job *job, const sim_row *row) {
    for (int64_t begin = 0; begin < row->pos0; begin += DI_BLOCK_TOKENS) {
        int64_t end = begin + DI_BLOCK_TOKENS < row->pos0 ? begin + DI_BLOCK_TOKENS : row->pos0;
        int32_t block = row->blocks[begin / DI_BLOCK_TOKENS];
        CHECK(s, block_memory(s, block)[(end - 1) % DI_BLOCK_TOKENS] == job->states[end],
              "block %d does not hold what a row at %lld needs", block, (long long)row->pos0);
    }
}

/* Right ones, and wrong ones from some place on, for what follows the token at `anchor`. */
static void propose(const sim *s, sim_work *w, int i, int64_t anchor) {
    sim_job *job = w->plan.rows[i].job->owner;
    uint64_t random = mix(job->states[anchor], (uint64_t)s->turn) >> 8;
    int most = w->plan.rows[i].propose ? s->o.sched.max_drafts : 0;
    bool whole = random >> 50 & 1, lucky = random >> 51 & 1; /* often as many as there can be */
    w->made[i] = job->num_drafts = whole ? most : (int)(random % (uint64_t)(most + 1));
    int right = lucky ? most : (int)((random >> 16) % (uint64_t)(most + 2));
    for (int k = 0; k < job->num_drafts; k++) {
        int64_t at = anchor + 1 + k;
        job->drafts[k] = at < job->job.max_len && k < right ? job->wanted[at] : 1000;
    }
}

static void run_row(sim *s, sim_work *w, int i) {
    sim_row *row = &w->rows[i];
    sim_job *job = w->plan.rows[i].job->owner;
    slot_state *slot = slot_memory(s, row->slot);
    uint64_t state = job->states[0];
    int outputs = row->outputs;
    if (row->pos0 > 0) {
        int at = (int)(row->pos0 % SLOT_RING);
        CHECK(s, slot->ring[at].len == row->pos0 && slot->ring[at].state == job->states[row->pos0],
              "slot %d holds state of %lld tokens, not that in front of row %lld", row->slot,
              (long long)slot->ring[at].len, (long long)row->pos0);
        state = slot->ring[at].state;
        check_history(s, job, row);
    }
    int known = row->num_tokens - (outputs > 0 ? outputs - 1 : 0); /* the others are drafts */
    int32_t *results = w->results + i * (1 + DI_MAX_DRAFTS);
    w->emitted[i] = w->made[i] = 0;
    for (int t = 0; t < row->num_tokens; t++) {
        int64_t pos = row->pos0 + t;
        CHECK(s, t >= known || row->tokens[t] == job->wanted[pos], "token %lld is %d, %d expected",
              (long long)pos, row->tokens[t], job->wanted[pos]);
        state = mix(state, (uint64_t)row->tokens[t]);
        block_memory(s, row->blocks[pos / DI_BLOCK_TOKENS])[pos % DI_BLOCK_TOKENS] = state;
        slot->ring[(pos + 1) % SLOT_RING].len = pos + 1;
        slot->ring[(pos + 1) % SLOT_RING].state = state;
        bool taken = t == known - 1 || (w->emitted[i] == t - known + 1 && t >= known &&
                                        row->tokens[t] == results[t - known]);
        if (outputs > 0 && taken) {
            results[w->emitted[i]++] = token_of(state);
        }
    }
    job->rows += row->num_tokens;
    s->drafts_taken += outputs > 1 ? w->emitted[i] - 1 : 0;
    s->drafts_refused += outputs - w->emitted[i];
    if (outputs > 0) {
        propose(s, w, i, row->pos0 + known - 1 + w->emitted[i]);
    }
}

/* What the step before gave decides where a row goes on; then drafts are shared out. */
static void resolve(sim *s, sim_work *w) {
    int left = w->plan.num_drafts;
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_plan_row *p = &w->plan.rows[i];
        sim_job *job = p->job->owner;
        sim_row *row = &w->rows[i];
        if (row->source >= 0) {
            int given = w->before->emitted[row->source];
            const int32_t *results = w->before->results + row->source * (1 + DI_MAX_DRAFTS);
            row->pos0 += given - 1;
            row->tokens[row->num_tokens - 1] = results[given - 1];
        }
        int n = p->outputs > 1 ? p->outputs - 1 : 0;
        n = n < job->num_drafts ? n : job->num_drafts;
        n = n < left ? n : left;
        memcpy(row->tokens + row->num_tokens, job->drafts, (size_t)n * sizeof *job->drafts);
        row->num_tokens += n;
        row->outputs += n;
        left -= n;
        CHECK(s, row->pos0 + row->num_tokens <= p->pos0 + p->num_tokens,
              "row %d ends at %lld, behind its plan", i, (long long)row->pos0 + row->num_tokens);
        job->num_drafts = row->outputs > 0 ? 0 : job->num_drafts;
    }
}

static void run_work(sim *s, sim_work *w) {
    move_state(s, w, true);
    copy_slots(s, w);
    move_state(s, w, false);
    resolve(s, w);
    for (int i = 0; i < w->plan.num_rows; i++) {
        run_row(s, w, i);
    }
    w->ran = true;
}

/* ---- the step thread ---- */

/* Copies what a plan's rows need, as it is now. */
static void fill(sim *s, sim_work *w) {
    int32_t *tokens = w->tokens, *blocks = w->blocks;
    w->before = s->unread;
    w->ran = false;
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_plan_row *p = &w->plan.rows[i];
        const di_job *job = p->job;
        sim_row *row = &w->rows[i];
        int n = p->num_tokens - (p->outputs > 1 ? p->outputs - 1 : 0);
        int64_t pos0 = p->pos0 - (p->in_flight > 0 ? p->in_flight - 1 : 0);
        *row = (sim_row){.pos0 = pos0,
                         .num_tokens = n,
                         .num_blocks = job->seq.num_blocks,
                         .source = -1,
                         .outputs = p->outputs > 0,
                         .slot = job->seq.slot,
                         .blocks = blocks,
                         .tokens = tokens};
        int64_t known = job->num_tokens - pos0;
        if (known < n) {
            CHECK(s, known == n - 1, "%lld tokens of a row are not known", (long long)(n - known));
            for (int k = 0; w->before && k < w->before->plan.num_rows; k++) {
                bool sampled = w->before->plan.rows[k].outputs > 0;
                row->source = w->before->plan.rows[k].job == job && sampled ? k : row->source;
            }
            CHECK(s, row->source >= 0, "nothing samples a row's last token");
        }
        known = known < n ? known : n;
        memcpy(tokens, job->tokens + pos0, (size_t)known * sizeof *tokens);
        memcpy(blocks, job->seq.blocks, (size_t)job->seq.num_blocks * sizeof *blocks);
        tokens += p->num_tokens;
        blocks += job->seq.num_blocks;
    }
}

static bool is_full(const di_job *job) {
    return job->in_flight > 0 && job->num_tokens + 1 >= job->max_len;
}

static void mark_jobs(sim *s) {
    for (int i = 0; i < s->num_jobs; i++) {
        di_job *job = &s->jobs[i]->job;
        s->jobs[i]->ran = job->state == DI_JOB_RUNNING;
        s->jobs[i]->decodes = di_job_decodes(job) && di_job_need(job) == 1 && !is_full(job);
    }
}

static const sim_job *best_job(const sim *s) {
    const sim_job *best = NULL;
    for (int i = 0; i < s->num_jobs; i++) {
        const sim_job *job = s->jobs[i];
        if (!job->job.ended && (!best || di_job_before(&job->job, &best->job))) {
            best = job;
        }
    }
    return best;
}

static void check_budgets(const sim *s, const di_plan *p) {
    int tokens = 0, logits = 0, drafts = 0, prompt = 0, decoding = 0;
    for (int i = 0; i < p->num_rows; i++) {
        const di_plan_row *row = &p->rows[i];
        const sim_job *job = row->job->owner;
        CHECK(s,
              row->num_tokens > 0 && row->num_logits >= row->outputs &&
                  row->num_logits <= row->num_tokens,
              "row %d has %d tokens and %d logits", i, row->num_tokens, row->num_logits);
        CHECK(s, !row->job->ended && row->job->plan_row == -1, "row %d is of a job that ended", i);
        int of_drafts = row->outputs > 1 ? row->outputs - 1 : 0;
        drafts += of_drafts;
        tokens += row->num_tokens - of_drafts;
        logits += row->num_logits - of_drafts;
        *(job->decodes ? &decoding : &prompt) += row->num_tokens;
        for (int k = 0; k < i; k++) {
            CHECK(s, p->rows[k].job != row->job, "rows %d and %d are of one job", k, i);
        }
    }
    CHECK(s, p->num_drafts <= drafts, "%d drafts, rows have room for %d", p->num_drafts, drafts);
    tokens += p->num_drafts;
    logits += p->num_drafts;
    CHECK(s, tokens == p->num_tokens && tokens <= s->o.sched.max_num_batched_tokens,
          "%d tokens, %d counted", tokens, p->num_tokens);
    CHECK(s, logits == p->num_logits && logits <= s->o.sched.max_logits, "%d logits, %d counted",
          logits, p->num_logits);
    CHECK(s, p->num_rows <= s->o.sched.max_num_seqs, "%d sequences", p->num_rows);
    CHECK(s, decoding == 0 || prompt <= s->o.sched.max_mixed_prefill_tokens,
          "%d prompt tokens beside decoding", prompt);
}

static bool has_row(const di_plan *p, const sim_job *job) {
    for (int i = 0; p && i < p->num_rows; i++) {
        if (p->rows[i].job == &job->job) {
            return true;
        }
    }
    return false;
}

/* All there is to see, best rank first. */
static void explain(const sim *s, const di_plan *p) {
    di_cache_stats c;
    di_cache_get_stats(s->cache, &c);
    print_message("blocks %d free %d cached %d; seqs %d, batched %d, mixed %d, logits %d\n",
                  c.blocks, c.blocks_free, c.blocks_cached, s->o.sched.max_num_seqs,
                  s->o.sched.max_num_batched_tokens, s->o.sched.max_mixed_prefill_tokens,
                  s->o.sched.max_logits);
    for (int i = 0; i < s->num_jobs; i++) {
        const di_job *j = &s->jobs[i]->job;
        if (!j->ended) {
            print_message("  %s%3d: priority %d, state %d, prompt %lld, known %lld + %d, len %lld, "
                          "blocks %d, limit %lld, preempted %d, host %lld%s%s\n",
                          s->jobs[i] == s->best ? ">" : " ", i, j->priority, (int)j->state,
                          (long long)j->num_prompt, (long long)j->num_tokens, j->in_flight,
                          (long long)j->seq.len, j->seq.num_blocks, (long long)j->max_len,
                          j->preemptions, (long long)(j->host_state ? j->host_state->len : 0),
                          j->prompt_logits ? ", prompt logits" : "",
                          has_row(p, s->jobs[i]) ? ", planned" : "");
        }
    }
}

/* Every decoding job has its row, or has been preempted. The best job goes on, or waits for others
 * of its priority that began before; nobody begins while it waits. */
static void check_service(sim *s, const di_plan *p) {
    for (int i = 0; i < s->num_jobs; i++) {
        const sim_job *job = s->jobs[i];
        CHECK(s, !job->decodes || job->job.state != DI_JOB_RUNNING || has_row(p, job),
              "job %d decodes and has no row", i);
    }
    const sim_job *best = best_job(s);
    bool idle = best && best == s->best && !has_row(p, best) && !is_full(&best->job);
    for (int i = 0; idle && i < s->num_jobs; i++) {
        const sim_job *job = s->jobs[i];
        bool runs = job->job.state == DI_JOB_RUNNING;
        CHECK(s, !runs || job->ran || best->ran || job == best, "job %d has overtaken the best", i);
        idle = !(runs && job->job.priority == best->job.priority); /* it waits for that to end */
    }
    s->best = best;
    s->best_idle = idle ? s->best_idle + 1 : 0;
    if (s->best_idle > MAX_BEST_IDLE) {
        explain(s, p);
    }
    CHECK(s, s->best_idle <= MAX_BEST_IDLE, "the best job has had no row for %ld turns",
          s->best_idle);
}

static void take_token(sim *s, sim_job *job, int32_t token) {
    di_job *j = &job->job;
    CHECK(s, token == job->wanted[j->num_tokens], "token %lld is %d", (long long)j->num_tokens,
          token);
    j->tokens[j->num_tokens++] = token;
    long gap = job->last_token >= 0 ? s->turn - job->last_token : 0;
    job->max_gap = gap > job->max_gap ? gap : job->max_gap;
    job->first_token = job->first_token >= 0 ? job->first_token : s->turn;
    job->last_token = s->turn;
    if (j->num_tokens >= job->stop_at) {
        sim_end(s, job);
    }
}

static void read_work(sim *s, sim_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_plan_row *row = &w->plan.rows[i];
        sim_job *job = row->job->owner;
        di_sched_result(s->sched, row, w->emitted[i]);
        for (int k = 0; k < w->emitted[i] && !job->job.ended; k++) {
            take_token(s, job, w->results[i * (1 + DI_MAX_DRAFTS) + k]);
        }
        if (job->job.ended) {
            note_done(s, job);
        } else if (row->outputs > 0) {
            job->job.num_drafts = w->made[i];
        }
    }
}

bool sim_turn(sim *s) {
    sim_work *w = &s->works[s->unread == &s->works[0]];
    s->turn++;
    di_plan_clear(&w->plan);
    mark_jobs(s);
    bool any = di_sched_plan(s->sched, &s->costs, &w->plan);
    CHECK(s, !w->plan.stuck, "a job of %lld tokens is said not to fit",
          (long long)w->plan.stuck->num_tokens);
    check_budgets(s, &w->plan);
    check_service(s, &w->plan);
    s->planned = any ? w : NULL;
    s->empty_turns += s->num_alive > 0 && w->plan.num_rows == 0 && !s->unread;
    if (any) {
        fill(s, w);
    }
    sim_work *read = s->o.synchronous ? s->planned : s->unread;
    if (read) {
        run_work(s, read);
        read_work(s, read);
    }
    s->unread = s->o.synchronous ? NULL : s->planned;
    return any || read;
}

void sim_run(sim *s, long turns) {
    while (turns-- > 0) {
        sim_turn(s);
    }
}

/* With a plan a turn and at least one row a plan, preemption aside. */
void sim_drain(sim *s) {
    long limit = 100;
    for (int i = 0; i < s->num_jobs; i++) {
        limit += s->jobs[i]->done ? 0 : 4 * (long)s->jobs[i]->job.max_len;
    }
    for (; s->num_alive > 0; limit--) {
        CHECK(s, limit > 0, "%d jobs do not end", s->num_alive);
        CHECK(s, sim_turn(s), "nothing runs, though %d jobs have not ended", s->num_alive);
    }
    while (sim_turn(s)) { /* copies, and steps nobody waits for */
    }
}

int sim_rows_of(const sim *s, const sim_job *job) {
    for (int i = 0; s->planned && i < s->planned->plan.num_rows; i++) {
        if (s->planned->plan.rows[i].job == &job->job) {
            return s->planned->plan.rows[i].num_tokens;
        }
    }
    return 0;
}
