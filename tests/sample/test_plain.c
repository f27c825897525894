/* Whole rows against a second implementation that goes token by token: transforms in float64
 * rounded to float32 where the sampler rounds, a sort for the filters, plain loops for the draws.
 * Random rows of 1 to 40 tokens (and some longer than a block) with every option at random; kept
 * set, sums and token must be equal, not near. */
#include <stdlib.h>
#include <string.h>

#include "sample/rows.h"

enum { MOST = 200 };

/* ---- the second implementation ----------------------------------------------------------------*/

/* float32 operations by way of float64: exact product or sum (53 bits hold both), one rounding. */
static float times(float a, float b) {
    return (float)((double)a * (double)b);
}

static float plus(float a, float b) {
    return (float)((double)a + (double)b);
}

static uint64_t plain_weight(float best, float x, double temperature) {
    static const double coefficients[] = {0x1.c946d2p-14,
                                          -0x1.4e2aeap-10,
                                          0x1.39e3fcp-7,
                                          -0x1.c6948ep-5,
                                          0x1.ebfacp-3,
                                          -0x1.62e42cp-1,
                                          1};
    if (x == -INFINITY) {
        return 0;
    }
    float c = (float)(0x1.71547652b82fep+0 / (double)(float)temperature);
    float y = times(plus(best, -x), c);
    if (y >= 46) {
        return 0;
    }
    double n = floor((double)y);
    float f = plus(y, -(float)n), g = (float)coefficients[0];
    for (int i = 1; i < 7; i++) {
        g = plus(times(g, f), (float)coefficients[i]);
    }
    return (uint64_t)floor(ldexp((double)g, 46)) / ((uint64_t)1 << (int)n);
}

/* -ln((2 word + 1) / 2^33) * 2^56 */
static uint64_t plain_noise(uint32_t word) {
    static const double coefficients[] = {0x1.66456ep-4,  -0x1.2562c2p-3, 0x1.3198b6p-3,
                                          -0x1.535278p-3, 0x1.98d016p-3,  -0x1.0004c4p-2,
                                          0x1.5556fcp-2,  -0x1.fffffap-2, 1};
    double u = ldexp(2.0 * word + 1, -33);
    int k = 0;
    while (u < ldexp(6074001000, -33)) {
        u *= 2;
        k++;
    }
    float f = (float)(u - 1), q = (float)coefficients[0];
    for (int i = 1; i < 9; i++) {
        q = plus(times(q, f), (float)coefficients[i]);
    }
    float e = plus(times((float)k, (float)0x1.62e42fefa39efp-1), -times(f, q));
    return (uint64_t)ldexp((double)e, 56);
}

typedef struct item {
    float x;
    int id;
    uint64_t w;
    bool kept;
} item;

static int by_value_then_id(const void *a, const void *b) {
    const item *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x ? 1 : -1) : p->id - q->id;
}

static int by_id(const void *a, const void *b) {
    return ((const item *)a)->id - ((const item *)b)->id;
}

typedef struct plain_result {
    bool legal;
    int token, kept;
    uint64_t kept_sum;
    item items[MOST]; /* by id */
} plain_result;

static void plain_filter(plain_result *r, int n, const di_sampling *shape) {
    uint64_t total = 0, before = 0;
    qsort(r->items, (size_t)n, sizeof *r->items, by_value_then_id);
    float best = r->items[0].x;
    for (int i = 0; i < n; i++) {
        r->items[i].w = plain_weight(best, r->items[i].x, shape->temperature);
        total += r->items[i].w;
    }
    /* top_p has 10 binary digits here, so that floor(S * p) is plain arithmetic */
    uint64_t mass = (uint64_t)((unsigned __int128)total * (uint64_t)(shape->top_p * 1024) / 1024);
    for (int i = 0; i < n; i++) {
        bool over_k = shape->top_k > 0 && i >= shape->top_k;
        uint64_t w = r->items[i].w;
        if (over_k || before > mass || w == 0 || (double)w < floor(shape->min_p * 0x1p46)) {
            break;
        }
        r->items[i].kept = true;
        before += w;
        r->kept++;
    }
    r->kept_sum = before;
    qsort(r->items, (size_t)n, sizeof *r->items, by_id);
}

static int plain_inverse(const plain_result *r, uint64_t seed, uint64_t position) {
    uint32_t words[4], counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    di_philox(seed, counter, words);
    uint64_t u = (uint64_t)words[0] << 32 | words[1], sum = 0;
    uint64_t at = (uint64_t)((unsigned __int128)u * r->kept_sum >> 64);
    for (int i = 0;; i++) {
        sum += r->items[i].kept ? r->items[i].w : 0;
        if (sum > at) {
            return i;
        }
    }
}

