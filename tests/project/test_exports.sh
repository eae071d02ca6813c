#!/usr/bin/env bash
# The shared library exports dw_ names and nothing else.
set -eu
exported=$(nm -D --defined-only "$DEEPWELL_BUILD/libdeepwell.so" | awk '{ print $NF }')
[ "$(echo "$exported" | grep -c '^dw_')" -ge 10 ] || { echo "hardly anything is exported:"; echo "$exported"; exit 1; }
others=$(echo "$exported" | grep -v '^dw_' || true)
[ -z "$others" ] || { echo "exported, and not dw_:"; echo "$others"; exit 1; }
