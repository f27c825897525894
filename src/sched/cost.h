/* What a step will take: curves measured when the engine was opened, corrected by the steps since.
 *
 *     step(rows)  = curve(rows) * (c0 + offset of the curve's point) + c1 + c2 * context of the
 * rows
 *                   + s0 + s1 * rows                             (sampling, by rows of logits)
 *     draft(seqs) = curve(seqs) * scale
 *
 * The curve knows nothing of contexts, nor of what else the machine does today. c0, c1 and c2 come
 * from recursive least squares that forget within some 200 steps; errors count up to twice their
 * median size, so that a few steps that were interrupted change nothing. An offset is a mean of
 * what is left at one size, drawn to 0 while it rests on few steps. The step thread's; allocates
 * nothing. */
#ifndef DI_SCHED_COST_H
#define DI_SCHED_COST_H

#include <stdbool.h>

enum { DI_CURVE_POINTS = 96 };

/* Seconds by size; sizes ascend, and so do seconds (di_curve_add sees to it: a noisy dip would look
 * like a bargain). */
typedef struct di_curve {
    int count;
    int sizes[DI_CURVE_POINTS];
    double seconds[DI_CURVE_POINTS];
} di_curve;

/* The next point; false if there is no room, the size is not larger than the last, or the seconds
 * are not above 0. */
bool di_curve_add(di_curve *c, int size, double seconds);

/* Between points: the next point's (stepped: sizes are all that can run), or a straight line.
 * Beyond the last: the slope of the last two goes on. */
double di_curve_at(const di_curve *c, int size, bool stepped);

enum { DI_FIT_TERMS = 3 };

/* Least squares with a few unknowns and forgetting. */
typedef struct di_fit {
    double w[DI_FIT_TERMS], p[DI_FIT_TERMS][DI_FIT_TERMS];
    double spread; /* median size of the errors */
    long samples;
} di_fit;

typedef struct di_cost {
    di_curve step, draft; /* both have at least one point */
    bool stepped;
    double unit; /* step's first point: fits count in it */
    di_fit forward, sampling;
    double offset[DI_CURVE_POINTS], weight[DI_CURVE_POINTS];
    double draft_scale;
} di_cost;

void di_cost_init(di_cost *c, const di_curve *step, const di_curve *draft, bool stepped);

/* The step of so many rows, all with logits, whose mean context is so many tokens. */
double di_cost_step(const di_cost *c, int rows, double context);
/* The same for first .. first + count - 1 rows, into out[count]; never falls. */
void di_cost_steps(const di_cost *c, int first, int count, double context, double *out);
/* A round of drafts for so many answers; 0 for none. */
double di_cost_draft(const di_cost *c, int seqs);

/* What has been measured. context: summed over the rows. */
void di_cost_learn_forward(di_cost *c, int rows, double context, double seconds);
void di_cost_learn_sampling(di_cost *c, int rows, double seconds);
void di_cost_learn_draft(di_cost *c, int seqs, double seconds);

#endif
