#!/usr/bin/env bash
# `make install` into a DESTDIR gives what a stranger's build needs, and `make uninstall` takes all
# of it away again.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PREFIX=/opt/deepinfer
root=$work/root$PREFIX
source tests/support/tap.bash

# Make as a person would call it, not as a part of the make that runs the tests.
run_make() {
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make --no-print-directory MODE="$MODE" \
        PREFIX="$PREFIX" DESTDIR="$work/root" "$@" >"$work/log" 2>&1
}

in_sysroot() {
    PKG_CONFIG_PATH=$root/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/root pkg-config "$@" deepinfer
}

case $MODE in
    asan) cc='gcc -fsanitize=address,undefined' cxx='g++ -fsanitize=address,undefined' ;;
    tsan) cc='clang -fsanitize=thread' cxx='clang++ -fsanitize=thread' ;;
    *) cc=gcc cxx=g++ ;;
esac

cat >"$work/hello.c" <<'C'
#include <deepinfer/deepinfer.h>
#include <stdio.h>

int main(void) {
    printf("%s\n", di_version());
    return 0;
}
C
cat >"$work/hello.cc" <<'CXX'
#include <deepinfer/deepinfer.h>
#include <iostream>

int main() {
    di_error err{};
    std::cout << di_version() << '\n';
    return err.code == DI_OK ? 0 : 1;
}
CXX

run_make install
say $? make_install_succeeds

missing=0
: >"$work/log"
for file in bin/deepinfer lib/libdeepinfer.a lib/libdeepinfer.so include/deepinfer/deepinfer.h \
    include/deepinfer/error.h lib/pkgconfig/deepinfer.pc share/man/man1/deepinfer.1 \
    share/bash-completion/completions/deepinfer; do
    [ -s "$root/$file" ] || { echo "missing: $file" >>"$work/log"; missing=1; }
done
say $missing every_part_is_installed

"$root/bin/deepinfer" version >"$work/log" 2>&1
say $? the_installed_program_runs

version=$(cat VERSION)
soname=$(objdump -p "$root/lib/libdeepinfer.so" | awk '$1 == "SONAME" { print $2 }')
[ "$soname" = "libdeepinfer.so.${version%%.*}" ] && [ -e "$root/lib/$soname" ] &&
    [ "$(readlink "$root/lib/libdeepinfer.so")" = "$soname" ]
say $? the_soname_link_leads_to_the_library

[ "$(in_sysroot --modversion)" = "$version" ]
say $? pkg_config_tells_the_version

$cc -std=c99 -Wall -Wextra -Werror -pedantic "$work/hello.c" -o "$work/hello" \
    $(in_sysroot --cflags --libs) >"$work/log" 2>&1 &&
    [ "$(LD_LIBRARY_PATH=$root/lib "$work/hello")" = "$version" ]
say $? a_c_program_builds_against_the_shared_library

$cxx -std=c++11 -Wall -Wextra -Werror -pedantic "$work/hello.cc" -o "$work/hello++" \
    $(in_sysroot --cflags --libs) >"$work/log" 2>&1 &&
    [ "$(LD_LIBRARY_PATH=$root/lib "$work/hello++")" = "$version" ]
say $? a_cxx_program_builds_against_the_shared_library

rm -f "$work/hello"
libs=$(in_sysroot --static --libs)
$cc "$work/hello.c" -o "$work/hello" $(in_sysroot --cflags) \
    ${libs/-ldeepinfer/-l:libdeepinfer.a} >"$work/log" 2>&1 &&
    [ "$("$work/hello")" = "$version" ]
say $? a_c_program_builds_against_the_static_library

# Nothing but the public interface leaves the shared library.
nm -D --defined-only "$root/lib/libdeepinfer.so" | awk '{ print $3 }' | grep '^di_' |
    sort >"$work/exported"
cat "$root"/include/deepinfer/*.h >"$work/headers"
while read -r name; do
    grep -qw "$name" "$work/headers" || echo "exported but not in a public header: $name"
done <"$work/exported" >"$work/log"
[ -s "$work/exported" ] && [ ! -s "$work/log" ]
say $? the_library_exports_the_public_interface_only

page=$root/share/man/man1/deepinfer.1
if command -v man >/dev/null; then
    MANWIDTH=80 man --warnings -l "$page" >"$work/page" 2>"$work/log"
elif command -v mandoc >/dev/null; then
    mandoc "$page" >"$work/page" 2>"$work/log"
else
    cp "$page" "$work/page"
fi
[ ! -s "$work/log" ] && grep -q 'NAME' "$work/page" && grep -q 'temperature' "$work/page"
say $? the_man_page_renders_without_a_warning

bash -n "$root/share/bash-completion/completions/deepinfer" >"$work/log" 2>&1 &&
    bash -c ". '$root/share/bash-completion/completions/deepinfer' && complete -p deepinfer" \
        >>"$work/log" 2>&1
say $? the_completion_loads

run_make uninstall
say $? make_uninstall_succeeds
find "$work/root" ! -type d >"$work/log"
[ ! -s "$work/log" ] && [ ! -d "$root/include/deepinfer" ]
say $? uninstall_leaves_nothing_of_ours
exit $failed
