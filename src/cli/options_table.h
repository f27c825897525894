/* Every option of the program, once. Included wherever a list of options is needed, with
 *
 *   OPTION(id, name, letter, type, low, high, preset, metavar, env, commands, help)
 *
 * defined: `preset` is the default as the documentation shows it ("" = none), `metavar` names the
 * value (for a CHOICE it lists the words), `env` says whether DEEPINFER_NAME sets it too. From this
 * come the parser, --help, the man page, bash completion and docs/options.md.
 *
 * OTHER_NAME(name, id), if defined, gets a second spelling that the command line takes, and
 * ENV_NAME(name, id) what an environment variable is called that is not DEEPINFER_ and its option's
 * name: DeepSeek's engine calls it so. */
#ifndef OTHER_NAME
#define OTHER_NAME(name, id)
#endif
#ifndef ENV_NAME
#define ENV_NAME(name, id)
#endif

/* the model and how it runs */
OPTION(MODEL, "model", 'm', PATH, 0, 0, "", "DIR", true, IN_MODEL,
       "Folder of the model: config.json, tokenizer.json and the safetensors files.")
OPTION(TOKENIZER, "tokenizer", 0, PATH, 0, 0, "", "FILE", false, IN_RECIPE | IN_GRAMMAR,
       "tokenizer.json to use instead of a model's.")
OPTION(SERVER, "server", 0, FLAG, 0, 0, "no", "", false, IN_RECIPE,
       "Read requests and answers as the server does, not as DeepSeek's recipe does to the letter.")
OPTION(BACKEND, "backend", 0, CHOICE, 0, 0, "cpu", "cpu|cuda[:N]|auto|ref", true, IN_ENGINE,
       "What computes: 'cpu' this machine's processor, 'cuda' an NVIDIA card (N counts from 0), "
       "'auto' the first card or else the processor, 'ref' the slow and plain code that both are "
       "tested against. --device is the same option.")
OTHER_NAME("device", BACKEND)
OPTION(THREADS, "threads", 't', INTEGER, 0, 1024, "0", "N", true, IN_ENGINE,
       "Threads that compute; 0 takes one for each core. The results do not depend on it.")
OPTION(MAX_MODEL_LEN, "max-model-len", 0, INTEGER, 0, 2147483647, "0", "N", true, IN_ENGINE,
       "Longest context in tokens, prompt and answer together; 0 is what the model allows, and "
       "more than that is refused.")
OPTION(MAX_NUM_BATCHED_TOKENS, "max-num-batched-tokens", 0, INTEGER, 1, 65536, "512", "N", true,
       IN_STEPS | IN_CALIBRATE,
       "Tokens computed in one step. More is faster up to a point and takes more memory; the "
       "results do not depend on it.")
OPTION(MAX_NUM_SEQS, "max-num-seqs", 0, INTEGER, 1, 4096, "64", "N", true, IN_MANY | IN_CALIBRATE,
       "Answers computed at once. The results do not depend on it.")
OPTION(MAX_MIXED_PREFILL_TOKENS, "max-mixed-prefill-tokens", 0, INTEGER, 0, 65536, "0", "N", true,
       IN_MANY,
       "Prompt tokens in a step in which answers go on: fewer make answers flow more evenly, more "
       "read prompts sooner; 0 is 256.")
OPTION(KV_MEMORY, "kv-memory", 0, BYTES, 1, 0, "a quarter of what is free", "BYTES", true,
       IN_STEPS | IN_CALIBRATE,
       "Memory for the state of sequences, a number such as 4G or 50% of what is free.")
OPTION(GPU_MEMORY, "gpu-memory", 0, BYTES, 1, 0, "92%", "BYTES", true, IN_ENGINE,
       "Memory of the card for weights, work and the state of sequences together, a number such as "
       "100G or 80% of what is free there; --kv-memory is part of it.")
OPTION(HOST_MEMORY, "host-memory", 0, BYTES, 0, 0, "0", "BYTES", true, IN_MANY,
       "Memory for the state of answers that had to give way to others; 0 computes it again.")
