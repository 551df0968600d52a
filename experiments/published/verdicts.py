#!/usr/bin/env python3
"""The table of verdicts in experiments/published/README.md, from the results in the folders.

    python3 experiments/published/verdicts.py [--check | --write]

Prints the table. --write puts it into the README, --check fails if it is not there.
"""
import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
README = HERE / "README.md"
HEAD = ("| ID | stack | summary | contradicted | weaker | stronger | reproduced | ambiguous | not judged |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
JUDGED = "contradicted", "weaker", "stronger", "reproduced", "ambiguous"
OTHERS = "not measured", "unpublished", "arithmetic"


def ids():
    """In the order of the README's first table."""
    rows = (line.split("|") for line in README.read_text(encoding="utf-8").split("\n"))
    return [row[1].strip() for row in rows
            if len(row) == 4 and (HERE / row[1].strip() / "spec.json").exists() and row[1].strip()]


def table():
    yield from HEAD
    for id_ in ids():
        for stack in ("native", "pytorch"):
            path = HERE / id_ / f"h200.{stack}.json"
            if not path.exists():
                continue
            summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
            counts = [summary["claims"].get(word, 0) for word in JUDGED]
            rest = sum(summary["claims"].get(word, 0) for word in OTHERS)
            cells = [id_, stack, summary["verdict"], *(str(n or "") for n in (*counts, rest))]
            yield f"| {' | '.join(cells)} |".replace("  ", " ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    new = "\n".join(table())
    if args.write:
        begin = text.index(HEAD[0])
        end = text.index("\n\n", begin)
        README.write_text(text[:begin] + new + text[end:], encoding="utf-8")
    elif args.check and new not in text:
        sys.exit(f"{README}: its table of verdicts is not that of the results; --write makes it anew")
    elif not args.check:
        print(new)


if __name__ == "__main__":
    main()
