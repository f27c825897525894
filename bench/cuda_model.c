/* A whole model of DeepSeek-V4.1-Flash's width, all 40 layers of it, on a card: prefill in tokens a
 * second, and a step of decoding at several batch sizes and contexts, beside the time that reading
 * what it must read would take at the bandwidth measured in the same run: experts that rows went
 * to are counted, not guessed.
 *
 *   bench/cuda_model [--expert-layers N] [--batch N] [CONTEXT...]
 *
 * The model is bench/support/wide.h's, with experts of N layers (13).
 *
 * Steps of decoding run as the engine's do: recorded, queued one behind the other. They end with
 * logits, not with drawn tokens. The head is timed alone too and taken off where a layer's time is
 * told, as it does not grow with the layers. --batch runs one batch size, of 1 to 256. Without a
 * card it says so and does nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cuda/cuda.h"
#include "support/wide.h"
#include "weights/inventory.h"

enum {
    CHUNK = 8192,    /* rows of a prefill step */
    MAX_BATCH = 256, /* sequences */
    STEPS = 8,       /* of decoding, queued at once */
    RUNS = 3,        /* of so many steps */
};

static wide w;
static int only_batch;

/* ---- what a step must read --------------------------------------------------------------------*/

static bool add_bytes(void *context, const di_parameter *p) {
    double *bytes = context;
    double values = (double)p->shape[0] * (double)(p->rank > 1 ? p->shape[1] : 1);
    if (p->part != DI_PART_EXPERTS && p->part != DI_PART_ENGRAM_TABLES &&
        p->part != DI_PART_EMBED_HEAD) {
        *bytes += values * (double)di_dtype_bits(p->slot->dtype) / 8;
    }
    return true;
}

/* Weights outside the experts once, the experts that are touched, and of each of n sequences' state
 * the window, the selected entries and the index keys. */
static double bytes_of_step(int n, int64_t context, double touched) {
    const di_config *c = &w.weights.config;
    double dense = 0, state_bytes = 0;
    di_inventory_walk(&w.weights, add_bytes, &dense);
    double expert = 3.0 * c->moe_intermediate_size * c->hidden_size * (0.5 + 1.0 / 32);
    const di_state_layout *layout = di_cache_pool(w.cache)->layout;
    for (int l = 0; l < c->num_hidden_layers; l++) {
        int ratio = c->layers[l].ratio;
        state_bytes += (double)c->sliding_window * (double)layout->window_bytes;
        if (ratio > 0) {
            state_bytes += (double)c->index_topk * (double)layout->latent_bytes;
        }
        if (ratio > 0 && c->layers[l].index_source == l) {
            double entries = (double)context / ratio;
            bool few = l > c->candidate_source_layer_id; /* looks at candidates only */
            double most = (double)c->candidate_topk_blocks * c->candidate_block_size;
            state_bytes += (few && entries > most ? most : entries) * (double)layout->key_bytes;
        }
    }
    return dense + touched * expert * c->num_hidden_layers + n * state_bytes;
}

/* ---- decoding ---------------------------------------------------------------------------------*/

/* Seconds of the head's product of n rows. */
static double head_alone(int n) {
    const di_queue_ops *queue = w.be->ops->queue;
    di_error err;
    double begin, end, best = 1;
    di_bf16 *x =
        w.be->ops->alloc(w.be, (size_t)n * (size_t)w.weights.config.hidden_size * sizeof *x);
    for (int run = 0; x && run < RUNS; run++) {
        queue->begin(w.be, 0);
        for (int i = 0; i < STEPS; i++) {
            w.be->ops->linear_f32(w.be, x, n, &w.weights.head, (float *)di_model_logits(w.model));
        }
        queue->end(w.be, 0);
        wide_check(queue->wait(w.be, 0, &begin, &end, &err), &err);
        best = (end - begin) / STEPS < best ? (end - begin) / STEPS : best;
    }
    w.be->ops->free(w.be, x);
    return best;
}