OPTION(PREFIX_CACHE, "prefix-cache", 0, FLAG, 0, 0, "yes", "", true, IN_STEPS,
       "Use what was computed for the beginning of an earlier prompt again. The results do not "
       "depend on it.")
OPTION(SYNC, "sync", 0, FLAG, 0, 0, "no", "", true, IN_STEPS,
       "Plan a step only when the one before has been read, for finding faults. The results do not "
       "depend on it.")
OPTION(
    BATCH_INVARIANT, "batch-invariant", 0, FLAG, 0, 0, "yes", "", true, IN_STEPS,
    "Answers do not depend on what else runs, to the last bit. That is always so on a processor; "
    "on a card, without it, prompts are read a little faster.")
OPTION(REPLAY_MODE, "replay-mode", 0, CHOICE, 0, 0, "off", "off|mask|compact", true, IN_STEPS,
       "Bounded replay: of long prompts the second half of the model reads the end only. 'compact' "
       "saves up to half of the work, 'mask' computes the same by brute force; answers differ "
       "slightly from those of 'off'.")
OPTION(REPLAY_KEEP_TOKENS, "replay-keep-tokens", 0, INTEGER, 1, 2147483647, "140", "N", true,
       IN_STEPS | IN_REPLAY_CHECK,
       "With --replay-mode: tokens at the end of a prompt that the whole model reads; at least the "
       "model's window and 6.")
OPTION(NUM_DRAFTS, "num-drafts", 0, INTEGER, 0, 16, "5, or what the model has", "K", true,
       IN_STEPS | IN_CALIBRATE,
       "Tokens that the draft model proposes and a step verifies at once; 0 is off. With "
       "--seed or at temperature 0 the answers are the same, in fewer steps. Without a draft model "
       "(mtp.* tensors) there are none, and asking for some is an error.")
ENV_NAME("DEEPINFER_USE_NEXTN_DECODE", NUM_DRAFTS)
OPTION(SPEC_MODE, "spec-mode", 0, CHOICE, 0, 0, "priced", "off|fixed|priced", true, IN_STEPS,
       "How many drafts a step verifies: 'priced' as many as pay, by what they are likely to be "
       "accepted and what steps are measured to cost; 'fixed' all.")
OPTION(COST_CACHE, "cost-cache", 0, PATH, 0, 0, "", "DIR", true, IN_STEPS,
       "Folder in which measured costs of steps are kept for --spec-mode priced, so that they need "
       "not be measured at each start.")
ENV_NAME("DEEPINFER_DECODE_PERF_CACHE_DIR", COST_CACHE)
OPTION(COST_CACHE_TTL, "cost-cache-ttl", 0, INTEGER, 1, 2147483647, "3600", "SECONDS", true,
       IN_STEPS, "How long costs in --cost-cache are good for.")
ENV_NAME("DEEPINFER_DECODE_PERF_CACHE_TTL_SEC", COST_CACHE_TTL)
OPTION(CONFIDENCE_TEMPERATURE, "confidence-temperature", 0, TEXT, 0, 0,
       "what `deepinfer calibrate` left in the model's folder, else 1", "T[,T...]", true, IN_STEPS,
       "Temperature of the confidence in drafts: one number, or one for each draft.")
ENV_NAME("DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", CONFIDENCE_TEMPERATURE)
OPTION(MAX_LOGPROBS, "max-logprobs", 0, INTEGER, 0, 1000, "20", "N", true, IN_MANY,
       "Most log-probabilities beside each token that a request may ask for.")
OPTION(TRACE, "trace", 0, PATH, 0, 0, "", "FILE", true, IN_STEPS,
       "Write what each step did and when to a Chrome trace (chrome://tracing, Perfetto); whole "
       "also when a signal ends the program.")

/* run: the conversation */
OPTION(PROMPT, "prompt", 'p', TEXT, 0, 0, "", "TEXT", false, IN_RUN,
       "The question. Without it, and with standard input not a terminal, the question is read "
       "from there; on a terminal a chat begins.")
