/* Fitting temperatures: see calibration.h. */
#include "engine/calibration.h"

#include <math.h>

#include "engine/internal.h"

enum { GRID = 97 }; /* temperatures tried, by equal factors */

static const double lowest = -8, width = 16.0 / DI_CALIBRATION_BINS, span = 8, prior_tests = 64;

static double middle(int bin) {
    return lowest + (bin + 0.5) * width;
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

void di_calibration_note(di_calibration *c, int place, double z, bool accepted) {
    double at = (z - lowest) / width;
    int bin = !(at > 0) ? 0 : at < DI_CALIBRATION_BINS - 1 ? (int)at : DI_CALIBRATION_BINS - 1;
    c->tests[place][bin]++;
    c->hits[place][bin] += accepted;
}

di_calibration_fit di_calibration_judge(const di_calibration *c, int place, double temperature) {
    di_calibration_fit f = {0};
    for (int b = 0; b < DI_CALIBRATION_BINS; b++) {
        double tests = c->tests[place][b], hits = c->hits[place][b];
        double p = sigmoid(middle(b) / temperature);
        f.tests += tests;
        f.observed += hits;
        f.expected += tests * p;
        f.error += fabs(hits - tests * p);
        f.loss -= hits * log(p) + (tests - hits) * log1p(-p);
    }
    double n = f.tests > 0 ? f.tests : 1;
    f.observed /= n;
    f.expected /= n;
    f.error /= n;
    f.loss /= n;
    return f;
}

double di_calibration_temperature(const di_calibration *c, int place) {
    double best = 0, least = INFINITY, tests = di_calibration_judge(c, place, 1).tests;
    for (int i = 0; i < GRID; i++) { /* logarithms of temperatures */
        double t = log(span) * (2.0 * i / (GRID - 1) - 1);
        double loss = di_calibration_judge(c, place, exp(t)).loss;
        if (loss < least) {
            least = loss;
            best = t;
        }
    }
    return exp(best * tests / (tests + prior_tests));
}

int di_engine_get_calibration(di_engine *e, di_calibration *c) {
    pthread_mutex_lock(&e->lock);
    *c = e->calibration;
    pthread_mutex_unlock(&e->lock);
    return e->num_drafts;
}
