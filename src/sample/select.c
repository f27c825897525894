/* Finding the end of the kept prefix of a row ordered by key descending, id ascending. See
 * select.h.
 *
 * The prefix ends at the k-th token or where the sum reaches the mass, whichever comes first. A
 * short list of tokens that surely holds the end is collected first, by the blocks' maxima (small
 * k) or by a histogram over octaves (mass, large k); radix selection then finds the end inside the
 * list. */
#include "sample/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample/arithmetic.h"

enum { BINS = 1024, BINS_PER_OCTAVE = 16 };

bool di_sample_bad_logits(di_error *err) {
    return di_fail(err, DI_ERR_INTERNAL,
                   "bad logits: the model gave a NaN or an infinity for some token");
}

bool di_sample_no_token(di_error *err) {
    return di_fail(err, DI_ERR_ARGUMENT, "no legal token: every token is ruled out");
}

bool di_row_open(di_row *row, const di_row_kernels *kernels, const float *x, int vocab_size,
                 float *block_max, di_error *err) {
    if (!kernels->scan(x, vocab_size, block_max)) {
        return di_sample_bad_logits(err);
    }
    int top = 0;
    for (int b = 1; b < di_row_blocks(vocab_size); b++) {
        top = block_max[b] > block_max[top] ? b : top;
    }
    if (block_max[top] == -INFINITY) {
        return di_sample_no_token(err);
    }
    int32_t id = top * DI_ROW_BLOCK;
    while (x[id] != block_max[top]) {
        id++;
    }
    *row = (di_row){kernels, x, vocab_size, block_max, block_max[top], id, 0};
    return true;
}

/* ---- lists of tokens that matter --------------------------------------------------------------*/

/* The n-th largest of the blocks' maxima (the least if there are fewer): at least n tokens, or all,
 * are no less. A heap of the n largest, the least on top. */
static float nth_block_max(const di_row *row, int n, float *heap) {
    int blocks = di_row_blocks(row->vocab_size), size = 0;
    if (n > blocks) {
        return -INFINITY;
    }
    for (int b = 0; b < blocks; b++) {
        float v = row->block_max[b];
        int at;
        if (size < n) { /* sift up */
            at = size++;
            for (; at > 0 && heap[(at - 1) / 2] > v; at = (at - 1) / 2) {
                heap[at] = heap[(at - 1) / 2];
            }
        } else if (v > heap[0]) { /* replace the least: sift down */
            at = 0;
            for (int child = 1; child < size; child = 2 * at + 1) {
                child += child + 1 < size && heap[child + 1] < heap[child];
                if (heap[child] >= v) {
                    break;
                }
                heap[at] = heap[child];
                at = child;
            }
        } else {
            continue;
        }
        heap[at] = v;
    }
    return heap[0];
}

/* Ids with x >= least that can occur, ascending. */
static int list_from(const di_row *row, float least, int32_t *ids) {
    int count = 0;
    for (int b = 0, at = 0; at < row->vocab_size; b++, at += DI_ROW_BLOCK) {
        if (row->block_max[b] < least) {
            continue;
        }
        int end = at + DI_ROW_BLOCK < row->vocab_size ? at + DI_ROW_BLOCK : row->vocab_size;
        for (int i = at; i < end; i++) {
            ids[count] = i;
            count += (row->x[i] >= least) & (row->x[i] > -INFINITY);
        }
    }
    return count;
}

/* ---- radix selection in a list ----------------------------------------------------------------*/

/* What has been passed, and what ends the prefix. */
typedef struct end_search {
    int64_t k;
    uint64_t mass;
    int64_t count_before;
    uint64_t sum_before;
} end_search;

static bool ends_in(const end_search *e, int64_t count, uint64_t sum) {
    return e->count_before + count >= e->k || e->sum_before + sum >= e->mass;
}

static void pass_over(end_search *e, int64_t count, uint64_t sum) {
    e->count_before += count;
    e->sum_before += sum;
}

/* How many of `ties` tokens of one weight stay: the j-th does while sum_before + j * w < mass. */
static int64_t ties_kept(const end_search *e, int64_t ties, uint64_t weight) {
    int64_t kept = e->k - e->count_before < ties ? e->k - e->count_before : ties;
    uint64_t left = e->mass - e->sum_before;
    if (weight > 0 && left / weight + (left % weight != 0) < (uint64_t)kept) {
        kept = (int64_t)(left / weight + (left % weight != 0));
    }
    return kept;
}

