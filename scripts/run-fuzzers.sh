#!/usr/bin/env bash
# Runs each libFuzzer program for a while; any finding fails the run and its input is kept.
# Called by `make fuzz-run` from the repository's root: scripts/run-fuzzers.sh SECONDS PROGRAM...
#
# For a program .../fuzz_NAME: seeds come from tests/fuzz/seeds/NAME/, the corpus grows in
# build/fuzz/corpus/NAME/, inputs that crash, hang or eat memory land in
# build/fuzz/artifacts/NAME/. To see one again: PROGRAM build/fuzz/artifacts/NAME/FILE
set -uo pipefail

if [[ ! ${1-} =~ ^[0-9]+$ ]]; then
    echo "usage: ${0##*/} SECONDS PROGRAM..." >&2
    exit 2
fi
seconds=$1
shift
[ $# -gt 0 ] || { echo 'run-fuzzers: no fuzzer to run' >&2; exit 1; }

export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}

failed=()
for program in "$@"; do
    name=${program##*/fuzz_}
    seeds=tests/fuzz/seeds/$name
    corpus=build/fuzz/corpus/$name
    artifacts=build/fuzz/artifacts/$name
    log=build/fuzz/$name.log
    mkdir -p "$corpus" "$artifacts"
    inputs=("$corpus")
    [ -d "$seeds" ] && inputs+=("$seeds")
    options=()
    [ -f "tests/fuzz/$name.dict" ] && options+=(-dict="tests/fuzz/$name.dict")

    if "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
        -artifact_prefix="$artifacts/" -print_final_stats=1 "${options[@]}" "${inputs[@]}" \
        >"$log" 2>&1 </dev/null; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        echo "ok    $name: ${runs:-?} inputs in $seconds s, corpus of $(find "$corpus" -type f | wc -l)"
    else
        failed+=("$name")
        echo "FAIL  $name: the end of $log:"
        tail -n 60 "$log" | sed 's/^/    /'
        echo "      inputs kept in $artifacts/"
    fi
done

echo "$(($# - ${#failed[@]})) fuzzers without a finding, ${#failed[@]} with"
[ ${#failed[@]} -eq 0 ]
