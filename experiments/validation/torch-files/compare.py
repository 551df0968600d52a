#!/usr/bin/env python3
"""Compares what gac reads of torch files with what torch loads.

    compare.py --rewrite BUILD/tests/rewrite [FILE…]

Needs torch and safetensors. The reference is torch.load(weights_only=True); for
whole models, state_dict() of the model that torch.load makes. Each case is saved
in both formats and with several pickle protocols. gac copies it to safetensors
(tests/support/rewrite.c), and every tensor must have the same name, dtype, shape
and bytes. FILEs are compared in the same way; they must load with weights_only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict

import torch
from safetensors import safe_open
from torch import nn

GIVEN = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
         torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64]
NEW = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
       torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


def numbers(*shape, dtype=torch.float32):
    n = 1
    for size in shape:
        n *= size
    raw = torch.arange(n * max(dtype.itemsize, 1), dtype=torch.int64) * 37 % 251
    if dtype == torch.bool:
        return (raw % 2).bool().reshape(shape)
    return raw.to(torch.uint8).view(dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", numbers(4), persistent=False)
        self.register_buffer("kept", numbers(3, dtype=torch.int64))
        self.register_buffer("nothing", None)
        self.cache = numbers(7)  # no parameter and no buffer


class Block(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.u_proj = nn.Linear(5, 6, bias=False)
        self.v_proj = nn.Linear(4, 5)
        self.shared = shared
        self.rotary = Rotary()
        self.shortcut_Q = nn.Parameter(numbers(3, 3).t())
        self.free = nn.ParameterList([nn.Parameter(numbers(2)), nn.Parameter(numbers(1))])
        self.missing = None
        self.config = {"a": [1, 2.5, None], "b": (True, b"bytes", 1 << 90)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.layers = nn.ModuleList([Block(self.embed) for _ in range(2)])
        self.extra = nn.ModuleDict({"x y": nn.LayerNorm(4)})
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.half()


class Tokenizer:
    def __init__(self):
        self.vocab = {f"token{i}": i for i in range(1000)}
        self.pattern = frozenset("abc")


def dtypes():
    return OrderedDict((str(d), numbers(3, 4, dtype=d)) for d in GIVEN)


def new_dtypes():
    return OrderedDict((str(d), numbers(3, 4, dtype=d)) for d in NEW)


def views():
    base = numbers(24, 32)
    return {"base": base, "t": base.t(), "rows": base[3:9], "columns": base[:, 5:11],
            "steps": base[::3, 1::5], "cube": base.reshape(4, 6, 32).permute(2, 0, 1),
            "scalar": base[1, 2], "one": base[2:3, 4:5], "empty": base[:0], "tied": base,
            "bf16t": numbers(6, 8, dtype=torch.bfloat16).t(),
            "bytes": numbers(5, 7, dtype=torch.uint8).t()[1:]}


def shapes():
    return {"none": torch.empty(0), "no_rows": torch.empty(0, 5), "scalar": torch.tensor(3.5),
            "axes": numbers(1, 2, 1, 3, 1), "name.with ünïcode": numbers(3),
            "parameter": nn.Parameter(numbers(2, 2)),
            "grad": numbers(3).requires_grad_(), "count": torch.tensor(7)}


def parameter_with_state():
    made = nn.Parameter(numbers(2, 3))
    made.note = "more"
    return {"p": made, "q": numbers(2)}


def metadata():
    return Model().state_dict()  # an OrderedDict with _metadata


def nested():
    return {"list": [numbers(2), {"x": numbers(3)}], "tuple": (numbers(1), 5), "n": 3,
            "deep": {"a": {"b": numbers(4)}, 7: numbers(2)}, "text": "abc"}


def training():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def large():
    return {f"t{i}": numbers(2) for i in range(20000)}


STATES = [dtypes, new_dtypes, views, shapes, parameter_with_state, metadata, nested, training, large]


def flat(value, prefix=""):
    """Names of a state dict as gac gives them."""
    if isinstance(value, torch.Tensor):
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, (list, tuple)) else ()
    made = {}
    for key, item in items:
        made.update(flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return made


def raw(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def compare(name, rewrite, path, expected, folder):
    out = os.path.join(folder, "out")
    done = subprocess.run([rewrite, path, out], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: gac refuses what torch loads: {done.stderr.strip()}")
    found = {}
    for file in os.listdir(out):
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(out, file), "pt") as tensors:
                found.update({key: tensors.get_tensor(key) for key in tensors.keys()})
    subprocess.run(["rm", "-rf", out], check=True)
    if set(found) != set(expected):
        sys.exit(f"{name}: other names: {sorted(set(found) ^ set(expected))[:9]}")
    for key, tensor in expected.items():
        if found[key].dtype != tensor.dtype or found[key].shape != tensor.shape:
            sys.exit(f"{name}: {key}: {found[key].dtype} {tuple(found[key].shape)}, torch has "
                     f"{tensor.dtype} {tuple(tensor.shape)}")
        if raw(found[key]) != raw(tensor):
            sys.exit(f"{name}: {key}: other bytes")
    print(f"same  {name}: {len(expected)} tensors")


def formats():
    for zipped in (True, False):
        for protocol in (2, 3, 4, 5):
            yield f"{'zip' if zipped else 'legacy'}, protocol {protocol}", \
                {"_use_new_zipfile_serialization": zipped, "pickle_protocol": protocol}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rewrite", required=True)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    rewrite = os.path.abspath(options.rewrite)
    print(f"torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for path in options.files:
            compare(path, rewrite, path, flat(torch.load(path, "cpu", weights_only=True)), folder)
        path = os.path.join(folder, "in.pt")
        for how, arguments in formats():
            if options.files:
                break
            for case in STATES:
                if case is new_dtypes and how.startswith("legacy"):
                    continue  # torch itself does not load them
                torch.save(case(), path, **arguments)
                # weights_only reads protocol 2; of others it knows some opcodes.
                loaded = torch.load(path, weights_only=arguments["pickle_protocol"] == 2)
                compare(f"{case.__name__}, {how}", rewrite, path,
                        flat(loaded["model"] if case is training else loaded), folder)
            model = Model()
            for whole, name in ((model, "whole model"),
                                ({"model": model, "tokenizer": Tokenizer()}, "model, tokenizer")):
                torch.save(whole, path, **arguments)
                compare(f"{name}, {how}", rewrite, path, dict(model.state_dict()), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
