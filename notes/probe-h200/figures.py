#!/usr/bin/env python3
"""The table of docs/contract.md on contracts/h200.json, from the runs of this folder.

    python3 notes/probe-h200/figures.py --library build/libgac.so [--check | --write]

Prints the rows. --write puts them into docs/contract.md; --check says which are not there.
"""
import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools" / "contract"))
import accuracy  # noqa: E402

CONTRACT = ROOT / "contracts" / "h200.json"
DOC = ROOT / "docs" / "contract.md"
DTYPES = ("F16", "BF16", "F8_E4M3")
RUNS = (HERE / "raw.json.gz", *sorted(HERE.glob("seed*.drawn.json.gz")))
WIDTHS = (("random_widths", "random widths"), ("common_widths", "common widths"))


def rows(found, runs):
    def row(label, cell):
        return f"| {label}, {runs} | " + " | ".join(map(cell, DTYPES)) + " |"

    for op, name in (("gemm", "GEMM"), ("sdpa", "attention")):
        yield row(f"error of {name}: median, 95th percentile",
                  lambda d, op=op: "{median_pct:.1f}, {p95_pct:.1f} %".format(**found[op][d]) if d in found[op] else "")
    for key, name in WIDTHS:
        yield row(f"regret at {name}: mean, 95th percentile",
                  lambda d, k=key: "{regret_mean_pct:.2f}, {regret_p95_pct:.1f} %".format(**found["ranking"][d][k]))
        yield row(f"pairs in the right order at {name}",
                  lambda d, k=key: "{right_pct:.1f} % of {n_over_5_pct}".format(**found["ranking"][d][k]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    predictor = accuracy.Predictor(args.library, CONTRACT)
    points = [accuracy.read(path)["points"] for path in RUNS]
    lines = [*rows(accuracy.accuracy_of(points[:1], DTYPES, predictor), "its own run"),
             *rows(accuracy.accuracy_of(points, DTYPES, predictor), "all runs")]
    doc = DOC.read_text(encoding="utf-8").split("\n")
    if args.write:
        label = {line.split("|")[1]: line for line in lines}
        DOC.write_text("\n".join(label.get(x.split("|")[1], x) if x.startswith("| ") else x for x in doc),
                       encoding="utf-8")
    missing = [line for line in lines if line not in doc]
    for line in missing if args.check else lines:
        print(line)
    sys.exit(f"{DOC}: these rows are not there" if args.check and missing else 0)


if __name__ == "__main__":
    main()
