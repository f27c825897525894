#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a card, one line a check, and times it. Runs what
# scripts/device-pack.sh has put into build/device; needs a driver, nothing else.
#
#   scripts/device-check.sh [--bench] [--sanitize] [--only-bench] [--out DIR]
#
# --bench: timings behind the checks; --sanitize: op suite and draws under compute-sanitizer, small.
# REQUESTS in the environment is the number of random requests (10,000). Results go to
# DIR (bench/results) as DATE-CARD-checks.txt, -ops.txt, -step.txt, -model.txt and -drafts.txt. Exit
# status 1 if a check fails.
set -uo pipefail
cd "$(dirname "$0")/.."

bench= sanitize= checks=1 out=bench/results requests=${REQUESTS:-10000}
while [ $# -gt 0 ]; do
    case $1 in
        --bench) bench=1 ;;
        --sanitize) sanitize=1 ;;
        --only-bench) bench=1 checks= ;;
        --out) out=$2; shift ;;
        *) sed -n '2,10p' "$0"; exit 2 ;;
    esac
    shift
done

here=$PWD/${DEVICE_DIR:-build/device}
[ -x "$here/bin/deepinfer" ] || tar -C "$here" -xJf "$here/programs.tar.xz" ||
    { echo 'device-check: run scripts/device-pack.sh first' >&2; exit 2; }
export LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH-}
export DI_CUDA_LIBRARY=$here/bin/libdeepinfer-cuda.so
export TESTDATA=$here/testdata CMOCKA_MESSAGE_OUTPUT=TAP LC_ALL=C.UTF-8
if [ ! -d "$TESTDATA" ]; then
    mkdir -p "$TESTDATA" && tar -C "$TESTDATA" -xJf "$here/testdata.tar.xz" || exit 2
fi

card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$card" ] || { echo 'device-check: no card here (nvidia-smi finds none)' >&2; exit 2; }
short=$(echo "${card##* }" | tr 'A-Z' 'a-z' | tr -cd 'a-z0-9')
mkdir -p "$out"
log=$(mktemp)
failed=0

heading() {
    echo "card:    $card, driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)"
    echo "commit:  $(cat "$here/commit")"
    echo "date:    $(date -u +%Y-%m-%d)"
    echo "command: $1"
    echo
}

# check NAME COMMAND...: one line; if it fails, the output too, without what went well. Behind "#"
# cmocka says why a case failed.
check() {
    local name=$1 start=$EPOCHREALTIME status
    shift
    timeout "${CHECK_TIMEOUT:-120}" "$@" >"$log" 2>&1 </dev/null
    status=$?
    local took=$(((${EPOCHREALTIME/./} - ${start/./}) / 100000))
    took="$((took / 10)).$((took % 10)) s"
    if [ $status -eq 0 ]; then
        echo "ok    $name ($(summary), $took)"
    else
        echo "FAIL  $name (exit status $status, $took)"
        grep -vE '^(# )?ok|^# not ok|^not ok [0-9]+ # SKIP|^1\.\.|^ *$' "$log" | head -60 |
            sed 's/^/    /'
        failed=1
    fi
}

summary() {
    local cases
    cases=$(grep -c '^ok' "$log")
    if [ "$cases" -gt 0 ]; then echo "$cases cases"; else tail -1 "$log" | cut -c1-90; fi
}

greedy() {
    local d
    d=$(mktemp -d)
    python3 tests/cuda/greedy.py prompts > "$d/in" &&
        "$here/bin/deepinfer" generate -m models/demo --temperature 0 -q -i "$d/in" -o "$d/cpu" &&
        DI_CUDA_GUARD=1 "$here/bin/deepinfer" generate -m models/demo --temperature 0 -q \
            -i "$d/in" -o "$d/cuda" --backend cuda &&
        python3 tests/cuda/greedy.py compare "$d/cpu" "$d/cuda"
    set -- $?
    rm -rf "$d"
    return "$1"
}

# A kernel that traps: the operation is named, the answer fails, the program ends with 1.
fault() {
    local d status
    d=$(mktemp -d)
    python3 tests/cuda/greedy.py prompts | head -3 > "$d/in"
    DI_CUDA_TRAP=moe DI_CUDA_SYNC=1 "$here/bin/deepinfer" generate -m models/demo -q -i "$d/in" \
        -o "$d/out" --backend cuda 2> "$d/err"
    status=$?
    cat "$d/err" "$d/out"* 2>/dev/null | head -5
    [ $status -eq 1 ] && cat "$d/err" "$d/out"* 2>/dev/null | grep -q 'cuda:0: moe: '
    set -- $?
    rm -rf "$d"
    return "$1"
}

# What the card holds while 512 answers may be made at once, in MiB: the most that is seen. With
# options.
most_held() {
    local d
    d=$(mktemp -d)
    python3 tests/cuda/greedy.py prompts > "$d/in"
    nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits -lms 20 > "$d/used" &
    "$here/bin/deepinfer" generate -m models/demo --max-num-seqs 512 -q -i "$d/in" -o "$d/out" \
        --backend cuda "$@" >&2
    kill $!
    wait $! 2>/dev/null
    sort -n "$d/used" | tail -1
    rm -rf "$d"
}

