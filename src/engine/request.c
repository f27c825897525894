/* From what a caller asks to a request the step thread can run: checks, ids, and all memory that
 * its life will need for sure. Called on the caller's thread. */
#include "engine/request.h"

#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/constraint.h"
#include "engine/internal.h"
#include "engine/prompt.h"
#include "sample/philox.h"

/* ---- numbers ----------------------------------------------------------------------------------*/

/* Beyond di_params_read: what this engine can do. */
static bool check_numbers(const di_engine *e, const di_request_params *p, di_error *err) {
    if (p->top_logprobs > e->max_logprobs) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "top_logprobs is %d, allowed are 0 to %d (the engine's max_logprobs)",
                       p->top_logprobs, e->max_logprobs);
    }
    if (p->prompt_logprobs && e->replay_mode != DI_REPLAY_OFF) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "prompt_logprobs need every row of the prompt, which bounded replay leaves "
                       "out; open the engine without it");
    }
    return true;
}

/* How long an answer may be. The last token of an answer needs no row, so one more than the context
 * or the cache holds can be drawn. */
static bool set_max_len(const di_engine *e, di_request *r, int64_t max_tokens, int64_t *max_len,
                        di_error *err) {
    int64_t prompt = (int64_t)r->prompt.count, left = e->parts.max_model_len + 1 - prompt;
    if (max_tokens > left) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "max_tokens is %lld, but behind a prompt of %lld tokens the context of %lld "
                       "has room for %lld",
                       (long long)max_tokens, (long long)prompt, (long long)e->parts.max_model_len,
                       (long long)left);
    }
    *max_len = prompt + (max_tokens ? max_tokens : left);
    int64_t room = (int64_t)e->parts.num_blocks * DI_BLOCK_TOKENS;
    if (prompt > room || (max_tokens && *max_len - 1 > room)) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "prompt and max_tokens are %lld tokens, the cache holds %lld in all "
                       "(kv_memory)",
                       (long long)*max_len, (long long)room);
    }
    *max_len = *max_len - 1 < room ? *max_len : room + 1;
    return true;
}

/* Of 63 bits, so that what an answer tells can be given again wherever seeds are read: JSON's
 * integers are signed here. */
static bool random_seed(uint64_t *seed, di_error *err) {
    bool drawn = getrandom(seed, sizeof *seed, 0) == (ssize_t)sizeof *seed;
    *seed >>= 1;
    return drawn || di_fail_errno(err, "no random seed from the system");
}

/* ---- lists ------------------------------------------------------------------------------------*/

/* Token sequences that spell a word, at the start of a text and behind a space. */
typedef struct word_list {
    di_ids ids;
    di_token_list *lists;
    size_t count;
} word_list;

static bool add_word(const di_engine *e, const char *text, size_t *ends, word_list *words,
                     di_error *err) {
    if (!di_tokenizer_encode(e->parts.tokenizer, text, strlen(text), DI_ENCODE_PLAIN, &words->ids,
                             err)) {
        return di_fail_prefix(err, "bad_words");
    }
    ends[words->count++] = words->ids.count;
    return true;
}

static bool spell_words(const di_engine *e, const di_request_params *p, size_t *ends,
                        word_list *words, di_error *err) {
    for (size_t i = 0; i < p->num_bad_words; i++) {
        if (!p->bad_words[i] || !*p->bad_words[i]) {
            return di_fail(err, DI_ERR_ARGUMENT, "bad_words[%zu] is empty", i);
        }
        di_buffer spaced = {0};
        bool ok = di_buffer_append_text(&spaced, " ", err) &&
                  di_buffer_append_text(&spaced, p->bad_words[i], err) &&
                  add_word(e, p->bad_words[i], ends, words, err) &&
                  add_word(e, spaced.data, ends, words, err);
        di_buffer_free(&spaced);
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool make_words(const di_engine *e, const di_request_params *p, word_list *words,
                       di_error *err) {
    if (p->num_bad_words == 0) {
        return true;
    }
    if (!e->parts.tokenizer) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "bad_words need a tokenizer.json");
    }
    if (p->num_bad_words > DI_MAX_BAD_WORDS / 2) {
        return di_fail(err, DI_ERR_ARGUMENT, "%zu bad_words, at most %d are allowed",
                       p->num_bad_words, DI_MAX_BAD_WORDS / 2);
    }
    size_t *ends = di_calloc(2 * p->num_bad_words, sizeof *ends);
    words->lists = di_calloc(2 * p->num_bad_words, sizeof *words->lists);
    bool ok = ends && words->lists;
    if (!ok) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu bad_words", p->num_bad_words);
    } else if ((ok = spell_words(e, p, ends, words, err))) {
        for (size_t i = 0; i < words->count; i++) {
            size_t begin = i ? ends[i - 1] : 0;
            words->lists[i] = (di_token_list){words->ids.data + begin, ends[i] - begin};
        }
    }
    di_free(ends);
    return ok;
}

