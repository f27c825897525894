/* The ops of the simulated card: see simcard.h. Each keeps its arguments for when it runs, one list
 * of arguments an op.
 *
 * Kinds of arguments: V a value, or memory that stays as it is; H a host array; E experts; T a
 * weight, whose description is the caller's; S the step. */
#include "simcard/card.h"

typedef struct weight {
    bool given;
    di_tensor tensor;
} weight;

static weight copy_weight(simcard *c, const di_tensor *w) {
    if (w) {
        simcard_use_weight(c, w->data);
    }
    return w ? (weight){true, *w} : (weight){0};
}

#define FIELD(kind, type, name) FIELD_##kind(type, name)
#define FIELD_V(type, name)     type name;
#define FIELD_E(type, name)     type name;
#define FIELD_H(type, name)     type name;
#define FIELD_T(type, name)     weight name;
#define FIELD_S(type, name)     di_step name;
#define PARAM(kind, type, name) , type name
#define KEEP(kind, type, name)  KEEP_##kind(name)
#define KEEP_V(name)            a.name = name;
#define KEEP_H(name)            a.name = simcard_there(c, name), here = here || ((name) && !a.name);
#define KEEP_T(name)            a.name = copy_weight(c, name);
#define KEEP_E(name)            a.name = (name), simcard_use_weight(c, name);
#define KEEP_S(name)            a.name = simcard_given_step(c, name);
#define ENTER(kind, type, name) ENTER_##kind(name)
#define ENTER_V(name)           true
#define ENTER_E(name)           true
#define ENTER_H(name)           true
#define ENTER_T(name)           true
#define ENTER_S(name)           simcard_enter_step(c, &a->name)
#define PASS(kind, type, name)  , PASS_##kind(name)
#define PASS_V(name)            a->name
#define PASS_E(name)            a->name
#define PASS_H(name)            a->name
#define PASS_T(name)            (a->name.given ? &a->name.tensor : NULL)
#define PASS_S(name)            &a->name
#define AND(kind, type, name)   &&ENTER(kind, type, name)
#define NAME(kind, type, name)  , name

