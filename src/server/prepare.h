/* Steps from a body to a request on the engine that more than one endpoint takes (api_chat.c). */
#ifndef DI_SERVER_PREPARE_H
#define DI_SERVER_PREPARE_H

#include "server/exchange.h"
#include "server/fields.h"

/* Reads and checks the body into the pool. */
bool di_prepare_body(di_exchange *x, di_pool *pool, di_field_set set, di_value *body,
                     di_error *err);

/* Is the model served, and may the key use it? */
bool di_prepare_model(di_exchange *x, di_str model, di_error *err);

/* A body of one of the recipe's protocols, and the ids of its prompt. *r is freed by the caller,
 * whatever came out. */
bool di_prepare_conversation(di_exchange *x, di_protocol protocol, di_field_set set, di_request *r,
                             di_ids *ids, di_error *err);

/* What the answer must be, for the engine; its text lies in the request's pool. */
bool di_prepare_constraint(di_request *r, di_request_params *p, di_error *err);

/* previous_response_id: puts what was said before in front of the body's input. */
bool di_stored_spread(di_exchange *x, di_pool *pool, di_value *body, di_error *err);

/* Appends the items of a response's input if it is to be stored, else nothing. */
bool di_stored_input(const di_exchange *x, di_request *r, di_buffer *out, di_error *err);

/* background: does the request run without a connection? Not without a store to keep it in. */
bool di_background_wanted(const di_exchange *x, const di_generation *g, bool *wanted,
                          di_error *err);

/* Takes a place among those that do, and the body's part of the memory for bodies with it. */
bool di_background_enter(di_exchange *x, di_generation *g, di_error *err);

/* stream_options: usage in a chunk of its own behind the others, and in every chunk. */
bool di_prepare_usage(const di_value *body, bool *apart, bool *always, di_error *err);

/* The key's priority and its part of the prefix cache. */
void di_prepare_tenant(const di_exchange *x, const di_value *body, di_request_params *p,
                       char salt[DI_KEY_CACHE_SALT_BYTES]);

/* Reserves tokens of the key for so many answers of at most *max_tokens each, which may become
 * fewer if it was not the client who named it (limited). */
bool di_prepare_quota(di_exchange *x, int64_t input_tokens, int answers, bool limited,
                      int64_t *max_tokens, di_error *err);

/* Hands the generation, with the exchange's key and ticket, to the engine. Takes it: on failure it
 * is released. */
bool di_prepare_submit(di_exchange *x, di_generation *g, const di_ids *prompts,
                       const di_request_params *p, di_error *err);

#endif
