#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over conformance cases on a GPU: memcheck, racecheck (shared memory), initcheck (global memory) and synccheck, side by side.
# Usage: scripts/compute_sanitizer.sh [PROGRAM [CASES [FOLDER]]]: the conformance program (build/tests/test_conform_kernels), the file of cases (tests/conform/compute_sanitizer.list) and
# where logs go (build/compute_sanitizer). DEVICE names the GPU, cuda:0,libraries=none by default: libraries of vendors are not ours to check. TOOLS names some of the four, JOBS the number
# of processes that share the cases of a tool (4). Fails when a tool finds anything but what is exempt below, or a case fails.
set -u
program=${1:-build/tests/test_conform_kernels}
cases=${2:-tests/conform/compute_sanitizer.list}
logs=${3:-build/compute_sanitizer}
device=${DEVICE:-cuda:0,libraries=none}
tools=${TOOLS:-memcheck racecheck initcheck synccheck}
jobs=${JOBS:-4}

# Kernels that a tool does not see: tool, a part of the kernel's name, and why.
exempt() {
    cat <<'END'
END
}

command -v compute-sanitizer >/dev/null || { echo "compute_sanitizer.sh: no compute-sanitizer: it comes with the CUDA toolkit" >&2; exit 77; }
[ -x "$program" ] || { echo "compute_sanitizer.sh: $program is not there: build it first" >&2; exit 2; }
mkdir -p "$logs"
rm -f "$logs"/*.log "$logs"/cases.*.list
grep -v '^#' "$cases" | split -n "r/$jobs" -d --additional-suffix=.list - "$logs/cases."

# One share of the cases under one tool.
run_share() {
    local tool=$1 share=$2 options=() given=()
    case $tool in
    racecheck) options=(--racecheck-report all) ;;
    initcheck) options=(--check-api-memory-access no) given=(--unwritten) ;;   # results are read back whole, the gaps between their rows too
    esac
    while read -r name part reason; do
        [ "$name" = "$tool" ] && options+=(--kernel-name-exclude "kernel_substring=$part")
    done < <(exempt)
    compute-sanitizer --tool "$tool" "${options[@]}" --print-limit 50 --error-exitcode 9 "$program" --device "$device" --seeds 1 "${given[@]}" "$share" \
        >"$logs/$tool.$(basename "$share" .list).log" 2>&1
    echo "exit $?" >>"$logs/$tool.$(basename "$share" .list).log"
}

for tool in $tools; do
    for share in "$logs"/cases.*.list; do run_share "$tool" "$share" & done
done
wait
status=0
for tool in $tools; do
    for log in "$logs/$tool".*.log; do
        echo "$(basename "$log" .log): $(tail -1 "$log"); $(grep -E '^[0-9]+ runs' "$log" | tail -1); $(grep -E 'SUMMARY' "$log" | tail -1 | sed 's/=* *//')"
        [ "$(tail -1 "$log")" = "exit 0" ] || status=1
    done
done
exempt | sed 's/^/exempt: /'
exit $status
