#!/usr/bin/env python3
"""Derives a contract again from the raw points of its probe.

    python3 tools/contract/derive_h200.py notes/probe-h200/raw.json.gz contracts/h200.json \\
        --library build/libgac.so

Rewrites CONTRACT in the schema of today. Its tables keep their axes; RAW gives every time: the
median where a shape was measured several times. The costs of cache lines, the exact points and
`accuracy` are computed anew. Tiers, kernels, curves over head sizes and the runtime stay.
"""
import argparse
import collections
import itertools
import json
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import accuracy  # noqa: E402

EVERY_N_DIGITS = 3  # most of the file; with four, no figure is better
REDUNDANT = 0.03  # exact points that tables predict this well are left out


def gemm_times(points, phase):
    times = collections.defaultdict(list)
    for p in points:
        if p["op"] == "gemm" and p["phase"] == phase and "median_us" in p:
            times[p["dtype"], p["m"], p["n"], p["k"]].append(p["median_us"])
    return times


def sdpa_times(points):
    times = collections.defaultdict(list)
    for p in points:
        if p["op"] == "sdpa" and p["phase"] == "attention tables" and "median_us" in p:
            rows = p["batch"] * p["n_kv_heads"]
            if p["n_q"] == 1 or p["n_q_heads"] == p["n_kv_heads"]:  # others measure padding
                times[p["dtype"], p["n_q"] == 1, p["causal"], rows, p["n_kv"], p["qk_head"]].append(
                    p["median_us"])
    return times


def fill(table, axes, look_up, digits=4):
    """Every cell by what was measured; null where nothing was."""
    cells = [look_up(*sizes) for sizes in itertools.product(*(table[a] for a in axes))]
    table["us"] = [float(f"{statistics.median(x):.{digits}g}") if x else None for x in cells]


def cacheline(times, dtype, multiple, parts):
    """For each part of a line the median of what it costs, by shapes of as many outputs."""
    costs = []
    for part in parts:
        logs = collections.defaultdict(list)
        for (d, m, n, k), us in times.items():
            below = times.get((d, m, n, k - part))
            if d == dtype and k % multiple == 0 and below:
                logs[m * n].append(math.log(below[-1] / us[-1]))
        factor = math.exp(statistics.median(statistics.median(x) for x in logs.values()))
        costs.append({"multiple": part, "factor": accuracy.number(factor)})
    return {"multiple": multiple, "costs": costs}


def derive(contract, points):
    tables, lines, heads = gemm_times(points, "GEMM tables"), gemm_times(points, "GEMM lines"), sdpa_times(points)
    for dtype, gemm in contract["gemm"].items():
        for key, digits in (("grid", 4), ("every_n", EVERY_N_DIGITS)):
            for table in gemm[key]:
                fill(table, "mnk", lambda m, n, k, d=dtype: tables.get((d, m, n, k)), digits)
        old = gemm["k_cacheline"]
        gemm["k_cacheline"] = cacheline(lines, dtype, old["multiple"], [c["multiple"] for c in old["costs"]])
    for dtype, sdpa in contract["sdpa"].items():
        for tier in sdpa.get("tiers", []):
            for table in tier["prefill"]:
                fill(table, ("rows", "length", "head"),
                     lambda *x, d=dtype, c=table["causal"]: heads.get((d, False, c, *x)))
            fill(tier["decode"], ("rows", "length", "head"), lambda *x, d=dtype: heads.get((d, True, False, *x)))


def exact_points(points, predictor):
    """The shapes near common sizes that the tables do not predict."""
    near = {}
    for p in points:
        if p["phase"] in ("GEMM steps", "GEMM near common sizes") and "median_us" in p:
            key = p["dtype"], p["m"], p["n"], p["k"]
            if key not in near or p["median_us"] < near[key]["median_us"]:
                near[key] = p
    return [{"dtype": d, "m": m, "n": n, "k": k, "time_us": p["median_us"]} for (d, m, n, k), p in near.items()
            if abs(predictor.us(p) / p["median_us"] - 1) >= REDUNDANT]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=pathlib.Path)
    parser.add_argument("contract", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    args = parser.parse_args()
    points = accuracy.read(args.raw)["points"]

    def write(contract):
        args.contract.write_text(json.dumps(contract), encoding="utf-8")
        predictor = accuracy.Predictor(args.library, args.contract)
        text = predictor.text()
        args.contract.write_text(text, encoding="utf-8")
        return predictor, json.loads(text)

    _, contract = write(accuracy.read(args.contract))  # in the schema of today
    derive(contract, points)
    contract["points"] = []
    predictor, contract = write(contract)
    contract["points"] = exact_points(points, predictor)
    contract["sources"] = [x for x in contract["sources"] if "tools/contract" not in x] + [
        "tables, points and accuracy derived from the raw points of that run by tools/contract/derive_h200.py"]
    predictor, contract = write(contract)
    contract["accuracy"] = {**contract["accuracy"],
                            **accuracy.accuracy_of([points], contract["dtypes"], predictor)}
    write(contract)


if __name__ == "__main__":
    main()
