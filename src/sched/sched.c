/* The plan of a step: see sched.h for the policy. Every function here is one rule of it. */
#include "sched/sched.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "sched/queue.h"

struct di_sched {
    di_sched_options o;
    di_cache *cache;
    di_job **running; /* by rank, best first; [max_num_seqs] */
    int num_running;
    di_job_queue waiting;
    size_t num_jobs; /* with the scheduler, in any state: what the heap has room for */
    int num_held;
    uint64_t arrivals;
    di_pricer *pricer; /* or NULL */
    di_job **chosen;   /* [max_num_seqs] and limits: of the pricer's question */
    int *limits;
    int watermark; /* blocks that admission leaves free for those that run */
    size_t host_used;
    uint64_t preemptions, recomputed, swapped;
};

/* ---- making and ending ------------------------------------------------------------------------*/

static void free_sched(di_sched *s) {
    if (s) {
        di_queue_free(&s->waiting);
        di_free(s->running);
        di_free(s->chosen);
        di_free(s->limits);
        di_free(s);
    }
}

di_sched *di_sched_create(const di_sched_options *o, di_cache *cache, di_error *err) {
    if (o->max_num_seqs < 1 || o->max_num_batched_tokens < o->max_num_seqs ||
        o->max_logits < o->max_num_seqs || o->max_mixed_prefill_tokens < 1 ||
        o->snapshot_interval < DI_BLOCK_TOKENS || o->snapshot_interval % DI_BLOCK_TOKENS != 0) {
        di_fail(err, DI_ERR_ARGUMENT,
                "scheduler: max_num_seqs %d, max_num_batched_tokens %d, max_logits %d, "
                "max_mixed_prefill_tokens %d, snapshot_interval %d do not fit together",
                o->max_num_seqs, o->max_num_batched_tokens, o->max_logits,
                o->max_mixed_prefill_tokens, o->snapshot_interval);
        return NULL;
    }
    di_sched *s = di_calloc(1, sizeof *s);
    if (s) {
        *s = (di_sched){.o = *o, .cache = cache};
        s->running = di_calloc((size_t)o->max_num_seqs, sizeof(di_job *));
        s->chosen = di_calloc((size_t)o->max_num_seqs, sizeof(di_job *));
        s->limits = di_calloc((size_t)o->max_num_seqs, sizeof *s->limits);
    }
    if (!s || !s->running || !s->chosen || !s->limits) {
        free_sched(s);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the scheduler");
        return NULL;
    }
    s->watermark = di_cache_free_blocks(cache) / 100;
    return s;
}

void di_sched_destroy(di_sched *s) {
    if (s) {
        assert(s->num_jobs == 0);
        free_sched(s);
    }
}

void di_sched_set_pricer(di_sched *s, di_pricer *pricer) {
    s->pricer = pricer;
}

bool di_plan_create(di_plan *p, const di_sched_options *o, di_error *err) {
    *p = (di_plan){.max_copies = 4 * o->max_num_seqs};
    p->rows = di_calloc((size_t)o->max_num_seqs, sizeof *p->rows);
    p->copies = di_calloc((size_t)p->max_copies, sizeof *p->copies);
    if (!p->rows || !p->copies) {
        di_plan_destroy(p);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for plans of %d sequences",
                       o->max_num_seqs);
    }
    return true;
}

static void release_host_state(di_host_state *host) {
    if (--host->holders == 0) {
        di_free(host);
    }
}

void di_plan_clear(di_plan *p) {
    for (size_t i = 0; i < p->num_moves; i++) {
        di_free(p->moves[i].seq.blocks);
        release_host_state(p->moves[i].host);
    }
    p->num_rows = p->num_drafts = p->num_tokens = p->num_logits = p->num_copies = 0;
    p->num_moves = 0;
    p->stuck = NULL;
}

void di_plan_destroy(di_plan *p) {
    di_plan_clear(p);
    di_free(p->rows);
    di_free(p->copies);
    di_free(p->moves);
    *p = (di_plan){0};
}

