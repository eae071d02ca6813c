#!/usr/bin/env bash
# Conformance of every GPU kernel on the simulated H200: a tenth of the lines of tests/conform, another for each commit (scripts/part.sh), on the PTX of the fatbins that ship, under one of three schedules, which
# changes with each commit, too. A row of kernel.def, or a way of one, that no line of any part reaches fails. With --all, all lines under more schedules, and rows of products and attention by what they pick. On GPUs of one
# and of three multiprocessors, which divide small cases as large ones are divided, a tenth of what has tiles for that. What runs on Blackwell's tensor cores alone runs on the simulated B200, too: a tenth of the lines that other kernels run as well, a fifth of its own, and a tenth of it on the simulated B300; what has
# kernels of its own for chips with little shared memory runs on a simulated RTX 5090, skinny products a tenth; so do those of the B200 that have instructions of their own, norms and quantisers among them.
# The tenth on the H200 is one test, the rest (--others, test_conform_others.sh) another, which may run beside it; --all takes both.
set -eu
program=$DEEPWELL_BUILD/tests/test_conform_kernels
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
lines=()
schedules=(7 0 3) turn=$(scripts/part.sh 3)
seeds=${schedules[${turn%/*}]}
part="--part $(scripts/part.sh)"
third="--part $turn" fifth="--part $(scripts/part.sh 5)"
processes=1                      # the tests beside it take the other cores
if [ ! -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ]; then   # a sanitizer's, which takes ten times as long: a tenth of a few files, one schedule
    read -ra lines <<<"$part tests/conform/rotary.txt tests/conform/route.txt tests/conform/softmax.txt tests/conform/index.txt"
    part= third= fifth= seeds=7
    [ "${1:-}" != --others ] || { echo "skipped: sim_conform runs all of this that is run under a sanitizer"; exit 77; }
fi
if [ "${1:-}" = --all ]; then
    seeds="0 1 2 3 5 7 11 13 17"
    part= third= fifth=
    processes=2
fi

# chip:seed files..
one() {
    local chip=${1%:*} seed=${1#*:} log begin
    shift
    log=$folder/$chip$seed
    begin=$(date +%s)
    if "$program" --device "sim:$chip,seed=$seed,threads=1" --seeds 1 "$@" >"$log" 2>&1; then
        echo "$chip, schedule $seed: $(grep -E '^[0-9]+ runs' "$log") in $(($(date +%s) - begin)) s: ${*:-every line of tests/conform}"
    else
        cat "$log"
        return 1
    fi
}
export -f one
export program folder
others() {
    for seed in $seeds; do for way in tcgen05 tcgen05_tiles tcgen05_tiles_blocks; do echo "b200:$seed $part --kernel cuda_matmul_$way tests/conform/matmul.txt"; done; done
    echo "b200:3 $part tests/conform/norm.txt tests/conform/quantize.txt"     # what its images have of their own
    [ -z "$part" ] || echo "b200:0 $part tests/conform/matmul.txt"
    echo "rtx5090:7 $part --kernel cuda_matmul_skinny tests/conform/matmul.txt"
    echo "b200:7 $part --kernel cuda_matmul_skinny tests/conform/matmul.txt"     # conversions and loads that these chips alone have
    echo "b200:7 $third --kernel cuda_grouped_skinny tests/conform/grouped.txt"
    echo "rtx5090:3 $third --kernel cuda_grouped_skinny tests/conform/grouped.txt"
    for chip in b200 rtx5090; do for way in decode latent; do echo "$chip:5 $part --kernel cuda_attention_$way tests/conform/attention.txt"; done; done
    [ "${1:-}" != --all ] || for family in matmul grouped attention; do echo "h200:19 --kernel cuda_$family tests/conform/$family.txt"; done
    echo "h200,units=4:9 $third --kernel cuda_attention_latent tests/conform/attention.txt"     # tiles of 64 rows
    # The tiles by tcgen05 by name, several to each thread block.
    for chip in "b200,units=4:7 $fifth" "b300,units=10,declines=40:12 $part"; do echo "$chip --kernel cuda_matmul_tcgen05_tiles tests/conform/tcgen05.txt tests/conform/tcgen05_pairs.txt"; done
    for chip in "b200,units=12:5 $fifth" "b300,units=10,declines=40:12 $part"; do echo "$chip --kernel cuda_matmul_tcgen05_tiles tests/conform/tcgen05_shared.txt"; done     # room for several clusters of four blocks
    for chip in "b200,units=4:7 $fifth" "b300,units=6:12 $part"; do echo "$chip --kernel cuda_grouped_tcgen05 tests/conform/tcgen05_groups.txt tests/conform/tcgen05_pairs_groups.txt"; done
    for chip in "b200:7 $third" "b300:12 $third"; do echo "$chip --kernel cuda_grouped_outer_tcgen05 tests/conform/grouped.txt"; done
    for run in h200,units=3:3 h200,units=1:1; do echo "$run $part --kernel cuda_attention_wgmma tests/conform/attention.txt"; done     # thread blocks that make several tiles, or all of them
    echo "h200,units=1:5 $third --kernel cuda_matmul_wgmma_decoded tests/conform/matmul.txt"     # few parts of k, so that rings go round
    echo "h200,units=3:5 $part --kernel cuda_matmul_wgmma_folded tests/conform/folded.txt"     # its tiles by name
    echo "h200,units=1:5 $part --kernel cuda_matmul_wgmma_half tests/conform/matmul.txt"
    echo "h200,units=3:3 $third --kernel cuda_attention_backward_joined tests/conform/attention_backward.txt"     # which wait for each other besides
    echo "h200,units=16:3 $third --kernel cuda_sample tests/conform/sample.txt"     # clusters of three and of seven blocks
    for chip in "b200:3 $part" "b300,units=2:12 $part"; do echo "$chip --kernel cuda_attention_tcgen05 tests/conform/attention.txt"; done
    echo "b200,units=2:5 $third --kernel cuda_attention_tcgen05_blocks tests/conform/attention.txt"
    for run in "h200,units=2:9 $third --kernel cuda_mqa_logits_wgmma" "b200,units=2:5 $third --kernel cuda_mqa_logits_tcgen05" "b300:12 $part --kernel cuda_mqa_logits_tcgen05"; do echo "$run tests/conform/mqa_logits.txt"; done
    echo "b200,units=4:3 $fifth --kernel cuda_matmul_tcgen05_tiles_blocks tests/conform/tcgen05_blocks.txt tests/conform/tcgen05_pairs_blocks.txt"
    echo "h200,units=1:5 $third tests/conform/transposed.txt"     # where nothing is few
    echo "h200,units=1:7 $part tests/conform/norm.txt tests/conform/norm_backward.txt tests/conform/quantize.txt tests/conform/softmax.txt tests/conform/rotary.txt"
}
{
    [ "${1:-}" = --others ] || for seed in $seeds; do echo "h200:$seed $part ${lines[*]-}"; done     # the longest first
    [ -z "${1:-}" ] || [ ${#lines[@]} -gt 0 ] || others "$@"
} | xargs -P "$processes" -I{} bash -c 'one {}'
