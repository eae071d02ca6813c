#!/bin/sh
# Fuzzes with libFuzzer under the address and undefined-behaviour sanitizers (clang): each target named, or all, for so many runs.
# Usage: scripts/fuzz.sh RUNS [TARGET...]     What the corpus lacks goes to build/fuzzing/found/TARGET; a finding is written there too, and ends with exit 1.
set -eu
cd "$(dirname "$0")/.."
runs=$1
shift
[ $# -gt 0 ] || set -- $(ls tests/fuzz | sed -n 's/^fuzz_\(.*\)\.c$/\1/p')
targets=$(printf ' fuzz_%s' "$@")
[ -f build/fuzzing/CMakeCache.txt ] ||
    cmake -S . -B build/fuzzing -DCMAKE_C_COMPILER="${CC:-clang-19}" -DDEEPWELL_SANITIZE=address,undefined -DDEEPWELL_FUZZ=ON
cmake --build build/fuzzing --target $targets
export ASAN_OPTIONS=allocator_may_return_null=1
for target in "$@"; do
    found=build/fuzzing/found/$target
    mkdir -p "$found"
    echo "== $target, $runs runs"
    build/fuzzing/fuzz/fuzz_$target -runs="$runs" -dict=build/fuzzing/fuzz/words.dict -artifact_prefix="$found/" -timeout=5 -rss_limit_mb=2048 \
        -malloc_limit_mb=1024 -print_final_stats=1 "$found" "tests/fuzz/corpus/$target" 2>&1 | tee "$found.log" |
        grep -E '^stat::(number_of|average|peak)|SUMMARY|ERROR|Done' || true
    grep -q '^Done' "$found.log" || exit 1
done
