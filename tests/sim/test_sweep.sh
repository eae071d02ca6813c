#!/usr/bin/env bash
# scripts/sweep.sh: a table of what holds, exit 1 where something fails, no second run of what held. Then a tenth of the exported models on the simulated H200, another for each commit.
set -eu
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
[ -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ] || { echo "skipped: a build without sanitizers does it, ten times as fast"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for name in a b c d e; do printf 'graph %s\n  input x f32[2,3]\n  %%1 = silu x\n  output y %%1\n' $name >"$folder/$name.graph"; done
says() { grep -qE -- "$1" "$folder/said" || { echo "'$1' is not in:"; cat "$folder/said"; exit 1; }; }
sweep() { scripts/sweep.sh sim:h200,seed=11 "$@" >"$folder/said" 2>&1; }
for part in 0 1; do
    sweep --part $part/2 "$folder"/{a,b,c,d,e}.graph
    says "^$((3 - part)) held, 0 failed, 0 without a row"
done
sweep "$folder"/{a,b,c,d,e}.graph
says "^5 held, 0 failed, 0 without a row"
if grep -q "held.*[0-9].$(printf '\t')" "$folder/said"; then
    echo "what held is run again:"
    cat "$folder/said"
    exit 1
fi
echo "graph a" >"$folder/a.graph"
echo "graph c: no" >"$folder/c.graph"
if sweep "$folder"/{a,b,c}.graph; then
    echo "a failure, and exit 0"
    exit 1
fi
says "^a.graph +FAILED 1 .*has no output and no state"
says "^c.graph +FAILED 1 .*c.graph"
says "^1 held, 2 failed, 0 without a row"
if sweep "$folder/b.graph" -- --precision none; then
    echo "check's options are not passed on"
    exit 1
fi
if scripts/sweep.sh sim:h200 --part 2/2 "$folder/b.graph" 2>"$folder/said"; then
    echo "a part that there is not, and exit 0"
    exit 1
fi

scripts/fixtures.sh
scripts/sweep.sh sim:h200 --part "$(scripts/part.sh)"
