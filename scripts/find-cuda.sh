#!/usr/bin/env bash
# Prints the folder of the CUDA toolkit to build with, or in one line why there is none, and then
# ends with 1. Asked by mk/cuda.mk and install-cuda.sh.
#
#   scripts/find-cuda.sh        the first that will do of CUDA_HOME, /usr/local/cuda, the toolkit of
#                               the nvcc on PATH, and .cuda, which install-cuda.sh makes
#   scripts/find-cuda.sh DIR    DIR or none
set -u
cd "$(dirname "$0")/.." || exit 1

why=
# Keeps the first reason: that of the toolkit that was meant most likely.
refuse() {
    why=${why:-$1}
    return 1
}

# Whether the toolkit in folder $1 knows Blackwell, and has what the C files include.
will_do() {
    local nvcc=$1/bin/nvcc known
    [ -x "$nvcc" ] || return 1
    known=$("$nvcc" --list-gpu-arch 2>/dev/null) || refuse "$nvcc --list-gpu-arch fails" || return 1
    grep -qx compute_100 <<<"$known" ||
        refuse "$nvcc is too old for Blackwell, CUDA 12.8 or later is needed" || return 1
    [ -f "$1/include/cuda_runtime_api.h" ] || refuse "$1/include has no cuda_runtime_api.h"
}

if [ -n "${1-}" ]; then
    places=("$1")
else
    places=(${CUDA_HOME:+"$CUDA_HOME"} /usr/local/cuda)
    if nvcc=$(type -P nvcc) && nvcc=$(realpath "$nvcc"); then
        places+=("${nvcc%/bin/nvcc}")
    fi
    places+=(.cuda)
fi
for place in "${places[@]}"; do
    if will_do "$place"; then
        printf '%s\n' "$place"
        exit 0
    fi
done
printf '%s\n' "${why:-no nvcc${1:+ in $1/bin}}"
exit 1
