#!/usr/bin/env python3
"""Makes docs/supported.md of the committed results. Needs neither torch nor transformers.

    supported.py [--check | --write]

Prints the page. --write puts it into docs, --check fails if it is not there.
"""
import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PAGE = ROOT / "docs" / "supported.md"
KINDS = (("mlp", "MLP width"), ("head", "head size"), ("expert", "expert width"), ("hidden", "hidden"),
         ("vocab", "vocabulary"))

HEAD = """\
# What gac supports

For users who ask whether gac works on their model. A reference, generated from
[results.json](../experiments/validation/families/results.json) by `supported.py` beside it.
[glossary.md](glossary.md) defines the words.

## Architectures

transformers {version} made tiny random models of {n} text-generation architectures. Each had one odd size, and then
all odd sizes together. gac repaired each with every strategy, with and without rescaled sizes, verified the result and
undid a repair. transformers loaded every result: no tensor was missing, left over or of another shape, and the logits
were those of the original within 1e-5 in float32. {failed}

| in the table | meaning |
| --- | --- |
| exact | the size is padded with zeros, and the model computes the same function |
| rescaled | with `--allow rescaled` the size is padded, and the model is the same up to rounding |
| no | gac refuses to pad this size; the number is that of the reason below |
| not judged | gac says that it does not understand enough of the model |
| - | the architecture has no such size, or cannot have it odd |
| FAILS | a fault of gac, listed below |

`model_type` is what `config.json` states. The third column is how much of the parameters gac explains.

"""

TAIL = """
`make check-transformers` runs all of this
([how](../experiments/validation/families/README.md)).
"""


def short(text):
    """A reason as one table cell or list item."""
    return " ".join(text.split()).replace("|", "\\|")


class Reasons:
    """Numbers the reasons in the order in which they are first used."""

    def __init__(self):
        self.numbers = {}

    def cell(self, reason):
        return f"no ({self.numbers.setdefault(short(reason), len(self.numbers) + 1)})"

    def lines(self):
        for reason, number in self.numbers.items():
            yield from wrap(f"{number}. {reason}", "   ")


def wrap(text, indent):
    """Lines of at most 120 characters."""
    line = ""
    for word in text.split(" "):
        if len(line) + len(word) >= 120:
            yield line
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    yield line


def cell(case, kind, reasons):
    if case is None or "not_made" in case:
        return "-"
    if case["outcome"] == "FAILED":
        return "FAILS"
    if "sizes" not in case:  # the model as a whole is refused
        return reasons.cell(case["reason"])
    size = case["sizes"][kind]
    return reasons.cell(size["reason"]) if size["verdict"] == "refused" else size["verdict"]


def row(result, reasons):
    cases = {c["variation"]: c for c in result["cases"]}
    known = [c for c in cases.values() if "family" in c]
    family = known[0]["family"] if known else "-"
    shares = [c["understood_pct"] for c in known if c.get("understood_pct") is not None]
    share = f"{min(shares):.4g} %" if shares else "-"
    cells = [cell(cases.get(kind), kind, reasons) for kind, _ in KINDS]
    return f"| {result['architecture']} | {family} | {share} | " + " | ".join(cells) + " |"


def page(results):
    failures = [(r["architecture"], c) for r in results["rows"] for c in r["cases"]
                if c.get("outcome") == "FAILED"]
    n_failed = len({name for name, _ in failures})
    failed = (f"{n_failed} architectures fail; they are listed below." if n_failed else "None fails.")
    reasons = Reasons()
    text = HEAD.format(version=results["machine"]["transformers"], n=len(results["rows"]),
                       failed=failed)
    lines = ["| `model_type` | read as | understood | " + " | ".join(k for _, k in KINDS) + " |",
             "| --- " * (3 + len(KINDS)) + "|"]
    lines += [row(r, reasons) for r in sorted(results["rows"], key=lambda r: r["architecture"])]
    if reasons.numbers:
        lines += ["", "### Reasons", "", *reasons.lines()]
    if failures:
        lines += ["", "### Failures", ""]
        for name, case in failures:
            lines += wrap(f"- {name}, {case['variation']}: {short(case['reason'])}", "  ")
    return text + "\n".join(lines) + "\n" + TAIL


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = page(json.loads((HERE / "results.json").read_text(encoding="utf-8")))
    if args.write:
        PAGE.write_text(text, encoding="utf-8")
    elif args.check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE}: is not what the results say; supported.py --write makes it anew")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
