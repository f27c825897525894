/* One row, from logits to token. See row.h. The loops over the vocabulary are in kernels.inc, the
 * search for the cut in select.c; here is the order of things and the two ways to draw. */
#include "sample/row.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "sample/arithmetic.h"
#include "sample/logprobs.h"
#include "sample/philox.h"
#include "sample/transform.h"

struct di_sample_scratch {
    const di_row_kernels *kernels;
    int vocab_size;
    float *row;                       /* [vocab_size]: the transformed copy */
    float *block_max, *raw_block_max; /* [blocks] */
    uint64_t *sums;                   /* [blocks] */
    int32_t top_ids[DI_MAX_LOGPROBS];
    double top_logprobs[DI_MAX_LOGPROBS];
    di_select_scratch select;
    di_arena arena;
};

static bool take_arrays(di_sample_scratch *s) {
    size_t v = (size_t)s->vocab_size, blocks = (size_t)di_row_blocks(s->vocab_size);
    size_t per_token = sizeof *s->row + sizeof(int32_t) + sizeof(uint32_t) + sizeof(uint64_t);
    size_t per_block = 3 * sizeof(float) + sizeof(uint64_t);
    if (!di_arena_create(&s->arena, v * per_token + blocks * per_block + 8 * 64)) {
        return false;
    }
    s->row = di_arena_take(&s->arena, v * sizeof *s->row);
    s->select.ids = di_arena_take(&s->arena, v * sizeof *s->select.ids);
    s->select.keys = di_arena_take(&s->arena, v * sizeof *s->select.keys);
    s->select.weights = di_arena_take(&s->arena, v * sizeof *s->select.weights);
    s->select.heap = di_arena_take(&s->arena, blocks * sizeof *s->select.heap);
    s->block_max = di_arena_take(&s->arena, blocks * sizeof *s->block_max);
    s->raw_block_max = di_arena_take(&s->arena, blocks * sizeof *s->raw_block_max);
    s->sums = di_arena_take(&s->arena, blocks * sizeof *s->sums);
    return true; /* the arena was sized for all of them */
}

di_sample_scratch *di_sample_scratch_create(int vocab_size, di_error *err) {
    if (vocab_size < 1 || vocab_size > DI_SAMPLER_MAX_VOCAB) {
        di_fail(err, DI_ERR_UNSUPPORTED, "vocab_size is %d, the sampler takes 1 to %d", vocab_size,
                DI_SAMPLER_MAX_VOCAB);
        return NULL;
    }
    di_sample_scratch *s = di_calloc(1, sizeof *s);
    if (s) {
        s->kernels = di_row_kernels_best();
        s->vocab_size = vocab_size;
    }
    if (!s || !take_arrays(s)) {
        di_free(s);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the sampler");
        return NULL;
    }
    return s;
}

void di_sample_scratch_destroy(di_sample_scratch *s) {
    if (s) {
        di_arena_destroy(&s->arena);
        di_free(s);
    }
}

bool di_sample_scratch_use_kernels(di_sample_scratch *s, int index) {
    const di_row_kernels *kernels = di_row_kernels_at(index);
    s->kernels = kernels ? kernels : s->kernels;
    return kernels != NULL;
}

const char *di_sample_scratch_kernels_name(const di_sample_scratch *s) {
    return s->kernels->name;
}

/* ---- sums -------------------------------------------------------------------------------------*/

/* A row at its temperature, what is kept of it, and sums as far as somebody needed them. */
typedef struct shaped_row {
    di_row row;
    di_cut cut;
    bool whole; /* the cut keeps every token that has weight */
    uint64_t sum, kept_sum;
    int32_t kept;
    bool block_sums_valid; /* scratch->sums are those of the kept tokens */
} shaped_row;

static uint64_t add_up(const uint64_t *sums, int vocab_size) {
    uint64_t sum = 0;
    for (int b = 0; b < di_row_blocks(vocab_size); b++) {
        sum += sums[b];
    }
    return sum;
}

