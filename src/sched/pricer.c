/* Lengths and proposals: see pricer.h. */
#include "sched/pricer.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

static const double prior_acceptance = 0.8; /* of a draft whose predecessors were, until known */
static const double prior_rounds = 1, most_rounds = 256;
static const double own_prior = 6, own_most = 40; /* rounds that the mean over all counts for, and
                                                   * that an answer's mean looks back on */
static const double fade = 0.999;                 /* of older rounds in the means by place */
static const double prior_tests = 32;             /* that say the head is right */
static const double trial_share = 0.005;          /* of the time */
static const double least_gain = 1.01; /* for which drafts are begun, beyond what context costs */
static const double most_hope = 0.35, hope_tests = 64, hope_given_up = 0.06;
static const int64_t least_context = 64;  /* tokens of it, for drafts to be worth looking at */
static const double context_share = 0.02; /* of a step, that keeping it is taken to cost */
static const int least_vain = 96, most_vain = 1024, most_probe_rounds = 6;
static const double vain_share = 0.25; /* of the turns in which drafts paid */
static const double least_paid = 400;  /* turns in which drafts pay, or they were a letdown */
static const double probe_share = 0.0025, most_patience = 4;
static const double rate_fade = 0.99;
static const uint64_t control_every = 2048, control_again = 64;
static const double control_keeps = 0.25; /* of what was known before */
static const int control_turns = 12;      /* some of them still verify what there was */
static const int few_steps = 8, least_refuted = 256, most_refuted = 8192;
static const double patience_without_new = 2; /* before an answer is asked in the middle */

bool di_pricer_create(di_pricer *p, const di_pricer_options *o, di_error *err) {
    size_t seqs = (size_t)o->max_num_seqs, drafts = seqs * (size_t)o->num_drafts;
    *p = (di_pricer){.o = *o, .profile_rounds = prior_rounds, .patience = 1};
    p->vain_turns = least_vain; /* nothing has paid yet */
    double survival = 1;
    for (int j = 0; j < o->num_drafts; j++) {
        p->profile[j] = (float)(survival *= prior_acceptance);
    }
    p->survival = di_calloc(drafts, sizeof *p->survival);
    p->limits = di_calloc(seqs, sizeof *p->limits);
    p->lengths = di_calloc(seqs, sizeof *p->lengths);
    p->order = di_calloc(seqs, sizeof *p->order);
    p->seconds = di_calloc(drafts + 1, sizeof *p->seconds);
    if (!p->survival || !p->limits || !p->lengths || !p->order || !p->seconds) {
        di_pricer_destroy(p);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to price the drafts of %d answers",
                       o->max_num_seqs);
    }
    if (!di_price_scratch_create(&p->scratch, (int)drafts, err)) {
        di_pricer_destroy(p);
        return false;
    }
    return true;
}

void di_pricer_destroy(di_pricer *p) {
    di_price_scratch_destroy(&p->scratch);
    di_free(p->survival);
    di_free(p->limits);
    di_free(p->lengths);
    di_free(p->order);
    di_free(p->seconds);
    *p = (di_pricer){0};
}

/* ---- confidences ------------------------------------------------------------------------------*/

static double sigmoid(double x) {
    return 1 / (1 + exp(-(x < -60 ? -60 : x > 60 ? 60 : x)));
}

di_pricer_law di_pricer_get_law(const di_pricer *p) {
    di_pricer_law law = {0};
    for (int j = 0; j < p->o.num_drafts; j++) {
        law.temperatures[j] = p->o.temperatures[j];
        law.factors[j] = (p->accepted[j] + prior_tests) / (p->expected[j] + prior_tests);
    }
    return law;
}

int di_pricer_survivals(const di_pricer_law *law, const float *confidence, int n, float *single,
                        float *survival) {
    double all = 1;
    int broken = 0;
    for (int j = 0; j < n; j++) {
        bool number = !isnan(confidence[j]);
        double c = number ? sigmoid((double)confidence[j] / law->temperatures[j]) : 0;
        broken += !number;
        single[j] = (float)c;
        c *= law->factors[j];
        all *= c < 1 ? c : 1;
        survival[j] = (float)all;
    }
    return broken;
}

void di_pricer_file(di_pricer *p, di_job *job, const di_pricer_law *law, const float *confidence,
                    int n) {
    job->num_drafts = n;
    p->broken += (uint64_t)di_pricer_survivals(law, confidence, n, job->confidence, job->survival);
}

