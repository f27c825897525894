# What shell tests share: source this from the repository's root. The caller has a folder of its own
# in $work, and ends with `exit $failed`.
failed=0
told=("$work/log") # files that say why a case failed

# say STATUS NAME: a case, as TAP.
say() {
    if [ "$1" -eq 0 ]; then
        echo "ok - $2"
    else
        echo "not ok - $2"
        cat "${told[@]}" 2>/dev/null | sed 's/^/# /'
        failed=1
    fi
}

# A program below $work named $1 whose shell text is $2.
program() {
    mkdir -p "$(dirname "$work/$1")"
    printf '#!/bin/sh\n%s\n' "$2" >"$work/$1"
    chmod +x "$work/$1"
}
