#!/bin/sh
# Which part of what is long this commit takes, a tenth or, with an argument, one of so many: "3/10", by the number of commits, so that ten commits in a row take all of it; DEEPWELL_PART=I names one.
cd "$(dirname "$0")/.." || exit 1
count=${DEEPWELL_PART:-$(git rev-list --count HEAD 2>/dev/null || echo 0)}
parts=${1:-10}
echo "$((count % parts))/$parts"