static void start_waiting(di_sched *s, di_job *job) {
    job->state = DI_JOB_WAITING;
    job->blocked_at = INT64_MIN;
    di_queue_push(&s->waiting, job);
}

/* How far a job of so many tokens may resume: one token at least is computed, and with bounded
 * replay the kept ones are. */
static int64_t furthest(const di_job *job, int64_t tokens) {
    bool replays = job->replay_from > 0 && job->replay_from < tokens - 1;
    return replays ? job->replay_from : tokens - 1;
}

bool di_sched_add(di_sched *s, di_job *job, di_error *err) {
    if (!di_queue_reserve(&s->waiting, s->num_jobs + 1)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu waiting requests",
                       s->num_jobs + 1);
    }
    s->num_jobs++;
    job->arrival = s->arrivals++;
    job->plan_row = -1;
    job->prompt_border = furthest(job, job->num_prompt) / DI_BLOCK_TOKENS * DI_BLOCK_TOKENS;
    di_job *leader = job->leader;
    if (leader && leader->state != DI_JOB_NEW && !di_job_decodes(leader)) {
        job->state = DI_JOB_HELD;
        job->next_held = leader->first_held;
        leader->first_held = job;
        s->num_held++;
    } else {
        start_waiting(s, job);
    }
    return true;
}

/* Those that waited for this job's prompt may go. */
static void release_held(di_sched *s, di_job *leader) {
    while (leader->first_held) {
        di_job *job = leader->first_held;
        leader->first_held = job->next_held;
        job->next_held = NULL;
        s->num_held--;
        start_waiting(s, job);
    }
}

static void leave_held(di_sched *s, di_job *job) {
    di_job **link = &job->leader->first_held;
    while (*link != job) {
        link = &(*link)->next_held;
    }
    *link = job->next_held;
    s->num_held--;
}

static void leave_running(di_sched *s, di_job *job) {
    int i = 0;
    while (s->running[i] != job) {
        i++;
    }
    s->num_running--;
    memmove(s->running + i, s->running + i + 1, (size_t)(s->num_running - i) * sizeof *s->running);
}

static void enter_running(di_sched *s, di_job *job) {
    int i = s->num_running++;
    while (i > 0 && di_job_before(job, s->running[i - 1])) {
        s->running[i] = s->running[i - 1];
        i--;
    }
    s->running[i] = job;
    job->state = DI_JOB_RUNNING;
}

static void forget_host_state(di_sched *s, di_job *job) {
    if (job->host_state) {
        s->host_used -= job->host_state->bytes;
        release_host_state(job->host_state);
        job->host_state = NULL;
    }
}

void di_sched_end(di_sched *s, di_job *job) {
    switch (job->state) {
    case DI_JOB_HELD:
        leave_held(s, job);
        break;
    case DI_JOB_WAITING:
        di_queue_remove(&s->waiting, job);
        break;
    case DI_JOB_RUNNING:
        di_seq_publish(s->cache, &job->seq, job->tokens, job->num_tokens);
        di_seq_close(s->cache, &job->seq);
        leave_running(s, job);
        break;
    default: /* it never got in */
        job->ended = true;
        return;
    }
    forget_host_state(s, job);
    release_held(s, job);
    job->state = DI_JOB_NEW;
    job->ended = true;
    s->num_jobs--;
}

void di_sched_result(di_sched *s, const di_plan_row *row, int emitted) {
    di_job *job = row->job;
    assert(job->queued > 0 && job->in_flight >= row->outputs && emitted <= row->outputs);
    int less = emitted > 0 ? row->outputs - emitted : 0; /* drafts refused or not verified */
    job->queued--;
    job->in_flight -= row->outputs;
    if (job->state == DI_JOB_RUNNING) {
        di_seq_truncate(s->cache, &job->seq, job->seq.len - less);
    } else if (job->host_state) { /* preempted since */
        job->host_state->len -= less;
    }
}