void di_pricer_resolve(di_pricer *p, di_job *job, int verified, int accepted) {
    bool fresh = job->rounds++ == 0;
    double weight = (double)job->rounds + own_prior;
    weight = weight < own_most ? weight : own_most;
    if (p->profile_rounds < most_rounds) {
        p->profile_rounds++;
    }
    for (int j = 0; j < job->num_drafts; j++) {
        float *known = &job->known[j], now = job->survival[j];
        *known = fresh ? p->profile[j] : *known;
        *known += (now - *known) / (float)weight;
        p->profile[j] += (now - p->profile[j]) / (float)p->profile_rounds;
        if (j < verified && j <= accepted) { /* its test counts: all before it were accepted */
            p->accepted[j] = fade * p->accepted[j] + (j < accepted);
            p->expected[j] = fade * p->expected[j] + (double)job->confidence[j];
        }
    }
    p->tests = verified > 0 ? fade * p->tests + 1 : p->tests;
}

/* What is known of a job's draft without looking at the round at hand. */
static float known_of(const di_pricer *p, const di_job *job, int j) {
    return job->rounds > 0 ? job->known[j] : p->profile[j];
}

/* ---- lengths ----------------------------------------------------------------------------------*/

static double mean_context(di_job *const *jobs, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += (double)jobs[i]->seq.len;
    }
    return n > 0 ? sum / n : 0;
}

/* Means need not fall along a block; survivals do. */
static void fill_known(di_pricer *p, const di_job *job, int limit, int row) {
    float *to = p->survival + row * p->o.num_drafts, last = 1;
    for (int j = 0; j < limit; j++) {
        float known = known_of(p, job, j);
        to[j] = last = known < last ? known : last;
    }
}

/* Time counts with that of the new drafts at the end of it.
 * What prompts in the step cost is not the drafts' matter: time counts as if decoding were alone,
 * and drafts by what they add to the step as it is. */
static int budget_of(di_pricer *p, di_job *const *jobs, const int *limits, int n, int rows,
                     int most) {
    double context = mean_context(jobs, n), rate;
    di_cost_steps(&p->cost, rows, most + 1, context, p->seconds);
    double prompts = p->seconds[0] - di_cost_step(&p->cost, n, context);
    for (int k = 0; rows > n && prompts > 0 && k <= most; k++) {
        p->seconds[k] -= prompts;
    }
    for (int i = 0; i < n; i++) {
        fill_known(p, jobs[i], limits[i], i);
    }
    di_slots known = {p->survival, limits, n, p->o.num_drafts};
    double drafting = di_cost_draft(&p->cost, (int)(p->chosen_share * n + 0.5));
    return di_price_budget(&known, n, p->seconds, drafting, most, &p->scratch, &rate);
}

int di_pricer_budget(di_pricer *p, di_job *const *jobs, const int *limits, int n, int rows,
                     int most) {
    int all = 0;
    for (int i = 0; i < n; i++) {
        all += limits[i];
    }
    most = most < all ? most : all;
    most = most > 0 ? most : 0;
    int budget = !p->o.priced || most < 1 ? most : budget_of(p, jobs, limits, n, rows, most);
    if (p->o.priced && p->o.agree) {
        int agreed = p->o.agree(p->o.user, rows + budget) - rows;
        budget = agreed < most ? agreed : most;
    }
    return budget > 0 ? budget : 0;
}

/* ---- proposals --------------------------------------------------------------------------------*/

static float worth(const di_pricer *p, const di_job *job) {
    float sum = 0;
    for (int j = 0; j < p->o.num_drafts; j++) {
        sum += known_of(p, job, j);
    }
    return sum;
}

/* p->order: jobs by what their drafts are worth, best first; equal ones as they come. In buckets:
 * exact order matters little. */
static void rank(di_pricer *p, di_job *const *jobs, int n) {
    enum { BUCKETS = 128 };
    int starts[BUCKETS + 1] = {0};
    for (int i = 0; i < n; i++) {
        float share = worth(p, jobs[i]) / (float)p->o.num_drafts;
        int bucket = BUCKETS - 1 - (int)(share * (BUCKETS - 1));
        p->lengths[i] = bucket;
        starts[bucket + 1]++;
    }
    for (int b = 0; b < BUCKETS; b++) {
        starts[b + 1] += starts[b];
    }
    for (int i = 0; i < n; i++) {
        p->order[starts[p->lengths[i]]++] = i;
    }
}

