#!/usr/bin/env python3
"""Prefill and decode of families that differ from Llama, in our engine and in transformers.

    speed.py GAC OUT.json [--work /dev/shm/families] [--device cuda] [--only NAME]

Makes models of published shapes with random weights in F16, one after another, and times each in
both programs on the same GPU. transformers runs prefill eagerly, and decode as a CUDA graph where
its cache allows that.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "experiments" / "validation" / "advice"))
from measure import median_ms  # noqa: E402

PREFILL, CONTEXT = 1024, 1024
# What the config of each is told beside the class's defaults, which are a published model's.
SHAPES = {
    "gemma-2-2b": ("Gemma2Config", {}),
    "gemma-3-1b": ("Gemma3TextConfig", {
        "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512}),
    "phi-3-mini": ("Phi3Config", {"num_key_value_heads": 32, "pad_token_id": 0}),
    "olmo-2-1b": ("Olmo2Config", {
        "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 16, "max_position_embeddings": 4096}),
    "granite-3-2b": ("GraniteConfig", {
        "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "max_position_embeddings": 4096,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625, "logits_scaling": 8.0}),
    "stablelm-2-1.6b": ("StableLmConfig", {
        "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32,
        "use_qkv_bias": True}),
    "gpt2-xl": ("GPT2Config", {"n_embd": 1600, "n_layer": 48, "n_head": 25,
                               "n_positions": 2048}),
    "opt-1.3b": ("OPTConfig", {
        "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
        "word_embed_proj_dim": 2048}),
}


def make(kind, settings, folder):
    config = getattr(transformers, kind)(**settings)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    return config, model


def decode_ms(config, model, graphed):
    """A step after CONTEXT - 1 tokens."""
    cache = transformers.StaticCache(config=config, max_batch_size=1, max_cache_len=CONTEXT + 64,
                                     device="cuda", dtype=torch.float16)
    ids = torch.randint(0, config.vocab_size, (1, CONTEXT - 1), device="cuda")
    model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
          cache_position=torch.arange(CONTEXT - 1, device="cuda"))
    position = torch.tensor([CONTEXT - 1], device="cuda")

    def step():
        model(ids[:, :1], past_key_values=cache, use_cache=True, cache_position=position)
    if not graphed:
        return median_ms(step, 9)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return median_ms(graph.replay, 9)


def in_transformers(config, model):
    ids = torch.randint(0, config.vocab_size, (1, PREFILL), device="cuda")
    ms, samples = median_ms(lambda: model(ids, use_cache=False, logits_to_keep=1), 9)
    rows = {"prefill": {"ms": ms, "samples_ms": samples}}
    for name, graphed in (("decode_eager", False), ("decode_graph", True)):
        try:
            ms, samples = decode_ms(config, model, graphed)
            rows[name] = {"ms": ms, "samples_ms": samples}
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            torch.cuda.synchronize()
            rows[name] = {"error": str(error).splitlines()[0][:200]}
    return rows


def in_gac(args, folder):
    done = subprocess.run([args.gac, "eval", str(folder), "--device", args.device, "--dtype", "F16",
                           "--prefill", f"1x{PREFILL}", "--decode", f"1@{CONTEXT}", "--json", "-q"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"error": done.stderr.strip()}
    made = json.loads(done.stdout)
    return {"prefill": made["prefill"][0], "decode": made["decode"][0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gac")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/families"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    result = {"command": sys.argv, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
              "transformers": transformers.__version__, "dtype": "F16", "models": {}}
    for name, (kind, settings) in SHAPES.items():
        if not name.startswith(args.only):
            continue
        folder = args.work / name
        with torch.no_grad():
            config, model = make(kind, settings, folder)
            row = {"parameters": sum(p.numel() for p in model.parameters()),
                   "transformers": in_transformers(config, model)}
        del model
        torch.cuda.empty_cache()
        row["gac"] = in_gac(args, folder)
        shutil.rmtree(folder)
        result["models"][name] = row
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(name, {who: {what: round(value["ms"], 3) if isinstance(value, dict) and "ms" in value
                           else value for what, value in row[who].items()}
                     for who in ("gac", "transformers")}, flush=True)


if __name__ == "__main__":
    main()
