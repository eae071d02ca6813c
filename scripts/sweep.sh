#!/usr/bin/env bash
# Holds a device beside the CPU on many models: `deepwell check FILE --device DEVICE`, several at a time, one table. Usage:
#   scripts/sweep.sh DEVICE [--part I/N] [FILE|FOLDER..] [-- OPTIONS of check]
# DEVICE: sim:h200, sim:b200,seed=3, cuda, .. ; files: all archives of build/fixtures (scripts/fixtures.sh makes it); --part 3/10: every tenth file, beginning with the fourth.
# Rows are kept in build/sweep: broken off, it goes on where it was; a failure, or whatever the build or the file has changed for, is run again. Exit 1 where a model fails.
# Variables: DEEPWELL_BUILD (build), JOBS at a time (the CPUs), LIMIT in seconds for one model (1800).
set -u
usage() { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || usage
device=$1 part=0 parts=1
shift
given=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    --part)
        [[ ${2:-} =~ ^([0-9]+)/([1-9][0-9]*)$ ]] || usage
        part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]}
        [ "$part" -lt "$parts" ] || usage
        shift
        ;;
    -*) usage ;;
    *) given+=("$1") ;;
    esac
    shift
done
[ $# -eq 0 ] || shift
build=${DEEPWELL_BUILD:-build}
[ -x "$build/deepwell" ] || { echo "sweep.sh: $build/deepwell is not there: build it first" >&2; exit 2; }
[ ${#given[@]} -gt 0 ] || given=("${DEEPWELL_FIXTURES:-build/fixtures}")
mapfile -t files < <(for name in "${given[@]}"; do if [ -d "$name" ]; then find -L "$name" -maxdepth 1 -name '*.pt2' | sort; else echo "$name"; fi; done |
    awk -v part="$part" -v parts="$parts" '(NR - 1) % parts == part')
[ ${#files[@]} -gt 0 ] || { echo "sweep.sh: no .pt2 in ${given[*]}${parts:+, part $part/$parts}" >&2; exit 2; }

mkdir -p build/sweep
rows=build/sweep/$(tr -cs "a-z0-9\n" _ <<<"$device${*:+ $*}").rows
touch "$rows"
made_by=$( (echo "$device $*"; cat "$build/deepwell" "$build"/libdeepwell.so "$build"/libdeepwell-sim.so) 2>/dev/null | sha256sum | cut -c 1-16)
export build device rows made_by LIMIT=${LIMIT:-1800} CHECK_DEVICE=$device CHECK_OPTIONS="$*"
[[ $device != sim:* ]] || CHECK_DEVICE=$device,threads=1

# What check said as JSON -> kernels, the largest share of a kernel's bound, the largest relative difference of an output; exit 1 where nothing was held beside anything.
facts_of() {
    python3 -c '
import json, sys
try:
    facts = json.load(sys.stdin)
except ValueError:
    facts = {}
kernels, outputs = facts.get("kernels", []), facts.get("outputs", [])
share = max((k["worst"] / k["bound"] for k in kernels if k["bound"]), default=0)
print(len(kernels), f"{share:.2f}", "%.1e" % max((o["difference"] for o in outputs), default=0), sep="\t")
sys.exit(not (facts.get("holds") and outputs))'
}

# A row: what it is of, file, result, seconds, the facts, what was said of a failure.
one() {
    local file=$1 key begin said code facts row
    key="$made_by $(sha256sum "$file" 2>/dev/null | cut -c 1-16)"
    ! grep -qF "$key"$'\t'"$file"$'\t'held "$rows" || return 0
    printf '%s\t%s\tbroken off\n' "$key" "$file" >>"$rows"
    begin=$(date +%s)
    said=$(mktemp)
    # shellcheck disable=SC2086
    timeout "$LIMIT" "$build/deepwell" check "$file" --device "$CHECK_DEVICE" --threads 1 --json $CHECK_OPTIONS 2>"$said" >"$said.json"
    code=$?
    [ $code != 124 ] || echo "not done after $LIMIT s" >>"$said"
    facts=$(facts_of <"$said.json") || [ $code != 0 ] || { code=1; echo "nothing was held beside anything" >"$said"; }
    row=$(printf '%s\t%s\t%s\t%s\t%s' "$key" "$file" "$([ $code = 0 ] && echo held || echo "FAILED $code")" $(($(date +%s) - begin)) "$facts")
    [ $code = 0 ] || row+=$'\t'$(tail -n 1 "$said" | cut -c 1-300)
    echo "$row" >>"$rows"
    echo "$row" | cut -f 2-4,8 >&2
    rm "$said" "$said.json"
}
export -f one facts_of
grep "^$made_by "$'.*\theld\t' "$rows" >"$rows.kept"   # the rest is run again
mv "$rows.kept" "$rows"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" bash -c 'one "$1"' one

printf '%s\n' "${files[@]}" | awk -F '\t' -v device="$device" '
    NR == FNR { row[$2] = $0; next }
    FNR == 1 { printf "%-40s %-10s %8s %8s %14s %14s  %s\n", device, "result", "seconds", "kernels", "share of bound", "outputs differ", "said" }
    {
        if (!($0 in row)) { print $0 ": no row"; missing++; next }
        split(row[$0], r, "\t")
        name = r[2]; sub(".*/", "", name)
        printf "%-40s %-10s %8d %8d %14s %14s  %s\n", name, r[3], r[4], r[5], r[6], r[7], r[8]
        if (r[3] == "held") held++; else failed++
        seconds += r[4]
    }
    END {
        printf "%d held, %d failed, %d without a row; %d s of one CPU\n", held, failed, missing, seconds
        exit failed + missing > 0
    }' "$rows" -
