"""Files call downwards, and in no circle but the named recursions; and what they may not do is noticed."""
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "scripts"))
import check_calls

objects = {
    "src/base/a.c": ({"base_a"}, {"ir_b", "memcpy"}),
    "src/ir/b.c": ({"ir_b"}, {"base_a"}),
    "src/pass/clean/c.c": ({"pass_c"}, {"pass_d"}),
    "src/pass/fuse/d.c": ({"pass_d"}, set()),
    "kernels/gemm/f.c": ({"gemm_f"}, {"gemm_g"}),
    "kernels/gemm/wgmma/g.c": ({"gemm_g"}, {"gemm_h", "quantize_i"}),
    "kernels/gemm/tcgen05/h.c": ({"gemm_h"}, {"quantize_i"}),
    "kernels/quantize/i.c": ({"quantize_i"}, set()),
    "sim/e.c": ({"sim_e"}, {"ir_b", "base_a"}),
}
calls = check_calls.find_calls(objects)
assert check_calls.find_circles(calls) == {("src/base/a.c", "src/ir/b.c")}, calls
assert check_calls.explain(("src/base/a.c", "src/ir/b.c"), calls)[1:] == ["    src/base/a.c calls ir_b of src/ir/b.c", "    src/ir/b.c calls base_a of src/base/a.c"]
assert not check_calls.is_named(("src/base/a.c", "src/ir/b.c")) and check_calls.is_named(("src/base/dim.c", "src/base/dim_fold.c"))
climbs = list(check_calls.find_climbs(calls))
assert climbs == ["src/base/a.c calls ir_b of src/ir/b.c: base may not call ir",
                  "src/pass/clean/c.c calls pass_d of src/pass/fuse/d.c: the room pass/clean may not call it",
                  "kernels/gemm/f.c calls gemm_g of kernels/gemm/wgmma/g.c: the room kernels/gemm may not call it",
                  "kernels/gemm/wgmma/g.c calls gemm_h of kernels/gemm/tcgen05/h.c: the room kernels/gemm/wgmma may not call it",
                  "sim/e.c calls ir_b of src/ir/b.c: sim may not call ir"], climbs

# A recursion that is none any more, or that its header does not name, is a fault.
assert [line for line in check_calls.find_unnamed([("src/base/dim.c", "src/base/dim_fold.c")], check_calls.ROOT) if "dim_node" in line] == []
assert any("dim_other.c" in line for line in check_calls.find_unnamed([("src/base/dim.c", "src/base/dim_other.c")], check_calls.ROOT))
assert len(list(check_calls.find_unnamed([], check_calls.ROOT))) == len(check_calls.RECURSIONS)

with tempfile.TemporaryDirectory() as folder:
    root = Path(folder).resolve()
    (root / "src" / "ir").mkdir(parents=True)
    (root / "src" / "ir" / "a.h").write_text('#include "ir/b.h"\n')
    (root / "src" / "ir" / "b.h").write_text('#include "a.h"\n')
    assert check_calls.find_circles(check_calls.find_header_includes(root)) == {("src/ir/a.h", "src/ir/b.h")}

sys.argv = ["check_calls.py", os.environ["DEEPWELL_BUILD"]]
sys.exit(check_calls.main())
