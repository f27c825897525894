#!/usr/bin/env bash
# bench/ops with the AVX2 kernels, as on a machine without AVX-512. There decoding MXFP4 costs more
# than reading it, and the ceiling is the rate of vector instructions (see bench/ops.c).
exec "${BUILD:-build/release}/bench/ops" --isa avx2
