#!/usr/bin/env bash
# Runs the benchmarks, one after the other, and records them if asked. Called by `make bench`, which
# has built them; by hand: bench/run.sh [--record] [NAME...], NAME as in "server/http".
#
# A benchmark is a program bench/ROOM/NAME.c or a script bench/ROOM/NAME.sh (ROOM may be missing).
# bench/ROOM/NAME_peer.py beside it runs right after it, so under the same load, with its output in
# the file $BENCH_OUTPUT and what it wrote to the file $BENCH_RAW: another library doing the same
# work. The modules that a peer wants stand in a line "# needs: ..."; BENCH_PYTHON is the Python that
# has them.
# --record keeps what was printed in bench/results/DATE-NAME.txt, with machine, commit and command.
set -uo pipefail
cd "$(dirname "$0")/.."

export BUILD=${BUILD:-build/release} TESTDATA=${TESTDATA:-build/testdata}
export DI_CUDA_LIBRARY=${DI_CUDA_LIBRARY:-$PWD/$BUILD/libdeepinfer-cuda.so} # not beside them
python=${BENCH_PYTHON:-${PYTHON:-/usr/bin/python3}}
record=
[ "${1-}" = --record ] && { record=1; shift; }

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    mapfile -t names < <(find bench -mindepth 1 -maxdepth 2 \( -name '*.c' -o -name '*.sh' \) \
        ! -path bench/run.sh ! -path 'bench/support/*' | sed -e 's|^bench/||' -e 's|\.[a-z]*$||' | sort)
fi
[ ${#names[@]} -gt 0 ] || { echo 'bench: there is nothing to run' >&2; exit 1; }

machine() {
    lscpu | sed -n 's/^Model name: */cpu:      /p'
    echo "cores:    $(nproc) of $(lscpu | sed -n 's/^CPU(s): *//p')"
    lscpu | sed -n 's/^\(L1d\|L2\|L3\)[^:]*: */cache:    \1 /p'
    echo "vectors:  $(lscpu | grep -oE '\b(avx2|fma|f16c|avx512f|avx512bw|avx512_bf16|avx512_vnni|amx_bf16)\b' |
        sort -u | tr '\n' ' ')"
    awk '/^MemTotal/ { printf "memory:   %.1f GiB\n", $2 / 1048576 }' /proc/meminfo
    echo "load:     $(cut -d' ' -f1-3 /proc/loadavg) (1, 5, 15 minutes, before the run)"
    echo "system:   $(uname -sr), $(gcc -dumpfullversion 2>/dev/null | sed 's/^/gcc /')"
    echo "commit:   $(git -c safe.directory='*' describe --always --dirty 2>/dev/null || echo unknown)"
}

run_peer() {
    local peer=$1 module needs
    needs=$(sed -n 's/^# needs: *//p' "$peer")
    for module in $needs; do
        if ! "$python" -c "import $module" 2>/dev/null; then
            echo "(no comparison: $python has no module $module; set BENCH_PYTHON to one that has)"
            return 0
        fi
    done
    BENCH_OUTPUT=$output "$python" "$peer"
}

run_one() {
    local name=$1 program=("$BUILD/bench/$1") status
    [ -f "bench/$name.sh" ] && program=(bash "bench/$name.sh")
    "${program[@]}" 2>&1 | tee "$output"
    status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || { echo "bench: $name ended with status $status"; return 1; }
    [ -f "bench/${name}_peer.py" ] || return 0
    run_peer "bench/${name}_peer.py" 2>&1
}

output=$(mktemp)
export BENCH_RAW=$output.raw
trap 'rm -f "$output" "$BENCH_RAW"' EXIT
failed=0
for name in "${names[@]}"; do
    if [ ! -f "bench/$name.sh" ] && [ ! -x "$BUILD/bench/$name" ]; then
        echo "bench: $BUILD/bench/$name is not built; run 'make bench', or give a name of bench/" >&2
        failed=1
        continue
    fi
    echo "== $name"
    if [ -z "$record" ]; then
        run_one "$name" || failed=1
    else
        result=bench/results/$(date -u +%F)-${name//\//-}.txt
        mkdir -p bench/results
        {
            echo "command:  bench/run.sh --record $name"
            machine
            echo
            run_one "$name"
        } | tee "$result.part"
        if [ "${PIPESTATUS[0]}" -eq 0 ]; then
            mv "$result.part" "$result"
        else
            rm -f "$result.part"
            failed=1
        fi
    fi
    echo
done
exit $failed
