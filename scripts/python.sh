#!/bin/sh
# Builds the wheel of this checkout and installs it in a virtual environment of its own that also sees the packages of build/venv (torch above all, which is
# not installed a second time). Usage: scripts/python.sh [DIRECTORY], build/python by default; then DIRECTORY/bin/python has deepwell, torch and pytest.
# Compiles again what has changed alone.
set -eu
cd "$(dirname "$0")/.."
place=${1:-build/python}
scripts/venv.sh
mkdir -p "$place"
exec 9>"$place.lock"
flock 9
if [ ! -x "$place/bin/python" ] || [ ! -f "$place/ready" ]; then
    rm -rf "$place"
    python3 -m venv "$place" || { echo "python.sh: python3 -m venv failed: install python3-venv" >&2; exit 1; }
    "$place/bin/pip" install -q pytest
    packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    build/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/build-venv.pth"
    touch "$place/ready"
fi
scripts/wheel.sh --plain "$place/wheel"
"$place/bin/pip" install -q --no-deps --force-reinstall "$place"/wheel/deepwell-*.whl
