#!/usr/bin/env bash
# Tests that a card must pass (scripts/device-check.sh), on the simulated one (tests/simcard): steps
# queued whole and recorded, drafts, grammars, random weather. Needs the programs that make test-run
# builds.
set -uo pipefail
cd "$(dirname "$0")/../.."

build=${BUILD:-build/release}
export DI_CUDA_LIBRARY=$PWD/$build/tests/simcard/libsimcard.so TEST_BACKEND=cuda DI_CUDA_GUARD=1
export CMOCKA_MESSAGE_OUTPUT=TAP TESTDATA=${TESTDATA:-build/testdata} REQUESTS=${REQUESTS:-900}
failed=0
for program in model/test_queue model/test_drafts engine/test_forced \
    engine/test_structured_events engine/test_requests engine/test_random_events; do
    echo "# $program"
    "$build/tests/$program" || failed=1
done
exit $failed