# Above the context, which a process that is refused holds too, no more than --gpu-memory says is
# held, where more would be without it.
memory_limit() {
    local limit=700 context with without
    context=$(most_held --gpu-memory 100M)
    with=$(most_held --gpu-memory ${limit}M)
    without=$(most_held)
    echo "$((with - context)) MiB where $limit are allowed, $((without - context)) otherwise"
    [ "$with" -gt "$context" ] && [ "$with" -le $((context + limit)) ] &&
        [ "$without" -gt $((context + limit)) ]
}

run_checks() {
    heading 'scripts/device-check.sh'
    check 'version tells the card' "$here/bin/deepinfer" version
    check 'ops against the oracle' env TEST_BACKEND=cuda "$here/bin/test_cpu"
    check 'ops on state against the oracle' env TEST_BACKEND=cuda "$here/bin/test_cpu_state"
    check 'products of any number of rows, the same bits' env TEST_BACKEND=cuda \
        "$here/bin/test_cuda_bits"
    check 'golden layers' env TEST_BACKEND=cuda "$here/bin/test_layers"
    check 'golden layers of the demo model' env TEST_BACKEND=cuda "$here/bin/test_demo_model"
    check 'drafts' env TEST_BACKEND=cuda "$here/bin/test_drafts"
    check 'drafts, the same answers as without' env TEST_BACKEND=cuda DI_CUDA_GUARD=1 \
        "$here/bin/engine_test_drafts"
    check 'drafts that are forced' env TEST_BACKEND=cuda DI_CUDA_GUARD=1 "$here/bin/test_forced"
    check 'recorded rounds of drafts, the same bits' env TEST_BACKEND=cuda DI_CUDA_GUARD=1 \
        "$here/bin/test_rounds"
    check 'steps with drafts recorded, others queued' env TEST_BACKEND=cuda DI_CUDA_GUARD=1 \
        "$here/bin/test_card_drafts"
    check 'any cut and company, the same bits' env TEST_BACKEND=cuda "$here/bin/test_invariance"
    check 'draws as on the CPU' env TEST_BACKEND=cuda "$here/bin/test_draws"
    check 'queued steps, the same bits' env TEST_BACKEND=cuda DI_CUDA_GUARD=1 "$here/bin/test_queue"
    check 'queued steps with n-gram tables in locked memory' env TEST_BACKEND=cuda DI_CUDA_GUARD=1 \
        DI_CUDA_HOST_TABLES=1 "$here/bin/test_queue"
    check 'greedy text as on the CPU' bash -c "$(declare -p here); $(declare -f greedy); greedy"
    check 'the same with n-gram tables in locked memory' env DI_CUDA_HOST_TABLES=1 \
        bash -c "$(declare -p here); $(declare -f greedy); greedy"
    check 'a fault ends with its name and exit status 1' \
        bash -c "$(declare -p here); $(declare -f fault); fault"
    check '--gpu-memory is kept to' \
        bash -c "$(declare -p here); $(declare -f most_held memory_limit); memory_limit"
    CHECK_TIMEOUT=600 check "$requests random requests" env TEST_BACKEND=cuda REQUESTS="$requests" \
        "$here/bin/test_random_events"
    if [ -n "$sanitize" ]; then
        # The fast ones first: from seconds to some minutes.
        for run in memcheck:test_draws memcheck:test_cpu_state memcheck:test_cpu \
            racecheck:test_draws racecheck:test_cpu racecheck:test_cpu_state; do
            CHECK_TIMEOUT=600 check "${run%:*} of ${run#*:}" env TEST_BACKEND=cuda TEST_SMALL=1 \
                compute-sanitizer --tool "${run%:*}" --error-exitcode 9 "$here/bin/${run#*:}"
        done
    fi
}

if [ -n "$checks" ]; then
    run_checks | tee "$out/$(date -u +%F)-$short-checks.txt"
    failed=$(grep -c '^FAIL' "$out/$(date -u +%F)-$short-checks.txt")
fi
if [ -n "$bench" ]; then
    { heading 'bench/cuda, bench/cuda_state, bench/cuda_rows, tests/cuda/cublas.py' &&
        timeout 280 "$here/bin/cuda" && echo && timeout 120 "$here/bin/cuda_state" && echo &&
        timeout 120 "$here/bin/cuda_rows" && echo && timeout 60 python3 tests/cuda/cublas.py; } 2>&1 |
        tee "$out/$(date -u +%F)-$short-ops.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
    { heading 'bench/engine' && timeout 280 "$here/bin/engine" models/demo 96 cuda; } 2>&1 |
        tee "$out/$(date -u +%F)-$short-step.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
    { heading 'bench/cuda_model' && timeout 280 "$here/bin/cuda_model"; } 2>&1 |
        tee "$out/$(date -u +%F)-$short-model.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
    { heading 'bench/cuda_drafts, bench/drafts models/demo 192 4 cuda' &&
        timeout 280 "$here/bin/cuda_drafts" && echo &&
        timeout 120 "$here/bin/drafts" models/demo 192 4 cuda; } 2>&1 |
        tee "$out/$(date -u +%F)-$short-drafts.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
fi
rm -f "$log"
[ "$failed" = 0 ]
