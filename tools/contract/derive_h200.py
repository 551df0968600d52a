#!/usr/bin/env python3
"""Derives contracts/h200.json from the recorded H200 measurements.

  derive_h200.py DATA_DIR [OUTPUT]     (standard output when OUTPUT is left out)

DATA_DIR holds gemm_us.csv, peers.json, survey.json, e2e.json and
sdpa_b4_s2048_h32_fp16_ms.csv. Every number in the contract is fitted to, or
copied from, those files; only names and sources are written here."""
import csv
import json
import math
import os
import re
import statistics
import sys

from contract_common import (DECODE_ROWS, ELEMENT_BYTES, STANDS_FOR, errors, gemm_us, nelder_mead,
                             round_sig, tier_us, write)

SWEEPS = {  # key prefix in gemm_us.csv -> (m, n, k) of a swept value
    "g8192_K": lambda v: (8192, 8192, v),
    "g4096_K": lambda v: (4096, 4096, v),
    "k4096_K": lambda v: (4096, 4096, v),
    "n_N": lambda v: (4096, v, 4096),
}
BEST = 8
FIT_NOTES = [
    "errors are those of the fit, on the points it was fitted to",
    "decode_one_row of tiers 2 and 1: one rate a place for two to five points, so hardly a test",
    "whole_model was not fitted, but for rest_ms, which is the dense run's; operators_ms is GEMM "
    "and SDPA without lm_head; e2e.json does not say the ranks of asis and odd, but its "
    "params_linear shows they differ between layers: every residue modulo 8 is given equal weight",
]
LLAMA_LAYERS = 32
LLAMA_LINEAR = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 2 + [(4096, 14336)]
SOURCES = [
    "gemm_us.csv, column contiguous: y = x W^T in F16, CUDA events, medians; the prefill points",
    "peers.json, gemv_NxK: weights streamed from device memory in a CUDA graph; the decode points",
    "sdpa_b4_s2048_h32_fp16_ms.csv, columns auto and math: attention by head size",
    "survey.json: stack and kernel names",
    "e2e.json: whole-model times that fit.whole_model is held against",
    "facts/h200.md: the cuBLAS version",
    "measured through PyTorch by others, not yet by this program: provisional",
]


def read_points(folder):
    """[(m, n, k, time_us)], and a note on what was left out."""
    eager, launch_bound = {}, []
    with open(os.path.join(folder, "gemm_us.csv")) as stream:
        for row in csv.DictReader(stream):
            time_us = float(row["contiguous"])
            if row["case"].startswith("dec_"):
                launch_bound.append(time_us)
                continue
            prefix, value = re.fullmatch(r"(.*_[KN])(\d+)", row["case"]).groups()
            eager.setdefault(SWEEPS[prefix](int(value)), []).append(time_us)
    # The dec_ cases were launched one by one and all took 35 to 49 us, where
    # the same sizes replayed in a graph take 7 to 20: they time the host. A
    # sweep point no slower than the slowest of them may be host time as well.
    floor = max(launch_bound)
    points = [(*mnk, round(statistics.median(times), 2)) for mnk, times in eager.items()
              if min(times) > floor]
    n_dropped = len(eager) - len(points) + len(launch_bound)
    with open(os.path.join(folder, "peers.json")) as stream:
        for key, rows in json.load(stream).items():
            match = re.fullmatch(r"gemv_(\d+)x(\d+)", key)
            if match:
                n, k = map(int, match.groups())
                points += [(m, n, k, t) for m, t, _ in rows]
    note = (f"{n_dropped} points of gemm_us.csv at or below {floor} us left out: "
            "launched one by one, they time the host")
    return sorted(points), note


def klass(size):
    return next(multiple for multiple in (BEST, 2, 1) if size % multiple == 0)


def mean_log_error(tier, points):
    return statistics.fmean(abs(math.log(tier_us(tier, m, n, k) / t)) for m, n, k, t in points)