/* The value and last id where the prefix ends; false if it goes on behind the list. Histograms of
 * counts and weights over 11, 11 and 10 bits of the key; each pass looks only into the bucket where
 * the end lies. */
static bool find_end(const di_row *row, int count, end_search e, di_cut *cut,
                     di_select_scratch *s) {
    static const int shifts[] = {21, 10, 0};
    uint32_t prefix = 0, mask = 0;
    int b = 0;
    for (int i = 0; i < count; i++) {
        float x = row->x[s->ids[i]];
        s->keys[i] = (uint32_t)di_key(x) ^ 0x80000000u;
        s->weights[i] = di_weight((row->best - x) * row->c);
    }
    for (int pass = 0; pass < 3; pass++) {
        int shift = shifts[pass], buckets = pass == 2 ? 1024 : DI_SELECT_BUCKETS;
        memset(s->counts, 0, sizeof s->counts);
        memset(s->sums, 0, sizeof s->sums);
        for (int i = 0; i < count; i++) {
            if ((s->keys[i] & mask) == prefix) {
                uint32_t at = s->keys[i] >> shift & (uint32_t)(buckets - 1);
                s->counts[at]++;
                s->sums[at] += s->weights[i];
            }
        }
        for (b = buckets - 1; !ends_in(&e, s->counts[b], s->sums[b]); b--) {
            if (b == 0) {
                return false;
            }
            pass_over(&e, s->counts[b], s->sums[b]);
        }
        prefix |= (uint32_t)b << shift;
        mask |= (uint32_t)(buckets - 1) << shift;
    }
    int64_t ties = s->counts[b];
    int64_t kept = ties_kept(&e, ties, s->sums[b] / (uint64_t)ties);
    int at = 0;
    while (s->keys[at] != prefix || --kept > 0) {
        at++;
    }
    cut->value = row->x[s->ids[at]];
    cut->last_id = s->ids[at];
    return true;
}

/* ---- the histogram over octaves ---------------------------------------------------------------*/

/* Sums and counts of tokens by bins of y into s->sums and s->counts. Blocks whose best token weighs
 * no more than `least` are left out. */
static void fill_bins(const di_row *row, float scale, uint64_t least, di_select_scratch *s) {
    uint64_t weights[DI_ROW_BLOCK];
    int32_t bins[DI_ROW_BLOCK];
    memset(s->counts, 0, sizeof s->counts);
    memset(s->sums, 0, sizeof s->sums);
    for (int b = 0, at = 0; at < row->vocab_size; b++, at += DI_ROW_BLOCK) {
        if (di_weight((row->best - row->block_max[b]) * row->c) <= least) {
            continue;
        }
        int left = row->vocab_size - at, count = left < DI_ROW_BLOCK ? left : DI_ROW_BLOCK;
        row->kernels->weigh_block(row->x + at, left, row->best, row->c, scale, BINS - 1, weights,
                                  bins);
        for (int i = 0; i < count; i++) {
            s->counts[bins[i]]++;
            s->sums[bins[i]] += weights[i];
        }
    }
}

/* Ids from `first` on of the tokens of one block that can occur and lie in `bin`; few do, so groups
 * without any are passed over. */
static int list_matches(const float *x, const int32_t bins[DI_ROW_BLOCK], int n, int32_t bin,
                        int32_t first, int32_t *ids) {
    enum { GROUP = 16 };
    int count = 0;
    for (int g = 0; g < n; g += GROUP) {
        int32_t any = 0;
        for (int i = g; i < g + GROUP; i++) {
            any |= bins[i] == bin;
        }
        for (int i = g; any && i < g + GROUP && i < n; i++) {
            ids[count] = first + i;
            count += (bins[i] == bin) & (x[i] > -INFINITY);
        }
    }
    return count;
}

/* Ids that can occur and lie in one bin, ascending. */
static int list_bin(const di_row *row, float scale, int32_t bin, int32_t *ids) {
    uint64_t weights[DI_ROW_BLOCK];
    int32_t bins[DI_ROW_BLOCK];
    int count = 0;
    for (int b = 0, at = 0; at < row->vocab_size; b++, at += DI_ROW_BLOCK) {
        float y = (row->best - row->block_max[b]) * row->c;
        if (y * scale >= (float)(bin + 1) && bin < BINS - 1) {
            continue;
        }
        int left = row->vocab_size - at, n = left < DI_ROW_BLOCK ? left : DI_ROW_BLOCK;
        row->kernels->weigh_block(row->x + at, left, row->best, row->c, scale, BINS - 1, weights,
                                  bins);
        count += list_matches(row->x + at, bins, n, bin, at, ids + count);
    }
    return count;
}

