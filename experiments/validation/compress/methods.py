#!/usr/bin/env python3
"""Perplexity of compressed models: gac, its alignments, and its peers, by the same program.

    methods.py GAC MODEL CALIBRATION.txt OUT.json TEST... [--device cuda] [--keep .9,.8,.7,.6]

Compresses MODEL with every method at every share of its linear weights, and measures perplexity
on the TEST files in windows of 2048 tokens. Each method measures the model once, in a work folder
of its own; the other shares and alignments use that. Several models are tried at a time (--jobs).
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

# name: (method, more options). Rows of one method share a work folder.
ROWS = {
    "gac": ("gac", ["--align", "gac"]),
    "gac, any size": ("gac", ["--align", "none"]),
    "gac, multiples of 64": ("gac", ["--align", "round:64"]),
    "relative energy": ("energy", ["--align", "gac"]),
    "svd-llm": ("svd-llm", ["--align", "none"]),
    "svd-llm, rounded to 8": ("svd-llm", ["--align", "round:8"]),
    "svd-llm, rounded to 64": ("svd-llm", ["--align", "round:64"]),
    "asvd": ("asvd", ["--align", "none"]),
    "svd": ("svd", ["--align", "none"]),
}


def gac(program, *arguments):
    """The JSON of a command, or its error message."""
    done = subprocess.run([program, *map(str, arguments), "--json", "-q"], capture_output=True,
                          text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip()}


def measure(args, folder):
    found = {}
    for test in args.tests:
        result = gac(args.gac, "eval", folder, "--perplexity", test, "--device", args.device)
        found[pathlib.Path(test).name] = result.get("perplexity", result)
    return found


def try_one(args, work, name, keep):
    """Compresses and measures; the model is removed again."""
    method, options = ROWS[name]
    with tempfile.TemporaryDirectory(dir=work) as folder:
        out = pathlib.Path(folder) / "out"
        began = time.monotonic()
        made = gac(args.gac, "compress", args.model, "-o", out, "--text", args.calibration,
                   "--ratio", f"{1 - keep:.6g}", "--method", method, *options, "--work",
                   work / method, "--device", args.device, "--gpu", "h200", "--no-sync")
        if "error" in made:
            return {"name": name, "keep": keep, **made}
        kinds = {}
        for module in made["modules"]:
            kinds[module["choice"]] = kinds.get(module["choice"], 0) + 1
        row = {"name": name, "keep": keep, "method": method, "options": options, "choices": kinds,
               "kept": made["params_after"] / made["params_before"],
               "aligned_pct": made["aligned_pct"], "objective": made["objective"],
               "optimal": made["optimal"], "predicted": made["predicted"],
               "compress_s": time.monotonic() - began, "perplexity": measure(args, out)}
    print(f"{keep:.1f}  {name:24s}", *(f"{p['value']:10.3f}" if "value" in p else p
                                       for p in row["perplexity"].values()), flush=True)
    return row


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gac")
    parser.add_argument("model")
    parser.add_argument("calibration")
    parser.add_argument("out")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", default=".9,.8,.7,.6")
    parser.add_argument("--rows", default=",".join(ROWS).replace(", ", ";"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--machine", default=platform.platform())
    args = parser.parse_args()
    keeps = [float(k) for k in args.keep.split(",")]
    names = [n.replace(";", ", ") for n in args.rows.split(",")]
    result = {"command": ["methods.py", *sys.argv[1:]], "machine": args.machine,
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "gac": subprocess.run([args.gac, "--version"], capture_output=True, text=True,
                                    check=True).stdout.splitlines(),
              "sha256": {pathlib.Path(p).name: sha256(p) for p in [args.calibration, *args.tests]},
              "dense": measure(args, args.model)}
    print("dense", {k: v.get("value", v) for k, v in result["dense"].items()}, flush=True)
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        work = pathlib.Path(folder)
        # The first row of each method measures the model; the others then find it measured.
        first = {ROWS[n][0]: n for n in reversed(names)}
        jobs = [(n, keeps[0]) for n in first.values()]
        rows = list(pool.map(lambda j: try_one(args, work, *j), jobs))
        rest = [(n, k) for k in keeps for n in names if (n, k) not in jobs]
        rows += pool.map(lambda j: try_one(args, work, *j), rest)
    result["rows"] = sorted(rows, key=lambda r: (-r["keep"], names.index(r["name"])))
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if any("error" in r for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
