#!/bin/sh
# 200 drawn cases of attention's gradient beside autograd in fp64 on the CPU, and small ones on the simulated H200 (attention_backward.py says how).
set -eu
case "${DEEPWELL_BUILD:-build}" in
*sanitized) echo "skipped: under the sanitizers the conformance lines of attention_backward run"; exit 77 ;;
esac
scripts/venv.sh
python="build/venv/bin/python tests/models/attention_backward.py ${DEEPWELL_BUILD:-build}/deepwell"
$python --cases 200
$python --cases 12 --seed 2 --small --formats f32,f16,bf16 --device sim:h200
