/* The table of commands: see commands.h. */
#include "cli/commands.h"

#include <string.h>

#include "base/suggest.h"

const di_command di_command_table[] = {
    {
        .bit = IN_RUN,
        .name = "run",
        .arguments = "",
        .summary = "ask a question, or chat",
        .details =
            "Answers the question given by --prompt or on standard input, and ends; the answer "
            "goes to standard output, progress and a line of statistics to standard error. "
            "With neither, on a terminal, it is a chat that keeps its history: /help there "
            "lists what can be typed, Ctrl-C stops an answer, Ctrl-D leaves.\n"
            "Special tokens written out in the question are plain text to the model. Control "
            "characters in an answer are replaced when standard output is a terminal.",
        .example = "deepinfer run -m models/demo -p 'Who wrote Dracula?' --temperature 0",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_run,
    },
    {
        .bit = IN_GENERATE,
        .name = "generate",
        .arguments = "",
        .summary = "answer a file of requests",
        .details =
            "Reads one JSON object a line: {\"prompt\": TEXT}, {\"prompt_token_ids\": [ID, ...]} "
            "or {\"messages\": [...]}, with any of the parameters below. A prompt's text is taken "
            "as it is, special tokens in it recognised, behind a begin-of-sentence token; messages "
            "are laid out as the model was taught. Fields that a line leaves out come from the "
            "options here.\n"
            "Parameters: temperature, top_p, top_k, min_p, seed, n, max_tokens, min_tokens, "
            "ignore_eos, stop, stop_token_ids, include_stop, bad_words, repetition_penalty, "
            "presence_penalty, frequency_penalty, logit_bias, allowed_token_ids, "
            "golden_token_ids, logprobs, top_logprobs, prompt_logprobs, logprobs_mode, echo, "
            "skip_special_tokens, priority, deadline, no_prefix_cache, cache_salt, pin_prompt; for "
            "structured output one of response_format, json_schema, regex, ebnf and so_args "
            "(docs/grammar.md); and, beside messages, thinking and reasoning_effort. Names that "
            "OpenAI, vLLM and SGLang have for the same are understood.\n"
            "Many requests run at once (--max-num-seqs); none changes another's answer, and the "
            "lines of output keep the order of the input, whose length does not matter: twice as "
            "many requests as run are held in memory. Each line is {\"index\", \"token_ids\", "
            "\"text\", \"finish_reason\", \"usage\"}, with \"seed\" where it was drawn, "
            "\"logprobs\" "
            "and \"prompt_logprobs\" where asked for, and \"stop_reason\" where stop or "
            "stop_token_ids were given; for n > 1 the answers are in \"outputs\". A line that "
            "could "
            "not be answered gives {\"index\", \"error\"}; then the exit status is 1, but all "
            "other "
            "lines have their answers. token_ids holds the end-of-sentence token where one ended "
            "the answer, text does not.\n"
            "With --output FILE the answers grow in FILE.partial, which is renamed to FILE when "
            "all are there; --resume goes on where an interrupted run has stopped.",
        .example = "deepinfer generate -m models/demo -i questions.jsonl -o answers.jsonl",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_generate,
    },
    {
        .bit = IN_SERVE,
        .name = "serve",
        .arguments = "",
        .summary = "serve the model over HTTP",
        .details =
            "Answers OpenAI's /v1/chat/completions, /v1/completions and /v1/responses and "
            "Anthropic's /v1/messages, streamed or whole, for clients made for those; "
            "/v1/models, /tokenize, /detokenize, /health, /metrics and /version beside them. "
            "docs/serving.md has examples of all.\n"
            "It listens on the loopback unless --host says otherwise. Then it needs keys: "
            "--api-key-file; docs/serving.md shows how to make one. --tls-cert and --tls-key bring "
            "TLS, or a proxy in front of it.\n"
            "SIGTERM and Ctrl-C let answers under way end, refuse new ones, and then end the "
            "program; a second one cuts them off. SIGHUP reads the keys and the certificate again "
            "and reopens the "
            "access log.\n"
            "Try it:\n"
            "    curl http://127.0.0.1:8000/v1/chat/completions \\\n"
            "      -H 'Content-Type: application/json' -d '{\n"
            "        \"model\": \"DeepSeek-V4.1-Flash\", \"thinking\": {\"type\": \"disabled\"},\n"
            "        \"messages\": [{\"role\": \"user\", \"content\": \"Who wrote Dracula?\"}]}'",
        .example = "deepinfer serve -m models/demo --port 8000",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_serve,
    },
    {
        .bit = IN_LOGITS,
        .name = "logits",
        .arguments = "",
        .summary = "write the logits of every position of a prompt",
        .details = "Writes a safetensors file with one tensor, \"logits\", F32 [positions, "
                   "vocabulary].",
        .example = "deepinfer logits -m models/demo --ids 0,17,42 -o logits.safetensors",
        .required = {DI_OPT_MODEL, DI_OPT_IDS},
        .num_required = 2,
        .run = di_command_logits,
    },
    {
        .bit = IN_REPLAY_CHECK,
        .name = "replay-check",
        .arguments = "",
        .summary = "show that both forms of bounded replay give the same",
        .details =
            "Reads requests as generate does ({\"prompt\"}, {\"prompt_token_ids\"} or "
            "{\"messages\"} a line; parameters are not looked at), computes each with "
            "--replay-mode compact and with mask, and compares the logits of the kept tokens and "
            "of --max-tokens likeliest tokens behind them, bit for bit. A line each says how many "
            "tokens were read and kept, whether all was equal, and how far the last row is from "
            "the exact one (largest difference of two logits, and whether the likeliest token is "
            "the same). The exit status is 1 if anything differed.",
        .example = "deepinfer replay-check -m models/demo -i prompts.jsonl",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_replay_check,
    },
    {
        .bit = IN_CALIBRATE,
        .name = "calibrate",
        .arguments = "",
        .summary = "fit the confidence in drafts to a model and prompts",
        .details =
            "Answers requests, read as generate reads them, with all drafts verified, and fits a "
            "temperature for each place in a block so that the draft model's confidence is right "
            "on average. Prints for each place how many drafts were tested (all before them having "
            "been accepted), the share accepted, the confidence and its error before and behind, "
            "and writes the temperatures to draft_calibration.json in the model's folder, where "
            "every engine looks for them. Confidence decides how many drafts are worth verifying; "
            "answers do not depend on it.",
        .example = "deepinfer calibrate -m models/demo -i prompts.jsonl --max-tokens 200",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_calibrate,
    },
    {
        .bit = IN_TOKENIZE,
        .name = "tokenize",
        .arguments = "",
        .summary = "text to token ids",
        .details = "Reads a JSON string a line from standard input and writes a JSON array of "
                   "token ids a line. Nothing is added in front or behind.",
        .example = "echo '\"Who wrote Dracula?\"' | deepinfer tokenize -m models/demo",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_tokenize,
    },
    {
        .bit = IN_DETOKENIZE,
        .name = "detokenize",
        .arguments = "",
        .summary = "token ids to text",
        .details = "Reads a JSON array of token ids a line from standard input and writes a JSON "
                   "string a line. Bytes that are no UTF-8 become U+FFFD.",
        .example = "echo '[1, 2]' | deepinfer detokenize -m models/demo",
        .required = {DI_OPT_MODEL},
        .num_required = 1,
        .run = di_command_detokenize,
    },
    {
        .bit = IN_RECIPE,
        .name = "recipe",
        .arguments = "",
        .summary = "API requests to prompts, and what a model writes to API answers",
        .details =
            "Reads one case a line: {\"name\", \"kind\", \"input\"}, and writes {\"name\", "
            "\"output\"} or {\"name\", \"error\"}. Kinds: render (a request to its prompt, ids and "
            "settings), parse (a request and pieces of an answer to events and response), splits "
            "(the same for other cuts), roundtrip (an answer sent back), max_tokens, image_tokens "
            "and image_size. docs/recipe.md describes them; protocols are chat, messages and "
            "responses.\n"
            "Needs --model or --tokenizer, of which only the tokenizer is read.",
        .example = "deepinfer recipe -m models/demo < cases.jsonl",
        .run = di_command_recipe,
    },
    {
        .bit = IN_INSPECT,
        .name = "inspect",
        .arguments = "DIR",
        .min_arguments = 1,
        .max_arguments = 1,
        .summary = "show what a model folder holds, and every fault in it",
        .details =
            "Prints the configuration, the tensors, sizes by part of the model and the "
            "memory needed, reading headers and small tensors only unless --check is given. With "
            "faults the exit status is 1.",
        .example = "deepinfer inspect models/demo",
        .run = di_command_inspect,
    },
    {
        .bit = IN_GRAMMAR,
        .name = "grammar",
        .arguments = "",
        .summary = "compile schemas and grammars, and try texts on them",
        .details =
            "Reads one JSON object a line: {\"name\", \"schema\", \"tests\": [{\"data\" or "
            "\"text\", \"valid\"}, ...]}. A regex, a grammar, or a schema that is written out is a "
            "string. A test's data is written compactly and split into tokens, and each token is "
            "looked up in the mask before it is taken, as the engine does.\n"
            "Writes a line for each: {\"name\", \"status\": \"ok\", \"unsupported\" or "
            "\"error\", \"reason\", \"compile_us\", \"mask_us\", \"bytes\", \"results\": [true "
            "or false, ...]}.",
        .example = "deepinfer grammar --type json_schema -m models/demo --bench < schemas.jsonl",
        .required = {DI_OPT_TYPE},
        .num_required = 1,
        .run = di_command_grammar,
    },
    {
        .bit = IN_KEY,
        .name = "key",
        .arguments = "ACTION [ID]",
        .min_arguments = 1,
        .max_arguments = 2,
        .summary = "make, list and check the API keys of a server",
        .details =
            "ACTION is one of these. 'new ID' draws a key, adds its record with the limits given "
            "here to the file (which "
            "is made if it is not there, readable to its owner alone), and prints the key. That is "
            "the only time it is seen: the file keeps a salted hash. 'renew ID' draws another "
            "secret "
            "for a record; the old ones go on until --drop-old. 'list' prints the records. "
            "'check' reads the file and names its faults; with --stdin also a key, and says whose "
            "it is and whether it would be let in.\n"
            "A running server reads the file again at SIGHUP. To change limits or to take a key "
            "away, edit its line; docs/serving-operations.md describes the members.",
        .example = "deepinfer key new alice --api-key-file keys.jsonl --tokens-per-day 1000000",
        .required = {DI_OPT_API_KEY_FILE},
        .num_required = 1,
        .run = di_command_key,
    },
    {
        .bit = IN_VERSION,
        .name = "version",
        .arguments = "",
        .summary = "show version, build, libraries and processor features",
        .details = "",
        .example = "deepinfer version",
        .run = di_command_version,
    },
    {
        .bit = IN_HELP,
        .name = "help",
        .arguments = "[COMMAND]",
        .max_arguments = 1,
        .summary = "explain the commands, or one of them",
        .details = "",
        .example = "deepinfer help run",
        .run = di_command_help,
    },
};

const int di_num_commands = sizeof di_command_table / sizeof *di_command_table;

const di_command *di_command_find(const char *name) {
    for (int i = 0; i < di_num_commands; i++) {
        if (strcmp(di_command_table[i].name, name) == 0) {
            return &di_command_table[i];
        }
    }
    return NULL;
}

const char *di_command_suggest(const char *name) {
    const char *names[sizeof di_command_table / sizeof *di_command_table];
    for (int i = 0; i < di_num_commands; i++) {
        names[i] = di_command_table[i].name;
    }
    return di_suggest(name, names, (size_t)di_num_commands);
}
