#!/usr/bin/env bash
# Installs the official client packages that tests/server/ talks to the server with, from PyPI, into
# build/clients, for the Python that runs the tests. Does nothing if they are there. Where it cannot
# (no network, no pip), those tests are skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
source scripts/pip.bash

wanted=(openai==3.57.0 anthropic==2.14.0)
target=build/clients

[ "$(cat "$target/.installed" 2>/dev/null)" = "${wanted[*]}" ] && exit 0
if pip_into "$target" "${wanted[@]}" && [ -d "$target/openai" ]; then
    echo "${wanted[*]}" >"$target/.installed"
    exit 0
fi
echo "install-clients: ${wanted[*]} could not be installed ($pip_said);" \
    "their tests will be skipped" >&2
exit 1
