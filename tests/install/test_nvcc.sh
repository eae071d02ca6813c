#!/usr/bin/env bash
# A machine without nvcc: configuring fails and names both ways out; scripts/nvcc.sh passes over what is too old; a build without GPU code says so wherever it is asked;
# and in one of ten commits, the compiler of PyPI compiles an image.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
# Every program of PATH but the compiler, and a copy of the build without a build folder, where a compiler from PyPI may be.
mkdir "$place/bin" "$place/tree"
IFS=:
for folder in $PATH; do [ ! -d "$folder" ] || cp -rsn "$(realpath "$folder")/." "$place/bin/" 2>/dev/null || true; done
unset IFS
rm -f "$place/bin/nvcc"
cp -r CMakeLists.txt scripts kernels include src sim bench examples "$place/tree"
without() { env -u DEEPWELL_NVCC -u MAKEFLAGS PATH="$place/bin" CUDA_HOME="$place/none" "$@"; }
exec 3>&2
refused() { if "$@"; then echo "not refused: $*" >&3; exit 1; fi; }
says() { grep -qF -- "$2" "$1" || { echo "'$2' is not in:"; cat "$1"; exit 1; }; }

refused without cmake -S "$place/tree" -B "$place/build" >"$place/said" 2>&1
says "$place/said" "GPU code needs nvcc"
says "$place/said" "make setup"
says "$place/said" "-DDEEPWELL_NVCC="
refused without make -C "$place/tree" -f "$PWD/Makefile" all >"$place/said" 2>&1
says "$place/said" "GPU code needs nvcc"

# One that is too old is named, and passed over for a newer one.
compiler() { mkdir -p "$1" && printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' "$2" "$2" >"$1/nvcc" && chmod +x "$1/nvcc"; }
compiler "$place/bin" 11.8
refused without "$place/tree/scripts/nvcc.sh" find >"$place/said" 2>&1
says "$place/said" "$place/bin/nvcc is of CUDA 11.8; GPU code needs 13.0 or later"
compiler "$place/tree/build/nvcc/cuda/bin" 13.0
[ "$(without "$place/tree/scripts/nvcc.sh" find 2>/dev/null)" = "$place/tree/build/nvcc/cuda/bin/nvcc" ]
compiler "$place/none/bin" 13.1
[ "$(without "$place/tree/scripts/nvcc.sh" find 2>/dev/null)" = "$place/none/bin/nvcc" ]
rm "$place/bin/nvcc"

# The wheel's build asks pip for the compiler then, and only then, and takes it from where pip has put it. Its other half, scikit-build-core, is a stand-in here.
mkdir -p "$place/python/scikit_build_core/build" "$place/tree/build"
for hook in get_requires_for_build_wheel get_requires_for_build_editable get_requires_for_build_sdist; do echo "def $hook(settings=None): return ['base']"; done \
    >"$place/python/scikit_build_core/build/__init__.py"
echo "def build_sdist(folder, settings=None): return settings
def build_wheel(folder, settings=None, metadata=None): return settings" >>"$place/python/scikit_build_core/build/__init__.py"
cat >"$place/hooks.py" <<'END'
import os
import sys
from pathlib import Path

sys.path[:0] = sys.argv[1:3]
import wheel_backend as backend

pins = [line for line in Path("scripts/nvcc.txt").read_text().splitlines() if line.startswith("nvidia")]
assert len(pins) == 5 and all("==13.0." in pin for pin in pins), pins
CPU = {"cmake.define.DEEPWELL_NVCC": ""}


def needs(settings=None):
    return backend.get_requires_for_build_wheel(settings)


assert needs() == ["base"] + pins == backend.get_requires_for_build_editable(), needs()
assert backend.get_requires_for_build_sdist() == needs(CPU) == needs({"cmake.define.DEEPWELL_NVCC": "/x"}) == needs({"cmake.define.DEEPWELL_FATBINS": "/x"}) == ["base"]
os.environ["CMAKE_ARGS"] = "-DA=b -DDEEPWELL_NVCC= -DC=d"
assert needs() == ["base"] and backend.for_cpus_alone(None)
del os.environ["CMAKE_ARGS"]
assert backend.build_wheel("x", {"a": "b"}) == {"a": "b"} and "DEEPWELL_WHEEL_FOR_CPUS" not in os.environ
assert backend.build_wheel("x", CPU) == CPU and os.environ["DEEPWELL_WHEEL_FOR_CPUS"] == "1"
nvcc = Path(sys.argv[1]) / "nvidia/cu13/bin/nvcc"
nvcc.parent.mkdir(parents=True)
nvcc.touch()
assert backend.build_wheel("x", {"a": "b"}) == {"a": "b", "cmake.define.DEEPWELL_NVCC": str(nvcc)} and "DEEPWELL_WHEEL_FOR_CPUS" not in os.environ
assert backend.build_wheel("x", CPU) == CPU
END
rm -r "$place/none" "$place/tree/build"
(cd "$place/tree" && without python3 "$place/hooks.py" "$place/python" "$place/tree/scripts")

# Without GPU code, as was asked.
without cmake -S . -B "$place/cpu" -G "$(command -v ninja >/dev/null && echo Ninja || echo 'Unix Makefiles')" -DDEEPWELL_NVCC= >"$place/said"
says "$place/said" "GPU code: none, as DEEPWELL_NVCC is empty"
cmake --build "$place/cpu" --target deepwell_command >"$place/said" || { cat "$place/said"; exit 1; }
none="gpu code: none (this build of Deepwell has no GPU code: it was configured with DEEPWELL_NVCC empty, for CPUs alone)"
"$place/cpu/deepwell" probe >"$place/said"
says "$place/said" "$none"
"$place/cpu/deepwell" probe --json >"$place/said"
says "$place/said" '"gpu_code": false'
for chip in h200 ""; do
    "$place/cpu/deepwell" explain models/kjv.pt2 ${chip:+--chip $chip} >"$place/said"
    says "$place/said" "$none"
done
grep -q '"0.*+cpu"' "$place/cpu/CPackConfig.cmake"
if grep -q '^IMAGE' "$DEEPWELL_BUILD/images/images.def"; then
    "$DEEPWELL_BUILD/deepwell" probe >"$place/said"
    refused grep "gpu code" "$place/said" >/dev/null
    "$DEEPWELL_BUILD/deepwell" probe --json >"$place/said"
    says "$place/said" '"gpu_code": true'
fi

[ "$(scripts/part.sh)" = 0/10 ] || exit 0
without scripts/nvcc.sh get "$place/nvcc" >"$place/said" 2>&1 || { cat "$place/said"; exit 1; }
[ "$(without scripts/nvcc.sh get "$place/nvcc" 2>&1)" = "" ]
without cmake -DNVCC="$place/nvcc/cuda/bin/nvcc" -DSOURCE="$PWD/kernels/gemm/tcgen05/tcgen05.cu" -DOUTPUT="$place/image" -DARCHITECTURES=100f -DKIND=hot \
    "-DINCLUDES=$PWD/include;$PWD/src;$PWD" -P scripts/cuda_image.cmake
[ -s "$place/image" ]
