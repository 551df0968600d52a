#!/usr/bin/env python3
"""How many of the pairs of candidates that runs drew does a contract rank wrong?

    python3 notes/probe-h200/draws.py CONTRACT RUN.json.gz... --library build/libgac.so
    python3 notes/probe-h200/draws.py --keep RUN.json.gz

For each dtype that both have: wrong ones of all that were over 5 % apart both times, at random widths and at
those of 2048, 4096 and 8192; with --groups also where they are. --keep writes what a run drew to seedN.drawn.json.gz beside it.
"""
import argparse
import gzip
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "contract"))
import accuracy  # noqa: E402
import heldout  # noqa: E402

RANKED = "candidates", "candidates at common widths"
DRAWN = "held-out shapes", *RANKED


def read(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as f:
        return json.load(f)


def keep(path):
    run = read(path)
    run["points"] = [p for p in run["points"] if p["phase"] in DRAWN]
    text = json.dumps(run, separators=(",", ":"))
    out = path.parent / f"seed{run['seed']}.drawn.json.gz"
    out.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
    print(f"{out}: {len(run['points'])} points")


def accuracy_at(path, contract, predictor):
    """What the contract would say of itself had that run drawn its shapes; of the dtypes that both have."""
    points = read(path)["points"]
    measured = {p.get("dtype") for p in points}
    return accuracy.accuracy_of([points], [x for x in contract["dtypes"] if x in measured], predictor)


def wrong(found):
    n = found["n_over_5_pct"]
    return n - round(found.get("right_pct", 100) * n / 100), n


def wrong_groups(path, dtypes, predictor):
    """A line for each group of candidates that has a wrong pair."""
    points = [p for p in read(path)["points"] if "median_us" in p]
    for dtype in dtypes:
        for phase in RANKED:
            for group in heldout.group([p for p in points if (p.get("dtype"), p["phase"]) == (dtype, phase)]):
                some, n = wrong(accuracy.ranking([group], predictor))
                sizes = (f"{place} {min(p[place] for p in group)} to {max(p[place] for p in group)}"
                         for place in "nk")
                if some:
                    yield f"  {some:2} of {n:2}: {dtype}, {phase}, {group[0]['m']} rows, {', '.join(sizes)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=pathlib.Path, nargs="+", help="a contract, and runs")
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    if args.keep:
        for path in args.files:
            keep(path)
        return
    if not args.library or len(args.files) < 2:
        parser.error("needs a contract, a run and --library")
    contract, predictor = read(args.files[0]), accuracy.Predictor(args.library, args.files[0])
    total = {}
    for path in args.files[1:]:
        said = []
        for dtype, ranking in accuracy_at(path, contract, predictor)["ranking"].items():
            for where, share in ranking.items():
                some, n = wrong(share)
                before = total.get((dtype, where), (0, 0))
                total[dtype, where] = before[0] + some, before[1] + n
                said.append(f"{dtype} {where} {some} of {n}")
        print(f"{path.name}: {', '.join(said)}")
        for line in wrong_groups(path, contract["dtypes"], predictor) if args.groups else ():
            print(line)
    for (dtype, where), (some, n) in total.items():
        print(f"all, {dtype} {where}: {some} of {n} wrong, {100 - 100 * some / n:.2f} % right")


if __name__ == "__main__":
    main()
