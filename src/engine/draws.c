/* Draws as a device takes them: see draws.h. Whatever sample/ computes once a row in double or in
 * integers of more than 64 bits is computed here, so that the device has the very same numbers. */
#include "engine/draws.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "sample/arithmetic.h"
#include "sample/logprobs.h"
#include "sample/select.h"
#include "sample/transform.h"

static void set(uint32_t *mask, int32_t id, bool on) {
    uint32_t bit = (uint32_t)1 << (id % 32);
    mask[id / 32] = on ? mask[id / 32] | bit : mask[id / 32] & ~bit;
}

static void ban_ending(const di_sample_params *p, uint32_t *mask) {
    if (p->eos_token_id >= 0 && !p->ignore_eos) {
        set(mask, p->eos_token_id, false);
    }
    for (size_t i = 0; i < p->stop_token_ids.count; i++) {
        set(mask, p->stop_token_ids.ids[i], false);
    }
}

/* Allowed tokens, those that would end the answer too early, the grammar: all in one mask. */
static bool fill_mask(const di_sample_params *p, const di_sample_input *in, di_draw_lists *l,
                      di_draw *d) {
    di_transform t = {p, in->history, in->grammar_mask, in->num_output};
    bool early = di_transform_bans_ending(&t, l->vocab_size);
    size_t words = (size_t)l->mask_words;
    d->mask = -1;
    if (!p->allowed_token_ids.ids && !early && !in->grammar_mask) {
        return true;
    }
    if (l->num_masks == l->max_masks) {
        return false;
    }
    d->mask = l->num_masks++;
    uint32_t *mask = l->masks + (size_t)d->mask * words;
    memset(mask, p->allowed_token_ids.ids ? 0 : 0xff, words * sizeof *mask);
    const int32_t *allowed = p->allowed_token_ids.ids;
    for (size_t i = 0; allowed && i < p->allowed_token_ids.count; i++) {
        set(mask, allowed[i], true);
    }
    if (early) {
        ban_ending(p, mask);
    }
    for (size_t i = 0; in->grammar_mask && i < words; i++) {
        mask[i] &= in->grammar_mask[i];
    }
    return true;
}

static bool fill_bias(const di_sample_params *p, di_draw_lists *l, di_draw *d) {
    if (p->num_logit_bias > (size_t)(l->max_pairs - l->num_pairs)) {
        return false;
    }
    d->first_bias = l->num_pairs;
    d->num_bias = (int32_t)p->num_logit_bias;
    for (size_t i = 0; i < p->num_logit_bias; i++) {
        l->pairs[l->num_pairs++] =
            (di_draw_pair){p->logit_bias[i].id, di_f32_bits((float)p->logit_bias[i].bias)};
    }
    return true;
}

static bool fill_counts(const di_sample_params *p, const di_sample_history *h, int fed,
                        di_draw_lists *l, di_draw *d) {
    d->penalise = h && h->counting && (h->num_tokens > 0 || fed >= 0);
    d->fed = d->penalise ? fed : -1;
    if (!d->penalise) {
        return true;
    }
    if (h->num_tokens > (size_t)(l->max_pairs - l->num_pairs)) {
        return false;
    }
    d->first_count = l->num_pairs;
    d->num_counts = (int32_t)h->num_tokens;
    d->repetition = (float)p->repetition_penalty;
    d->presence = (float)p->presence_penalty;
    d->frequency = (float)p->frequency_penalty;
    for (size_t i = 0; i < h->num_tokens; i++) {
        const di_token_count *t = &h->tokens[i];
        uint32_t prompt = t->in_prompt ? DI_DRAW_IN_PROMPT : 0;
        l->pairs[l->num_pairs++] = (di_draw_pair){t->id, t->in_output | prompt};
    }
    return true;
}

static void fill_shape(const di_sampling *s, di_draw *d) {
    uint64_t floor_weight = (uint64_t)(s->min_p * 0x1p46);
    d->greedy = di_sampling_is_greedy(s);
    d->octaves = d->greedy ? 0 : di_octaves_per_logit(s->temperature);
    d->top_k = s->top_k > 0 ? s->top_k : 0;
    d->floor = floor_weight > 1 ? floor_weight : 1;
    if (s->top_p < 1) {
        int exponent;
        d->p_mantissa = (uint64_t)ldexp(frexp(s->top_p, &exponent), 53);
        d->p_shift = 53 - exponent;
    }
}

static int32_t forced_token(const di_sample_params *p, const di_sample_input *in) {
    bool forced = in->num_output >= 0 && (uint64_t)in->num_output < p->golden_token_ids.count;
    return forced ? p->golden_token_ids.ids[in->num_output] : -1;
}

bool di_draw_fill(const di_sample_params *p, const di_sample_input *in, int fed, di_draw_lists *l,
                  di_draw *d) {
    *d = (di_draw){
        .forced = forced_token(p, in),
        .race = p->seeded,
        .logprobs = p->logprobs,
        .num_top = p->logprobs ? (int32_t)p->num_logprobs : 0,
        .seed = in->seed,
        .position = in->position,
    };
    fill_shape(&p->shape, d);
    d->processed = p->logprobs && p->logprobs_mode == DI_LOGPROBS_PROCESSED && !d->greedy;
    return p->num_bad_words == 0 && fill_mask(p, in, l, d) && fill_bias(p, l, d) &&
           fill_counts(p, in->history, fed, l, d);
}

/* Mostly the mask is the one before. */
static void share_mask(di_draw_lists *l, int32_t before, di_draw *d) {
    size_t words = (size_t)l->mask_words, bytes = words * sizeof *l->masks;
    if (before >= 0 && d->mask >= 0 &&
        memcmp(l->masks + (size_t)before * words, l->masks + (size_t)d->mask * words, bytes) == 0) {
        d->mask = before;
        l->num_masks--;
    }
}

bool di_draw_move(const di_sample_params *p, const di_sample_input *in, di_draw_lists *l,
                  di_draw *d) {
    di_draw moved = *d;
    if (!fill_mask(p, in, l, &moved)) {
        return false;
    }
    share_mask(l, d->mask, &moved);
    moved.forced = forced_token(p, in);
    moved.position = in->position;
    *d = moved;
    return true;
}

bool di_draw_ok(const di_drawn *r, di_error *err) {
    if (r->status == DI_DRAW_BAD_LOGITS) {
        return di_sample_bad_logits(err);
    }
    return r->status == DI_DRAW_OK || di_sample_no_token(err);
}

/* Key descending, id ascending. */
static int by_rank(const void *a, const void *b) {
    const di_draw_pair *x = a, *y = b;
    int32_t p = di_key(di_f32_from_bits(x->value)), q = di_key(di_f32_from_bits(y->value));
    return p != q ? (p < q) - (p > q) : (x->id > y->id) - (x->id < y->id);
}

void di_draw_logprobs(const di_draw *d, const di_drawn *r, di_draw_pair *top, int32_t *ids,
                      double *logprobs, di_logprobs *out) {
    di_row row = {.best = r->best, .c = d->processed ? d->octaves : di_octaves_per_logit(1)};
    out->logprob = r->kept ? di_logprob(&row, r->sum, r->chosen) : -INFINITY;
    out->num_top = r->num_top;
    out->top_ids = ids;
    out->top_logprobs = logprobs;
    qsort(top, (size_t)r->num_top, sizeof *top, by_rank);
    for (int i = 0; i < r->num_top; i++) {
        ids[i] = top[i].id;
        logprobs[i] = di_logprob(&row, r->sum, di_f32_from_bits(top[i].value));
    }
}
