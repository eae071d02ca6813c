#!/bin/sh
# 25 steps of `deepwell train` beside PyTorch (curves.py says how).
set -eu
case "${DEEPWELL_BUILD:-build}" in
*sanitized) echo "skipped: under the sanitizers test_trainer runs steps of every optimiser"; exit 77 ;;
esac
scripts/venv.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
build/venv/bin/python tests/train/curves.py "${DEEPWELL_BUILD:-build}/deepwell" "$scratch"
