"""For test scripts that need Python packages: runs the script with the project's virtual environment (scripts/venv.sh), or skips it with the reason."""
import importlib.util
import os
import sys


def require(*packages):
    """Returns when all packages can be imported; else starts the script again under build/venv, or exits with 77 (skipped)."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for build in (os.environ.get("DEEPWELL_BUILD"), os.path.join(root, "build")):
        python = build and os.path.join(build, "venv", "bin", "python")
        if python and os.path.exists(python) and not os.environ.get("DEEPWELL_TEST_IN_VENV"):
            os.environ["DEEPWELL_TEST_IN_VENV"] = "1"
            os.execv(python, [python] + sys.argv)
    print(f"skipped: Python packages {', '.join(missing)} are not installed and build/venv is not there (scripts/venv.sh makes it)")
    sys.exit(77)
