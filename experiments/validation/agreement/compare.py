#!/usr/bin/env python3
"""Do our times agree with PyTorch's where both take the same library path?

    python3 experiments/validation/agreement/compare.py --library build/libgac.so -o RESULT.json

Both stacks live in this one process, so that they use the same card, clock,
cuBLAS and cuDNN: PyTorch through tools/pytorch_stack.py, ours through libgac.so.
Every call gets as many operand sets and as many calls per sample on both sides,
and samples are taken in turns (A B, B A, ...), so that heat and the power limit
meet both alike. How operands lie in memory makes some percent by itself
(layout.py), so PyTorch's lie as ours do, every call gets several places on both
sides, one after another, and what is compared is the median over them of the ratio
of the medians of samples. Operands either come from memory (three times the L2
cache) or, where the plug-in does not take as many sets, from the cache, but not
from both by chance. Afterwards PyTorch's profiler records the kernels of one call
of each stack. A pair is of the same path when these are the same names in the same
order; all pairs are in the result, and agreement is counted over those.
"""
import argparse
import json
import math
import os
import pathlib
import re
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
from native_stack import Gac, Refused, loaded_library  # noqa: E402
from pytorch_stack import Declined, Stack, torch  # noqa: E402

LIMIT_PCT = 5.0
N_PLACES = 5
N_ROUNDS = 5      # in each
SAMPLE_US = 600
MAX_CALLS = 2000  # per sample
MAX_SETS = 64     # what the plug-in takes at most
ALIGNMENT = 512   # of an operand there
PROFILE_CHUNK = 32


# Calls

def gemm_jobs():
    """(m, n, k) of prefill and decode, sizes as compressors leave them and repaired."""
    pairs = [(4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096), (6144, 4096),
             (11008, 4096), (107, 4096), (112, 4096), (749, 4096), (752, 4096), (1741, 4096),
             (1744, 4096), (3413, 4096), (3416, 4096), (4096, 107), (4096, 112), (4096, 749),
             (4096, 752), (4096, 1741), (4096, 1744), (4096, 3414), (4096, 3416)]
    jobs = [{"op": "gemm", "dtype": "F16", "m": m, "n": n, "k": k, "row_major": False}
            for m in (1, 16, 256, 1024, 4096, 16384) for n, k in pairs]
    jobs += [{**job, "row_major": True} for job in jobs if job["m"] in (16, 4096)][::3]
    jobs += [{**job, "dtype": "BF16"} for job in jobs if job["m"] in (1, 1024)][::4]
    # What torch takes of these: _scaled_mm sizes of 16, _int_mm more than 16 rows and sizes of 8.
    others = [(4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096), (11008, 4096), (752, 4096),
              (1744, 4096), (3424, 4096), (4096, 112), (4096, 752), (4096, 1744), (4096, 3424)]
    jobs += [{"op": "gemm", "dtype": dtype, "m": m, "n": n, "k": k, "row_major": False}
             for dtype, rows in (("F8_E4M3", (16, 256, 1024, 4096)), ("F32", (1, 256, 4096)),
                                 ("I8", (256, 4096)))
             for m in rows for n, k in others]
    return jobs


def sdpa_jobs():
    """Prefill and decode; heads of 107 are what no fused kernel of the vendor takes."""
    jobs = []

    def add(batch, q_heads, kv_heads, n_q, n_kv, head, causal=False, dtype="F16"):
        jobs.append({"op": "sdpa", "dtype": dtype, "path": "cudnn", "batch": batch,
                     "q_heads": q_heads, "kv_heads": kv_heads, "n_q": n_q, "n_kv": n_kv,
                     "qk_head": head, "v_head": head, "causal": causal, "scale": 0})
    for head in (64, 96, 107, 112, 120, 128):
        for batch, n in ((4, 2048), (1, 4096), (2, 1024), (8, 512)):
            for causal in (False, True):
                add(batch, 32, 32, n, n, head, causal)
        add(1, 32, 8, 2048, 2048, head, True)
        add(2, 32, 32, 2048, 2048, head, False, "BF16")
        for batch, n in ((1, 4096), (16, 1024), (16, 4096), (32, 2048)):
            add(batch, 32, 8, 1, n, head)
            add(batch, 32, 32, 1, n, head)
    return jobs


