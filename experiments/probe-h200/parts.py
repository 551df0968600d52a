#!/usr/bin/env python3
"""What does a k cost that is a multiple of 8 and not of 16, over multiples of 32 near it?

    python3 experiments/probe-h200/parts.py raw.json.gz other.raw.json.gz --library build/libgac.so

Of the groups of candidates that differ in k, with 256 rows and more: as measured, each size's time
over its k, and as contracts/h200.json says.
"""
import argparse
import gzip
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "contract"))
import accuracy  # noqa: E402
import heldout  # noqa: E402

DTYPES = ("F16", "BF16")


def over(group, us):
    """Median time per k of the one kind over that of the other."""
    logs = [[math.log(us(p) / p["k"]) for p in group if p["k"] % of == rest] for of, rest in ((16, 8), (32, 0))]
    return math.exp(statistics.median(logs[0]) - statistics.median(logs[1])) if all(logs) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", nargs="+", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    args = parser.parse_args()
    predictor = accuracy.Predictor(args.library, ROOT / "contracts" / "h200.json")
    rows = []
    for path in args.raw:
        with gzip.open(path, "rt", encoding="utf-8") as f:
            points = [p for p in json.load(f)["points"] if p["phase"].startswith("candidates")]
        for dtype, phase in ((d, p) for d in DTYPES for p in {x["phase"] for x in points}):
            mine = [p for p in points if (p.get("dtype"), p["phase"]) == (dtype, phase) and "median_us" in p]
            for group in heldout.group(mine):
                if len({p["k"] for p in group}) < 3 or group[0]["m"] < 256:
                    continue
                measured = over(group, lambda p: p["median_us"])
                if measured:
                    rows.append((group[0]["m"], group[0]["n"], group[0]["k"], dtype, measured,
                                 over(group, predictor.us)))
    for m, n, k, dtype, measured, said in sorted(rows):
        print(f"{m:4} rows, n {n:5}, k near {k:5}, {dtype:4}: measured {100 * (measured - 1):+5.1f} %, "
              f"the contract {100 * (said - 1):+5.1f} %")


if __name__ == "__main__":
    main()
