#!/usr/bin/env python3
"""Does it matter how the operands of a short call lie in the cache?

    python3 experiments/validation/agreement/layout.py --library build/libgac.so      # with GAC_BACKEND_PATH

Times GEMMs of one row whose operand sets together are about as large as the L2
cache: ours, and PyTorch's with every operand allocated on its own, with all sets
in one tensor as close together as ours, in whole MiB, and with a gap between
them. All in turns, the second of two replays; microseconds per call.
"""
import argparse
import statistics

import compare
from native_stack import Gac
from pytorch_stack import Stack, torch

ROUNDS = 9
LEAST_CALLS = 200
K = 4096
GAP_BYTES = 128 * 1024 + 512


def up(x, unit):
    return -(-x // unit) * unit


def side_by_side(n, n_sets, stride):
    """Sets of x and W in one tensor, stride bytes apart."""
    memory = torch.randn(n_sets * stride // 2 + K, device="cuda", dtype=torch.float16).mul_(0.125)
    starts = range(0, n_sets * stride // 2, stride // 2)
    return [(memory[at:at + K].view(1, K), memory[at + K:at + K + n * K].view(n, K))
            for at in starts]


def measure(gac, stack, n, n_sets):
    """Name of the layout -> microseconds per call."""
    job = {"op": "gemm", "dtype": "F16", "m": 1, "n": n, "k": K, "row_major": False}
    pair = compare.Pair(gac, stack, job)
    pair.n_sets = n_sets
    pair.move()
    n_calls = up(LEAST_CALLS, n_sets)
    ours = 2 * K + up(2 * n * K, 512) + up(2 * n, 512)
    separate = [stack.operands(job) for _ in range(n_sets)]
    layouts = {"separate": separate, "as ours": side_by_side(n, n_sets, ours),
               "whole MiB": side_by_side(n, n_sets, up(ours, 1 << 20)),
               "with gaps": side_by_side(n, n_sets, ours + GAP_BYTES)}
    work = {"ours": lambda: gac.time(pair.task, n_calls)}
    for name, sets in layouts.items():
        graph = stack.capture(stack.repeat(pair.function, sets, n_calls))
        work[name] = lambda g=graph: stack.clock_behind_hold(g.replay, n_calls) / n_calls
    samples = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, take in work.items():
            take()
            samples[name].append(take())
    pair.shrink()
    gac.free(pair.once)
    return {name: statistics.median(times) for name, times in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    args = parser.parse_args()
    stack = Stack({"device": "cuda:0", "dtype": "F16", "rules": {}})
    with torch.inference_mode():
        torch.ones(1, device="cuda") @ torch.ones(1, device="cuda")  # loads cuBLAS
        gac = Gac(args.library)
        for n in (107, 123, 749):
            for n_sets in (9, 17, 25, 33, 64):
                times = measure(gac, stack, n, n_sets)
                print(f"n={n} k={K}, {n_sets:2} sets: "
                      + ", ".join(f"{name} {us:.3f}" for name, us in times.items()), flush=True)


if __name__ == "__main__":
    main()
