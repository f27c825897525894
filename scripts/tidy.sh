#!/usr/bin/env bash
# clang-tidy on one source file, remembered by content: a file that passed is not looked at again
# until it, a header of it, the flags or the checks change. Called by `make lint`:
# scripts/tidy.sh FLAG... FILE
set -uo pipefail

file=${!#}
flags=("${@:1:$#-1}" -std=c17 -ffp-contract=off -Wall -Wextra
       '-DDI_VERSION="lint"' '-DDI_GIT_REV="lint"' '-DDI_BUILD_MODE="lint"')
# Keep in step with CFLAGS_avx2 and CFLAGS_avx512 of mk/config.mk, and with mk/test.mk.
case $file in
    bench/ops.c) flags+=(-fopenmp) ;;
    *_avx2.c) flags+=(-mavx2 -mfma -mf16c) ;;
    *_avx512.c) flags+=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c) ;;
esac

# Comments stay in (-C): they hold the NOLINTs. The macro is clang-tidy's own.
preprocessed=$(clang -E -C -D__clang_analyzer__ "${flags[@]}" "$file" 2>&1) || { echo "$preprocessed" >&2; exit 1; }
key=$({
    printf '%s\n' "${flags[*]}" "$preprocessed"
    cat .clang-tidy tests/.clang-tidy tests/*/.clang-tidy "$0"
    clang-tidy --version
} | sha256sum)
passed=build/tidy/$file.passed
[ -f "$passed" ] && [ "$(cat "$passed")" = "$key" ] && exit 0

if said=$(clang-tidy --quiet "$file" -- "${flags[@]}" 2>&1); then
    mkdir -p "$(dirname "$passed")"
    echo "$key" >"$passed"
else
    grep -vE '^[0-9]+ warnings? |^Suppressed |^Use -header-filter' <<<"$said"
    echo "tidy: $file has findings" >&2
    exit 1
fi
