#!/usr/bin/env bash
# Runs test programs and counts their cases; the last line is the total. Called by `make test-run`
# from the repository's root: scripts/run-tests.sh PROGRAM...
#
# One after the other, but for those of the engine, which compute with one thread each: as many of
# them as there are processors run at once, TEST_JOBS at most (4).
#
# A PROGRAM is a cmocka binary, a *.sh (bash) or a *.py (PYTHON). Cases are lines of TAP: "ok ...",
# "not ok ...", "... # SKIP why". A script may print none and then is one case by its exit status
# (77 = skipped); a binary may not. A program that crashes, runs past TEST_TIMEOUT seconds, fails
# without naming a case or ends before its plan ("1..N") counts as one failed case more.
set -uo pipefail

MODE=${MODE:-release}
PYTHON=${PYTHON:-/usr/bin/python3}
export MODE PYTHON BUILD=${BUILD:-build/$MODE} TESTDATA=${TESTDATA:-build/testdata}

# What the caller has set for the program would change what is tested.
for name in $(compgen -e); do
    [[ $name == DEEPINFER_* ]] && unset "$name"
done
export LC_ALL=C.UTF-8 CMOCKA_MESSAGE_OUTPUT=TAP

limit=300
case $MODE in
    asan)
        limit=1800
        # Own handlers even where cmocka sets one: its report is worth more than "got SIGSEGV". A
        # request too large must come back as NULL, as malloc answers, for the code to report.
        export ASAN_OPTIONS=halt_on_error=1:detect_leaks=1:strict_string_checks=1
        ASAN_OPTIONS+=:detect_stack_use_after_return=1:allocator_may_return_null=1
        ASAN_OPTIONS+=:handle_segv=2:handle_sigbus=2:handle_sigfpe=2
        export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
        ;;
    tsan)
        limit=1800
        export TSAN_OPTIONS="halt_on_error=1"
        ;;
esac
limit=${TEST_TIMEOUT:-$limit}

jobs=$(nproc)
((jobs > ${TEST_JOBS:-4})) && jobs=${TEST_JOBS:-4}
passed=0 failed=0 skipped=0
programs=("$@")
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT

# test_requests rests for milliseconds and looks what has happened.
side_by_side() {
    [[ $1 == "$BUILD"/tests/engine/* && $1 != *test_requests ]]
}

# run_program K: the K-th program; leaves OUTPUTS/K, and exit status and time in OUTPUTS/K.end.
run_program() {
    local program=${programs[$1]} start=$EPOCHREALTIME command=() child
    case $program in
        *.sh) command=(bash) ;;
        *.py) command=("$PYTHON") ;;
    esac
    timeout -k 10 "$limit" "${command[@]}" "$program" >"$outputs/$1" 2>&1 </dev/null &
    child=$!
    trap 'kill "$child"' TERM
    wait "$child"
    echo "$? $(seconds_since "$start")" >"$outputs/$1.end"
}

# Starts the K-th program and those behind it that may run beside it, up to as many as may.
started=0
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; exit 130' INT TERM
start_programs() {
    local k
    for ((k = $1; k < ${#programs[@]} && k < $1 + jobs; k++)); do
        [ "$k" -gt "$1" ] && ! side_by_side "${programs[k]}" && return
        if [ "$k" -ge "$started" ]; then
            run_program "$k" &
            pids[k]=$!
            started=$((k + 1))
        fi
        side_by_side "${programs[k]}" || return
    done
}

# Prints "passed failed skipped planned" of the TAP lines in the file.
count_cases() {
    awk '/^(not )?ok([ \t]|$)/ {
             if ($0 ~ /#[ \t]*[Ss][Kk][Ii][Pp]/) skip++
             else if ($1 == "ok") ok++
             else bad++
         }
         /^1\.\.[0-9]+([ \t]|$)/ { plan += substr($1, 4) }
         END { print ok + 0, bad + 0, skip + 0, plan + 0 }' "$1"
}

seconds_since() {
    local now=${EPOCHREALTIME/[^0-9]/} then=${1/[^0-9]/}
    printf '%d.%02d s' $(((now - then) / 1000000)) $(((now - then) / 10000 % 100))
}

for ((k = 0; k < ${#programs[@]}; k++)); do
    program=${programs[k]} output=$outputs/$k
    name=${program#"$BUILD"/}
    start_programs "$k"
    wait "${pids[$k]}"
    status= took=
    read -r status took <"$output.end"
    status=${status:-125} # nothing could be written, or whoever writes it was killed
    read -r ok bad skip plan < <(count_cases "$output")
    cases=$((ok + bad + skip))

    why=
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
        why="ran past its limit of $limit s"
    elif [ $status -gt 128 ]; then
        why="killed by signal $((status - 128)) ($(kill -l $((status - 128)) 2>/dev/null))"
    elif [ $cases -eq 0 ] && [[ $program == *.sh || $program == *.py ]]; then
        case $status in
            0) ok=1 ;;
            77) skip=1 ;;
            *) why="exit status $status" ;;
        esac
    elif [ $cases -eq 0 ]; then
        why="has no test case (exit status $status)"
    elif [ $plan -gt $cases ]; then
        why="ended after $cases of $plan cases (exit status $status)"
    elif [ $status -ne 0 ] && [ "$bad" -eq 0 ]; then
        why="exit status $status though no case failed"
    fi
    [ -n "$why" ] && bad=$((bad + 1))

    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$bad" -gt 0 ]; then
        echo "FAIL  $name: ${why:-$bad of $cases cases} ($took)"
        sed 's/^/    /' "$output"
    elif [ "$ok" -eq 0 ]; then
        echo "skip  $name ($skip, $took)"
        sed -n 's/^/    /p' "$output"
    else
        echo "ok    $name ($ok$([ "$skip" -gt 0 ] && echo ", $skip skipped"), $took)"
    fi
done

total="$passed passed, $failed failed"
[ $skipped -gt 0 ] && total+=", $skipped skipped"
echo "$total"
[ $failed -eq 0 ]
