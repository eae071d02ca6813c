"""MXFP8 in PyTorch, written from the format's definition alone: what `precision="mxfp8"` is held against.

Every product whose right operand lies in the memory of a parameter gets both operands rounded along the axis that is summed over. The product
itself is PyTorch's, in fp32. Nothing of Deepwell is used here.
"""
import torch
from torch.utils._python_dispatch import TorchDispatchMode

BLOCK = 32
E4M3_MAX = 448.0


def round_mxfp8(x: torch.Tensor, axis: int) -> torch.Tensor:
    """x rounded to E4M3 in blocks of 32 along the axis, each with the least power of two as scale with which no element saturates
    (docs/formats.md). A last block may be shorter."""
    moved = x.to(torch.float32).movedim(axis, -1)
    length = moved.shape[-1]
    padded = torch.nn.functional.pad(moved, (0, -length % BLOCK))
    blocks = padded.unflatten(-1, (-1, BLOCK)) if padded.numel() else padded.reshape(*padded.shape[:-1], 0, BLOCK)
    most = blocks.abs().amax(-1, keepdim=True).double()
    exponent = torch.ceil(torch.log2(most / E4M3_MAX)).clamp(-127, 127)
    scale = torch.where(most > 0, torch.exp2(exponent), torch.ones_like(most))
    codes = (blocks.double() / scale).clamp(-E4M3_MAX, E4M3_MAX).float().to(torch.float8_e4m3fn)
    rounded = (codes.double() * scale).flatten(-2)[..., :length]
    return rounded.movedim(-1, axis).to(x.dtype)


class Quantised(TorchDispatchMode):
    """Inside, products with parameters of the module are done on MXFP8 operands. left_out: names of parameters whose products stay as they are."""

    def __init__(self, module: torch.nn.Module, left_out=()):
        super().__init__()
        left_out = set(left_out)
        self.weights = {p.untyped_storage().data_ptr() for name, p in module.named_parameters() if name not in left_out and p.numel()}
        self.products = 0

    def is_weight(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.weights

    def operands(self, a, b, a_axis=-1, b_axis=-2):
        """The operands of a product of a [.., m, k] and b [.., k, n], rounded along k where b is a weight (or a is: then both change places)."""
        if not (self.is_weight(b) or self.is_weight(a)) or not a.is_floating_point():
            return a, b
        self.products += 1
        return round_mxfp8(a, a_axis), round_mxfp8(b, b_axis)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, aten = list(args), torch.ops.aten
        if func in (aten.mm.default, aten.bmm.default):
            args[0], args[1] = self.operands(args[0], args[1])
        elif func in (aten.addmm.default, aten.baddbmm.default):
            args[1], args[2] = self.operands(args[1], args[2])
        elif func is aten.linear.default:
            args[0], args[1] = self.operands(args[0], args[1], b_axis=-1)
        elif func is aten._grouped_mm.default:
            args[0], args[1] = self.operands(args[0], args[1])
        return func(*args, **(kwargs or {}))
