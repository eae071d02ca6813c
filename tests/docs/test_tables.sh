#!/usr/bin/env bash
# The tables in the documents are what the rows say; and a table that is not is noticed.
set -eu
python3 scripts/gen_docs.py --check

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
find . \( -name build -o -name .git \) -prune -o \( -name '*.def' -o -name '*.md' -o -name gen_docs.py \) -print0 | xargs -0 cp --parents -t "$copy"
sed -i 's/"OCP FP8 E5M2"/"another meaning"/' "$copy/include/deepwell/format.def"
if python3 "$copy/scripts/gen_docs.py" --check 2>"$copy/message"; then
    echo "a stale table was not noticed"
    exit 1
fi
grep -q "docs/formats.md" "$copy/message"
python3 "$copy/scripts/gen_docs.py" >/dev/null
python3 "$copy/scripts/gen_docs.py" --check
grep -q "another meaning" "$copy/docs/formats.md"
