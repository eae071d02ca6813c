#!/usr/bin/env python3
"""Writes tests/op/cases/*.txt: inputs from fixed seeds and the results of PyTorch, which is the independent implementation that the references
are held against. Floating-point ops are computed by PyTorch in f64 on the rounded inputs and rounded once, which is what a reference promises.

Each family is drawn from a seed of its own, and so is each pointwise op: a new one changes no other's cases. In any other family the cases of a new op stand in `with apart(name):`, wherever they belong.
The families are in tests/op/families. A pointwise op needs no entry there where PyTorch has a function of its name.

Run it when an op is added:  build/venv/bin/python tests/op/make_cases.py   (needs torch and numpy; the files are committed, so tests need neither).
types.txt and errors.txt are written by hand."""

import torch

from families.attention import attention, attention_backward, mqa_logits, cache, rotary
from families.drawn import dropout, sample
from families.movement import create, view, move, index
from families.pointwise import pointwise
from families.products import matmul, grouped, conv, quantize
from families.ranks import collective
from families.rows import reduce, scan, route, norm
from families.training import norm_backward, cross_entropy, optimizer

FAMILIES = [
    pointwise, create, view, move, index, reduce, scan, route, norm, matmul, grouped, attention, attention_backward, mqa_logits, norm_backward,
    cross_entropy, dropout, cache, rotary, conv, quantize, sample, optimizer, collective,
]


if __name__ == "__main__":
    for family in FAMILIES:
        torch.manual_seed(1)
        family()
