#!/bin/sh
# Makes build/fixtures, the exported test models with PyTorch's inputs and outputs; build/fixtures/operators, one small export for each
# spelling of an operator; and build/venv, which they need.
# Usage: scripts/fixtures.sh. Quick when both are fresh (by content). Safe to call from several tests at once.
set -eu
cd "$(dirname "$0")/.."
scripts/venv.sh
exec 9>build/fixtures.lock
flock 9
build/venv/bin/python models/export.py build/fixtures
exec build/venv/bin/python tests/capture/export_operators.py build/fixtures/operators
