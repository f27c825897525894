#!/usr/bin/env bash
# scripts/install-cuda.sh and find-cuda.sh, without a network: the pips that are found are stand-ins
# and so is the nvcc that they bring.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source tests/support/tap.bash
told=("$work/said" "$work/calls")
root=$PWD
unset CUDA_HOME

# A toolkit in $work/$1 whose nvcc knows the architecture $2 and compiles with exit status $3.
toolkit() {
    program "$1/bin/nvcc" "[ \"\$1\" = --list-gpu-arch ] || exit $3; printf 'compute_90\n$2\n'"
    mkdir -p "$work/$1/include"
    : >"$work/$1/include/cuda_runtime_api.h"
}

# Every pip says $1 and ends with $2, having put $work/wheels, if there is such a folder, where it
# was told to.
pip_is() {
    local body="case \"\$*\" in
        -c*) echo 3.11 ;;
        *--version*) echo pip ;;
        *) echo \"pip \$*\" >>'$work/calls'
           while [ \"\$1\" != --target ]; do shift; done
           mkdir -p \"\$2\"
           [ ! -d '$work/wheels' ] || cp -a '$work/wheels/.' \"\$2\"
           echo '$1'; exit $2 ;;
    esac"
    for name in python python3 pip3; do program "bin/$name" "$body"; done
    rm -rf "$work/wheels" "$work/place"
    mkdir "$work/place"
    : >"$work/calls"
}

install_cuda() {
    PATH=$work/bin:$PATH PYTHON=$work/bin/python "$root/scripts/install-cuda.sh" "$@" \
        >"$work/said" 2>&1
}

# What was said is one line, has $1 in it, and nothing lies where the toolkit should be.
one_line_and_nothing_left() {
    [ "$(wc -l <"$work/said")" -eq 1 ] && grep -q -- "$1" "$work/said" &&
        [ -z "$(ls -A "$work/place")" ]
}

pip_is 'no pip is wanted' 1
toolkit there compute_100 0
install_cuda "$work/there" && grep -q "$work/there/bin/nvcc is there" "$work/said" &&
    [ ! -s "$work/calls" ]
say $? nothing_is_done_where_a_fit_nvcc_is

CUDA_HOME=$work/there install_cuda && grep -q "$work/there/bin/nvcc is there" "$work/said" &&
    [ ! -s "$work/calls" ]
say $? the_nvcc_in_cuda_home_is_found

pip_is 'ERROR: no network' 1
! install_cuda "$work/place/cuda" && [ -s "$work/calls" ] && one_line_and_nothing_left 'no network'
say $? a_pip_that_fails_leaves_nothing_and_its_reason_is_said

pip_is '' 0
toolkit wheels/nvidia/cu13 compute_100 1
! install_cuda "$work/place/cuda" && one_line_and_nothing_left 'does not compile'
say $? a_compiler_that_does_not_work_is_not_left_there

pip_is '' 0
toolkit wheels/nvidia/cu13 compute_89 0
! install_cuda "$work/place/cuda" && one_line_and_nothing_left 'too old for Blackwell'
say $? a_compiler_that_is_too_old_is_not_left_there

pip_is '' 0
toolkit wheels/nvidia/cu13 compute_100 0
(cd "$work/place" && install_cuda cuda) && [ "$(ls -A "$work/place")" = cuda ] &&
    [ "$(scripts/find-cuda.sh "$work/place/cuda")" = "$work/place/cuda" ] &&
    [ "$(wc -l <"$work/calls")" -eq 1 ] && [ "$(wc -l <"$work/said")" -eq 1 ] &&
    grep -q 'nvidia-cuda-nvcc==' "$work/calls" &&
    ! grep -o 'nvidia-[^ ]*' "$work/calls" | grep -qv '=='
say $? packages_of_fixed_versions_become_a_toolkit

install_cuda "$work/place/cuda" && [ "$(wc -l <"$work/calls")" -eq 1 ]
say $? a_second_run_installs_nothing

pip_is 'no pip is wanted' 1
mkdir "$work/place/cuda"
: >"$work/place/cuda/mine"
! install_cuda "$work/place/cuda" && [ -e "$work/place/cuda/mine" ] && [ ! -s "$work/calls" ] &&
    [ "$(ls -A "$work/place")" = cuda ]
say $? a_folder_with_other_things_is_left_as_it_is

! install_cuda "$work/nowhere/cuda" && [ "$(wc -l <"$work/said")" -eq 1 ] &&
    grep -q 'cannot write' "$work/said"
say $? a_place_that_cannot_be_written_is_said

# A machine without pip, whose Debian has none to give.
for name in python python3 pip3; do
    program "bin/$name" 'case "$*" in -c*) echo 3.11 ;; *) exit 1 ;; esac'
done
program bin/dpkg-query ':'
program bin/apt-get 'echo "apt-get $*" >>"$0.calls"; exit 100'
program bin/sudo 'exec "$@"'
! install_cuda "$work/nowhere" &&
    tail -n 1 "$work/said" | grep -q 'there is no pip (python3-pip)' &&
    grep -q 'install.*python3-pip' "$work/bin/apt-get.calls" && [ ! -e "$work/nowhere" ]
say $? pip_is_asked_of_debian_where_there_is_none

toolkit old compute_89 0
! found=$(scripts/find-cuda.sh "$work/old") && [[ $found == *'too old'*12.8* ]]
say $? an_old_nvcc_is_refused

toolkit headless compute_100 0
rm "$work/headless/include/cuda_runtime_api.h"
! found=$(scripts/find-cuda.sh "$work/headless") && [[ $found == *'no cuda_runtime_api.h'* ]]
say $? an_nvcc_without_headers_is_refused

# What /usr/local/cuda has on this machine comes before PATH.
if [ -e /usr/local/cuda/bin/nvcc ]; then
    echo 'ok - an_old_nvcc_in_front_does_not_hide_a_fit_one_on_path # SKIP /usr/local/cuda is there'
else
    found=$(CUDA_HOME=$work/old PATH=$work/there/bin:$PATH scripts/find-cuda.sh)
    [ "$found" = "$work/there" ]
    say $? an_old_nvcc_in_front_does_not_hide_a_fit_one_on_path
fi

made=$(make -s --no-print-directory -n cuda MODE=release CUDA_HOME="$work/old")
[[ $made == *skip*libdeepinfer-cuda.so*'too old'*scripts/install-cuda.sh* ]] &&
    ! make -s -n cuda MODE=release CUDA=1 CUDA_HOME="$work/old" >"$work/said" 2>&1 &&
    grep -q 'CUDA=1, but .*too old' "$work/said" &&
    make -s -n -B build/release/src/ops/cuda/card/rows.cu.o MODE=release CUDA_HOME="$work/there" |
    grep -qF "$work/there/bin/nvcc -std"
say $? make_takes_what_cuda_home_on_its_command_line_names_or_says_why_not

usage() {
    install_cuda "$@"
    [ $? -eq 2 ]
}
usage --help && usage a b
say $? wrong_usage_is_status_2
exit $failed
