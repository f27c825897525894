#!/usr/bin/env bash
# Brings the compiler that `make` builds the CUDA part with: NVIDIA's packages on PyPI, put together
# into one folder that is laid out like an installed toolkit. Does nothing where find-cuda.sh finds
# one. Called by .ci/run; never asks a question. Of Debian it needs build-essential, and pip, which
# it installs if there is none.
#
#   scripts/install-cuda.sh          into .cuda, where `make` looks by itself
#   scripts/install-cuda.sh DIR      into DIR, for make CUDA_HOME=DIR, whatever else there is
set -uo pipefail

version=13.0.88
# cccl is there for nv/target, which cuda_fp16.h and cuda_bf16.h include.
wanted=("nvidia-cuda-nvcc==$version" "nvidia-nvvm==$version" "nvidia-cuda-crt==$version"
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)

fail() {
    echo "install-cuda: $1" >&2
    exit 1
}

if [ $# -gt 1 ] || [[ ${1-} == -* ]]; then
    echo "usage: ${0##*/} [DIR]" >&2
    exit 2
fi
home=${1:+$(realpath -m -- "$1")}
cd "$(dirname "$0")/.." || exit 1
source scripts/pip.bash

if found=$(scripts/find-cuda.sh "$home"); then
    echo "install-cuda: $found/bin/nvcc is there"
    exit 0
fi
home=${home:-.cuda}
[ -z "$(ls -A "$home" 2>/dev/null)" ] || fail "$found; $home has other things in it"
have_pip || scripts/install-deps.sh --pip || fail 'there is no pip (python3-pip)'

# All beside the place where it shall be: what is cut short leaves nothing there.
work=$(mktemp -d "$home.XXXXXX" 2>/dev/null) || fail "cannot write to the folder of $home"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
pip_into "$work/pip" "${wanted[@]}" || fail "PyPI did not give ${wanted[0]} (no network?): $pip_said"
new=$work/pip/nvidia/cu13
mv "$work"/pip/*.dist-info "$new" 2>/dev/null # the licences

cat >"$work/try.cu" <<'CODE'
#include <cooperative_groups.h>
#include <cuda_bf16.h>
__global__ void kernel(__nv_bfloat16 *x) {
    x[cooperative_groups::this_grid().thread_rank()] = 1;
}
int main() {
    kernel<<<1, 1>>>(nullptr);
}
CODE
said=$("$new/bin/nvcc" -arch=sm_100a -L"$new/lib" -o "$work/try" "$work/try.cu" 2>&1) ||
    fail "the nvcc of ${wanted[0]} does not compile: $(tail -n 1 <<<"$said")"
said=$(scripts/find-cuda.sh "$new") || fail "${wanted[0]} will not do: $said"
mv -T "$new" "$home" || fail "cannot put it in $home"
echo "install-cuda: CUDA $version is in $home ($(du -sh "$home" | cut -f1))"