def describe(job):
    if job["op"] == "gemm":
        return (f"gemm {job['dtype']} {'row' if job['row_major'] else 'linear'} "
                f"m={job['m']} n={job['n']} k={job['k']}")
    return (f"sdpa {job['dtype']} b={job['batch']} h={job['q_heads']}/{job['kv_heads']} "
            f"q={job['n_q']} kv={job['n_kv']} d={job['qk_head']}"
            f"{' causal' if job['causal'] else ''}")


class ManyTypes(Stack):
    """GEMMs in more dtypes, as torch has them: products of 8 bits by functions of their own."""
    TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
             "F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8}
    BYTES = {"F16": (2, 2), "BF16": (2, 2), "F32": (4, 4), "F8_E4M3": (1, 2), "I8": (1, 4)}  # in, out

    def use(self, dtype):
        self.wanted = self.TYPES[dtype]
        self.dtype = self.wanted if dtype in ("F16", "BF16", "F32") else torch.bfloat16

    def operands(self, job):
        found = super().operands(job)
        if job["dtype"] == "I8":
            return tuple(x.mul(64).to(torch.int8) for x in found)
        return tuple(x.to(self.wanted) for x in found)

    def set_bytes(self, job):
        if job["op"] != "gemm":
            return super().set_bytes(job)
        m, n, k = job["m"], job["n"], job["k"]
        size, out = self.BYTES[job["dtype"]]
        return size * k * (m + n) + out * m * n

    def call(self, job):
        if job["dtype"] == "I8":
            return lambda x, w: torch._int_mm(x, w.t())
        if job["dtype"] == "F8_E4M3":
            one = torch.ones((), device="cuda")
            return lambda x, w: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16)
        return super().call(job)


# Timing

