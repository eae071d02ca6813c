#!/bin/sh
# What `make install` puts somewhere is all that a user's program needs: the examples build against it by pkg-config in C99 and by find_package,
# a C++ program links, the command runs from there, man pages and completion are whole.
set -eu
build=$(cd "${DEEPWELL_BUILD:-build}" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cmake --install "$build" --prefix "$place/usr" >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
lib=$(dirname "$(find "$place/usr" -name 'libdeepwell.so' | head -n 1)")
objdump -p "$lib/libdeepwell.so" | grep -q 'SONAME *libdeepwell.so.0'

export PKG_CONFIG_PATH="$lib/pkgconfig"
flags=$(pkg-config --define-variable=prefix="$place/usr" --cflags --libs deepwell)
for example in run graph kernel; do
    ${CC:-cc} -std=c99 -D_GNU_SOURCE -Wall -Wextra -Werror examples/$example.c -o "$place/$example" $flags -lm -Wl,-rpath,"$lib"
done
"$place/kernel" | grep -q 'my_matmul ran 1 time'

printf '#include <deepwell/deepwell.h>\n#include <cstdio>\nint main() { return std::puts(dw_version()) < 0; }\n' >"$place/main.cpp"
mkdir "$place/find" && cp "$place/main.cpp" "$place/find/"
printf 'cmake_minimum_required(VERSION 3.25)\nproject(user CXX)\nfind_package(deepwell 0.1 REQUIRED)\nadd_executable(user main.cpp)\ntarget_link_libraries(user deepwell::deepwell)\n' \
    >"$place/find/CMakeLists.txt"
cmake -S "$place/find" -B "$place/find/build" -DCMAKE_PREFIX_PATH="$place/usr" >"$place/log" 2>&1 && cmake --build "$place/find/build" >>"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
[ "$("$place/find/build/user")" = "$("$place/usr/bin/deepwell" --version | sed 's/deepwell //')" ]

for page in deepwell deepwell-probe deepwell-generate; do
    man --warnings -l "$place/usr/share/man/man1/$page.1" 2>/dev/null >/dev/null || [ ! -x "$(command -v man)" ]
    grep -q '^\.SH NAME' "$place/usr/share/man/man1/$page.1"
done
bash -n "$place/usr/share/bash-completion/completions/deepwell"

# The Debian package holds the same. dpkg-shlibdeps, which finds what it depends on, comes with dpkg-dev.
if command -v dpkg-shlibdeps >/dev/null; then
    cpack --config "$build/CPackConfig.cmake" -G DEB -B "$place/package" >"$place/log" 2>&1 || { cat "$place/log"; exit 1; }
    dpkg-deb -c "$place"/package/*.deb >"$place/list"
    grep -q "/usr/bin/deepwell$" "$place/list"
    dpkg-deb -f "$place"/package/*.deb Depends | grep -q libjansson4
fi