/* The sampler's view of the parameters; lists are borrowed from p and words. */
static void fill_params(const di_engine *e, const di_request_params *p, const word_list *words,
                        const di_logit_bias *bias, di_sample_params *s) {
    di_sample_params_init(s);
    s->shape = (di_sampling){p->temperature, p->top_p, p->min_p, p->top_k};
    s->repetition_penalty = p->repetition_penalty;
    s->presence_penalty = p->presence_penalty;
    s->frequency_penalty = p->frequency_penalty;
    s->logit_bias = p->num_logit_bias > 0 ? bias : NULL;
    s->num_logit_bias = p->num_logit_bias;
    s->allowed_token_ids = (di_token_list){p->allowed_token_ids, p->num_allowed_token_ids};
    s->bad_words = words->lists;
    s->num_bad_words = words->count;
    s->golden_token_ids = (di_token_list){p->golden_token_ids, p->num_golden_token_ids};
    s->min_tokens = p->min_tokens;
    s->stop_token_ids = (di_token_list){p->stop_token_ids, p->num_stop_token_ids};
    s->eos_token_id = e->parts.weights->config.eos_token_id;
    s->ignore_eos = p->ignore_eos;
    /* Without drafts a random seed that is told gives the same answer when it is given again; with
     * them exact rejection lets more of them stand, and the answer depends on them. A card knows
     * the coupled draw alone. */
    s->seeded = p->has_seed || e->num_drafts == 0 || e->parts.queues_steps;
    s->seed = p->seed;
    s->logprobs = p->logprobs;
    s->num_logprobs = p->top_logprobs;
    s->logprobs_mode = p->processed_logprobs ? DI_LOGPROBS_PROCESSED : DI_LOGPROBS_RAW;
}

static bool read_params(const di_engine *e, const di_request_params *p, di_sample_params **out,
                        di_error *err) {
    word_list words = {0};
    di_sample_params s;
    di_logit_bias *bias = di_calloc(p->num_logit_bias, sizeof *bias);
    if (!bias) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu biases", p->num_logit_bias);
    }
    for (size_t i = 0; i < p->num_logit_bias; i++) {
        bias[i] = (di_logit_bias){p->logit_bias[i].token_id, (double)p->logit_bias[i].bias};
    }
    bool ok = make_words(e, p, &words, err);
    if (ok) {
        fill_params(e, p, &words, bias, &s);
        ok = di_sample_params_check(&s, e->parts.weights->config.vocab_size, err) &&
             (*out = di_sample_params_clone(&s, err));
    }
    di_free(bias);
    di_free(words.lists);
    di_ids_free(&words.ids);
    return ok;
}

/* ---- the request ------------------------------------------------------------------------------*/

static di_hash salt_of(const di_engine *e, const char *salt) {
    di_hash h = di_cache_salt(e->parts.cache, salt ? salt : "", salt ? strlen(salt) : 0);
    h.low ^= (uint64_t)e->replay_mode << 32 ^ (uint64_t)e->replay_keep;
    return h;
}

static bool create_choice(const di_engine *e, di_request *r, const di_request_params *p, int index,
                          int64_t max_len, di_error *err) {
    di_choice *c = &r->choices[index];
    size_t prompt = r->prompt.count, room = (size_t)max_len;
    int32_t *tokens = di_realloc_array(NULL, room > prompt ? room : prompt, sizeof *tokens);
    *c = (di_choice){.request = r, .index = index, .stop_token = -1};
    c->sampler = (di_row_sampler){
        .params = r->params,
        .seed = di_seed_of_choice(r->seed, (uint32_t)index),
        .prompt = index == 0 ? r->prompt_scores : NULL,
    };
    c->job = (di_job){
        .owner = c,
        .priority = p->priority,
        .num_prompt = (int64_t)prompt,
        .max_len = max_len,
        .salt = salt_of(e, p->cache_salt),
        .prompt_logits = c->sampler.prompt != NULL,
        .no_prefix = p->no_prefix_cache,
        .leader = index > 0 ? &r->choices[0].job : NULL,
        .tokens = tokens,
        .num_tokens = (int64_t)prompt,
    };
    if (e->replay_mode != DI_REPLAY_OFF && (int64_t)prompt > e->replay_keep) {
        c->job.replay_from = (int64_t)prompt - e->replay_keep;
    }
    if (!tokens) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu tokens", room);
    }
    memcpy(tokens, r->prompt.data, prompt * sizeof *tokens);
    if (e->parts.tokenizer) {
        di_detokenizer_init(&c->detokenizer, e->parts.tokenizer);
        di_detokenizer_prime(&c->detokenizer, tokens, prompt);
    }
    di_stop_start(&c->stop, r->stops, p->include_stop);
    return di_sample_history_create(&c->sampler.history, r->params,
                                    e->parts.weights->config.vocab_size, tokens, prompt,
                                    room - prompt, err);
}

