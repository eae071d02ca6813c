#!/usr/bin/env bash
# The entries of the Hopper tiles for bf16 and for e4m3 with scales by block, the large ones too, which no line of tests/conform is large enough for, on a simulated
# H200 of two multiprocessors: each block takes several tiles, so that rings of loads and of results go round; those of 64 rows with k enough that their rings of scales do. f16 and e4m3 without such scales share the code. Half of them for each commit (scripts/part.sh).
set -eu
program=$DEEPWELL_BUILD/bench/cuda_matmul
[ -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ] || { echo "skipped: a sanitizer's library needs a program built with it"; exit 77; }
[ -f "$DEEPWELL_BUILD/images/cuda_matmul_reference.fatbin" ] || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$(realpath "$DEEPWELL_BUILD/libdeepwell-sim.so")" "$folder/libcuda.so.1"
export program folder
check() {
    DEEPWELL_SIM=h200,seed=5,units=2,threads=1 LD_LIBRARY_PATH=$folder "$program" "$DEEPWELL_BUILD/images" check "$@" >"$folder/$1$2$5" 2>&1 || { cat "$folder/$1$2$5"; return 1; }
    echo "$*: $(tail -1 "$folder/$1$2$5")"
}
export -f check
part=$(scripts/part.sh 2)
lines=("e4m3_block 264 264 128 bias,gelu" "bf16 520 264 64 bias,gelu,add" "e4m3_block 264 512 128 swiglu" "e4m3_block 72 72 2688 bias m64" "bf16 72 72 1344 add m64"
    "e4m3 264 512 640 bias,swiglu,mxfp8" "e4m3_block 264 1024 640 swiglu,mxfp8" "e4m3_block 264 264 640 bias,gelu,fp8_1x128")
for i in "${!lines[@]}"; do [ $((i % 2)) != "${part%/*}" ] || echo "${lines[$i]}"; done | xargs -P 2 -I{} bash -c 'check $1' one {}