OPTION(SYSTEM, "system", 0, TEXT, 0, 0, "", "TEXT", true, IN_RUN,
       "System message at the head of the conversation.")
OPTION(THINK, "think", 0, FLAG, 0, 0, "no", "", true, IN_DRAW,
       "Let the model reason before it answers a conversation.")
OPTION(EFFORT, "effort", 0, TEXT, 0, 0, "high", "LEVEL", true, IN_DRAW,
       "How thoroughly to reason: low, high, max, or a number from 1 to 100. Switches --think on; "
       "none switches it off.")

/* sampling */
OPTION(TEMPERATURE, "temperature", 0, REAL, 0, 100, "the model's generation_config.json, else 1",
       "T", true, IN_DRAW,
       "0 always takes the likeliest token; larger values make unlikely ones likelier.")
OPTION(TOP_P, "top-p", 0, SHARE, 0, 1, "the model's generation_config.json, else 1", "P", true,
       IN_DRAW, "Draw from the likeliest tokens that together reach this probability; 1 is off.")
OPTION(TOP_K, "top-k", 0, COUNT, 1, 2147483647, "the model's generation_config.json, else -1", "K",
       true, IN_DRAW, "Draw from the K likeliest tokens; -1 is off.")
OPTION(MIN_P, "min-p", 0, REAL, 0, 1, "0", "P", true, IN_DRAW,
       "Leave out tokens less likely than this share of the likeliest one; 0 is off.")
OPTION(SEED, "seed", 0, SEED, 0, 0, "a random one", "N", true, IN_DRAW,
       "Seed of the draws: the same seed, prompt and parameters give the same answer.")
OPTION(MAX_TOKENS, "max-tokens", 'n', INTEGER, 1, 2147483647, "what the context leaves", "N", true,
       IN_DRAW | IN_REPLAY_CHECK, "Most tokens of an answer.")
OPTION(IGNORE_EOS, "ignore-eos", 0, FLAG, 0, 0, "no", "", true, IN_DRAW,
       "Go on after the end-of-sentence token, to --max-tokens.")

OPTION(REPETITION_PENALTY, "repetition-penalty", 0, REAL, 1e-6, 100, "1", "X", true, IN_DRAW,
       "Divide the score of tokens that prompt or answer hold by this; 1 is off.")
OPTION(PRESENCE_PENALTY, "presence-penalty", 0, REAL, -2, 2, "0", "X", true, IN_DRAW,
       "Lower the score of tokens that the answer holds by this; 0 is off.")
OPTION(FREQUENCY_PENALTY, "frequency-penalty", 0, REAL, -2, 2, "0", "X", true, IN_DRAW,
       "The same for each time that the answer holds them; 0 is off.")
OPTION(PRIORITY, "priority", 0, INTEGER, -1000000, 1000000, "0", "N", true, IN_GENERATE | IN_KEY,
       "Of requests that name none; lower ones go first.")

/* files in and out */
OPTION(INPUT, "input", 'i', PATH, 0, 0, "-", "FILE", false,
       IN_GENERATE | IN_REPLAY_CHECK | IN_CALIBRATE,
       "Requests, one JSON object a line; - is standard input.")
OPTION(OUTPUT, "output", 'o', PATH, 0, 0, "-", "FILE", false, IN_GENERATE | IN_LOGITS,
       "Where the results go; - is standard output. A file appears under its name only when it is "
       "whole.")
OPTION(RESUME, "resume", 0, FLAG, 0, 0, "no", "", false, IN_GENERATE,
       "Go on with the FILE.partial that an interrupted run has left, from the first request that "
       "it has no answer to. Input and options must be the same.")
OPTION(IDS, "ids", 0, TEXT, 0, 0, "", "N,N,...", false, IN_LOGITS,
       "Token ids of the prompt, separated by commas.")