static bool echo_prompt(const di_engine *e, di_request *r, di_error *err) {
    for (int i = 0; r->echo && e->parts.tokenizer && i < r->n; i++) {
        if (!di_detokenize(e->parts.tokenizer, r->prompt.data, r->prompt.count,
                           &r->choices[i].outbox.text, err)) {
            return false;
        }
    }
    return true;
}

static bool make_scores(di_request *r, size_t top) {
    size_t n = r->prompt.count;
    r->prompt_scores = di_calloc(n, sizeof *r->prompt_scores);
    r->prompt_tops = di_calloc(n, top * sizeof *r->prompt_tops);
    for (size_t i = 0; r->prompt_scores && r->prompt_tops && i < n; i++) {
        r->prompt_scores[i].top = r->prompt_tops + i * top;
    }
    return r->prompt_scores && r->prompt_tops;
}

static bool fill(const di_engine *e, di_request *r, const di_prompt *prompt,
                 const di_request_params *p, di_error *err) {
    int64_t max_len = 0;
    if (!check_numbers(e, p, err) || !di_prompt_encode(&e->parts, prompt, &r->prompt, err) ||
        !set_max_len(e, r, p->max_tokens, &max_len, err) || !read_params(e, p, &r->params, err) ||
        !(r->stops = di_stop_set_create(p->stop, NULL, p->num_stop, err))) {
        return false;
    }
    if (p->schema_type != DI_SCHEMA_NONE &&
        !di_constraint_create(&r->constraint, e, p, &r->prompt, err)) {
        return false;
    }
    r->pins = p->pin_prompt;
    if (r->pins && !(r->pin = di_pinned_create(r->prompt.data, (int64_t)r->prompt.count))) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to pin the prompt");
    }
    r->seed = p->seed;
    if (!p->has_seed && !random_seed(&r->seed, err)) {
        return false;
    }
    if (p->prompt_logprobs && !make_scores(r, (size_t)p->top_logprobs)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for prompt_logprobs");
    }
    for (int i = 0; i < r->n; i++) {
        if (!create_choice(e, r, p, i, max_len, err)) {
            return false;
        }
    }
    return echo_prompt(e, r, err);
}

static void destroy(di_request *r) {
    for (int i = 0; i < r->n; i++) {
        di_choice *c = &r->choices[i];
        di_sample_history_destroy(&c->sampler.history);
        di_guide_destroy(&c->sampler.guide);
        for (int k = 0; k < DI_MAX_DRAFTS; k++) {
            di_draft_law_free(&c->sampler.laws[k]);
        }
        di_free(c->job.tokens);
        di_buffer_free(&c->piece);
        di_buffer_free(&c->text);
        di_ids_free(&c->outbox.tokens);
        di_buffer_free(&c->outbox.text);
        di_free(c->outbox.infos);
        di_free(c->outbox.tops);
    }
    di_constraint_destroy(&r->constraint);
    di_free(r->pin);
    di_free(r->prompt_scores);
    di_free(r->prompt_tops);
    di_stop_set_destroy(r->stops);
    di_sample_params_free(r->params);
    di_ids_free(&r->prompt);
    di_free(r);
}

di_request *di_request_create(const di_engine *e, di_queue *queue, const di_prompt *prompt,
                              const di_request_params *params, void *tag, di_error *err) {
    di_request_params p;
    if (!di_params_read(&p, params, err)) {
        return NULL;
    }
    int n = p.n;
    di_request *r = di_calloc(1, sizeof *r + (size_t)n * sizeof *r->choices);
    if (!r) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a request");
        return NULL;
    }
    *r = (di_request){
        .tag = tag,
        .queue = queue,
        .holders = 2,
        .unread = n,
        .running = n,
        .submitted = di_now(),
        .skip_special = p.skip_special_tokens,
        .echo = p.echo,
        .report_prompt = p.report_prompt,
        .logprobs = p.logprobs,
        .n = n,
    };
    r->deadline = p.deadline > 0 ? r->submitted + p.deadline : 0;
    if (!fill(e, r, prompt, &p, err)) {
        destroy(r);
        return NULL;
    }
    return r;
}

void di_request_release(di_request *r) {
    if (atomic_fetch_sub(&r->holders, 1) == 1) {
        destroy(r);
    }
}
