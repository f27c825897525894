/* Golden vectors and models to hold against them: what the model's tests share. */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

#include "model/model.h"
#include "weights/safetensors.h"
#include "weights/weights.h"

/* Path below the test data folder ($TESTDATA), in a static buffer. */
const char *testdata_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A recorded case. Arrays are read with case_*; a missing or mistyped one fails the test. */
typedef struct golden_case {
    di_shard shard;
} golden_case;

void case_open(golden_case *g, const char *path);
void case_close(golden_case *g);
bool case_has(const golden_case *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails the test unless the array is there with that dtype. */
di_tensor case_get(const golden_case *g, di_dtype dtype, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Elements before the last `rank - from` dimensions are counted apart: product of shape[from..]. */
int64_t elements_from(const di_tensor *t, int from);

/* A checkpoint on a backend, with room for one or more sequences. Fails the test on any error. */
typedef struct fixture {
    di_weights *w;
    const di_config *c;
    di_backend *be;
    di_cache *cache;
    di_model *m;
    int32_t *token_map;
    int32_t *tokens[16]; /* by slot: what each open sequence was fed, for the model's look-back */
} fixture;

/* BACKEND_CPU is the card where TEST_BACKEND asks for one (mirror.h). */
typedef enum backend_kind { BACKEND_REF, BACKEND_CPU } backend_kind;

void fixture_open(fixture *f, const char *folder, backend_kind kind, int max_rows);
/* The same with the draft model's context. */
void fixture_open_drafts(fixture *f, const char *folder, backend_kind kind, int max_rows);
void fixture_close(fixture *f);

/* The next n tokens of a sequence as rows of a call; it grows by them. Fails the test if the cache
 * has no room. */
di_model_rows fixture_rows(fixture *f, di_seq *seq, const int32_t *tokens, int n);

/* Runs the next tokens of a sequence; logits [num_logits, vocab] or NULL. */
void fixture_forward(fixture *f, di_seq *seq, const int32_t *tokens, int n, int num_logits,
                     int64_t replay_from, float *logits);

/* The recorded vectors divide a latent by its scale where the engine multiplies by the reciprocal
 * (docs/numerics.md): codes differ in exact ties under scales of mantissa 1.875. For an observer's
 * "latents" of `layer`: fails the test unless every stored code is the engine's, then stores the
 * recorded rule's instead, so that what is left to compare is the rest. Returns codes changed. */
int64_t store_latents_as_recorded(fixture *f, int layer, const di_bf16 *latents);

/* An observer (user: fixture) that does only that. */
void observe_latents(void *user, const char *name, int layer, void *data, size_t bytes);

/* How far two arrays lie apart. */
typedef struct tally {
    double worst; /* largest |difference| */
    int64_t unequal, count;
} tally;

void tally_f32(tally *t, const float *found, const float *wanted, int64_t n);
void tally_bf16(tally *t, const di_bf16 *found, const di_bf16 *wanted, int64_t n);

/* ||found - wanted|| / ||wanted|| */
double relative_error(const float *found, const float *wanted, int64_t n);
int argmax(const float *x, int n);

/* Median; reorders x. */
double median(double *x, int n);

#endif
