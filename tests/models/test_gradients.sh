#!/bin/sh
# Gradients of exported models, held against autograd in fp64 (gradients.py says how): a tenth of them, another for each commit; all of them with DEEPWELL_PART=all.
set -eu
case "${DEEPWELL_BUILD:-build}" in
*sanitized) echo "skipped: under the sanitizers pass_gradient runs every rule"; exit 77 ;;
esac
scripts/fixtures.sh
if [ "${DEEPWELL_PART:-}" = all ]; then part="0/1"; else part=$(scripts/part.sh); fi
exec build/venv/bin/python tests/models/gradients.py "${DEEPWELL_BUILD:-build}/deepwell" build/fixtures --part "$part"
