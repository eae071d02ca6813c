"""Weights in mapped files: the tensors that safetensors reads, and what is refused."""
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import deepwell as dw


def test_tensors_are_those_of_safetensors(tmp_path):
    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"x": torch.arange(12.0).reshape(3, 4), "y": torch.ones(5, dtype=torch.bfloat16), "empty": torch.zeros(0, 3), "n": torch.tensor(7), "b": torch.tensor([True, False])}, path)
    save_file({"z": torch.arange(3, dtype=torch.int8)}, other)
    made = dw.mapped(path, other)
    expected = load_file(path) | load_file(other)
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) and made[name].dtype == expected[name].dtype for name in made)
    made["x"][0, 0] = 5     # the file stays as it is
    assert load_file(path)["x"][0, 0] == 0
    with pytest.raises(dw.Invalid, match="is in a file before"):
        dw.mapped(path, path)


def write(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("row", [{"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}, {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
                                 {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}, {"dtype": "F32", "shape": [1]}, 3])
def test_what_is_no_tensor_is_refused(tmp_path, row):
    with pytest.raises(dw.Corrupt, match="tensor 'x' has a format, shape or place that cannot be"):
        dw.mapped(write(tmp_path / "a", {"x": row}, b"1234"))


def test_what_is_no_file_of_tensors_is_refused(tmp_path):
    (tmp_path / "short").write_bytes(b"123")
    (tmp_path / "long").write_bytes(b"\xff" * 16)
    for path in (tmp_path / "short", tmp_path / "long", write(tmp_path / "list", [])):
        with pytest.raises(dw.Corrupt, match="is no safetensors file"):
            dw.mapped(path)
