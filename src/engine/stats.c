/* What the engine tells about its steps: sums since the start, and a record of each of the last
 * ones. Written by the step thread, read by anybody, under the engine's lock. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/internal.h"
#include "engine/request.h"

/* Before the results are read: a request that ends is gone afterwards, and whoever gets its last
 * output may ask for the sums at once. */
di_step_tokens di_engine_count_tokens(di_engine *e, const di_work *w) {
    di_step_tokens t = {0};
    for (int i = 0; i < w->plan.num_rows; i++) {
        const di_job *job = w->plan.rows[i].job;
        const di_model_rows *part = &w->parts[i];
        int64_t prompt = job->num_prompt - part->pos0;
        prompt = prompt < 0 ? 0 : prompt < part->num_tokens ? prompt : part->num_tokens;
        t.prompt += (int)prompt;
        t.completion += job->ended ? 0 : w->results[i].num_tokens;
    }
    pthread_mutex_lock(&e->lock);
    e->stats.prompt_tokens += (uint64_t)t.prompt;
    e->stats.completion_tokens += (uint64_t)t.completion;
    pthread_mutex_unlock(&e->lock);
    return t;
}

static void add_up(di_engine_stats *s, const di_step_stats *step) {
    s->steps++;
    s->running = step->running;
    s->waiting = step->waiting;
    s->preemptions = step->preemptions;
    s->step_tokens = step->tokens;
    s->step_sequences = step->sequences;
    s->step_seconds = step->device_seconds;
    s->host_seconds = step->host_seconds;
    s->host_seconds_total += step->host_seconds;
    s->device_seconds += step->device_seconds;
    s->device_idle_seconds += step->idle_seconds;
}

static void tell_pools(di_engine_stats *s, const di_cache_stats *cache) {
    s->blocks = cache->blocks;
    s->blocks_free = cache->blocks_free;
    s->blocks_cached = cache->blocks_cached;
    s->prefix_tokens_asked = cache->tokens_asked;
    s->prefix_tokens_hit = s->cached_tokens = cache->tokens_hit;
}

void di_engine_note_drafts(di_engine *e, const di_job *job, int verified, int accepted) {
    pthread_mutex_lock(&e->lock);
    di_engine_stats *s = &e->stats;
    s->draft_rounds += verified > 0;
    s->drafts_verified += (uint64_t)verified;
    s->drafts_accepted += (uint64_t)accepted;
    s->draft_lengths[verified]++;
    for (int k = 0; k < job->num_drafts; k++) {
        bool tested = k < verified && k <= accepted;
        s->drafts_made_at[k]++;
        s->drafts_verified_at[k] += k < verified;
        s->drafts_accepted_at[k] += k < accepted;
        s->drafts_tested_at[k] += tested;
        s->drafts_expected_at[k] += tested ? (double)job->confidence[k] : 0;
        if (tested) {
            double c = (double)job->confidence[k], t = e->pricer.o.temperatures[k];
            di_calibration_note(&e->calibration, k, t * log(c / (1 - c)), k < accepted);
        }
    }
    pthread_mutex_unlock(&e->lock);
}

void di_engine_note_price(di_engine *e, double predicted, double measured) {
    pthread_mutex_lock(&e->lock);
    di_engine_stats *s = &e->stats;
    s->priced_steps++;
    s->priced_seconds_predicted += predicted;
    s->priced_seconds_measured += measured;
    s->priced_seconds_error += fabs(predicted - measured);
    pthread_mutex_unlock(&e->lock);
}

/* Requests may have ended since the last step. */
void di_engine_note_rest(di_engine *e) {
    di_cache_stats cache;
    di_cache_get_stats(e->parts.cache, &cache);
    pthread_mutex_lock(&e->lock);
    e->stats.running = e->stats.waiting = 0;
    tell_pools(&e->stats, &cache);
    pthread_mutex_unlock(&e->lock);
}

/* Those of drafts are known when the step has been done. */
static int rows_of(const di_work *w) {
    int rows = 0;
    for (int i = 0; i < w->plan.num_rows; i++) {
        rows += w->parts[i].num_tokens;
    }
    return rows;
}

static bool verifies(const di_work *w) {
    for (int i = 0; i < w->plan.num_rows; i++) {
        if (w->outputs[i] > 1) {
            return true;
        }
    }
    return false;
}

void di_engine_note_step(di_engine *e, const di_work *w, di_step_tokens tokens, double host) {
    di_sched_stats sched;
    di_cache_stats cache;
    di_sched_get_stats(e->sched, &sched);
    di_cache_get_stats(e->parts.cache, &cache);
    di_step_stats step = {
        .seconds = di_now() - e->opened,
        .sequences = w->plan.num_rows,
        .tokens = rows_of(w),
        .prompt_tokens = tokens.prompt,
        .completion_tokens = tokens.completion,
        .running = sched.running,
        .waiting = sched.waiting,
        .blocks_used = cache.blocks - cache.blocks_free - cache.blocks_cached,
        .blocks_cached = cache.blocks_cached,
        .preemptions = sched.preemptions,
        .prefix_tokens_hit = cache.tokens_hit,
        .device_seconds = w->end - w->begin,
        .idle_seconds = e->last_end > 0 ? w->begin - e->last_end : 0,
        .host_seconds = host,
    };
    e->last_end = w->end;
    pthread_mutex_lock(&e->lock);
    di_engine_stats *s = &e->stats;
    add_up(s, &step);
    s->preempted_recomputed = sched.recomputed;
    s->card_steps += w->by_card;
    s->steps_ahead += w->before != NULL;
    s->recorded_steps += w->recorded;
    bool verified = verifies(w);
    s->verify_steps += verified;
    s->recorded_verify_steps += verified && w->recorded;
    s->draft_steps += w->num_drafted > 0;
    s->recorded_draft_steps += w->round_recorded;
    s->preempted_kept = sched.swapped;
    s->confidences_broken = e->pricer.broken;
    tell_pools(s, &cache);
    step.number = s->steps;
    e->steps[step.number % DI_KEPT_STEPS] = step;
    pthread_mutex_unlock(&e->lock);
}

size_t di_engine_get_steps(di_engine *e, uint64_t after, void *steps, size_t step_bytes,
                           size_t max) {
    size_t count = 0,
           bytes = step_bytes < sizeof(di_step_stats) ? step_bytes : sizeof(di_step_stats);
    pthread_mutex_lock(&e->lock);
    uint64_t newest = e->stats.steps;
    uint64_t gone = newest > DI_KEPT_STEPS ? newest - DI_KEPT_STEPS : 0;
    for (uint64_t n = (after > gone ? after : gone) + 1; n <= newest && count < max; n++) {
        char *to = (char *)steps + count++ * step_bytes;
        memset(to, 0, step_bytes);
        memcpy(to, &e->steps[n % DI_KEPT_STEPS], bytes);
    }
    pthread_mutex_unlock(&e->lock);
    return count;
}
