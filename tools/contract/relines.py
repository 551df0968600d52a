#!/usr/bin/env python3
"""Derives a contract's `lines`, and its `accuracy`, again from the raw points of its probe.

    python3 tools/contract/relines.py RAW CONTRACT --library build/libgac.so

For a contract whose probe (commit 8f19a0b) indexed `lines` by m: the same samples, by m n, as
src/measure/probe_lines.c does it now, and the held-out shapes against the predictions that
follow, as src/measure/probe_accuracy.c does it. Rewrites CONTRACT, whose other parts stay.
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

LINE_BYTES, BYTES = 128, {"F16": 2, "BF16": 2, "F8_E4M3": 1}
RANK_PCT, CLEAR_PCT = 5.0, 3.0


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in
                ("batch", "n_q_heads", "n_kv_heads", "n_q", "n_kv", "qk_head", "v_head")] + [
                    ("causal", ctypes.c_bool)]


class Predictor:
    """Times by a contract file, asked of the library."""

    def __init__(self, library, path):
        self.lib = ctypes.CDLL(str(library))
        self.lib.gac_dtype_name.restype = ctypes.c_char_p
        for name, more in (("gemm", [ctypes.c_int64] * 3), ("sdpa", [ctypes.POINTER(Shape)])):
            call = getattr(self.lib, f"gac_contract_{name}_us")
            call.restype, call.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_int, *more]
        self.contract = ctypes.c_void_p()
        if self.lib.gac_contract_load(str(path).encode(), ctypes.byref(self.contract), None):
            sys.exit(f"{path}: not a contract")
        self.dtypes = {}
        while (name := self.lib.gac_dtype_name(len(self.dtypes))) and name.decode() not in self.dtypes:
            self.dtypes[name.decode()] = len(self.dtypes)

    def us(self, p):
        dtype = self.dtypes[p["dtype"]]
        if p["op"] == "gemm":
            return self.lib.gac_contract_gemm_us(self.contract, dtype, p["m"], p["n"], p["k"])
        shape = Shape(*(p[name] for name, _ in Shape._fields_))
        return self.lib.gac_contract_sdpa_us(self.contract, dtype, ctypes.byref(shape))


def number(x):
    return float(f"{x:.4g}")


def lines_of(points, dtype):
    """Points come in the probe's order: a whole k, then below and above it for every part."""
    whole = LINE_BYTES // BYTES[dtype]
    by, current = {}, None
    for p in points:
        if p["k"] % whole == 0:
            current = p
            continue
        part = abs(p["k"] - current["k"])
        logs = by.setdefault((part, p["m"] * p["n"]), {}).setdefault(
            (p["m"], p["n"], current["k"]), [])
        logs.append(math.log(p["median_us"] / current["median_us"]))
    parts = sorted({part for part, _ in by}, reverse=True)
    outputs = sorted({mn for _, mn in by})
    factor = [[number(math.exp(statistics.median(
        sum(v) / 2 for v in by[part, mn].values() if len(v) == 2))) for mn in outputs]
        for part in parts]
    return {"multiple": whole, "parts": parts, "mn": outputs, "factor": factor}


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


def noise(p):
    """The standard error of the median, as src/measure/statistics.c has it."""
    return 1.2533 / 0.6745 * p["spread_us"] / math.sqrt(len(p["samples_us"])) / p["median_us"]


def ranking(groups, predictor):
    n = over = right = clear = clear_right = 0
    for group in groups:
        for i, a in enumerate(group):
            for b in group[i + 1:]:
                n += 1
                times, said = (a["median_us"], b["median_us"]), (predictor.us(a), predictor.us(b))
                if max(times) / min(times) <= 1 + RANK_PCT / 100 + 3 * (noise(a) + noise(b)):
                    continue
                ok = (times[0] < times[1]) == (said[0] < said[1])
                far = abs(math.log(said[0] / said[1])) > math.log(1 + CLEAR_PCT / 100)
                over, right, clear = over + 1, right + ok, clear + far
                clear_right += far and ok
    return {"n_pairs": n, "n_over_5_pct": over, "right_pct": number(100 * right / over),
            "clear": {"margin_pct": CLEAR_PCT, "n_over_5_pct": clear,
                      "right_pct": number(100 * clear_right / clear)}}


def splice(text, start, key, value):
    """Puts value in the place of the first value of key after start; the end of it."""
    at = text.index(f'"{key}":', start) + len(key) + 3
    at += len(text[at:]) - len(text[at:].lstrip())
    _, end = json.JSONDecoder().raw_decode(text, at)
    written = json.dumps(value, ensure_ascii=False)
    return text[:at] + written + text[end:], at + len(written)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=pathlib.Path)
    parser.add_argument("contract", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    args = parser.parse_args()
    with (gzip.open if args.raw.suffix == ".gz" else open)(args.raw, "rt", encoding="utf-8") as f:
        points = [p for p in json.load(f)["points"] if "median_us" in p]
    text = args.contract.read_text(encoding="utf-8")
    contract, at = json.loads(text), 0
    for dtype in contract["dtypes"]:  # as they follow each other in the file
        lines = lines_of([p for p in points if p["phase"] == "GEMM lines" and p["dtype"] == dtype],
                         dtype)
        text, at = splice(text, at, "lines", lines)
    args.contract.write_text(text, encoding="utf-8")
    predictor = Predictor(args.library, args.contract)
    accuracy = {"gemm": {}, "sdpa": {}, "ranking": {}}
    for dtype in contract["dtypes"]:
        held_out = [p for p in points if p["phase"] == "held-out shapes" and p["dtype"] == dtype]
        gemm = [p for p in held_out if p["op"] == "gemm"]
        sdpa = [p for p in held_out if p["op"] == "sdpa"]
        rules = contract["gemm"][dtype]
        accuracy["gemm"][dtype] = labelled(
            [(predictor.us(p), p) for p in gemm[:heldout.N_GEMM]],
            {"by_tier": lambda p: f"{tier(rules['n'], p['n'])}/{tier(rules['k'], p['k'])}",
             "by_rows": lambda p: rows_label(p["m"])})
        if sdpa:
            heads = contract["sdpa"][dtype]["tiers"]
            accuracy["sdpa"][dtype] = labelled(
                [(predictor.us(p), p) for p in sdpa],
                {"by_tier": lambda p: str(tier(heads, p["qk_head"])),
                 "by_phase": lambda p: "decode" if p["n_q"] == 1 else "prefill"})
        accuracy["ranking"][dtype] = ranking(heldout.group(gemm[heldout.N_GEMM:]), predictor)
    source = ("lines by m n, and accuracy with them: from the raw points of the same run by "
              "tools/contract/relines.py")
    text, _ = splice(text, 0, "sources",
                     [x for x in contract["sources"] if x != source] + [source])
    text, _ = splice(text, 0, "accuracy", accuracy)
    args.contract.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