OPTION(CHUNK, "chunk", 0, INTEGER, 1, 65536, "512", "N", true, IN_LOGITS | IN_REPLAY_CHECK,
       "Tokens computed at once. The results do not depend on it.")
OPTION(PLAIN, "plain", 0, FLAG, 0, 0, "no", "", false, IN_TOKENIZE,
       "Take the text of special tokens as plain text, as in a user's message.")
OPTION(JSON, "json", 0, FLAG, 0, 0, "no", "", false, IN_INSPECT, "Print one JSON object.")
OPTION(TENSORS, "tensors", 0, FLAG, 0, 0, "no", "", false, IN_INSPECT, "List every tensor.")
OPTION(STATE, "state", 0, FLAG, 0, 0, "no", "", false, IN_INSPECT,
       "Print what is kept of each sequence: kinds, places and bytes.")
OPTION(CHECK, "check", 0, FLAG, 0, 0, "no", "", false, IN_INSPECT,
       "Read every byte of the weights and look for NaN and infinities.")

/* key */
OPTION(API_KEY_FILE, "api-key-file", 0, PATH, 0, 0, "", "FILE", true, IN_KEY | IN_SERVE,
       "Keys that requests must come with, as hashes, with their limits. SIGHUP reads it again.")
OPTION(CONCURRENCY, "concurrency", 0, INTEGER, 1, 1000000, "no limit", "N", false, IN_KEY,
       "Requests of the key under way at once.")
OPTION(REQUESTS_PER_MINUTE, "requests-per-minute", 0, INTEGER, 1, 1000000000, "no limit", "N",
       false, IN_KEY, "Requests of the key in a minute.")
OPTION(INPUT_TOKENS_PER_MINUTE, "input-tokens-per-minute", 0, INTEGER, 1, 1000000000, "no limit",
       "N", false, IN_KEY, "Prompt tokens of the key in a minute.")
OPTION(OUTPUT_TOKENS_PER_MINUTE, "output-tokens-per-minute", 0, INTEGER, 1, 1000000000, "no limit",
       "N", false, IN_KEY, "Tokens generated for the key in a minute.")
OPTION(REQUESTS_PER_DAY, "requests-per-day", 0, INTEGER, 1, 9007199254740992, "no limit", "N",
       false, IN_KEY, "Requests of the key in a day (UTC).")
OPTION(TOKENS_PER_DAY, "tokens-per-day", 0, INTEGER, 1, 9007199254740992, "no limit", "N", false,
       IN_KEY, "Tokens of the key in a day (UTC), prompts and answers together.")
OPTION(MODELS, "models", 0, TEXT, 0, 0, "all", "NAME,...", false, IN_KEY,
       "Models that the key may name, separated by commas.")
OPTION(
    CACHE, "cache", 0, CHOICE, 0, 0, "own", "own|shared", false, IN_KEY,
    "Whether prefixes of its prompts are used again for the key's own requests only, or for those "
    "of all keys that are 'shared'; then the time of an answer can tell what others have asked.")
OPTION(ADMIN, "admin", 0, FLAG, 0, 0, "no", "", false, IN_KEY,
       "The key may read what concerns all: /metrics.")
OPTION(EXPIRES, "expires", 0, TEXT, 0, 0, "never", "DATE", false, IN_KEY,
       "When the key ends: 2027-01-31, or 2027-01-31T12:00:00Z.")
OPTION(NOTE, "note", 0, TEXT, 0, 0, "", "TEXT", false, IN_KEY, "A remark in the file.")
OPTION(DROP_OLD, "drop-old", 0, FLAG, 0, 0, "no", "", false, IN_KEY,
       "renew: the key's earlier secrets are not let in any more.")
OPTION(KEY_STDIN, "stdin", 0, FLAG, 0, 0, "no", "", false, IN_KEY,
       "check: read a whole key from standard input and tell whether it would be let in.")

/* serve */
OPTION(HOST, "host", 0, TEXT, 0, 0, "127.0.0.1", "ADDRESS", true, IN_SERVE,
       "Where to listen. Elsewhere than on the loopback it needs --api-key-file, or "
       "--insecure-no-auth.")
