#!/bin/sh
# The compiler of GPU code. Usage:
#   scripts/nvcc.sh find               prints the path of an nvcc of CUDA 13 or later: in PATH, in $CUDA_HOME/bin (/usr/local/cuda/bin), or in build/nvcc. Exit 1 where there is none.
#   scripts/nvcc.sh get [DIRECTORY]    makes DIRECTORY (build/nvcc) from PyPI, by scripts/nvcc.txt; DIRECTORY/cuda/bin/nvcc is the compiler. Quick when that was done.
#   scripts/nvcc.sh disassembler       makes build/nvdisasm, likewise, by scripts/nvdisasm.txt; build/nvdisasm/nvdisasm prints machine code.
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

# An environment in a directory with the packages of a file, once; $packages: where they are. fails: what to do where PyPI cannot be reached.
get_packages() {
    place=$1 file=$2 what=$3 fails=$4
    wanted=$(sha256sum "$file" | cut -d' ' -f1)
    mkdir -p "$(dirname "$place")"
    exec 9>"$place.lock"
    flock 9
    [ "$(cat "$place/requirements.sha256" 2>/dev/null)" != "$wanted" ] || return 1
    echo "nvcc.sh: no $what here: taking it from PyPI to $place" >&2
    rm -rf "$place"
    python3 -m venv "$place" || { echo "nvcc.sh: python3 -m venv failed: install python3-venv" >&2; exit 1; }
    "$place/bin/pip" install -q --no-deps -r "$file" || { echo "nvcc.sh: $what cannot be had from PyPI: $fails" >&2; exit 1; }
    packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
}

get_nvcc() {
    get_packages "$1" scripts/nvcc.txt "nvcc (105 MB)" "install NVIDIA's CUDA toolkit 13, or build without GPU code: make DEEPWELL_NVCC= (cmake -DDEEPWELL_NVCC=)" || return 0
    cuda=$packages/nvidia/cu13
    ln -s "$cuda" "$place/cuda"
    # Where the compiler looks for libraries of programs, and under which name.
    ln -s lib "$cuda/lib64"
    ln -s libcudart.so.13 "$cuda/lib/libcudart.so"
    usable "$place/cuda/bin/nvcc" >/dev/null
    echo "$wanted" >"$place/requirements.sha256"
}

get_disassembler() {
    get_packages build/nvdisasm scripts/nvdisasm.txt "nvdisasm (5 MB)" "put it in PATH, or name it by NVDISASM" || return 0
    ln -s "$packages/nvidia/cu13/bin/nvdisasm" build/nvdisasm/nvdisasm
    build/nvdisasm/nvdisasm --version >/dev/null
    echo "$wanted" >build/nvdisasm/requirements.sha256
}

case ${1:-} in
find) find_nvcc ;;
get) get_nvcc "${2:-build/nvcc}" ;;
disassembler) get_disassembler ;;
*)
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
    ;;
esac
