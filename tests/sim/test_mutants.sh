#!/usr/bin/env bash
# A small sample of the mutation suite: every seventh mutant of the cases written by hand, and the atomics of a cache. All of it: python3 tests/sim/mutants/run.py.
set -eu
grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def" || { echo "skipped: this build has no GPU code: DEEPWELL_NVCC is empty"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 python3 tests/sim/mutants/run.py --only "ptx " --every 7 --seeds 7,12
# Atomics: without the one that lets a later token win, CTAs race for a slot of the cache.
PYTHONDONTWRITEBYTECODE=1 python3 tests/sim/mutants/run.py --only cache_write --classes atomic --seeds 7,12
