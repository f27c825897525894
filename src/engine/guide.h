/* What keeps one answer within its grammar: where the answer stands (free text, the rest of a
 * trigger, the grammar's text), the mask of the tokens that may come next, and the step from one
 * token to the next.
 *
 * A constraint belongs to a request and is read-only once its grammar is there; a guide belongs to
 * one answer and, like the sampler's history, to the device while steps are queued. */
#ifndef DI_ENGINE_GUIDE_H
#define DI_ENGINE_GUIDE_H

#include "deepinfer/deepinfer.h"
#include "engine/grammars.h"

/* Before the grammar begins. */
typedef struct di_trigger {
    int32_t *ids; /* owned; the grammar begins behind these in a row; count 0: at once */
    int *back;    /* [count]: of the longest beginning of ids that ends at each of them */
    int count;
    int32_t bound; /* behind it the rest of ids is the only thing that may come; -1 = none */
    /* -1, or an id that may come only behind a token whose text ends with '<'. */
    int32_t marked;
} di_trigger;

typedef struct di_constraint {
    di_compiled *compiled;
    di_trigger trigger;
    const di_vocab *vocab; /* these two once it has been started */
    di_grammar *grammar;
} di_constraint;

/* Copies the ids. */
bool di_trigger_create(di_trigger *t, const int32_t *ids, size_t count, int32_t bound,
                       int32_t marked, di_error *err);

typedef struct di_guide {
    const di_constraint *constraint;
    di_matcher *matcher;
    bool begun;      /* the grammar has */
    bool bounded;    /* the bound has come */
    bool open;       /* the last token's text ends with '<' */
    int matched;     /* ids of the trigger */
    uint32_t *masks; /* [max_masks, words]: of the next token, of the one behind draft 0, ... */
    int max_masks;
    int num_ready; /* masks that are made; those without a row of bits allow everything */
    bool *masked;  /* [max_masks] */
} di_guide;

/* Once the constraint has been started. max_masks: 1 + the most drafts that are verified. */
bool di_guide_create(di_guide *g, const di_constraint *c, int max_masks, di_error *err);
void di_guide_destroy(di_guide *g); /* of all zero: nothing */

/* Makes the masks for the next token and for those behind each of the drafts, as far as these are
 * allowed; the guide stays where it is. What fails is met again, and told, by di_guide_mask. */
void di_guide_prepare(di_guide *g, const int32_t *drafts, int num_drafts);

/* The mask of output k of a step, the k tokens before it having been pushed since the step began.
 * *mask: the guide's, NULL = everything is allowed. */
bool di_guide_mask(di_guide *g, int k, const uint32_t **mask, di_error *err);

/* Takes the token that was drawn. */
bool di_guide_push(di_guide *g, int32_t token, di_error *err);

/* Where a guide stands, to come back to. */
typedef struct di_guide_place {
    bool begun, bounded, open;
    int matched;
    size_t length;
} di_guide_place;

di_guide_place di_guide_here(const di_guide *g);
void di_guide_return(di_guide *g, di_guide_place place);

#endif
