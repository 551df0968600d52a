#!/usr/bin/env python3
"""Times gac_solve to proven optimum, and against GLPK and CBC.

    bench_solver.py --bench BUILD/bench_solver [--out FILE]

Three parts in one run: 10,000 classes of 32 choices of every kind; how the time
grows with the classes; and smaller instances, the 224 matrices of Llama-3-8B
among them, that glpsol and cbc (Debian: glpk-utils, coinor-cbc) solve too, as
whole processes, one core each, under a time limit. A peer's picks are read back and
added up exactly: they must keep the budget, and have the value of ours: equal where
values are integers, else within the peer's own tolerance.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from bench_inspect import machine

BENCH = os.path.dirname(os.path.abspath(__file__))
KINDS = ["random", "real", "weak", "weak_real", "strong", "strong_sums", "subset_sum", "even_sums",
         "equal", "equal_weak", "equal_real", "equal_strong", "equal_sums", "few_kinds"]
TOLERANCE = 1e-4  # of a peer, where values are scaled so that the largest is near 1e6
TERM = re.compile(r"([+-]?) ?([-+0-9.e]+) x(\d+)_(\d+)")


def solve(args, kind, n_classes, n_choices, value_range, seed, pct, runs, *more):
    command = [args.bench, kind, *map(str, (n_classes, n_choices, value_range, seed, pct)),
               "--runs", str(runs), "--time-limit", str(args.limit), *more]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"kind": kind, "n_classes": n_classes, "n_choices": n_choices, "range": value_range,
            "seed": seed, "budget_pct": pct, **result}


def big_instances(args):
    results = []
    for kind in KINDS:
        for value_range in (10**3, 10**6):
            for pct in (3, 30):
                for seed in range(1, args.seeds + 1):
                    results.append(solve(args, kind, 10000, 32, value_range, seed, pct, 3))
    return results


def growing_instances(args):
    return [solve(args, kind, n, 32, 10**6, 1, 30, 3)
            for kind in ("weak_real", "strong", "subset_sum", "equal_real")
            for n in (100, 1000, 10000, 100000)]


def read_lp(path):
    """Values and costs by (class, choice), and the budget."""
    with open(path) as file:
        text = file.read()
    objective, rest = text.split("Subject To", 1)
    budget_row, rest = rest.split("<=", 1)

    def terms(part, number):
        return {(int(m[3]), int(m[4])): number(m[2]) for m in TERM.finditer(part)}
    return terms(objective, float), terms(budget_row, int), int(rest.split(None, 1)[0])


def run_peer(peer, lp, scratch, limit):
    """Runs a peer; returns (wall seconds, picks or None when it did not finish)."""
    out = os.path.join(scratch, "peer.out")
    if os.path.exists(out):
        os.unlink(out)
    if peer == "glpk":
        command = ["glpsol", "--lp", lp, "--mipgap", "0", "--tmlim", str(limit), "-o", out]
    else:
        command = ["cbc", lp, "ratioGap", "0", "allowableGap", "0", "threads", "0", "sec",
                   str(limit), "solve", "solution", out]
    start = time.perf_counter()
    try:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
                       timeout=limit + 30)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return time.perf_counter() - start, None
    seconds = time.perf_counter() - start
    with open(out) as file:
        text = file.read()
    if peer == "glpk":
        finished = "INTEGER OPTIMAL" in text
        found = re.findall(r"x(\d+)_(\d+)\s+\*\s+1\s", text)
    else:
        finished = text.startswith("Optimal")
        found = [(i, j) for i, j, x in re.findall(r"x(\d+)_(\d+)\s+(\S+)", text) if float(x) > 0.5]
    return seconds, [(int(i), int(j)) for i, j in found] if finished else None


def judge(picks, lp, n_classes):
    """The peer's objective, ours being 0; None where its picks break a rule."""
    values, costs, budget = lp
    if sorted(i for i, _ in picks) != list(range(n_classes)):
        return None
    if sum(costs[p] for p in picks) > budget:
        return None
    return math.fsum(values[p] for p in picks)


def compare(args, case, scratch, limit):
    path = os.path.join(scratch, "case.lp")
    result = solve(args, *case, 9, "--lp", path)
    lp = read_lp(path)
    integer = all(value == int(value) for value in lp[0].values())
    result["peers"] = {}
    for peer in args.peers:
        seconds, picks = run_peer(peer, path, scratch, limit)
        entry = {"time_s": seconds, "finished": picks is not None}
        if picks is not None:
            difference = judge(picks, lp, case[1])
            entry["value_above_ours"] = difference
            entry["equal"] = difference is not None and \
                abs(difference) <= (0 if integer else TOLERANCE)
            entry["ratio"] = seconds / statistics.median(result["time_s"])
            # Less than ours would refute our proof; more is the peer's tolerance.
            result["refuted"] = result.get("refuted", False) or (
                difference is not None and difference < (0 if integer else -TOLERANCE))
        result["peers"][peer] = entry
    return result


