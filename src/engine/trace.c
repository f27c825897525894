/* The Chrome trace: see trace.h. */
#include "engine/trace.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"

struct di_trace {
    di_writer out;
    double start;
    bool any;
};

di_trace *di_trace_open(const char *path, di_error *err) {
    di_trace *t = di_calloc(1, sizeof *t);
    if (!t) {
        di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for a trace", path);
        return NULL;
    }
    t->start = di_now();
    if (!di_writer_open(&t->out, path, err)) {
        di_free(t);
        return NULL;
    }
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", t->out.stream);
    return t;
}

/* One complete event; times in microseconds since the trace began. */
static void event(di_trace *t, const char *name, int thread, double begin, double end,
                  const di_work *w) {
    fprintf(t->out.stream,
            "%s\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, \"dur\": "
            "%.3f, \"args\": {\"sequences\": %d, \"tokens\": %d, \"logits\": %d, \"copies\": %d, "
            "\"moves\": %zu}}",
            t->any ? "," : "", name, thread, (begin - t->start) * 1e6, (end - begin) * 1e6,
            w->plan.num_rows, w->plan.num_tokens, w->plan.num_logits, w->plan.num_copies,
            w->plan.num_moves);
    t->any = true;
}

void di_trace_step(di_trace *t, const di_work *w, double read, double host) {
    if (t) {
        event(t, "forward", 2, w->begin, w->middle, w);
        event(t, "sample", 2, w->middle, w->end, w);
        event(t, "host", 1, read, read + host, w);
    }
}

bool di_trace_close(di_trace *t, di_error *err) {
    if (!t) {
        return true;
    }
    fputs("\n]}\n", t->out.stream);
    bool ok = di_writer_commit(&t->out, err);
    di_free(t);
    return ok;
}