/* By how much more drafts may be accepted than seems: as long as few have been tested, chance may
 * have made them look worse than they are, and nothing but drafting tells. Less each time that they
 * have then paid for a short while only. */
static double hope(const di_pricer *p) {
    double h = most_hope / sqrt(1 + p->tests / hope_tests) - hope_given_up;
    return h > 0 ? h / (1 + p->letdowns) : 0;
}

/* Tokens a second if the first m of p->order's n jobs always had drafts, of which `hope` more are
 * accepted than is known; p->survival and p->seconds are those of all n. */
static double rate_with(di_pricer *p, int n, int m, double hope) {
    double rate, drafting = di_cost_draft(&p->cost, m);
    di_slots known = {p->survival, p->limits, m, p->o.num_drafts};
    int budget =
        di_price_budget(&known, n, p->seconds, drafting, m * p->o.num_drafts, &p->scratch, &rate);
    return rate + hope * (rate - n / (p->seconds[budget] + drafting));
}

/* The largest of n numbers of normal law, in deviations, on average. */
static double largest_of(int n) {
    return n > 1 ? 0.56 * pow(log2(n), 0.8) : 0;
}

/* Answers that have equally far to go end together without drafts; with drafts chance lets some end
 * early and others late, and those run in small steps that cost nearly as much. How much longer, as
 * a share of the time, all of them take for it. Where they have not equally far to go, or farther
 * than their number of steps makes chance matter, it is little. p->survival is that of all n. */
static double uneven_end(const di_pricer *p, di_job *const *jobs, int n) {
    int drafts = p->o.num_drafts, few = (n + 3) / 4;
    double left = 0, squares = 0, mean = 0, square = 0; /* of accepted drafts */
    for (int i = 0; i < n; i++) {
        double l = (double)(jobs[i]->max_len - jobs[i]->num_tokens);
        left += l;
        squares += l * l;
        for (int j = 0; j < drafts; j++) {
            double survival = (double)p->survival[i * drafts + j];
            mean += survival;
            square += (2 * j + 1) * survival;
        }
    }
    left /= n;
    squares /= n;
    mean /= n;
    square /= n;
    if (left < 1) {
        return 0;
    }
    double there = squares > left * left ? squares - left * left : 0;
    double chance = left * (square - mean * mean) / (1 + mean);
    double late = largest_of(n) * (sqrt(there + chance) - sqrt(there)) / left;
    double small = di_cost_step(&p->cost, few * (1 + drafts), 0) + di_cost_draft(&p->cost, few);
    double full = di_cost_step(&p->cost, n * (1 + drafts), 0) + di_cost_draft(&p->cost, n);
    return late * (small < full ? small / full : 1);
}

/* Answers move slowly: if there are many it is asked in every fourth turn how many should have
 * drafts, and where drafts pay for nobody in every sixteenth. */
static bool asks(const di_pricer *p, int n) {
    enum { MANY = 32 };
    int turns = p->idle ? 16 : n > MANY ? 4 : 1;
    return (p->turn - 1) % (uint64_t)turns == 0;
}

/* How many jobs should have drafts. */
static int choose(di_pricer *p, di_job *const *jobs, int n) {
    enum { TRIES = 6 };
    for (int i = 0; i < n; i++) {
        p->limits[i] = p->o.num_drafts;
        fill_known(p, jobs[p->order[i]], p->o.num_drafts, i);
    }
    di_cost_steps(&p->cost, n, n * p->o.num_drafts + 1, mean_context(jobs, n), p->seconds);
    bool begun = p->chosen_share > 0;
    double more = begun ? 0 : hope(p), gain = p->idle ? (1 + context_share) * least_gain : 1;
    gain *= 1 + uneven_end(p, jobs, n);
    double none = n / p->seconds[0], best = gain * none, most = 0;
    int chosen = 0, last = 0;
    for (int t = 1; t <= TRIES; t++) {
        int m = (int)(((long)n * t + TRIES - 1) / TRIES);
        double rate = m > last ? rate_with(p, n, m, more) : 0;
        most = rate > most ? rate : most;
        if (rate > best) {
            best = rate;
            chosen = m;
        }
        last = m;
    }
    p->promise = most / none;
    p->chosen_share = (double)chosen / n;
    return chosen;
}

