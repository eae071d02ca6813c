#!/bin/sh
# Models exported in train mode, with dropout and their loss, against PyTorch: train_mode.py says how.
set -eu
case "${DEEPWELL_BUILD:-build}" in
*sanitized) echo "skipped: under the sanitizers capture_models and pass_gradient run what it runs"; exit 77 ;;
esac
scripts/venv.sh
exec build/venv/bin/python tests/models/train_mode.py "${DEEPWELL_BUILD:-build}/deepwell"
