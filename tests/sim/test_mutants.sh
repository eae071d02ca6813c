#!/usr/bin/env bash
# A sample of the mutation suite: a tenth of the mutants of the cases written by hand, another one with each commit, the fences of attention on tensor memory, and the atomics of a cache. All of it: python3 tests/sim/mutants/run.py.
set -eu
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 python3 tests/sim/mutants/run.py --only "ptx " --part "$(scripts/part.sh)" --seeds 7,12
# Fences of attention by tcgen05, a tenth of them: tensor memory goes from warp to warp there.
PYTHONDONTWRITEBYTECODE=1 python3 tests/sim/mutants/run.py --only "attention_tcgen05_bf16_d64 " --classes fence --part "$(scripts/part.sh)" --seeds 7,12
# Atomics: without the one that lets a later token win, CTAs race for a slot of the cache.
PYTHONDONTWRITEBYTECODE=1 python3 tests/sim/mutants/run.py --only cache_write --classes atomic --seeds 7,12
