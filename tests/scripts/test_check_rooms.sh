#!/usr/bin/env bash
# scripts/check-rooms.sh passes on our tree and names what it refuses on others.
set -u
work=$(mktemp -d)
tree=$work/tree
trap 'rm -rf "$work"' EXIT
source tests/support/tap.bash

# One file with one include in an otherwise empty tree; prints what the script says.
check() {
    rm -rf "$tree/src" "$tree/include"
    mkdir -p "$tree/src/base" "$tree/include" "$tree/$(dirname "$1")"
    printf '#include <stdio.h>\n%s\n' "$2" >"$tree/$1"
    scripts/check-rooms.sh "$tree"
}

refuses() {
    local said
    said=$(check "$1" "$2") && { say 1 "$3"; return; }
    [[ $said == *"$1:2:"* ]]
    say $? "$3"
}

allows() {
    check "$1" "$2" >/dev/null
    say $? "$3"
}

scripts/check-rooms.sh
say $? the_tree_has_no_climbing_include
refuses src/base/a.c '#include "ops/ops.h"' an_include_of_the_room_above_is_refused
refuses src/ops/ref/a.c '#include "ops/cpu/gemm.h"' neighbours_do_not_include_one_another
refuses src/cli/a.c '#include "model/model.h"' a_face_does_not_reach_past_the_engine
refuses src/sample/a.c '#include "text/tokenizer.h"' rooms_that_need_base_alone_include_nothing_else
refuses src/ops/cuda/card/a.cu '#include "ops/cpu/internal.h"' kernel_files_are_looked_at_too
refuses src/text/a.c '#  include <ops/ops.h>' angle_brackets_hide_nothing
refuses src/base/a.c '#include "../ops/ops.h"' dots_hide_nothing
refuses src/base/a.c '#include "json.h"' a_path_that_does_not_start_at_src_is_refused
refuses src/base/a.c '#include "attic/a.h"' an_unknown_room_is_refused
refuses include/a.h '#include "base/error.h"' a_public_header_includes_no_private_one
allows src/engine/a.c '#include "model/model.h"' an_include_downwards_is_allowed
allows src/ops/cpu/a.c '#include "ops/cpu/b.h"' an_include_of_the_own_room_is_allowed
allows src/base/a.c '#include "deepinfer/error.h"' public_headers_may_be_included_by_all
[ "$(mkdir -p "$tree/src/attic" && echo >"$tree/src/attic/a.c" && scripts/check-rooms.sh "$tree")" ]
say $? a_folder_without_a_rule_is_refused
exit $failed
