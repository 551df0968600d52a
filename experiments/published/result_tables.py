#!/usr/bin/env python3
"""The tables of docs/results.md: published figures beside ours, from the results in the folders.

    python3 experiments/published/result_tables.py [--check | --write]

Prints the tables. --write puts each between its marks in the page, --check fails if they are
not there.
"""
import argparse
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/results.md"
STACKS = "pytorch", "native"
MARKS = "<!-- {}: experiments/published/result_tables.py writes this -->", "<!-- end of {} -->"


def load(id_, stack):
    return json.loads((HERE / id_ / f"h200.{stack}.json").read_text(encoding="utf-8"))


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def head(*cells):
    return [row(*cells), row(*["---"] * len(cells))]


def figure(value, kind):
    """Three digits: a ratio, a percentage, or a share as a percentage."""
    if value is None:
        return ""
    if kind == "share":
        return f"{100 * value:.3g} %"
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} %" if kind == "percent" else text


def kernels(reason):
    """What ran, from a verdict's reason: "numerator ran A in 3 cases; denominator ran B in …"."""
    sides = [re.sub(r" in \d+ cases?", "", ran) for ran in re.findall(r" ran ([^;]*)", reason)]
    sides = ["none" if side.startswith("no case") else side for side in sides]
    return " / ".join(side if "; " not in side else f"({side})" for side in sides)


def claims(id_):
    """One row a claim that was published; then those of the other stack that the first lacks."""
    lines = head("claim", "published, A100", "H200, PyTorch", "verdict", "H200, native", "verdict",
                 "kernels in PyTorch: of / over")
    found = {stack: {c["id"]: c for c in load(id_, stack)["claims"]} for stack in STACKS}
    for name in {**found["pytorch"], **found["native"]}:
        ours = [found[stack].get(name) for stack in STACKS]
        said = next(claim for claim in ours if claim)
        cells = []
        for claim in ours:
            cells += [figure(claim.get("ours"), claim["as"]), claim["verdict"]] if claim else ["", ""]
        ran = kernels(ours[0]["reason"]) if ours[0] else ""
        lines.append(row(said["says"], figure(said.get("published"), said["as"]), *cells, ran))
    return lines


def served(variant):
    if variant is None or variant["state"] == "not run":
        return ["", ""]
    if variant["state"] != "measured":
        return ["declined" if variant["state"] == "declined" else variant["state"], ""]
    return [f"{variant['time_us'] / 1000:.3f}", variant["families"]]


def times(id_):
    """One row a case with a published time."""
    lines = head("case", "published, A100, ms", "H200, PyTorch, ms", "kernels", "H200, native, ms",
                 "kernels")
    cases = [load(id_, stack)["cases"] for stack in STACKS]
    for case, other in zip(*cases):
        assert (case["sweep"], case["label"]) == (other["sweep"], other["label"])
        for name, variant in case["variants"].items():
            published = variant.get("published_ms")
            if published is None or name == "next":
                continue
            label = case["label"].split(" predefined=")[0]  # what follows from the size
            label += f" {name}" if len(case["variants"]) > 1 else ""
            lines.append(row(label.strip(), f"{published:.3f}", *served(variant),
                             *served(other["variants"].get(name))))
    return lines


def tables():
    """Name and lines of each table, in the order of the page."""
    for id_ in "S1", "S2", "C21", "G3", "G4", "C23", "P1", "C4", "PaLU-dist", "direct-45", "RAP", "HET1":
        yield id_, claims(id_)
        if len(timed := times(id_)) > 2:
            yield f"{id_} times", timed


def put(text, name, lines):
    begin, end = (mark.format(name) for mark in MARKS)
    if begin not in text or end not in text:
        sys.exit(f"{PAGE}: no place for the table {name}: {begin}")
    before, rest = text.split(begin, 1)
    return before + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + rest.split(end, 1)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if not args.check and not args.write:
        for name, lines in tables():
            print(f"{name}\n\n" + "\n".join(lines) + "\n")
        return
    old = PAGE.read_text(encoding="utf-8")
    new = old
    for name, lines in tables():
        new = put(new, name, lines)
    if args.write:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        sys.exit(f"{PAGE}: its tables are not those of the results; --write makes them anew")


if __name__ == "__main__":
    main()
