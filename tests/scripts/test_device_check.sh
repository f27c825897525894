#!/usr/bin/env bash
# scripts/device-check.sh tells why a check failed. With programs in place of the packed ones and of
# the card's tools, so that it runs where there is no card.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d --tmpdir="$PWD/build" device-check.XXXXXX)
trap 'rm -rf "$work"' EXIT
source tests/support/tap.bash

program tools/nvidia-smi 'echo "Some Card X1"'
program tools/compute-sanitizer 'echo "========= ERROR SUMMARY: 0 errors"'
for name in deepinfer test_cpu test_cpu_state test_cuda_bits test_layers test_demo_model \
    test_drafts engine_test_drafts test_forced test_rounds test_card_drafts test_invariance \
    test_draws test_queue test_random_events; do
    program "bin/$name" 'echo 1..1; echo "ok 1 - a"; echo "# ok - tests"'
done
program bin/test_cpu 'echo 1..3
echo "ok 1 - fine_case"
echo "not ok 2 - bad_case"
echo "# 0x1 != 0x2"
echo "# file.c:12: error: Failure!"
echo "not ok 3 # SKIP skipped_case"
echo "# not ok - tests"
exit 1'
mkdir "$work/testdata"
echo 0123abc >"$work/commit"

PATH=$work/tools:$PATH DEVICE_DIR=${work#"$PWD"/} scripts/device-check.sh --sanitize \
    --out "$work/out" >"$work/log" 2>&1
say $((1 - $?)) 'a failed check is the exit status'

grep -q '^ok    golden layers (1 cases, ' "$work/log"
say $? 'a check that passes is a line'

# What stands under the failed one: its own line's indent is none.
found=$(sed -n '/^FAIL  ops against the oracle /,/^[^ ]/ { /^    /p }' "$work/log")
[ "$found" = "    not ok 2 - bad_case
    # 0x1 != 0x2
    # file.c:12: error: Failure!" ]
say $? 'a check that fails tells the cases that did, and why'

cmp -s "$work/log" "$work"/out/*-x1-checks.txt
say $? 'what is told is recorded'
exit $failed
