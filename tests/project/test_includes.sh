#!/usr/bin/env bash
# The layers include each other as they may; and what they may not is noticed.
set -eu
python3 scripts/check_includes.py

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/src" "$copy/include"
fails_with() {   # FOLDER INCLUDED MESSAGE
    rm -rf "$copy/src" "$copy/kernels" && mkdir -p "$copy/$1"
    printf '#include "%s"\n' "$2" >"$copy/$1/a.c"
    if python3 scripts/check_includes.py "$copy" >"$copy/message"; then
        echo "$1 included $2, and nothing was said"
        exit 1
    fi
    grep -qF "$1/a.c:1: includes \"$2\": $3" "$copy/message" || { cat "$copy/message"; exit 1; }
}
fails_with src/base num/num.h "base may not include num"
fails_with src/plan device/device.h "plan may not include device"
fails_with src/num base/dim_node.h "base/base.h is all that other layers may include"
fails_with src/cli base/base.h "the command uses the public interface only"
fails_with src/engine sim/sim.h "engine may not include sim"
fails_with src/engine lab/lab.h "engine may not include lab"
fails_with src/pass/clean pass/fuse/fuse.h "the room pass/clean may not include pass/fuse"
fails_with kernels/gpu/rows kernels/quantize/quantize_cuda.h "the room kernels/gpu/rows may not include kernels/quantize"
fails_with kernels/gemm/skinny kernels/gemm/wgmma/wgmma.h "the room kernels/gemm/skinny may not include kernels/gemm/wgmma"
fails_with kernels/gemm kernels/gemm/skinny/skinny.h "the room kernels/gemm may not include kernels/gemm/skinny"
fails_with src/pass base.h "no such file beside it"
fails_with src/op nowhere/x.h "nowhere is no layer"

# A folder that is no room would escape the rules.
rm -rf "$copy/src" "$copy/kernels" && mkdir -p "$copy/kernels/gemm/new"
printf '#include "kernels/gemm/host.h"\n' >"$copy/kernels/gemm/new/a.c"
if python3 scripts/check_includes.py "$copy" >"$copy/message"; then
    echo "kernels/gemm/new was taken for a room"
    exit 1
fi
grep -qF "kernels/gemm/new/a.c: kernels/gemm/new is no room" "$copy/message"
