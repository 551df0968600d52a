#!/usr/bin/env python3
"""gac compress models/tiny on the GPU and on the CPU: the same kinds of choices, about the same
objective and perplexity. Exit 77 without a GPU.

    python3 tests/gpu/test_compress_gpu.py --gac build/gac [--device cuda]

Limits: for each kind of choice, the share of parameters differs by 0.05; the objective by 5 %,
the perplexity by 1 %. The GPU computes in F16, the CPU in F32.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "models" / "tiny"
TEXT = TINY / "heldout.txt"
NO_RESOURCE = 4
OBJECTIVE, SHARE, PERPLEXITY = 0.05, 0.05, 0.01
CASES = {
    "gac": [], "energy": ["--method", "energy"], "asvd": ["--method", "asvd"],
    "svd-llm": ["--method", "svd-llm"], "channels": ["--choices", "width,heads"],
    "ranks": ["--choices", "rank"],
}


def compress(args, device, out, *more):
    return subprocess.run([args.gac, "compress", TINY, "-o", out, "--text", TEXT, "--no-sync", "-q",
                           "--json", "--ratio", "0.3", "--calib-tokens", "16384", "--device",
                           device, *more], capture_output=True, text=True, check=False)


def perplexity(args, folder):
    """On the CPU, so that only the compression differs."""
    done = subprocess.run([args.gac, "eval", folder, "--perplexity", TEXT, "--max-windows", "20",
                           "--device", "cpu", "--json", "-q"], capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)["perplexity"]["value"]


def shares(result):
    """Each kind of choice with its share of the parameters."""
    found = collections.Counter()
    for module in result["modules"]:
        found[module["choice"]] += module["params"] / result["params_after"]
    return found


def compare(args, name, options, folder):
    """One line, and whether all is within the limits."""
    results, values = [], []
    for i, device in enumerate(("cpu", args.device)):
        out = folder / f"{name}.{i}"
        done = compress(args, device, out, *options)
        if done.returncode:
            print(f"FAIL {name} on {device}: exit {done.returncode}: {done.stderr.strip()}")
            return False
        results.append(json.loads(done.stdout))
        values.append(perplexity(args, out))
    cpu, gpu = map(shares, results)
    share = max(abs(cpu[kind] - gpu[kind]) for kind in {*cpu, *gpu})
    objective = abs(results[1]["objective"] / results[0]["objective"] - 1)
    change = abs(values[1] / values[0] - 1)
    good = share <= SHARE and objective <= OBJECTIVE and change <= PERPLEXITY
    print(f"{'ok' if good else 'FAIL'} {name}: objective {results[0]['objective']:.6g} and "
          f"{results[1]['objective']:.6g}, perplexity {values[0]:.5g} and {values[1]:.5g}, shares "
          f"differ by {share:.3g}")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gac-compress-gpu-") as name:
        folder = pathlib.Path(name)
        done = compress(args, args.device, folder / "first", "--method", "svd", "--dry-run")
        if done.returncode == NO_RESOURCE and "cuSOLVER" not in done.stderr:
            print(f"skipped: {done.stderr.strip()}")
            return 77
        good = [compare(args, name, options, folder) for name, options in CASES.items()]
    print(f"{sum(good)} ok, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
