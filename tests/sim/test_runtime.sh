#!/usr/bin/env bash
# Programs of CUDA's runtime as nvcc compiles them, on the simulated driver with the runtime that goes with it.
set -eu
[ -f "$DEEPWELL_BUILD/libdeepwell-sim-cudart.so" ] || { echo "skipped: this build has no nvcc and its headers"; exit 77; }
[ -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ] || { echo "skipped: a sanitizer's library needs a program built with it"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$DEEPWELL_NVCC" -cudart shared -lineinfo -gencode arch=compute_90,code=compute_90 tests/sim/runtime/program.cu -o "$folder/program"
"$DEEPWELL_NVCC" -cudart shared -gencode arch=compute_90,code=compute_90 tests/sim/runtime/memory.cu -o "$folder/memory"
ln -s "$(realpath "$DEEPWELL_BUILD/libdeepwell-sim.so")" "$folder/libcuda.so.1"
ln -s "$(realpath "$DEEPWELL_BUILD/libdeepwell-sim-cudart.so")" "$folder/libcudart.so.13"
for chip in h200 b200,seed=7; do
    if ! DEEPWELL_SIM=$chip LD_LIBRARY_PATH="$folder:$DEEPWELL_BUILD" "$folder/memory" >"$folder/out" 2>"$folder/err"; then
        cat "$folder/out" "$folder/err"
        exit 1
    fi
    grep -qx "all right" "$folder/out"
    if ! DEEPWELL_SIM=$chip LD_LIBRARY_PATH="$folder:$DEEPWELL_BUILD" "$folder/program" >"$folder/out" 2>"$folder/err"; then
        cat "$folder/out" "$folder/err"
        exit 1
    fi
    grep -q "^Deepwell simulated ${chip%%,*}, compute capability" "$folder/out"
    grep -qx 1998 "$folder/out"
    grep -q "a block of 2048x1x1 threads" "$folder/err"
    grep -qE "^deepwell-sim: INVALID: kernel .*add.*, PTX line [0-9]+ \(.*program.cu:10\), ld.global.*lane 8 \(thread 104,0,0\): " "$folder/err"
done