/* Ops called with host arrays outside argument memory read them before they return. */
#define OP(op, LIST)                                                                               \
    typedef struct op##_args {                                                                     \
        LIST(FIELD)                                                                                \
    } op##_args;                                                                                   \
    static void run_##op(simcard *c, void *args) {                                                 \
        op##_args *a = args;                                                                       \
        if (true LIST(AND)) {                                                                      \
            c->inner->ops->op(c->inner LIST(PASS));                                                \
        }                                                                                          \
    }                                                                                              \
    static void sim_##op(di_backend *be LIST(PARAM)) {                                             \
        simcard *c = simcard_of(be);                                                               \
        op##_args a = {0};                                                                         \
        bool here = false;                                                                         \
        LIST(KEEP)                                                                                 \
        if (here && c->recording) {                                                                \
            simcard_fault(c, #op, "is recorded with an array outside argument memory");            \
        } else if (here) {                                                                         \
            simcard_wait(c, #op);                                                                  \
            c->inner->ops->op(c->inner LIST(NAME));                                                \
        } else {                                                                                   \
            simcard_push(c, run_##op, &a, sizeof a);                                               \
        }                                                                                          \
    }

/* clang-format off: it finds no end with these */

#define EMBED(X)                                                                                   \
    X(H, const int32_t *, tokens)                                                                  \
    X(V, int, n) X(T, const di_tensor *, table) X(V, int, hc) X(V, di_bf16 *, h) X(V, float *, pre)
OP(embed, EMBED)

#define GATHER(X)                                                                                  \
    X(V, const void *, from)                                                                       \
    X(H, const int32_t *, rows) X(V, int, n) X(V, size_t, bytes) X(V, void *, to)
OP(gather_rows, GATHER)

#define MIX(X)                                                                                     \
    X(V, const di_bf16 *, h)                                                                       \
    X(V, int, n)                                                                                   \
    X(V, int, hc)                                                                                  \
    X(V, int, d)                                                                                   \
    X(T, const di_tensor *, fn)                                                                    \
    X(T, const di_tensor *, base)                                                                  \
    X(T, const di_tensor *, scale)                                                                 \
    X(V, float, norm_eps)                                                                          \
    X(V, float, hc_eps) X(V, int, iters) X(V, float *, pre) X(V, float *, post) X(V, float *, comb)
OP(mhc_mix, MIX)

#define PRE(X)                                                                                     \
    X(V, const di_bf16 *, h)                                                                       \
    X(V, const float *, pre) X(V, int, n) X(V, int, hc) X(V, int, d) X(V, di_bf16 *, out)
OP(mhc_pre, PRE)

#define POST(X)                                                                                    \
    X(V, const di_bf16 *, y)                                                                       \
    X(V, const float *, post)                                                                      \
    X(V, const float *, comb)                                                                      \
    X(V, int, n)                                                                                   \
    X(V, int, hc)                                                                                  \
    X(V, int, d)                                                                                   \
    X(V, di_bf16 *, h)                                                                             \
    X(V, const float *, pre)                                                                       \
    X(T, const di_tensor *, norm) X(V, float, norm_eps) X(V, di_bf16 *, x) X(V, di_bf16 *, q8)
OP(mhc_post, POST)

#define MEAN(X)                                                                                    \
    X(V, const di_bf16 *, h)                                                                       \
    X(V, int, n) X(V, int, hc) X(V, int, d) X(V, di_bf16 *, out) X(V, size_t, ldo)
OP(stream_mean, MEAN)

#define NORM(X)                                                                                    \
    X(V, const di_bf16 *, x)                                                                       \
    X(T, const di_tensor *, w)                                                                     \
    X(V, float, eps) X(V, int, n) X(V, int, dim) X(V, di_bf16 *, y) X(V, di_bf16 *, q8)
OP(rms_norm, NORM)

#define LINEAR(X)                                                                                  \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, di_form, form) X(V, int, n) X(T, const di_tensor *, w) X(V, di_bf16 *, y)
OP(linear, LINEAR)

#define LINEAR_PAIR(X) LINEAR(X) X(T, const di_tensor *, w2) X(V, di_bf16 *, y2)
OP(linear_pair, LINEAR_PAIR)

#define LINEAR_F32(X)                                                                              \
    X(V, const di_bf16 *, x) X(V, int, n) X(T, const di_tensor *, w) X(V, float *, y)
OP(linear_f32, LINEAR_F32)

#define LINEAR_ADD(X) LINEAR_F32(X) X(V, size_t, ldy)
OP(linear_add_f32, LINEAR_ADD)

#define GROUPED(X)                                                                                 \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, int, n)                                                                                   \
    X(V, int, groups) X(T, const di_tensor *, w) X(V, di_bf16 *, y) X(V, di_form, form)
OP(linear_grouped, GROUPED)

#define ROPE_TABLE(X)                                                                              \
    X(H, const int64_t *, positions)                                                               \
    X(V, int, n) X(H, const float *, freq) X(V, di_rope_table, table)
OP(rope_table, ROPE_TABLE)

#define ROPE(X)                                                                                    \
    X(V, di_bf16 *, x)                                                                             \
    X(V, int, n) X(V, int, heads) X(V, int, dim) X(V, di_rope_table, table) X(V, bool, inverse)
OP(rope, ROPE)

#define WINDOW_MAKE(X)                                                                             \
    X(V, di_bf16 *, kv)                                                                            \
    X(V, int, n)                                                                                   \
    X(V, int, dim)                                                                                 \
    X(T, const di_tensor *, norm)                                                                  \
    X(V, float, eps) X(V, di_rope_table, table) X(V, uint8_t *, records)
OP(window_make, WINDOW_MAKE)

#define WINDOW_STORE(X) X(S, const di_step *, step) X(V, int, layer) X(V, const uint8_t *, records)
OP(window_store, WINDOW_STORE)

#define COMPRESS(X)                                                                                \
    X(S, const di_step *, step)                                                                    \
    X(V, int, layer)                                                                               \
    X(V, int, ratio)                                                                               \
    X(V, const float *, k)                                                                         \
    X(V, const float *, g)                                                                         \
    X(H, const di_entry *, entries) X(V, int, m) X(V, int, dim) X(V, di_bf16 *, latents)
OP(compress, COMPRESS)

#define ENTRY_STORE(X)                                                                             \
    X(S, const di_step *, step)                                                                    \
    X(V, int, layer)                                                                               \
    X(V, int, ratio)                                                                               \
    X(H, const di_entry *, entries)                                                                \
    X(V, int, m)                                                                                   \
    X(V, const di_bf16 *, latents) X(V, int, dim) X(V, const di_bf16 *, keys) X(V, int, key_dim)
OP(entry_store, ENTRY_STORE)

#define INDEX(X)                                                                                   \
    X(S, const di_step *, step)                                                                    \
    X(V, int, source)                                                                              \
    X(V, int, ratio)                                                                               \
    X(V, const di_bf16 *, q)                                                                       \
    X(V, const di_bf16 *, weights)                                                                 \
    X(V, int, heads)                                                                               \
    X(V, int, key_dim)                                                                             \
    X(V, int, k)                                                                                   \
    X(V, int32_t *, candidates)                                                                    \
    X(V, bool, build) X(V, int, max_blocks) X(V, int, block_size) X(V, int32_t *, topk)
OP(index_topk, INDEX)

#define ATTENTION(X)                                                                               \
    X(S, const di_step *, step)                                                                    \
    X(V, int, layer)                                                                               \
    X(V, int, window)                                                                              \
    X(V, int, source)                                                                              \
    X(V, int, ratio)                                                                               \
    X(V, di_bf16 *, q)                                                                             \
    X(V, int, heads)                                                                               \
    X(V, int, dim)                                                                                 \
    X(V, di_rope_table, table)                                                                     \
    X(V, const uint8_t *, records)                                                                 \
    X(V, const int32_t *, topk) X(V, int, k) X(T, const di_tensor *, sink) X(V, di_bf16 *, out)
OP(attention, ATTENTION)

#define ROUTE(X)                                                                                   \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, int, n)                                                                                   \
    X(T, const di_tensor *, gate)                                                                  \
    X(T, const di_tensor *, bias)                                                                  \
    X(T, const di_tensor *, bias_vl)                                                               \
    X(H, const uint8_t *, image)                                                                   \
    X(V, float, temp)                                                                              \
    X(V, int, top_k)                                                                               \
    X(V, bool, norm) X(V, float, scale) X(V, int32_t *, experts) X(V, float *, weights)
OP(route, ROUTE)

#define MOE(X)                                                                                     \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, int, n)                                                                                   \
    X(V, const int32_t *, experts)                                                                 \
    X(V, const float *, weights)                                                                   \
    X(V, int, top_k)                                                                               \
    X(E, const di_expert *, table)                                                                 \
    X(V, int, num_experts) X(E, const di_expert *, shared) X(V, float, limit) X(V, di_bf16 *, y)
OP(moe, MOE)

#define ENGRAM(X)                                                                                  \
    X(H, const int64_t *, rows)                                                                    \
    X(V, int, n)                                                                                   \
    X(V, int, columns)                                                                             \
    X(T, const di_tensor *, table)                                                                 \
    X(T, const di_tensor *, wkv)                                                                   \
    X(T, const di_tensor *, q_weight)                                                              \
    X(T, const di_tensor *, k_weight) X(V, int, hc) X(V, int, d) X(V, float, eps) X(V, di_bf16 *, h)
OP(engram, ENGRAM)

/* clang-format on */

/* ---- the table ------------------------------------------------------------------------------- */

const di_ops simcard_ops = {
    .name = "simulated card",
    .embed = sim_embed,
    .gather_rows = sim_gather_rows,
    .mhc_mix = sim_mhc_mix,
    .mhc_pre = sim_mhc_pre,
    .mhc_post = sim_mhc_post,
    .stream_mean = sim_stream_mean,
    .rms_norm = sim_rms_norm,
    .linear = sim_linear,
    .linear_pair = sim_linear_pair,
    .linear_f32 = sim_linear_f32,
    .linear_add_f32 = sim_linear_add_f32,
    .linear_grouped = sim_linear_grouped,
    .rope_table = sim_rope_table,
    .rope = sim_rope,
    .window_make = sim_window_make,
    .window_store = sim_window_store,
    .compress = sim_compress,
    .entry_store = sim_entry_store,
    .index_topk = sim_index_topk,
    .attention = sim_attention,
    .route = sim_route,
    .moe = sim_moe,
    .engram = sim_engram,
};
