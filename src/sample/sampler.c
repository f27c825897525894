/* The portable sampler: see sampler.h. Called by the engine once a token. Must never depend on the
 * order in which a row is walked, nor on contraction (the build has -ffp-contract=off). */
#include "sample/sampler.h"

#include <math.h>
#include <string.h>

#include "base/formats.h"
#include "sample/philox.h"

#define LOG2_E 0x1.71547652b82fep+0 /* log2(e) in double */
#define LN_2   0x1.62e42fefa39efp-1

enum { WEIGHT_BITS = 46 }; /* the best token's weight is 2^46 */

/* 2^-f on [0, 1), highest power first, relative error below 2^-22. Product and sum are rounded
 * apart; another order of evaluation would be another sampler. */
static const float exp2_coefficients[] = {0x1.c946d2p-14f,
                                          -0x1.4e2aeap-10f,
                                          0x1.39e3fcp-7f,
                                          -0x1.c6948ep-5f,
                                          0x1.ebfacp-3f,
                                          -0x1.62e42cp-1f,
                                          1.0f};

/* The weight of a token y octaves below the best. */
static uint64_t weight_of(float y) {
    if (!(y < (float)WEIGHT_BITS)) {
        return 0;
    }
    int n = (int)y; /* y >= 0: truncation is floor */
    float f = y - (float)n, g = exp2_coefficients[0];
    for (size_t i = 1; i < sizeof exp2_coefficients / sizeof *exp2_coefficients; i++) {
        g = g * f;
        g = g + exp2_coefficients[i];
    }
    return (uint64_t)(int64_t)(g * 0x1p46f) >> n;
}

/* Orders floats as unsigned integers; -0 and +0 are one value. */
static uint32_t key_of(float x) {
    uint32_t b = di_f32_bits(x == 0 ? 0.0f : x);
    return b >> 31 ? ~b : b | 0x80000000u;
}

bool di_sampling_check(const di_sampling *p, di_error *err) {
    if (!(p->temperature >= 0 && p->temperature <= DI_MAX_TEMPERATURE)) {
        return di_fail(err, DI_ERR_ARGUMENT, "temperature is %g, allowed are 0 to %g",
                       p->temperature, DI_MAX_TEMPERATURE);
    }
    if (!(p->top_p > 0 && p->top_p <= 1)) {
        return di_fail(err, DI_ERR_ARGUMENT, "top_p is %g, allowed are values above 0 up to 1",
                       p->top_p);
    }
    if (!(p->min_p >= 0 && p->min_p <= 1)) {
        return di_fail(err, DI_ERR_ARGUMENT, "min_p is %g, allowed are 0 to 1", p->min_p);
    }
    if (p->top_k != -1 && (p->top_k < 1 || p->top_k > INT32_MAX)) {
        return di_fail(err, DI_ERR_ARGUMENT, "top_k is %lld, allowed are -1 (off) and 1 to %d",
                       (long long)p->top_k, INT32_MAX);
    }
    return true;
}

size_t di_sampler_scratch_bytes(int vocab_size) {
    return (size_t)vocab_size * sizeof(uint64_t);
}

/* The row's maximum and the lowest id that has it. */
static bool find_best(const float *x, int vocab_size, float *best, int32_t *id, di_error *err) {
    float m = -INFINITY;
    bool bad = false;
    for (int i = 0; i < vocab_size; i++) {
        bad |= !(x[i] < INFINITY); /* NaN or +inf */
        m = x[i] > m ? x[i] : m;
    }
    if (bad) {
        return di_fail(err, DI_ERR_INTERNAL,
                       "bad logits: the model gave a NaN or an infinity for some token");
    }
    if (m == -INFINITY) {
        return di_fail(err, DI_ERR_ARGUMENT, "no legal token: every token is ruled out");
    }
    int32_t i = 0;
    while (x[i] != m) {
        i++;
    }
    *best = m;
    *id = i;
    return true;
}

/* w[i] of every token; returns their sum. */
static uint64_t weigh(const float *x, int vocab_size, float best, float c, uint64_t *w) {
    uint64_t sum = 0;
    for (int i = 0; i < vocab_size; i++) {
        w[i] = weight_of((best - x[i]) * c);
        sum += w[i];
    }
    return sum;
}

static float octaves_per_logit(double temperature) {
    return (float)(LOG2_E / (double)(float)temperature);
}

/* floor(sum * fraction), exact: a double is an integer of 53 bits times a power of two. */
static uint64_t exact_share(uint64_t sum, double fraction) {
    int exponent;
    double mantissa = frexp(fraction, &exponent);
    unsigned __int128 product = (unsigned __int128)sum * (uint64_t)ldexp(mantissa, 53);
    int shift = 53 - exponent;
    return shift > 127 ? 0 : (uint64_t)(product >> shift);
}

/* Which tokens are left: those with key > cut_key, and the first `ties` of those equal to it. */
typedef struct cut {
    uint32_t cut_key;
    int32_t ties;
} cut;

/* The keys that the weight floor rules out end the order early: the cut is above all of them.
 * Tokens of one key have one weight, so a cut by weight never splits a key. */
static uint32_t lowest_allowed_key(const float *x, const uint64_t *w, int vocab_size,
                                   uint64_t floor_weight) {
    uint32_t ruled_out = 0;
    for (int i = 0; i < vocab_size; i++) {
        uint32_t key = key_of(x[i]);
        if (w[i] < floor_weight && key > ruled_out) {
            ruled_out = key;
        }
    }
    return ruled_out + 1;
}

