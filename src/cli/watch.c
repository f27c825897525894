/* The engine at work, line by line: see watch.h. */
#include "cli/watch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

enum { STEPS_AT_ONCE = 64, LINES_UNDER_A_HEAD = 20 };

static const double interval = 1.0; /* seconds between lines */

static void get_stats(di_engine *engine, di_engine_stats *stats) {
    *stats = (di_engine_stats){.struct_bytes = sizeof *stats};
    di_engine_get_stats(engine, stats);
}

void di_watch_begin(di_watch *w, di_engine *engine, const char *backend, bool enabled) {
    *w = (di_watch){
        .engine = enabled ? engine : NULL,
        .backend = backend,
        .begun = di_now(),
        .shown = di_now(),
    };
}

/* ---- host times -------------------------------------------------------------------------------*/

static int bucket_of(double seconds) {
    double b = 8 * log2(seconds * 1e6);
    return b < 0 ? 0 : b < DI_WATCH_BUCKETS - 1 ? (int)b : DI_WATCH_BUCKETS - 1;
}

/* Microseconds that `share` of the steps behind `from` stayed below, to a tenth of it. */
static double quantile(const uint64_t *now, const uint64_t *from, double share) {
    uint64_t total = 0, below = 0;
    for (int b = 0; b < DI_WATCH_BUCKETS; b++) {
        total += now[b] - from[b];
    }
    for (int b = 0; b < DI_WATCH_BUCKETS; b++) {
        below += now[b] - from[b];
        if ((double)below >= share * (double)total) {
            return total ? exp2((b + 0.5) / 8) : 0;
        }
    }
    return 0;
}

static void read_steps(di_watch *w) {
    di_step_stats steps[STEPS_AT_ONCE];
    size_t count;
    while ((count = di_engine_get_steps(w->engine, w->seen, steps, sizeof *steps, STEPS_AT_ONCE)) >
           0) {
        for (size_t i = 0; i < count; i++) {
            w->hosts[bucket_of(steps[i].host_seconds)]++;
        }
        w->seen = steps[count - 1].number;
    }
}

/* ---- lines ------------------------------------------------------------------------------------*/

