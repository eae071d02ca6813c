#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need, if any is missing. Installs nothing from elsewhere.
set -eu
packages="gcc g++ clang-19 libclang-rt-19-dev cmake ninja-build make pkg-config ccache python3 python3-dev python3-venv
          libjansson-dev libdeflate-dev libxxhash-dev libzstd-dev libcmocka-dev dpkg-dev openmpi-bin libopenmpi-dev"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "installing:$missing" >&2
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: needs root or sudo to install:$missing" >&2; exit 1; }
    as_root=sudo
fi
$as_root apt-get update -q
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -q -y --no-install-recommends $missing
