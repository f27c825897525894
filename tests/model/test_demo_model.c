/* The bundled model against its own golden vectors, made in float32 by its training code's exact
 * forward (models/demo/README.md). Two right programs differ end to end by 3.5 to 4.2 % of the
 * logits' norm there; layer by layer, with recorded inputs, they agree. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "model/graph.h"

enum { PROMPTS = 6, STEPS = 32 };

static const char demo[] = "models/demo";

typedef struct trace {
    fixture f;
    golden_case g;       /* the model's own vectors: every layer's input */
    golden_case outputs; /* what forward.py makes of them, with the engine's key list */
    tally h, pre;
} trace;

static void observe(void *user, const char *name, int layer, void *data, size_t bytes) {
    trace *t = user;
    observe_latents(&t->f, name, layer, data, bytes);
    if (strcmp(name, "h") == 0) {
        di_tensor wanted = case_get(&t->outputs, DI_BF16, "layer.%d.h", layer);
        assert_int_equal(bytes, elements_from(&wanted, 0) * 2);
        tally_bf16(&t->h, data, wanted.data, elements_from(&wanted, 0));
        di_tensor next = case_get(&t->g, DI_BF16, "prompt.1.layer.%d.h", layer);
        t->f.be->ops->upload(t->f.be, data, next.data, bytes);
    } else if (strcmp(name, "pre") == 0) {
        di_tensor wanted = case_get(&t->outputs, DI_F32, "layer.%d.pre", layer);
        tally_f32(&t->pre, data, wanted.data, elements_from(&wanted, 0));
        di_tensor next = case_get(&t->g, DI_F32, "prompt.1.layer.%d.pre", layer);
        t->f.be->ops->upload(t->f.be, data, next.data, bytes);
    }
}

static void check_layers(backend_kind kind) {
    trace t = {0};
    di_error err = {0};
    di_seq seq;
    fixture_open(&t.f, demo, kind, 64);
    case_open(&t.g, "models/demo/golden.safetensors");
    case_open(&t.outputs, testdata_path("golden/demo/layers-prompt1.safetensors"));
    di_tensor ids = case_get(&t.g, DI_I32, "prompt.1.ids");
    di_tensor wanted = case_get(&t.g, DI_F32, "prompt.1.logits");
    int vocab = t.f.c->vocab_size;
    float *logits = test_malloc((size_t)vocab * sizeof *logits);
    di_model_observe(t.f.m, observe, &t);
    assert_true(di_seq_open(t.f.cache, &seq, (di_hash){0}, &err));
    fixture_forward(&t.f, &seq, ids.data, (int)ids.shape[0], 1, 0, logits);
    tally gap = {0};
    tally_f32(&gap, logits, wanted.data, vocab);
    print_message("    h unequal %lld of %lld, worst %.2g; pre %.2g; logits %.2g\n",
                  (long long)t.h.unequal, (long long)t.h.count, t.h.worst, t.pre.worst, gap.worst);
    assert_true(t.h.count > 0 && t.h.unequal <= t.h.count / 100);
    assert_true(t.h.worst < 1); /* streams reach 632 here: an ulp of the largest is 4 */
    assert_true(t.pre.worst < 2e-3);
    assert_true(gap.worst < 2e-5);
    di_seq_close(t.f.cache, &seq);
    test_free(logits);
    case_close(&t.g);
    case_close(&t.outputs);
    fixture_close(&t.f);
}

static void test_ref_layers_equal_the_demo_trace(void **state) {
    (void)state;
    check_layers(BACKEND_REF);
}

static void test_cpu_layers_equal_the_demo_trace(void **state) {
    (void)state;
    check_layers(BACKEND_CPU);
}

/* Recorded tokens are fed; where the recorded winner leads by 1 or more, ours must be the same. */
static void test_cpu_chooses_the_recorded_tokens(void **state) {
    (void)state;
    fixture f;
    golden_case g;
    di_error err = {0};
    int clear = 0, same = 0;
    fixture_open(&f, demo, BACKEND_CPU, 640);
    case_open(&g, "models/demo/golden.safetensors");
    float *logits = test_malloc((size_t)f.c->vocab_size * sizeof *logits);
    for (int i = 0; i < PROMPTS; i++) {
        di_seq seq;
        di_tensor ids = case_get(&g, DI_I32, "prompt.%d.ids", i);
        di_tensor greedy = case_get(&g, DI_I32, "prompt.%d.greedy", i);
        di_tensor margin = case_get(&g, DI_F32, "prompt.%d.margin", i);
        di_tensor wanted = case_get(&g, DI_F32, "prompt.%d.logits", i);
        assert_true(di_seq_open(f.cache, &seq, (di_hash){0}, &err));
        fixture_forward(&f, &seq, ids.data, (int)ids.shape[0], 1, 0, logits);
        double error = relative_error(logits, wanted.data, f.c->vocab_size);
        print_message("    prompt %d, %d tokens: logits differ by %.1f %%\n", i, (int)ids.shape[0],
                      100 * error);
        assert_true(error < 0.15); /* a wrong layer gives 0.3 and more */
        for (int s = 0; s < STEPS; s++) {
            int32_t token = ((const int32_t *)greedy.data)[s];
            if (((const float *)margin.data)[s] >= 1) {
                clear++;
                same += argmax(logits, f.c->vocab_size) == token;
            }
            fixture_forward(&f, &seq, &token, 1, 1, 0, logits);
        }
        di_seq_close(f.cache, &seq);
    }
    print_message("    clear winners kept: %d of %d\n", same, clear);
    assert_true(clear > 60 && same >= 0.97 * clear);
    test_free(logits);
    case_close(&g);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_layers_equal_the_demo_trace),
        cmocka_unit_test(test_cpu_layers_equal_the_demo_trace),
        cmocka_unit_test(test_cpu_chooses_the_recorded_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
