#!/usr/bin/env python3
"""Times whole models whose sizes are those of given checkpoints.

Reads the shapes of each checkpoint's linear layers from its safetensors headers
(the data may be sparse: time does not depend on values), builds the same Llama
in transformers with random weights on the GPU, factorised layers as two
matrices, and times prefill (eager) and decode (replayed as a CUDA graph, and eager).
`gac inspect --json` on the same checkpoints is what it is held against:
    python3 experiments/validation/advice/measure.py --shapes shapes.json --out measured.json
"""
import argparse
import json
import statistics
import time

import torch
import transformers

PREFILLS = [(1, 1024), (1, 4096), (4, 1024)]
DECODES = [(1, 1024), (16, 1024)]


def median_ms(call, repeats, warm=2):
    for _ in range(warm):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), times


class HeadwiseLowRank(torch.nn.Module):
    """A linear layer as PaLU stores it: one VT for all groups of heads, one U for each group."""

    def __init__(self, n_in, n_out, ranks):
        super().__init__()
        self.ranks = ranks
        self.VT = torch.nn.Linear(n_in, sum(ranks), bias=False)
        self.U = torch.nn.ModuleList(torch.nn.Linear(rank, n_out // len(ranks), bias=False)
                                     for rank in ranks)

    def forward(self, x):
        parts = torch.split(self.VT(x), self.ranks, dim=-1)
        return torch.cat([u(part) for u, part in zip(self.U, parts)], dim=-1)


def build(spec):
    """A Llama of spec["config"], each linear layer with its rank, if it has one, or as groups
    of the ranks in spec["groups"]."""
    c = spec["config"]
    config = transformers.LlamaConfig(
        hidden_size=c["hidden_size"], intermediate_size=c["intermediate_size"],
        num_hidden_layers=c["num_hidden_layers"], num_attention_heads=c["num_attention_heads"],
        num_key_value_heads=c["num_key_value_heads"], vocab_size=c["vocab_size"],
        max_position_embeddings=8192, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval()
        for name, rank in spec["ranks"].items():
            parent, child = name.rsplit(".", 1)
            module = model.get_submodule(name)
            pair = torch.nn.Sequential(
                torch.nn.Linear(module.in_features, rank, bias=False),
                torch.nn.Linear(rank, module.out_features, bias=False))
            setattr(model.get_submodule(parent), child, pair)
        for name, ranks in spec.get("groups", {}).items():
            parent, child = name.rsplit(".", 1)
            module = model.get_submodule(name)
            setattr(model.get_submodule(parent), child,
                    HeadwiseLowRank(module.in_features, module.out_features, ranks))
    return config, model


def measure(config, model):
    rows = {}
    for batch, length in PREFILLS:
        ids = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
        ms, samples = median_ms(lambda i=ids: model(i, use_cache=False, logits_to_keep=1), 5)
        rows[f"prefill:{batch}x{length}"] = {"ms": ms, "samples_ms": samples}
    for batch, length in DECODES:
        # Every decode adds to it, 25 in all, whatever position it is told.
        cache = transformers.StaticCache(config=config, max_batch_size=batch,
                                         max_cache_len=length + 32, device="cuda",
                                         dtype=torch.float16)
        ids = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
              cache_position=torch.arange(length, device="cuda"))
        token = torch.randint(0, config.vocab_size, (batch, 1), device="cuda")
        position = torch.tensor([length], device="cuda")

        def decode():
            model(token, past_key_values=cache, use_cache=True, cache_position=position)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                decode()
        torch.cuda.synchronize()
        ms, samples = median_ms(decode, 9)
        rows[f"decode_eager:{batch}@{length}"] = {"ms": ms, "samples_ms": samples}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            decode()
        ms, samples = median_ms(graph.replay, 9)
        rows[f"decode:{batch}@{length}"] = {"ms": ms, "samples_ms": samples}
        del cache, graph
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with open(args.shapes, encoding="utf-8") as file:
        specs = json.load(file)
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
              "transformers": transformers.__version__, "models": {}}
    with torch.no_grad():
        for name, spec in specs.items():
            begin = time.time()
            config, model = build(spec)
            result["models"][name] = measure(config, model)
            del model
            torch.cuda.empty_cache()
            print(name, {k: round(v["ms"], 2) for k, v in result["models"][name].items()},
                  f"{time.time() - begin:.1f} s", flush=True)
            with open(args.out, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
