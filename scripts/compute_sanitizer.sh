#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over conformance cases on a GPU: memcheck, racecheck (shared memory), initcheck (global memory) and synccheck, one process each, side by side.
# Usage: scripts/compute_sanitizer.sh [PROGRAM [CASES [FOLDER]]]: the conformance program (build/tests/test_conform_kernels), the file of cases (tests/conform/compute_sanitizer.list) and
# where logs go (build/compute_sanitizer). DEVICE names the GPU, cuda:0,libraries=none by default: libraries of vendors are not ours to check. TOOLS names some of the four.
# Fails when a tool finds anything but what is exempt below, or a case fails.
set -u
program=${1:-build/tests/test_conform_kernels}
cases=${2:-tests/conform/compute_sanitizer.list}
logs=${3:-build/compute_sanitizer}
device=${DEVICE:-cuda:0,libraries=none}
tools=${TOOLS:-memcheck racecheck initcheck synccheck}

# Kernels that a tool does not see: tool, a part of the kernel's name, and why.
exempt() {
    cat <<'END'
END
}

command -v compute-sanitizer >/dev/null || { echo "compute_sanitizer.sh: no compute-sanitizer: it comes with the CUDA toolkit" >&2; exit 77; }
[ -x "$program" ] || { echo "compute_sanitizer.sh: $program is not there: build it first" >&2; exit 2; }
mkdir -p "$logs"

run_tool() {
    local tool=$1 options=() given=()
    case $tool in
    racecheck) options=(--racecheck-report all) ;;
    initcheck) given=(--unwritten) ;;
    esac
    while read -r name part reason; do
        [ "$name" = "$tool" ] && options+=(--kernel-name-exclude "kernel_substring=$part")
    done < <(exempt)
    compute-sanitizer --tool "$tool" "${options[@]}" --print-limit 50 --error-exitcode 9 "$program" --device "$device" --seeds 1 "${given[@]}" "$cases" >"$logs/$tool.log" 2>&1
}

for tool in $tools; do
    run_tool "$tool" &
    pids+=("$!")
done
status=0 at=0
for tool in $tools; do
    wait "${pids[$at]}"
    code=$?
    at=$((at + 1))
    echo "$tool: exit $code; $(grep -E '^[0-9]+ runs' "$logs/$tool.log" | tail -1); $(grep -E 'SUMMARY' "$logs/$tool.log" | tail -1 | sed 's/=* *//')"
    [ $code -eq 0 ] || status=1
done
exempt | sed 's/^/exempt: /'
exit $status
