#!/usr/bin/env python3
"""Times two builds of gac on the same models, in turn, on the CPU.

    bench_before_after.py --before OLD/gac --after NEW/gac --out RESULT.json DIR...

Each round runs `gac eval` of both, the other one first every second time. A ratio is the
after's time over the before's; the result has those of the best runs and of the medians.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

SHAPES = ("--prefill", "1x256", "--decode", "1@128")


def measure(gac, model):
    result = subprocess.run([gac, "eval", model, *SHAPES, "--device", "cpu", "--json", "-q"],
                            check=True, stdout=subprocess.PIPE)
    found = json.loads(result.stdout)
    return {"prefill": min(found["prefill"][0]["samples_ms"]),
            "decode": min(found["decode"][0]["samples_ms"]),
            "prefill_median": found["prefill"][0]["ms"],
            "decode_median": found["decode"][0]["ms"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", required=True)
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    models = []
    for model in args.models:
        runs = {"before": [], "after": []}
        for i in range(args.rounds):
            for side in ("before", "after") if i % 2 == 0 else ("after", "before"):
                runs[side].append(measure(getattr(args, side), model))
        ratios = {}
        for key, pick in (("prefill", min), ("decode", min), ("prefill_median", statistics.median),
                          ("decode_median", statistics.median)):
            after, before = ([r[key] for r in runs[side]] for side in ("after", "before"))
            ratios[key] = pick(after) / pick(before)
        models.append({"model": os.path.basename(os.path.normpath(model)), "ratios": ratios,
                       "runs_ms": runs})
        print(models[-1]["model"], {k: round(v, 3) for k, v in ratios.items()}, flush=True)
    load = os.getloadavg()
    result = {"schema": "gac.bench-before-after/1", "command": sys.argv, "shapes": SHAPES,
              "machine": {"system": platform.platform(), "cores": os.cpu_count(),
                          "load_at_the_end": load},
              "models": models}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
