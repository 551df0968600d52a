#!/usr/bin/env python3
"""Derives a contract's `accuracy` again from the raw points of its probe.

    python3 tools/contract/accuracy.py RAW CONTRACT --library build/libgac.so

For a contract whose predictions changed since, because the program did: the same held-out
shapes and candidates against what it predicts now, as src/measure/probe_accuracy.c does it.
Rewrites CONTRACT, whose other parts stay; with --check only says whether it would. Raw times
have four digits, so figures differ in the last from those that the probe itself writes; and where
points have no number of their group, two that chance put side by side count as one.
"""
import argparse
import ctypes
import gzip
import json
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import heldout  # noqa: E402

RANK_PCT, CLEAR_PCT = 5.0, 3.0


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in
                ("batch", "n_q_heads", "n_kv_heads", "n_q", "n_kv", "qk_head", "v_head")] + [
                    ("causal", ctypes.c_bool)]


class Predictor:
    """Times by a contract file, asked of the library."""

    def __init__(self, library, path):
        self.lib = ctypes.CDLL(str(library))
        for name, more in (("gemm", [ctypes.c_int64] * 3), ("sdpa", [ctypes.POINTER(Shape)])):
            call = getattr(self.lib, f"gac_contract_{name}_us")
            call.restype, call.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_int, *more]
        self.contract = ctypes.c_void_p()
        if self.lib.gac_contract_load(str(path).encode(), ctypes.byref(self.contract), None):
            sys.exit(f"{path}: not a contract")
        self.lib.gac_dtype_parse.restype = ctypes.c_bool

    def us(self, p):
        dtype = ctypes.c_int()
        if not self.lib.gac_dtype_parse(p["dtype"].encode(), ctypes.byref(dtype)):
            sys.exit(f"{p['dtype']}: not a dtype")
        if p["op"] == "gemm":
            return self.lib.gac_contract_gemm_us(self.contract, dtype, p["m"], p["n"], p["k"])
        shape = Shape(*(p[name] for name, _ in Shape._fields_))
        return self.lib.gac_contract_sdpa_us(self.contract, dtype, ctypes.byref(shape))


def number(x):
    return float(f"{x:.4g}")


def percentile(values, part):
    at = part * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def summary(pairs):
    errors = sorted(100 * (predicted / p["median_us"] - 1) for predicted, p in pairs)
    sizes = sorted(map(abs, errors))
    return {"n_points": len(pairs), "median_pct": number(percentile(sizes, 0.5)),
            "p95_pct": number(percentile(sizes, 0.95)), "max_pct": number(sizes[-1]),
            "bias_pct": number(percentile(errors, 0.5))}


def tier(tiers, size):
    return next(t["multiple"] for t in tiers if size % t["multiple"] == 0)


def rows_label(m):
    return "1" if m == 1 else "2-64" if m <= 64 else "65-512" if m <= 512 else "513-"


def labelled(pairs, labels):
    out = summary(pairs)
    for key, label in labels.items():
        names = list(dict.fromkeys(label(p) for _, p in pairs))
        out[key] = {name: summary([x for x in pairs if label(x[1]) == name]) for name in names}
    return out


def right(n_right, n):
    """As the probe writes it: without a figure where there is no pair."""
    return {"n_over_5_pct": n, **({"right_pct": number(100 * n_right / n)} if n else {})}


def order(a, b):
    """-1: a is the faster one, by more than RANK_PCT; 1: b is."""
    times = a["median_us"], b["median_us"]
    if max(times) / min(times) <= 1 + RANK_PCT / 100:
        return 0
    return -1 if times[0] < times[1] else 1


def ranking(groups, predictor, is_aligned=None):
    """Of pairs within a group that are over RANK_PCT apart, each time they were measured, how many are predicted in the
    right order: all; those predicted to differ clearly; and, by is_aligned, of two such."""
    n, seen = 0, []
    for group in groups:
        for i, a in enumerate(group):
            for b in group[i + 1:]:
                n += 1
                said, true = (predictor.us(a), predictor.us(b)), order(a, b)
                if not true or order(a.get("again", a), b.get("again", b)) != true:
                    continue
                far = abs(math.log(said[0] / said[1])) > math.log(1 + CLEAR_PCT / 100)
                both = is_aligned and is_aligned(a) and is_aligned(b)
                seen.append((true * (said[0] - said[1]) > 0, far, both))  # alike is no order
    clear = [ok for ok, far, _ in seen if far]
    aligned = [ok for ok, _, both in seen if both]
    out = {**right(sum(ok for ok, _, _ in seen), len(seen)), "n_pairs": n,
           "clear": {**right(sum(clear), len(clear)), "margin_pct": CLEAR_PCT}}
    return {**out, "aligned": right(sum(aligned), len(aligned))} if is_aligned else out


