#!/bin/sh
# Fuzzes with libFuzzer under the address and undefined-behaviour sanitizers (clang): each target named, or all, for so many runs.
# Usage: scripts/fuzz.sh RUNS [TARGET...]     What the corpus lacks goes to build/fuzzing/found/TARGET; a finding is written there too, and ends with exit 1.
#        scripts/fuzz.sh graphs RUNS [SEED [DEVICE]]     random graphs (tests/graphs) from that seed on, by two processes of the ordinary build; the CPU where no device is named
set -eu
cd "$(dirname "$0")/.."
if [ "$1" = graphs ]; then
    runs=$2 seed=${3:-1} found=build/fuzzing/found
    mkdir -p "$found"
    cmake --build build --target test_graphs_run
    device=${4:-}
    for half in 0 1; do
        build/tests/test_graphs_run --keep-going --seed $((seed + half * (runs / 2))) --count $((runs / 2)) ${device:+--device "$device"} >"$found/graphs$half.log" 2>&1 &
    done
    failed=0
    for job in $(jobs -p); do wait "$job" || failed=1; done
    grep -hE '^(graph [0-9]|graphs from|never met)' "$found"/graphs[01].log
    exit $failed
fi
runs=$1
shift
[ $# -gt 0 ] || set -- $(ls tests/fuzz | sed -n 's/^fuzz_\(.*\)\.c$/\1/p')
targets=$(printf ' fuzz_%s' "$@")
[ -f build/fuzzing/CMakeCache.txt ] ||
    cmake -S . -B build/fuzzing -DCMAKE_C_COMPILER="${CC:-clang-19}" -DDEEPWELL_SANITIZE=address,undefined -DDEEPWELL_FUZZ=ON -DDEEPWELL_NVCC=
cmake --build build/fuzzing --target $targets
# Freed memory waits in a quarantine that holds a whole run's, no more: a larger one costs page faults, which is most of a short run's time.
export ASAN_OPTIONS=allocator_may_return_null=1:quarantine_size_mb=8:malloc_context_size=4
for target in "$@"; do
    found=build/fuzzing/found/$target seeds=build/fuzzing/seeds/$target
    mkdir -p "$found" "$seeds"
    longest= dictionary=words corpus=tests/fuzz/corpus/$target
    case $target in
    ptx) dictionary=ptx ;;
    kernel) dictionary=ptx longest=-max_len=32768 corpus=tests/sim/ptx ;;
    program | archive)
        # Inputs of more than a few kilobytes, which mutation makes out of any, cost runs and reach nothing that shorter ones do not.
        longest=-max_len=8192
        [ ! -d build/fixtures/operators ] || python3 tests/fuzz/seeds.py build/fixtures/operators "$target" "$seeds"
        ;;
    esac
    echo "== $target, $runs runs"
    build/fuzzing/fuzz/fuzz_$target -runs="$runs" -dict="build/fuzzing/fuzz/$dictionary.dict" -artifact_prefix="$found/" -timeout=5 -rss_limit_mb=2048 \
        -malloc_limit_mb=1024 -print_final_stats=1 $longest "$found" "$seeds" "$corpus" 2>&1 | tee "$found.log" |
        grep -E '^stat::(number_of|average|peak)|SUMMARY|ERROR|Done' || true
    grep -q '^Done' "$found.log" || exit 1
done
