#!/usr/bin/env bash
# The shared library exports what the public headers declare, and nothing else.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
nm -D --defined-only "$DEEPWELL_BUILD/libdeepwell.so" | awk '{ print $NF }' | sort -u >"$folder/exported"
cat include/deepwell/*.h | tr '\n' ' ' | grep -oE 'DW_API [^;{}]*' | grep -oE 'dw_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u >"$folder/declared"
[ "$(wc -l <"$folder/declared")" -ge 10 ] || { echo "hardly anything is declared:"; cat "$folder/declared"; exit 1; }
if ! diff "$folder/declared" "$folder/exported"; then
    echo "< is declared and not exported, > is exported and not declared"
    exit 1
fi
