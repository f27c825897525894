/* A vocabulary as masks need it: the byte strings of all tokens as a flat trie, so that whole
 * subtrees of tokens are ruled out by their common prefix.
 *
 * Read-only once made: any number of grammars and threads share one. */
#ifndef DI_GRAMMAR_VOCAB_H
#define DI_GRAMMAR_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Tokens longer than this are never allowed by a mask. */
#define DI_VOCAB_MAX_TOKEN_BYTES 200

/* What the control token that opens the markup of tool calls stands for: a byte that UTF-8 does not
 * have, so that no text holds it. */
#define DI_VOCAB_DSML "\xFF"

/* What a token stands for. size 0: an id that no grammar may allow (a control token, a hole). */
typedef struct di_vocab_token {
    const char *bytes;
    size_t size;
} di_vocab_token;

/* A node is the byte on the edge that leads to it. Nodes lie in depth-first order, children by
 * byte, so the subtree of node i is [i, end). */
typedef struct di_trie_node {
    /* Bits of di_character_class: which classes of characters begin below, behind the one that the
     * node is in the middle of. */
    uint64_t below;
    uint32_t end;
    uint32_t before; /* how many of `order` come before the node's own */
    int32_t token;   /* the token that ends here, -1 = none; more of the same bytes: vocab.same */
    uint8_t byte;
    uint8_t depth; /* of its parent: 0 for a first byte */
    uint8_t lacks; /* bytes of the character that it belongs to, behind it */
    bool twice;    /* more tokens have the bytes of `token` */
} di_trie_node;

/* What a walk asks of every node, most of which end it: apart, so that more fit into a cache. */
typedef struct di_trie_step {
    uint32_t end;
    uint8_t byte, depth;
} di_trie_step;

typedef struct di_trie {
    di_trie_node *nodes; /* [num_nodes + 1], the last for its `before` alone */
    di_trie_step *steps; /* [num_nodes] */
    uint32_t num_nodes;
    int32_t *order;      /* tokens in the order of their nodes */
    uint32_t first[257]; /* the node where tokens begin whose first byte is no less */
} di_trie;

/* Characters by their first byte, so that those that patterns often tell apart are apart. */
enum { DI_CLASS_NONE = 63 }; /* no character begins with it */
int di_character_class(uint8_t first);

/* How many bytes follow a character's first one, and between which the second lies. */
typedef struct di_character_form {
    int more;
    uint8_t low, high;
} di_character_form;
di_character_form di_character_form_of(uint8_t first);

enum {
    DI_TRIE_ALL,    /* every token */
    DI_TRIE_MARKED, /* those that are not plain, see below */
    DI_NUM_TRIES
};

/* A place in a trie behind which a term has ended, so that the stack decides about the tokens. */
typedef struct di_token_point {
    uint32_t node;
    uint8_t trie;
    bool settled; /* it has been found that some token behind it is still open */
    uint32_t tag;
} di_token_point;

/* Which tokens a term allows whatever the stack: a bit set or, if few, a list of ids. */
typedef struct di_token_set {
    uint32_t term;         /* a di_term */
    const uint32_t *plain; /* of the vocabulary: what the set was begun with, NULL = nothing */
    uint32_t *words;       /* NULL: ids */
    int32_t *ids;
    uint32_t num_ids;
    di_token_point *points;
    uint32_t num_points;
    uint32_t hash_next;
} di_token_set;

/* Plain tokens are whole UTF-8 characters, none of them a control character, '"' or '\', and no
 * more than DI_VOCAB_PLAIN_CHARS: inside an unconstrained JSON string they are all allowed.
 * plain[k] is the mask of those with at most k characters. */
#define DI_VOCAB_PLAIN_CHARS 31
/* Tokens that are few enough to be asked for one by one have more bytes than this. */
#define DI_VOCAB_LONG 11

typedef struct di_vocab {
    int32_t num_bits;  /* width of a mask: the logits' */
    int32_t num_words; /* ceil(num_bits / 32) */
    di_trie tries[DI_NUM_TRIES];
    int32_t *same; /* [num_bits]: the next token of the same bytes, -1 = none; NULL if no two are */
    uint32_t *plain[DI_VOCAB_PLAIN_CHARS + 1];
    int max_bytes;     /* of the longest token in the trie */
    int32_t *long_ids; /* [num_long]: of more than DI_VOCAB_LONG bytes in the trie, longest first */
    int32_t num_long;
    /* [32 num_words]: the classes of a token's characters, bits of di_character_class; that of
     * DI_CLASS_NONE where it is no characters (the last may lack bytes) or no token at all. */
    uint64_t *classes;
    int32_t *stop_ids;
    int num_stop;
    di_vocab_token *tokens; /* [num_bits], the bytes are copies; size 0 where no mask may allow */
    char *text;
    di_token_set *strings; /* of terms.h's JSON_STRING, which nearly every grammar meets */
} di_vocab;

/* tokens: [num_tokens], num_tokens <= num_bits; ids from num_tokens on are never allowed. Stop ids
 * are outside the grammar: allowed exactly where it may end, whatever their bytes. */
di_vocab *di_vocab_create(const di_vocab_token *tokens, int32_t num_tokens, int32_t num_bits,
                          const int32_t *stop_ids, int num_stop, di_error *err);
void di_vocab_destroy(di_vocab *v); /* NULL is allowed */

/* Adds the tokens that end at a node to a mask. */
static inline void di_trie_allow(const di_vocab *v, const di_trie_node *n, uint32_t *words) {
    if (n->token >= 0) {
        words[n->token / 32] |= 1u << n->token % 32;
        for (int32_t same = n->twice ? v->same[n->token] : -1; same >= 0; same = v->same[same]) {
            words[same / 32] |= 1u << same % 32;
        }
    }
}

/* token_set.c */
di_token_set *di_token_set_of_strings(const di_vocab *v, di_error *err);
void di_token_set_clear(di_token_set *set);

bool di_vocab_is_stop(const di_vocab *v, int32_t id);

#endif