def fit_tier(points, edge=None, gemv_overhead=None):
    """The tier whose times are nearest to points in mean |log ratio|. Misaligned
    tiers have too few GEMV points to tell an overhead from a rate, so they take
    the aligned tier's."""
    def build(x):
        return {"flops_per_s": math.exp(x[0]), "bytes_per_s": math.exp(x[1]),
                "overhead_us": math.exp(x[2]), "overlap": 1 / (1 + math.exp(-x[3])),
                "edge_bytes_per_s": edge or math.exp(x[4])}

    many = [p for p in points if p[0] > 1]
    start = [math.log(v) for v in (2e14, 3e12, 5.0)] + [0.0] + ([] if edge else [math.log(3e12)])
    x = start
    for _ in range(4):  # a fresh simplex gets out of where the last one collapsed
        x = nelder_mead(lambda p: mean_log_error(build(p), many), x, 0.3)
    fitted = {key: round_sig(value) for key, value in build(x).items()}
    fitted["overlap"] = round(fitted["overlap"], 3)

    def build_gemv(g):
        return {"gemv": {"bytes_per_s": math.exp(g[0]),
                         "overhead_us": gemv_overhead or math.exp(g[1])}}

    one = [p for p in points if p[0] == 1]
    start = [math.log(2e12)] + ([] if gemv_overhead else [1.0])
    g = nelder_mead(lambda p: mean_log_error(build_gemv(p), one), start, 0.3)
    fitted["gemv"] = {k: round_sig(v) for k, v in build_gemv(g)["gemv"].items()}
    return fitted


def kernel_names(survey):
    """The start of the kernel that serves each multiple, up to its tile sizes."""
    def longest(case):
        name = max(survey["kern"][case], key=lambda kernel: kernel[1])[0]
        return re.sub(r"^void (cutlass::Kernel2<|pytorch_)?", "", name)

    def start(name):
        return re.split(r"_f16_\d|_\d+x\d+|_knob|<|>", name)[0]

    align = {m: re.search(r"(_align\d)?>|$", longest(c)).group(1) or ""
             for m, c in ((BEST, "gemm112"), (2, "gemm106"), (1, "gemm107"))}
    gemm = {m: start(longest(c)) + (f"_*{align[m]}" if align[m] else "")
            for m, c in ((BEST, "gemm112"), (2, "gemm106"), (1, "gemm107"))}
    return gemm, {BEST: start(longest("sdpa_112_auto")), 1: start(longest("sdpa_107_auto"))}


def tier_record(multiple, kernel, family, fitted):
    return {"multiple": multiple, "aligned": multiple == BEST, "kernel": kernel, "family": family,
            **fitted, "basis": "measured", "decode_basis": "measured"}


def derive_gemm(points, names):
    families = {BEST: "nvjet", 2: "cutlass-align2", 1: "cutlass-align1"}
    best = fit_tier([p for p in points if klass(p[1]) == klass(p[2]) == BEST])
    gemm = {"n": [tier_record(BEST, names[BEST], families[BEST], best)],
            "k": [tier_record(BEST, names[BEST], families[BEST], best)]}
    for multiple in (2, 1):
        gemv_overhead = best["gemv"]["overhead_us"]
        by_k = fit_tier([p for p in points if klass(p[1]) == BEST and klass(p[2]) == multiple],
                        gemv_overhead=gemv_overhead)
        # N was swept at one m and k only, which cannot tell output from
        # compute: the rate of the same kernel from the K sweeps serves.
        by_n = fit_tier([p for p in points if klass(p[2]) == BEST and klass(p[1]) == multiple],
                        edge=by_k["edge_bytes_per_s"], gemv_overhead=gemv_overhead)
        for place, fitted in (("n", by_n), ("k", by_k)):
            gemm[place].append(tier_record(multiple, names[multiple], families[multiple], fitted))
    return gemm


def derive_sdpa(folder, survey, names, best_gemm):
    curve, math_curve = [], []
    with open(os.path.join(folder, "sdpa_b4_s2048_h32_fp16_ms.csv")) as stream:
        for row in csv.DictReader(stream):
            head = int(row["head_dim"])
            curve.append([head, round(float(row["auto"]) * 1000, 1)])
            if row["math"]:
                math_curve.append([head, round(float(row["math"]) * 1000, 1)])
    kernels = survey["kern"]["sdpa_107_auto"]
    pad_us = sum(us for name, us, _ in kernels if "flash" not in name)
    pad_rate = 3 * 4 * 32 * 2048 * 107 * ELEMENT_BYTES / pad_us * 1e6
    tiers = [
        {"multiple": BEST, "aligned": True, "kernel": names[BEST], "family": "cudnn-flash",
         "basis": "measured"},
        {"multiple": 1, "aligned": False, "kernel": names[1], "family": "flash2-padded",
         "pad_bytes_per_s": round_sig(pad_rate), "basis": "measured"},
    ]
    return {
        "reference": {"batch": 4, "n_heads": 32, "n_q": 2048, "n_kv": 2048, "causal": False},
        "max_head": max(head for head, _ in curve),
        "tiers": tiers,
        # No decode attention was measured: K and V are taken to stream like
        # the weights of an aligned GEMV.
        "decode": {"bytes_per_s": best_gemm["gemv"]["bytes_per_s"],
                   "overhead_us": best_gemm["gemv"]["overhead_us"], "basis": "assumed"},
        "points": curve,
        "beyond": {"kernel": "math", "family": "math", "basis": "assumed", "points": math_curve},
    }


