#!/usr/bin/env python3
"""How many of the pairs of candidates that runs drew does a contract rank wrong?

    python3 experiments/probe-h200/draws.py CONTRACT RUN.json.gz... --library build/libgac.so

For each dtype that both have: wrong ones of all that were over 5 % apart both times, at random widths and at
those of 2048, 4096 and 8192.
"""
import argparse
import gzip
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "contract"))
import accuracy  # noqa: E402


def read(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as f:
        return json.load(f)


def wrong(found):
    n = found["n_over_5_pct"]
    return n - round(found["right_pct"] * n / 100), n


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contract", type=pathlib.Path)
    parser.add_argument("runs", type=pathlib.Path, nargs="+")
    parser.add_argument("--library", type=pathlib.Path, required=True)
    args = parser.parse_args()
    contract, predictor = read(args.contract), accuracy.Predictor(args.library, args.contract)
    total = {}
    for path in args.runs:
        points = [p for p in read(path)["points"] if p.get("dtype") in contract["dtypes"]]
        said = []
        measured = {p["dtype"] for p in points}
        found = accuracy.accuracy_of(points, {**contract, "dtypes": [x for x in contract["dtypes"] if x in measured]},
                                     predictor)
        for dtype, ranking in found["ranking"].items():
            for where, share in (("random", ranking), ("typical", ranking["typical"])):
                some, n = wrong(share)
                before = total.get((dtype, where), (0, 0))
                total[dtype, where] = before[0] + some, before[1] + n
                said.append(f"{dtype} {where} {some} of {n}")
        print(f"{path.name}: {', '.join(said)}")
    for (dtype, where), (some, n) in total.items():
        print(f"all, {dtype} {where}: {some} of {n} wrong, {100 - 100 * some / n:.2f} % right")


if __name__ == "__main__":
    main()
