#!/usr/bin/env python3
"""Writes contracts/a100.json from the published A100 figures.

  derive_a100.py [OUTPUT]     (standard output when OUTPUT is left out)

The figures are published ones, each under the name of its experiment
(experiments/published). Nothing here was measured by this project."""
import statistics
import sys

from contract_common import ELEMENT_BYTES, STANDS_FOR, errors, gemm_us, round_sig, write

# C23-H1: GEMM 8192 x 8192 x K, TFLOPS by what divides K. One K of each kind
# near the published 107 stands for its kind; "37-40" is taken in the middle.
H1_TFLOPS = {16: (112, 91.1), 8: (104, 76.8), 1: (107, (37 + 40) / 2)}
# C23-H4: TFLOPS by vector width, middle of each range; only %4 over %8 is used.
H4_TFLOPS = {8: (68 + 77) / 2, 4: (61 + 71) / 2}
# G3: GEMM M = N = 4096, time in us; kept out of the derivation, to check it.
G3_US = {107: 89.0, 112: 50.0, 128: 50.0}
# The data sheet's bandwidth of the 80 GB card, and a usual launch.
ASSUMED_BYTES_PER_S = 2.0e12
ASSUMED_OVERHEAD_US = 5.0

# SDPA ms at B4 H32 S2048 by head size.
SDPA_MS = {
    "S1": {64: 0.826, 96: 1.140, 104: 1.551, 107: 2.147, 112: 1.545, 120: 1.603, 128: 1.485},
    "S2 auto": {96: 1.172, 104: 1.537, 107: 2.139, 112: 1.533, 120: 1.589, 128: 1.474},
    "C23-H3": {112: 1.529, 113: 2.208, 120: 1.571, 121: 2.142},
    "C4 original": {107: 2.064, 114: 2.049, 117: 2.054, 120: 1.557, 121: 1.964, 125: 1.975},
    # "<= 160 2.00, <= 256 2.3-2.9": the ends of the range go to the ends of the class.
    "FlashAttention-2 classes": {160: 2.00, 168: 2.3, 256: 2.9},
}
S2_MATH_MS = {96: 26.048, 104: 26.526, 107: 26.995, 112: 27.059, 120: 27.479, 128: 28.092}

ALIASES = ["a100-80gb", "a100-40gb", "a100-sxm", "a100-sxm4", "a100-sxm4-80gb", "a100-sxm4-40gb", "a100-pcie",
           "a100-pcie-40gb", "a100-80gb-pcie"]
KERNELS = {
    16: ("ampere_*gemm (native sm80)", "sm80-native"),
    8: ("ampere_*gemm (native sm80)", "sm80-native"),
    4: ("cutlass_80_tensorop_*_align2", "cutlass-align2"),
    2: ("cutlass_80_tensorop_*_align2", "cutlass-align2"),
    1: ("cutlass_75_tensorop_*_align1", "cutlass-align1"),
}
SOURCES = [
    "C23-H1: TFLOPS of 8192 x 8192 x K at K % 16, K % 8 and odd K",
    "C23-H4: TFLOPS at K % 4 over K % 8, applied to C23-H1's K % 8",
    "K % 2 that is not K % 4 was not published: the same kernel's rate is assumed",
    "N was not published: the tiers of K are assumed",
    "flops_per_s is what C23-H1 leaves after writing the output at the data sheet's 2.0 TB/s and "
    "5 us of launch, both assumed",
    "decode was not published: 2.0 TB/s for every tier, so no penalty is predicted there",
    "S1, S2, C23-H3, C4 and the FlashAttention-2 classes: attention by head size, medians where "
    "several give the same size; S2: the math backend",
    "C21: FLASH serves every head size, 8-aligned mean 1.553 ms, others 2.033 ms",
    "PaLU-dist: 8-aligned is what the published work calls aligned",
    "kernel tiers: % 8 native sm80, % 2 CUTLASS align2, odd CUTLASS sm75 align1",
]


def rate(k, tflops):
    """flops_per_s that, with the assumed output and launch, gives tflops at 8192 x 8192 x k."""
    m = n = 8192
    flops = 2.0 * m * n * k
    edges_us = m * (n + k) * ELEMENT_BYTES / ASSUMED_BYTES_PER_S * 1e6
    return flops / (flops / (tflops * 1e6) - edges_us - ASSUMED_OVERHEAD_US) * 1e6


def tiers(place):
    even = H1_TFLOPS[8][1] * H4_TFLOPS[4] / H4_TFLOPS[8]
    rates = {m: rate(*H1_TFLOPS[m]) for m in (16, 8, 1)}
    rates[4] = rates[2] = rate(108, even)
    published = (16, 8, 4, 1) if place == "k" else ()
    return [{"multiple": m, "aligned": m >= 8, "kernel": KERNELS[m][0], "family": KERNELS[m][1],
             "flops_per_s": round_sig(rates[m]), "bytes_per_s": ASSUMED_BYTES_PER_S,
             "overhead_us": ASSUMED_OVERHEAD_US, "overlap": 1.0,
             "edge_bytes_per_s": ASSUMED_BYTES_PER_S,
             "basis": "published" if m in published else "assumed", "decode_basis": "assumed"}
            for m in (16, 8, 4, 2, 1)]


def sdpa():
    heads = sorted({head for times in SDPA_MS.values() for head in times})
    curve = []
    for head in heads:
        times_ms = [times[head] for times in SDPA_MS.values() if head in times]
        curve.append([head, round(1000 * statistics.median(times_ms), 1)])
    kernel = "flash_fwd_kernel"
    return {
        "reference": {"batch": 4, "n_heads": 32, "n_q": 2048, "n_kv": 2048, "causal": False},
        "max_head": 256,
        "tiers": [
            {"multiple": 8, "aligned": True, "kernel": kernel, "family": "flash2",
             "basis": "published"},
            {"multiple": 1, "aligned": False, "kernel": kernel, "family": "flash2-padded",
             "basis": "published"},
        ],
        "decode": {"bytes_per_s": ASSUMED_BYTES_PER_S, "overhead_us": ASSUMED_OVERHEAD_US,
                   "basis": "assumed"},
        "points": curve,
        "beyond": {"kernel": "math", "family": "math", "basis": "assumed",
                   "points": [[head, ms * 1000] for head, ms in S2_MATH_MS.items()]},
    }


def main():
    gemm = {"n": tiers("n"), "k": tiers("k")}
    check = errors([(gemm_us(gemm, 4096, 4096, k), t) for k, t in G3_US.items()])
    write({
        "schema": "gac.contract/2", "name": "a100", "gpu": "NVIDIA A100 80GB", "arch": "sm_80",
        "provisional": True, "aliases": ALIASES,
        "stack": {"torch": "2.9.1", "cuda": "12.8"},
        "sources": SOURCES + [f"held against the three times of G3: {check['median_pct']} % off (median), "
                              f"{check['max_pct']} % at most"], "dtypes": ["F16"], "stands_for": STANDS_FOR,
        "gemm": {"F16": gemm}, "sdpa": {"F16": sdpa()},
        "points": [],
    }, sys.argv[1:])


if __name__ == "__main__":
    main()