def choice(groups, predictor):
    """How much longer the candidate takes that is predicted to be the fastest of its group than the one that is."""
    def us(p):
        return (p["median_us"] + p.get("again", p)["median_us"]) / 2

    def chosen(group):  # of two that are predicted alike the smaller
        return min(group, key=lambda p: (predictor.us(p), p["n"] + p["k"]))

    more = sorted(100 * (us(chosen(group)) / min(map(us, group)) - 1) for group in groups if len(group) > 1)
    if not more:
        return {"n_groups": 0}
    return {"n_groups": len(more), "mean_pct": number(sum(more) / len(more)),
            "p95_pct": number(percentile(more, 0.95)), "max_pct": number(more[-1])}


def splice(text, key, written):
    """Puts written in the place of the first value of key."""
    at = text.index(f'"{key}":') + len(key) + 3
    at += len(text[at:]) - len(text[at:].lstrip())
    _, end = json.JSONDecoder().raw_decode(text, at)
    return text[:at] + written + text[end:]


def accuracy_of(points, contract, predictor):
    """The contract's `accuracy`, by points of the phases that were not used for it."""
    accuracy = {**contract["accuracy"], "gemm": {}, "sdpa": {}, "ranking": {}}
    for dtype in contract["dtypes"]:
        mine = [p for p in points if p.get("dtype") == dtype and "median_us" in p]
        held_out = [p for p in mine if p["phase"] == "held-out shapes"]
        gemm = [p for p in held_out if p["op"] == "gemm"]
        sdpa = [p for p in held_out if p["op"] == "sdpa"]
        rules = contract["gemm"][dtype]
        accuracy["gemm"][dtype] = labelled(
            [(predictor.us(p), p) for p in gemm],
            {"by_tier": lambda p: f"{tier(rules['n'], p['n'])}/{tier(rules['k'], p['k'])}",
             "by_rows": lambda p: rows_label(p["m"])})
        if sdpa:
            heads = contract["sdpa"][dtype]["tiers"]
            accuracy["sdpa"][dtype] = labelled(
                [(predictor.us(p), p) for p in sdpa],
                {"by_tier": lambda p: str(tier(heads, p["qk_head"])),
                 "by_phase": lambda p: "decode" if p["n_q"] == 1 else "prefill"})

        def is_aligned(p):
            return all(next(t["aligned"] for t in rules[place] if p[place] % t["multiple"] == 0)
                       for place in "nk")

        groups = [heldout.group([p for p in mine if p["phase"] == phase])
                  for phase in ("candidates", "candidates at common widths")]
        by_phase = [{**ranking(some, predictor, is_aligned), "choice": choice(some, predictor)}
                    for some in groups]
        accuracy["ranking"][dtype] = {**by_phase[0], "typical": by_phase[1]}
    return accuracy


def is_same(a, b, key=""):
    """But for what another machine's arithmetic may make of errors, and for the pairs that four digits
    of a time put on the other side of RANK_PCT."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k], k) for k in a)
    if key == "n_over_5_pct":
        return math.isclose(a, b, rel_tol=0.01)
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=0, abs_tol=0.1)
    return a == b


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=pathlib.Path)
    parser.add_argument("contract", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with (gzip.open if args.raw.suffix == ".gz" else open)(args.raw, "rt", encoding="utf-8") as f:
        points = json.load(f)["points"]
    text = args.contract.read_text(encoding="utf-8")
    contract = json.loads(text)
    accuracy = accuracy_of(points, contract, Predictor(args.library, args.contract))
    if args.check:
        sys.exit(0 if is_same(accuracy, contract["accuracy"]) else
                 f"{args.contract}: other figures now: run {sys.argv[0]} without --check")
    source = ("accuracy by the program as it is now: from the raw points of the same run by "
              "tools/contract/accuracy.py")
    sources = [x for x in contract["sources"] if x != source] + [source]
    text = splice(text, "sources", json.dumps(sources, ensure_ascii=False))
    text = splice(text, "accuracy", json.dumps(accuracy, indent=1).replace("\n", "\n "))
    args.contract.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
