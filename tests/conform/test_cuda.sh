#!/usr/bin/env bash
# Conformance of the plain GPU kernels: their source compiled for the host, run by the stand-in for the driver (tests/cuda). What it cannot show, such as races,
# a GPU has to: test_conform_kernels --device cuda tests/conform/*.txt. A tenth of the lines for each commit (scripts/part.sh): the simulator runs the same kernels on all of them (sim_conform).
set -eu
driver=$DEEPWELL_BUILD/tests/libfake_cuda.so
[ -f "$driver" ] || { echo "skipped: a build with sanitizers has no stand-in for the driver"; exit 77; }
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
# The rows of libraries on a stand-in for each, for the chip that has the most of their modes.
on_libraries() {
    FAKE_CUDA_GPU="NVIDIA H200:9:0:132" "$DEEPWELL_BUILD/tests/test_conform_kernels" --device "cuda:0,driver=$driver,libraries=$DEEPWELL_BUILD/tests/libraries" --seeds 1 --kernel "$@"
}
# Without results in blocks: the quantiser that a Hopper takes behind the product is none of the plain kernels, and has no form for the host.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
grep -v -E ' to=(fp8_|mx|nv)' tests/conform/matmul.txt >"$folder/matmul.txt"
on_libraries cuda_matmul_cublaslt tests/conform/library.txt "$folder/matmul.txt"
on_libraries cuda_attention_cudnn tests/conform/library.txt
for file in tests/conform/*.txt; do echo "$file"; done |
    xargs -n 1 "$DEEPWELL_BUILD/tests/test_conform_kernels" --device "cuda:0,driver=$driver" --seeds 1 --part "$(scripts/part.sh)"