/* ---- preemption -------------------------------------------------------------------------------*/

static int drafts_in(const di_plan_row *row) {
    return row->outputs > 1 ? row->outputs - 1 : 0;
}

/* Takes the job's row out of the plan again. */
static void unplan(di_plan *plan, di_job *job) {
    if (job->plan_row < 0) {
        return;
    }
    di_plan_row *row = &plan->rows[job->plan_row];
    plan->num_tokens -= row->num_tokens - drafts_in(row);
    plan->num_logits -= row->num_logits - drafts_in(row);
    job->seq.len = row->pos0;
    job->in_flight -= row->outputs;
    job->queued--;
    job->plan_row = -1;
    *row = plan->rows[--plan->num_rows];
    if (row->job != job) {
        row->job->plan_row = (int)(row - plan->rows);
    }
}

/* The longest prefix it may resume from. */
static di_prefix_hit match(const di_sched *s, const di_job *job) {
    if (job->prompt_logits || job->no_prefix) {
        return (di_prefix_hit){0, 0};
    }
    return di_cache_match(s->cache, job->salt, job->tokens, job->num_tokens,
                          furthest(job, job->num_tokens), job->replay_from > 0);
}

/* Whether moving the job's state out and in again is quicker than computing it again from what the
 * prefix cache holds of it, and there is room for it. */
static bool worth_keeping(const di_sched *s, const di_sched_costs *costs, const di_job *job,
                          size_t bytes) {
    int64_t again = job->seq.len - match(s, job).resume;
    return s->host_used + bytes <= s->o.host_bytes &&
           2 * costs->byte_seconds * (double)bytes < costs->token_seconds * (double)again;
}

/* A move of the job's state as part of the plan; false without memory. */
static bool add_move(di_plan *plan, const di_job *job, bool to_host) {
    di_plan_move *moves =
        di_grow(plan->moves, plan->num_moves, &plan->move_capacity, sizeof *moves);
    if (!moves) {
        return false;
    }
    plan->moves = moves;
    di_plan_move *move = &moves[plan->num_moves];
    *move = (di_plan_move){.to_host = to_host, .seq = job->seq, .host = job->host_state};
    size_t bytes = (size_t)job->seq.num_blocks * sizeof *move->seq.blocks;
    move->seq.blocks = di_alloc(bytes);
    if (!move->seq.blocks) {
        return false;
    }
    memcpy(move->seq.blocks, job->seq.blocks, bytes);
    move->host->holders++;
    plan->num_moves++;
    return true;
}

/* Has the plan copy the job's state to host memory, if that pays. */
static void keep_state(di_sched *s, const di_sched_costs *costs, di_plan *plan, di_job *job) {
    size_t bytes = di_seq_export_bytes(s->cache, &job->seq);
    if (job->seq.len == job->opened_len || !worth_keeping(s, costs, job, bytes)) {
        s->recomputed++;
        return;
    }
    job->host_state = di_alloc(sizeof *job->host_state + bytes);
    if (job->host_state) {
        *job->host_state = (di_host_state){
            .holders = 1, .len = job->seq.len, .draft_from = job->seq.draft_from, .bytes = bytes};
    }
    if (!job->host_state || !add_move(plan, job, true)) {
        di_free(job->host_state);
        job->host_state = NULL;
        s->recomputed++;
        return;
    }
    s->host_used += bytes;
    s->swapped++;
}

static void preempt(di_sched *s, const di_sched_costs *costs, di_plan *plan, di_job *job) {
    unplan(plan, job);
    di_seq_publish(s->cache, &job->seq, job->tokens, job->num_tokens);
    keep_state(s, costs, plan, job);
    di_seq_close(s->cache, &job->seq);
    leave_running(s, job);
    job->preemptions++;
    s->preemptions++;
    start_waiting(s, job);
}

/* Blocks for n more rows of a running job, taken from jobs of lower rank if need be. False: it was
 * the lowest itself, and has been preempted. */
