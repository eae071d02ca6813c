#!/usr/bin/env bash
# The command line on a simulated GPU: trace, of one op and of a graph; bench and check, which run as on any device but tell no times; tune, which refuses.
set -eu
command="$DEEPWELL_BUILD/deepwell"
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# says FILE TEXT..: the file has lines with these
says() {
    local file=$1 text
    shift
    for text in "$@"; do grep -qF -- "$text" "$file" || { echo "'$text' is not in:"; cat "$file"; exit 1; }; done
}
# fails CODE TEXT ARGUMENTS..: exit code and message, and nothing on standard output
fails() {
    local code=$1 text=$2 found=0
    shift 2
    "$command" "$@" >"$folder/out" 2>"$folder/err" || found=$?
    [ "$found" = "$code" ] || { echo "deepwell $*: exit $found, not $code"; cat "$folder/err"; exit 1; }
    says "$folder/err" "$text"
    [ ! -s "$folder/out" ] || { echo "deepwell $*: wrote to standard output"; exit 1; }
}
cat >"$folder/small.graph" <<'EOF'
graph small
  symbol s 1..8
  input x f32[s,4]
  const w f32[2,4] = 1,2,3,4,5,6,7,8
  %1 = matmul x, w {bt=true}
  %2 = relu %1
  output y %2
EOF
line='silu f32[42,96]'

# The driver's own trace of a kernel in PTX: every column, an address, a value of each lane, a sequence.
DEEPWELL_SIM=h200,trace=test,trace_cta=1,trace_warp=1,trace_file="$folder/trace" "$DEEPWELL_BUILD/tests/tool_sim_ptx" "$DEEPWELL_BUILD/libdeepwell-sim.so" tests/sim/ptx/add.ptx >"$folder/out"
says "$folder/trace" "launch 1: test, grid 2,1,1, block 64,1,1, cluster 1,1,1, 0 bytes of dynamic shared memory; CTA 1,0,0, warp 1" "the warp has ended, 13 instructions"
grep -qE '^ +4 +16 +ffffffff  mov\.u32 %r1, %tid\.x +%r1 = 32 33 \.\. 63$' "$folder/trace"
grep -qE '^ +5 +17 +ffffffff  mad\.lo\.u32 %r0, %r0, 64, %r1 +%r0 = 96 97 \.\. 127$' "$folder/trace"
grep -qE '^ +12 +24 +ffffffff  st\.global\.u32 \[%rd0\], %r2 +%rd0 = 0x300000000180 0x300000000184 \.\. 0x3000000001fc  %r2 =( [0-9]+){32}$' "$folder/trace"
# Lanes whose guard does not hold, and an instruction that no lane executes; a loop that waits.
DEEPWELL_SIM=b200,trace=1,trace_file="$folder/trace" "$DEEPWELL_BUILD/tests/tool_sim_ptx" "$DEEPWELL_BUILD/libdeepwell-sim.so" tests/sim/ptx/tcgen05_mma_bf16.ptx >"$folder/out"
grep -qE ' 00000001  @%p0 tcgen05\.mma\.cta_group::1\.kind::f16 \[%t\], %d0, %d1, .* %d0 = 0x8000402000000040  %d1 = 0xc000401000000240 ' "$folder/trace"
grep -qE ' 00000000  @!%p2 bra' "$folder/trace"
grep -qE 'try_wait.* waits$' "$folder/trace"

# An op: the launches, then one of them.
"$command" trace "$line" --device sim:h200 >"$folder/out"
grep -qxE 'launch 1: pointwise_vectors, grid 2,1,1, block 256,1,1, .*: [0-9]+ warp instructions' "$folder/out"
"$command" trace "$line" --device sim:h200,seed=3 --launch pointwise_v --cta 1 --warp 7 --lines 5 >"$folder/out"
[ "$(wc -l <"$folder/out")" = 8 ]
says "$folder/out" "CTA 1,0,0, warp 7" "5 instructions are printed, which is the limit; the warp goes on"
"$command" trace "$line" --device sim:h200 --launch 1 --warp 7 --lines 100000 | grep -q "the warp has ended"
# A graph: matmul is its first kernel, and relu its second.
"$command" trace "$folder/small.graph" --device sim:h200 --dim s=3 >"$folder/out"
[ "$(grep -c '^launch' "$folder/out")" -ge 1 ]
"$command" trace "$folder/small.graph" --device sim:h200 --launch matmul:1 | grep -q "^launch 1: matmul"
fails 1 "has no launch '99'" trace "$line" --device sim:h200 --launch 99
fails 1 "has no launch 'nobody'" trace "$line" --device sim:h200 --launch nobody
fails 1 "asks for CTA 2,0,0, and launch 1 of pointwise_vectors has a grid of 2,1,1" trace "$line" --device sim:h200 --launch 1 --cta 2,0,0
fails 1 "CTAs of 8 warps" trace "$line" --device sim:h200 --launch 1 --warp 8
fails 1 "expected X, X:Y or X:Y:Z" trace "$line" --device sim:h200 --launch 1 --cta 1,x
fails 1 "expected a number from 1" trace "$line" --device sim:h200 --launch 1,seed=4
fails 1 "a trace is of a simulated GPU's instructions" trace "$line" --launch 1
fails 1 "a trace is of a simulated GPU's instructions" trace "$line" --device cuda:0 --launch 1
fails 2 "an integer from 0 to 31" trace "$line" --device sim:h200 --warp 32
fails 2 "an integer from 1" trace "$line" --device sim:h200 --lines 0
if DEEPWELL_SIM=h200,trace_line=3 "$DEEPWELL_BUILD/tests/tool_sim_ptx" "$DEEPWELL_BUILD/libdeepwell-sim.so" tests/sim/ptx/add.ptx 2>"$folder/err"; then exit 1; fi
says "$folder/err" "option 'trace_line=3': there are trace, trace_cta"

