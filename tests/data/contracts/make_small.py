#!/usr/bin/env python3
"""Made small.json from contracts/h200.json of commit 87b64cc: every kind of table, few cells.

    gac contract show ./h200-of-87b64cc.json --json > h200.json   # in the schema of today
    python3 tests/data/contracts/make_small.py h200.json tests/data/contracts/small.json

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


def cut(table, keep):
    """The cells of a table at those values of its axes that keep has."""
    cells = iter(table["us"])
    us = [cell for m in table["m"] for n in table["n"] for k in table["k"] for cell in [next(cells)]
          if m in keep["m"] and n in keep["n"] and k in keep["k"]]
    return {**table, **{a: [v for v in table[a] if v in keep[a]] for a in "mnk"}, "us": us}


def thin_table(table):
    rows = [m for m in table["m"] if m in M] or table["m"]
    return cut(table, {"m": rows, "n": thin(table["n"], 6), "k": thin(table["k"], 5)})


def some_n(table, low, high):
    return cut(table, {"m": [m for m in table["m"] if m in (1, 256, 4096)],
                       "n": [n for n in table["n"] if low <= n <= high],
                       "k": [k for k in table["k"] if k == 4096]})


def main():
    contract = json.load(open(sys.argv[1], encoding="utf-8"))
    contract.update(name="small", gpu="Test GPU", arch="none",
                    sources=["made for tests from contracts/h200.json: the contract of no GPU"],
                    stack={"driver": "1.2.3", "gac": "0.0.0"})
    contract["runtime"].update(name="a runtime", torch="0", gpu="Test GPU")
    contract["points"] = [p for p in contract["points"] if p["dtype"] == "F16"][:20]
    for gemm in contract["gemm"].values():
        gemm["grid"] = [thin_table(t) for t in gemm["grid"]]
        gemm["every_n"] = [t for t in (some_n(t, 1024, 1536) for t in gemm["every_n"]) if t["us"]][:1]
    for sdpa in contract["sdpa"].values():
        if "points" in sdpa:
            sdpa["points"] = [p for p in sdpa["points"] if p[0] % 32 == 0 or p[0] in (107, 112)]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(contract, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
