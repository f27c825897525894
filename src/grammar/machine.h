/* The pushdown machine that all three languages run on.
 *
 * A stack frame is a term that comes next; frames are shared, so a stack is a number. A
 * configuration is the set of (regular term, stack) pairs that the text so far may have led to, and
 * whether the text may end here; equal ones are one number, and their successors by a byte are
 * remembered. So a matcher is an array of numbers, rollback forgets the last of them, and a mask is
 * a walk over the trie of tokens along rows of numbers. Everything is made when it is first needed.
 *
 *   text byte -> di_machine_step -> configuration -> di_machine_mask -> bit set over token ids
 *
 * One thread at a time. Faults stick in terms.fault. */
#ifndef DI_GRAMMAR_MACHINE_H
#define DI_GRAMMAR_MACHINE_H

#include "grammar/terms.h"
#include "grammar/token_walk.h"
#include "grammar/vocab.h"

typedef uint32_t di_config; /* 0: the text cannot go on and cannot have come here */

enum { DI_CONFIG_DEAD = 0, DI_STACK_BOTTOM = 0 };

/* Frames of one stack; what would go deeper is not allowed. */
#define DI_MACHINE_MAX_DEPTH 1024
/* Pairs that one step may look at: a text that needs more is refused as too ambiguous. So many take
 * some milliseconds, and a mask may take ten. */
#define DI_MACHINE_MAX_WORK 2500
/* Items of a configuration: stacks that live side by side. */
#define DI_MACHINE_MAX_ITEMS 1024
/* A call that comes through configurations of more items than CROWD may look at so many pairs. */
#define DI_MACHINE_CROWD          128
#define DI_MACHINE_MAX_CROWD_WORK 100000

/* Successors of a configuration that are kept in a short list. */
#define DI_MACHINE_FEW 7

/* Terms of which it is remembered what stands for them. */
#define DI_MACHINE_ALIKE 256

typedef struct di_frame {
    di_term next;
    uint32_t below;
    uint32_t depth;
    uint32_t hash_next;
} di_frame;

typedef struct di_item {
    di_term term;
    uint32_t stack;
} di_item;

/* The first successors looked at. Most configurations never have more: those of a text that is
 * being written, or that tokens end in. */
typedef struct di_few_steps {
    uint8_t count, bytes[DI_MACHINE_FEW];
    di_config to[DI_MACHINE_FEW];
} di_few_steps;

typedef struct di_config_node {
    uint32_t first, count; /* items */
    bool accepts;
    uint32_t hash_next;
    di_few_steps *few;  /* NULL at first, and once there is a row */
    uint32_t *row;      /* [256] successors, UINT32_MAX = not looked at; NULL while few suffice */
    di_kept_mask *mask; /* NULL = not computed, or dropped */
} di_config_node;

typedef struct di_machine {
    di_terms terms;
    di_term *rules; /* of CALL terms */
    size_t num_rules, cap_rules;
    di_term root;

    di_frame *frames;
    size_t num_frames, cap_frames;
    di_item *items;
    size_t num_items, cap_items;
    di_config_node *configs;
    size_t num_configs, cap_configs;
    uint32_t *frame_buckets, *config_buckets;
    uint32_t num_frame_buckets, num_config_buckets;
    di_config start;

    /* one closure */
    di_item *work;
    size_t num_work, cap_work, done_work;
    di_item *found;
    size_t num_found, cap_found;
    bool found_accept;
    struct di_seen {
        uint32_t epoch;
        di_item item;
    } * seen; /* [2 * DI_MACHINE_MAX_WORK] */
    uint32_t epoch;

    uint32_t crowd_work; /* pairs looked at in crowds; its user sets it to 0 for each call */

    /* masks */
    const di_vocab *vocab;
    di_token_set *sets;
    size_t num_sets, cap_sets;
    uint32_t set_buckets[256];
    size_t mask_bytes;      /* of configurations' masks */
    size_t set_bytes;       /* of token sets */
    uint32_t *scratch;      /* [vocab->num_words]: a set in the making */
    di_walk_memory *memory; /* NULL before the first mask */
    uint64_t walked;        /* trie nodes looked at, ever */
    uint32_t token_bytes;   /* of the tokens that terms are being made alike for */
    struct di_alike {
        di_term of, to;
        uint32_t bytes;        /* for tokens of at most so many */
        uint32_t spaces;       /* that it may begin with, where `to` may with any number; or 0 */
        bool retag;            /* ends with other tags than `to` */
    } alike[DI_MACHINE_ALIKE]; /* terms and what stands for them in masks, by term */
} di_machine;

/* Fills in an empty machine: terms, but no root yet. */
bool di_machine_create(di_machine *m, const di_vocab *vocab, size_t max_bytes, di_error *err);
void di_machine_destroy(di_machine *m);

/* Forgets what can be made again: rows and masks, but not configurations. */
void di_machine_trim(di_machine *m);

/* With root and rules set: the first configuration. */
bool di_machine_start(di_machine *m, di_error *err);

di_config di_machine_step_slow(di_machine *m, di_config c, uint8_t byte);
static inline di_config di_machine_step(di_machine *m, di_config c, uint8_t byte) {
    const di_config_node *n = &m->configs[c];
    if (n->row) {
        return n->row[byte] != UINT32_MAX ? n->row[byte] : di_machine_step_slow(m, c, byte);
    }
    for (int i = 0; n->few && i < n->few->count; i++) {
        if (n->few->bytes[i] == byte) {
            return n->few->to[i];
        }
    }
    return di_machine_step_slow(m, c, byte);
}

/* Where a stack goes on when what was on top of it has ended with a tag. */
di_config di_machine_return(di_machine *m, uint32_t stack, uint32_t tag);

/* ORs nothing: writes the whole mask, [vocab->num_words]. False after a fault. */
bool di_machine_mask(di_machine *m, di_config c, uint32_t *words);

void di_machine_drop_masks(di_machine *m);

/* token_set.c: the set of a term; `sets` are some that were made before it; spaced: without the
 * vocabulary's `spaces`. scratch: [v->num_words]. */
bool di_token_set_make(di_terms *t, const di_vocab *v, const di_token_set *sets, size_t num_sets,
                       di_term x, bool spaced, di_walk_memory *memory, uint32_t *scratch,
                       di_token_set *set, uint64_t *walked);

/* Bytes held for masks, and for token sets; they are dropped when there are too many. */
#define DI_MACHINE_MASK_BYTES (4u << 20)

#endif
