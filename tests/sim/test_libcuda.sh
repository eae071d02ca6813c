#!/usr/bin/env bash
# The library in the place of libcuda.so.1: a program that knows nothing of it runs, with its chip and options from DEEPWELL_SIM alone.
set -eu
[ -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ] || { echo "skipped: a sanitizer's library needs a program built with it"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror tests/sim/programs/vector_add.c -o "$folder/program" -ldl
ln -s "$(realpath "$DEEPWELL_BUILD/libdeepwell-sim.so")" "$folder/libcuda.so.1"
run() { DEEPWELL_SIM=$1 LD_LIBRARY_PATH="$folder" "$folder/program"; }
[ "$(run h200,seed=3)" = "1 device, Deepwell simulated h200, compute capability 9: 999.5, 4000 bytes" ]
[ "$(run b200)" = "1 device, Deepwell simulated b200, compute capability 10: 999.5, 4000 bytes" ]
if run no_such_chip >"$folder/said" 2>&1; then
    echo "a chip that does not exist was accepted"
    exit 1
fi
grep -q "cuInit: 100" "$folder/said"
