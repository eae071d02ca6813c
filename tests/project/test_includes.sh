#!/usr/bin/env bash
# The layers include each other as they may; and what they may not is noticed.
set -eu
python3 scripts/check_includes.py

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/src" "$copy/include"
fails_with() {   # LAYER INCLUDED MESSAGE
    rm -rf "$copy/src" && mkdir -p "$copy/src/$1"
    printf '#include "%s"\n' "$2" >"$copy/src/$1/a.c"
    if python3 scripts/check_includes.py "$copy" >"$copy/message"; then
        echo "$1 included $2, and nothing was said"
        exit 1
    fi
    grep -qF "src/$1/a.c:1: includes \"$2\": $3" "$copy/message" || { cat "$copy/message"; exit 1; }
}
fails_with base num/num.h "base may not include num"
fails_with plan device/device.h "plan may not include device"
fails_with num base/dim_node.h "base/base.h is all that other layers may include"
fails_with cli base/base.h "the command uses the public interface only"
fails_with engine sim/sim.h "engine may not include sim"
fails_with engine lab/lab.h "engine may not include lab"
fails_with pass/clean pass/fuse/fuse.h "the room pass/clean may not include pass/fuse"
fails_with pass base.h "no such file beside it"
fails_with op nowhere/x.h "nowhere is no layer"