def peer_cases(args):
    cases = [("llama", 224, 32, 1, seed, 0) for seed in range(1, args.seeds + 1)]
    for kind in KINDS:
        for n_classes, n_choices, value_range in ((10, 6, 100), (40, 8, 1000)):
            cases += [(kind, n_classes, n_choices, value_range, seed, 30)
                      for seed in range(1, args.seeds + 1)]
    return cases


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError:
        return None
    lines = [line for line in done.stdout.splitlines() if "ersion" in line or "GLPK" in line]
    return (lines or done.stdout.splitlines() or ["unknown"])[0].strip()


def print_big(results):
    print("10,000 classes x 32 choices to proven optimum, one core; 3 runs of each instance")
    print(f"{'kind':14} {'range':>8} {'instances':>9} {'proved':>6} {'median ms':>9} {'worst ms':>9} "
          f"{'peak MiB':>8}")
    for kind in KINDS:
        for value_range in (10**3, 10**6):
            some = [r for r in results if (r["kind"], r["range"]) == (kind, value_range)]
            medians = [1e3 * statistics.median(r["time_s"]) for r in some]
            print(f"{kind:14} {value_range:8.0e} {len(some):9} {sum(r['optimal'] for r in some):6} "
                  f"{statistics.median(medians):9.1f} "
                  f"{1e3 * max(max(r['time_s']) for r in some):9.1f} "
                  f"{max(r['peak_kib'] for r in some) / 1024:8.0f}")


def print_growth(results):
    print("\nmedian ms by number of classes (x 32 choices, range 1e6)")
    for r in results:
        print(f"{r['kind']:14} {r['n_classes']:8} {1e3 * statistics.median(r['time_s']):9.2f}"
              f"{'' if r['optimal'] else '  unproved'}")


def print_peers(results, peers):
    print("\nagainst integer-programming solvers, whole process; ours median of 9 calls")
    print(f"{'kind':14} {'classes':>7} {'ours ms':>8}" + "".join(
        f" {p + ' finished':>14} {'same value':>10} {'median ms':>10} {'least ratio':>11}"
        for p in peers))
    keys = list(dict.fromkeys((r["kind"], r["n_classes"]) for r in results))
    for key in keys:
        some = [r for r in results if (r["kind"], r["n_classes"]) == key]
        ours = statistics.median(1e3 * statistics.median(r["time_s"]) for r in some)
        line = f"{key[0]:14} {key[1]:7} {ours:8.3f}"
        for peer in peers:
            done = [r["peers"][peer] for r in some if r["peers"][peer]["finished"]]
            line += f" {len(done):>9} of {len(some)}"
            if done:
                line += (f" {sum(d['equal'] for d in done):>10}"
                         f" {1e3 * statistics.median(d['time_s'] for d in done):10.1f}"
                         f" {min(d['ratio'] for d in done):10.0f}x")
            else:
                line += f" {'-':>10} {'-':>10} {'-':>11}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description="Times gac_solve, alone and against GLPK and CBC.")
    parser.add_argument("--bench", required=True, help="the bench_solver program")
    parser.add_argument("--out", metavar="FILE", help="write the result as JSON")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60, help="seconds for ours (default 60)")
    parser.add_argument("--peer-limit", type=int, default=10, help="seconds for a peer, 12 times "
                        "that for llama (default 10)")
    args = parser.parse_args()
    versions = {"glpk": first_line("glpsol", "--version"), "cbc": first_line("cbc", "-quit")}
    args.peers = [peer for peer in ("glpk", "cbc") if versions[peer] is not None]
    if not args.peers:
        sys.exit("neither glpsol nor cbc is installed (Debian: glpk-utils, coinor-cbc)")
    big = big_instances(args)
    print_big(big)
    growth = growing_instances(args)
    print_growth(growth)
    with tempfile.TemporaryDirectory() as scratch:
        peers = [compare(args, case, scratch, args.peer_limit * (12 if case[0] == "llama" else 1))
                 for case in peer_cases(args)]
    print_peers(peers, args.peers)
    versions["commit"] = first_line("git", "-C", BENCH, "describe", "--always", "--dirty")
    result = {"schema": "gac.bench_solver/1",
              "command": " ".join(["bench/bench_solver.py", *sys.argv[1:]]),
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "machine": machine(), "versions": versions,
              "big": big, "growth": growth, "peers": peers}
    if args.out:
        os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    refuted = [r for r in peers if r.get("refuted")]
    unproved = [r for r in big + growth + peers if not r["optimal"]]
    above = [r for r in peers for p in r["peers"].values() if p["finished"] and not p["equal"]]
    print(f"\n{len(unproved)} unproved, {len(refuted)} refuted by a peer, "
          f"{len(above)} where a peer stopped above our value or broke the budget")
    return 1 if refuted or unproved else 0


if __name__ == "__main__":
    sys.exit(main())
