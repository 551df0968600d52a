#!/usr/bin/env python3
"""Made small.json from contracts/h200.json of commit 87b64cc: every kind of table, few cells.

    python3 tests/data/contracts/make_small.py contracts/h200.json tests/data/contracts/small.json

Tests of the program print predictions by small.json, so that a new bundled contract leaves their
expectations alone. The file is a contract of no GPU.
"""
import json
import sys

M = (1, 16, 256, 2048, 4096)


def thin(values, n):
    """At most n of them, the first and the last among these."""
    step = max(1, -(-(len(values) - 1) // (n - 1)))
    return sorted({*values[::step], values[-1]})


def cut(table, axes, keep):
    """The cells of a table at those values of its axes that keep has."""
    cells = iter(table["us"])
    us = [cell for x in table[axes[0]] for y in table[axes[1]] for z in table[axes[2]]
          for cell in [next(cells)]
          if x in keep[axes[0]] and y in keep[axes[1]] and z in keep[axes[2]]]
    return {**table, **{a: [v for v in table[a] if v in keep[a]] for a in axes}, "us": us}


def thin_table(table, axes):
    rows = [m for m in table["m"] if m in M] or table["m"]
    return cut(table, axes, {"m": rows, "n": thin(table["n"], 6), "k": thin(table["k"], 5)})


def dense(table, axes, lo, hi):
    along = axes[1]
    keep = {a: [v for v in table[a] if v == 4096 or v == 4104] for a in axes}
    keep["m"] = [m for m in table["m"] if m in (1, 256, 4096)]
    keep[along] = [v for v in table[along] if lo <= v <= hi]
    return cut(table, axes, keep)


def main():
    contract = json.load(open(sys.argv[1], encoding="utf-8"))
    contract.update(name="small", gpu="Test GPU", arch="none",
                    sources=["made for tests from contracts/h200.json: the contract of no GPU"],
                    stack={"driver": "1.2.3", "gac": "0.0.0"})
    contract["noise"] = {**{k: v for k, v in contract["noise"].items() if not isinstance(v, dict)}}
    contract["runtime"].update(name="a runtime", torch="0", gpu="Test GPU")
    contract["points"] = [p for p in contract["points"] if p["dtype"] == "F16"][:20]
    for gemm in contract["gemm"].values():
        gemm["times"] = [thin_table(t, "mnk") for t in gemm["times"]]
        for key, axes in (("dense", "mnk"), ("dense_k", "mkn"), ("dense_part", "mnk")):
            if key in gemm:
                gemm[key] = [t for t in (dense(t, axes, 1024, 1536) for t in gemm[key]) if t["us"]][:1]
    for sdpa in contract["sdpa"].values():
        if "points" in sdpa:
            sdpa["points"] = [p for p in sdpa["points"] if p[0] % 32 == 0 or p[0] in (107, 112)]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(contract, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
