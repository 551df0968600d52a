#!/usr/bin/env python3
"""How well does a contract rank the candidates that measure.py timed?

    python3 experiments/places/rank.py h200.json --library build/libgac.so --contract contracts/h200.json

Pairs of candidates are counted that are more than 5 % apart in every file given.
Beside the contract's order, that of the times that the probe had for them.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "contract"))
from accuracy import CLEAR_PCT, RANK_PCT, Predictor  # noqa: E402


def apart(logs, pct):
    """All in the same order, and by more than pct."""
    least = math.log(1 + pct / 100)
    return all(x > least for x in logs) or all(x < -least for x in logs)


def pairs(files, dtype, predictor):
    """Logarithms of ratios: measured, the probe's, the contract's; and whether one kernel ran."""
    for groups in zip(*(x["dtypes"][dtype] for x in files)):
        for i, _ in enumerate(groups[0]):
            for j in range(i):
                a, b = ([g[x] for g in groups] for x in (i, j))
                logs = [math.log(statistics.median(x[4]) / statistics.median(y[4]))
                        for x, y in zip(a, b)]
                said = [predictor.us({"op": "gemm", "dtype": dtype, "m": x[0], "n": x[1],
                                      "k": x[2]}) for x in (a[0], b[0])]
                yield (logs, math.log(a[0][3] / b[0][3]), math.log(said[0] / said[1]),
                       a[0][6].rsplit(" [")[0] == b[0][6].rsplit(" [")[0], a[0][:3], b[0][:3])


def share(rows):
    rows = list(rows)
    return f"{100 * sum(rows) / len(rows):5.1f} % of {len(rows):4d}" if rows else "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgac.so")
    parser.add_argument("--contract", type=pathlib.Path, required=True)
    parser.add_argument("-v", action="store_true", help="name the pairs that are ranked wrong")
    args = parser.parse_args()
    predictor = Predictor(args.library, args.contract)
    files = [json.loads(x.read_text(encoding="utf-8")) for x in args.files]
    for dtype in files[0]["dtypes"]:
        over = [x for x in pairs(files, dtype, predictor) if apart(x[0], RANK_PCT)]
        right = [(said < 0) == (logs[0] < 0) for logs, _, said, *_ in over]
        clear = [apart([x[2]], CLEAR_PCT) for x in over]
        one = [x[3] for x in over]
        print(f"{dtype}: contract {share(right)}, clear ones "
              f"{share(r for r, c in zip(right, clear) if c)}, where one kernel ran both "
              f"{share(r for r, c in zip(right, one) if c)}; "
              f"the probe's times {share((x[1] < 0) == (x[0][0] < 0) for x in over)}")
        for x, ok in zip(over, right):
            if args.v and not ok:
                print("   ", *x[4], *x[5], *(f"{math.exp(y):.3f}" for y in x[0]),
                      f"probe {math.exp(x[1]):.3f} contract {math.exp(x[2]):.3f}",
                      "one kernel" if x[3] else "two kernels")


if __name__ == "__main__":
    main()
