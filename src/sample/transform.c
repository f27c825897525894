/* Bias, bans, masks and penalties on a copy of a row. See transform.h. */
#include "sample/transform.h"

#include <float.h>
#include <math.h>
#include <string.h>

static bool has_bit(const uint32_t *mask, int32_t id) {
    return mask[id / 32] >> id % 32 & 1;
}

/* Tokens that end the answer and that the grammar allows, each counted once. */
static int count_endings(const di_sample_params *p, const uint32_t *mask) {
    bool eos = p->eos_token_id >= 0 && !p->ignore_eos;
    int count = eos && has_bit(mask, p->eos_token_id);
    for (size_t i = 0; i < p->stop_token_ids.count; i++) {
        int32_t id = p->stop_token_ids.ids[i];
        bool seen = eos && id == p->eos_token_id;
        for (size_t k = 0; k < i && !seen; k++) {
            seen = p->stop_token_ids.ids[k] == id;
        }
        count += !seen && has_bit(mask, id);
    }
    return count;
}

/* Whether the grammar allows anything but the end. */
static bool may_go_on(const di_sample_params *p, const uint32_t *mask, int vocab_size) {
    int endings = count_endings(p, mask);
    for (int w = 0; w < (vocab_size + 31) / 32 && endings >= 0; w++) {
        endings -= __builtin_popcount(mask[w]);
    }
    return endings < 0;
}

static bool early(const di_transform *t) {
    return t->num_output < t->params->min_tokens;
}

bool di_transform_bans_ending(const di_transform *t, int vocab_size) {
    return early(t) && (!t->grammar_mask || may_go_on(t->params, t->grammar_mask, vocab_size));
}

static bool has_counts(const di_transform *t) {
    return t->history && t->history->counting && t->history->num_tokens > 0;
}

bool di_transform_needed(const di_transform *t) {
    const di_sample_params *p = t->params;
    return p->num_logit_bias || p->allowed_token_ids.ids || p->num_bad_words || early(t) ||
           t->grammar_mask || has_counts(t);
}

/* A product or sum beyond float32 would turn a legal token into an illegal one, or a bad row. */
static float within_float(float x) {
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static void copy_allowed(const di_sample_params *p, const float *logits, int vocab_size,
                         float *out) {
    if (!p->allowed_token_ids.ids) {
        memcpy(out, logits, (size_t)vocab_size * sizeof *out);
        return;
    }
    for (int i = 0; i < vocab_size; i++) {
        out[i] = -INFINITY;
    }
    for (size_t i = 0; i < p->allowed_token_ids.count; i++) {
        int32_t id = p->allowed_token_ids.ids[i];
        out[id] = logits[id];
    }
}

static void add_bias(const di_sample_params *p, float *out) {
    for (size_t i = 0; i < p->num_logit_bias; i++) {
        float *x = &out[p->logit_bias[i].id];
        if (*x > -INFINITY) {
            *x = within_float(*x + (float)p->logit_bias[i].bias);
        }
    }
}

/* A bad word is stopped at its last token. */
static void ban_bad_words(const di_transform *t, float *out) {
    static const di_sample_history nothing = {0};
    const di_sample_history *h = t->history ? t->history : &nothing;
    for (size_t w = 0; w < t->params->num_bad_words; w++) {
        di_token_list word = t->params->bad_words[w];
        if (di_sample_history_ends_with(h, word.ids, word.count - 1)) {
            out[word.ids[word.count - 1]] = -INFINITY;
        }
    }
}

static void ban_ending(const di_sample_params *p, float *out) {
    if (p->eos_token_id >= 0 && !p->ignore_eos) {
        out[p->eos_token_id] = -INFINITY;
    }
    for (size_t i = 0; i < p->stop_token_ids.count; i++) {
        out[p->stop_token_ids.ids[i]] = -INFINITY;
    }
}

static void penalise(const di_sample_params *p, const di_sample_history *h, float *out) {
    float repetition = (float)p->repetition_penalty, presence = (float)p->presence_penalty,
          frequency = (float)p->frequency_penalty;
    for (size_t i = 0; i < h->num_tokens; i++) {
        const di_token_count *t = &h->tokens[i];
        float x = out[t->id];
        if (x == -INFINITY) {
            continue;
        }
        x = within_float(x > 0 ? x / repetition : x * repetition);
        if (t->in_output > 0) {
            x = x - frequency * (float)t->in_output;
            x = within_float(x - presence);
        }
        out[t->id] = x;
    }
}

void di_transform_row(const di_transform *t, const di_row_kernels *kernels, const float *logits,
                      int vocab_size, float *out) {
    copy_allowed(t->params, logits, vocab_size, out);
    add_bias(t->params, out);
    ban_bad_words(t, out);
    if (di_transform_bans_ending(t, vocab_size)) {
        ban_ending(t->params, out);
    }
    if (t->grammar_mask) {
        kernels->apply_mask(out, vocab_size, t->grammar_mask);
    }
    if (has_counts(t)) {
        penalise(t->params, t->history, out);
    }
}
