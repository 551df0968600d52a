#!/usr/bin/env python3
"""Measures what transformers adds per layer beside GEMM and attention.

Runs Llama-shaped models with random weights, eager prefill and decode replayed
as a CUDA graph, takes the time of GEMM and attention kernels (by the profiler)
from the time of the whole pass, and fits the rest to

    prefill: layers * (layer_us + tokens * (hidden * hidden_ps + width * width_ps))
    decode:  layers * (decode_layer_us + batch * context * kv_elements * kv_ps) + …

Writes the contract's section "runtime" with the runs it was fitted to:
    python3 tools/contract/measure_runtime.py --out runtime.json
    gac probe -o h200.json --runtime runtime.json
Needs a GPU, torch, transformers and numpy.
"""
import argparse
import collections
import json
import statistics

import numpy
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

N_LAYERS = 6
CONTEXT = 1024
# hidden, width, query heads, key heads: Llama-3-8B, a narrow MLP, Llama-3.2-1B, SmolLM2-1.7B.
SHAPES = [(4096, 14336, 32, 8), (4096, 4096, 32, 8), (2048, 8192, 32, 8), (2048, 8192, 32, 32)]
PREFILLS = [(1, 512), (1, 2048), (1, 4096), (4, 1024)]
DECODES = [(1, CONTEXT), (8, CONTEXT), (16, CONTEXT)]


def is_operator(name):
    """Whether a kernel is one that contracts time: GEMM or attention."""
    name = name.lower()
    return any(word in name for word in ("nvjet", "gemm", "gemv", "splitk", "xmma", "flash",
                                         "sdpa", "fmha", "cutlass"))


def operator_ms(call):
    """Time of the GEMM and attention kernels of one call, in milliseconds."""
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        call()
        torch.cuda.synchronize()
    total = collections.Counter()
    for event in record.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            total[is_operator(event.name)] += event.device_time_total
    return total[True] / 1e3, total[False] / 1e3


def median_ms(call, repeats=7):
    """Median time of a call by events, after a warm-up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def graph_of(call):
    """call captured as a CUDA graph, to replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measure_shape(hidden, width, n_heads, n_kv_heads):
    """One row per pass: the sizes, and the time of the pass and of its parts."""
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=width, num_hidden_layers=N_LAYERS,
        num_attention_heads=n_heads, num_key_value_heads=n_kv_heads, vocab_size=32000,
        max_position_embeddings=8192, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval()
    sizes = {"hidden": hidden, "width": width, "layers": N_LAYERS,
             "kv_elements": n_kv_heads * (hidden // n_heads)}
    rows = []
    for batch, length in PREFILLS:
        ids = torch.randint(0, 32000, (batch, length), device="cuda")

        def prefill():
            model(ids, use_cache=False, logits_to_keep=1)
        total = median_ms(prefill)
        operators, others = operator_ms(prefill)
        rows.append({"phase": "prefill", "batch": batch, "length": length, "total_ms": total,
                     "operators_ms": operators, "other_kernels_ms": others, **sizes})
    for batch, length in DECODES:
        cache = transformers.StaticCache(config=config, max_batch_size=batch,
                                         max_cache_len=length + 16, device="cuda",
                                         dtype=torch.float16)
        ids = torch.randint(0, 32000, (batch, length), device="cuda")
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
              cache_position=torch.arange(length, device="cuda"))
        token = torch.randint(0, 32000, (batch, 1), device="cuda")
        position = torch.tensor([length], device="cuda")

        def decode():
            model(token, past_key_values=cache, use_cache=True, cache_position=position)
        replay = graph_of(decode)
        total = median_ms(replay)
        operators, others = operator_ms(replay)
        rows.append({"phase": "decode", "batch": batch, "length": length, "total_ms": total,
                     "operators_ms": operators, "other_kernels_ms": others, **sizes})
    return rows


def fit(rows):
    """The coefficients, by least squares on relative errors, none negative."""
    def solve(phase, columns):
        chosen = [r for r in rows if r["phase"] == phase]
        rest = numpy.array([(r["total_ms"] - r["operators_ms"]) * 1e3 for r in chosen])
        matrix = numpy.array([[column(r) for column in columns] for r in chosen], dtype=float)
        active = list(range(len(columns)))
        while True:
            found = numpy.linalg.lstsq(matrix[:, active] / rest[:, None],
                                       numpy.ones(len(rest)), rcond=None)[0]
            if (found >= 0).all():
                break
            active = [a for a, x in zip(active, found) if x >= 0]
        out = numpy.zeros(len(columns))
        out[active] = found
        for r, predicted in zip(chosen, matrix @ out):
            r["rest_ms"] = r["total_ms"] - r["operators_ms"]
            r["fitted_ms"] = predicted / 1e3
        return out

    layer, hidden, width = solve("prefill", [
        lambda r: r["layers"],
        lambda r: r["layers"] * r["batch"] * r["length"] * r["hidden"] / 1e6,
        lambda r: r["layers"] * r["batch"] * r["length"] * r["width"] / 1e6])
    decode_layer, kv = solve("decode", [
        lambda r: r["layers"],
        lambda r: r["layers"] * r["batch"] * r["length"] * r["kv_elements"] / 1e6])
    return {"layer_us": layer, "decode_layer_us": decode_layer, "hidden_ps": hidden,
            "width_ps": width, "kv_ps": kv}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rows = []
    with torch.no_grad():
        for shape in SHAPES:
            rows += measure_shape(*shape)
            torch.cuda.empty_cache()
    found = {k: float(f"{v:.4g}") for k, v in fit(rows).items()}
    result = {"name": f"transformers {transformers.__version__}, eager prefill and graph decode",
              "basis": "measured", **found,
              "torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "runs": rows}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    for r in rows:
        print(f"{r['phase']:8} {r['batch']}x{r['length']} hidden {r['hidden']} width {r['width']} "
              f"total {r['total_ms']:.3f} ms rest {r['rest_ms']:.3f} fitted {r['fitted_ms']:.3f}")
    print(found)


if __name__ == "__main__":
    main()
