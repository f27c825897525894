#!/usr/bin/env bash
# Puts everything scripts/device-check.sh runs on a machine with a card into build/device: programs,
# the libraries they need, test data. For machines that have a driver but nothing to build with.
# DEVICE_DIR names another folder.
set -euo pipefail
cd "$(dirname "$0")/.."

to=${DEVICE_DIR:-build/device}
programs='tests/ops/test_cpu tests/ops/test_cpu_state tests/ops/test_cuda_bits tests/model/test_layers
    tests/model/test_demo_model tests/model/test_invariance tests/model/test_drafts bench/cuda
    bench/cuda_state bench/cuda_rows bench/cuda_model bench/cuda_drafts tests/engine/test_draws tests/model/test_queue
    tests/engine/test_random_events tests/engine/test_drafts tests/engine/test_forced
    tests/engine/test_card_drafts tests/model/test_rounds bench/engine bench/drafts deepinfer'
rm -rf "$to"
mkdir -p "$to/bin" "$to/lib"
targets=()
for p in $programs; do targets+=("build/release/$p"); done
make -j"$(nproc)" --no-print-directory CUDA=1 "${targets[@]}" cuda testdata
for p in "${targets[@]}"; do
    name=$(basename "$p")
    [ ! -e "$to/bin/$name" ] || name=$(basename "$(dirname "$p")")_$name # of another room
    strip -o "$to/bin/$name" "$p"
done
strip -o "$to/bin/libdeepinfer-cuda.so" build/release/libdeepinfer-cuda.so
# Not the C library and the compiler's: those every system has.
for p in "$to"/bin/*; do ldd "$p"; done | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+)\.so' |
    xargs -I{} cp -L {} "$to/lib/"
tar -C build/testdata -cJf "$to/testdata.tar.xz" tiny wide deep golden flash/config.json \
    text/english.txt
git -c safe.directory='*' describe --always --dirty > "$to/commit"
# One small file to carry over; device-check.sh unpacks it where it finds no programs.
tar -C "$to" -cf - bin lib | xz -T0 -3 > "$to/programs.tar.xz"
rm -rf "$to/bin" "$to/lib"
du -sh "$to"
