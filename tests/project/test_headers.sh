#!/usr/bin/env bash
# Every public header stands alone and is valid C99 and C++11, with warnings as errors.
set -eu
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
for header in include/deepwell/*.h; do
    echo "#include \"deepwell/$(basename "$header")\"" | tee "$source/a.c" >"$source/a.cc"
    gcc -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only "$source/a.c"
    g++ -std=c++11 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only "$source/a.cc"
done
