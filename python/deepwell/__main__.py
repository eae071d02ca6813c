"""``python -m deepwell``: the command line of the core."""
import sys

from . import _core

if __name__ == "__main__":
    sys.exit(_core.main(sys.argv[1:]))
