/* How many drafts of each answer a step verifies, and which answers get new ones: decided by what
 * drafts are likely to be accepted and what steps are predicted to cost.
 *
 * What is known of an answer is a running mean of its survivals (price.h) over rounds that have
 * been decided; of one without rounds, the mean over all answers. From it comes the number of
 * drafts that a step verifies, which the drafts at hand then share by their own survivals. Drafts
 * are made for those answers for which they pay for themselves, the draft model's own time
 * included; where they do not, one answer is tried now and then, as often as costs half a percent.
 * Predictions may be wrong, on a busy machine above all: if steps with drafts turn out to give
 * fewer tokens a second than steps without did, drafts stop for a while, longer each time. For
 * there to be such steps, the first and then a few in two thousand have no drafts though they are
 * said to pay.
 *
 * A gain must be larger than what answers lose that have equally far to go: with drafts some of
 * them end early, others late, in small steps.
 *
 * The draft model needs its context of an answer, which costs every row something. Once drafts have
 * paid for nobody for a while, or for less than it costs, it is kept for nobody but a probe: one
 * answer, from its beginning if one begins, else from where it is, and as soon as it has context
 * enough, a few rounds in a row show what its drafts are worth. Probes come as often as costs a
 * quarter of a percent, and less often the longer they have been in vain. A probe is few rounds,
 * and chance has a large part in what it shows: the fewer drafts have been tested, the more is
 * hoped for when it is asked whether to begin, and drafts go on by what is known then.
 *
 * Confidences are the head's, at a temperature of their place in the block, times what experience
 * says (accepted over expected, by place).
 *
 * The step thread's. Allocates nothing once created. */
#ifndef DI_SCHED_PRICER_H
#define DI_SCHED_PRICER_H

#include "sched/cost.h"
#include "sched/job.h"
#include "sched/price.h"

typedef struct di_pricer_options {
    int num_drafts; /* in a block, 1 .. DI_MAX_DRAFTS */
    int max_num_seqs;
    bool priced;                        /* false: all are verified, everybody gets new ones */
    double temperatures[DI_MAX_DRAFTS]; /* of the confidence head, > 0 */
    /* With several ranks: told how many rows this one's step should have, answers how many the
     * largest rank's has. A step lasts as long as its slowest rank, so the difference is filled
     * with the next best drafts; that is no less causal, for the numbers come from budgets. NULL:
     * alone. */
    int (*agree)(void *user, int rows);
    void *user;
} di_pricer_options;

/* Tokens a second that steps of so many answers gave, with drafts and without. Old steps fade. */
typedef struct di_pricer_rate {
    double tokens, seconds;
    int steps;
    uint64_t control_at; /* turn of the last steps without drafts that were made to know */
} di_pricer_rate;

enum { DI_PRICER_LOADS = 16 }; /* numbers of answers by powers of two */

/* How confidences become survivals, as experience has it at the moment. A step takes it along, for
 * the device has the confidences first and shares the step's budget by them. */
typedef struct di_pricer_law {
    double temperatures[DI_MAX_DRAFTS];
    double factors[DI_MAX_DRAFTS]; /* accepted over expected */
} di_pricer_law;

typedef struct di_pricer {
    di_pricer_options o;
    di_cost cost;                 /* priced only; its owner calls di_cost_init */
    float profile[DI_MAX_DRAFTS]; /* mean survivals over all answers */
    double profile_rounds;
    /* by place, with old rounds fading: accepted, and what the head expected */
    double accepted[DI_MAX_DRAFTS], expected[DI_MAX_DRAFTS];
    double tests;        /* of first drafts, old ones fading likewise */
    uint64_t turn;       /* of proposals */
    double chosen_share; /* of the jobs, that had drafts made when that was last asked */
    double since_trial;  /* seconds of steps predicted since an answer was tried */
    /* What came out: predictions are believed as long as they are not refuted. */
    di_pricer_rate without[DI_PRICER_LOADS], with[DI_PRICER_LOADS];
    uint64_t refuted_until; /* turn before which drafts do not begin */
    int refuted_for;        /* turns that the last refutation counted */
    int control_left;       /* turns without drafts that are still to come */
    bool idle;              /* drafts pay for nobody: no context is kept but the probe's */
    int vain_turns;         /* in which they paid for nobody, since they last did */
    double paid_turns;      /* in which they paid for somebody, since they last were idle */
    int letdowns;           /* times in a row that they soon paid for nobody again */
    bool probing;           /* some job is the probe */
    int probe_rounds;       /* that it has had drafts */
    uint64_t probe_seen;    /* turn in which it last had a row */
    double probe_cost;      /* seconds, of the last one or of this one so far */
    double patience;        /* probes come this many times less often than their share allows */
    double promise;         /* rate that drafts are hoped to give over that without */
    uint64_t broken;        /* confidences that were no number */
    di_price_scratch scratch;
    float *survival;               /* [max_num_seqs, num_drafts] */
    int *limits, *lengths, *order; /* [max_num_seqs] */
    double *seconds;               /* [1 + max_num_seqs * num_drafts] */
} di_pricer;

bool di_pricer_create(di_pricer *p, const di_pricer_options *o, di_error *err);
void di_pricer_destroy(di_pricer *p); /* of all zero: nothing */

di_pricer_law di_pricer_get_law(const di_pricer *p);

/* What n confidences (before the sigmoid) say: the probability that each draft is accepted given
 * those before it are (the head's word), and that all up to it are. One that is no number counts as
 * 0; returns how many those are. */
int di_pricer_survivals(const di_pricer_law *law, const float *confidence, int n, float *single,
                        float *survival);

/* n drafts of the job have come, in a step that had this law. */
void di_pricer_file(di_pricer *p, di_job *job, const di_pricer_law *law, const float *confidence,
                    int n);

/* The drafts last filed have been decided: so many were verified, and so many of those accepted. */
void di_pricer_resolve(di_pricer *p, di_job *job, int verified, int accepted);

/* How many drafts a step should verify in which n jobs have a row each; it is for di_price_share to
 * say whose. limits[i]: drafts of job i that may be verified; rows: of the step so far, theirs
 * included; most: drafts for which there is room. Rounds that have not been decided are not looked
 * at. */
int di_pricer_budget(di_pricer *p, di_job *const *jobs, const int *limits, int n, int rows,
                     int most);

/* Whether the draft model's context is wanted of the job's next rows. Asked for each of them while
 * a step is planned; may make the job the probe. */
bool di_pricer_wants_context(di_pricer *p, di_job *job);

/* A step of decoding alone is done: its answers, tokens and seconds in all, and whether drafts were
 * verified or made in it. */
void di_pricer_note(di_pricer *p, int answers, int tokens, double seconds, bool drafts);

/* Sets job->propose of n jobs that will each give a token in a step. */
void di_pricer_proposals(di_pricer *p, di_job *const *jobs, int n);

#endif
