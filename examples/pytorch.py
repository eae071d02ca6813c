"""Deepwell from PyTorch, one door after another, on a small language model with random weights.

    python examples/pytorch.py [FOLDER]      what is saved goes into FOLDER, by default a temporary one
"""
import sys
import tempfile
from pathlib import Path
from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.dlpack import from_dlpack

import deepwell as dw
from deepwell.kernels import KernelRegistry
from deepwell.precision import PrecisionPolicy

WIDTH, HEADS, VOCABULARY = 64, 4, 100


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.attention(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        made: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return made


class Model(nn.Module):
    """Token ids [b,s] to logits [b,s,100]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lm_head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.lm_head(x)
        return logits


def one_call(model: nn.Module, ids: torch.Tensor) -> None:
    fast = dw.optimize_for_blackwell(model, precision="mxfp8", batch_size=2, seq_len=16)
    error = (fast(ids) - model(ids)).norm() / model(ids).norm()
    print(f"mxfp8 is {float(error):.4f} from fp32")
    print(dw.handle(fast).report())             # fast.deepwell, as type checkers know it


def my_kernel(*operands: Any, outputs: Sequence[Any], op: str, post: Sequence[Any], attributes: dict[str, Any], threads: int) -> None:
    """A product of what the caller's blocks hold: a [m,k] and b, which is [n,k] where attributes["bt"] is true."""
    a, b = (from_dlpack(operand) for operand in operands)
    torch.matmul(a, b.mT if attributes.get("bt") else b, out=from_dlpack(outputs[0]))


def step_by_step(model: nn.Module, ids: torch.Tensor, folder: Path) -> None:
    hw = dw.probe()
    print(hw)
    for gpu in hw.gpus:
        print(gpu.name, gpu.is_blackwell)

    ir = dw.capture(model)                      # ids [b,s] are inferred from the embedding
    print(ir.inputs, ir.outputs, ir.fusion_report(), sep="\n")
    print(f"{ir.dependencies().depth} ops on the longest chain")
    ir.save(folder / "model.txt")               # the graph as text; under the name *.dw it is compiled

    policy = PrecisionPolicy()
    policy.set_default("mxfp8")
    policy.set_layer_precision("attention", "bf16")
    policy.set_layer_precision("mlp", "fp4")
    registry = KernelRegistry()
    registry.register("custom_gemm", my_kernel, precision="fp32", min_size=1024)
    engine = dw.compile(ir, hw, precision_policy=policy)
    print(engine(ids).shape, engine.benchmark(ids), sep="\n")
    print(engine.check(ids))
    mine = dw.compile(ir, hw, kernel_registry=registry)
    print("custom_gemm" in mine.explain(), float((mine(ids) - model(ids)).abs().max()) < 1e-4)

    engine.save(folder / "model.dw")
    loaded = dw.load(folder / "model.dw")
    print(loaded.generate([[1, 2, 3], [4]], max_new_tokens=5))


def other_doors(model: nn.Module, ids: torch.Tensor) -> None:
    compiled = torch.compile(model, backend="deepwell", options={"precision": "mxfp8"})
    print(compiled(ids).shape)
    a, b = torch.randn(5, 64), torch.randn(64, 32)
    elements, scales, second = dw.ops.quantize(a, "mxfp8")
    print(elements.dtype, list(scales.shape), second.numel())
    print(dw.ops.gemm(a, b, activation="gelu", precision="mxfp8").shape)
    try:
        dw.compile(dw.capture(model), precision="mxfp5")
    except dw.NotFound as error:
        print(f"{error.status}: {str(error)[:60]}")


def main() -> None:
    torch.manual_seed(0)
    model, ids = Model().eval(), torch.randint(0, VOCABULARY, (2, 16))
    with torch.no_grad(), tempfile.TemporaryDirectory() as temporary:
        one_call(model, ids)
        step_by_step(model, ids, Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
        other_doors(model, ids)


if __name__ == "__main__":
    main()