static void sum_whole(shaped_row *r, di_sample_scratch *s) {
    r->kept = r->row.kernels->weigh(r->row.x, r->row.vocab_size, r->row.best, r->row.c, s->sums);
    r->sum = add_up(s->sums, r->row.vocab_size);
}

/* Sets the temperature and finds the cut. */
static void shape(shaped_row *r, const di_sampling *p, di_sample_scratch *s) {
    r->row.c = di_octaves_per_logit(p->temperature);
    if (di_select_needs_sum(p)) {
        sum_whole(r, s);
    }
    r->cut = di_select(&r->row, p, r->sum, &s->select);
    r->whole = r->cut.value == -INFINITY && r->cut.floor == 1;
    r->block_sums_valid = r->whole && r->sum > 0;
    r->kept_sum = r->whole ? r->sum : 0;
}

/* Makes kept, kept_sum and the blocks' sums valid. */
static void sum_kept(shaped_row *r, di_sample_scratch *s) {
    const di_row *row = &r->row;
    if (r->block_sums_valid) {
        return;
    }
    if (r->whole) {
        sum_whole(r, s);
        r->kept_sum = r->sum;
    } else {
        r->kept = row->kernels->weigh_kept(row->x, row->vocab_size, row->block_max, row->best,
                                           row->c, &r->cut, s->sums);
        r->kept_sum = add_up(s->sums, row->vocab_size);
    }
    r->block_sums_valid = true;
}

/* ---- the two draws ----------------------------------------------------------------------------*/

/* 0 if the token is not kept. */
static uint64_t kept_weight(const shaped_row *r, int32_t id) {
    float x = r->row.x[id];
    uint64_t w = di_weight((r->row.best - x) * r->row.c);
    return di_cut_keeps(&r->cut, x, id, w) ? w : 0;
}

static uint64_t random_word(const di_sample_input *in, di_random_kind kind, uint32_t index) {
    uint32_t words[4];
    di_random_words(in->seed, in->position, kind, index, words);
    return (uint64_t)words[0] << 32 | words[1];
}

/* floor(u * n / 2^64) */
static uint64_t scale(uint64_t u, uint64_t n) {
    return (uint64_t)((unsigned __int128)u * n >> 64);
}

/* The first kept id, ascending, whose inclusive sum of weights exceeds floor(u * kept_sum / 2^64).
 */
static int32_t draw_by_sum(shaped_row *r, const di_sample_input *in, di_sample_scratch *s) {
    sum_kept(r, s);
    uint64_t left = scale(random_word(in, DI_RANDOM_TARGET, 0), r->kept_sum); /* < kept_sum */
    int b = 0;
    while (left >= s->sums[b]) {
        left -= s->sums[b++];
    }
    int32_t id = b * DI_ROW_BLOCK;
    uint64_t w;
    while ((w = kept_weight(r, id)) <= left) {
        left -= w;
        id++;
    }
    return id;
}

/* ---- drafts of unseeded requests --------------------------------------------------------------*/

/* Lists the kept tokens in the law; there are DI_LAW_TOKENS at most. */
static bool fill_law(const shaped_row *r, di_draft_law *law, di_error *err) {
    const di_row *row = &r->row;
    int most = row->vocab_size < DI_LAW_TOKENS ? row->vocab_size : DI_LAW_TOKENS;
    law->count = 0;
    law->sum = 0;
    if (!di_draft_law_reserve(law, most, err)) {
        return false;
    }
    for (int b = 0, at = 0; at < row->vocab_size; b++, at += DI_ROW_BLOCK) {
        int end = at + DI_ROW_BLOCK < row->vocab_size ? at + DI_ROW_BLOCK : row->vocab_size;
        for (int32_t id = at; row->block_max[b] >= r->cut.value && id < end; id++) {
            uint64_t w = kept_weight(r, id);
            if (w > 0) {
                law->ids[law->count] = id;
                law->weights[law->count++] = w;
                law->sum += w;
            }
        }
    }
    return true;
}

