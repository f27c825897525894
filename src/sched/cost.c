/* Predicted times of steps: see cost.h. */
#include "sched/cost.h"

#include <math.h>

static const double forget = 0.995, context_unit = 1e5, row_unit = 64;
static const double ratio_step = 1.03; /* of a running median */

/* ---- curves -----------------------------------------------------------------------------------*/

bool di_curve_add(di_curve *c, int size, double seconds) {
    int n = c->count;
    if (n == DI_CURVE_POINTS || size < 1 || (n > 0 && size <= c->sizes[n - 1]) || !(seconds > 0) ||
        !isfinite(seconds)) {
        return false;
    }
    c->sizes[n] = size;
    c->seconds[n] = n > 0 && seconds < c->seconds[n - 1] ? c->seconds[n - 1] : seconds;
    c->count++;
    return true;
}

/* The first point that is not smaller, or count. */
static int point_of(const di_curve *c, int size) {
    int low = 0, high = c->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (c->sizes[middle] < size) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static double line(const di_curve *c, int to, int size) {
    double run = c->sizes[to] - c->sizes[to - 1];
    double rise = c->seconds[to] - c->seconds[to - 1];
    return c->seconds[to] + rise / run * (size - c->sizes[to]);
}

/* point: point_of(c, size) */
static double value_at(const di_curve *c, int point, int size, bool stepped) {
    if (point == c->count) {
        return c->count > 1 ? line(c, c->count - 1, size)
                            : c->seconds[0] * (double)size / c->sizes[0];
    }
    return stepped || point == 0 ? c->seconds[point] : line(c, point, size);
}

double di_curve_at(const di_curve *c, int size, bool stepped) {
    return value_at(c, point_of(c, size), size, stepped);
}

/* ---- least squares ----------------------------------------------------------------------------*/

/* Knows nothing but that w is about `w0, 0, 0`. */
static di_fit fit_of(double w0) {
    di_fit f = {.w = {w0}};
    for (int i = 0; i < DI_FIT_TERMS; i++) {
        f.p[i][i] = 0.05;
    }
    return f;
}

static double fit_at(const di_fit *f, const double x[DI_FIT_TERMS]) {
    double y = 0;
    for (int i = 0; i < DI_FIT_TERMS; i++) {
        y += f->w[i] * x[i];
    }
    return y;
}

/* A running median of the errors' sizes, and the error cut to twice that. */
static double tame(di_fit *f, double error) {
    double size = fabs(error);
    if (f->samples++ == 0) {
        f->spread = size > 0.05 ? size : 0.05;
    }
    f->spread *= size > f->spread ? 1.05 : 1 / 1.05;
    double most = 2 * f->spread;
    return error > most ? most : error < -most ? -most : error;
}

/* Returns the error that counted. */
static double fit_learn(di_fit *f, const double x[DI_FIT_TERMS], double y) {
    double error = tame(f, y - fit_at(f, x)), k[DI_FIT_TERMS], all = forget, trace = 0;
    for (int i = 0; i < DI_FIT_TERMS; i++) {
        k[i] = 0;
        for (int j = 0; j < DI_FIT_TERMS; j++) {
            k[i] += f->p[i][j] * x[j];
        }
        all += k[i] * x[i];
        trace += f->p[i][i];
    }
    double rest = trace < 3 ? 1 / forget : 1; /* where nothing is learned p would grow for ever */
    for (int i = 0; i < DI_FIT_TERMS; i++) {
        f->w[i] += k[i] / all * error;
        for (int j = 0; j < DI_FIT_TERMS; j++) {
            f->p[i][j] = (f->p[i][j] - k[i] * k[j] / all) * rest;
        }
    }
    return error;
}

/* ---- the whole --------------------------------------------------------------------------------*/

void di_cost_init(di_cost *c, const di_curve *step, const di_curve *draft, bool stepped) {
    *c = (di_cost){
        .step = *step,
        .draft = *draft,
        .stepped = stepped,
        .unit = step->seconds[0],
        .forward = fit_of(1),
        .sampling = fit_of(0),
        .draft_scale = 1,
    };
}

/* Whatever was learned, a step takes no less than half of its curve. */
static double step_at(const di_cost *c, int point, int rows, double context) {
    double curve = value_at(&c->step, point, rows, c->stepped) / c->unit;
    double offset = point < c->step.count ? c->offset[point] : 0;
    const double forward[] = {curve, 1, context * rows / context_unit};
    const double sampling[] = {1, rows / row_unit, 0};
    double all = fit_at(&c->forward, forward) + curve * offset + fit_at(&c->sampling, sampling);
    return c->unit * (all > 0.5 * curve ? all : 0.5 * curve);
}

double di_cost_step(const di_cost *c, int rows, double context) {
    return step_at(c, point_of(&c->step, rows), rows, context);
}

void di_cost_steps(const di_cost *c, int first, int count, double context, double *out) {
    int point = point_of(&c->step, first);
    double most = 0;
    for (int i = 0; i < count;) { /* between two points time is a straight line */
        while (point < c->step.count && c->step.sizes[point] < first + i) {
            point++;
        }
        int left = point < c->step.count ? c->step.sizes[point] - first - i + 1 : count - i;
        left = left < count - i ? left : count - i;
        double begin = step_at(c, point, first + i, context);
        double end = step_at(c, point, first + i + left - 1, context);
        double slope = left > 1 ? (end - begin) / (left - 1) : 0;
        for (int k = 0; k < left; k++) {
            double seconds = begin + k * slope;
            most = seconds > most ? seconds : most;
            out[i + k] = most;
        }
        i += left;
    }
}

double di_cost_draft(const di_cost *c, int seqs) {
    return seqs > 0 ? c->draft_scale * di_curve_at(&c->draft, seqs, c->stepped) : 0;
}

/* In units of the curve, so that large steps count no more than small ones. */
void di_cost_learn_forward(di_cost *c, int rows, double context, double seconds) {
    int point = point_of(&c->step, rows);
    double curve = value_at(&c->step, point, rows, c->stepped) / c->unit;
    const double x[] = {1, 1 / curve, context / context_unit / curve};
    double rest = fit_learn(&c->forward, x, seconds / c->unit / curve);
    if (point < c->step.count) {
        double sum = c->offset[point] * (c->weight[point] + 16);
        c->weight[point] = 0.98 * c->weight[point] + 1;
        c->offset[point] = (0.98 * sum + rest) / (c->weight[point] + 16);
    }
}

void di_cost_learn_sampling(di_cost *c, int rows, double seconds) {
    const double x[] = {1, rows / row_unit, 0};
    fit_learn(&c->sampling, x, seconds / c->unit);
}

void di_cost_learn_draft(di_cost *c, int seqs, double seconds) {
    c->draft_scale *= seconds > di_cost_draft(c, seqs) ? ratio_step : 1 / ratio_step;
}
