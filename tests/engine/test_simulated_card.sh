#!/usr/bin/env bash
# Tests that a card must pass (scripts/device-check.sh), on the simulated one (tests/simcard): steps
# queued whole and recorded, drafts, grammars, random weather. Needs the programs that make test-run
# builds.
set -uo pipefail
cd "$(dirname "$0")/../.."

build=${BUILD:-build/release}
export DI_CUDA_LIBRARY=$PWD/$build/tests/simcard/libsimcard.so TEST_BACKEND=cuda DI_CUDA_GUARD=1
export CMOCKA_MESSAGE_OUTPUT=TAP TESTDATA=${TESTDATA:-build/testdata} REQUESTS=${REQUESTS:-300}
failed=0

run() {
    local program status=0
    for program in "$@"; do
        echo "# $program"
        "$build/tests/$program" || status=1
    done
    return $status
}

# The longest beside each other: none asks how long anything takes.
beside=$(mktemp)
trap 'rm -f "$beside"' EXIT
run engine/test_structured_events engine/test_random_events >"$beside" 2>&1 &
run model/test_queue model/test_drafts engine/test_forced || failed=1
wait $! || failed=1
cat "$beside"
run engine/test_requests engine/test_spec || failed=1

# What is told of a card's modes.
stats() {
    echo '{"prompt_token_ids": [5, 6], "max_tokens": 2}' |
        "$build/deepinfer" generate -m models/demo --backend cuda --stats "$@" 2>&1
}
if stats | grep '^batch invariance: on (cuda)' >&2 &&
    stats --no-batch-invariant | grep '^batch invariance: off (cuda)' >&2; then
    echo 'ok - batch invariance is told'
else
    echo 'not ok - batch invariance is told'
    failed=1
fi

# What is planned keeps to what is allowed, or is told as a whole. The card has 1 GiB.
if told=$(stats --gpu-memory 600M) && ! refused=$(stats --gpu-memory 400M) &&
    grep "too small: weights .*, n-gram tables .*, work .*512.*, state of 64 .*, spare .*; \
allowed are 0.39 (gpu_memory) of 1.00 that are free" <<<"$refused" >&2 &&
    grep '^memory: .* state of sequences [0-9.]* MiB: 64 slots' <<<"$told" >&2 &&
    awk '/^memory:/ { if ($3 + $6 + $11 + 512 > 600) exit 1 }' <<<"$told"; then
    echo 'ok - memory is planned within what is allowed'
else
    echo 'not ok - memory is planned within what is allowed'
    failed=1
fi
exit $failed
