#!/bin/sh
# The examples do what they say. The one that loads a file runs on the carried model: after "In the beginnin" comes "g".
set -eu
examples="${DEEPWELL_BUILD:-build}/examples"
"$examples/graph" | grep -q 'y\[0\] = '
"$examples/kernel" | grep -q 'my_matmul ran 1 time; y\[0\] = '
"$examples/run" models/kjv.pt2 73 110 32 116 104 101 32 98 101 103 105 110 110 105 110 | grep -qx 'the likeliest next id is 103'
printf '73 110 32 116 104 101 32 98 101 103 105 110 110 105 110\n999\n' | "$examples/serve" models/kjv.pt2 1 | sort > "${TMPDIR:-/tmp}/serve.$$"
grep -qx '1: 103' "${TMPDIR:-/tmp}/serve.$$"
grep -q '^2: (INVALID: prompt id 999 at 0' "${TMPDIR:-/tmp}/serve.$$"
rm "${TMPDIR:-/tmp}/serve.$$"
"$examples/train" models/kjv.pt2 models/kjv.heldout.txt 1 "${TMPDIR:-/tmp}/train.$$" | grep -q '^step 1: loss 1\.'
test -s "${TMPDIR:-/tmp}/train.$$"
rm "${TMPDIR:-/tmp}/train.$$"
# What the demo says to try next runs as it stands there.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$examples/demo" models/kjv.pt2 models/kjv.heldout.txt > "$place/demo"
sed '1,/^== what to try next/d; /^#/d; s|kjv\.dw|'"$place"'/kjv.dw|' "$place/demo" > "$place/next"
[ "$(wc -l < "$place/next")" -ge 5 ]
sh -eu "$place/next" > "$place/out"
test -s "$place/kjv.dw"
