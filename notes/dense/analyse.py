#!/usr/bin/env python3
"""What the dense lines of n say: is the clock full, and how far do times of one k tell those of another?

    python3 notes/dense/analyse.py --library build/libgac.so --contract contracts/h200.json
"""
import argparse
import collections
import gzip
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tools" / "contract"), str(HERE.parent / "probe-h200")]
import model  # noqa: E402
import accuracy  # noqa: E402

ROWS = (128, 256, 512, 1024, 2048, 4096)
ALL_N = range(192, 4097, 8)
WIDE_N = range(4104, 16385, 8)
ALL_K = (512, 1024, 2048, 4096, 8192, 14336)
FULL_MHZ = 0.98 * 1980
OVER, CLEAR, NEAR = math.log(1.05), math.log(1.03), 64


def lines(name):
    with gzip.open(HERE / f"{name}.txt.gz", "rt") as file:
        return [line.split() for line in file]


def times(name):
    return {tuple(map(int, x[1:4])): float(x[4]) for x in lines(name)}


def choices(dtype):
    """The index of the algorithm for every m, n, k."""
    found = {}
    for line in lines(f"choice.{dtype}"):
        if line == ["configs"]:
            break
        m, k, *chosen = map(int, line)
        found.update({(m, 8 * i, k): c for i, c in enumerate(chosen, 1)})
    return found


def between(us, m, n, k, known):
    """By a line through the times at the two known k around k."""
    at = min(max([i for i, x in enumerate(known) if x <= k], default=0), len(known) - 2)
    low, high = known[at:at + 2]
    return us[m, n, low] + (us[m, n, high] - us[m, n, low]) * (k - low) / (high - low)


def wrong(pairs):
    """Of pairs of logarithms of ratios, measured and predicted: wrong ones, all, clear ones wrong, all."""
    over = [(true, said) for true, said in pairs if abs(true) > OVER]
    clear = [x for x in over if abs(x[1]) > CLEAR]
    return [sum((t < 0) != (s < 0) for t, s in x) for x in (over, clear)] + [len(over), len(clear)]


def share(counts):
    bad, bad_clear, n, n_clear = counts
    return f"{100 * (1 - bad / n) if n else 100:5.1f} % of {n:4d} right, of the clear ones " \
           f"{100 * (1 - bad_clear / n_clear) if n_clear else 100:5.1f} % of {n_clear:4d}"


def near_pairs(us, predicted, m, k, sizes=ALL_N):
    for a in sizes:
        for b in range(a + 8, min(a + NEAR, sizes[-1]) + 1, 8):
            yield math.log(us[m, a, k] / us[m, b, k]), math.log(predicted[a] / predicted[b])


def clocks():
    for name in ("f16", "held", "groups", "mix.200", "mix.100", "mix.50", "mix.0"):
        rows = lines(name)
        print(f"{name:8s} {len(rows):5d} points, below 98 % of 1980 MHz "
              f"{sum(int(x[6]) < FULL_MHZ for x in rows):3d}, rested {sum(int(x[7]) > 0 for x in rows):3d}")


def by_algorithm(us, chosen, m, n, k, known):
    """As between, of two k for which the library chooses what it chooses for this one; where there
    is but one of them, in proportion past two microseconds; where there is none, any two."""
    same = [x for x in known if chosen[m, n, x] == chosen[m, n, k]]
    if len(same) > 1:
        return between(us, m, n, k, same)
    if same:
        return 2 + (us[m, n, same[0]] - 2) * k / same[0]
    return between(us, m, n, k, known)


def one_k_by_others(us):
    print("\npairs of n at most 64 apart, of one k, by a line between the k around it;"
          "\nand by a line between k of the same algorithm")
    chosen = choices("F16")
    for k in ALL_K[1:-1]:
        known = [x for x in ALL_K if x != k]
        for m in ROWS:
            said = [{n: between(us, m, n, k, known) for n in ALL_N},
                    {n: by_algorithm(us, chosen, m, n, k, known) for n in ALL_N}]
            print(f"k {k:5d} m {m:4d}: " +
                  "; ".join(share(wrong(near_pairs(us, x, m, k))) for x in said))


