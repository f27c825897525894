#!/usr/bin/env bash
# What clang-format does not look at: files that have grown too long, trailing blanks, tabs.
# Called by `make lint`: scripts/check-layout.sh [ROOT]. Data and models are not looked at.
set -euo pipefail

most_lines=900

cd "${1:-$(dirname "$0")/..}"
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.c' '*.h' '*.inc' '*.cu' '*.cuh' '*.sh' '*.bash' '*.py' \
    '*.mk' '*.md' '*.1' Makefile '.ci/*' ':!models' ':!tests/data' | sort -u)
existing=()
for file in "${files[@]}"; do
    [ -f "$file" ] && existing+=("$file")
done
[ ${#existing[@]} -gt 0 ] || { echo 'check-layout: no files here' >&2; exit 1; }

awk -v most="$most_lines" '
function complain(why) {
    printf "%s:%d: %s\n", FILENAME, FNR, why
    found++
}
FNR == most + 1 && FILENAME !~ /\.md$/ { complain("longer than " most " lines") }
/[ \t\r]$/ { complain("blank at the end of the line") }
/\t/ && FILENAME !~ /(Makefile|\.mk)$/ { complain("tab") }
END { exit found > 0 }
' "${existing[@]}"
