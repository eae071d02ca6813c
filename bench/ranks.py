"""Models cut over ranks beside the same whole: by threads of one process, processes by gloo, and by MPI. Outputs in fp32 are within 1e-5 of the whole model's, and of two ranks the same bits by every engine.

    python bench/ranks.py [NAME..] [--ways threads2,threads3,threads4,gloo2,mpi2] [--sums whole,tokens] [--markdown FILE]

Models are those of build/fixtures, and GPT-2 with 25 heads and 50257 words, which is exported here to build/ranks. MPI needs build/bench/mpi_cli, gloo the deepwell package. Exit code 1 where a bound does not hold.
"""
import argparse
import hashlib
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parent / "build"
OUT = BUILD / "ranks"
BOUND = 1e-5
MODELS = {"kjv": "b2_s16", "llama": "b2_s16", "gpt2": "b2_s16", "gpt2_25": "b2_s16", "gemma2": "b2_s16", "mixtral": "b2_s16", "qwen3_moe": "b2_s16", "deepseek_v3": "b2_s16", "t5": "b2_e16_s9", "bert": "b2_s16", "vit": "b2"}


def export_gpt2_25():
    """25 heads, which two ranks do not divide, nor three, and a vocabulary that is a multiple of 3 alone."""
    if (OUT / "gpt2_25.pt2").exists():
        return
    sys.path.insert(0, str(HERE.parent / "models"))
    import torch
    import transformers as tf
    import catalog
    import export
    config = tf.GPT2Config(vocab_size=50257, n_positions=128, n_embd=200, n_layer=2, n_head=25, use_cache=False, bos_token_id=0, eos_token_id=0)
    model = catalog.text("gpt2_25", config, 50257, 2, tokens=0)
    torch.manual_seed(0)
    module = model.build().eval()
    export.randomise(module, seed=25)
    export.export_model(model, module, OUT / "gpt2_25.pt2")
    from safetensors.torch import save_file
    save_file({name: tensor.contiguous() for name, tensor in model.inputs(torch.Generator().manual_seed(1), (2, 16)).items()}, OUT / "gpt2_25.in.safetensors")


def files_of(name):
    if name == "gpt2_25":
        return OUT / "gpt2_25.pt2", OUT / "gpt2_25.in.safetensors"
    return BUILD / "fixtures" / f"{name}.pt2", BUILD / "fixtures" / f"{name}.cases" / f"{MODELS[name]}.in.safetensors"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def commands(way, arguments):
    """What each process runs, and what its environment has besides."""
    kind, world = way.rstrip("0123456789"), int(way.lstrip("abcdefghijklmnopqrstuvwxyz"))
    if kind == "threads":
        return [([BUILD / "deepwell", *arguments, "--world", str(world)], {})]
    if kind == "mpi":
        return [(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(world), BUILD / "bench" / "mpi_cli", *arguments], {})]
    port = free_port()
    return [([sys.executable, "-m", "deepwell", *arguments], {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}) for rank in range(world)]


def run(way, name, lines, out):
    """The outputs, and the seconds that all of it took."""
    file, inputs = files_of(name)
    policy = OUT / "policy.txt"
    policy.write_text(lines)
    arguments = ["run", file, "--in", inputs, "--out", out, "--threads", "1"]
    begin = time.monotonic()
    if way == "whole":
        subprocess.run([BUILD / "deepwell", *arguments], check=True)
    else:
        started = [subprocess.Popen(command, env=os.environ | more) for command, more in commands(way, [*arguments, "--shard", policy])]
        if any([process.wait(timeout=300) for process in started]):
            raise SystemExit(f"{name} by {way}: a rank failed")
    return load_file(out), time.monotonic() - begin


def error_of(made, expected):
    return max(float(np.linalg.norm((made[key].astype(np.float64) - value).ravel()) / max(np.linalg.norm(value.astype(np.float64).ravel()), 1e-300)) for key, value in expected.items())


def bits_of(made):
    return hashlib.sha256(b"".join(made[key].tobytes() for key in sorted(made))).hexdigest()


def row_of(name, ways, sums):
    whole, _ = run("whole", name, "", OUT / "whole.safetensors")
    errors, bits = {}, {}
    for way in ways:
        for kind in sums:
            made, seconds = run(way, name, f"all\nsums = {kind}\n", OUT / "ranks.safetensors")
            errors[way] = max(errors.get(way, 0), error_of(made, whole))
            bits.setdefault(way[-1], set()).add(bits_of(made))
            print(f"{name:12} {way:9} sums {kind:7} off by {error_of(made, whole):.1e}, {seconds:.1f} s in all", flush=True)
    return errors, all(len(found) == 1 for found in bits.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--ways", default="threads2,threads3,threads4,gloo2,mpi2")
    parser.add_argument("--sums", default="whole,tokens")
    parser.add_argument("--markdown", type=pathlib.Path)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    names, ways = given.names or list(MODELS), given.ways.split(",")
    if "gpt2_25" in names:
        export_gpt2_25()
    table, fails = [f"| model | {' | '.join(ways)} | bits |", "|---" * (len(ways) + 2) + "|"], 0
    for name in names:
        errors, same = row_of(name, ways, given.sums.split(","))
        fails += not same or not all(error <= BOUND for error in errors.values())
        table.append(f"| {name} | {' | '.join(f'{errors[way]:.1e}' for way in ways)} | {'the same' if same else 'differ'} |")
    print("\n".join(table))
    if given.markdown:
        given.markdown.write_text("\n".join(table) + "\n")
    return 1 if fails else 0


if __name__ == "__main__":
    sys.exit(main())
