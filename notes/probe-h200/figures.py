#!/usr/bin/env python3
"""The tables of docs/measurement.md on contracts/h200.json, from the contract and the runs of this folder.

    python3 notes/probe-h200/figures.py --library build/libgac.so [--check | --write]

Prints the rows of the tables, and figures that the text around them may quote. --write puts the rows into
docs/measurement.md. --check says which rows are not there; it does not look at the text.
"""
import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools" / "contract"))
import accuracy  # noqa: E402
from draws import accuracy_at, read, wrong  # noqa: E402

CONTRACT = ROOT / "contracts" / "h200.json"
DOC = ROOT / "docs" / "measurement.md"
NAMES = {"F16": "F16", "BF16": "BF16", "F8_E4M3": "FP8"}
OTHERS = HERE / "other.raw.json.gz", *sorted(HERE.glob("seed*.drawn.json.gz"), key=lambda x: (len(x.name), x.name))
FULL_MHZ = 0.98 * 1980
LINES = (8192, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 24)  # m times n


def row(label, cells):
    return f"| {' | '.join([label, *cells])} |"


def seconds():
    """Of the run, and of F16: what it took until BF16 began, and for its held-out shapes."""
    at = {}
    for line in (HERE / "log.txt").read_text(encoding="utf-8").splitlines():
        when, what = line.split(" ", 1)
        at.setdefault(what.split(":")[0], float(when))
    f16 = at["BF16 GEMM tiers"] - at["started"] + at["BF16 held-out shapes"] - at["F16 held-out shapes"]
    return at["ended 0"] - at["started"], f16


def lines(gemm):
    """Percent that parts of a cache line cost, by m times n."""
    def percent(dtype, part, mn):
        found = gemm[dtype]["lines"]
        return round(100 * (found["factor"][found["parts"].index(part)][found["mn"].index(mn)] - 1))

    for part in (32, 16, 8):
        yield row(f"{part}, F16 / BF16" if part == 32 else str(part),
                  [f"{percent('F16', part, mn)} / {percent('BF16', part, mn)}" for mn in LINES])
    yield row("FP8: 64, 32, 16",
              [", ".join(str(percent("F8_E4M3", part, mn)) for part in (64, 32, 16)) for mn in LINES])


def pairs(found):
    return f"{found['right_pct']:.1f} % of {found['n_over_5_pct']}"


def add(*shares):
    """Several as one."""
    some, n = map(sum, zip(*map(wrong, shares)))
    return {"n_over_5_pct": n, "right_pct": 100 - 100 * some / n}


def rankings(mine, others):
    for label, pick in (
            ("at widths drawn at random, in no table", lambda x: x),
            ("of these, two aligned sizes", lambda x: x["aligned"]),
            ("at widths of 2048, 4096 and 8192, measured again", lambda x: x["typical"]),
            ("of these, two aligned sizes", lambda x: x["typical"]["aligned"]),
            ("all of these that it predicts to be over 3 % apart",
             lambda x: add(x["clear"], x["typical"]["clear"]))):
        yield row(label, [pairs(pick(mine[dtype])) for dtype in NAMES])
    for label, pick in (("what other runs drew, at random widths", lambda x: x),
                        ("what they drew at widths of 2048, 4096 and 8192", lambda x: x["typical"])):
        yield row(label, [pairs(add(*(pick(other[dtype]) for other in others if dtype in other)))
                          for dtype in NAMES])


def choices(mine, others):
    """How much longer the candidate takes that the contract calls the fastest than the one that is."""
    def cell(found):
        return f"{found['mean_pct']:.1f}, {found['p95_pct']:.1f} %"

    for label, pick in (("at widths drawn at random", lambda x: x["choice"]),
                        ("at widths of 2048, 4096 and 8192", lambda x: x["typical"]["choice"])):
        yield row(f"{label}, mean and 95th percentile", [cell(pick(mine[dtype])) for dtype in NAMES])
        theirs = [[pick(other[dtype]) for other in others if dtype in other] for dtype in NAMES]
        yield row(f"{label}, at most, of other runs'",
                  [cell({key: max(x[key] for x in found) for key in ("mean_pct", "p95_pct")}) for found in theirs])


def all_wrong(runs):
    """So many pairs of so many."""
    found = [wrong(x) for run in runs for of_dtype in run.values() for x in (of_dtype, of_dtype["typical"])]
    return f"{sum(some for some, _ in found)} of {sum(n for _, n in found)}"


def quoted(mine, theirs):
    """Figures for the text, which no test compares."""
    points = read(HERE / "raw.json.gz")["points"]
    slow = [p for p in points if "clock_mhz" in p and 0 < p["clock_mhz"][0] < FULL_MHZ]
    whole, f16 = seconds()
    yield f"three dtypes in {whole:.0f} s; F16 alone in {f16:.0f} s"
    yield (f"{len(points)} points, {len(slow)} of them below 98 % of the highest clock, "
           f"{sum(p['op'] == 'sdpa' for p in slow)} of these attention")
    yield f"wrong pairs: {all_wrong([mine])} of its own, {all_wrong([mine, *theirs])} of all runs"


def figures(library):
    """Rows of the tables, and what quoted() needs."""
    contract = json.loads(CONTRACT.read_text(encoding="utf-8"))
    predictor = accuracy.Predictor(library, CONTRACT)
    others = [accuracy_at(path, contract, predictor) for path in OTHERS]
    rows = list(lines(contract["gemm"]))
    for op, name in (("gemm", "GEMM"), ("sdpa", "attention")):
        for dtype, found in contract["accuracy"][op].items():
            rows.append(row(f"{name} {NAMES[dtype]}",
                            [f"{found['median_pct']:.1f} %", f"{found['p95_pct']:.1f} %"]))
    for op, name in (("gemm", "GEMM"), ("sdpa", "attention")):
        for dtype in contract["accuracy"][op]:
            found = [other[op][dtype] for other in others if dtype in other[op]]
            rows.append(row(f"{name} {NAMES[dtype]}, other runs'",
                            [" ".join(f"{x[key]:.1f}" for x in found) + " %" for key in ("median_pct", "p95_pct")]))
    mine, theirs = contract["accuracy"]["ranking"], [other["ranking"] for other in others]
    return [*rows, *rankings(mine, theirs), *choices(mine, theirs)], mine, theirs


def write_rows(rows):
    """Each in the place of the next row that has its first cell."""
    doc, at = DOC.read_text(encoding="utf-8").split("\n"), 0
    for new in rows:
        label = new.split("|")[:2]
        while doc[at].split("|")[:2] != label:
            at += 1
        doc[at] = new
    DOC.write_text("\n".join(doc), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows, mine, theirs = figures(args.library)
    if args.write:
        write_rows(rows)
    if args.check:
        said = set(DOC.read_text(encoding="utf-8").split("\n"))
        missing = [r for r in rows if r not in said]
        for r in missing:
            print(f"{DOC}: has no row {r}", file=sys.stderr)
        sys.exit(1 if missing else 0)
    for line in (*rows, *quoted(mine, theirs)):
        print(line)


if __name__ == "__main__":
    main()
