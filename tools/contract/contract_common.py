"""What the derive_*.py scripts share: the time model of src/contract/contract_time.c, its errors,
and writing a contract file people can read."""
import json
import math
import statistics
import sys

ELEMENT_BYTES = 2  # F16 and BF16
DECODE_ROWS = 256  # fewer rows than this is decode

STANDS_FOR = {
    "BF16": {"dtype": "F16", "reason": "same width, same kernels' alignment rules; not measured"},
    "F32": {"dtype": "F16", "reason": "F32 checkpoints are loaded as 16 bit for inference"},
    "F64": {"dtype": "F16", "reason": "F64 checkpoints are loaded as 16 bit for inference"},
}


def tier_us(tier, m, n, k):
    """One tier's time of y = x W^T. Must say what tier_us() says in C."""
    gemv = tier.get("gemv")
    if m == 1 and gemv:
        return gemv["overhead_us"] + n * k * ELEMENT_BYTES / gemv["bytes_per_s"] * 1e6
    compute = 2.0 * m * n * k / tier["flops_per_s"] * 1e6
    weights = float(n * k) * ELEMENT_BYTES / tier["bytes_per_s"] * 1e6
    edges = float(m * (n + k)) * ELEMENT_BYTES / tier["edge_bytes_per_s"] * 1e6
    hidden = tier["overlap"] * min(compute, weights)
    return tier["overhead_us"] + compute + weights - hidden + edges


def pick(tiers, size):
    return next(tier for tier in tiers if size % tier["multiple"] == 0)


def gemm_us(gemm, m, n, k):
    return max(tier_us(pick(gemm["n"], n), m, n, k), tier_us(pick(gemm["k"], k), m, n, k))


def round_sig(value, digits=4):
    return float(f"{value:.{digits}g}")


def errors(pairs):
    """Median and 95th percentile of |predicted / measured - 1|, in per cent."""
    rel = sorted(abs(p / t - 1.0) * 100 for p, t in pairs)
    if not rel:
        return {"n_points": 0}
    p95 = rel[min(len(rel) - 1, math.ceil(0.95 * len(rel)) - 1)]
    return {"n_points": len(rel), "median_pct": round(statistics.median(rel), 2),
            "p95_pct": round(p95, 2), "max_pct": round(rel[-1], 2)}


def dump(value, depth=0):
    """JSON with one line per tier-sized object, so that a diff reads well."""
    line = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, (dict, list)) and (len(line) > 100 or "{" in line[1:])
    if not nested:
        return line
    if isinstance(value, list) and "{" not in line:  # curves: many short pairs to a line
        items = [json.dumps(v, ensure_ascii=False) for v in value]
        separator = ", " if isinstance(value[0], list) else None
        if separator:
            rows = [separator.join(items[i:i + 6]) for i in range(0, len(items), 6)]
        else:
            rows = items
    elif isinstance(value, list):
        rows = [dump(v, depth + 1) for v in value]
    else:
        rows = [f"{json.dumps(k)}: {dump(v, depth + 1)}" for k, v in value.items()]
    left, right = "{}" if isinstance(value, dict) else "[]"
    inner = ",\n".join("  " * (depth + 1) + row for row in rows)
    return f"{left}\n{inner}\n{'  ' * depth}{right}"


def write(contract, arguments):
    """To the file named in arguments, or to standard output."""
    text = dump(contract) + "\n"
    if not arguments:
        sys.stdout.write(text)
        return
    with open(arguments[0], "w", encoding="utf-8") as stream:
        stream.write(text)
