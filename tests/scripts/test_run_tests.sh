#!/usr/bin/env bash
# scripts/run-tests.sh counts cases and lets no kind of failure pass: everything else rests on it.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source tests/support/tap.bash

# Runs the programs; the status must be $1 and the last line $2.
gives() {
    local status=$1 total=$2 found
    shift 2
    TEST_TIMEOUT=2 MODE=release BUILD=$work scripts/run-tests.sh "${@/#/$work/}" >"$work/log" 2>&1
    found=$?
    [ $found -eq "$status" ] && [ "$(tail -n 1 "$work/log")" = "$total" ]
}

program cases 'echo 1..3; echo "ok 1 - a"; echo "ok 2 - b"; echo "ok 3 - c"'
program bad 'echo 1..2; echo "ok 1 - a"; echo "not ok 2 - b"; echo "# detail of b"; exit 1'
program crash 'echo 1..3; echo "ok 1 - a"; kill -SEGV $$'
program empty 'exit 0'
program short 'echo 1..3; echo "ok 1 - a"'
program silent 'echo 1..1; echo "ok 1 - a"; exit 3'
program skips 'echo 1..2; echo "ok 1 - a"; echo "not ok 2 # SKIP b"'
program hangs 'echo 1..1; sleep 60'
program plain.sh 'exit 0'
program wrong.sh 'echo the reason; exit 1'
program passed_over.sh 'exit 77'
echo 'print("ok - a"); print("ok - b")' >"$work/test_it.py"

gives 0 '3 passed, 0 failed' cases
say $? cases_are_counted_and_not_programs
gives 1 '1 passed, 1 failed' bad
say $? a_failed_case_fails_the_run
grep -q 'detail of b' "$work/log"
say $? a_failure_is_shown_in_full
gives 1 '1 passed, 1 failed' crash
say $? a_crash_is_a_failure
gives 1 '0 passed, 1 failed' empty
say $? a_program_without_a_case_is_a_failure
gives 1 '1 passed, 1 failed' short
say $? a_program_that_ends_before_its_plan_is_a_failure
gives 1 '1 passed, 1 failed' silent
say $? a_bad_exit_status_is_a_failure_though_every_case_passed
gives 1 '0 passed, 1 failed' hangs
say $? a_program_that_hangs_is_a_failure
gives 1 '0 passed, 1 failed' not_there
say $? a_program_that_is_not_there_is_a_failure
gives 0 '1 passed, 0 failed, 1 skipped' skips
say $? skipped_cases_are_told_apart
gives 0 '3 passed, 0 failed, 1 skipped' plain.sh passed_over.sh test_it.py
say $? scripts_count_by_their_lines_or_their_exit_status
gives 1 '0 passed, 1 failed' wrong.sh && grep -q 'the reason' "$work/log"
say $? a_script_that_fails_is_a_failure
program alone.sh 'read -r _ _ _ parent _ <"/proc/$PPID/stat"; kill -KILL "$parent"'
gives 1 '1 passed, 1 failed' plain.sh alone.sh && grep -q 'exit status 125' "$work/log"
say $? a_program_whose_end_nobody_has_noted_is_a_failure
export MET=$work/met
program tests/engine/first 'until [ -e "$MET" ]; do sleep 0.01; done; echo "ok - a"'
program tests/engine/second 'touch "$MET"; echo "not ok - b"; exit 1'
program tests/engine/third 'echo "ok - c"'
if [ "$(nproc)" -gt 1 ]; then
    gives 1 '3 passed, 1 failed' tests/engine/{first,second,third} plain.sh &&
        [ "$(grep -oE '^(ok|FAIL) +[a-z/.]+' "$work/log" | tr -s ' ' | tr '\n' ' ')" = \
            'ok tests/engine/first FAIL tests/engine/second ok tests/engine/third ok plain.sh ' ]
    say $? those_of_the_engine_run_beside_each_other_and_are_told_in_order
else
    echo 'ok - those_of_the_engine_run_beside_each_other_and_are_told_in_order # SKIP one processor'
fi
rm -f "$MET"
TEST_JOBS=1 gives 1 '0 passed, 2 failed' tests/engine/first tests/engine/second
say $? one_job_is_one_program_at_a_time
export DEEPINFER_SEED=1
program sees.sh '[ -z "${DEEPINFER_SEED-}" ]'
gives 0 '1 passed, 0 failed' sees.sh
say $? variables_of_the_program_do_not_reach_the_tests
exit $failed
