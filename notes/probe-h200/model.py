#!/usr/bin/env python3
"""How well does a contract predict, and rank, the shapes that `gac probe --model` measured?

    python3 notes/probe-h200/model.py model.raw.json.gz contracts/h200.json --library build/libgac.so
    python3 notes/probe-h200/model.py model.raw.json.gz OTHER.raw.json.gz

The second: how well do times measured at another start of the machine? Last, the shapes that are in most of the
pairs that are ranked wrong.
"""
import argparse
import collections
import gzip
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "contract"))
import accuracy  # noqa: E402


def near(points, place):
    """Splits where the next size is more than a tenth larger."""
    groups, last = [], 0
    for p in sorted(points, key=lambda x: x[place]):
        if not last or p[place] > 1.1 * last:
            groups.append([])
        groups[-1].append(p)
        last = p[place]
    return groups


def groups_of(points):
    """Candidates for a size: near ones that differ in n alone or in k alone."""
    alike = collections.defaultdict(list)
    for p in points:
        alike[p["m"], "n", p["k"]].append(p)
        alike[p["m"], "k", p["n"]].append(p)
    return [group for key, some in alike.items() for group in near(some, key[1]) if len(group) > 1]


def gemms(path):
    """One point a shape; where there were several rounds, with their median."""
    rounds = collections.defaultdict(list)
    with gzip.open(path) as file:
        for p in json.load(file)["points"]:
            if p["op"] == "gemm":
                rounds[p["m"], p["n"], p["k"]].append(p)
    return [{**some[0], "median_us": statistics.median(p["median_us"] for p in some)}
            for some in rounds.values()]


class Measured:
    """Times as another run measured them."""

    def __init__(self, path):
        self.times = {(p["m"], p["n"], p["k"]): p["median_us"] for p in gemms(path)}

    def us(self, p):
        return self.times[p["m"], p["n"], p["k"]]


def wrong_shapes(points, predictor):
    seen = collections.Counter()
    for group in groups_of(points):
        for i, a in enumerate(group):
            for b in group[i + 1:]:
                order = accuracy.order(a, b)
                if order and order * (predictor.us(a) - predictor.us(b)) <= 0:
                    seen.update(f"m {p['m']} n {p['n']} k {p['k']}: {p['median_us']} us, by the other "
                                f"{predictor.us(p):.4g}" for p in (a, b))
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=pathlib.Path)
    parser.add_argument("contract", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path)
    args = parser.parse_args()
    points = gemms(args.raw)
    predictor = (accuracy.Predictor(args.library, args.contract) if args.library
                 else Measured(args.contract))
    for m in sorted({p["m"] for p in points}):
        mine = [p for p in points if p["m"] == m]
        print(f"m={m}:", json.dumps(accuracy.errors(mine, predictor)),
              json.dumps(accuracy.ranking(groups_of(mine), predictor)))
    print("all:", json.dumps(accuracy.errors(points, predictor)),
          json.dumps(accuracy.ranking(groups_of(points), predictor)))
    for shape, n in wrong_shapes(points, predictor).most_common(3):
        print(f"in {n} wrong pairs: {shape}")


if __name__ == "__main__":
    main()
