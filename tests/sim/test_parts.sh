#!/usr/bin/env bash
# Products in parts by tcgen05 (kernels/gemm/tcgen05/parts.cuh) give the same bits in every run, whichever of a tile's parts is computed last: one tile in eight parts, and tiles in three beside whole ones,
# under six schedules.
set -eu
program=$DEEPWELL_BUILD/tests/test_conform_kernels
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
for line in "bf16[100,2056] bf16[40,2056]" "mxfp8@tile128x4[200,1040] mxfp8@tile128x4[264,1040]"; do
    found=$(for seed in 0 1 2 3 5 7; do
        "$program" --device "sim:b200,units=8,seed=$seed,threads=1" --seeds 1 --once --bits --kernel cuda_matmul_tcgen05_tiles matmul $line bt=true to=f32 variant=m128n128_parts | grep -o '[0-9a-f]\{16\}$'
    done)
    [ "$(wc -w <<<"$found")" -eq 6 ] || { echo "$line: not six results: $found"; exit 1; }
    [ "$(sort -u <<<"$found" | wc -l)" -eq 1 ] || { echo "$line: schedules differ:"; echo "$found"; exit 1; }
done
