/* A card's draw (di_draw_call) by the sampler: the numbers back into a request's parameters. */
#include "simcard/simcard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample/arithmetic.h"
#include "sample/row.h"

/* A temperature that counts so many octaves a logit. */
static double temperature_of(float octaves) {
    float t = (float)(DI_LOG2_E / (double)octaves);
    for (int i = 0; i < 4 && di_octaves_per_logit((double)t) != octaves; i++) {
        t = nextafterf(t, di_octaves_per_logit((double)t) > octaves ? INFINITY : 0);
    }
    return (double)t;
}

static void fill_shape(const di_draw *d, di_sampling *s) {
    s->temperature = d->greedy ? 0 : temperature_of(d->octaves);
    s->top_k = d->top_k;
    s->min_p = d->floor > 1 ? (double)d->floor * 0x1p-46 : 0;
    s->top_p = d->p_mantissa ? ldexp((double)d->p_mantissa, -d->p_shift) : 1;
}

/* Prompt and answer as far as counts tell of them. */
static bool fill_history(const di_draw_call *call, const di_draw *d, di_sample_params *p,
                         di_sample_history *h) {
    int32_t *prompt = calloc((size_t)d->num_counts + 1, sizeof *prompt);
    const di_draw_pair *counts = call->pairs + d->first_count;
    size_t in_prompt = 0, output = 1;
    bool ok = prompt != NULL;
    for (int k = 0; ok && k < d->num_counts; k++) {
        output += counts[k].value & ~DI_DRAW_IN_PROMPT;
        if (counts[k].value & DI_DRAW_IN_PROMPT) {
            prompt[in_prompt++] = counts[k].id;
        }
    }
    p->repetition_penalty = (double)d->repetition;
    p->presence_penalty = (double)d->presence;
    p->frequency_penalty = (double)d->frequency;
    ok = ok && di_sample_history_create(h, p, call->vocab_size, prompt, in_prompt, output, NULL);
    for (int k = 0; ok && k < d->num_counts; k++) {
        for (uint32_t n = counts[k].value & ~DI_DRAW_IN_PROMPT; ok && n > 0; n--) {
            ok = di_sample_history_push(h, counts[k].id, NULL);
        }
    }
    free(prompt);
    return ok && (d->fed < 0 || di_sample_history_push(h, call->before[d->fed], NULL));
}

static bool ranks_before(const float *x, int32_t a, int32_t b) {
    int32_t p = di_key(x[a]), q = di_key(x[b]);
    return p != q ? p > q : a < b;
}

/* What log-probabilities of the model's own row are made of. */
static void fill_raw(const di_draw_call *call, const di_draw *d, const float *x, di_drawn *out,
                     di_draw_pair *top) {
    float octaves = di_octaves_per_logit(1);
    out->best = -INFINITY;
    for (int v = 0; v < call->vocab_size; v++) {
        out->best = x[v] > out->best ? x[v] : out->best;
    }
    for (int v = 0; v < call->vocab_size; v++) {
        out->sum += di_weight((out->best - x[v]) * octaves);
    }
    out->chosen = x[out->token];
    out->kept = true;
    for (int v = 0; v < call->vocab_size && d->num_top > 0; v++) {
        int at = out->num_top;
        while (at > 0 && ranks_before(x, v, top[at - 1].id)) {
            at--;
        }
        if (x[v] == -INFINITY || at == d->num_top) {
            continue;
        }
        int moved = (out->num_top < d->num_top ? out->num_top : d->num_top - 1) - at;
        memmove(top + at + 1, top + at, (size_t)moved * sizeof *top);
        top[at] = (di_draw_pair){v, di_f32_bits(x[v])};
        out->num_top += out->num_top < d->num_top;
    }
}

static bool draw_row(const di_draw_call *call, const di_draw *d, const float *x, di_drawn *out) {
    di_sample_params p;
    di_sample_history history = {0};
    di_sampled sampled;
    di_error err = {0};
    di_logit_bias *bias = calloc((size_t)d->num_bias + 1, sizeof *bias);
    di_sample_scratch *scratch = di_sample_scratch_create(call->vocab_size, NULL);
    di_sample_params_init(&p);
    fill_shape(d, &p.shape);
    p.seeded = d->race;
    p.eos_token_id = -1;
    p.golden_token_ids = (di_token_list){&d->forced, 1};
    for (int k = 0; bias && k < d->num_bias; k++) {
        const di_draw_pair *pair = &call->pairs[d->first_bias + k];
        bias[k] = (di_logit_bias){pair->id, (double)di_f32_from_bits(pair->value)};
    }
    p.logit_bias = bias;
    p.num_logit_bias = (size_t)d->num_bias;
    bool ok = bias && scratch && (!d->penalise || fill_history(call, d, &p, &history));
    di_sample_input in = {
        .logits = x,
        .grammar_mask =
            d->mask >= 0 ? call->masks + (size_t)d->mask * (size_t)call->mask_words : NULL,
        .history = d->penalise ? &history : NULL,
        .seed = d->seed,
        .position = d->position,
    };
    *out = (di_drawn){0};
    if (ok && di_sample_row(&p, &in, scratch, &sampled, &err)) {
        out->token = sampled.token;
    } else {
        out->status = strncmp(err.message, "bad", 3) == 0 ? DI_DRAW_BAD_LOGITS : DI_DRAW_NO_TOKEN;
    }
    di_sample_history_destroy(&history);
    di_sample_scratch_destroy(scratch);
    free(bias);
    return ok;
}

bool simcard_draw(const di_draw_call *call, int i) {
    const di_draw *d = &call->rows[i];
    const float *x = call->logits + (size_t)d->logits * (size_t)call->vocab_size;
    di_drawn *out = &call->drawn[i];
    bool ok = !(d->logprobs && d->processed) && draw_row(call, d, x, out);
    if (ok && d->logprobs && out->status == DI_DRAW_OK) {
        fill_raw(call, d, x, out, call->top + (size_t)i * (size_t)call->max_top);
    }
    call->tokens[i] = out->token;
    return ok;
}
