#!/usr/bin/env python3
"""Is the advice of gac right? Predicted against measured time of whole models.

    python3 experiments/validation/advice/advice.py shapes --gac build/gac --out shapes.json
        makes sparse checkpoints of the Llama-3-8B shape: dense, factorised to
        85 % with the same floor rank in every layer, with another rank for
        every matrix, and both repaired as `gac plan` says; keeps what
        `gac inspect` and `gac plan` predict and the sizes to build
    (on the GPU) python3 experiments/validation/advice/measure.py --shapes shapes.json --out measured.json
    python3 experiments/validation/advice/advice.py compare --shapes shapes.json --measured measured.json
        --out experiments/validation/advice/results.json
"""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import make_checkpoint as mk  # noqa: E402

KEEP = 0.85
WORKLOAD = "prefill:1x1024,prefill:1x4096,prefill:4x1024,decode:1@1024,decode:16@1024"


def checkpoints():
    """dense; one floor rank per kind of matrix; another rank for every matrix."""
    shift = itertools.cycle(range(-24, 25))  # 49 steps over 224 matrices: every residue, mean 0
    yield "dense", mk.llama3_8b(dtype="F16")
    yield "floor", mk.svdllm_modify(mk.llama3_8b(dtype="F16"), KEEP)
    yield "mixed", mk.svdllm_modify(mk.llama3_8b(dtype="F16"), KEEP, lambda r: r + next(shift))


def run(*command):
    return json.loads(subprocess.run([str(c) for c in command], check=True,
                                     stdout=subprocess.PIPE).stdout)


def ranks_of(dims, key):
    """Module name in transformers -> rank."""
    return {"model." + d["name"][:-len(".rank")]: d[key] for d in dims
            if d["name"].endswith(".rank")}


def shapes(args):
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, made in checkpoints():
            checkpoint = pathlib.Path(folder) / name
            made.write(checkpoint)
            config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
            common = ["--workload", WORKLOAD, "--json", "-q"]
            if args.contract:
                common += ["--contract", args.contract]
            inspect = run(args.gac, "inspect", checkpoint, *common)
            phases = {p["phase"]: p for p in inspect["summary"]["phases"]}
            ranks = ranks_of(inspect["dims"], "size")
            out[name] = {"config": config, "ranks": ranks,
                         "predicted_ms": {k: p["now_ms"] for k, p in phases.items()}}
            if not ranks:
                continue
            to = {d["name"]: d["suggest"] for d in inspect["dims"]}
            sizes = [{"name": d["name"], "to": to[d["name"]]} for d in inspect["dims"]]
            out[name + "-repaired"] = {"config": config, "ranks": ranks_of(sizes, "to"),
                                       "predicted_ms": {k: p["repaired_ms"]
                                                        for k, p in phases.items()}}
    pathlib.Path(args.out).write_text(json.dumps(out, indent=1), encoding="utf-8")


def compare(args):
    specs = json.loads(pathlib.Path(args.shapes).read_text(encoding="utf-8"))
    measured = json.loads(pathlib.Path(args.measured).read_text(encoding="utf-8"))
    result = {"schema": "gac.advice-check/1", "limit_pct": 15.0, "workload": WORKLOAD,
              **{k: measured[k] for k in ("gpu", "torch", "transformers")},
              "times": [], "ratios": []}
    for name, spec in specs.items():
        for phase, predicted in spec["predicted_ms"].items():
            rows = measured["models"][name]
            # measure.py of commit fe46ee4 also replayed prefill; the eager one is what users see
            row = rows.get(phase.replace("prefill:", "prefill_eager:"), rows[phase])
            result["times"].append({"model": name, "phase": phase, "predicted_ms": predicted,
                                    "measured_ms": row["ms"], "samples_ms": row["samples_ms"],
                                    "error_pct": 100 * (predicted / row["ms"] - 1)})
    at = {(t["model"], t["phase"]): t for t in result["times"]}
    for name in ("floor", "mixed"):
        for phase in specs[name]["predicted_ms"]:
            now, then = at[name, phase], at[name + "-repaired", phase]
            ratio = {key: now[key] / then[key] for key in ("predicted_ms", "measured_ms")}
            error = 100 * (ratio["predicted_ms"] / ratio["measured_ms"] - 1)
            result["ratios"].append({"model": name, "phase": phase,
                                     "predicted": ratio["predicted_ms"],
                                     "measured": ratio["measured_ms"], "error_pct": error,
                                     "within_limit": abs(error) <= result["limit_pct"]})
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for t in result["times"]:
        print(f"{t['model']:16} {t['phase']:16} predicted {t['predicted_ms']:8.2f} ms  measured "
              f"{t['measured_ms']:8.2f} ms  {t['error_pct']:+6.1f} %")
    for r in result["ratios"]:
        print(f"{r['model']:16} {r['phase']:16} as it falls / repaired: predicted "
              f"{r['predicted']:.2f}  measured {r['measured']:.2f}  {r['error_pct']:+6.1f} %"
              f"{'' if r['within_limit'] else '  OUTSIDE'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = parser.add_subparsers(dest="mode", required=True)
    one = sub.add_parser("shapes")
    one.add_argument("--gac", required=True)
    one.add_argument("--contract")
    one.add_argument("--out", required=True)
    two = sub.add_parser("compare")
    two.add_argument("--shapes", required=True)
    two.add_argument("--measured", required=True)
    two.add_argument("--out", required=True)
    args = parser.parse_args()
    shapes(args) if args.mode == "shapes" else compare(args)


if __name__ == "__main__":
    main()
