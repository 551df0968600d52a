#!/usr/bin/env python3
"""How far apart are two measurements of one shape, in one run of the probe?

    python3 experiments/probe-h200/twice.py raw.json.gz

Candidates at common widths are measured though a table may have them already.
"""
import gzip
import json
import sys


def main():
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as f:
        points = [p for p in json.load(f)["points"] if p["op"] == "gemm" and "median_us" in p]
    first, apart = {}, []
    for p in points:
        shape = (p["dtype"], p["m"], p["n"], p["k"])
        if p["phase"].startswith("GEMM"):
            first.setdefault(shape, p["median_us"])
        elif p["phase"].startswith("candidates") and shape in first:
            apart.append((abs(100 * (p["median_us"] / first[shape] - 1)), shape, first[shape],
                          p["median_us"]))
    apart.sort(reverse=True)
    parts = {name: f"{apart[int(part * len(apart))][0]:.2f} %"
             for name, part in (("median", 0.5), ("95th percentile", 0.05), ("99th", 0.01))}
    print(f"{len(apart)} shapes measured twice:", parts)
    for pct, (dtype, m, n, k), before, again in apart[:8]:
        print(f"{pct:5.1f} %  {dtype} m {m} n {n} k {k}: {before} and {again} us")


if __name__ == "__main__":
    main()