static bool extend(di_sched *s, const di_sched_costs *costs, di_plan *plan, di_job *job, int n) {
    while (!di_seq_reserve(s->cache, &job->seq, job->seq.len + n, NULL)) {
        di_job *victim = s->running[s->num_running - 1];
        preempt(s, costs, plan, victim);
        if (victim == job) {
            return false;
        }
    }
    return true;
}

/* ---- rows -------------------------------------------------------------------------------------*/

/* Snapshots are taken between steps, so rows must end where one is wanted. */
static int64_t next_border(const di_sched *s, const di_job *job) {
    int64_t at = job->seq.len, interval = s->o.snapshot_interval;
    int64_t border = (at / interval + 1) * interval;
    if (job->prompt_border > at && job->prompt_border < border) {
        border = job->prompt_border;
    }
    if (job->branch_border > at && job->branch_border < border) {
        border = job->branch_border;
    }
    return border;
}

/* Called before rows are given: the rings are as they will be when the plan's copies are made. Not
 * so where the job was opened: a prefix's snapshot is there already, and rings from the host arrive
 * behind the copies.
 *
 * Behind the last published border the rings may hold more: an answer passes borders in steps of
 * several tokens, and refused drafts were written, too. Every row so far lies in front of the known
 * tokens and max_drafts more, or is in flight. */
static void snapshot_if_wanted(di_sched *s, di_job *job) {
    int64_t at = (int64_t)job->seq.num_published * DI_BLOCK_TOKENS, len = job->seq.len;
    bool decoding = at >= job->num_prompt;
    if (at <= job->opened_len || at == job->kept_border || (at != len && !decoding)) {
        return;
    }
    job->kept_border = at;
    if (decoding || at == job->prompt_border || at == job->branch_border ||
        at % s->o.snapshot_interval == 0) {
        bool drafts =
            decoding && s->o.max_drafts > 0; /* a prompt's known tokens are yet to be read */
        int64_t drafted = drafts ? job->num_tokens - 1 + s->o.max_drafts : 0;
        di_seq_snapshot(s->cache, &job->seq, drafted > len ? drafted : len, decoding);
    }
}

/* Most rows that the job can take now. */
static int64_t wanted_rows(const di_sched *s, const di_plan *plan, const di_job *job) {
    int64_t n = di_job_need(job), logits = s->o.max_logits - plan->num_logits;
    if (!di_job_decodes(job)) {
        int64_t border = next_border(s, job) - job->seq.len;
        n = n < border ? n : border;
    }
    if (job->prompt_logits && job->seq.len < job->num_prompt) {
        /* every decoding job's row of logits comes first */
        int64_t others = s->num_running;
        int64_t room = logits - others > 1 ? logits - others : logits > 0;
        n = n < room ? n : room;
    }
    return logits > 0 || n < di_job_need(job) ? n : n - 1; /* the last row needs logits */
}

/* Plans n rows of a running job that has its blocks. */
static void give(const di_sched *s, di_plan *plan, di_job *job, int n) {
    di_plan_row *row = &plan->rows[plan->num_rows];
    int beyond = (int)(job->seq.len + n - di_job_target(job)); /* drafts */
    int outputs = beyond >= 0 ? 1 + beyond : 0;
    bool prompt = job->prompt_logits && job->seq.len < job->num_prompt;
    *row = (di_plan_row){
        .job = job,
        .pos0 = job->seq.len,
        .num_tokens = n,
        .num_logits = prompt ? n : outputs,
        .outputs = outputs,
        .in_flight = job->in_flight,
        .no_context = s->pricer && !di_pricer_wants_context(s->pricer, job),
    };
    job->plan_row = plan->num_rows++;
    job->seq.len += n;
    job->in_flight += outputs;
    job->queued++;
    plan->num_tokens += n - drafts_in(row); /* drafts are counted for the plan as a whole */
    plan->num_logits += row->num_logits - drafts_in(row);
}