static void decode(di_seq *seqs, int n, int64_t context) {
    double layers = w.weights.config.num_hidden_layers, took = 1, head = head_alone(n);
    for (int run = 0; run <= RUNS; run++) { /* the first one records */
        double seconds = wide_steps(&w, seqs, n, 1, STEPS);
        took = run > 0 && seconds < took ? seconds : took;
    }
    double touched = wide_touched(&w, seqs, n);
    double floor = bytes_of_step(n, context, touched) / w.bandwidth;
    double head_floor =
        2.0 * w.weights.config.vocab_size * w.weights.config.hidden_size / w.bandwidth;
    printf("decode, batch %3d, context %6lld   %8.2f ms a step, %5.1f %% of the floor's speed   "
           "head %5.2f ms   a layer %7.1f us, floor %7.1f us   %5.1f %%   %5.1f experts\n",
           n, (long long)context, took * 1e3, 100 * (floor + head_floor) / took, head * 1e3,
           (took - head) * 1e6 / layers, floor * 1e6 / layers, 100 * floor / (took - head),
           touched);
    fflush(stdout);
}

/* What batch invariance costs: the prefill with and without it, in turns, the best of each. Steps
 * of decoding are the same in both modes. */
static void compare_orders(int64_t context) {
    double best[2] = {1e9, 1e9};
    for (int run = 0; run < 2 * RUNS; run++) {
        bool any = run % 2;
        di_seq seq = {0};
        di_error err;
        di_cuda_free_order(w.be, any);
        wide_check(di_seq_open(w.cache, &seq, (di_hash){0}, &err), &err);
        double took = wide_prefill(&w, &seq, context);
        best[any] = took < best[any] ? took : best[any];
        di_seq_close(w.cache, &seq);
    }
    di_cuda_free_order(w.be, false);
    printf("the same, best of %d: batch-invariant %.1f tokens/s, with sums in any order %.1f: "
           "batch invariance costs %.2f %%\n",
           RUNS, (double)context / best[0], (double)context / best[1],
           100 * (best[0] / best[1] - 1));
}

/* ---- the run ----------------------------------------------------------------------------------*/

static void run_context(int64_t context) {
    static di_seq seqs[MAX_BATCH];
    static const int batches[] = {1, 8, 64, 256};
    di_error err;
    int have = 1;
    memset(seqs, 0, sizeof seqs);
    wide_check(di_seq_open(w.cache, &seqs[0], (di_hash){0}, &err), &err);
    double took = wide_prefill(&w, &seqs[0], context);
    printf("prefill of %lld tokens, chunks of %d   %9.1f tokens/s (%.2f s)\n", (long long)context,
           CHUNK, (double)context / took, took);
    if (context <= CHUNK) {
        compare_orders(context);
    }
    wide_check(di_seq_reserve(w.cache, &seqs[0], context + WIDE_MORE, &err), &err);
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        int batch = only_batch ? only_batch : batches[b];
        for (; have < batch; have++) {
            wide_copy_sequence(&w, &seqs[have], &seqs[0]);
        }
        decode(seqs, batch, context);
        if (only_batch) {
            break;
        }
    }
    for (int i = 0; i < have; i++) {
        di_seq_close(w.cache, &seqs[i]);
    }
}

int main(int argc, char **argv) {
    int64_t contexts[8], longest = 0;
    int count = 0, expert_layers = 13;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--expert-layers") == 0 && i + 1 < argc) {
            expert_layers = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc) {
            only_batch = atoi(argv[++i]);
        } else if (count < 8) {
            contexts[count++] = atoll(argv[i]);
        }
    }
    if (count == 0) {
        contexts[count++] = 8192;
        contexts[count++] = 131072;
    }
    for (int i = 0; i < count; i++) {
        longest = contexts[i] > longest ? contexts[i] : longest;
        if (contexts[i] < 1 || contexts[i] > 1000000) {
            wide_give_up("contexts are 1 to 1000000 tokens");
        }
    }
    if (only_batch < 0 || only_batch > MAX_BATCH) {
        wide_give_up("--batch takes 1 to 256");
    }
    wide_options o = {
        .expert_layers = expert_layers,
        .chunk = CHUNK,
        .max_batch = MAX_BATCH,
        .max_logits = MAX_BATCH,
        .longest = longest > CHUNK ? longest : CHUNK,
    };
    if (!wide_open(&w, &o)) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        run_context(contexts[i]);
    }
    wide_close(&w);
    return 0;
}
