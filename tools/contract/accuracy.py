#!/usr/bin/env python3
"""Computes a contract's `accuracy` from the raw points of probes.

    python3 tools/contract/accuracy.py RAW... CONTRACT --library build/libgac.so [--check | --print]

Compares what the contract predicts now with the shapes that a probe held out, as
src/probe/probe_accuracy.c does. Rewrites CONTRACT by the figures of RAW; --check only says
whether they are others; --print prints them, over several runs together.
"""
import argparse
import ctypes
import gzip
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import heldout  # noqa: E402

APART = 1.05  # two candidates that differ by less are not ranked
PHASES = {"random_widths": "candidates", "common_widths": "candidates at common widths"}


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in
                ("batch", "n_q_heads", "n_kv_heads", "n_q", "n_kv", "qk_head", "v_head")] + [
                    ("causal", ctypes.c_bool)]


class Predictor:
    """A contract file, read by the library."""

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
        """The predicted time of a raw point."""
        dtype = ctypes.c_int()
        if not self.lib.gac_dtype_parse(p["dtype"].encode(), ctypes.byref(dtype)):
            sys.exit(f"{p['dtype']}: not a dtype")
        if p["op"] == "gemm":
            return self.lib.gac_contract_gemm_us(self.contract, dtype, p["m"], p["n"], p["k"])
        shape = Shape(*(p[name] for name, _ in Shape._fields_))
        return self.lib.gac_contract_sdpa_us(self.contract, dtype, ctypes.byref(shape))

    def text(self):
        """The contract as its file."""
        text, n_bytes = ctypes.c_void_p(), ctypes.c_size_t()
        if self.lib.gac_contract_write(self.contract, ctypes.byref(text), ctypes.byref(n_bytes), None):
            sys.exit("out of memory")
        return ctypes.string_at(text, n_bytes.value).decode("utf-8")


def read(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as f:
        return json.load(f)


def number(x):
    return float(f"{x:.4g}")


def percentile(values, part):
    at = part * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def errors(points, predictor):
    signed = sorted(100 * (predictor.us(p) / p["median_us"] - 1) for p in points)
    sizes = sorted(map(abs, signed))
    return {"n_points": len(sizes), "median_pct": number(percentile(sizes, 0.5)),
            "p95_pct": number(percentile(sizes, 0.95)), "max_pct": number(sizes[-1]),
            "bias_pct": number(percentile(signed, 0.5))}


def order(a, b):
    """-1: a is the faster one, by more than 5 %; 1: b is."""
    x, y = a["median_us"], b["median_us"]
    return 0 if max(x, y) / min(x, y) <= APART else -1 if x < y else 1


def pairs(group, predictor):
    """For each pair over 5 % apart both times: whether it is predicted in that order."""
    for i, a in enumerate(group):
        for b in group[i + 1:]:
            true = order(a, b)
            if true and order(a.get("again", a), b.get("again", b)) == true:
                yield true * (predictor.us(a) - predictor.us(b)) > 0  # alike is no order


def regret(group, predictor):
    """How much longer the chosen candidate takes than the best one, in percent."""
    def us(p):
        return (p["median_us"] + p.get("again", p)["median_us"]) / 2

    chosen = min(group, key=lambda p: (predictor.us(p), p["n"] + p["k"]))  # alike: the smaller
    return 100 * (us(chosen) / min(map(us, group)) - 1)


def ranking(groups, predictor):
    right = [ok for group in groups for ok in pairs(group, predictor)]
    more = sorted(regret(group, predictor) for group in groups if len(group) > 1)
    out = {"n_groups": len(more)}
    if more:
        out.update(regret_mean_pct=number(sum(more) / len(more)),
                   regret_p95_pct=number(percentile(more, 0.95)), regret_max_pct=number(more[-1]))
    out["n_over_5_pct"] = len(right)
    return {**out, "right_pct": number(100 * sum(right) / len(right))} if right else out


def accuracy_of(runs, dtypes, predictor):
    """`gemm`, `sdpa` and `ranking` by the shapes that runs (lists of raw points) held out."""
    out = {"gemm": {}, "sdpa": {}, "ranking": {}}
    for dtype in dtypes:
        mine = [[p for p in run if p.get("dtype") == dtype and "median_us" in p] for run in runs]
        for op in ("gemm", "sdpa"):
            held = [p for run in mine for p in run if p["phase"] == "held-out shapes" and p["op"] == op]
            if held:
                out[op][dtype] = errors(held, predictor)
        if any(mine):
            out["ranking"][dtype] = {
                key: ranking([g for run in mine for g in heldout.group([p for p in run if p["phase"] == phase])],
                             predictor) for key, phase in PHASES.items()}
    return out


def together(runs, predictor):
    """Errors at the held-out shapes of all dtypes."""
    held = [p for run in runs for p in run
            if p["phase"] == "held-out shapes" and "median_us" in p]
    return {op: errors([p for p in held if p["op"] == op], predictor) for op in ("gemm", "sdpa")}


def is_same(a, b, key=""):
    """But for what other arithmetic makes of the last digits, and of times close to 5 % apart."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k], k) for k in a)
    return math.isclose(a, b, rel_tol=0.01 if key == "n_over_5_pct" else 0.002, abs_tol=0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=pathlib.Path, nargs="+")
    parser.add_argument("contract", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--print", action="store_true")
    args = parser.parse_args()
    contract, predictor = read(args.contract), Predictor(args.library, args.contract)
    found = accuracy_of([read(path)["points"] for path in args.raw], contract["dtypes"], predictor)
    if args.print:
        found["all_dtypes"] = together([read(path)["points"] for path in args.raw], predictor)
        print(json.dumps(found, indent=1))
        return
    said = contract.get("accuracy", {})
    if args.check:
        sys.exit(0 if is_same(found, {k: said.get(k, {}) for k in found}) else
                 f"{args.contract}: other figures now: run {sys.argv[0]} without --check")
    contract["accuracy"] = {**said, **found}
    args.contract.write_text(json.dumps(contract), encoding="utf-8")
    args.contract.write_text(Predictor(args.library, args.contract).text(), encoding="utf-8")


if __name__ == "__main__":
    main()
