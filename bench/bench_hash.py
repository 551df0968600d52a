#!/usr/bin/env python3
"""Times gac repair with its checksums against the same program without them.

    bench_hash.py --gac build/gac [--gb 2] [--runs 8] [--disk DIR] [--memory /dev/shm]
                  [--out bench/results/hash.json]

Builds the peer in build/no_hash: the same sources with the definition
GAC_NO_HASH, which nothing else uses. Makes a checkpoint of SVD-LLM's names with odd
ranks in the memory file system and on the disk; on the disk gac waits until its
output is flushed. Both programs take turns, and every second turn is the other
way round. States the least and the median of wall time and of processor time
(user and system): on a busy machine the processor time tells more.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
from bench_inspect import machine  # noqa: E402
from bench_repair import file_system, make_model, warm  # noqa: E402


def build_peer():
    folder = os.path.join(ROOT, "build", "no_hash")
    subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DGAC_TESTS=OFF",
                    "-DGAC_CUDA=OFF", "-DCMAKE_C_FLAGS=-DGAC_NO_HASH"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--target", "gac"], check=True,
                   stdout=subprocess.DEVNULL)
    return os.path.join(folder, "gac")


def once(program, source, target, sync):
    """(wall, processor) seconds of one repair."""
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    command = [program, "repair", source, "-o", target, "-q"] + ([] if sync else ["--no-sync"])
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.monotonic() - began
    if status:
        sys.exit(f"{' '.join(command)}: status {status}")
    return wall, used.ru_utime + used.ru_stime


def compare(programs, scratch, args, sync):
    source, target = os.path.join(scratch, "model"), os.path.join(scratch, "fit")
    make_model(source, args.gb, vocab=16032)  # as large a part as in a model of 8B
    warm(source)
    samples = {name: [] for name in programs}
    for turn in range(-1, args.runs):
        for name in sorted(programs, reverse=turn % 2 == 0):
            sample = once(programs[name], source, target, sync)
            if turn >= 0:  # the first turn warms up
                samples[name].append(sample)
    size = sum(os.path.getsize(os.path.join(target, f)) for f in os.listdir(target))
    result = {"file_system": file_system(scratch), "sync": sync, "output_bytes": size}
    for i, kind in enumerate(("wall", "processor")):
        of = {name: [s[i] for s in samples[name]] for name in programs}
        for what, choose in (("least", min), ("median", statistics.median)):
            seconds = {name: choose(values) for name, values in of.items()}
            result[f"{kind}_{what}"] = {
                **{name + "_s": value for name, value in seconds.items()},
                "hashing_costs_pct": 100 * (seconds["hash"] / seconds["no_hash"] - 1)}
        result[f"{kind}_samples_s"] = of
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--gb", type=float, default=2)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--memory", default="/dev/shm", help="a folder in a memory file system")
    parser.add_argument("--disk", help="a folder on a disk; default: of temporary files")
    parser.add_argument("--out")
    args = parser.parse_args()
    programs = {"hash": os.path.abspath(args.gac), "no_hash": build_peer()}
    load = os.getloadavg()[0]
    results = []
    for folder, sync in ((args.memory, False), (args.disk, True)):
        with tempfile.TemporaryDirectory(dir=folder, prefix="gac-hash-") as scratch:
            result = compare(programs, scratch, args, sync)
        results.append(result)
        print(f"{result['output_bytes'] / 1e9:.1f} GB on {result['file_system']}, "
              f"{'with' if sync else 'without'} flushing, {args.runs} runs in turn")
        for key in ("wall_least", "wall_median", "processor_least", "processor_median"):
            r = result[key]
            print(f"  {key:17} {r['hash_s']:6.2f} s, without hashing {r['no_hash_s']:6.2f} s: "
                  f"{r['hashing_costs_pct']:+.1f} %")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as stream:
            json.dump({"schema": "gac.bench_hash/1",
                       "command": " ".join(["bench/bench_hash.py", *sys.argv[1:]]),
                       "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                       "machine": {**machine(), "load_before": load}, "results": results},
                      stream, indent=1)
            stream.write("\n")


if __name__ == "__main__":
    main()