/* Up to `most` rows for a running job, and rows for its drafts behind them if they reach its last
 * known token; returns how many. */
static int serve(di_sched *s, const di_sched_costs *costs, di_plan *plan, di_job *job, int64_t most,
                 int drafts) {
    di_seq_publish(s->cache, &job->seq, job->tokens, job->num_tokens);
    int64_t n = wanted_rows(s, plan, job);
    n = n < most ? n : most;
    if (drafts > 0 && n == di_job_need(job) &&
        di_seq_reserve(s->cache, &job->seq, job->seq.len + n + drafts, NULL)) {
        n += drafts; /* nobody is put out for them */
    }
    if (n < 1 || !extend(s, costs, plan, job, (int)n)) {
        return 0;
    }
    snapshot_if_wanted(s, job);
    give(s, plan, job, (int)n);
    return (int)n;
}

/* A job that is full with the token that is in flight for certain has nothing more to run. With
 * those of drafts beside it, it may be: then it has a row. */
static bool full(const di_job *job) {
    return job->in_flight > 0 && job->num_tokens + 1 >= job->max_len;
}

/* ---- decoding ---------------------------------------------------------------------------------*/

static bool decoding(const di_job *job) {
    return di_job_decodes(job) && di_job_need(job) <= 1;
}

/* Drafts that a job has, or will have when the step in flight has been done, and that may have a
 * row: none beyond its length. */
static int drafts_of(const di_sched *s, const di_job *job) {
    int coming = job->propose ? s->o.max_drafts : 0;
    int64_t n = job->in_flight > 0 ? coming : job->num_drafts;
    int64_t room = job->max_len - di_job_target(job) - 1;
    n = n < room ? n : room;
    return n > 0 ? (int)n : 0;
}

/* Prompt rows that this step will hold, as far as that can be said before it is planned: the budget
 * of drafts depends on how large the step is without them. */
static int prompt_rows(const di_sched *s, int decoding_rows) {
    int64_t rows = 0, room = s->o.max_num_batched_tokens - decoding_rows;
    int64_t mixed = s->o.max_mixed_prefill_tokens;
    for (int i = 0; i < s->num_running; i++) {
        const di_job *job = s->running[i];
        rows += decoding(job) ? 0 : di_job_need(job);
    }
    const di_job *head = s->num_running < s->o.max_num_seqs ? di_queue_head(&s->waiting) : NULL;
    rows += head ? di_job_target(head) : 0;
    rows = rows < mixed ? rows : mixed;
    return (int)(rows < room ? rows : room);
}

/* Decides how many drafts the step verifies, and so how many each decoding job may have verified at
 * most: all rows and logits are there for them that are left when everybody has one. */
static int choose_budget(di_sched *s) {
    int n = 0, all = 0;
    for (int i = 0; i < s->num_running; i++) {
        di_job *job = s->running[i];
        if (decoding(job) && !full(job)) {
            all += s->limits[n] = drafts_of(s, job);
            s->chosen[n++] = job;
        }
    }
    int rows = s->o.max_num_batched_tokens - s->num_running;
    int logits = s->o.max_logits - s->num_running;
    int budget = rows < logits ? rows : logits;
    budget = budget < all ? budget : all;
    if (all > 0 && s->pricer) {
        budget =
            di_pricer_budget(s->pricer, s->chosen, s->limits, n, n + prompt_rows(s, n), budget);
    }
    for (int i = 0; i < n; i++) {
        s->chosen[i]->verify = s->limits[i] < budget ? s->limits[i] : budget;
    }
    return budget;
}

/* Drafts that the step may verify as it is planned now. */
static void count_drafts(di_plan *plan, int budget) {
    int drafts = 0;
    for (int i = 0; i < plan->num_rows; i++) {
        drafts += drafts_in(&plan->rows[i]);
    }
    drafts = drafts < budget ? drafts : budget;
    plan->num_tokens += drafts - plan->num_drafts;
    plan->num_logits += drafts - plan->num_drafts;
    plan->num_drafts = drafts;
}

