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
#include "grammar/kept_mask.h"

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
    uint8_t depth;     /* of its parent: 0 for a first byte */
    uint8_t height;    /* characters that begin below, on the longest way */
    uint8_t lacks : 6; /* bytes of the character that it belongs to, behind it */
    bool apart : 1;    /* that is, or here or below may become, one of DI_CLASS_APART */
    bool twice : 1;    /* more tokens have the bytes of `token` */
} di_trie_node;

/* What a walk asks of every node, most of which end it: apart, so that more fit into a cache. */
typedef struct di_trie_step {
    uint32_t end;
    uint8_t byte, depth;
    uint16_t fan; /* 0 = none */
} di_trie_step;

/* The children of a node that has many, so that a walk goes to those that a term can reach without
 * a look at the others. */
typedef struct di_trie_fan {
    uint64_t bytes[4]; /* on the edges to them */
    uint8_t before[4]; /* how many have a byte of an earlier word */
    uint32_t kids;     /* of trie.kids: the first child's */
} di_trie_fan;
#define DI_TRIE_FAN 8 /* children that are many */

typedef struct di_trie {
    di_trie_node *nodes; /* [num_nodes + 1], the last for its `before` alone */
    di_trie_step *steps; /* [num_nodes] */
    uint32_t num_nodes;
    di_trie_fan *fans;   /* fans[0]: where tokens begin */
    uint32_t *kids;      /* children of all fans, by byte */
    int32_t *order;      /* tokens in the order of their nodes */
    uint32_t first[257]; /* the node where tokens begin whose first byte is no less */
} di_trie;

/* Characters by their first byte, so that those that patterns often tell apart are apart. */
enum {
    DI_CLASS_NONE = 63, /* no character begins with it */
    /* White space and ends of lines beyond ASCII, whatever they begin with: what \s and . tell
     * apart from others. */
    DI_CLASS_APART = 58,
    DI_NUM_APART = 20,
    DI_NUM_CLASS_SETS = 64 + 12,
};
extern const uint16_t di_characters_apart[DI_NUM_APART];
/* Whether some character is one whose bytes' payload begins with `code` and has `more` bytes. */
bool di_character_apart(uint32_t code, int more);
int di_character_class(uint8_t first);

/* The bits of a character that are in its first byte, of several. */
uint32_t di_character_payload(uint8_t first);

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
    bool settled;   /* it has been found that some token behind it is still open */
    uint8_t spaces; /* of a spaced set: the white space that the bytes up to it begin with */
    uint32_t tag;
} di_token_point;

/* Which tokens a term allows whatever the stack. */
typedef struct di_token_set {
    uint32_t term;         /* a di_term */
    const uint32_t *plain; /* of the vocabulary: what the set was begun with, NULL = nothing */
    bool spaced;           /* without the vocabulary's `spaces`, which are added for each use */
    di_kept_mask *tokens;
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

typedef struct di_string_marks di_string_marks; /* string_set.h */

typedef struct di_vocab {
    int32_t num_bits;  /* width of a mask: the logits' */
    int32_t num_words; /* ceil(num_bits / 32) */
    di_trie tries[DI_NUM_TRIES];
    int32_t *same; /* [num_bits]: the next token of the same bytes, -1 = none; NULL if no two are */
    uint32_t *plain[DI_VOCAB_PLAIN_CHARS + 1];
    int max_bytes; /* of the longest token in the trie */
    /* Tokens of JSON's white space alone that have more of it than any other token begins with;
     * most first. */
    struct di_vocab_space {
        int32_t token;
        uint32_t count;
        uint64_t bytes; /* as a set: all are below 64 */
    } * spaces;
    int32_t num_spaces;
    uint32_t mixed_spaces; /* that a token begins with which has something else */
    int32_t *long_ids; /* [num_long]: of more than DI_VOCAB_LONG bytes in the trie, longest first */
    int32_t num_long;
    uint8_t class_of[256];                  /* di_character_class */
    uint64_t class_bytes[64][4];            /* first bytes of each class, as a set */
    uint64_t class_starts[4];               /* bytes of another class than the one before */
    uint64_t class_sets[DI_NUM_CLASS_SETS]; /* large ones first: they make up many others */
    /* Masks of the tokens that have a character of these classes (of DI_CLASS_NONE: that are not
     * characters, of which the last may lack bytes, or no tokens at all). NULL: none has. */
    uint32_t *has[DI_NUM_CLASS_SETS];
    uint32_t *longer[DI_VOCAB_PLAIN_CHARS + 1]; /* of more than so many characters */
    int32_t *stop_ids;
    int num_stop;
    di_vocab_token *tokens; /* [num_bits], the bytes are copies; size 0 where no mask may allow */
    char *text;
    di_token_set *strings; /* of terms.h's JSON_STRING, which nearly every grammar meets */
    di_string_marks *marks;
    const uint32_t *like; /* its tokens: what masks are kept by their difference from; or NULL */
} di_vocab;

/* tokens: [num_tokens], num_tokens <= num_bits; ids from num_tokens on are never allowed. Stop ids
 * are outside the grammar: allowed exactly where it may end, whatever their bytes. */
di_vocab *di_vocab_create(const di_vocab_token *tokens, int32_t num_tokens, int32_t num_bits,
                          const int32_t *stop_ids, int num_stop, di_error *err);
void di_vocab_destroy(di_vocab *v); /* NULL is allowed */

/* JSON's white space, all below 64. */
#define DI_VOCAB_SPACES (1ull << ' ' | 1ull << '\t' | 1ull << '\n' | 1ull << '\r')
static inline uint32_t di_leading_spaces(const char *bytes, size_t size) {
    uint32_t count = 0;
    while (count < size && (uint8_t)bytes[count] < 64 &&
           DI_VOCAB_SPACES >> (uint8_t)bytes[count] & 1) {
        count++;
    }
    return count;
}

static inline unsigned di_bits64(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full;
    return (unsigned)(x * 0x0101010101010101ull >> 56);
}

/* The child of a fan by its edge's byte, which is one of fan->bytes. */
static inline uint32_t di_trie_child(const di_trie *t, const di_trie_fan *f, unsigned byte) {
    uint64_t below = f->bytes[byte / 64] & ((1ull << byte % 64) - 1);
    return t->kids[f->kids + f->before[byte / 64] + di_bits64(below)];
}

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
size_t di_token_set_bytes(const di_token_set *set);

bool di_vocab_is_stop(const di_vocab *v, int32_t id);

#endif
