/* Running and comparing cases for ops: see op_cases.h. */
#include "support/op_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"
#include "support/cmocka.h"
#include "support/mirror.h"

void add_part(results *r, part_kind kind, const void *data, size_t n, part tolerance) {
    assert_true(r->n < (int)(sizeof r->parts / sizeof *r->parts));
    tolerance.kind = kind;
    tolerance.data = data;
    tolerance.n = n;
    r->parts[r->n++] = tolerance;
}

static float value_of(const part *p, size_t i) {
    return p->kind == PART_BF16 ? di_bf16_to_f32(((const di_bf16 *)p->data)[i])
                                : ((const float *)p->data)[i];
}

static void expect_close(const part *got, const part *want, const char *what) {
    float top = 0;
    size_t differ = 0;
    for (size_t i = 0; i < got->n; i++) {
        float v = fabsf(value_of(want, i));
        top = isfinite(v) && v > top ? v : top;
    }
    for (size_t i = 0; i < got->n; i++) {
        float a = value_of(got, i), b = value_of(want, i);
        float step = fabsf(b) * (got->kind == PART_BF16 ? 0x1p-7f : 0x1p-20f);
        bool both_nan = isnan(a) && isnan(b);
        differ += !both_nan && a != b;
        if (!both_nan && a != b &&
            !(fabsf(a - b) <= (float)got->ulp * step || fabsf(a - b) <= got->small * top)) {
            fail_msg("%s: [%zu of %zu] is %.9g, oracle has %.9g (largest %g)", what, i, got->n,
                     (double)a, (double)b, (double)top);
        }
    }
    if (got->one_in > 1 && differ * (size_t)got->one_in > got->n + (size_t)got->one_in) {
        fail_msg("%s: %zu of %zu values differ from the oracle", what, differ, got->n);
    }
}

static void expect_equal(const part *got, const part *want, const char *what) {
    if (got->kind == PART_BYTES || got->kind == PART_I32) {
        size_t size = got->kind == PART_I32 ? 4 : 1;
        for (size_t i = 0; i < got->n; i++) {
            const uint8_t *a = (const uint8_t *)got->data + i * size;
            const uint8_t *b = (const uint8_t *)want->data + i * size;
            if (memcmp(a, b, size) != 0) {
                fail_msg("%s: [%zu of %zu] is %d, not %d", what, i, got->n, *a, *b);
            }
        }
        return;
    }
    for (size_t i = 0; i < got->n; i++) {
        float a = value_of(got, i), b = value_of(want, i);
        if (di_f32_bits(a) != di_f32_bits(b) && !(isnan(a) && isnan(b))) {
            fail_msg("%s: [%zu of %zu] is %.9g (%08x), not %.9g (%08x)", what, i, got->n, (double)a,
                     di_f32_bits(a), (double)b, di_f32_bits(b));
        }
    }
}

void compare(const results *got, const results *want, bool oracle, const char *who) {
    assert_int_equal(got->n, want->n);
    for (int i = 0; i < got->n; i++) {
        char what[128];
        snprintf(what, sizeof what, "%s, array %d", who, i);
        assert_int_equal(got->parts[i].n, want->parts[i].n);
        bool within = oracle && got->parts[i].kind <= PART_F32;
        (within ? expect_close : expect_equal)(&got->parts[i], &want->parts[i], what);
    }
}

static void run_on(di_backend *be, case_fn *f, arrays *a, results *r) {
    *a = (arrays){.seed = 42};
    *r = (results){0};
    f(be, a, r);
    di_error err;
    if (!be->ops->sync(be, &err)) {
        fail_msg("sync: %s", err.message);
    }
    be->ops->destroy(be);
}

/* The oracle's tolerances, or at least the same bits twice. */
static void check_on_card(case_fn *f, bool against_oracle) {
    static results first, other;
    arrays first_memory, memory;
    run_on(mirror_of_card(true), f, &first_memory, &first);
    run_on(against_oracle ? di_ref_create(NULL) : mirror_of_card(true), f, &memory, &other);
    compare(&first, &other, against_oracle, "card");
    arrays_free(&memory);
    arrays_free(&first_memory);
}

void check_case(case_fn *f, bool against_oracle) {
    if (card_under_test()) {
        check_on_card(f, against_oracle);
        return;
    }
    static results first, other;
    arrays first_memory, memory;
    run_on(di_cpu_create(&(di_cpu_options){1, DI_CPU_PLAIN}, NULL), f, &first_memory, &first);
    if (against_oracle) {
        run_on(di_ref_create(NULL), f, &memory, &other);
        compare(&first, &other, true, "plain");
        arrays_free(&memory);
    }
    for (int isa = DI_CPU_PLAIN; isa <= DI_CPU_AVX512; isa++) {
        for (int threads = 1; threads <= 3 && di_cpu_isa_usable((di_cpu_isa)isa); threads++) {
            char who[64];
            snprintf(who, sizeof who, "%s on %d threads", di_cpu_isa_name((di_cpu_isa)isa),
                     threads);
            di_cpu_options o = {threads, (di_cpu_isa)isa};
            run_on(di_cpu_create(&o, NULL), f, &memory, &other);
            compare(&other, &first, false, who);
            arrays_free(&memory);
        }
    }
    arrays_free(&first_memory);
}

void expect_same(const results *r, const void *got, const void *want, size_t bytes) {
    if (!r->lacking) {
        assert_memory_equal(got, want, bytes);
    }
}

void check_lack_of_memory(case_fn *f) {
    if (card_under_test()) {
        skip();
    }
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        static results r;
        arrays a = {.seed = 42};
        di_error err = {0};
        di_backend *be = di_cpu_create(&(di_cpu_options){.threads = 2}, NULL);
        r.n = 0;
        r.lacking = true;
        di_alloc_fail_at(nth);
        f(be, &a, &r);
        failed = di_alloc_fail_at(0) >= nth;
        assert_int_equal(be->ops->sync(be, &err), !failed);
        if (failed) {
            assert_int_equal(err.code, DI_ERR_NO_MEMORY);
            assert_true(be->ops->sync(be, &err));
            arrays_free(&a);
            a.seed = 42;
            r.n = 0;
            r.lacking = false;
            f(be, &a, &r);
            assert_true(be->ops->sync(be, &err));
        }
        be->ops->destroy(be);
        arrays_free(&a);
    }
}