class Pair:
    """One call, ready on both sides."""

    def __init__(self, gac, stack, job):
        self.gac, self.stack, self.job = gac, stack, job
        self.n_sets = max(2, 3 * stack.l2_bytes // stack.set_bytes(job) + 1)
        if self.n_sets > MAX_SETS:
            # Both sides' within half of a cache of two halves (layout.py shows why).
            self.n_sets = max(2, stack.l2_bytes // 8 // stack.set_bytes(job))
        self.tasks, self.places = [], []  # ours, and PyTorch's sets, of every place so far
        stack.use(job["dtype"])
        self.function = stack.call(job)

    def backend(self):
        return self.stack.backend(self.job)

    def move(self):
        """To other memory: what it had is kept, or an allocator would give it again."""
        self.tasks.append(self.gac.create(self.job, self.n_sets))
        self.places.append(self.sets_like_ours())

    def sets_like_ours(self):
        """Operand sets side by side in one piece of memory, as cuda_task.c lays
        them out: each operand, and room for a result, on its own boundary."""
        operands = self.stack.operands(self.job)
        result = self.stack.set_bytes(self.job) - sum(x.nbytes for x in operands)
        room = [-(-n // ALIGNMENT) * ALIGNMENT for n in (*(x.nbytes for x in operands), result)]
        memory = torch.empty(self.n_sets * sum(room), device="cuda", dtype=torch.uint8)
        sets = []
        for start in range(0, self.n_sets * sum(room), sum(room)):
            one = []
            for operand, size in zip(self.stack.operands(self.job), room):
                one.append(memory[start:start + operand.nbytes].view(operand.dtype)
                           .view(operand.shape).copy_(operand))
                start += size
            sets.append(tuple(one))
        return sets

    def choose_calls(self):
        """Calls of a sample."""
        call_us = min(self.gac.time(self.tasks[-1], self.n_sets) for _ in range(3))
        n_calls = min(MAX_CALLS, math.ceil(SAMPLE_US / call_us))
        return math.ceil(n_calls / self.n_sets) * self.n_sets

    def measure_place(self, n_calls, seen):
        """Samples of both where they are now."""
        gac, stack = self.gac, self.stack
        with self.backend():
            graph = stack.capture(stack.repeat(self.function, self.places[-1], n_calls))
        if graph is None:
            raise RuntimeError("PyTorch's call cannot be captured")
        sides = {"native": lambda: gac.time(self.tasks[-1], n_calls),
                 "pytorch": lambda: stack.clock_behind_hold(graph.replay, n_calls) / n_calls}
        samples = {"native": [], "pytorch": []}
        for i in range(-1, N_ROUNDS):  # one round to warm up
            for name in ("native", "pytorch") if i % 2 else ("pytorch", "native"):
                took = sides[name]()
                if i >= 0:
                    samples[name].append(round(took, 4))
        seen.append(gac.look())
        return samples

    def measure(self):
        """Samples of both in all places, and the clocks seen."""
        seen, places, n_calls = [], [], 0
        for _ in range(N_PLACES):
            self.move()
            if n_calls == 0:
                with self.backend():
                    self.stack.try_call(self.job, self.function, self.places[0][0])
                n_calls = self.choose_calls()
            places.append(self.measure_place(n_calls, seen))
        clocks = [now.clock_mhz for now in seen]
        throttle = 0
        for now in seen:
            throttle |= now.throttle
        return {"n_calls": n_calls, "n_sets": self.n_sets, "places": places,
                "clock_mhz": [min(clocks), max(clocks)], "throttle": throttle}

    def release(self):
        for task in self.tasks:
            self.gac.free(task)
        self.tasks, self.places = [], []

    def hold_one(self):
        """One set on either side, to name kernels by."""
        self.tasks = [self.gac.create(self.job, 1)]
        self.stack.use(self.job["dtype"])
        self.places = [[self.stack.operands(self.job)]]

    def call_native(self):
        self.gac.run(self.tasks[0])

    def call_torch(self):
        with self.backend():
            return self.function(*self.places[0][0])


def name_kernels(pairs):
    """For each pair the names of one native and one PyTorch call, in order."""
    from torch.profiler import ProfilerActivity, profile
    for pair in pairs:
        pair.hold_one()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for pair in pairs:
            for call in (pair.call_native, pair.call_torch):
                torch.cuda.synchronize()
                torch.cuda._sleep(1)
                torch.cuda.synchronize()
                kept = call()
                torch.cuda.synchronize()
                del kept
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
    for pair in pairs:
        pair.release()
    events = [e for e in recorded.events() if "CUDA" in str(e.device_type)
              and not e.name.startswith(("cuda", "Memset", "Memcpy"))]
    events.sort(key=lambda e: e.time_range.start)
    between = []
    for event in events:
        if "spin_kernel" in event.name:
            between.append([])
        elif between:
            between[-1].append(event.name)
    if len(between) != 2 * len(pairs) + 1:
        return [None] * len(pairs)
    return list(zip(between[0::2], between[1::2]))


def compare(gac, stack, jobs, seconds):
    """A row for each job that was begun within so many seconds."""
    rows, pairs, start = [], [], time.monotonic()
    for job in jobs:
        if time.monotonic() - start > seconds:
            break
        row = {"call": describe(job)}
        rows.append(row)
        pair = None
        try:
            pair = Pair(gac, stack, job)
            row.update(pair.measure())
            pairs.append((row, pair))
        except (Refused, Declined) as e:
            row["declined"] = " ".join(str(e).split())[:200]
        except RuntimeError as e:
            row["failed"] = " ".join(str(e).split())[:200]
        row["took_s"] = round(time.monotonic() - start, 2)
        if pair:
            pair.release()
        if torch.cuda.memory_reserved() > (24 << 30):
            torch.cuda.empty_cache()
    for at in range(0, len(pairs), PROFILE_CHUNK):
        chunk = pairs[at:at + PROFILE_CHUNK]
        for (row, _), names in zip(chunk, name_kernels([pair for _, pair in chunk])):
            if names:
                row["kernels"] = {"native": names[0], "pytorch": names[1]}
    return rows


# The result

def finish(row):
    if "places" not in row:
        return
    medians = [{side: statistics.median(place[side]) for side in place} for place in row["places"]]
    for side in ("native", "pytorch"):
        row[f"{side}_us"] = statistics.median(x[side] for x in medians)
    row["ratio"] = statistics.median(x["native"] / x["pytorch"] for x in medians)
    names = row.get("kernels")
    row["same_path"] = bool(names and names["native"] and names["native"] == names["pytorch"])


def summarise(rows):
    ratios = sorted(r["ratio"] for r in rows)
    inside = sum(abs(x - 1) * 100 <= LIMIT_PCT for x in ratios)
    return {"n_calls": len(ratios), "median_ratio": statistics.median(ratios),
            "least_ratio": ratios[0], "largest_ratio": ratios[-1], "n_within": inside,
            "within_limit_pct": 100 * inside / len(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libgac.so")
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="begin no further call after so many; calls come in random order")
    parser.add_argument("-o", "--out", type=pathlib.Path)
    args = parser.parse_args()
    stack = ManyTypes({"device": "cuda:0", "dtype": "F16", "rules": {}})
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.ones(1, device="cuda") @ torch.ones(1, device="cuda")
    cudnn = loaded_library(r"libcudnn\.so")
    if cudnn:
        os.environ.setdefault("GAC_CUDNN", cudnn)
    gac = Gac(args.library)
    result = {"schema": "gac.agreement/3", "limit_pct": LIMIT_PCT, "n_places": N_PLACES,
              "n_rounds": N_ROUNDS,
              "sample_us": SAMPLE_US, "machine": {**stack.machine(), "gac": gac.info,
                                                  "cublas": loaded_library(r"libcublasLt\.so")}}
    jobs = gemm_jobs() + sdpa_jobs()
    random.Random(1).shuffle(jobs)
    with torch.inference_mode():
        rows = compare(gac, stack, jobs, args.seconds)
    result["n_calls_wanted"] = len(jobs)
    for row in rows:
        finish(row)
    result["kinds"] = {}
    for kind in ("gemm", "sdpa"):
        timed = [r for r in rows if r["call"].startswith(kind) and "ratio" in r]
        same = [r for r in timed if r["same_path"]]
        part = {f"n_{end}": sum(r["call"].startswith(kind) and end in r for r in rows)
                for end in ("declined", "failed")}
        for name, group in (("same_path", same),
                            ("other_path", [r for r in timed if not r["same_path"]])):
            if group:
                part[name] = summarise(group)
                print(f"{kind} {name}: {part[name]['n_calls']} calls, median ratio "
                      f"{part[name]['median_ratio']:.4f}, {part[name]['least_ratio']:.3f} to "
                      f"{part[name]['largest_ratio']:.3f}, {part[name]['n_within']} within "
                      f"{LIMIT_PCT:g} %")
        result["kinds"][kind] = part
    result["calls"] = rows
    for row in rows:
        if "ratio" in row and (abs(row["ratio"] - 1) > LIMIT_PCT / 100 or not row["same_path"]):
            places = " ".join(f"{statistics.median(p['native']):.2f}/"
                              f"{statistics.median(p['pytorch']):.2f}" for p in row["places"])
            print(f"{row['ratio']:.3f} {row['native_us']:9.2f} {row['pytorch_us']:9.2f} "
                  f"{'same ' if row['same_path'] else 'other'} {row['call']} {row['clock_mhz']} "
                  f"places {places}")
    if args.out:
        text = json.dumps(result, indent=1)
        text = re.sub(r"\[\s+([-\d.,\s]+?)\s+\]",
                      lambda x: "[" + " ".join(x.group(1).split()) + "]", text)
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
