/* The table of --spec-stats: see spec_report.h. */
#include "cli/spec_report.h"

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

/* Places that drafts were made for. */
static int places(const di_engine_stats *s) {
    int n = 0;
    for (int k = 0; k < 16; k++) {
        n = s->drafts_made_at[k] > 0 ? k + 1 : n;
    }
    return n;
}

/* A draft is tested when all before it were accepted; calibration compares the share of those that
 * were accepted with the confidence head's mean. */
static void print_places(const di_engine_stats *s, int n, FILE *out) {
    fputs("draft      made  verified  accepted    tested  observed  expected\n", out);
    for (int k = 0; k < n; k++) {
        double tested = (double)s->drafts_tested_at[k];
        fprintf(out, "%5d %9llu %9llu %9llu %9llu %8.1f%% %8.1f%%\n", k + 1,
                (unsigned long long)s->drafts_made_at[k],
                (unsigned long long)s->drafts_verified_at[k],
                (unsigned long long)s->drafts_accepted_at[k],
                (unsigned long long)s->drafts_tested_at[k],
                100 * share((double)s->drafts_accepted_at[k], tested),
                100 * share(s->drafts_expected_at[k], tested));
    }
}

static void print_lengths(const di_engine_stats *s, int n, FILE *out) {
    double rows = 0;
    for (int k = 0; k <= n; k++) {
        rows += (double)s->draft_lengths[k];
    }
    fputs("lengths:   ", out);
    for (int k = 0; k <= n; k++) {
        fprintf(out, " %d: %.1f%%", k, 100 * share((double)s->draft_lengths[k], rows));
    }
    fputc('\n', out);
}

static void print_rounds(const di_engine_stats *s, int n, FILE *out) {
    print_places(s, n, out);
    print_lengths(s, n, out);
    fprintf(out, "rounds:     %llu with drafts, %.2f tokens each\n",
            (unsigned long long)s->draft_rounds,
            1 + share((double)s->drafts_accepted, (double)s->draft_rounds));
    if (s->confidences_broken > 0) {
        fprintf(out, "broken:     %llu confidences are no numbers and counted as 0\n",
                (unsigned long long)s->confidences_broken);
    }
}

static void print_times(const di_engine_stats *s, FILE *out) {
    double steps = (double)s->priced_steps;
    fprintf(out,
            "step times: %llu predicted, %.3f ms each on average, measured %.3f ms; mean "
            "error %.1f%%\n",
            (unsigned long long)s->priced_steps, 1e3 * s->priced_seconds_predicted / steps,
            1e3 * s->priced_seconds_measured / steps,
            100 * share(s->priced_seconds_error, s->priced_seconds_measured));
}

void di_spec_report(di_engine *engine, FILE *out) {
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(engine, &s);
    int n = places(&s);
    if (n > 0) {
        print_rounds(&s, n, out);
    } else {
        fputs("drafts:     none were made\n", out);
    }
    if (s.priced_steps > 0) {
        print_times(&s, out);
    }
}
