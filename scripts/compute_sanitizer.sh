#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over conformance cases on a GPU: memcheck, racecheck (shared memory), initcheck (global memory) and synccheck, side by side.
# Usage: scripts/compute_sanitizer.sh [PROGRAM [FOLDER]]: the conformance program (build/tests/test_conform_kernels) and where logs go (build/compute_sanitizer).
# DEVICE names the GPU, cuda:0,libraries=none by default: libraries of vendors are not ours to check. TOOLS names some of the four, JOBS the processes at a time (the CPUs), CASES a file of
# cases for all tools; LIMIT: so many seconds for all, after which what has not ended is a failure, too. Fails when a tool finds anything but what is exempt below, or a case fails.
set -u
program=${1:-build/tests/test_conform_kernels}
logs=${2:-build/compute_sanitizer}
tests=$(dirname "$0")/../tests/conform
export DEVICE=${DEVICE:-cuda:0,libraries=none} LIMIT=${LIMIT:-86400}
tools=${TOOLS:-memcheck racecheck initcheck synccheck}
jobs=${JOBS:-$(nproc)}

# What a tool does not see: tool, op or kernel (a part of its name), which, and why.
exempt() {
    cat <<'END'
racecheck op scatter,add,dequantize,rotary,combine none of the kernels of these ops has shared memory, in which alone racecheck looks
racecheck kernel _keys one lane arrives at an mbarrier for its warp, whose other lanes have branched on what they read: racecheck takes the next write for a race with those
initcheck op conv the product behind it stores its result by TMA, which initcheck does not see
END
}

# racecheck and initcheck are slow, so they get a subset; what it is stands at its top.
cases_of() {
    case $1 in
    racecheck | initcheck) echo "${CASES:-$tests/compute_sanitizer_short.list}" ;;
    *) echo "${CASES:-$tests/compute_sanitizer.list}" ;;
    esac
}

command -v compute-sanitizer >/dev/null || { echo "compute_sanitizer.sh: no compute-sanitizer: it comes with the CUDA toolkit" >&2; exit 77; }
[ -x "$program" ] || { echo "compute_sanitizer.sh: $program is not there: build it first" >&2; exit 2; }
mkdir -p "$logs"
rm -f "$logs"/*.log "$logs"/*.list "$logs"/*.cases
for tool in $tools; do
    skipped=$(exempt | awk -v tool="$tool" '$1 == tool && $2 == "op" { print $3 }' | tr ',\n' '||' | sed 's/|$//')
    grep -v '^#' "$(cases_of "$tool")" | grep -v -E "^(${skipped:-no op}) " >"$logs/$tool.cases"
    split -l $(($(wc -l <"$logs/$tool.cases") / (2 * jobs) + 1)) -d -a 3 --additional-suffix=.list "$logs/$tool.cases" "$logs/$tool."   # neighbours share kernels
done

# One group of the cases under one tool.
run_group() {
    local list=$1 options=() given=() left=$((LIMIT - $(date +%s) + STARTED))
    local tool=${list##*/} log=${list%.list}.log
    tool=${tool%%.*}
    case $tool in
    racecheck) options=(--racecheck-report all) ;;
    initcheck) options=(--check-api-memory-access no) given=(--unwritten) ;;   # results are read back whole, the gaps between their rows too
    esac
    while read -r name kind part reason; do
        [ "$name" = "$tool" ] && [ "$kind" = kernel ] && options+=(--kernel-name-exclude "kernel_substring=$part")
    done < <(exempt)
    [ "$left" -gt 0 ] || { echo "exit 124" >"$log"; return; }
    timeout -k 5 "$left" compute-sanitizer --tool "$tool" "${options[@]}" --print-limit 50 --error-exitcode 9 "$program" --device "$DEVICE" --seeds 1 "${given[@]}" "$list" >"$log" 2>&1
    echo "exit $?" >>"$log"
}
export -f run_group exempt
export program STARTED
STARTED=$(date +%s)
# The groups of all tools in turns, so that a limit cuts each at the same place.
ls "$logs"/*.list | awk -F. '{ print $(NF - 1), $0 }' | sort -s -k 1,1 | cut -d ' ' -f 2- | xargs -P "$jobs" -I {} bash -c 'run_group {}'
status=0
for tool in $tools; do
    ended=0 cut=0 runs=0 cases=$(wc -l <"$logs/$tool.cases")
    for log in "$logs/$tool".*.log; do
        case $(tail -1 "$log") in
        "exit 0") ended=$((ended + 1)) runs=$((runs + $(sed -n 's/^\([0-9]*\) runs.*/\1/p' "$log" | tail -1))) ;;
        "exit 124" | "exit 137") cut=$((cut + 1)) status=1; echo "$(basename "$log" .log): not ended after $LIMIT s: $(tr '\n' ';' <"${log%.log}.list" | cut -c 1-120)" ;;
        *) status=1; echo "$(basename "$log" .log): $(tail -1 "$log"); $(grep -E '^[0-9]+ runs' "$log" | tail -1); $(grep -E 'SUMMARY' "$log" | tail -1 | sed 's/=* *//')" ;;
        esac
    done
    echo "$tool: $cases cases, $runs runs in $ended groups without a finding, $cut groups cut off, $(ls "$logs/$tool".*.log | wc -l) in all"
done
echo "$(($(date +%s) - STARTED)) s"
exempt | sed 's/^/exempt: /'
exit $status
