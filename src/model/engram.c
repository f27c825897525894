/* Engram's n-gram hashing: see engram.h.
 *
 * Row of column (n, j): offset + (R_n mod prime), R_1 = t_0 m_0, R_n = R_{n-1} xor t_{n-1} m_{n-1},
 * t_s the compressed id s tokens back. Multipliers are 2 v + 1 for v drawn by NumPy's generator
 * seeded with 10007 * layer id, so its stream is reproduced here: SeedSequence, PCG64 (XSL-RR
 * 128/64) and Lemire's bounded draw. */
#include "model/engram.h"

/* ---- NumPy's generator ------------------------------------------------------------------------*/

typedef unsigned __int128 u128;

typedef struct pcg64 {
    u128 state, increment;
} pcg64;

static uint32_t hash_mix(uint32_t *constant, uint32_t value) {
    value ^= *constant;
    *constant *= 0x931E8875u;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t z = 0xCA01F9DDu * x - 0x4973F715u * y;
    return z ^ z >> 16;
}

/* Eight 32-bit words from the seed, as pairs. */
static void seed_sequence(uint64_t seed, uint64_t out[4]) {
    uint32_t words[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, pool[4];
    uint32_t constant = 0x43B0D7E5u;
    for (int i = 0; i < 4; i++) {
        pool[i] = hash_mix(&constant, words[i]);
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            if (j != i) {
                pool[j] = mix(pool[j], hash_mix(&constant, pool[i]));
            }
        }
    }
    uint32_t generate = 0x8B51F9DDu;
    for (int k = 0; k < 8; k++) {
        uint32_t v = pool[k % 4] ^ generate;
        generate *= 0x58F38DEDu;
        v *= generate;
        v ^= v >> 16;
        out[k / 2] = k % 2 ? out[k / 2] | (uint64_t)v << 32 : v;
    }
}

static void pcg_step(pcg64 *g) {
    const u128 multiplier = (u128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    g->state = g->state * multiplier + g->increment;
}

static uint64_t pcg_next(pcg64 *g) {
    pcg_step(g);
    uint64_t folded = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned turn = (unsigned)(g->state >> 122);
    return folded >> turn | folded << (-turn & 63);
}

static pcg64 pcg_seed(uint64_t seed) {
    uint64_t v[4];
    seed_sequence(seed, v);
    pcg64 g = {0, ((u128)v[2] << 64 | v[3]) * 2 + 1};
    pcg_step(&g);
    g.state += (u128)v[0] << 64 | v[1];
    pcg_step(&g);
    return g;
}

void di_numpy_integers(uint64_t seed, uint64_t bound, int count, uint64_t *out) {
    pcg64 g = pcg_seed(seed);
    uint64_t threshold = -bound % bound;
    for (int i = 0; i < count; i++) {
        u128 m;
        do {
            m = (u128)pcg_next(&g) * bound;
        } while ((uint64_t)m < threshold);
        out[i] = (uint64_t)(m >> 64);
    }
}

/* ---- hashing ----------------------------------------------------------------------------------*/

void di_engram_hasher_init(di_engram_hasher *h, const di_config *c, const int32_t *token_map) {
    *h = (di_engram_hasher){
        .num_layers = c->num_engram_layers,
        .max_ngram = c->engram_max_ngram_size,
        .heads = c->engram_n_heads,
        .columns = c->engram_columns,
        .vocab_size = c->vocab_size,
        .token_map = token_map,
    };
    if (h->num_layers == 0) {
        return;
    }
    h->pad = token_map[c->engram_pad_token_id];
    di_engram_primes(c, h->primes);
    uint64_t bound = (uint64_t)INT64_MAX / (uint64_t)c->engram_compressed_vocab_size / 2;
    for (int l = 0; l < h->num_layers; l++) {
        int64_t offset = 0;
        for (int i = 0; i < h->columns; i++) {
            h->offsets[l][i] = offset;
            offset += h->primes[l][i];
        }
        uint64_t seed = 10007u * (uint64_t)c->engram_layer_ids[l];
        di_numpy_integers(seed, bound ? bound : 1, h->max_ngram, h->multipliers[l]);
        for (int s = 0; s < h->max_ngram; s++) {
            h->multipliers[l][s] = 2 * h->multipliers[l][s] + 1;
        }
    }
}

int32_t di_engram_compress(const di_engram_hasher *h, int64_t token) {
    return token >= 0 && token < h->vocab_size ? h->token_map[token] : DI_ENGRAM_BARRIER;
}

void di_engram_hash(const di_engram_hasher *h, int layer, const int32_t *ids, int at,
                    int64_t *rows) {
    if (ids[at] == DI_ENGRAM_BARRIER) {
        for (int i = 0; i < h->columns; i++) {
            rows[i] = -1;
        }
        return;
    }
    uint64_t r = 0;
    bool blocked = false;
    for (int s = 0; s < h->max_ngram; s++) {
        blocked = blocked || s > at || ids[at - s] == DI_ENGRAM_BARRIER;
        uint64_t id = (uint64_t)(blocked ? h->pad : ids[at - s]);
        r ^= id * h->multipliers[layer][s];
        for (int j = 0; s > 0 && j < h->heads; j++) {
            int column = (s - 1) * h->heads + j;
            rows[column] =
                h->offsets[layer][column] + (int64_t)(r % (uint64_t)h->primes[layer][column]);
        }
    }
}

di_ngram_hash di_engram_device_hash(const di_engram_hasher *h, int layer) {
    return (di_ngram_hash){
        .max_ngram = h->max_ngram,
        .heads = h->heads,
        .columns = h->columns,
        .vocab_size = h->vocab_size,
        .pad = h->pad,
        .token_map = h->token_map,
        .primes = h->primes[layer],
        .offsets = h->offsets[layer],
        .multipliers = h->multipliers[layer],
    };
}