/* The job without drafts whose last ones are longest ago, and that can have some. */
static di_job *oldest_without(di_job *const *jobs, int n, bool (*suits)(const di_job *)) {
    di_job *oldest = NULL;
    for (int i = 0; i < n; i++) {
        di_job *job = jobs[i];
        if (!job->propose && suits(job) && (!oldest || job->proposed_at < oldest->proposed_at)) {
            oldest = job;
        }
    }
    return oldest;
}

/* Half a window of context will do. */
static bool has_context(const di_job *job) {
    return job->seq.draft_from == 0 || job->seq.len - job->seq.draft_from >= least_context;
}

/* While drafts pay for others: who has none is tried as often as the share allows. */
static void try_one(di_pricer *p, di_job *const *jobs, int n) {
    di_job *oldest = oldest_without(jobs, n, has_context);
    if (oldest && p->since_trial * trial_share > di_cost_draft(&p->cost, 1)) {
        oldest->propose = true;
        p->since_trial = 0;
    }
}

/* ---- context and probes -----------------------------------------------------------------------*/

/* It goes on for long enough to be asked in the middle. */
static bool lasts(const di_job *job) {
    return job->max_len - job->num_tokens > 2 * least_context;
}

static double probe_due(const di_pricer *p) {
    return p->patience * p->probe_cost / probe_share;
}

static void begin_probe(di_pricer *p, di_job *job) {
    job->probe = p->probing = true;
    p->probe_rounds = 0;
    p->probe_seen = p->turn;
    p->probe_cost = p->since_trial = 0;
}

static void end_probe(di_pricer *p, di_job *job) {
    if (job) {
        job->probe = false;
    }
    p->probing = false;
    p->since_trial = 0;
    p->patience = p->promise >= 1               ? 1
                  : p->patience < most_patience ? 2 * p->patience
                                                : most_patience;
}

bool di_pricer_wants_context(di_pricer *p, di_job *job) {
    if (!p->idle) {
        return true;
    }
    if (!p->probing && job->seq.len == job->opened_len && p->since_trial > probe_due(p)) {
        begin_probe(p, job);
    }
    return job->probe;
}

/* The probe has its rounds. Without one, and if none has begun for long, an answer in the middle
 * becomes it. */
static void probe(di_pricer *p, di_job *const *jobs, int n, double step) {
    enum { LOST = 1000 }; /* it has ended, or waits for its turn */
    di_job *job = NULL;
    for (int i = 0; i < n; i++) {
        jobs[i]->probe = jobs[i]->probe && p->probing && !job;
        job = jobs[i]->probe ? jobs[i] : job;
    }
    if (p->probing && (job || p->turn - p->probe_seen < LOST)) {
        p->probe_cost += context_share * step;
    } else if (p->probing) {
        end_probe(p, NULL);
    } else if (p->since_trial > patience_without_new * probe_due(p)) {
        job = oldest_without(jobs, n, lasts);
        if (job) {
            begin_probe(p, job);
        }
    }
    if (job && p->probing) {
        p->probe_seen = p->turn;
        if (has_context(job)) {
            job->propose = true;
            p->probe_cost += di_cost_draft(&p->cost, 1);
            if (++p->probe_rounds >= most_probe_rounds) {
                end_probe(p, job);
            }
        }
    }
}

/* ---- what came out ----------------------------------------------------------------------------*/

static int load_of(int answers) {
    int load = 0;
    while (answers > 1 && load < DI_PRICER_LOADS - 1) {
        answers /= 2;
        load++;
    }
    return load;
}

void di_pricer_note(di_pricer *p, int answers, int tokens, double seconds, bool drafts) {
    int load = load_of(answers);
    if (drafts && (p->idle || p->chosen_share == 0 || p->control_left > 0)) {
        return; /* a probe or a trial tells nothing about drafts that are meant to pay */
    }
    di_pricer_rate *r = drafts ? &p->with[load] : &p->without[load];
    r->tokens = rate_fade * r->tokens + tokens;
    r->seconds = rate_fade * r->seconds + seconds;
    r->steps++;
}

/* How many drafts are accepted is chance: a step's tokens stray by some 0.6 of their number for one
 * answer. Three times what is left of that over the steps counted is no sign. */
