# bench/predictions holds what the bound of products says today: with a constant of a chip it is printed anew, so that git shows what changed.
set -eu
for chip in b200 b300; do
    "$DEEPWELL_BUILD/bench/predict" $chip | cmp - bench/predictions/$chip.json || {
        echo "bench/predictions/$chip.json is not what build/bench/predict prints: build/bench/predict $chip >bench/predictions/$chip.json"
        exit 1
    }
done
if "$DEEPWELL_BUILD/bench/predict" h200 2>/dev/null; then
    echo "predict takes a chip without tcgen05"
    exit 1
fi
