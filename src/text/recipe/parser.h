/* Reads what the model writes: reasoning, answer, JSON, calls of tools, stop texts.
 *
 * A state machine over bytes. Whatever could still become a tag, a fence or a stop text is held
 * back; the result does not depend on where the text was cut. Pieces never reach over the border of
 * two texts that were pushed, so that what belongs to a text (its log-probabilities) can go with
 * its pieces.
 *
 * Two modes. The recipe's own copies names of parameters and raw values as they come, ends a value
 * at any closing tag, repeats what the model repeats, and in JSON mode makes a space of each piece
 * that it drops. With `repair` arguments are always JSON: names are escaped, values end at the
 * parameter's closing tag only, raw values that are no JSON become strings, repeated parameters are
 * left out, a call that the model left open is closed, and what JSON mode drops is one space
 * however it was cut. */
#ifndef DI_TEXT_RECIPE_PARSER_H
#define DI_TEXT_RECIPE_PARSER_H

#include "base/buffer.h"
#include "text/recipe/request.h"

typedef enum di_piece_kind {
    DI_PIECE_REASONING,
    DI_PIECE_CONTENT,
    DI_PIECE_CALL,      /* a call begins; text is the tool's name */
    DI_PIECE_ARGUMENTS, /* JSON of the arguments, bit by bit */
    DI_PIECE_VALUE,     /* the same, characters of a text: raw is what they stand for */
    DI_PIECE_QUOTE,     /* the same, a quote around such a text */
} di_piece_kind;

typedef struct di_piece {
    di_piece_kind kind;
    di_str text;
    di_str raw;     /* of DI_PIECE_VALUE */
    size_t in_text; /* the number that was pushed with the text that it is from */
} di_piece;

/* Where a text comes from. What a control token spells is a tag only if it is that token, and stop
 * texts are looked for in plain tokens only; of mere text nobody knows, so it may be either. */
typedef enum di_text_source {
    DI_SOURCE_TEXT,
    DI_SOURCE_PLAIN,   /* tokens of the vocabulary */
    DI_SOURCE_CONTROL, /* an added token */
} di_text_source;

typedef bool (*di_piece_fn)(void *context, const di_piece *piece, di_error *err);

typedef struct di_parser di_parser;

/* `how` must outlive the parser. NULL for want of memory. */
di_parser *di_parser_create(const di_parsing *how, di_piece_fn take, void *context, di_error *err);

/* Text must be valid UTF-8 in itself. Once a stop text was found, nothing more is taken. */
bool di_parser_push(di_parser *p, const char *text, size_t size, di_text_source source,
                    size_t in_text, di_error *err);

/* The end: what was held back comes out as what it then is. complete: the model stopped by itself,
 * so that an open call may be closed. */
bool di_parser_finish(di_parser *p, bool complete, di_error *err);

/* The stop text that was found, -1: none. */
int di_parser_stop(const di_parser *p);

/* In how many places the text was not what the format asks for and has been mended or left out: a
 * `</think>` too many, calls that begin inside the reasoning, text around the JSON, and what repair
 * mode does. */
unsigned di_parser_repairs(const di_parser *p);

void di_parser_destroy(di_parser *p); /* NULL is allowed */

#endif