static bool refuted(const di_pricer *p, int answers) {
    const di_pricer_rate *with = &p->with[load_of(answers)], *none = &p->without[load_of(answers)];
    if (none->steps < few_steps || with->steps < few_steps) {
        return false;
    }
    double ratio = with->tokens / with->seconds / (none->tokens / none->seconds);
    double counted = with->steps < 1 / (1 - rate_fade) ? with->steps : 1 / (1 - rate_fade);
    return ratio < 1 - 3 * 0.6 / sqrt(counted * answers);
}

/* Whether drafts are left out for once, to know what steps are without. */
static bool controls(di_pricer *p, int n) {
    di_pricer_rate *none = &p->without[load_of(n)];
    bool known = none->steps >= few_steps; /* not, if prompts were in all those steps */
    bool old = none->control_at == 0
                   ? !known
                   : p->turn - none->control_at > (known ? control_every : control_again);
    if (p->control_left == 0 && old) {
        p->control_left = control_turns;
        none->control_at = p->turn;
        none->tokens *= control_keeps;
        none->seconds *= control_keeps;
    }
    p->control_left -= p->control_left > 0;
    return p->control_left > 0;
}

/* How many of the chosen jobs are to have drafts after what came of it. */
static int believe(di_pricer *p, int chosen, int n) {
    bool still = p->turn < p->refuted_until;
    if (!still && (chosen == 0 || !refuted(p, n))) {
        return chosen;
    }
    p->chosen_share = 0;
    if (still) {
        return 0;
    }
    p->refuted_for = p->refuted_for ? 2 * p->refuted_for : least_refuted;
    p->refuted_for = p->refuted_for < most_refuted ? p->refuted_for : most_refuted;
    p->refuted_until = p->turn + (uint64_t)p->refuted_for;
    memset(p->with, 0, sizeof p->with);
    return 0;
}

/* Turns in which drafts may pay for nobody before everybody's context goes: more, if they have paid
 * for long, for then it is likely to be chance. */
static int patience_in_vain(const di_pricer *p) {
    double turns = vain_share * p->paid_turns;
    return turns < least_vain ? least_vain : turns > most_vain ? most_vain : (int)turns;
}

/* While the context is there, drafts are made that gain anything; they are in vain, though, if they
 * gain less than it costs. Returns how many jobs are to have some. */
static int settle(di_pricer *p, int chosen) {
    if (chosen > 0 && (p->idle || p->promise > 1 + context_share)) {
        p->idle = p->probing = false;
        p->vain_turns = 0;
        p->patience = 1;
        p->paid_turns++;
    } else if (!p->idle && ++p->vain_turns > patience_in_vain(p)) {
        p->idle = true;
        p->letdowns = p->paid_turns >= least_paid ? 0 : p->letdowns + (p->paid_turns > 0);
        p->paid_turns = 0;
        p->since_trial = 0;
        p->probe_cost = most_probe_rounds * di_cost_draft(&p->cost, 1);
        p->chosen_share = 0;
        return 0;
    }
    return chosen;
}

static void propose_priced(di_pricer *p, di_job *const *jobs, int n) {
    bool ask = asks(p, n);
    int chosen = (int)(p->chosen_share * n + 0.5);
    if (ask || chosen > 0) {
        rank(p, jobs, n);
        chosen = believe(p, ask ? choose(p, jobs, n) : chosen, n);
    }
    double step = di_cost_step(&p->cost, n, mean_context(jobs, n));
    chosen = settle(p, chosen);
    bool control = chosen > 0 && controls(p, n);
    chosen = control ? 0 : chosen;
    for (int i = 0; i < n; i++) {
        jobs[i]->propose = false;
    }
    for (int i = 0; i < chosen; i++) {
        jobs[p->order[i]]->propose = has_context(jobs[p->order[i]]);
    }
    p->since_trial += step;
    if (p->idle) {
        probe(p, jobs, n, step);
    } else if (chosen < n && !control) { /* a step with a trial would not count as one without */
        try_one(p, jobs, n);
    }
}

void di_pricer_proposals(di_pricer *p, di_job *const *jobs, int n) {
    p->turn++;
    for (int i = 0; i < n; i++) {
        jobs[i]->propose = true;
    }
    if (p->o.priced && n > 0) {
        propose_priced(p, jobs, n);
    }
    for (int i = 0; i < n; i++) {
        jobs[i]->proposed_at = jobs[i]->propose ? p->turn : jobs[i]->proposed_at;
    }
}
