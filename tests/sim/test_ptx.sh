#!/usr/bin/env bash
# The cases of tests/sim/ptx on the simulator under several schedules; and, where the build has nvcc, programs of tests/sim/programs from fatbins, one of them in every compression.
set -eu
tool="$DEEPWELL_BUILD/tests/tool_sim_ptx"
library="$DEEPWELL_BUILD/libdeepwell-sim.so"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for options in h200,budget=1000000 h200,budget=1000000,seed=7,threads=2 h100,budget=1000000,seed=12345,threads=1; do
    echo "$options"
    DEEPWELL_SIM=$options "$tool" "$library" tests/sim/ptx/*.ptx
done
for options in b200,budget=2000000 b200,budget=2000000,seed=7,threads=2; do
    echo "$options"
    DEEPWELL_SIM=$options "$tool" "$library" $(grep -l '^// needs: 100' tests/sim/ptx/*.ptx)
done
DEEPWELL_SIM=b300,budget=2000000 "$tool" "$library" $(grep -l '^// needs: 103' tests/sim/ptx/*.ptx)
DEEPWELL_SIM=rtx5090,budget=1000000 "$tool" "$library" $(grep -l '^// needs: 120' tests/sim/ptx/*.ptx)
# A chip with another architecture refuses what is made for one alone.
if DEEPWELL_SIM=b200 "$tool" "$library" tests/sim/ptx/warp.ptx 2>"$folder/message"; then
    echo "b200 ran PTX for sm_90a"
    exit 1
fi
grep -q "the PTX is for sm_90a, and b200 is sm_100" "$folder/message"
# A chip of sm_107 runs the code of the family sm_100f, and none that is for sm_100 alone.
for case in tcgen05_mma_bf16 tcgen05_pair cluster_launch_sizes; do
    sed 's/^\/\/ needs: 100/\/\/ needs: 107/' "tests/sim/ptx/$case.ptx" >"$folder/case.ptx"
    DEEPWELL_SIM=rubin "$tool" "$library" "$folder/case.ptx" 2>"$folder/message" && exit 1
    grep -q "the PTX is for sm_100a, and rubin is sm_107" "$folder/message"
    sed -i 's/^\.target sm_100a/.target sm_100f/' "$folder/case.ptx"
    DEEPWELL_SIM=rubin,seed=7 "$tool" "$library" "$folder/case.ptx"
done
# Requests of cluster launch control that are declined though there are clusters, and clusters of two sizes: whatever the choice, what is right stays so.
for options in declines=0,seed=7 declines=50 declines=100,seed=3 clusters=preferred clusters=regular,seed=5 units=1,seed=9; do
    DEEPWELL_SIM=b200,budget=2000000,$options "$tool" "$library" tests/sim/ptx/cluster_launch*.ptx tests/sim/ptx/cluster_sizes*.ptx tests/sim/ptx/find_cluster_launch_[aeiu]*.ptx
done
# Who takes a decline for the end of all work, or drops the response behind one, is right without declines alone.
DEEPWELL_SIM=b200,units=1,declines=0 "$tool" "$library" tests/sim/ptx/declined/*.ptx
for case in tests/sim/ptx/declined/*.ptx; do
    DEEPWELL_SIM=b200,units=1,declines=50 "$tool" "$library" "$case" 2>"$folder/message" && exit 1
    grep -q "word [0-9]* of out is" "$folder/message"
done
# The sizes that are seen: of four CTAs where they are preferred, of two where they are not, else both; a chip of another family has those of two alone.
for choice in preferred:4 regular:2 mixed:[24]; do
    DEEPWELL_SIM=b200,seed=7,clusters=${choice%:*} "$tool" "$library" --print tests/sim/ptx/cluster_sizes_seen.ptx >"$folder/printed"
    for size in 2 4; do
        case $size in ${choice#*:}) grep -q "0x0000000$size" "$folder/printed" ;; *) grep -q "0x0000000$size" "$folder/printed" && exit 1 ;; esac
    done
done
sed 's/^\.target sm_100a/.target sm_90/; s/needs: 100/needs: 90/' tests/sim/ptx/cluster_sizes_seen.ptx >"$folder/seen.ptx"
DEEPWELL_SIM=h200,clusters=preferred "$tool" "$library" --print "$folder/seen.ptx" >"$folder/printed"
grep -q "0x00000004" "$folder/printed" && exit 1
grep -q "0x00000002" "$folder/printed"
# Sums one after another in fp32, where that is asked for; those that are exact are the same.
DEEPWELL_SIM=h200,sums=fp32 "$tool" "$library" --print tests/sim/ptx/sums.ptx >"$folder/printed" 2>&1 && exit 1
grep -q "0x3f800000 0x3f800000 0x3f800000 0x3f800000" "$folder/printed"
DEEPWELL_SIM=b200,budget=2000000,sums=fp32 "$tool" "$library" tests/sim/ptx/tcgen05_mma_*.ptx
# Phases that nobody waits for, as an H200 takes them; without the option they are a finding.
DEEPWELL_SIM=h200,phases=unseen "$tool" "$library" tests/sim/ptx/unseen/*.ptx
DEEPWELL_SIM=h200 "$tool" "$library" tests/sim/ptx/unseen/*.ptx 2>"$folder/message" && exit 1
grep -q "nobody waited for the one before" "$folder/message"
# What a case finds that an option allows: nothing is said then.
for allowed in inits=unfenced:find_mbarrier_unfenced proxies=one:find_bulk_without_fence exit=early:find_barrier_left_open; do
    DEEPWELL_SIM=h200,${allowed%:*} "$tool" "$library" "tests/sim/ptx/${allowed#*:}.ptx" >"$folder/printed" 2>&1 && exit 1
    grep -q "nothing was said" "$folder/printed"
done
if DEEPWELL_SIM=h200,sede=3 "$tool" "$library" tests/sim/ptx/warp.ptx 2>"$folder/message"; then
    echo "an option that does not exist was accepted"
    exit 1
fi
grep -q "option 'sede=3' is not understood" "$folder/message"
DEEPWELL_SIM=h200,fail_alloc=2 "$tool" "$library" tests/sim/ptx/warp.ptx 2>"$folder/message" && exit 1
grep -q "as the option fail_alloc asks" "$folder/message"
DEEPWELL_SIM=h200,fail_launch=1 "$tool" "$library" tests/sim/ptx/warp.ptx 2>"$folder/message" && exit 1
grep -q "as the option fail_launch asks" "$folder/message"

# Each warp its own number of registers, and none that matters.
for option in warps unlimited; do
    if DEEPWELL_SIM=h200,registers=$option "$tool" "$library" tests/sim/ptx/find_registers_other.ptx 2>"$folder/message"; then
        echo "registers=$option: the finding is made all the same"
        exit 1
    fi
    grep -q "nothing was said" "$folder/message"
done

if [ -z "$DEEPWELL_NVCC" ]; then
    echo "no nvcc: the programs of tests/sim/programs are not compiled"
    exit 0
fi
shopt -s nullglob
for program in tests/sim/programs/*.cu; do
    modes=--compress-mode=default
    [ "$program" != tests/sim/programs/kernels.cu ] || modes="$modes --compress-mode=none --compress-mode=speed --compress-mode=size"
    for mode in $modes; do
        # machine code and another architecture's PTX are there to be passed over
        "$DEEPWELL_NVCC" -fatbin -lineinfo -gencode 'arch=compute_90a,code=[sm_90a,compute_90a]' -gencode arch=compute_80,code=compute_80 $mode "$program" -o "$folder/image" 2>"$folder/ptxas" || { cat "$folder/ptxas"; exit 1; }
        DEEPWELL_SIM=h200 "$tool" "$library" --image "$folder/image" "$program"
    done
done