/* Every decoding job gets its row, best rank first, and rows for its drafts. */
static void plan_decodes(di_sched *s, const di_sched_costs *costs, di_plan *plan) {
    int budget = choose_budget(s);
    for (int i = 0; i < s->num_running; i++) {
        di_job *job = s->running[i];
        if (decoding(job) && !full(job)) {
            serve(s, costs, plan, job, 1, job->verify);
            if (job->state != DI_JOB_RUNNING) {
                i--; /* it was the last and has left */
            }
        }
    }
    count_drafts(plan, budget);
}

/* ---- admission --------------------------------------------------------------------------------*/

/* Blocks that running jobs will still need for the tokens they have. */
static int64_t promised(const di_sched *s) {
    int64_t blocks = 0;
    for (int i = 0; i < s->num_running; i++) {
        const di_job *job = s->running[i];
        int64_t more = di_blocks_for(di_job_target(job)) - job->seq.num_blocks;
        blocks += more > 0 ? more : 0;
    }
    return blocks;
}

/* Blocks that a new job may have: what runs keeps what it was promised, and a little to grow. */
static int64_t spare_blocks(const di_sched *s) {
    int64_t kept = s->num_running > 0 ? promised(s) + s->watermark + s->num_running : 0;
    return di_cache_free_blocks(s->cache) - kept;
}

/* Opens its sequence from host memory. */
static bool restore(di_sched *s, di_plan *plan, di_job *job) {
    if (!di_seq_open(s->cache, &job->seq, job->salt, NULL)) {
        return false;
    }
    if (!di_seq_reserve(s->cache, &job->seq, job->host_state->len, NULL) ||
        !add_move(plan, job, false)) {
        di_seq_close(s->cache, &job->seq);
        return false;
    }
    job->seq.len = job->host_state->len;
    job->seq.draft_from = job->host_state->draft_from;
    forget_host_state(s, job); /* the plan holds it */
    return true;
}

static bool open_sequence(di_sched *s, di_plan *plan, di_job *job, int64_t spare) {
    int64_t need = di_blocks_for(di_job_target(job));
    if (job->host_state) {
        return need <= spare && restore(s, plan, job);
    }
    di_prefix_hit hit = match(s, job);
    if (need - hit.held / DI_BLOCK_TOKENS > spare) {
        return false;
    }
    if (!di_seq_open_at(s->cache, &job->seq, job->salt, job->tokens, hit.resume, NULL)) {
        return false;
    }
    job->branch_border =
        hit.matched > hit.resume && hit.matched < job->num_tokens ? hit.matched : 0;
    if (job->preemptions == 0) {
        job->cached_tokens = hit.resume;
    }
    return true;
}

/* It was preempted while drafts of it were being verified: where it goes on is known when that step
 * has been read. */
static bool unsettled(const di_job *job) {
    return job->in_flight > 1;
}

/* Tries to start the head of the queue. False: it must wait, and so must all behind it. */
static bool admit(di_sched *s, di_plan *plan, di_job *job) {
    int64_t spare = spare_blocks(s);
    if (s->num_running >= s->o.max_num_seqs || di_cache_free_slots(s->cache) < 1 ||
        spare <= job->blocked_at || unsettled(job)) {
        return false;
    }
    if (!open_sequence(s, plan, job, spare)) {
        job->blocked_at = spare;
        return false;
    }
    job->seq.partial = job->replay_from > 0;
    job->opened_len = job->seq.len;
    job->kept_border = 0;
    di_queue_remove(&s->waiting, job);
    enter_running(s, job);
    return true;
}

/* A job of better priority than a running one does not wait for it to end. */
static bool make_way(di_sched *s, const di_sched_costs *costs, di_plan *plan, const di_job *job) {
    di_job *last = s->num_running > 0 ? s->running[s->num_running - 1] : NULL;
    if (!last || last->priority <= job->priority) {
        return false;
    }
    preempt(s, costs, plan, last);
    return true;
}

