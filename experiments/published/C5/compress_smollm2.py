#!/usr/bin/env python3
"""Makes SmolLM2-135M smaller, with sizes as they fall.

    build/venv/bin/python experiments/published/C5/compress_smollm2.py DIR OUT

DIR is what `gac convert` makes of the GGUF file. q, o and the MLP's gate are factorised by
plain SVD, to a rank of their own in every layer, below the one at which two factors are as
large as the matrix. F16, as users have it. This is no good compressor; it makes a real
model with odd sizes whose perplexity still means something.
"""
import json
import pathlib
import shutil
import sys

import numpy
from safetensors.numpy import load_file, save_file


def factorise(tensors, module, rank):
    """SVD-LLM's names: X_v_proj [r, in], then X_u_proj [out, r]."""
    weight = tensors.pop(module + "_proj.weight")
    u, s, v = numpy.linalg.svd(weight, full_matrices=False)
    root = numpy.sqrt(s[:rank])
    tensors[module + "_u_proj.weight"] = u[:, :rank] * root
    tensors[module + "_v_proj.weight"] = root[:, None] * v[:rank]


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    tensors = {k: v.astype(numpy.float32)
               for k, v in load_file(source / "model.safetensors").items()}
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        factorise(tensors, prefix + ".self_attn.q", 251 + layer)
        factorise(tensors, prefix + ".self_attn.o", 278 + layer % 9)
        factorise(tensors, prefix + ".mlp.gate", 395 + layer % 11)
    config["torch_dtype"] = "float16"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    save_file({k: numpy.ascontiguousarray(v.astype(numpy.float16)) for k, v in tensors.items()},
              target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
