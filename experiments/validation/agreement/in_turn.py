#!/usr/bin/env python3
"""Do our times agree with PyTorch's where both take the same library path?

    python3 experiments/validation/agreement/in_turn.py FOLDER -o RESULT.json

FOLDER holds ID.native.json and ID.pytorch.json as `gac experiment all --stack both
-o FOLDER/` writes them in one run on one card. Calls of the same shape count when
the longest kernel of both has the same name: the same library path. The stacks ran
one after the other there, each with clocks of its own; compare.py interleaves them.
"""
import argparse
import json
import pathlib
import statistics

LIMIT_PCT = 5.0


def longest_kernel(call):
    kernels = call.get("kernels") or []
    return max(kernels, key=lambda k: k["time_us"])["name"] if kernels else None


def short(name):
    """The part of a kernel's name that tells it apart, mangled, with types or not."""
    for word in name.replace("<", " ").replace(">", " ").replace("(", " ").split():
        if word.startswith(("cutlass_", "nvjet", "cudnn", "sm80", "sm90", "gemv")):
            return word.split("::")[0]
    return name


def calls_of(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for call in result["calls"]:
        if call["state"] == "measured" and longest_kernel(call):
            shape = call["call"].split(" ")
            if shape[0] == "sdpa":
                shape[1] = "*"  # how the stack was asked; the kernel says what it got
            found.setdefault((" ".join(shape), short(longest_kernel(call))), call)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-o", "--out", type=pathlib.Path)
    args = parser.parse_args()
    rows = []
    for path in sorted(args.folder.glob("*.native.json")):
        other = path.with_name(path.name.replace(".native.", ".pytorch."))
        if not other.exists():
            continue
        native, torch = calls_of(path), calls_of(other)
        for key in native.keys() & torch.keys():
            ours, theirs = (side[key]["timing"]["median_us"] for side in (native, torch))
            rows.append({"experiment": path.name.split(".")[0], "call": key[0], "kernel": key[1],
                         "native_us": ours, "pytorch_us": theirs, "ratio": ours / theirs})
    rows.sort(key=lambda r: (r["call"], r["experiment"]))
    result = {"schema": "gac.agreement/1", "limit_pct": LIMIT_PCT, "kinds": {}}
    for kind in sorted({r["call"].split(" ")[0] for r in rows}):
        ratios = sorted(r["ratio"] for r in rows if r["call"].startswith(kind + " "))
        inside = sum(abs(x - 1) * 100 <= LIMIT_PCT for x in ratios)
        result["kinds"][kind] = {"n_calls": len(ratios), "median_ratio": statistics.median(ratios),
                                 "least_ratio": ratios[0], "largest_ratio": ratios[-1],
                                 "within_limit_pct": 100 * inside / len(ratios)}
        print(f"{kind}: {len(ratios)} calls with the same kernel, ratio native/pytorch median "
              f"{statistics.median(ratios):.4f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}, "
              f"{100 * inside / len(ratios):.1f} % within {LIMIT_PCT:g} %")
    result["calls"] = rows
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
