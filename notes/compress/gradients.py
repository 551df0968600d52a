#!/usr/bin/env python3
"""Are the sums of g g^T that gac measures those of PyTorch?

    gradients.py GAC MODEL TEXT

Lets gac measure MODEL in a work folder, computes the same sums with PyTorch's automatic
differentiation in F64, with tokens drawn by the same numbers, and prints the largest relative
difference (Frobenius norms) for each projection. Needs torch, transformers and tokenizers.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PROJECTIONS = {0: "self_attn.q_proj", 1: "self_attn.k_proj", 2: "self_attn.v_proj",
               3: "self_attn.o_proj", 6: "mlp.down_proj"}


def splitmix(seed):
    mask = (1 << 64) - 1
    while True:
        seed = (seed + 0x9e3779b97f4a7c15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & mask
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & mask
        yield ((z ^ (z >> 31)) >> 11) * 2.0 ** -53


def add_window(net, window, seed, sums):
    def watch(key):
        def keep(_, __, output):
            def add(gradient):
                g = gradient[0]
                sums[key] = sums.get(key, 0) + g.T @ g
            output.register_hook(add)
        return keep
    hooks = [layer.get_submodule(name).register_forward_hook(watch((i, p)))
             for i, layer in enumerate(net.model.layers) for p, name in PROJECTIONS.items()]
    logits = net(window[None]).logits[0]
    with torch.no_grad():
        draws = splitmix(seed)
        shares = torch.softmax(logits, -1).cumsum(-1)
        tokens = torch.tensor([int((row > next(draws)).nonzero()[0]) for row in shares])
    torch.nn.functional.cross_entropy(logits, tokens, reduction="sum").backward()
    for hook in hooks:
        hook.remove()


def main(gac, model, text):
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    net.requires_grad_(False)
    net.model.embed_tokens.weight.requires_grad_(True)
    ids = AutoTokenizer.from_pretrained(model)(pathlib.Path(text).read_text(),
                                               return_tensors="pt").input_ids[0]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder) / "work"
        found = json.loads(subprocess.run(
            [gac, "compress", model, "-o", folder + "/out", "--ratio", "0.3", "--text", text,
             "--work", work, "--dry-run", "--json", "-q"], check=True, capture_output=True,
            text=True).stdout)["calibration"]
        n_windows, size, sums = found["gradient_tokens"] // found["window"], found["window"], {}
        for w in range(n_windows):
            add_window(net, ids[w * size:(w + 1) * size], w, sums)
        print(f"{n_windows} windows of {size} tokens")
        for p, name in PROJECTIONS.items():
            worst = 0
            for i in range(len(net.model.layers)):
                ours = load_file(work / f"gradients-{i:03}" / "model.safetensors")[f"sums.{p}"]
                worst = max(worst, float((ours.double() - sums[i, p]).norm() / sums[i, p].norm()))
            print(f"{name}: {worst:.2g}")


main(*sys.argv[1:])
