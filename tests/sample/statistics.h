/* The exact law of a row in float64, and the chi-square of counts against it: for tests that draw.
 *
 * The threshold is the value that chance exceeds once in 10^6 (z = 4.75 in Wilson and Hilferty's
 * approximation). */
#ifndef TESTS_SAMPLE_STATISTICS_H
#define TESTS_SAMPLE_STATISTICS_H

#include <math.h>
#include <stdlib.h>

#include "sample/rows.h"

enum { MOST = 500 };

typedef struct law {
    int n;
    double p[MOST];
} law;

/* ---- the exact distribution -------------------------------------------------------------------*/

typedef struct item {
    double x;
    int id;
} item;

static inline int by_value_then_id(const void *a, const void *b) {
    const item *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x ? 1 : -1) : p->id - q->id;
}

/* x: logits after all transforms, float64. */
static inline law exact_law(const double *x, int n, const di_sampling *s) {
    law l = {.n = n};
    item items[MOST];
    double total = 0, before = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        items[i] = (item){x[i], i};
    }
    qsort(items, (size_t)n, sizeof *items, by_value_then_id);
    for (int i = 0; i < n; i++) {
        total += exp((x[i] - items[0].x) / s->temperature);
    }
    for (int i = 0; i < n; i++) {
        double w = exp((items[i].x - items[0].x) / s->temperature);
        if (i > 0 && ((s->top_k > 0 && i >= s->top_k) || before > s->top_p * total ||
                      w < s->min_p || w == 0)) {
            break;
        }
        l.p[items[i].id] = w;
        before += w;
    }
    for (int i = 0; i < n; i++) {
        sum += l.p[i];
    }
    for (int i = 0; i < n; i++) {
        l.p[i] /= sum;
    }
    return l;
}

/* ---- the statistic ----------------------------------------------------------------------------*/

typedef struct chi_square {
    double value, limit;
} chi_square;

/* Tokens that are expected less than ten times share one cell. */
static inline chi_square measure(const int *counts, const law *l, double draws) {
    double value = 0, rest = 0, rest_count = 0;
    int cells = 0;
    for (int i = 0; i < l->n; i++) {
        double expected = draws * l->p[i];
        if (expected == 0) {
            assert_int_equal(counts[i], 0);
        } else if (expected < 10) {
            rest += expected;
            rest_count += counts[i];
        } else {
            value += (counts[i] - expected) * (counts[i] - expected) / expected;
            cells++;
        }
    }
    if (rest >= 5) {
        value += (rest_count - rest) * (rest_count - rest) / rest;
        cells++;
    }
    double df = cells - 1, h = 2 / (9 * df);
    assert_true(cells > 1);
    return (chi_square){value, df * pow(1 - h + 4.75 * sqrt(h), 3)};
}

#endif
