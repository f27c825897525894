/* Ranges of the sampling parameters, and their copy. See params.h. Whoever takes a request calls
 * this before it is queued; nothing here may accept what row.c could not carry out. */
#include "sample/params.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

void di_sample_params_init(di_sample_params *p) {
    *p = (di_sample_params){
        .shape = {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = -1},
        .repetition_penalty = 1,
        .eos_token_id = -1,
    };
}

bool di_sample_ends(const di_sample_params *p, int32_t token) {
    bool ends = token == p->eos_token_id && !p->ignore_eos;
    for (size_t i = 0; i < p->stop_token_ids.count && !ends; i++) {
        ends = token == p->stop_token_ids.ids[i];
    }
    return ends;
}

/* ---- numbers ----------------------------------------------------------------------------------*/

static bool real_in(const char *name, double value, double low, double high, di_error *err) {
    if (value >= low && value <= high) { /* false for a NaN */
        return true;
    }
    return di_fail(err, DI_ERR_ARGUMENT, "%s is %g, allowed are %g to %g", name, value, low, high);
}

static bool int_in(const char *name, int64_t value, int64_t low, int64_t high, di_error *err) {
    if (value >= low && value <= high) {
        return true;
    }
    return di_fail(err, DI_ERR_ARGUMENT, "%s is %lld, allowed are %lld to %lld", name,
                   (long long)value, (long long)low, (long long)high);
}

bool di_sampling_check(const di_sampling *p, di_error *err) {
    if (!real_in("temperature", p->temperature, 0, DI_MAX_TEMPERATURE, err)) {
        return false;
    }
    if (!(p->top_p > 0 && p->top_p <= 1)) {
        return di_fail(err, DI_ERR_ARGUMENT, "top_p is %g, allowed are values above 0 up to 1",
                       p->top_p);
    }
    if (!real_in("min_p", p->min_p, 0, 1, err)) {
        return false;
    }
    if (p->top_k < -1 || p->top_k > INT32_MAX) {
        return di_fail(err, DI_ERR_ARGUMENT, "top_k is %lld, allowed are -1 or 0 (off) and 1 to %d",
                       (long long)p->top_k, INT32_MAX);
    }
    return true;
}

/* ---- lists of ids -----------------------------------------------------------------------------*/

static bool id_in(const char *name, size_t at, int32_t id, int vocab_size, di_error *err) {
    if (id >= 0 && id < vocab_size) {
        return true;
    }
    return di_fail(err, DI_ERR_ARGUMENT, "%s[%zu] is %d, allowed are token ids 0 to %d", name, at,
                   id, vocab_size - 1);
}

static bool has_elements(const char *name, const void *elements, size_t count, di_error *err) {
    if (!count == !elements) {
        return true;
    }
    return di_fail(err, DI_ERR_ARGUMENT, "%s is an empty list; leave it out, or name something",
                   name);
}

/* `seen`: a bit for every token, clear; used by one list. */
static bool first_time(uint64_t *seen, const char *name, size_t at, int32_t id, di_error *err) {
    uint64_t bit = (uint64_t)1 << (id % 64);
    if (seen[id / 64] & bit) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s[%zu] is %d, which the list already has", name, at,
                       id);
    }
    seen[id / 64] |= bit;
    return true;
}

static bool check_set(const char *name, di_token_list list, int vocab_size, uint64_t *seen,
                      di_error *err) {
    memset(seen, 0, ((size_t)vocab_size + 63) / 64 * sizeof *seen);
    for (size_t i = 0; i < list.count; i++) {
        if (!id_in(name, i, list.ids[i], vocab_size, err) ||
            !first_time(seen, name, i, list.ids[i], err)) {
            return false;
        }
    }
    return has_elements(name, list.ids, list.count, err);
}

static bool check_bias(const di_sample_params *p, int vocab_size, uint64_t *seen, di_error *err) {
    memset(seen, 0, ((size_t)vocab_size + 63) / 64 * sizeof *seen);
    for (size_t i = 0; i < p->num_logit_bias; i++) {
        const di_logit_bias *b = &p->logit_bias[i];
        if (!id_in("logit_bias", i, b->id, vocab_size, err) ||
            !first_time(seen, "logit_bias", i, b->id, err)) {
            return false;
        }
        if (!(b->bias >= -100 && b->bias <= 100)) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "logit_bias of token %d is %g, allowed are -100 to 100", b->id, b->bias);
        }
    }
    return has_elements("logit_bias", p->logit_bias, p->num_logit_bias, err);
}

static bool check_bad_words(const di_sample_params *p, int vocab_size, di_error *err) {
    if (p->num_bad_words > DI_MAX_BAD_WORDS) {
        return di_fail(err, DI_ERR_ARGUMENT, "bad_words has %zu sequences, allowed are up to %d",
                       p->num_bad_words, DI_MAX_BAD_WORDS);
    }
    for (size_t w = 0; w < p->num_bad_words; w++) {
        di_token_list word = p->bad_words[w];
        if (word.count < 1 || word.count > DI_MAX_BAD_WORD_TOKENS) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "bad_words[%zu] has %zu tokens, allowed are 1 to %d", w, word.count,
                           DI_MAX_BAD_WORD_TOKENS);
        }
        for (size_t i = 0; i < word.count; i++) {
            if (!id_in("bad_words", w, word.ids[i], vocab_size, err)) {
                return false;
            }
        }
    }
    return has_elements("bad_words", p->bad_words, p->num_bad_words, err);
}