OPTION(PORT, "port", 0, INTEGER, 0, 65535, "8000", "N", true, IN_SERVE,
       "The port to listen at; 0 takes one that is free and prints it.")
OPTION(SERVED_MODEL_NAME, "served-model-name", 0, TEXT, 0, 0, "DeepSeek-V4.1-Flash", "NAME,...",
       true, IN_SERVE,
       "Names by which requests may call the model, separated by commas; the first is the one that "
       "is told.")
OPTION(
    QUOTA_JOURNAL, "quota-journal", 0, PATH, 0, 0, "", "FILE", true, IN_SERVE | IN_KEY,
    "Where the quotas of a day are counted, so that they outlive the process. key list shows what "
    "has been used.")
OPTION(INSECURE_NO_AUTH, "insecure-no-auth", 0, FLAG, 0, 0, "no", "", true, IN_SERVE,
       "Let everybody who reaches the address use the server, without keys.")
OPTION(TLS_CERT, "tls-cert", 0, PATH, 0, 0, "", "FILE", true, IN_SERVE,
       "Serve HTTPS with this certificate (PEM, the chain behind it). SIGHUP reads it again.")
OPTION(TLS_KEY, "tls-key", 0, PATH, 0, 0, "", "FILE", true, IN_SERVE,
       "The certificate's private key (PEM), which others must not be able to read.")
OPTION(MAX_QUEUE, "max-queue", 0, INTEGER, 0, 1000000, "1024", "N", true, IN_SERVE,
       "Requests under way at once, waiting ones included; more get 503. 0 is no limit.")
OPTION(MAX_CONNECTIONS, "max-connections", 0, INTEGER, 1, 1000000, "4096", "N", true, IN_SERVE,
       "Connections open at once.")
OPTION(MAX_BODY, "max-body", 0, BYTES, 0, 0, "32M", "BYTES", true, IN_SERVE,
       "Longest body of a request.")
OPTION(MAX_BODIES, "max-bodies", 0, BYTES, 0, 0, "256M", "BYTES", true, IN_SERVE,
       "Bodies of all requests under way together; beyond that, 503.")
OPTION(MAX_HEADER, "max-header", 0, BYTES, 0, 0, "32K", "BYTES", true, IN_SERVE,
       "Longest header of a request; also the memory that a connection takes.")
OPTION(MAX_STREAM, "max-stream", 0, BYTES, 0, 0, "1M", "BYTES", true, IN_SERVE,
       "Most of an answer that may wait for a client that reads slowly; then it is cut off.")
OPTION(HTTP_THREADS, "http-threads", 0, INTEGER, 1, 64, "1", "N", true, IN_SERVE,
       "Threads that read requests and write answers.")
OPTION(
    READER_THREADS, "reader-threads", 0, INTEGER, 0, 64, "2", "N", true, IN_SERVE,
    "Threads that read and tokenise requests of 8 KiB and more, so that those wait for each other "
    "and nobody else does; 0 leaves them to --http-threads.")
OPTION(RESPONSE_STORE, "response-store", 0, BYTES, 0, 0, "0", "BYTES", true, IN_SERVE,
       "Memory for responses that clients may come back to by id (/v1/responses); 0 keeps none.")
OPTION(RESPONSE_STORE_PER_KEY, "response-store-per-key", 0, INTEGER, 1, 1000000, "1000", "N", true,
       IN_SERVE, "Most stored responses of one API key; the oldest give way.")
OPTION(MAX_BACKGROUND, "max-background", 0, INTEGER, 0, 1000000, "256", "N", true, IN_SERVE,
       "Responses at once that run without a connection (background: true, with "
       "--response-store); more get 503.")
OPTION(RESPONSE_STORE_AGE, "response-store-age", 0, REAL, 0, 31536000, "86400", "SECONDS", true,
       IN_SERVE, "How long responses are stored at most.")