/* Bins follow y and y follows the key, so the prefix passes whole bins and ends inside one. Bins
 * are finer for a high temperature, where the row spans few octaves; the last one holds the rest.
 */
static bool find_end_by_bins(const di_row *row, double temperature, end_search e, uint64_t least,
                             di_cut *cut, di_select_scratch *s) {
    float scale = (float)(BINS_PER_OCTAVE * (temperature > 1 ? temperature : 1));
    fill_bins(row, scale, least, s);
    int32_t bin = 0;
    while (bin < BINS - 1 && !ends_in(&e, s->counts[bin], s->sums[bin])) {
        pass_over(&e, s->counts[bin], s->sums[bin]);
        bin++;
    }
    return find_end(row, list_bin(row, scale, bin, s->ids), e, cut, s);
}

/* ---- the filters ------------------------------------------------------------------------------*/

/* floor(sum * fraction), exact: a double is an integer of 53 bits times a power of two. */
static uint64_t exact_share(uint64_t sum, double fraction) {
    int exponent;
    double mantissa = frexp(fraction, &exponent);
    unsigned __int128 product = (unsigned __int128)sum * (uint64_t)ldexp(mantissa, 53);
    int shift = 53 - exponent;
    return shift > 127 ? 0 : (uint64_t)(product >> shift);
}

bool di_select_needs_sum(const di_sampling *shape) {
    return shape->top_p < 1;
}

di_cut di_select(const di_row *row, const di_sampling *shape, uint64_t sum, di_select_scratch *s) {
    uint64_t floor_weight = (uint64_t)(shape->min_p * 0x1p46);
    di_cut cut = {-INFINITY, INT32_MAX, floor_weight > 1 ? floor_weight : 1};
    end_search e = {.k = INT64_MAX, .mass = UINT64_MAX};
    bool by_count = shape->top_k > 0 && shape->top_k < row->vocab_size;
    uint64_t least = 0;
    if (by_count) {
        e.k = shape->top_k;
    }
    if (shape->top_p < 1) {
        e.mass = exact_share(sum, shape->top_p) + 1;
        /* All tokens that weigh no more than this weigh no more than what the mass leaves, even
         * together: those before any of them reach the mass. */
        least = e.mass < sum ? (sum - e.mass) / (uint64_t)row->vocab_size : 0;
    }
    if (by_count && e.k <= di_row_blocks(row->vocab_size)) {
        find_end(row, list_from(row, nth_block_max(row, (int)e.k, s->heap), s->ids), e, &cut, s);
    } else if (by_count || e.mass <= sum) {
        find_end_by_bins(row, shape->temperature, e, least, &cut, s);
    }
    return cut;
}

/* ---- the likeliest ----------------------------------------------------------------------------*/

static int by_key_then_id(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int di_row_top(const di_row *row, int n, int32_t *out, di_select_scratch *s) {
    if (n < 1) {
        return 0;
    }
    int count = list_from(row, nth_block_max(row, n, s->heap), s->ids);
    if (count > n) { /* many ties or an uneven row: cut before sorting */
        di_cut cut = {-INFINITY, INT32_MAX, 0};
        find_end(row, count, (end_search){.k = n, .mass = UINT64_MAX}, &cut, s);
        int kept = 0;
        for (int i = 0; i < count; i++) {
            int32_t id = s->ids[i];
            s->ids[kept] = id;
            kept += di_cut_keeps(&cut, row->x[id], id, 1);
        }
        count = kept;
    }
    for (int i = 0; i < count; i++) { /* ascending order of (inverted key, id) */
        uint32_t inverted = ~((uint32_t)di_key(row->x[s->ids[i]]) ^ 0x80000000u);
        s->weights[i] = (uint64_t)inverted << 32 | (uint32_t)s->ids[i];
    }
    qsort(s->weights, (size_t)count, sizeof *s->weights, by_key_then_id);
    for (int i = 0; i < count; i++) {
        out[i] = (int32_t)(uint32_t)s->weights[i];
    }
    return count;
}
