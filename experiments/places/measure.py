#!/usr/bin/env python3
"""How much does it matter where operands lie, and how are candidates ranked when it does not?

    python3 experiments/places/measure.py --library build/libgac.so -o h200.json     # with GAC_BACKEND_PATH

Measures the groups of candidates in tests/data/heldout, which `gac probe` drew at
random and measured once, anew: every shape in several places in memory, in turns.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from native_lens import Gac, Refused, loaded_library  # noqa: E402

SIZES = {"F16": 2, "BF16": 2, "F8_E4M3": 1}  # bytes
N_PLACES = 5
N_ROUNDS = 5
SAMPLE_US = 300
MAX_CALLS = 2000
MAX_SETS = 64


def count_sets(l2_bytes, dtype, m, n, k):
    """As the plug-in does: more than three times the cache."""
    size = SIZES[dtype]
    bytes_of_set = size * (m * k + n * k) + 2 * m * n
    return min(MAX_SETS, max(2, 3 * l2_bytes // bytes_of_set + 1))


def measure(gac, dtype, m, n, k):
    """Medians in every place, microseconds, and the clock afterwards."""
    n_sets = count_sets(gac.info["l2_bytes"], dtype, m, n, k)
    job = {"op": "gemm", "dtype": dtype, "m": m, "n": n, "k": k, "row_major": False}
    tasks = []
    try:
        for _ in range(N_PLACES):
            tasks.append(gac.create(job, n_sets))
        call_us = min(gac.time(tasks[0], n_sets) for _ in range(2))
        n_calls = min(MAX_CALLS, math.ceil(SAMPLE_US / call_us))
        n_calls = math.ceil(n_calls / n_sets) * n_sets
        samples = [[] for _ in tasks]
        for i in range(-1, N_ROUNDS):  # one round to warm up
            for task, took in zip(tasks, samples):
                sample = gac.time(task, n_calls)
                if i >= 0:
                    took.append(sample)
        return [round(statistics.median(x), 4) for x in samples], gac.look().clock_mhz
    finally:
        for task in tasks:
            gac.free(task)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgac.so")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each dtype, at most")
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    gac = Gac(args.library)
    result = {"schema": "gac.places/2", "machine": gac.info,
              "cublas": loaded_library(r"libcublasLt\.so"), "n_places": N_PLACES,
              "n_rounds": N_ROUNDS, "sample_us": SAMPLE_US, "dtypes": {}}
    for dtype in ("F8_E4M3", "F16", "BF16"):
        held_out = json.loads((ROOT / f"tests/data/heldout/h200_{dtype.lower()}.json").read_text())
        start, groups = time.monotonic(), []
        for group in held_out["ranking"]:
            if time.monotonic() - start > args.seconds:
                break
            rows = []
            for m, n, k, once_us in group:
                try:
                    rows.append([m, n, k, once_us, *measure(gac, dtype, m, n, k)])
                except Refused as e:
                    print(dtype, m, n, k, e)
            groups.append(rows)
        result["dtypes"][dtype] = groups
        spread = [max(x[4]) / min(x[4]) for rows in groups for x in rows]
        print(f"{dtype}: {len(groups)} of {len(held_out['ranking'])} groups in "
              f"{time.monotonic() - start:.0f} s; slowest over fastest place: median "
              f"{statistics.median(spread):.3f}, 95th percentile "
              f"{sorted(spread)[len(spread) * 95 // 100]:.3f}, most {max(spread):.3f}")
    text = ",\n".join(json.dumps(x) + ":\n" + json.dumps(y) for x, y in result.pop("dtypes").items())
    args.out.write_text(json.dumps(result)[:-1] + ', "dtypes": {\n' +
                        text.replace("]], [[", "]],\n[[") + "}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