static double ratio(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static double per_cent(double part, double whole) {
    return 100 * ratio(part, whole);
}

/* Of the time with work: how much the device waited for the host. */
static double idle_share(const di_engine_stats *s, const di_engine_stats *from) {
    double idle = s->device_idle_seconds - from->device_idle_seconds;
    return per_cent(idle, idle + s->device_seconds - from->device_seconds);
}

static void print_head(void) {
    fputs("   steps running waiting tokens/step  prompt/s  answer/s  cache%  prefix%  preempted  "
          "host us  idle%\n",
          stderr);
}

static void print_line(di_watch *w, const di_engine_stats *s, double seconds) {
    const di_engine_stats *from = &w->at_shown;
    double steps = (double)(s->steps - from->steps);
    double prompt = (double)(s->prompt_tokens - from->prompt_tokens);
    double answer = (double)(s->completion_tokens - from->completion_tokens);
    double asked = (double)(s->prefix_tokens_asked - from->prefix_tokens_asked);
    double hit = (double)(s->prefix_tokens_hit - from->prefix_tokens_hit);
    int64_t used = s->blocks - s->blocks_free - s->blocks_cached;
    if (w->lines++ % LINES_UNDER_A_HEAD == 0) {
        print_head();
    }
    fprintf(stderr, "%8llu %7d %7d %11.1f %9.0f %9.0f %7.1f %8.1f %10llu %8.0f %6.2f\n",
            (unsigned long long)s->steps, s->running, s->waiting, ratio(prompt + answer, steps),
            prompt / seconds, answer / seconds, per_cent((double)used, (double)s->blocks),
            per_cent(hit, asked), (unsigned long long)(s->preemptions - from->preemptions),
            quantile(w->hosts, w->hosts_at_shown, 0.5), idle_share(s, from));
}

void di_watch_look(di_watch *w) {
    if (!w->engine) {
        return;
    }
    read_steps(w);
    double now = di_now();
    if (now - w->shown < interval) {
        return;
    }
    di_engine_stats s;
    get_stats(w->engine, &s);
    if (s.steps > w->at_shown.steps) {
        print_line(w, &s, now - w->shown);
    }
    w->at_shown = s;
    memcpy(w->hosts_at_shown, w->hosts, sizeof w->hosts);
    w->shown = now;
}

/* 1536 -> "1.5 KiB" */
static const char *bytes_text(int64_t bytes, char text[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static void print_memory(const di_engine_info *i) {
    char weights[32], work[32], state[32], slot[32], block[32];
    fprintf(stderr,
            "memory:     weights %s, work %s, state of sequences %s: %d slots and %d snapshots of "
            "%s, %lld blocks of %s for %d tokens each\n",
            bytes_text(i->weight_bytes, weights), bytes_text(i->work_bytes, work),
            bytes_text(i->state_bytes, state), i->num_slots, i->num_snapshots,
            bytes_text(i->slot_bytes, slot), (long long)i->num_blocks,
            bytes_text(i->block_bytes, block), i->block_tokens);
}

void di_watch_end(di_watch *w) {
    static const di_engine_stats zero;
    static const uint64_t none[DI_WATCH_BUCKETS];
    if (!w->engine) {
        return;
    }
    read_steps(w);
    di_engine_stats s;
    get_stats(w->engine, &s);
    double seconds = di_now() - w->begun;
    fprintf(stderr,
            "requests:   %llu finished, %llu cancelled, %llu failed, in %.2f s\n"
            "tokens:     %llu of prompts (%.1f/s), %llu of answers (%.1f/s)\n"
            "steps:      %llu, %.1f tokens each; %llu preemptions (%llu recomputed, %llu kept)\n",
            (unsigned long long)s.finished, (unsigned long long)s.cancelled,
            (unsigned long long)s.failed, seconds, (unsigned long long)s.prompt_tokens,
            (double)s.prompt_tokens / seconds, (unsigned long long)s.completion_tokens,
            (double)s.completion_tokens / seconds, (unsigned long long)s.steps,
            ratio((double)(s.prompt_tokens + s.completion_tokens), (double)s.steps),
            (unsigned long long)s.preemptions, (unsigned long long)s.preempted_recomputed,
            (unsigned long long)s.preempted_kept);
    fprintf(stderr,
            "prefixes:   %llu of %llu tokens asked for were in the cache (%.1f %%)\n"
            "host:       %.0f us per step median, %.0f us at 99 %%\n"
            "device:     %.2f s at work, idle %.2f %% of the time between steps\n",
            (unsigned long long)s.prefix_tokens_hit, (unsigned long long)s.prefix_tokens_asked,
            per_cent((double)s.prefix_tokens_hit, (double)s.prefix_tokens_asked),
            quantile(w->hosts, none, 0.5), quantile(w->hosts, none, 0.99), s.device_seconds,
            idle_share(&s, &zero));
    if (s.card_steps + s.recorded_steps > 0) {
        fprintf(stderr, "card:       %llu of %llu steps whole, %llu recorded",
                (unsigned long long)s.card_steps, (unsigned long long)s.steps,
                (unsigned long long)s.recorded_steps);
        if (s.draft_steps > 0) {
            fprintf(stderr,
                    "; %llu of %llu that verified drafts, and %llu of %llu rounds of drafts",
                    (unsigned long long)s.recorded_verify_steps, (unsigned long long)s.verify_steps,
                    (unsigned long long)s.recorded_draft_steps, (unsigned long long)s.draft_steps);
        }
        fputc('\n', stderr);
    }
    di_engine_info info = {.struct_bytes = sizeof info};
    di_engine_get_info(w->engine, &info);
    print_memory(&info);
    fprintf(stderr, "batch invariance: %s (%s)\n", info.batch_invariant ? "on" : "off", w->backend);
}
