#!/usr/bin/env python3
"""Whole models on the GPU against the reference device.

    python3 tests/gpu/test_engine_gpu.py --dump build/tests/dump_logits [--device cuda] --out FILE

Runs models/tiny and variants of it with unaligned sizes: factorised, PaLU's groups, a narrower MLP,
smaller heads. Tokens go in all at once, some at a time and one by one, with padding and without.
The error is the norm of the difference over the norm of the logits, at the worst position.
Exit 5 if an error exceeds its limit. Needs numpy and safetensors.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "models" / "tiny"
LIMITS = {"F16": 1e-2, "no-pad": 1e-2, "BF16": 6e-2}
N_TOKENS = 300


def split(weight, rank):
    u, s, v = numpy.linalg.svd(weight, full_matrices=False)
    return u[:, :rank] * s[:rank], v[:rank]


def factorised(tensors, config):
    """Every linear layer as two factors, each of another rank, and MLPs of odd widths."""
    odd_widths(tensors, config)
    for i, name in enumerate(sorted(k for k in tensors if k.endswith("_proj.weight"))):
        weight = tensors.pop(name)
        stem = name[:-len("_proj.weight")]
        rank = min(weight.shape) - 1 - i % 29
        tensors[stem + "_u_proj.weight"], tensors[stem + "_v_proj.weight"] = split(weight, rank)


def palu(tensors, config):
    """k and v as one VT and a U for each head, with unaligned ranks."""
    for layer in range(config["num_hidden_layers"]):
        for name in "kv":
            module = f"model.layers.{layer}.self_attn.{name}_proj"
            weight = tensors.pop(module + ".weight")
            pairs = [split(part, 32 - (layer + 3 * i) % 7) for i, part in
                     enumerate(numpy.split(weight, config["num_key_value_heads"]))]
            tensors[module + ".VT.weight"] = numpy.concatenate([v for _, v in pairs])
            for i, (u, _) in enumerate(pairs):
                tensors[f"{module}.U.{i}.weight"] = u


def odd_widths(tensors, config):
    for layer in range(config["num_hidden_layers"]):
        mlp, width = f"model.layers.{layer}.mlp.", 511 - 2 * layer
        for name in ("gate", "up"):
            tensors[mlp + name + "_proj.weight"] = tensors[mlp + name + "_proj.weight"][:width]
        tensors[mlp + "down_proj.weight"] = tensors[mlp + "down_proj.weight"][:, :width]


def cut_heads(tensors, config):
    """v heads of 27; q and k heads of 28, cut at the end of each half."""
    halves = numpy.r_[0:14, 16:30]
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn."
        for name, keep in (("q", halves), ("k", halves), ("v", numpy.arange(27))):
            weight = tensors[f"{attention}{name}_proj.weight"]
            heads = weight.reshape(-1, 32, weight.shape[1])[:, keep]
            tensors[f"{attention}{name}_proj.weight"] = heads.reshape(-1, weight.shape[1])
        weight = tensors[attention + "o_proj.weight"]
        heads = weight.reshape(weight.shape[0], -1, 32)[:, :, :27]
        tensors[attention + "o_proj.weight"] = heads.reshape(weight.shape[0], -1)
    config["q_ranks"] = [28] * config["num_hidden_layers"]


VARIANTS = {"dense": None, "odd widths": odd_widths, "factorised": factorised, "palu": palu,
            "cut heads": cut_heads}


def write(folder, change):
    tensors = {k: v.astype(numpy.float32) for k, v in load_file(TINY / "model.safetensors").items()}
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    if change:
        change(tensors, config)
    folder.mkdir()
    save_file({k: numpy.ascontiguousarray(v.astype(numpy.float16)) for k, v in tensors.items()},
              folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def logits(args, folder, device, dtype, per_pass, scratch):
    target = scratch / "logits"
    subprocess.run([args.dump, folder, device, dtype, str(per_pass), scratch / "ids", target],
                   check=True)
    return numpy.fromfile(target, dtype=numpy.float32).reshape(N_TOKENS, -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        ids = numpy.random.default_rng(args.seed).integers(0, 2048, N_TOKENS, dtype=numpy.int32)
        ids.tofile(scratch / "ids")
        for variant, change in VARIANTS.items():
            folder = scratch / variant.replace(" ", "-")
            write(folder, change)
            right = logits(args, folder, "reference", "-", 0, scratch).astype(numpy.float64)
            scale = numpy.linalg.norm(right, axis=1)
            for dtype in LIMITS:
                for per_pass in (0, 1, 5, 37):
                    mine = logits(args, folder, args.device, dtype, per_pass, scratch)
                    error = float((numpy.linalg.norm(mine - right, axis=1) / scale).max())
                    ok = bool(error < LIMITS[dtype])
                    rows.append({"variant": variant, "dtype": dtype, "per_pass": per_pass,
                                 "error": error, "limit": LIMITS[dtype], "ok": ok})
                    print(f"{'ok' if ok else 'FAIL'} {variant:12s} {dtype:5s} "
                          f"{per_pass or N_TOKENS:3d} at a time: {error:.2e}", flush=True)
    result = {"schema": "gac.engine-gpu/1", "command": sys.argv, "seed": args.seed,
              "n_tokens": N_TOKENS,
              "ok": all(r["ok"] for r in rows), "rows": rows}
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["ok"] else 5


if __name__ == "__main__":
    sys.exit(main())
