#!/usr/bin/env bash
# Fails on an include that climbs from a room of src/ to one above it or into a neighbour.
# Called by `make lint`: scripts/check-rooms.sh [ROOT]. The order of the rooms stands here alone.
set -euo pipefail

# room: the rooms whose headers it may include, besides its own and <deepinfer/...>.
rooms='
base:
text:     base
sample:   base
grammar:  base
ops:      base
ops/ref:  base ops
ops/cpu:  base ops
ops/cuda: base ops
weights:  base ops
cache:    base ops weights
model:    base ops weights cache
sched:    base cache
engine:   base text sample grammar ops ops/ref ops/cpu ops/cuda weights cache model sched
server:   base text engine
cli:      base text grammar ops/cuda weights cache engine server
'

cd "${1:-$(dirname "$0")/..}"
mapfile -t files < <(find src include -regex '.*\.\(c\|h\|inc\|cu\|cuh\)' | sort)
[ ${#files[@]} -gt 0 ] || { echo 'check-rooms: no sources here' >&2; exit 1; }

ROOMS=$rooms awk '
BEGIN {
    lines = split(ENVIRON["ROOMS"], line, "\n")
    for (i = 1; i <= lines; i++) {
        n = split(line[i], word, /[: ]+/)
        if (n == 0 || word[1] == "")
            continue
        known[word[1]] = 1
        rule[word[1]] = line[i]
        for (j = 1; j <= n; j++)
            may[word[1], word[j]] = 1
    }
}

# The room of a path below src/: the longest known prefix, else its first folder.
function room_of(path,    parts, n) {
    n = split(path, parts, "/")
    if (n > 2 && (parts[1] "/" parts[2]) in known)
        return parts[1] "/" parts[2]
    return n > 1 ? parts[1] : ""
}

function complain(why) {
    printf "%s:%d: %s\n    %s\n", FILENAME, FNR, $0, why
    found++
}

FNR == 1 {
    public = FILENAME ~ /^include\//
    room = public ? "" : room_of(substr(FILENAME, 5))
    if (!public && !(room in known) && !told[room]++)
        complain("room \"" room "\" has no line in scripts/check-rooms.sh")
}

/^[ \t]*#[ \t]*include[ \t]*["<]/ {
    match($0, /["<][^">]+[">]/)
    quoted = substr($0, RSTART, 1) == "\""
    target = substr($0, RSTART + 1, RLENGTH - 2)
    if (target ~ /^deepinfer\//)
        next
    if (public) {
        if (quoted)
            complain("a public header includes <deepinfer/...> and the system only")
        next
    }
    to = room_of(target)
    if (!quoted && !(to in known))
        next
    if (target ~ /(^|\/)\.\.?\//)
        complain("includes are written from src/, without . and ..")
    else if (to == "")
        complain("includes are written from src/: \"" room "/" target "\"")
    else if (!(to in known))
        complain("no room is called \"" to "\"")
    else if (to != room && !((room, to) in may))
        complain("the rule is  " rule[room])
}

END { exit found > 0 }
' "${files[@]}"
