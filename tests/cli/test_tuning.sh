#!/usr/bin/env bash
# What tune keeps on disk, by the command line on the stand-in for the driver (tests/cuda): where it lies, who finds it, and what is said of a text that is cut, of another GPU, or cannot be
# read or written.
set -eu
command="$DEEPWELL_BUILD/deepwell"
device="cuda,driver=$DEEPWELL_BUILD/tests/libfake_cuda.so"
[ -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ] || { echo "skipped: this build has no stand-in for the CUDA driver"; exit 77; }
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export XDG_CACHE_HOME="$folder/cache"
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
graph=$folder/small.graph
cat >"$graph" <<'EOT'
graph small
  symbol s 1..2048
  input x f32[s,2]
  const w f32[2,2] = 1,2,3,4
  %1 = matmul x, w {bt=true}
  output y %1
EOT

# It is kept under the key of the GPU, its driver and these kernels, and found there by the other commands.
"$command" explain "$graph" --device "$device" >"$folder/out"
says "$folder/out" "matmul f32: cuda_matmul_plain"
! grep -q "by tuning" "$folder/out" || { echo "tuned before it was"; exit 1; }
"$command" tune "$graph" --device "$device" >"$folder/out" 2>"$folder/err"
kept=$(echo "$folder"/cache/deepwell/tuning/a100-CUDA_13.0-*.txt)
says "$folder/err" "kept in $kept"
grep -v '^#' "$folder/out" | cmp - <(grep -v '^#' "$kept")
"$command" explain "$graph" --device "$device" --verbose >"$folder/out" 2>"$folder/err"
says "$folder/out" "matmul f32: cuda_matmul_plain, by tuning: the fastest of those measured"
says "$folder/err" "tuning: $kept"
"$command" explain "$graph" --device "$device" --tuning "$kept" >"$folder/again"
cmp "$folder/out" "$folder/again"
"$command" check "$graph" --device "$device" >"$folder/out"     # the CPU's side of it has no measured choices
says "$folder/out" "cuda_matmul_plain"

# A text that is cut, wherever it lies, is named, with what to do.
head -c 60 "$kept" >"$folder/cut"
fails 1 "SYNTAX: $folder/cut: the text ends inside of a line: it was cut short (measured choices: put this text away, and tune anew)" explain "$graph" --device "$device" --tuning "$folder/cut"
fails 1 "SYNTAX: $folder/cut: the text ends inside of a line" tune "$graph" --device "$device" --tuning "$folder/cut"
head -n -1 "$kept" >"$folder/short"
fails 1 "the text was cut short: expected its last line, 'end' and a count, found the end (measured choices: put this text away, and tune anew)" explain "$graph" --device "$device" --tuning "$folder/short"
: >"$folder/empty"
fails 1 "SYNTAX: $folder/empty:1: expected 'tuning', found the end" tune "$graph" --device "$device" --tuning "$folder/empty"
sed 's/"CUDA 13.0"/"CUDA 12.8"/' "$kept" >"$folder/driver"
fails 1 "$folder/driver: the tuning is of NVIDIA A100-SXM4-80GB under CUDA 12.8" explain "$graph" --device "$device" --tuning "$folder/driver"
sed 's/A100/H100/' "$kept" >"$folder/chip"
fails 1 "$folder/chip: the tuning that was there is of NVIDIA H100-SXM4-80GB under CUDA 13.0" tune "$graph" --device "$device" --tuning "$folder/chip"
sed 's/cuda_matmul_plain/cuda_matmul_fancy/' "$kept" >"$folder/kernel"
fails 1 "there is no kernel cuda_matmul_fancy for matmul in this build" explain "$graph" --device "$device" --tuning "$folder/kernel"
cp "$folder/cut" "$kept"
fails 1 "SYNTAX: $kept: the text ends inside of a line" explain "$graph" --device "$device"
fails 1 "SYNTAX: $kept: the text ends inside of a line" tune "$graph" --device "$device"

# A place that is not there, or cannot be written.
fails 1 "--tuning $folder/nowhere: cannot open" explain "$graph" --device "$device" --tuning "$folder/nowhere"
: >"$folder/file"
fails 1 "$folder/file/t.lock cannot be locked: Not a directory; --tuning FILE names another place" tune "$graph" --device "$device" --tuning "$folder/file/t"
XDG_CACHE_HOME='' HOME='' fails 2 "set XDG_CACHE_HOME or HOME, or give --tuning FILE" tune "$graph" --device "$device"

# Where there is nothing to measure, or nothing that a measurement is good for.
fails 1 "the CPU's kernels are chosen by estimates" tune "$graph"
fails 1 "a plan for another machine's a100 is by estimates" explain "$graph" --chip a100 --tuning "$folder/chip"
XDG_CACHE_HOME=$folder/none "$command" compile "$graph" --device "$device" -o "$folder/small.dw"
fails 1 "small.dw is compiled, with kernels that are settled: tune the .pt2" tune "$folder/small.dw" --device "$device" --tuning "$folder/dw"
fails 1 "small.dw is compiled: its tuning is settled" explain "$folder/small.dw" --device "$device" --tuning "$folder/chip"
"$command" explain "$folder/small.dw" --device "$device" >"$folder/out"     # what is kept for the GPU, cut here, is not looked at
