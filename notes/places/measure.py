#!/usr/bin/env python3
"""How much does it matter where operands lie, and how are candidates ranked when it does not?

    python3 notes/places/measure.py --library build/libgac.so -o random.CARD.json     # with GAC_BACKEND_PATH

Measures the groups of candidates in tests/data/heldout, which `gac probe` drew
and measured, anew: every shape in several places in memory, and all
of a group in turns, so that the clock of the moment is the same for all. --drawn
says which: random_widths or common_widths.
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
from native_stack import Gac, loaded_library  # noqa: E402

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


def prepare(gac, dtype, m, n, k):
    """A task for each place, and the calls of a sample."""
    n_sets = count_sets(gac.info["l2_bytes"], dtype, m, n, k)
    job = {"op": "gemm", "dtype": dtype, "m": m, "n": n, "k": k, "row_major": False}
    tasks = [gac.create(job, n_sets) for _ in range(N_PLACES)]
    call_us = min(gac.time(tasks[0], n_sets) for _ in range(2))
    n_calls = min(MAX_CALLS, math.ceil(SAMPLE_US / call_us))
    return tasks, math.ceil(n_calls / n_sets) * n_sets


def measure(gac, dtype, group):
    """Rows: m, n, k, the probe's time (of two the mean), medians in every place (microseconds), the lowest clock,
    and what ran, each kernel with its grid."""
    made = [([*row[:3], statistics.mean(row[3:])], *prepare(gac, dtype, *row[:3])) for row in group]
    samples = [[[] for _ in range(N_PLACES)] for _ in made]
    clocks = [[] for _ in made]
    for i in range(-1, N_ROUNDS):  # one round to warm up
        for place in range(N_PLACES):
            for (_, tasks, n_calls), took, clock in zip(made, samples, clocks):
                gac.time(tasks[place], n_calls)  # another task's graph was there
                sample = gac.time(tasks[place], n_calls)
                if i >= 0:
                    took[place].append(sample)
                if i >= 0 and place == 0:
                    clock.append(gac.look().clock_mhz)
    ran = [" + ".join(f"{name} {grid}" for name, grid in gac.kernels(tasks[0]))
           for _, tasks, _ in made]
    for _, tasks, _ in made:
        for task in tasks:
            gac.free(task)
    return [[*row, [round(statistics.median(x), 4) for x in took], min(clock), kernels]
            for (row, _, _), took, clock, kernels in zip(made, samples, clocks, ran)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgac.so")
    parser.add_argument("--drawn", choices=("random_widths", "common_widths"), default="random_widths")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each dtype, at most")
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    gac = Gac(args.library)
    result = {"schema": "gac.places/3", "drawn": args.drawn, "machine": gac.info,
              "cublas": loaded_library(r"libcublasLt\.so"), "n_places": N_PLACES,
              "n_rounds": N_ROUNDS, "sample_us": SAMPLE_US, "dtypes": {}}
    for dtype in ("F8_E4M3", "F16", "BF16"):
        held_out = json.loads((ROOT / f"tests/data/heldout/h200_{dtype.lower()}.json").read_text())
        start, groups = time.monotonic(), []
        for group in held_out[args.drawn]:
            if time.monotonic() - start > args.seconds:
                break
            groups.append(measure(gac, dtype, group))
        result["dtypes"][dtype] = groups
        spread = [max(x[4]) / min(x[4]) for rows in groups for x in rows]
        print(f"{dtype}: {len(groups)} of {len(held_out[args.drawn])} groups in "
              f"{time.monotonic() - start:.0f} s; slowest over fastest place: median "
              f"{statistics.median(spread):.3f}, 95th percentile "
              f"{sorted(spread)[len(spread) * 95 // 100]:.3f}, most {max(spread):.3f}")
    text = ",\n".join(json.dumps(x) + ":\n" + json.dumps(y) for x, y in result.pop("dtypes").items())
    args.out.write_text(json.dumps(result)[:-1] + ', "dtypes": {\n' +
                        text.replace("\"]], [[", "\"]],\n[[") + "}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