static bool check_golden(di_token_list list, int vocab_size, di_error *err) {
    for (size_t i = 0; i < list.count; i++) {
        if (list.ids[i] != -1 && !id_in("golden_token_ids", i, list.ids[i], vocab_size, err)) {
            return false;
        }
    }
    return has_elements("golden_token_ids", list.ids, list.count, err);
}

static bool check_numbers(const di_sample_params *p, int vocab_size, di_error *err) {
    if (!di_sampling_check(&p->shape, err) ||
        !real_in("repetition_penalty", p->repetition_penalty, DI_MIN_REPETITION_PENALTY,
                 DI_MAX_REPETITION_PENALTY, err) ||
        !real_in("presence_penalty", p->presence_penalty, -2, 2, err) ||
        !real_in("frequency_penalty", p->frequency_penalty, -2, 2, err) ||
        !int_in("min_tokens", p->min_tokens, 0, INT32_MAX, err) ||
        !int_in("num_logprobs", p->num_logprobs, 0, DI_MAX_LOGPROBS, err) ||
        !int_in("eos_token_id", p->eos_token_id, -1, vocab_size - 1, err)) {
        return false;
    }
    if (p->logprobs_mode != DI_LOGPROBS_RAW && p->logprobs_mode != DI_LOGPROBS_PROCESSED) {
        return di_fail(err, DI_ERR_ARGUMENT, "logprobs_mode is %d, allowed are raw and processed",
                       (int)p->logprobs_mode);
    }
    return true;
}

bool di_sample_params_check(const di_sample_params *p, int vocab_size, di_error *err) {
    if (vocab_size < 1 || vocab_size > DI_SAMPLER_MAX_VOCAB) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "vocab_size is %d, the sampler takes 1 to %d",
                       vocab_size, DI_SAMPLER_MAX_VOCAB);
    }
    if (!check_numbers(p, vocab_size, err)) {
        return false;
    }
    uint64_t *seen = di_alloc(((size_t)vocab_size + 63) / 64 * sizeof *seen);
    if (!seen) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to check the sampling parameters");
    }
    bool ok = check_bias(p, vocab_size, seen, err) &&
              check_set("allowed_token_ids", p->allowed_token_ids, vocab_size, seen, err) &&
              check_set("stop_token_ids", p->stop_token_ids, vocab_size, seen, err) &&
              check_bad_words(p, vocab_size, err) &&
              check_golden(p->golden_token_ids, vocab_size, err);
    di_free(seen);
    return ok;
}

/* ---- the copy ---------------------------------------------------------------------------------*/

/* Lays arrays behind each other in one block: first with base == NULL to learn the size, then for
 * good. */
typedef struct packer {
    unsigned char *base;
    size_t used;
    bool overflow;
} packer;

static const void *pack(packer *k, const void *from, size_t count, size_t size) {
    size_t bytes, end;
    if (!from) {
        return NULL;
    }
    if (!di_mul_size(count, size, &bytes) || !di_round_up_size(bytes, 8, &end) ||
        !di_add_size(k->used, end, &end)) {
        k->overflow = true;
        return NULL;
    }
    unsigned char *to = k->base ? k->base + k->used : NULL;
    k->used = end;
    return to ? memcpy(to, from, bytes) : NULL;
}

static di_token_list pack_list(packer *k, di_token_list list) {
    return (di_token_list){pack(k, list.ids, list.count, sizeof *list.ids), list.count};
}

static void pack_params(packer *k, const di_sample_params *p) {
    di_sample_params copy = *p;
    size_t header = k->used;
    pack(k, p, 1, sizeof *p);
    copy.logit_bias = pack(k, p->logit_bias, p->num_logit_bias, sizeof *p->logit_bias);
    copy.allowed_token_ids = pack_list(k, p->allowed_token_ids);
    copy.stop_token_ids = pack_list(k, p->stop_token_ids);
    copy.golden_token_ids = pack_list(k, p->golden_token_ids);
    size_t words_at = k->used;
    copy.bad_words = pack(k, p->bad_words, p->num_bad_words, sizeof *p->bad_words);
    for (size_t w = 0; w < p->num_bad_words; w++) {
        di_token_list word = pack_list(k, p->bad_words[w]);
        if (k->base) {
            memcpy(k->base + words_at + w * sizeof word, &word, sizeof word);
        }
    }
    if (k->base) {
        memcpy(k->base + header, &copy, sizeof copy);
    }
}

di_sample_params *di_sample_params_clone(const di_sample_params *p, di_error *err) {
    packer k = {0};
    pack_params(&k, p);
    k.base = k.overflow ? NULL : di_alloc(k.used);
    if (!k.base) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the sampling parameters");
        return NULL;
    }
    k.used = 0;
    pack_params(&k, p);
    return (di_sample_params *)k.base;
}

void di_sample_params_free(di_sample_params *p) {
    di_free(p);
}