# bench runs everything once, and tells no time.
"$command" bench "$line" --device sim:h200 >"$folder/out"
says "$folder/out" "simulated: functional only, there are no times" "cuda_silu                    ran  chosen"
"$command" bench "$folder/small.graph" --device sim:h200 >"$folder/out"
says "$folder/out" "simulated: functional only, there are no times" "a whole run: done"
for what in "$line" "$folder/small.graph"; do
    "$command" bench "$what" --device sim:h200 --json >"$folder/out"
    says "$folder/out" '"simulated": true'
    if grep -qE 'seconds|gflops|"min"|estimate' "$folder/out"; then
        echo "bench tells a time of a simulation:"
        cat "$folder/out"
        exit 1
    fi
done
# Its report has bounds, and no times.
"$command" bench "$folder/small.graph" --device sim:h200 --report >"$folder/out"
says "$folder/out" "not measured: the device is simulated; bound 0.000 ms" "memory     cuda_matmul_plain" "matmul(relu) f32[1,4] f32[2,4] -> f32[1,2]"
"$command" bench "$folder/small.graph" --device sim:h200 --report --json >"$folder/out"
says "$folder/out" '"measured": false' '"bound_seconds": '
if grep -qE '"(seconds|wall_seconds|host_seconds|apart_seconds|launch_seconds|lost_seconds|ratio)"' "$folder/out"; then
    echo "the report tells a time of a simulation:"
    cat "$folder/out"
    exit 1
fi
"$command" explain "$folder/small.graph" --device sim:b200 >"$folder/out"
says "$folder/out" "Deepwell simulated b200"
"$command" check "$folder/small.graph" --device sim:b200 --dim s=3 >"$folder/out"
says "$folder/out" "Deepwell simulated b200 beside the CPU" "all of it is within what sums in another order explain"
# Attention of views that begin at no multiple of 16 bytes: no tensor map describes them, and some kernel takes them.
for shape in '1,16,1 64' '1,1,100 64' '1,16,1 576'; do
    read -r axes width <<<"$shape"
    cat >"$folder/views.graph" <<EOF
graph views
  input q bf16[$axes,$((width + 1))]
  input k bf16[1,1,40,$((width + 16))]
  %1 = slice q {axis=3,start=1,end=$((width + 1)),step=1}
  %2 = slice k {axis=3,start=0,end=$width,step=1}
  %3 = slice k {axis=3,start=4,end=$((width < 512 ? width + 4 : 516)),step=1}
  %4 = attention %1, %2, %2 {scale=0.125}
  %5 = slice q {axis=3,start=0,end=$width,step=1}
  %6 = attention %5, %2, %3 {scale=0.125}
  output x %4
  output y %6
EOF
    for chip in h200 b200; do
        "$command" check "$folder/views.graph" --device "sim:$chip" >"$folder/out" || { cat "$folder/out"; exit 1; }
        says "$folder/out" "all of it is within what sums in another order explain"
    done
done
fails 1 "a simulation says nothing of time: tune on the GPU itself" tune "$folder/small.graph" --device sim:h200 --tuning "$folder/tuning"

# A program that holds the library finds the simulator beside itself however it is started; without a simulator the message says what to build.
(cd / && PATH="$DEEPWELL_BUILD/tests:$PATH" test_conform_kernels --device sim:h200 --seeds 1 'neg f32[4]') >"$folder/out"
says "$folder/out" "2 runs, 0 failures"
cp -L "$DEEPWELL_BUILD/tests/test_conform_kernels" "$folder/alone"
if "$folder/alone" --device sim:h200 'neg f32[4]' >"$folder/out" 2>&1; then exit 1; fi
says "$folder/out" "the simulator cannot be loaded: $folder/libdeepwell-sim.so" "build deepwell-sim"

# Under -lineinfo, the line of the source.
if [ -n "$DEEPWELL_NVCC" ]; then
    "$DEEPWELL_NVCC" -fatbin -lineinfo -gencode 'arch=compute_90a,code=compute_90a' tests/sim/programs/kernels.cu -o "$folder/image"
    DEEPWELL_SIM=h200,trace=1,trace_file="$folder/trace" "$DEEPWELL_BUILD/tests/tool_sim_ptx" "$DEEPWELL_BUILD/libdeepwell-sim.so" --image "$folder/image" tests/sim/programs/kernels.cu >"$folder/out"
    grep -qE '^ +[0-9]+ +[0-9]+  kernels\.cu:[0-9]+ +ffffffff ' "$folder/trace"
fi