OPTION(HEADER_TIMEOUT, "header-timeout", 0, REAL, 0, 86400, "10", "SECONDS", true, IN_SERVE,
       "For a request's header to come in whole; 0 is for ever.")
OPTION(BODY_TIMEOUT, "body-timeout", 0, REAL, 0, 86400, "60", "SECONDS", true, IN_SERVE,
       "For its body; 0 is for ever.")
OPTION(IDLE_TIMEOUT, "idle-timeout", 0, REAL, 0, 86400, "75", "SECONDS", true, IN_SERVE,
       "For a connection on which nothing moves; 0 is for ever.")
OPTION(SSE_KEEPALIVE, "sse-keepalive", 0, REAL, 0, 86400, "15", "SECONDS", true, IN_SERVE,
       "Without an event in a stream, a comment is sent; 0 is never.")
OPTION(DRAIN_TIMEOUT, "drain-timeout", 0, REAL, 0, 86400, "300", "SECONDS", true, IN_SERVE,
       "After SIGTERM, for answers under way to end by themselves; then they are cut off.")
OPTION(THINKING_DEFAULT, "thinking-default", 0, FLAG, 0, 0, "yes", "", true, IN_SERVE,
       "Think where a request does not say.")
OPTION(ACCESS_LOG, "access-log", 0, PATH, 0, 0, "-", "FILE", true, IN_SERVE,
       "A JSON object a line for each request, without prompts; - is standard output, "
       "'none' is none. SIGHUP opens it again.")

/* grammar */
OPTION(TYPE, "type", 0, CHOICE, 0, 0, "", "json_schema|regex|ebnf|tools|gbnf|tools_or_content",
       false, IN_GRAMMAR, "What the schemas are.")
OPTION(ANY_ORDER, "any-order", 0, FLAG, 0, 0, "no", "", false, IN_GRAMMAR,
       "JSON: properties may come in any order, not only in the schema's.")
OPTION(STRICT, "strict", 0, FLAG, 0, 0, "no", "", false, IN_GRAMMAR,
       "JSON: only what 'properties' and 'prefixItems' name is allowed, unless the schema says "
       "otherwise.")
OPTION(LENIENT, "lenient", 0, FLAG, 0, 0, "no", "", false, IN_GRAMMAR,
       "JSON: leave out what cannot be enforced instead of refusing the schema; the reason then "
       "says what.")
OPTION(MAX_WHITESPACE, "max-whitespace", 0, INTEGER, 0, 1000000, "32", "N", false, IN_GRAMMAR,
       "JSON: white space between two tokens of the text, in characters.")
OPTION(BENCH, "bench", 0, FLAG, 0, 0, "no", "", false, IN_GRAMMAR,
       "Print a last line with the times of all compilations and masks.")

/* what is shown */
OPTION(QUIET, "quiet", 'q', FLAG, 0, 0, "no", "", true,
       IN_STEPS | IN_LOGITS | IN_REPLAY_CHECK | IN_CALIBRATE,
       "No progress bars and no statistics on standard error.")
OPTION(STATS, "stats", 0, FLAG, 0, 0, "no", "", true, IN_GENERATE,
       "Show each second what the engine's steps do, and a summary at the end, on standard error.")
OPTION(SPEC_STATS, "spec-stats", 0, FLAG, 0, 0, "no", "", true, IN_ANSWER,
       "At the end, show on standard error how drafts fared: by place how many were made, verified "
       "and accepted, observed against expected acceptance, how many were verified at once, and "
       "predicted against measured times of steps.")
OPTION(MAN, "man", 0, FLAG, 0, 0, "no", "", false, IN_HELP, "Print the manual page (troff).")
OPTION(BASH, "bash", 0, FLAG, 0, 0, "no", "", false, IN_HELP,
       "Print completion for bash: source <(deepinfer help --bash)")
OPTION(MARKDOWN, "markdown", 0, FLAG, 0, 0, "no", "", false, IN_HELP,
       "Print the page of all options (docs/options.md).")

#undef OTHER_NAME
#undef ENV_NAME
