#!/usr/bin/env python3
"""How far apart are two measurements of one shape, and do they order sizes alike?

    python3 notes/probe-h200/twice.py raw.json.gz [other.raw.json.gz]

In one run of the probe, candidates at common widths are measured though a table may have
them already; and tables of two runs have the same shapes.
"""
import collections
import gzip
import json
import math
import sys

NEAR, OVER = 64, math.log(1.05)  # of n, and what is apart


def say(label, apart):
    apart.sort(reverse=True)
    parts = ", ".join(f"{name} {apart[int(part * len(apart))][0]:.2f} %" for name, part in
                      (("median", 0.5), ("95th percentile", 0.05), ("99th", 0.01)))
    print(f"{label}: {len(apart)} shapes, {parts}")
    for pct, (dtype, m, k, n), before, again in apart[:4]:
        print(f"{pct:7.1f} %  {dtype} m {m} n {n} k {k}: {before} and {again} us")


def rank(label, here, other):
    """Pairs of aligned n, at most NEAR apart, over 5 % apart here: are they there?"""
    lines, seen = collections.defaultdict(list), collections.defaultdict(list)
    for dtype, m, k, n in here:
        if (dtype, m, k, n) in other and n % 8 == 0 and k % 64 == 0:
            lines[dtype, m, k].append(n)
    for line, sizes in lines.items():
        sizes.sort()
        for i, a in enumerate(sizes):
            for b in sizes[i + 1:]:
                if b - a > NEAR:
                    break
                one, two = (math.log(t[(*line, a)] / t[(*line, b)]) for t in (here, other))
                if abs(one) > OVER:
                    seen[line[0]].append((one * two > 0, abs(two) > OVER))
    for dtype, pairs in seen.items():
        both = [ok for ok, far in pairs if far]
        print(f"{label}, {dtype}: {100 * sum(ok for ok, _ in pairs) / len(pairs):.2f} % of "
              f"{len(pairs)} pairs in the same order; of those over 5 % apart in both "
              f"{100 * sum(both) / len(both):.2f} % of {len(both)}")


def gemms(path):
    with gzip.open(path, "rt", encoding="utf-8") as f:
        return [p for p in json.load(f)["points"] if p["op"] == "gemm" and "median_us" in p]


def times(points):
    for p in points:
        yield p["phase"], (p["dtype"], p["m"], p["k"], p["n"]), p["median_us"]


def main():
    first, tables, again = {}, {}, {}
    for phase, shape, us in times(gemms(sys.argv[1])):
        if phase.startswith("GEMM"):
            first.setdefault(shape, us)
            if phase == "GEMM tables":
                tables[shape] = us
        elif phase.startswith("candidates"):
            again.setdefault(shape, us)
    say("in one run", [(abs(100 * (us / first[s] - 1)), s, first[s], us)
                       for s, us in again.items() if s in first])
    if len(sys.argv) > 2:
        other = {s: us for phase, s, us in times(gemms(sys.argv[2])) if phase == "GEMM tables"}
        say("in two runs", [(abs(100 * (other[s] / us - 1)), s, us, other[s])
                            for s, us in tables.items() if s in other])
        rank("order of the one in the other", tables, other)
        rank("order of the other in the one", other, tables)


if __name__ == "__main__":
    main()