def same_choice():
    print("\nshare of n for which the algorithm is that of k = 4096")
    for dtype in ("F16", "BF16", "F8_E4M3"):
        chosen = choices(dtype)
        ks = sorted({k for _, _, k in chosen})
        for m in ROWS:
            for low, high in ((192, 4096), (4104, 16384)):
                n = range(low, high + 1, 8)
                shares = (f"{k} {sum(chosen[m, x, k] == chosen[m, x, 4096] for x in n) / len(n):.2f}"
                          for k in ks)
                changes = sum(chosen[m, x, 4096] != chosen[m, x + 8, 4096] for x in n[:-1]) / len(n)
                print(f"{dtype:8s} m {m:4d} n {low:4d}-{high:5d}: {', '.join(shares)}; changes from "
                      f"n to n at {changes:.2f}")


class Dense:
    """A contract with dense tables as gac probe makes them, of what there is here: of k in
    between all but those of the shape that is asked for, so that it is in no table."""

    def __init__(self, contract, us):
        self.contract, self.us = contract, us

    def plain(self, m, n, k):
        return self.contract.us({"op": "gemm", "dtype": "F16", "m": m, "n": n, "k": k})

    def time(self, m, n, k):
        known = [x for x in ALL_K if x != k] if n <= 4096 else [4096]
        if not all((m, n, x) in self.us for x in known):
            return self.plain(m, n, k)
        whole = min(max(k // 64 * 64, known[0]), known[-1])  # plain has a factor for other k
        us = between(self.us, m, n, whole, known) if len(known) > 1 else self.us[m, n, 4096]
        return us * self.plain(m, n, k) / self.plain(m, n, whole)


def groups(rows):
    """Candidates: shapes that differ in n alone, the next at most 64 away."""
    alike = collections.defaultdict(list)
    for m, n, k in rows:
        alike[m, k].append(n)
    for (m, k), sizes in alike.items():
        sizes.sort()
        first = 0
        for i in range(1, len(sizes) + 1):
            if i == len(sizes) or sizes[i] - sizes[i - 1] > NEAR:
                if i - first > 1:
                    yield m, sizes[first:i], k
                first = i


def rank(us, contract):
    print("\ncandidates for n near a size, all aligned, at widths drawn at random (groups.txt.gz)")
    found = times("groups")
    dense = Dense(contract, us)
    for label, kept in (("k of whole lines", lambda m, n, k: k % 64 == 0),
                        ("k of others", lambda m, n, k: k % 64 != 0)):
        rows = [x for x in found if kept(*x)]
        for name, said in (("contract", dense.plain), ("with dense tables", dense.time)):
            pairs = [(math.log(found[m, a, k] / found[m, b, k]), math.log(said(m, a, k) / said(m, b, k)))
                     for m, sizes, k in groups(rows) for i, a in enumerate(sizes) for b in sizes[:i]]
            print(f"{label:17s} {name:17s}: {share(wrong(pairs))}")


class OfThree:
    """The contract, and of aligned n with 2048 rows what was measured at three k."""

    def __init__(self, contract, us):
        self.contract, self.us_at = contract, us

    def us(self, p):
        m, n, k = p["m"], p["n"], p["k"]
        if m != 2048 or n % 8 or n > 4096 or k % 8 or k < 1024:
            return self.contract.us(p)
        whole = max(k // 64 * 64, 1024)
        return between(self.us_at, m, n, whole, (1024, 4096, 8192)) * self.contract.us(p) / \
            self.contract.us({**p, "k": whole})


def rank_model(us, contract):
    print("\nshapes of a model with 2048 rows, notes/probe-h200/model.before.raw.json.gz")
    with gzip.open(HERE.parent / "probe-h200" / "model.before.raw.json.gz") as file:
        points = [p for p in json.load(file)["points"] if p["op"] == "gemm" and p["m"] == 2048]
    for name, said in (("contract", contract), ("every n at 1024, 4096, 8192", OfThree(contract, us))):
        print(f"{name}: {json.dumps(accuracy.ranking(model.groups_of(points), said))}")


def rank_wide(contract):
    print("\npairs of n above 4096 at most 64 apart (wide.txt.gz), by the contract")
    us = times("wide")
    for m, k in sorted({(m, k) for m, _, k in us}):
        said = {n: contract.us({"op": "gemm", "dtype": "F16", "m": m, "n": n, "k": k}) for n in WIDE_N}
        print(f"k {k:5d} m {m:4d}: {share(wrong(near_pairs(us, said, m, k, WIDE_N)))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgac.so")
    parser.add_argument("--contract", type=pathlib.Path, required=True)
    args = parser.parse_args()
    us = times("f16")
    clocks()
    contract = accuracy.Predictor(args.library, args.contract)
    rank(us, contract)
    rank_model(us, contract)
    rank_wide(contract)
    one_k_by_others(us)
    same_choice()


if __name__ == "__main__":
    main()
