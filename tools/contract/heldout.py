#!/usr/bin/env python3
"""The held-out shapes of a probe, for tests/unit/test_heldout.c.

    python3 tools/contract/heldout.py notes/probe-h200/raw.json.gz tests/data/heldout/h200

RAW is what `gac probe --raw` wrote, perhaps compressed. Writes PREFIX_DTYPE.json: the
shapes drawn at random, in no table and among no points, with their measured times; and
groups of candidates near a size: likewise, and at widths that many models have.
"""
import argparse
import gzip
import json
import pathlib

N_GEMM = 600  # held-out shapes, as in src/probe/probe_accuracy.c
REACH = 200  # of candidates
GEMM = ("m", "n", "k")
SDPA = ("batch", "n_q_heads", "n_kv_heads", "n_q", "n_kv", "qk_head", "causal")


def group(points):
    """Candidates near one size, as the probe numbered them; a second measurement of one is
    its `again`. Before it did that: one m, one n or k, and the other within REACH, so that
    two groups that chance put side by side are one."""
    numbered = {}
    for p in points:
        if "group" in p:
            mine = numbered.setdefault(p["group"], [])
            same = [q for q in mine if all(q[a] == p[a] for a in GEMM)]
            if same:
                same[0]["again"] = p
            else:
                mine.append(p)
    if numbered:
        return list(numbered.values())
    groups = []
    for p in points:
        before = groups[-1] if groups else []
        near = bool(before) and all(q["m"] == p["m"] and abs(q["n"] - p["n"]) <= REACH and
                                    abs(q["k"] - p["k"]) <= REACH for q in before)
        lines = [{q[a] for q in before} | {p[a]} for a in ("n", "k")]
        if near and min(map(len, lines)) == 1:
            before.append(p)
        else:
            groups.append([p])
    return groups


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=pathlib.Path)
    parser.add_argument("prefix")
    args = parser.parse_args()
    with (gzip.open if args.raw.suffix == ".gz" else open)(args.raw, "rt", encoding="utf-8") as f:
        raw = json.load(f)
    held_out = [p for p in raw["points"] if p["phase"] == "held-out shapes" and "median_us" in p]
    for dtype in sorted({p["dtype"] for p in held_out}):
        rows = {}
        for op, keys, most in (("gemm", GEMM, N_GEMM), ("sdpa", SDPA, None)):
            found = [p for p in held_out if p["op"] == op and p["dtype"] == dtype][:most]
            rows[op] = [[int(p[k]) for k in keys] + [p["median_us"]] for p in found]
        # Before commit b2fae39 candidates followed the shapes, in their phase.
        old = [p for p in held_out if p["op"] == "gemm" and p["dtype"] == dtype][N_GEMM:]
        for key, phase in (("random_widths", "candidates"), ("common_widths", "candidates at common widths")):
            ranked = [p for p in raw["points"] if p["phase"] == phase and p["dtype"] == dtype and
                      "median_us" in p] or (old if key == "random_widths" else [])
            if ranked:
                rows[key] = [[[p[k] for k in GEMM] + [p["median_us"]] +
                              ([p["again"]["median_us"]] if "again" in p else []) for p in g]
                             for g in group(ranked)]
        note = (f"{raw['machine']['gpu']}, {dtype}, shapes drawn at random by gac probe (seed "
                f"{raw['seed']}), in no table and among no points; from {args.raw} by "
                "tools/contract/heldout.py. gemm, and random_widths in groups: m, n, k, us, and us "
                "again where it was measured twice. sdpa: "
                "batch, q heads, kv heads, n_q, n_kv, head, causal, us.")
        if "common_widths" in rows:
            note += " common_widths: as random_widths, at common widths, in tables too."
        lists = [f'"{op}": [' + ",\n".join(map(json.dumps, rows[op])) + "]" for op in rows]
        path = pathlib.Path(f"{args.prefix}_{dtype.lower()}.json")
        path.write_text(f'{{"note": {json.dumps(note)},\n' + ",\n".join(lists) + "}\n",
                        encoding="utf-8")
        print(f"{path}: {len(rows['gemm'])} GEMM and {len(rows['sdpa'])} attention shapes")


if __name__ == "__main__":
    main()