static int plain_race(const plain_result *r, int n, uint64_t seed, uint64_t position) {
    int winner = -1;
    uint64_t winner_noise = 0;
    for (int i = 0; i < n; i++) {
        uint32_t words[4];
        uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 4, (uint32_t)i / 4};
        di_philox(seed, counter, words);
        uint64_t noise = plain_noise(words[i % 4]);
        if (r->items[i].kept &&
            (winner < 0 || (unsigned __int128)noise * r->items[winner].w <
                               (unsigned __int128)winner_noise * r->items[i].w)) {
            winner = i;
            winner_noise = noise;
        }
    }
    return winner;
}

/* ---- random requests --------------------------------------------------------------------------*/

/* Everything a request of the test can hold. */
typedef struct request {
    di_sample_params p;
    float logits[MOST];
    uint32_t mask[(MOST + 31) / 32];
    bool masked;
    di_logit_bias bias[4];
    int32_t allowed[MOST], stop[3], word[2][3], prompt[12], output[12];
    di_token_list words[2];
    int num_prompt, num_output;
} request;

/* count distinct ids below n, at most `most`; returns how many */
static int distinct(dice *d, int n, int most, int32_t *ids) {
    int count = 0;
    for (int tries = 0; tries < most; tries++) {
        int32_t id = roll_below(d, n);
        bool have = false;
        for (int i = 0; i < count; i++) {
            have |= ids[i] == id;
        }
        ids[count] = id;
        count += !have;
    }
    return count;
}

static void roll_lists(dice *d, request *r, int n) {
    int32_t ids[4];
    if (roll_below(d, 3) == 0) {
        r->p.num_logit_bias = (size_t)distinct(d, n, 4, ids);
        r->p.logit_bias = r->bias;
        for (size_t i = 0; i < r->p.num_logit_bias; i++) {
            r->bias[i] = (di_logit_bias){ids[i], roll_unit(d) * 6 - 3};
        }
    }
    if (roll_below(d, 4) == 0) {
        r->p.allowed_token_ids =
            (di_token_list){r->allowed, (size_t)distinct(d, n, 1 + roll_below(d, n), r->allowed)};
    }
    if (roll_below(d, 4) == 0) {
        r->p.stop_token_ids = (di_token_list){r->stop, (size_t)distinct(d, n, 3, r->stop)};
        r->p.eos_token_id = roll_below(d, n);
        r->p.ignore_eos = roll_below(d, 2);
        r->p.min_tokens = roll_below(d, 12);
    }
    if (roll_below(d, 4) == 0) {
        for (int w = 0; w < 2; w++) {
            int count = 1 + roll_below(d, 3);
            for (int i = 0; i < count; i++) {
                r->word[w][i] = roll_below(d, n < 3 ? n : 3); /* often equal to the output's end */
            }
            r->words[w] = (di_token_list){r->word[w], (size_t)count};
        }
        r->p.bad_words = r->words;
        r->p.num_bad_words = 2;
    }
}

static void roll_request(dice *d, request *r, int n) {
    memset(r, 0, sizeof *r);
    r->p = default_params();
    bool few_values = roll_below(d, 2);
    for (int i = 0; i < n; i++) {
        float v = few_values ? (float)roll_below(d, 7) * 0.75f - 2 : (float)(8 * roll_unit(d) - 4);
        r->logits[i] = roll_below(d, 12) == 0 ? -INFINITY : v == 0 && roll(d) % 2 ? -0.0f : v;
    }
    r->p.shape.temperature = roll_below(d, 8) == 0 ? 0 : 0.05 + roll_below(d, 40) * 0.1;
    r->p.shape.top_k = roll_below(d, 2) ? -1 : roll_below(d, 45);
    r->p.shape.top_p = roll_below(d, 2) ? 1 : (1 + roll_below(d, 1024)) / 1024.0;
    r->p.shape.min_p = roll_below(d, 3) ? 0 : roll_unit(d);
    if (roll_below(d, 2)) {
        r->p.repetition_penalty = 0.5 + 1.5 * roll_unit(d);
        r->p.presence_penalty = 4 * roll_unit(d) - 2;
        r->p.frequency_penalty = 4 * roll_unit(d) - 2;
    }
    roll_lists(d, r, n);
    r->masked = roll_below(d, 4) == 0;
    for (size_t i = 0; i < sizeof r->mask / sizeof *r->mask; i++) {
        uint32_t half = roll(d); /* of them; then three quarters */
        r->mask[i] = half | roll(d);
    }
    r->num_prompt = roll_below(d, 12);
    r->num_output = roll_below(d, 12);
    for (int i = 0; i < 12; i++) {
        r->prompt[i] = roll_below(d, n);
        r->output[i] = roll_below(d, n < 3 ? n : 3);
    }
    r->p.seeded = roll_below(d, 2);
}

/* ---- transforms, token by token ---------------------------------------------------------------*/

static bool in_list(di_token_list list, int id) {
    for (size_t i = 0; i < list.count; i++) {
        if (list.ids[i] == id) {
            return true;
        }
    }
    return false;
}

