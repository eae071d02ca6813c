"""PyTorch eager's side of the comparison: a random GPT-2 of 124M parameters, its export, and timed prefill and cached decode steps.

A whole run computes the logits of every position and fills no cache; a prefill fills the cache and computes the logits of the last position; a
decode step is one token against that cache. Our command does the same three.
"""
import hashlib
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch
import transformers


def build():
    """GPT-2 small with random weights: the same from run to run."""
    torch.manual_seed(124)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()


def export(path):
    """Writes the archive unless the one there was written by this file and these versions."""
    stamp = hashlib.sha256(Path(__file__).read_bytes() + (torch.__version__ + transformers.__version__).encode()).hexdigest()
    mark = path.with_suffix(".stamp")
    if path.exists() and mark.exists() and mark.read_text() == stamp:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    model = build()
    model.config.use_cache = False
    dims = {"input_ids": {0: torch.export.Dim("b", max=64), 1: torch.export.Dim("s", max=model.config.n_positions)}}
    torch.export.save(torch.export.export(model, (), kwargs={"input_ids": torch.randint(0, 50257, (2, 24))}, dynamic_shapes=dims), path)
    mark.write_text(stamp)


class Peer:
    """One eager model in one format."""

    def __init__(self, dtype, threads):
        torch.set_num_threads(threads)
        self.model = build().to(dtype)
        self.model.config.use_cache = True

    @torch.no_grad()
    def time(self, prefill, decode):
        """(seconds of one whole run, seconds of one prefill, [seconds of each decode step])"""
        ids = torch.randint(0, 50257, (1, prefill), generator=torch.Generator().manual_seed(1))
        cache = transformers.DynamicCache(config=self.model.config)
        start = time.perf_counter()
        self.model(ids, use_cache=False)
        run_seconds = time.perf_counter() - start
        start = time.perf_counter()
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        prefill_seconds = time.perf_counter() - start
        steps = []
        for _ in range(decode):
            start = time.perf_counter()
            token = logits[:, -1:].argmax(-1)
            logits = self.model(token, past_key_values=cache, use_cache=True).logits
            steps.append(time.perf_counter() - start)
        return run_seconds, prefill_seconds, steps