/* Kind and index keep the word apart from every other: a position may be proposed again after a
 * refusal before it, from another index then, and what was seen of the first draft must not decide
 * about the second. */
static int32_t draw_from_law(const di_draft_law *law, const di_sample_input *in, uint32_t index) {
    uint64_t left = scale(random_word(in, DI_RANDOM_DRAFT, index), law->sum);
    int i = 0;
    while (left >= law->weights[i]) {
        left -= law->weights[i++];
    }
    return law->ids[i];
}

static uint64_t law_weight(const di_draft_law *law, int32_t id) {
    int low = 0, high = law->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (law->ids[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < law->count && law->ids[low] == id ? law->weights[low] : 0;
}

/* Visits the kept tokens, ascending, with max(P - Q, 0) of each; stops at the first whose inclusive
 * sum exceeds `limit` and returns it, else -1. *sum: of all that were visited. */
static int32_t walk_residual(const shaped_row *r, const di_draft_law *law, uint64_t limit,
                             uint64_t *sum) {
    const di_row *row = &r->row;
    di_share p = di_share_of(r->kept_sum), q = di_share_of(law->sum);
    int i = 0;
    *sum = 0;
    for (int b = 0, at = 0; at < row->vocab_size; b++, at += DI_ROW_BLOCK) {
        int end = at + DI_ROW_BLOCK < row->vocab_size ? at + DI_ROW_BLOCK : row->vocab_size;
        for (int32_t id = at; row->block_max[b] >= r->cut.value && id < end; id++) {
            uint64_t w = kept_weight(r, id);
            while (i < law->count && law->ids[i] < id) {
                i++;
            }
            bool drafted = i < law->count && law->ids[i] == id;
            uint64_t target = di_share_apply(p, w);
            uint64_t draft = drafted ? di_share_apply(q, law->weights[i]) : 0;
            *sum += di_residual(target, draft);
            if (w > 0 && *sum > limit) {
                return id;
            }
        }
    }
    return -1;
}

/* The draft if it passes min(1, P / Q), else a token by max(P - Q, 0): together P exactly. */
static int32_t draw_by_rejection(shaped_row *r, const di_sample_input *in, di_sample_scratch *s) {
    const di_draft_law *law = in->law;
    sum_kept(r, s);
    uint64_t p = di_share_apply(di_share_of(r->kept_sum), kept_weight(r, law->token));
    uint64_t q = di_share_apply(di_share_of(law->sum), law_weight(law, law->token));
    uint64_t u = random_word(in, DI_RANDOM_ACCEPT, 0) >> 1;
    if (di_draft_stands(p, q, u)) {
        return law->token;
    }
    uint64_t mass, ignored;
    walk_residual(r, law, UINT64_MAX, &mass);
    if (mass == 0) { /* roundings alone: both laws are one */
        return r->row.best_id;
    }
    return walk_residual(r, law, scale(random_word(in, DI_RANDOM_RESIDUAL, 0), mass), &ignored);
}

/* ---- the race ---------------------------------------------------------------------------------*/

/* What (1 - U) * 2^31 of a token may be, per unit of 2^-y, for it to beat `best`: noise is no less
 * than 1 - U but for its error of 2^-22, which the factor behind covers with the roundings here. */
static float race_bound(di_racer best) {
    double ratio = (double)best.noise * 0x1p-56 / ((double)best.weight * 0x1p-46);
    return (float)(ratio * 0x1p31 * (1 + 0x1p-16));
}

static void race_in_block(const shaped_row *r, int at, const uint32_t *words, di_racer *best) {
    int end = at + DI_ROW_BLOCK < r->row.vocab_size ? at + DI_ROW_BLOCK : r->row.vocab_size;
    for (int32_t id = at; id < end; id++) {
        uint64_t w = kept_weight(r, id);
        if (w > 0) {
            di_racer racer = {di_noise(words[id - at]), w, id};
            *best = di_racer_beats(racer, *best) ? racer : *best;
        }
    }
}

/* The kept id with the smallest noise / weight. The likeliest token (always kept) runs first and
 * sets a mark; then a block is looked at closely only if a cheap test cannot rule it out, and not
 * at all if even the smallest noise there is, 2^-33, is too much for its best token. */
static int32_t draw_by_race(const shaped_row *r, const di_sample_input *in) {
    const di_row *row = &r->row;
    uint32_t words[DI_ROW_BLOCK];
    di_random_words(in->seed, in->position, DI_RANDOM_COUPLED, (uint32_t)row->best_id / 4, words);
    di_racer best = {di_noise(words[row->best_id % 4]), (uint64_t)1 << DI_WEIGHT_BITS,
                     row->best_id};
    float bound = race_bound(best);
    for (int b = 0, at = 0; at < row->vocab_size; b++, at += DI_ROW_BLOCK) {
        float top = (float)di_weight((row->best - row->block_max[b]) * row->c) * 0x1p-46f;
        if (row->block_max[b] < r->cut.value || bound * (top + 0x1p-46f) < 0.2499f) {
            continue;
        }
        if (row->kernels->race_block(row->x + at, row->vocab_size - at, row->best, row->c, in->seed,
                                     in->position, (uint32_t)at / 4, bound, words)) {
            race_in_block(r, at, words, &best);
            bound = race_bound(best);
        }
    }
    return best.id;
}

/* ---- log-probabilities ------------------------------------------------------------------------*/

static void list_logprobs(const di_row *row, const di_cut *cut, uint64_t sum, int64_t n,
                          di_sample_scratch *s, di_logprobs *out) {
    out->num_top = di_top_logprobs(row, cut, sum, (int)n, s->top_ids, s->top_logprobs, &s->select);
    out->top_ids = s->top_ids;
    out->top_logprobs = s->top_logprobs;
}

/* Of the model's own row at temperature 1. `known_sum`: of its weights, 0 = not known yet. */
static void raw_logprobs(di_row row, uint64_t known_sum, const di_sample_params *p, int32_t token,
                         di_sample_scratch *s, di_logprobs *out) {
    uint64_t sum = known_sum;
    if (sum == 0) {
        row.c = di_octaves_per_logit(1);
        row.kernels->weigh(row.x, row.vocab_size, row.best, row.c, s->sums);
        sum = add_up(s->sums, row.vocab_size);
    }
    out->logprob = di_logprob(&row, sum, row.x[token]);
    list_logprobs(&row, NULL, sum, p->num_logprobs, s, out);
}

/* Of what is drawn from. */
static void processed_logprobs(shaped_row *r, const di_sample_params *p, int32_t token,
                               di_sample_scratch *s, di_logprobs *out) {
    sum_kept(r, s);
    bool kept = kept_weight(r, token) > 0;
    out->logprob = kept ? di_logprob(&r->row, r->kept_sum, r->row.x[token]) : -INFINITY;
    list_logprobs(&r->row, &r->cut, r->kept_sum, p->num_logprobs, s, out);
}

/* ---- the row ----------------------------------------------------------------------------------*/

static bool forced_token(const di_sample_params *p, int64_t num_output, int32_t *token) {
    bool any = num_output >= 0 && (uint64_t)num_output < p->golden_token_ids.count &&
               p->golden_token_ids.ids[num_output] >= 0;
    if (any) {
        *token = p->golden_token_ids.ids[num_output];
    }
    return any;
}

/* Opens the model's row, and the transformed one in *r (the same, if nothing transforms it). */
static bool open_rows(const di_sample_params *p, const di_sample_input *in, di_sample_scratch *s,
                      di_row *raw, shaped_row *r, di_error *err) {
    if (!di_row_open(raw, s->kernels, in->logits, s->vocab_size, s->raw_block_max, err)) {
        return false;
    }
    di_transform t = {p, in->history, in->grammar_mask, in->num_output};
    if (!di_transform_needed(&t)) {
        r->row = *raw;
        return true;
    }
    di_transform_row(&t, s->kernels, in->logits, s->vocab_size, s->row);
    return di_row_open(&r->row, s->kernels, s->row, s->vocab_size, s->block_max, err);
}

bool di_sample_row(const di_sample_params *p, const di_sample_input *in, di_sample_scratch *s,
                   di_sampled *out, di_error *err) {
    di_row raw;
    shaped_row r = {0};
    *out = (di_sampled){0};
    if (!open_rows(p, in, s, &raw, &r, err)) {
        return false;
    }
    bool greedy = di_sampling_is_greedy(&p->shape);
    bool processed = p->logprobs && p->logprobs_mode == DI_LOGPROBS_PROCESSED && !greedy;
    out->forced = forced_token(p, in->num_output, &out->token);
    if (greedy && !out->forced) {
        out->token = r.row.best_id;
        out->kept = 1;
    }
    if (!greedy && (!out->forced || processed)) {
        shape(&r, &p->shape, s);
    }
    if (!greedy && !out->forced) {
        out->token = p->seeded                       ? draw_by_race(&r, in)
                     : in->law && in->law->count > 0 ? draw_by_rejection(&r, in, s)
                                                     : draw_by_sum(&r, in, s);
    }
    if (processed) {
        processed_logprobs(&r, p, out->token, s, &out->logprobs);
    } else if (p->logprobs) {
        bool same = r.row.x == raw.x && r.row.c == di_octaves_per_logit(1);
        raw.c = r.row.c;
        raw_logprobs(raw, same ? r.sum : 0, p, out->token, s, &out->logprobs);
    }
    if (!greedy && r.block_sums_valid) {
        out->kept = r.kept;
        out->kept_sum = r.kept_sum;
    }
    out->sum = r.sum;
    return true;
}

bool di_propose_row(const di_sample_params *p, const di_sample_input *in, uint32_t index,
                    di_sample_scratch *s, di_draft_law *law, di_error *err) {
    di_row raw;
    shaped_row r = {0};
    di_sampling wanted = p->shape;
    law->count = 0;
    if (!open_rows(p, in, s, &raw, &r, err)) {
        return false;
    }
    if (forced_token(p, in->num_output, &law->token)) {
        return true;
    }
    if (di_sampling_is_greedy(&p->shape)) {
        law->token = r.row.best_id;
        return true;
    }
    if (!p->seeded && (wanted.top_k <= 0 || wanted.top_k > DI_LAW_TOKENS)) {
        wanted.top_k = DI_LAW_TOKENS;
    }
    shape(&r, &wanted, s);
    if (p->seeded) {
        law->token = draw_by_race(&r, in);
        return true;
    }
    if (!fill_law(&r, law, err)) {
        return false;
    }
    law->token = draw_from_law(law, in, index);
    return true;
}

bool di_prompt_logprobs(const di_sample_params *p, const float *logits, int32_t token,
                        di_sample_scratch *s, di_logprobs *out, di_error *err) {
    shaped_row r = {0};
    *out = (di_logprobs){0};
    if (token < 0 || token >= s->vocab_size) {
        return di_fail(err, DI_ERR_ARGUMENT, "the prompt's token is %d, allowed are 0 to %d", token,
                       s->vocab_size - 1);
    }
    if (!di_row_open(&r.row, s->kernels, logits, s->vocab_size, s->raw_block_max, err)) {
        return false;
    }
    if (p->logprobs_mode == DI_LOGPROBS_PROCESSED && !di_sampling_is_greedy(&p->shape)) {
        shape(&r, &p->shape, s);
        processed_logprobs(&r, p, token, s, out);
    } else {
        raw_logprobs(r.row, 0, p, token, s, out);
    }
    return true;
}
