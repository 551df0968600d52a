#!/usr/bin/env python3
r"""How well does a contract rank the candidates that measure.py timed, and how well does a measurement?

    python3 notes/places/rank.py notes/places/random.*.json.gz --library build/libgac.so \
        --contract contracts/h200.json

Measurements are the probe's own, whose times are in the files, and each file. Pairs of candidates count that
are more than 5 % apart in all of them; for a measurement, in all but it.
"""
import argparse
import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "contract"))
from accuracy import Predictor, read  # noqa: E402

RANK_PCT, CLEAR_PCT = 5.0, 3.0


def apart(logs, pct):
    """All in the same order, and by more than pct."""
    least = math.log(1 + pct / 100)
    return all(x > least for x in logs) or all(x < -least for x in logs)


def pairs(files, dtype, predictor):
    """The shapes of two candidates; logarithms of the ratios of their times: in every measurement, and as predicted;
    and whether one kernel ran both."""
    for groups in zip(*(x["dtypes"][dtype] for x in files)):
        for i, _ in enumerate(groups[0]):
            for j in range(i):
                a, b = ([g[x] for g in groups] for x in (i, j))
                logs = [math.log(a[0][3] / b[0][3])]
                logs += [math.log(statistics.median(x[4]) / statistics.median(y[4])) for x, y in zip(a, b)]
                said = [predictor.us({"op": "gemm", "dtype": dtype, "m": x[0], "n": x[1], "k": x[2]})
                        for x in (a[0], b[0])]
                one = a[0][6].rsplit(" [")[0] == b[0][6].rsplit(" [")[0]
                yield a[0][:3], b[0][:3], logs, math.log(said[0] / said[1]), one


def is_right(said, logs):
    return said * logs[0] > 0  # alike is no order


def share(rows):
    rows = list(rows)
    return f"{sum(rows)} of {len(rows)} ({100 * sum(rows) / len(rows):.1f} %)" if rows else "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgac.so")
    parser.add_argument("--contract", type=pathlib.Path, required=True)
    parser.add_argument("-v", action="store_true", help="name the pairs that are ranked wrong")
    args = parser.parse_args()
    predictor = Predictor(args.library, args.contract)
    files = [read(x) for x in args.files]
    for dtype in files[0]["dtypes"]:
        every = list(pairs(files, dtype, predictor))
        over = [x for x in every if apart(x[2], RANK_PCT)]
        print(f"{dtype}: contract {share(is_right(said, logs) for _, _, logs, said, _ in over)}, of those it has over "
              f"{CLEAR_PCT} % apart",
              share(is_right(said, logs) for _, _, logs, said, _ in over if apart([said], CLEAR_PCT)))
        for i, who in enumerate(["the probe", *(x.name.split(".json")[0] for x in args.files)]):
            others = [(logs[i], logs[:i] + logs[i + 1:]) for _, _, logs, _, _ in every]
            print(f"    {who}: {share(is_right(mine, rest) for mine, rest in others if apart(rest, RANK_PCT))}")
        for a, b, logs, said, one in over:
            if args.v and not is_right(said, logs):
                print("   ", *a, "/", *b, "measured", *(f"{math.exp(y):.3f}" for y in logs),
                      f"contract {math.exp(said):.3f}", "one kernel" if one else "two kernels")


if __name__ == "__main__":
    main()
