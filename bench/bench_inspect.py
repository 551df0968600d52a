#!/usr/bin/env python3
"""Times gac inspect against the reference Python library on a 405B-shaped checkpoint.

    bench_inspect.py --gac build/gac --python VENV/bin/python [--runs 15] [--out FILE]

VENV needs safetensors and numpy. The checkpoint is sparse and made in a
temporary directory. Both programs run as whole processes, in turn, with warm
caches; the reference also reports its time without interpreter start and
imports. Inspect does more (the dimension graph and its cost); the reference
only lists names, dtypes and shapes. Both must have seen the same tensors.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(BENCH), "tools"))
import make_checkpoint as mk  # noqa: E402


# Launches argv[1:] and prints its peak resident KiB. A process of its own because the kernel
# counts the launcher's size as part of the child's peak: this one stays small.
PEAK = """
import os, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ,
                      file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
print(os.wait4(pid, 0)[2].ru_maxrss)
"""


def run(command, directory):
    """Runs command; returns (wall seconds, stdout, stderr). Output goes through files."""
    out_path, err_path = os.path.join(directory, "out"), os.path.join(directory, "err")
    with open(out_path, "wb") as out, open(err_path, "wb") as err:
        start = time.perf_counter()
        code = subprocess.call(command, stdout=out, stderr=err)
        seconds = time.perf_counter() - start
    with open(out_path) as out, open(err_path) as err:
        stdout, stderr = out.read(), err.read()
    if code:
        sys.exit(f"{' '.join(command)}: exit {code}\n{stderr}")
    return seconds, stdout, stderr


def peak_bytes(command):
    launch = [sys.executable, "-I", "-S", "-c", PEAK, *command]
    return 1024 * int(subprocess.run(launch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     check=True).stdout)


def shapes_from_inspect(result):
    """Shapes as the places of the dimension graph state them: name -> list."""
    ends = {}
    for dim in result["dims"]:
        for p in dim["places"]:
            axes = ends.setdefault(p["tensor"], {})
            end = p["start"] + p["n_slices"] * dim["size"]
            axes[p["axis"]] = max(axes.get(p["axis"], 0), end)
    return {name: [axes[i] for i in range(len(axes))] for name, axes in ends.items()}


def verify_same(ck, inspect_out, reference_out):
    """Both saw every tensor with its shape, or the benchmark compares nothing."""
    result, reference = json.loads(inspect_out), json.loads(reference_out)
    about = result["checkpoint"]
    made = {name: [dtype, list(shape)] for name, (dtype, shape) in ck.tensors.items()}
    if reference != made:
        sys.exit("the reference library lists other tensors than were made")
    if shapes_from_inspect(result) != {name: shape for name, (_, shape) in made.items()}:
        sys.exit("gac inspect states other tensors or shapes than were made")
    if (about["n_tensors"], about["n_params"], about["bytes"]) != (
            len(made), ck.n_params, ck.size_bytes):
        sys.exit("gac inspect counts other tensors, parameters or bytes than were made")


def statistics_of(samples):
    low, _, high = statistics.quantiles(samples, n=4)
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples),
            "quartiles": [low, high], "samples": samples}


def machine():
    cpu = "unknown"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "n_cores": os.cpu_count(), "kernel": platform.release(),
            "system": platform.system()}


def one_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown"


def versions(args):
    code = ("import platform, numpy, safetensors; print(f'Python {platform.python_version()}, "
            "safetensors {safetensors.__version__}, numpy {numpy.__version__}')")
    return {"gac": one_line(args.gac, "--version"), "reference": one_line(args.python, "-c", code),
            "commit": one_line("git", "-C", BENCH, "describe", "--always", "--dirty")}


def measure(args, scratch):
    """Returns the result object; scratch is an empty directory."""
    directory = os.path.join(scratch, "llama-405b")
    ck = mk.build("llama-405b")
    ck.write(directory)
    ours = [args.gac, "inspect", directory, "--json"]
    reference = [args.python, os.path.join(BENCH, "list_reference.py"), directory]

    verify_same(ck, run(ours + ["--places"], scratch)[1], run(reference, scratch)[1])  # and warms the caches
    samples = {"gac_s": [], "reference_s": [], "reference_inner_s": []}
    for i in range(args.runs):
        for side in ("gac", "reference") if i % 2 == 0 else ("reference", "gac"):
            seconds, _, stderr = run(ours if side == "gac" else reference, scratch)
            samples[side + "_s"].append(seconds)
            if side == "reference":
                samples["reference_inner_s"].append(float(stderr))
    time_s = {name: statistics_of(values) for name, values in samples.items()}
    median = {name: stats["median"] for name, stats in time_s.items()}
    return {
        "schema": "gac.bench_inspect/1",
        "command": " ".join(["bench/bench_inspect.py", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(), "versions": versions(args),
        "checkpoint": {"recipe": "llama-405b", "n_files": len(ck.shards()),
                       "n_tensors": len(ck.tensors), "n_params": ck.n_params,
                       "bytes": ck.size_bytes},
        "n_runs": args.runs, "same_tensors_and_shapes": True, "time_s": time_s,
        "ratio": {"whole_process": median["reference_s"] / median["gac_s"],
                  "reference_without_start": median["reference_inner_s"] / median["gac_s"]},
        "peak_resident_bytes": {"gac": peak_bytes(ours), "reference": peak_bytes(reference),
                                "launcher": peak_bytes(["true"])},
    }


def print_table(result):
    about, stats, peak = result["checkpoint"], result["time_s"], result["peak_resident_bytes"]
    print(f"llama-405b shape: {about['n_tensors']} tensors in {about['n_files']} files, "
          f"{about['bytes'] / 1e9:.0f} GB apparent; {result['n_runs']} runs each, in turn; "
          f"{result['machine']['cpu']}, {result['machine']['n_cores']} cores")
    print(f"{'':44} {'median ms':>9} {'quartiles ms':>15} {'ratio':>6} {'peak MiB':>8}")
    base = stats["gac_s"]["median"]
    for key, label, memory in (
            ("gac_s", "gac inspect --json, whole process", "gac"),
            ("reference_s", "safetensors (Python), whole process", "reference"),
            ("reference_inner_s", "safetensors (Python), without start, imports", None)):
        s = stats[key]
        spread = "{:.1f}-{:.1f}".format(*(1e3 * q for q in s["quartiles"]))
        mib = f"{peak[memory] / 2**20:8.1f}" if memory else ""
        print(f"{label:44} {1e3 * s['median']:9.1f} {spread:>15} {s['median'] / base:5.1f}x {mib}")
    print(f"peaks below the launcher's own {peak['launcher'] / 2**20:.1f} MiB cannot be told apart")


def main():
    parser = argparse.ArgumentParser(description="Times gac inspect against safetensors in Python.")
    parser.add_argument("--gac", required=True)
    parser.add_argument("--python", required=True, help="interpreter with safetensors and numpy")
    parser.add_argument("--runs", type=int, default=15, help="per side, at least 9 (default 15)")
    parser.add_argument("--out", metavar="FILE", help="write the result as JSON")
    args = parser.parse_args()
    if args.runs < 9:
        parser.error("--runs must be at least 9")
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(args, scratch)
    print_table(result)
    if args.out:
        os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