def fit_report(gemm, points):
    regimes = {"prefill": lambda m: m >= DECODE_ROWS,
               "decode": lambda m: 1 < m < DECODE_ROWS, "decode_one_row": lambda m: m == 1}
    report = {}
    for name, inside in regimes.items():
        chosen = [p for p in points if inside(p[0])]
        report[name] = errors([(gemm_us(gemm, m, n, k), t) for m, n, k, t in chosen])
        for multiple in (BEST, 2, 1):
            some = [p for p in chosen if min(klass(p[1]), klass(p[2])) == multiple]
            report[f"{name}_tier_{multiple}"] = errors(
                [(gemm_us(gemm, m, n, k), t) for m, n, k, t in some])
    return report


def linear_ms(gemm, ranks, m):
    """All linear layers of the Llama-3-8B shape; a rank of None is dense."""
    total = 0.0
    for (n, k), rank in zip(LLAMA_LINEAR, ranks):
        if rank is None:
            total += gemm_us(gemm, m, n, k)
        else:
            total += gemm_us(gemm, m, rank, k) + gemm_us(gemm, m, n, rank)
    return LLAMA_LAYERS * total / 1000


def variants():
    """The rank sets that each e2e.json variant may have run with. Ranks as
    they fell differ from layer to layer, so every residue counts alike."""
    around = [int(n * k * 0.85 / (n + k)) // 8 * 8 for n, k in LLAMA_LINEAR]
    return {
        "dense": [[None] * len(LLAMA_LINEAR)],
        "asis": [[r + i for r in around] for i in range(8)],
        "odd": [[r + i for r in around] for i in range(1, 8, 2)],
        "a8": [around],
    }


def whole_model_report(folder, gemm, sdpa):
    """GEMM and SDPA predicted for the runs of e2e.json. What else a run does
    is taken from the dense run of the phase; the other rows are predictions."""
    with open(os.path.join(folder, "e2e.json")) as stream:
        e2e = json.load(stream)
    head_us = dict(sdpa["points"])[128]
    rows = []
    for batch, length in ((1, 1024), (1, 4096), (4, 1024)):
        attention = LLAMA_LAYERS * head_us * batch * length**2 / (4 * 2048**2) / 2 / 1000
        rest = None
        for name, rank_sets in variants().items():
            operators = attention + statistics.fmean(
                linear_ms(gemm, ranks, batch * length) for ranks in rank_sets)
            measured = e2e[name][f"prefill_b{batch}_s{length}"]
            rest = measured - operators if rest is None else rest
            rows.append({"phase": f"prefill:{batch}x{length}", "variant": name,
                         "operators_ms": round(operators, 1), "rest_ms": round(rest, 1),
                         "predicted_ms": round(operators + rest, 1),
                         "measured_ms": round(measured, 1)})
    return rows


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "survey.json")) as stream:
        survey = json.load(stream)
    points, note = read_points(folder)
    gemm_names, sdpa_names = kernel_names(survey)
    gemm = derive_gemm(points, gemm_names)
    sdpa = derive_sdpa(folder, survey, sdpa_names, gemm["k"][0])
    env = survey["env"]
    contract = {
        "schema": "gac.contract/1", "name": "h200", "gpu": env["gpu"], "arch": "sm_90",
        "provisional": True,
        "stack": {"torch": env["torch"], "cuda": env["cuda"], "cudnn": str(env["cudnn"]),
                  "driver": env["smi"].split(",")[0], "cublas": "13.1"},
        "sources": SOURCES + [note],
        "dtypes": ["F16"], "stands_for": STANDS_FOR,
        "gemm": {"F16": gemm}, "sdpa": {"F16": sdpa},
        "fit": {"notes": FIT_NOTES, **fit_report(gemm, points),
                "whole_model": whole_model_report(folder, gemm, sdpa)},
        "points": [{"m": m, "n": n, "k": k, "dtype": "F16", "time_us": t}
                   for m, n, k, t in points],
    }
    write(contract, sys.argv[2:])


if __name__ == "__main__":
    main()
