#!/usr/bin/env python3
"""What does a k cost that is a multiple of 8 and not of 16, over multiples of 32 near it?

    python3 notes/probe-h200/parts.py raw.json.gz other.raw.json.gz --library build/libgac.so

Of the groups of candidates that differ in k, with 256 rows and more: as measured, each size's time
over its k, and as contracts/h200.json says. Then how well the cost at a k of 4088 tells that at the
smaller k of the first run's tables: as the same factor, or as a time in proportion to k, over k itself or over the
next k of whole lines, which it is taken for. Last, errors at a k above 4096, drawn at random with an n that tables of
every k do not have.
"""
import argparse
import gzip
import json
import math
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "contract"))
import accuracy  # noqa: E402
import heldout  # noqa: E402

DTYPES = ("F16", "BF16")
CONTRACT = ROOT / "contracts" / "h200.json"
ONE_K = 4088
LINE = 64  # numbers of two bytes
ROWS = (256, 512, 1024, 2048, 4096)


def over(group, us):
    """Median time per k of the one kind over that of the other."""
    logs = [[math.log(us(p) / p["k"]) for p in group if p["k"] % of == rest] for of, rest in ((16, 8), (32, 0))]
    return math.exp(statistics.median(logs[0]) - statistics.median(logs[1])) if all(logs) else None


def predictor_without(library, *keys):
    contract = json.loads(CONTRACT.read_text(encoding="utf-8"))
    for dtype in DTYPES:
        for key in keys:
            contract["gemm"][dtype].pop(key, None)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(contract, file)
        file.flush()
        return accuracy.Predictor(library, file.name)


def next_whole(p):
    return {**p, "k": -(-p["k"] // LINE) * LINE}


def one_for_all(points, library):
    """Errors of what one k says of the others, for every m and n that have every k."""
    by_lines = predictor_without(library, "dense_k", "dense_part")
    whole = predictor_without(library, "dense_k", "dense_part", "lines")
    shapes = {(p["dtype"], p["m"], p["n"], p["k"]): p for p in points
              if p["phase"] == "GEMM tables" and p["dtype"] in DTYPES and p["m"] >= 256 and "median_us" in p}
    errors = {}
    for (dtype, m, n, k), p in shapes.items():
        one = shapes.get((dtype, m, n, ONE_K))
        if not one or k % 16 != 8 or k >= ONE_K:
            continue
        us, more_us = whole.us(p), one["median_us"] - whole.us(one)
        more_than_whole_us = one["median_us"] - whole.us(next_whole(one))
        for name, said in (("lines", by_lines.us(p)), ("factor", us * one["median_us"] / whole.us(one)),
                           ("time", us + more_us * k / ONE_K),
                           ("lines and time", whole.us(next_whole(p)) + more_than_whole_us * k / ONE_K)):
            errors.setdefault((name, 1 << k.bit_length()), []).append(abs(100 * (said / p["median_us"] - 1)))
    print(f"\nk below, {' ':8} median and 95th percentile of errors (%), "
          "by lines, as a factor, as a time, over whole lines")
    for limit in sorted({limit for _, limit in errors}):
        found = [sorted(errors[name, limit]) for name in ("lines", "factor", "time", "lines and time")]
        print(f"{limit:7}, {len(found[0]):4} k: " + "  ".join(
            f"{statistics.median(x):5.1f} {x[int(0.95 * len(x))]:5.1f}" for x in found))


def beyond(points, predictor):
    off = sorted(abs(100 * (predictor.us(p) / p["median_us"] - 1)) for p in points
                 if p["m"] in ROWS and p["k"] > 4096 and p["k"] % 16 == 8 and p["n"] % 8 == 0
                 and p["n"] <= 16384 and p["n"] not in (2048, 4096, 8192))
    print(f"\nk above 4096: {len(off)} shapes, median {statistics.median(off):.1f} %, "
          f"95th percentile {off[int(0.95 * len(off))]:.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", nargs="+", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    args = parser.parse_args()
    predictor = accuracy.Predictor(args.library, CONTRACT)
    rows, drawn, first = [], [], None
    for path in args.raw:
        with gzip.open(path, "rt", encoding="utf-8") as f:
            points = [p for p in json.load(f)["points"] if p["op"] == "gemm"]
        first = first or points
        drawn += [p for p in points if p["phase"].startswith(("held-out", "candidates")) and
                  p.get("dtype") in DTYPES and "median_us" in p]
        points = [p for p in points if p["phase"].startswith("candidates")]
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
    one_for_all(first, args.library)
    beyond(drawn, predictor)


if __name__ == "__main__":
    main()
