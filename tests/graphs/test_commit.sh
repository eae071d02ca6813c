#!/usr/bin/env bash
# Random graphs that no other commit ran: the seed is of the commit. A few on the simulated H200, too, where this build has GPU code.
set -eu
program=$DEEPWELL_BUILD/tests/test_graphs_run
commit=$(git rev-parse HEAD 2>/dev/null || echo 1)
seed=$((16#${commit:0:8}))
"$program" --seed "$seed" --count 500
if grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" && [ -f "$DEEPWELL_BUILD/tests/libfake_cuda.so" ]; then
    "$program" --device sim:h200 --seed "$seed" --count 20
fi
