#!/usr/bin/env python3
"""Writes the contracts of architectures that nobody has measured: contracts/sm_*.json.

    python3 tools/contract/derive_assumed.py contracts

They say which sizes are aligned, by the published rules of libraries and hardware, and no times.
Every tier has the basis "assumed".
"""
import pathlib
import sys

from contract_common import dump

SOURCES = [
    "cuBLAS: rows of 16 bytes (multiples of 8 in 16 bits) reach the fast kernels, multiples of 2 the align2, "
    "odd sizes the align1 kernels",
    "cuDNN and FlashAttention-2: heads are multiples of 8 up to 256; PyTorch pads others on every call",
    "nothing was measured: gac probe -o contract.json measures a GPU",
]
FP8_SOURCE = "FP8 scaled GEMM: n and k are multiples of 16; other sizes run in BF16"
REASON = "{0} checkpoints are loaded as 16 bit for inference"
# Architecture: GPUs, whether it multiplies FP8, and names that people use.
ARCHITECTURES = {
    "sm_80": ("NVIDIA Ampere (A30, A800)", False, ["a30", "a800"]),
    "sm_86": ("NVIDIA Ampere (RTX 30, A10, A40)", False,
              ["3060", "3070", "3080", "3080ti", "3090", "3090ti", "a2", "a10", "a10g", "a16", "a40", "a4000", "a5000",
               "a6000"]),
    "sm_89": ("NVIDIA Ada (RTX 40, L4, L40S)", True,
              ["4060", "4070", "4080", "4090", "l4", "l40", "l40s", "6000ada", "5000ada"]),
    "sm_90": ("NVIDIA Hopper (H100, GH200)", True,
              ["h100", "h100-sxm", "h100-sxm5", "h100-pcie", "h100-nvl", "h100-80gb-hbm3", "h800", "h20", "gh200"]),
    "sm_100": ("NVIDIA Blackwell (B200, GB200)", True, ["b100", "b200", "gb200"]),
    "sm_120": ("NVIDIA Blackwell (RTX 50)", True, ["5060", "5070", "5080", "5090", "pro6000", "pro6000blackwell"]),
}


def tier(multiple, family, served=True, decode=True):
    out = {"multiple": multiple, "aligned": multiple >= 8, "kernel": family, "family": family, "basis": "assumed"}
    if decode:
        out["decode_basis"] = "assumed"
    return out if served else {**out, "served": False}


def contract(arch, gpu, has_fp8, aliases):
    half = [tier(8, "16-byte loads"), tier(2, "align2"), tier(1, "align1")]
    heads = [tier(8, "flash", decode=False), tier(1, "flash, padded", decode=False)]
    attention = {"max_head": 256, "tiers": heads}
    gemm = {"F16": {"n": half, "k": half}, "BF16": {"n": half, "k": half}}
    sdpa = {"F16": attention, "BF16": attention}
    if has_fp8:
        fp8 = [tier(16, "16-byte loads"), tier(1, "declined", served=False)]
        gemm["F8_E4M3"] = {"n": fp8, "k": fp8, "falls_back_to": "BF16"}
        sdpa["F8_E4M3"] = {"same_as": "BF16"}
    return {
        "schema": "gac.contract/2", "name": arch, "gpu": gpu, "arch": arch, "provisional": True, "aliases": aliases,
        "stack": {}, "sources": SOURCES + [FP8_SOURCE] * has_fp8, "dtypes": list(gemm),
        "stands_for": {d: {"dtype": "BF16", "reason": REASON.format(d)} for d in ("F32", "F64")},
        "gemm": gemm, "sdpa": sdpa, "points": [],
    }


def main():
    for arch, (gpu, has_fp8, aliases) in ARCHITECTURES.items():
        path = pathlib.Path(sys.argv[1]) / f"{arch}.json"
        path.write_text(dump(contract(arch, gpu, has_fp8, aliases)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
