"""Which precision each layer gets: a policy by module path or by the part that a layer plays."""
from __future__ import annotations

from typing import Iterable

from .errors import Invalid

ROLES = ("attention", "mlp", "expert", "router", "lm_head", "convolution")

# What people call them -> what the core calls them (docs/precision.md).
_ALIASES = {"float32": "fp32", "f32": "fp32", "full": "fp32", "bfloat16": "bf16", "float8": "fp8", "fp4": "nvfp4", "mxfp6": "mxfp6_e2m3"}


def precision_name(precision: str | None) -> str | None:
    """The core's name of a precision: "fp4" is NVFP4, "mxfp6" is E2M3; any other is passed on as it is, for the core to accept or refuse. Of several that are left open, "fp4 or fp4-weights", each."""
    if precision is None:
        return None
    if not isinstance(precision, str):
        raise Invalid(f"a precision is a string such as 'mxfp8', not {type(precision).__name__}")
    if " or " in precision:
        return " or ".join(precision_name(one.strip()) for one in precision.split(" or "))
    base, weights = (precision[:-len("-weights")], "-weights") if precision.endswith("-weights") else (precision, "")
    return _ALIASES.get(base.lower(), base) + weights


def _patterns(layer: str, modules: set[str]) -> list[str]:
    if layer.startswith("role:") or "*" in layer or "?" in layer:
        return [layer]
    if layer in ROLES:
        return [f"role:{layer}"]
    tests = {layer: lambda m: m == layer, f"{layer}.*": lambda m: m.startswith(layer + "."), f"*.{layer}": lambda m: m.endswith("." + layer),
             f"*.{layer}.*": lambda m: f".{layer}." in m}
    return [pattern for pattern, test in tests.items() if any(map(test, modules))] or [layer]


class PrecisionPolicy:
    """Precision by layer.

    >>> policy = PrecisionPolicy()
    >>> policy.set_default("mxfp8")
    >>> policy.set_layer_precision("attention", "bf16")     # a role: attention, mlp, expert, router, lm_head or convolution
    >>> policy.set_layer_precision("model.layers.0.*", "bf16")  # or a pattern of module paths, * and ? as in file names

    A precision may leave several open, "fp8 or fp8-weights": each layer takes the one that is estimated to be faster (docs/precision.md).
    The layer that was named last wins; the default is for what no name matches. A name without wildcards is a module and all that is in it, wherever
    it stands: "mlp.up" is "blocks.0.mlp.up" and its kin.
    ``print(policy)`` shows the rules as the core reads them.
    """

    def __init__(self, default: str | None = None) -> None:
        self.default = precision_name(default)
        self.rules: dict[str, str] = {}

    def set_default(self, precision: str) -> "PrecisionPolicy":
        self.default = precision_name(precision)
        return self

    def set_layer_precision(self, layer: str, precision: str) -> "PrecisionPolicy":
        """layer: a role, ``role:name``, a module path, or a pattern of paths."""
        if not layer or any(c in layer for c in "=,\n#"):
            raise Invalid(f"'{layer}' is no layer: a role ({', '.join(ROLES)}), a module path, or a pattern of paths with * and ?")
        self.rules.pop(layer, None)
        self.rules[layer] = precision_name(precision)
        return self

    def text(self, modules: Iterable[str] | None = None) -> str:
        """The rules in the core's form, first match first. modules: the paths there are, by which a plain name is completed."""
        known = set(modules or ())
        lines = []
        for layer, precision in reversed(self.rules.items()):
            lines += [f"{pattern} = {precision}" for pattern in _patterns(layer, known)]
        return "".join(line + "\n" for line in lines)

    def __str__(self) -> str:
        return self.text() + f"* = {self.default or 'as exported'}\n"

    def __repr__(self) -> str:
        return f"PrecisionPolicy(default={self.default!r}, rules={self.rules!r})"
