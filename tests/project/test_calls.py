"""Files of src/ call downwards, and in no circle but the named recursions; and what they may not do is noticed."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "scripts"))
import check_calls

objects = {
    "base/a.c": ({"base_a"}, {"ir_b", "memcpy"}),
    "ir/b.c": ({"ir_b"}, {"base_a"}),
    "pass/clean/c.c": ({"pass_c"}, {"pass_d"}),
    "pass/fuse/d.c": ({"pass_d"}, set()),
}
calls = check_calls.find_calls(objects)
assert check_calls.find_circles(calls) == {("base/a.c", "ir/b.c")}, calls
assert not check_calls.is_named(("base/a.c", "ir/b.c")) and check_calls.is_named(("base/dim.c", "base/dim_fold.c"))
climbs = list(check_calls.find_climbs(calls))
assert climbs == ["src/base/a.c calls ir_b of src/ir/b.c: base may not call ir",
                  "src/pass/clean/c.c calls pass_d of src/pass/fuse/d.c: the room pass/clean may not call it"], climbs

sys.argv = ["check_calls.py", os.environ["DEEPWELL_BUILD"]]
sys.exit(check_calls.main())
