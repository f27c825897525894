#!/usr/bin/env bash
# The demo model end to end, by the program alone: load to first token, prompt and answer speed.
# Each number is the median of several runs, each a fresh process with a warm file cache. There is
# no ceiling beside them: 23 MB of weights live in the processor's caches; see bench/ops for those.
set -euo pipefail

program=${BUILD:-build/release}/deepinfer
runs=7

median() {
    sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# Times of `runs` runs of the program, seconds.
times() {
    local start now
    for ((i = 0; i < runs; i++)); do
        start=${EPOCHREALTIME/[^0-9]/}
        "$program" run -m models/demo -q "$@" >/dev/null </dev/null
        now=${EPOCHREALTIME/[^0-9]/}
        echo "$((now - start))e-6"
    done
}

# The statistics line of each of `runs` runs.
statistics() {
    for ((i = 0; i < runs; i++)); do
        "$program" run -m models/demo "$@" 2>&1 >/dev/null </dev/null
    done
}

# "prompt" or "answer" tokens/s of such lines.
rates() {
    sed -n "s|.*$1: [0-9]* tokens, \([0-9.]*\) tokens/s.*|\1|p"
}

printf 'load to first token    %6.3f s (goal: below 0.3)\n' \
    "$(times -p 'Hello!' --temperature 0 -n 1 | median)"

passage=
for ((i = 0; i < 40; i++)); do
    passage+='The old house stood alone upon the hill, and no one had lived in it for many years. '
done
lines=$(statistics -p "Continue this passage: $passage" --temperature 0 -n 1)
printf 'prompt of %4d tokens %8.0f tokens/s\n' \
    "$(sed -n '1s/.*prompt: \([0-9]*\) .*/\1/p' <<<"$lines")" "$(rates prompt <<<"$lines" | median)"

lines=$(statistics -p 'Tell me a story about a ghost.' --seed 1 --ignore-eos -n 400)
printf 'answer of %4d tokens %8.0f tokens/s\n' 400 "$(rates answer <<<"$lines" | median)"
sed -n '$s/.*\(peak memory: .*\)\]/\1/p' <<<"$lines"
