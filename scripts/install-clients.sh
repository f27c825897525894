#!/usr/bin/env bash
# Installs the official client packages that tests/server/ talks to the server with, from PyPI, into
# build/clients, for the Python that runs the tests. Does nothing if they are there. Where it cannot
# (no network, no pip), those tests are skipped.
set -uo pipefail
cd "$(dirname "$0")/.."

wanted=(openai==3.57.0 anthropic==2.14.0)
target=build/clients
python=${PYTHON:-/usr/bin/python3}

[ "$(cat "$target/.installed" 2>/dev/null)" = "${wanted[*]}" ] && exit 0
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || exit 1
for pip in "$python" python3 pip3; do
    [ "$pip" = pip3 ] && command=(pip3) || command=("$pip" -m pip)
    "${command[@]}" --version >/dev/null 2>&1 || continue
    rm -rf "$target"
    if "${command[@]}" install -q --disable-pip-version-check --target "$target" \
        --python-version "$version" --only-binary :all: "${wanted[@]}" 2>&1 | tail -n 3 >&2 &&
        [ -d "$target/openai" ]; then
        echo "${wanted[*]}" >"$target/.installed"
        exit 0
    fi
done
echo "install-clients: ${wanted[*]} could not be installed; their tests will be skipped" >&2
exit 1
