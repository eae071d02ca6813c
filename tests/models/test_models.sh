#!/bin/sh
# Every exported model through the built command, held against PyTorch (run_models.py says how); under sanitizers a tenth of them, another for each commit.
set -eu
scripts/fixtures.sh
exec build/venv/bin/python tests/models/run_models.py "${DEEPWELL_BUILD:-build}/deepwell" build/fixtures ${DEEPWELL_SANITIZE:+--part "$(scripts/part.sh)"}