/* Starts the head of the queue, if need be in the place of running jobs of worse priority. */
static bool let_in(di_sched *s, const di_sched_costs *costs, di_plan *plan, int *budget) {
    di_job *job = di_queue_head(&s->waiting);
    while (!admit(s, plan, job)) {
        if (!make_way(s, costs, plan, job)) {
            return false;
        }
    }
    *budget -= serve(s, costs, plan, job, *budget, 0);
    return true;
}

static int plan_admissions(di_sched *s, const di_sched_costs *costs, di_plan *plan, int budget) {
    while (budget > 0 && di_queue_head(&s->waiting)) {
        if (!let_in(s, costs, plan, &budget)) {
            di_job *head = di_queue_head(&s->waiting);
            plan->stuck = s->num_running == 0 && !unsettled(head) ? head : NULL;
            break;
        }
    }
    return budget;
}

/* ---- prompts under way ------------------------------------------------------------------------*/

/* Somebody of better priority waits. */
static bool outranked(const di_sched *s, const di_job *job) {
    const di_job *head = di_queue_head(&s->waiting);
    return head && head->priority < job->priority;
}

/* Prompts that are under way, best rank first, within `budget`; whoever waits with a better
 * priority goes before. The first takes at most half while another waits behind it. Returns what is
 * left. */
static int plan_prompts(di_sched *s, const di_sched_costs *costs, di_plan *plan, int budget,
                        bool admit_any) {
    bool others_wait = s->waiting.count > 0;
    for (int i = 0; i < s->num_running && budget > 0; i++) {
        di_job *job = s->running[i];
        if (decoding(job) || job->plan_row >= 0 || di_job_need(job) < 1) {
            continue;
        }
        if (admit_any && outranked(s, job) &&
            (let_in(s, costs, plan, &budget) || job->state != DI_JOB_RUNNING)) {
            i = -1; /* the list has changed */
            continue;
        }
        bool share = others_wait || i + 1 < s->num_running;
        int64_t most = share && budget > 1 ? (budget + 1) / 2 : budget;
        budget -= serve(s, costs, plan, job, most, 0);
        others_wait = others_wait && budget > 0;
    }
    return budget;
}

/* What others left goes to the first prompt that can use it. */
static void top_up(di_sched *s, const di_sched_costs *costs, di_plan *plan, int budget) {
    for (int i = 0; i < s->num_running && budget > 0; i++) {
        di_job *job = s->running[i];
        if (job->plan_row >= 0 && plan->rows[job->plan_row].outputs == 0) {
            int n = plan->rows[job->plan_row].num_tokens;
            unplan(plan, job);
            budget -= serve(s, costs, plan, job, n + budget, 0) - n;
        }
    }
}

/* ---- the step ---------------------------------------------------------------------------------*/

/* Asks for drafts behind the rows that give a token which is not the last. */
static void choose_proposals(di_sched *s, di_plan *plan) {
    int n = 0;
    for (int i = 0; i < plan->num_rows; i++) {
        di_job *job = plan->rows[i].job;
        int64_t least = job->num_tokens + 1 + (plan->rows[i].in_flight > 0); /* behind the step */
        job->propose = false;
        if (plan->rows[i].outputs > 0 && least + 1 < job->max_len && s->o.max_drafts > 0) {
            job->propose = true;
            s->chosen[n++] = job;
        }
    }
    if (n > 0 && s->pricer) {
        di_pricer_proposals(s->pricer, s->chosen, n);
    }
    for (int i = 0; n > 0 && i < plan->num_rows; i++) {
        plan->rows[i].propose = plan->rows[i].job->propose;
    }
}

static void note_context(di_plan *plan) {
    for (int i = 0; i < plan->num_rows; i++) {
        di_plan_row *row = &plan->rows[i];
        di_seq *seq = &row->job->seq;
        seq->draft_from = row->no_context ? seq->len : seq->draft_from;
        row->draft_from = seq->draft_from;
    }
}