/* Finds where, in order of key descending and id ascending, the k-th token lies or the sum before a
 * token reaches `mass`, whichever comes first. Radix selection: a histogram of counts and weights
 * over 11, 11 and 10 bits of the key; each pass looks only into the bucket where the end lies. No
 * sort, no order-dependent sum. Keys below `lowest` do not count. */
static cut select_cut(const float *x, const uint64_t *w, int vocab_size, int64_t k, uint64_t mass,
                      uint32_t lowest) {
    static const int shifts[] = {21, 10, 0};
    enum { BUCKETS = 2048 };
    int32_t counts[BUCKETS];
    uint64_t sums[BUCKETS];
    uint32_t prefix = 0, mask = 0;
    int64_t count_before = 0;
    uint64_t sum_before = 0;
    for (int pass = 0; pass < 3; pass++) {
        int shift = shifts[pass], buckets = pass == 2 ? 1024 : BUCKETS;
        memset(counts, 0, sizeof counts);
        memset(sums, 0, sizeof sums);
        for (int i = 0; i < vocab_size; i++) {
            uint32_t key = key_of(x[i]);
            if ((key & mask) == prefix && key >= lowest) {
                uint32_t b = key >> shift & (uint32_t)(buckets - 1);
                counts[b]++;
                sums[b] += w[i];
            }
        }
        int b = buckets - 1;
        while (b > 0 && count_before + counts[b] < k && sum_before + sums[b] < mass) {
            count_before += counts[b];
            sum_before += sums[b];
            b--;
        }
        prefix |= (uint32_t)b << shift;
        mask |= (uint32_t)(buckets - 1) << shift;
        if (pass == 2) {
            int64_t ties = counts[b];
            if (ties > 0) { /* all of one weight: the j-th stays while sum_before + j * w < mass */
                uint64_t each = sums[b] / (uint64_t)ties, left = mass - sum_before;
                uint64_t by_mass = left / each + (left % each != 0);
                ties = ties < k - count_before ? ties : k - count_before;
                ties = (uint64_t)ties < by_mass ? ties : (int64_t)by_mass;
            }
            return (cut){prefix, (int32_t)ties};
        }
    }
    return (cut){0}; /* not reached */
}

/* Zeroes the weights outside the cut; returns the sum of the others and how many they are. */
static uint64_t apply_cut(const float *x, uint64_t *w, int vocab_size, cut c, int32_t *kept) {
    uint64_t sum = 0;
    int32_t n = 0, ties = c.ties;
    for (int i = 0; i < vocab_size; i++) {
        uint32_t key = key_of(x[i]);
        bool keep = key > c.cut_key || (key == c.cut_key && ties-- > 0);
        w[i] = keep ? w[i] : 0;
        sum += w[i];
        n += keep;
    }
    *kept = n;
    return sum;
}

static uint64_t filter(const float *x, uint64_t *w, int vocab_size, const di_sampling *p,
                       uint64_t sum, int32_t *kept) {
    uint64_t floor_weight = (uint64_t)(p->min_p * 0x1p46);
    uint32_t lowest = lowest_allowed_key(x, w, vocab_size, floor_weight > 1 ? floor_weight : 1);
    int64_t k = p->top_k < 1 || p->top_k > vocab_size ? vocab_size : p->top_k;
    uint64_t mass = exact_share(sum, p->top_p) + 1;
    cut c = {lowest, vocab_size};
    if (k < vocab_size || mass <= sum) {
        cut selected = select_cut(x, w, vocab_size, k, mass, lowest);
        c = selected.cut_key >= lowest ? selected : c;
    }
    return apply_cut(x, w, vocab_size, c, kept);
}

bool di_sample(const float *logits, int vocab_size, const di_sampling *p, uint64_t seed,
               uint64_t position, void *scratch, di_draw *out, di_error *err) {
    if (vocab_size < 1 || vocab_size > DI_SAMPLER_MAX_VOCAB) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "vocab_size is %d, the sampler takes 1 to %d",
                       vocab_size, DI_SAMPLER_MAX_VOCAB);
    }
    float best = 0;
    int32_t id = 0;
    if (!find_best(logits, vocab_size, &best, &id, err)) {
        return false;
    }
    if ((float)p->temperature < (float)DI_GREEDY_TEMPERATURE) {
        *out = (di_draw){.token = id, .kept = 1};
        return true;
    }
    uint64_t *w = scratch;
    uint64_t sum = weigh(logits, vocab_size, best, octaves_per_logit(p->temperature), w);
    int32_t kept;
    uint64_t kept_sum = filter(logits, w, vocab_size, p, sum, &kept);
    uint32_t words[4];
    di_random_words(seed, position, DI_RANDOM_TARGET, 0, words);
    uint64_t u = (uint64_t)words[0] << 32 | words[1];
    uint64_t r = (uint64_t)((unsigned __int128)u * kept_sum >> 64), inclusive = 0;
    int32_t token = 0;
    while ((inclusive += w[token]) <= r) { /* r < kept_sum: ends inside the row */
        token++;
    }
    *out = (di_draw){.token = token, .kept = kept, .sum = sum, .kept_sum = kept_sum};
    return true;
}

bool di_token_logprob(const float *logits, int vocab_size, int32_t token, double *out,
                      di_error *err) {
    float best = 0;
    int32_t id = 0;
    if (!find_best(logits, vocab_size, &best, &id, err)) {
        return false;
    }
    float c = octaves_per_logit(1);
    uint64_t sum = 0;
    for (int i = 0; i < vocab_size; i++) {
        sum += weight_of((best - logits[i]) * c);
    }
    double y = (double)((best - logits[token]) * c);
    *out = -LN_2 * (y + log2((double)sum * 0x1p-46));
    return true;
}
