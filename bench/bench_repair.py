#!/usr/bin/env python3
"""Times gac repair against cp -r of its output, and against the obvious Python.

    bench_repair.py --gac build/gac --python VENV/bin/python [--gb 8] [--dir DIR]
                    [--out bench/results/repair.json]

Makes a checkpoint of SVD-LLM's names with Llama-3-8B's layer shapes and odd
ranks, filled with values, of about --gb gigabytes, in DIR (default: a new
folder beside the temporary files). Runs take turns; caches are warm. gac waits
until its output is on disk; the others do not, so each is timed both ways.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))
sys.path.insert(0, HERE)
import make_checkpoint as mk  # noqa: E402
from bench_inspect import machine, peak_bytes  # noqa: E402


def make_model(directory, gigabytes, vocab=128256):
    """Odd ranks everywhere; as many layers as fit beside the embeddings."""
    n_layers = max(1, round((gigabytes - 2.1 * vocab / 128256) / 0.371))
    ck = mk.llama_like(n_layers=n_layers, hidden=4096, n_heads=32, n_kv_heads=8, mlp=14336,
                       vocab=vocab, dtype="F16")
    for _, module in list(mk.layer_linears(ck)):
        out, inner = ck.shape(module + ".weight")
        stem = module[:-len("_proj")]
        mk.low_rank(ck, module, int(out * inner * 0.85 / (out + inner)) | 1,
                    stem + "_v_proj.weight", stem + "_u_proj.weight")
    ck.write(directory)
    block = random.Random(1).randbytes(1 << 24)
    for name in os.listdir(directory):
        if name.endswith(".safetensors"):
            fill(os.path.join(directory, name), block)


def fill(path, block):
    with open(path, "r+b") as stream:
        start = 8 + int.from_bytes(stream.read(8), "little")
        size = os.path.getsize(path)
        stream.seek(start)
        while start < size:
            start += stream.write(block[:min(len(block), size - start)])


def warm(directory):
    """Reads everything once, so that a run finds it in the cache."""
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb", buffering=0) as stream:
            while stream.read(1 << 24):
                pass


def cool(directory):
    """Gives the cache's room to what is measured next."""
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(command, source, target, sync=False):
    """Seconds of a command that makes target from source."""
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    warm(source)
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if sync:
        os.sync()
    return time.monotonic() - started


def file_system(path):
    line = subprocess.run(["findmnt", "-no", "FSTYPE", "-T", path], capture_output=True, text=True)
    return line.stdout.split()[0] if line.stdout.strip() else "unknown"


def measure(args, scratch):
    source, fit = os.path.join(scratch, "model"), os.path.join(scratch, "fit")
    copy, obvious = os.path.join(scratch, "copy"), os.path.join(scratch, "obvious")
    make_model(source, args.gb)
    repair = [args.gac, "repair", source, "-o", fit, "--strategy", "minimal", "-q"]
    python = [args.python, os.path.join(HERE, "repair_reference.py"), source, obvious]
    samples = {key: [] for key in ("gac_s", "gac_no_sync_s", "cp_s", "cp_sync_s", "python_s",
                                   "python_sync_s")}
    for i in range(args.runs):
        samples["gac_no_sync_s"].append(timed([*repair, "--no-sync"], source, fit))
        samples["gac_s"].append(timed(repair, source, fit))
        cool(source)
        samples["cp_s"].append(timed(["cp", "-r", fit, copy], fit, copy))
        samples["cp_sync_s"].append(timed(["cp", "-r", fit, copy], fit, copy, sync=True))
        shutil.rmtree(copy)
        if i < args.python_runs:
            cool(fit)
            samples["python_s"].append(timed(python, source, obvious))
            samples["python_sync_s"].append(timed(python, source, obvious, sync=True))
            shutil.rmtree(obvious)
    shutil.rmtree(fit)
    peak = {"gac": peak_bytes(repair), "launcher": peak_bytes(["true"])}
    verified = subprocess.run([args.gac, "verify", source, fit, "-q", "--json"],
                              capture_output=True, text=True, check=True)
    median = {key: statistics.median(values) for key, values in samples.items() if values}
    size = sum(os.path.getsize(os.path.join(fit, f)) for f in os.listdir(fit))
    return {
        "schema": "gac.bench_repair/1",
        "command": " ".join(["bench/bench_repair.py", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {**machine(), "file_system": file_system(scratch)},
        "output_bytes": size, "verified": json.loads(verified.stdout)["ok"],
        "samples_s": samples, "median_s": median, "peak_resident_bytes": peak,
        "ratio": {"speed_vs_cp_sync": median["cp_sync_s"] / median["gac_s"],
                  "speed_vs_python_sync": median["python_sync_s"] / median["gac_s"],
                  "no_sync_speed_vs_cp": median["cp_s"] / median["gac_no_sync_s"],
                  "no_sync_speed_vs_python": median["python_s"] / median["gac_no_sync_s"]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--gb", type=float, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--python-runs", type=int, default=2)
    parser.add_argument("--dir", help="where to work")
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as scratch:
        result = measure(args, scratch)
    gb = result["output_bytes"] / 1e9
    print(f"repair of {gb:.1f} GB on {result['machine']['file_system']}, {args.runs} runs in turn")
    for key, label in (("gac_no_sync_s", "gac repair --no-sync"), ("cp_s", "cp -r of the output"),
                       ("python_s", "safetensors + NumPy"), ("gac_s", "gac repair, on disk"),
                       ("cp_sync_s", "cp -r and sync"),
                       ("python_sync_s", "safetensors + NumPy, sync")):
        if key in result["median_s"]:
            unsynced = key in ("gac_no_sync_s", "cp_s", "python_s")
            base = result["median_s"]["gac_no_sync_s" if unsynced else "gac_s"]
            seconds = result["median_s"][key]
            print(f"  {label:28} {seconds:8.2f} s {gb / seconds:8.2f} GB/s "
                  f"{seconds / base:6.2f} x gac's time")
    for name, value in result["peak_resident_bytes"].items():
        print(f"  peak resident {name:10} {value / 2**20:8.1f} MiB")
    if args.out:
        with open(args.out, "w") as stream:
            json.dump(result, stream, indent=1)
            stream.write("\n")


if __name__ == "__main__":
    main()