static void finish_plan(di_sched *s, di_plan *plan) {
    count_drafts(plan, plan->num_drafts); /* some may have been preempted since */
    note_context(plan);
    choose_proposals(s, plan);
    plan->num_copies = di_cache_take_copies(s->cache, plan->copies, plan->max_copies);
    for (int i = 0; i < plan->num_rows; i++) {
        di_job *job = plan->rows[i].job;
        job->plan_row = -1;
        if (di_job_decodes(job)) {
            release_held(s, job);
        }
    }
}

/* Rows that decoding leaves. None are left when every seat is a decoding one and a step has no more
 * rows than that: then a waiting job of better priority takes the last seat. */
static int rows_left(di_sched *s, const di_sched_costs *costs, di_plan *plan, bool calm) {
    int most = s->o.max_num_batched_tokens, mixed = s->o.max_mixed_prefill_tokens;
    if (calm && plan->num_tokens == most && outranked(s, s->running[s->num_running - 1])) {
        preempt(s, costs, plan, s->running[s->num_running - 1]);
    }
    int budget = most - plan->num_tokens;
    return plan->num_rows > 0 && budget > mixed ? mixed : budget;
}

bool di_sched_plan(di_sched *s, const di_sched_costs *costs, di_plan *plan) {
    uint64_t preemptions = s->preemptions;
    plan_decodes(s, costs, plan);
    bool calm = s->preemptions == preemptions; /* nobody was put out for want of blocks */
    int budget = rows_left(s, costs, plan, calm);
    preemptions = s->preemptions;
    budget = plan_prompts(s, costs, plan, budget, calm);
    if (calm && s->preemptions == preemptions) {
        budget = plan_admissions(s, costs, plan, budget);
    }
    top_up(s, costs, plan, budget);
    finish_plan(s, plan);
    return plan->num_rows > 0 || plan->num_moves > 0 || plan->num_copies > 0;
}

/* ---- looking in -------------------------------------------------------------------------------*/

void di_sched_get_stats(const di_sched *s, di_sched_stats *stats) {
    *stats = (di_sched_stats){
        .running = s->num_running,
        .waiting = (int)s->waiting.count + s->num_held,
        .preemptions = s->preemptions,
        .recomputed = s->recomputed,
        .swapped = s->swapped,
        .host_bytes_used = s->host_used,
    };
    for (int i = 0; i < s->num_running; i++) {
        stats->decoding += di_job_decodes(s->running[i]);
    }
}

bool di_sched_check(const di_sched *s, di_error *err) {
    for (int i = 0; i < s->num_running; i++) {
        const di_job *job = s->running[i];
        if (job->state != DI_JOB_RUNNING || (i > 0 && !di_job_before(s->running[i - 1], job)) ||
            job->seq.slot < 1 || job->host_state ||
            di_blocks_for(job->seq.len) > job->seq.num_blocks || di_job_need(job) < 0) {
            return di_fail(err, DI_ERR_INTERNAL, "running job %d is not as it should be", i);
        }
    }
    size_t host = 0;
    for (size_t i = 0; i < s->waiting.count; i++) {
        const di_job *job = s->waiting.jobs[i];
        host += job->host_state ? job->host_state->bytes : 0;
        if (job->state != DI_JOB_WAITING || job->heap_index != i || job->seq.slot != 0 ||
            (i > 0 && di_job_before(job, s->waiting.jobs[(i - 1) / 2]))) {
            return di_fail(err, DI_ERR_INTERNAL, "waiting job %zu is not as it should be", i);
        }
    }
    size_t jobs = (size_t)s->num_running + s->waiting.count + (size_t)s->num_held;
    if (jobs != s->num_jobs || host != s->host_used) {
        return di_fail(err, DI_ERR_INTERNAL, "%zu jobs of %zu, %zu host bytes of %zu", jobs,
                       s->num_jobs, host, s->host_used);
    }
    return true;
}
