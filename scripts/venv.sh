#!/bin/sh
# Makes build/venv with the packages of models/requirements.txt, for what must touch PyTorch: fixtures, training, model tests.
# Usage: scripts/venv.sh [DIRECTORY]. Quick when the directory was made from the same requirements. Installs nothing outside it.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-build/venv}
wanted=$(sha256sum models/requirements.txt | cut -d' ' -f1)
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/requirements.sha256" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9
if [ "$(cat "$venv/requirements.sha256" 2>/dev/null)" = "$wanted" ]; then
    exit 0          # another make did it while we waited
fi
rm -rf "$venv"
python3 -m venv "$venv" || { echo "venv.sh: python3 -m venv failed: install python3-venv" >&2; exit 1; }
# torch first and alone, so that nothing later chooses another build of it. Where PyPI's wheel (with CUDA libraries, gigabytes)
# is unwelcome, set PIP_INDEX_URL or PIP_FIND_LINKS to where a CPU build is.
"$venv/bin/pip" install -q "$(grep '^torch==' models/requirements.txt)"
"$venv/bin/pip" install -q -r models/requirements.txt
echo "$wanted" >"$venv/requirements.sha256"
