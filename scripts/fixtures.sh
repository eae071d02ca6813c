#!/bin/sh
# Makes build/fixtures, the exported test models with PyTorch's inputs and outputs, and build/venv, which they need.
# Usage: scripts/fixtures.sh. Quick when both are fresh (by content). Safe to call from several tests at once.
set -eu
cd "$(dirname "$0")/.."
scripts/venv.sh
exec 9>build/fixtures.lock
flock 9
exec build/venv/bin/python models/export.py build/fixtures
