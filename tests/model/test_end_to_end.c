/* From tokens to logits against recorded cases. Prompts were chosen so that several orders of
 * summation agree; one more right order may still flip a rounding early in a prompt and move every
 * row after it. So the demand is on all rows together (tests/data/golden/README.md gives the
 * measurements behind the limits): median relative error <= 0.06, and the same argmax on at least
 * 94 % of the rows whose winner leads by 0.5. A deliberate mistake gives 0.20 and more, 65 to 84 %.
 */
#include <math.h>
#include <stdio.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "model/graph.h"

enum { MAX_ROWS = 4096 };

typedef struct score {
    double errors[MAX_ROWS];
    int rows, clear, same, calm, calm_hits;
} score;

static float lead(const float *x, int n, int best) {
    float second = -INFINITY;
    for (int i = 0; i < n; i++) {
        second = i != best && x[i] > second ? x[i] : second;
    }
    return x[best] - second;
}

static void judge(score *s, const float *found, const float *wanted, float spread, int vocab) {
    int best = argmax(wanted, vocab);
    tally gap = {0};
    tally_f32(&gap, found, wanted, vocab);
    assert_true(s->rows < MAX_ROWS);
    s->errors[s->rows++] = relative_error(found, wanted, vocab);
    if (lead(wanted, vocab, best) >= 0.5f) {
        s->clear++;
        s->same += argmax(found, vocab) == best;
    }
    if (spread < 1e-4f) {
        s->calm++;
        s->calm_hits += gap.worst < 1e-4;
    }
}

/* Feeds the recorded tokens, not the engine's own. */
static void run_case(fixture *f, const char *path, score *s) {
    golden_case g;
    di_error err = {0};
    di_seq seq;
    int vocab = f->c->vocab_size;
    case_open(&g, path);
    di_tensor tokens = case_get(&g, DI_I32, "tokens");
    di_tensor positions = case_get(&g, DI_I32, "prefill.positions");
    di_tensor wanted = case_get(&g, DI_F32, "prefill.logits");
    di_tensor spread = case_get(&g, DI_F32, "prefill.spread");
    int n = (int)tokens.shape[0], kept = (int)positions.shape[0];
    float *logits = test_malloc((size_t)n * (size_t)vocab * sizeof *logits);
    assert_true(di_seq_open(f->cache, &seq, (di_hash){0}, &err));
    fixture_forward(f, &seq, tokens.data, n, n, 0, logits);
    for (int i = 0; i < kept; i++) {
        int row = ((const int32_t *)positions.data)[i];
        judge(s, logits + (size_t)row * (size_t)vocab,
              (const float *)wanted.data + (size_t)i * (size_t)vocab,
              ((const float *)spread.data)[i], vocab);
    }
    for (int64_t i = 0; case_has(&g, "decode.logits") && i < MAX_ROWS; i++) {
        di_tensor fed = case_get(&g, DI_I32, "decode.tokens");
        di_tensor step = case_get(&g, DI_F32, "decode.logits");
        if (i == step.shape[0]) {
            break;
        }
        fixture_forward(f, &seq, (const int32_t *)fed.data + i, 1, 1, 0, logits);
        judge(s, logits, (const float *)step.data + i * vocab,
              ((const float *)case_get(&g, DI_F32, "decode.spread").data)[i], vocab);
    }
    di_seq_close(f->cache, &seq);
    test_free(logits);
    case_close(&g);
}

static void run_folder(const char *checkpoint, const char *folder, const char *const *files,
                       backend_kind kind) {
    static score s;
    fixture f;
    s = (score){0};
    fixture_open(&f, testdata_path("%s", checkpoint), kind, 192);
    di_model_observe(f.m, observe_latents, &f);
    for (; *files; files++) {
        run_case(&f, testdata_path("golden/%s/%s.safetensors", folder, *files), &s);
    }
    int rows = s.rows, clear = s.clear;
    double middle = median(s.errors, rows);
    print_message("    %s: %d rows, median error %.4f, argmax %d of %d, calm rows within 1e-4: %d "
                  "of %d\n",
                  folder, rows, middle, s.same, clear, s.calm_hits, s.calm);
    assert_true(middle <= 0.06);
    assert_true(s.same >= 0.94 * clear);
    fixture_close(&f);
}

static const char *const cases[] = {"prefill-001", "prefill-002", "prefill-015", "prefill-017",
                                    "prefill-024", "prefill-130", "decode-003",  "decode-016",
                                    "decode-025",  "decode-064",  NULL};

static void test_ref_equals_the_tiny_cases(void **state) {
    (void)state;
    run_folder("tiny", "tiny", cases, BACKEND_REF);
}

static void test_cpu_equals_the_tiny_cases(void **state) {
    (void)state;
    run_folder("tiny", "tiny", cases, BACKEND_CPU);
}

static void test_cpu_equals_the_wide_cases(void **state) {
    (void)state;
    run_folder("wide", "wide", cases, BACKEND_CPU);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_equals_the_tiny_cases),
        cmocka_unit_test(test_cpu_equals_the_tiny_cases),
        cmocka_unit_test(test_cpu_equals_the_wide_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
