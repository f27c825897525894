/* From the command line to the engine's options and a request's parameters. */
#ifndef DI_CLI_ENGINE_OPTIONS_H
#define DI_CLI_ENGINE_OPTIONS_H

#include "cli/options.h"
#include "deepinfer/deepinfer.h"
#include "engine/parts.h"

/* Opens the engine that the options describe, for so many sequences at once and so
 * many requests under way (0 = any, if --max-queue does not say), with a progress bar.
 * Signals that end the program are only noted from then on. */
di_engine *di_cli_open_engine(const di_options *o, int max_num_seqs, int max_queue, di_error *err);

/* The same, with all drafts verified and the confidence in them as the head gives it; refused if
 * the model has no draft model. */
di_engine *di_cli_open_calibrating(const di_options *o, int max_num_seqs, di_error *err);

/* --max-num-seqs */
int di_cli_max_num_seqs(const di_options *o);

/* Tokens that bounded replay keeps. */
int di_cli_replay_keep(const di_options *o);

/* The parts alone, for steps of up to `chunk` tokens with logits. */
bool di_cli_open_parts(const di_options *o, int chunk, bool replay_by_mask, di_parts *parts,
                       di_error *err);

/* The model's defaults, overridden by what was given. */
void di_cli_params(const di_options *o, const di_engine *engine, di_request_params *params);

/* Effort of reasoning by --think and --effort; 0 = none. */
bool di_cli_effort(const di_options *o, int *effort, di_error *err);

#endif