static bool banned(const request *r, int id) {
    const di_sample_params *p = &r->p;
    if (p->allowed_token_ids.ids && !in_list(p->allowed_token_ids, id)) {
        return true;
    }
    if (r->num_output < p->min_tokens &&
        (in_list(p->stop_token_ids, id) || (id == p->eos_token_id && !p->ignore_eos))) {
        return true;
    }
    for (size_t w = 0; w < p->num_bad_words; w++) {
        di_token_list word = p->bad_words[w];
        int before = (int)word.count - 1;
        bool ends = word.ids[before] == id && before <= r->num_output;
        for (int i = 0; ends && i < before; i++) {
            ends = r->output[r->num_output - before + i] == word.ids[i];
        }
        if (ends) {
            return true;
        }
    }
    return r->masked && !(r->mask[id / 32] >> (id % 32) & 1);
}

static float plain_logit(const request *r, int id) {
    const di_sample_params *p = &r->p;
    float x = r->logits[id];
    int in_output = 0, in_prompt = 0;
    if (x == -INFINITY || banned(r, id)) {
        return -INFINITY;
    }
    for (size_t i = 0; i < p->num_logit_bias; i++) {
        x = p->logit_bias[i].id == id ? plus(x, (float)p->logit_bias[i].bias) : x;
    }
    for (int i = 0; i < r->num_prompt; i++) {
        in_prompt += r->prompt[i] == id;
    }
    for (int i = 0; i < r->num_output; i++) {
        in_output += r->output[i] == id;
    }
    float rho = (float)p->repetition_penalty;
    if (in_prompt + in_output > 0 && rho != 1) {
        x = x > 0 ? (float)((double)x / (double)rho) : times(x, rho);
    }
    if (in_output > 0) {
        x = plus(x, -times((float)p->frequency_penalty, (float)in_output));
        x = plus(x, -(float)p->presence_penalty);
    }
    return x;
}

static void plain_sample(const request *r, int n, uint64_t seed, uint64_t position,
                         plain_result *out) {
    memset(out, 0, sizeof *out);
    int best = -1;
    for (int i = 0; i < n; i++) {
        out->items[i] = (item){.x = plain_logit(r, i), .id = i};
        if (out->items[i].x > -INFINITY && (best < 0 || out->items[i].x > out->items[best].x)) {
            best = i;
        }
    }
    out->legal = best >= 0;
    if (!out->legal) {
        return;
    }
    if (r->p.shape.temperature == 0) {
        out->token = best;
        return;
    }
    plain_filter(out, n, &r->p.shape);
    out->token =
        r->p.seeded ? plain_race(out, n, seed, position) : plain_inverse(out, seed, position);
}

/* ---- the comparison ---------------------------------------------------------------------------*/

static void compare(dice *d, int n, uint64_t round) {
    static request r;
    static plain_result wanted;
    di_error err = {0};
    di_sample_history h;
    di_sampled got;
    roll_request(d, &r, n);
    if (!di_sample_params_check(&r.p, n, &err) ||
        !di_sample_history_create(&h, &r.p, n, r.prompt, (size_t)r.num_prompt, 2, &err)) {
        fail_msg("round %lu: %s", (unsigned long)round, err.message);
    }
    for (int i = 0; i < r.num_output; i++) {
        assert_true(di_sample_history_push(&h, r.output[i], &err));
    }
    di_sample_input in = {r.logits, r.masked ? r.mask : NULL, &h, 5, round, r.num_output};
    plain_sample(&r, n, 5, round, &wanted);
    bool ok = di_sample_row(&r.p, &in, scratch_of(n), &got, &err);
    if (ok != wanted.legal || (ok && got.token != wanted.token)) {
        fail_msg("round %lu, %d tokens: got %d, wanted %d", (unsigned long)round, n,
                 ok ? got.token : -1, wanted.legal ? wanted.token : -1);
    }
    if (ok && got.kept_sum > 0) {
        assert_int_equal(got.kept_sum, wanted.kept_sum);
        assert_int_equal(got.kept, wanted.kept);
    }
    di_sample_history_destroy(&h);
}

static void test_short_rows_equal_the_plain_ones(void **state) {
    (void)state;
    dice d = {2024, 0};
    for (uint64_t round = 0; round < 60000; round++) {
        compare(&d, 1 + (int)(round % 40), round);
    }
}

static void test_rows_of_several_blocks_equal_the_plain_ones(void **state) {
    (void)state;
    static const int sizes[] = {63, 64, 65, 127, 128, 129, 200};
    dice d = {2025, 0};
    for (uint64_t round = 0; round < 14000; round++) {
        compare(&d, sizes[round / 2000], round);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_rows_equal_the_plain_ones),
        cmocka_unit_test(test_rows_of_several_blocks_equal_the_plain_ones),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_of(0);
    return failed;
}
