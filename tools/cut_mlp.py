#!/usr/bin/env python3
"""Cuts MLP channels off a model, so that sizes are left as they fall.

    tools/cut_mlp.py models/tiny build/tiny-cut [--keep 0.93]

The crudest pruning there is, for demos and tests: in every layer the channels whose
columns of down_proj have the smallest norms go, another number in every layer. One
F16 safetensors file, no packages needed.
"""
import argparse
import array
import json
import pathlib
import re
import shutil
import struct


def read(path):
    """Header and tensors (name -> bytes)."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return header, {name: data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
                    for name, t in header.items()}


def write(path, header, tensors):
    end = 0
    for name, tensor in header.items():
        tensor["data_offsets"] = [end, end + len(tensors[name])]
        end += len(tensors[name])
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def cut_rows(header, tensors, name, keep):
    width = 2 * header[name]["shape"][1]
    tensors[name] = b"".join(tensors[name][i * width:(i + 1) * width] for i in keep)
    header[name]["shape"][0] = len(keep)


def cut_columns(header, tensors, name, keep):
    n_rows, n_cols = header[name]["shape"]
    codes = array.array("H", tensors[name])
    tensors[name] = array.array("H", (codes[r * n_cols + i] for r in range(n_rows)
                                      for i in keep)).tobytes()
    header[name]["shape"][1] = len(keep)


def smallest_last(header, tensors, name):
    """Channels by the norms of their columns, greatest first."""
    n_rows, n_cols = header[name]["shape"]
    values = struct.unpack(f"<{n_rows * n_cols}e", tensors[name])
    norms = [sum(v * v for v in values[i::n_cols]) for i in range(n_cols)]
    return sorted(range(n_cols), key=lambda i: -norms[i])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--keep", type=float, default=0.93)
    args = parser.parse_args()
    shutil.copytree(args.model, args.out)
    header, tensors = read(args.model / "model.safetensors")
    widths = []
    for name in [n for n in header if re.fullmatch(r"model\.layers\.\d+\.mlp\.down_proj\.weight", n)]:
        if header[name]["dtype"] != "F16":
            parser.error(f"{name} is {header[name]['dtype']}; F16 is cut")
        layer = int(name.split(".")[2])
        width = int(header[name]["shape"][1] * args.keep) - 3 * layer
        keep = sorted(smallest_last(header, tensors, name)[:width])
        cut_columns(header, tensors, name, keep)
        for part in ("gate_proj", "up_proj"):
            cut_rows(header, tensors, name.replace("down_proj", part), keep)
        widths.append((layer, width))
    write(args.out / "model.safetensors", header, tensors)
    config = json.loads((args.out / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] = [width for _, width in sorted(widths)]
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
