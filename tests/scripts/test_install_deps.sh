#!/usr/bin/env bash
# scripts/install-deps.sh on made-up machines: stand-ins for dpkg-query, apt-get, sudo and id are the
# only ones on its PATH, so nothing is ever installed.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source tests/support/tap.bash
told=("$work/said" "$work/calls")
script=$PWD/scripts/install-deps.sh
mkdir "$work/tools"
for tool in bash env cat sed grep mktemp rm; do
    ln -s "$(command -v "$tool")" "$work/tools/$tool"
done

# A fresh machine: user id $1, installed packages $2, then the stand-ins that it has.
machine() {
    rm -rf "$work/bin"
    cp -a "$work/tools" "$work/bin"
    : >"$work/calls"
    stand_in id "echo $1"
    stand_in dpkg-query "for p in $2; do echo \"installed \$p\"; done"
    shift 2
    for name in "$@"; do
        case $name in
            sudo) stand_in sudo "echo sudo >>'$work/calls'; exec \"\$@\"" ;;
            apt-get) stand_in apt-get "echo \"apt-get \$*\" >>'$work/calls'" ;;
            # Knows no package until its lists are fetched.
            stale-apt-get) stand_in apt-get "echo \"apt-get \$*\" >>'$work/calls'
                case \"\$*\" in
                    *update*) : >'$work/bin/updated' ;;
                    *install*) [ -e '$work/bin/updated' ] ;;
                esac" ;;
            broken-apt-get) stand_in apt-get 'echo "E: no network"; exit 100' ;;
        esac
    done
}

stand_in() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}

run() {
    PATH=$work/bin bash "$script" "$@" >"$work/said" 2>&1
}

# The packages that it looks for without --dev.
all=$(sed -n '/^base=(/,/)/p' "$script" | tr -d '()\n' | sed 's/^base=//')
but_two=${all/libjansson-dev libpcre2-dev/}

machine 0 "$all" apt-get
run && [ ! -s "$work/calls" ] && [ ! -s "$work/said" ]
say $? nothing_is_said_or_done_where_all_is_there

machine 0 "$but_two" apt-get
run && grep -q 'installing libjansson-dev libpcre2-dev$' "$work/said" &&
    grep -q 'apt-get .*install .*libjansson-dev libpcre2-dev$' "$work/calls" &&
    ! grep -q 'update\|cmocka\|sudo' "$work/calls"
say $? only_what_is_missing_is_installed_and_said_before

machine 0 "$but_two" stale-apt-get
run && [ "$(grep -c update "$work/calls")" -eq 1 ] && [ "$(grep -c install "$work/calls")" -eq 2 ]
say $? the_lists_are_fetched_when_they_do_not_lead_to_the_package

machine 1000 "$but_two" apt-get sudo
run && [ "$(head -n 1 "$work/calls" 2>/dev/null)" = sudo ]
say $? sudo_is_used_by_those_who_are_not_root

machine 1000 "$but_two" apt-get
! run && grep -q 'apt-get install libjansson-dev libpcre2-dev' "$work/said"
say $? without_root_and_sudo_it_says_what_to_ask_for

machine 0 "$but_two"
! run && grep -q 'no apt-get' "$work/said" && grep -q 'libjansson-dev libpcre2-dev' "$work/said"
say $? without_apt_it_says_what_is_missing

machine 0 "$but_two" broken-apt-get
! run && grep -q 'no network' "$work/said"
say $? the_reason_of_a_failed_installation_is_shown

machine 0 "$all" apt-get
run --dev && grep -q 'clang-tidy' "$work/calls"
say $? the_tools_of_developers_come_when_asked_for

machine 0 "$all" apt-get
run --pip && grep -q 'install .*python3-pip$' "$work/calls" && ! grep -q clang "$work/calls"
say $? pip_comes_when_asked_for

run --devel
[ $? -eq 2 ]
say $? an_unknown_argument_is_wrong_usage
exit $failed
