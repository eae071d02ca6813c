#!/bin/sh
# The compiler of GPU code. Usage:
#   scripts/nvcc.sh find               prints the path of an nvcc of CUDA 13 or later: in PATH, in $CUDA_HOME/bin (/usr/local/cuda/bin), or in build/nvcc. Exit 1 where there is none.
#   scripts/nvcc.sh get [DIRECTORY]    makes DIRECTORY (build/nvcc) from PyPI, by scripts/nvcc.txt; DIRECTORY/cuda/bin/nvcc is the compiler. Quick when that was done.
# The CUDA driver is not needed to compile. Installs nothing outside DIRECTORY.
set -eu
cd "$(dirname "$0")/.."
least=13

# The path, if it is a compiler that is new enough; what is wrong with it goes to stderr.
usable() {
    [ -x "$1" ] || return 1
    release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9][0-9]*\.[0-9]*\).*/\1/p')
    if [ "${release%%.*}" -ge "$least" ] 2>/dev/null; then
        echo "$1"
        return 0
    fi
    echo "nvcc.sh: $1 is of CUDA ${release:-(it does not say)}; GPU code needs $least.0 or later" >&2
    return 1
}

find_nvcc() {
    usable "$(command -v nvcc || true)" || usable "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || usable "$PWD/build/nvcc/cuda/bin/nvcc"
}

get_nvcc() {
    place=$1
    wanted=$(sha256sum scripts/nvcc.txt | cut -d' ' -f1)
    mkdir -p "$(dirname "$place")"
    exec 9>"$place.lock"
    flock 9
    [ "$(cat "$place/requirements.sha256" 2>/dev/null)" != "$wanted" ] || return 0
    echo "nvcc.sh: no nvcc here: taking it from PyPI to $place (105 MB)" >&2
    rm -rf "$place"
    python3 -m venv "$place" || { echo "nvcc.sh: python3 -m venv failed: install python3-venv" >&2; exit 1; }
    "$place/bin/pip" install -q --no-deps -r scripts/nvcc.txt || {
        echo "nvcc.sh: the compiler cannot be had from PyPI: install NVIDIA's CUDA toolkit 13, or build without GPU code: make DEEPWELL_NVCC= (cmake -DDEEPWELL_NVCC=)" >&2
        exit 1
    }
    packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cuda=$packages/nvidia/cu13
    ln -s "$cuda" "$place/cuda"
    # Where the compiler looks for libraries of programs, and under which name.
    ln -s lib "$cuda/lib64"
    ln -s libcudart.so.13 "$cuda/lib/libcudart.so"
    usable "$place/cuda/bin/nvcc" >/dev/null
    echo "$wanted" >"$place/requirements.sha256"
}

case ${1:-} in
find) find_nvcc ;;
get) get_nvcc "${2:-build/nvcc}" ;;
*)
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
