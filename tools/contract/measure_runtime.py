#!/usr/bin/env python3
"""Measures what transformers adds per layer beside GEMM and attention.

Runs Llama-shaped models with random weights, eager prefill and decode replayed
as a CUDA graph, takes the time of GEMM and attention kernels (by the profiler)
from the time of the whole pass, and fits the rest to

    prefill: layers * (layer_us + tokens * (hidden * hidden_ps + width * width_ps))
    decode:  layers * (decode_layer_us + batch * context * kv_elements * kv_ps),
             the last term where query heads share keys, which this runtime copies

Writes the contract's section "runtime" with the runs it was fitted to:
    python3 tools/contract/measure_runtime.py --out runtime.json
    gac probe -o h200.json --runtime runtime.json
Needs a GPU, torch and transformers; --refit FILE fits recorded runs again.
"""
import argparse
import collections
import json
import statistics

try:
    import torch
    import transformers
    from torch.profiler import ProfilerActivity, profile
except ImportError:  # --refit needs none of them
    torch = None

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
             "kv_elements": n_kv_heads * (hidden // n_heads),
             "shares_keys": int(n_kv_heads < n_heads)}
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


def solve_two(rows):
    """a, b of least relative error in y = a u + b v, for rows (u, v, y)."""
    uu = sum((u / y) ** 2 for u, v, y in rows)
    vv = sum((v / y) ** 2 for u, v, y in rows)
    uv = sum(u * v / y / y for u, v, y in rows)
    u1, v1 = sum(u / y for u, v, y in rows), sum(v / y for u, v, y in rows)
    determinant = uu * vv - uv * uv
    return (u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant


def fit(rows):
    """The coefficients. Prefill: what kernels take follows the tokens; the gaps
    between them are seen where the GPU, not the host, is what is waited for.
    Decode: the cache is copied where query heads share keys (GQA)."""
    prefill = [r for r in rows if r["phase"] == "prefill"]
    decode = [r for r in rows if r["phase"] == "decode"]
    tokens = {id(r): r["batch"] * r["length"] for r in prefill}
    hidden, width = solve_two([
        (r["layers"] * tokens[id(r)] * r["hidden"] / 1e6,
         r["layers"] * tokens[id(r)] * r["width"] / 1e6, r["other_kernels_ms"] * 1e3)
        for r in prefill if tokens[id(r)] >= 2048])
    busy = [r for r in prefill if tokens[id(r)] >= 4096]
    layer = statistics.median(
        (r["total_ms"] - r["operators_ms"] - r["other_kernels_ms"]) * 1e3 / r["layers"]
        for r in busy)
    decode_layer, kv = solve_two([
        (r["layers"], r["layers"] * r["batch"] * r["length"] * r["kv_elements"] / 1e6,
         (r["total_ms"] - r["operators_ms"]) * 1e3) for r in decode if r["shares_keys"]])
    for r in rows:
        r["rest_ms"] = r["total_ms"] - r["operators_ms"]
        if r["phase"] == "prefill":
            r["fitted_ms"] = r["layers"] * (layer / 1e3 + tokens[id(r)] * (
                r["hidden"] * hidden + r["width"] * width) / 1e9)
        else:
            cached = r["batch"] * r["length"] * r["kv_elements"] * r["shares_keys"]
            r["fitted_ms"] = r["layers"] * (decode_layer / 1e3 + cached * kv / 1e9)
    return {"layer_us": layer, "decode_layer_us": decode_layer, "hidden_ps": hidden,
            "width_ps": width, "kv_ps": kv}


def measure():
    rows = []
    with torch.no_grad():
        for shape in SHAPES:
            rows += measure_shape(*shape)
            torch.cuda.empty_cache()
    return {"name": f"transformers {transformers.__version__}, eager prefill and graph decode",
            "basis": "measured", "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
            "runs": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--refit", metavar="FILE", help="fit the runs in FILE, measure nothing")
    args = parser.parse_args()
    if args.refit:
        with open(args.refit, encoding="utf-8") as file:
            result = json.load(file)
    elif torch is None:
        parser.error("torch and transformers are needed")
    else:
        result = measure()
    rows = result.pop("runs")
    found = {k: float(f"{v:.4g}") for k, v in fit(rows).items()}
    result.update(found, runs=rows)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    for r in rows:
        print(f"{r['phase']:8} {r['batch']}x{r['length']} hidden {r['hidden']} width {r['width']} "
              f"total {r['total_ms']:.3f} ms rest {r['rest_ms']:.3f} fitted {r['fitted_ms']:.3f}")
    print(found)


if __name__ == "__main__":
    main()
