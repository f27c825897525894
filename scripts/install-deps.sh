#!/usr/bin/env bash
# Installs the Debian packages that the build and its tests need, and only those that are missing.
# Called by `make deps` (so by demo, test, bench, fuzz), .ci/run and install-cuda.sh. Never asks a
# question.
#
#   scripts/install-deps.sh          what `make` and `make test` need
#   scripts/install-deps.sh --dev    also clang and its tools: asan, tsan, fuzz, format, lint
#   scripts/install-deps.sh --pip    also pip, with which install-cuda.sh installs
set -euo pipefail

base=(build-essential pkg-config xz-utils libjansson-dev libpcre2-dev libutf8proc-dev
      libxxhash-dev libmicrohttpd-dev libgnutls28-dev libsodium-dev libcmocka-dev python3
      python3-numpy python3-jsonschema python3-prometheus-client)
dev=(git clang clang-format clang-tidy libclang-rt-14-dev libomp-14-dev)

wanted=("${base[@]}")
case "${1-}" in
    '') ;;
    --dev) wanted+=("${dev[@]}") ;;
    --pip) wanted+=(python3-pip) ;;
    *) echo "usage: ${0##*/} [--dev | --pip]" >&2; exit 2 ;;
esac

# What each package is wanted for, for machines whose packages dpkg does not manage.
have_without_dpkg() {
    case $1 in
        build-essential) command -v cc make >/dev/null ;;
        pkg-config | git | clang | clang-format | clang-tidy | python3) command -v "$1" >/dev/null ;;
        xz-utils) command -v xz >/dev/null ;;
        libjansson-dev) pkg-config --exists jansson ;;
        libpcre2-dev) pkg-config --exists libpcre2-8 ;;
        libsodium-dev) pkg-config --exists libsodium ;;
        libutf8proc-dev) pkg-config --exists libutf8proc ;;
        libxxhash-dev) pkg-config --exists libxxhash ;;
        libmicrohttpd-dev) pkg-config --exists libmicrohttpd ;;
        libgnutls28-dev) pkg-config --exists gnutls ;;
        libcmocka-dev) pkg-config --exists cmocka ;;
        python3-numpy) /usr/bin/python3 -c 'import numpy' ;;
        python3-jsonschema) /usr/bin/python3 -c 'import jsonschema' ;;
        python3-prometheus-client) /usr/bin/python3 -c 'import prometheus_client' ;;
        python3-pip) /usr/bin/python3 -m pip --version >/dev/null ;;
        libclang-rt-*-dev | libomp-*-dev) command -v clang >/dev/null ;;
    esac 2>/dev/null
}

missing=()
if command -v dpkg-query >/dev/null; then
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
        sed -n 's/^installed //p' || true)
    for package in "${wanted[@]}"; do
        grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
    done
else
    for package in "${wanted[@]}"; do
        have_without_dpkg "$package" || missing+=("$package")
    done
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    cat >&2 <<MSG
install-deps: missing: ${missing[*]}
install-deps: there is no apt-get here; install these (Debian's names) by your system's means
MSG
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        cat >&2 <<MSG
install-deps: not root, and there is no sudo; ask an administrator for
install-deps:   apt-get install ${missing[*]}
MSG
        exit 1
    fi
    as_root=(sudo)
fi

echo "install-deps: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" </dev/null >"$log" 2>&1
}

fail() {
    cat "$log" >&2
    echo "install-deps: $1" >&2
    exit 1
}

# The package lists are fetched only when those at hand do not lead to the packages.
if ! apt install --no-install-recommends "${missing[@]}"; then
    apt update || fail 'apt-get update failed (its output is above)'
    apt install --no-install-recommends "${missing[@]}" ||
        fail 'apt-get install failed (its output is above)'
fi
