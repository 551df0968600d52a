#!/usr/bin/env python3
"""Prefill, decode and perplexity on the CPU against PyTorch: one model, one machine, in turns.

    python3 bench/bench_engine.py --gac build/gac --model DIR --torch-python PYTHON \
        --text FILE [--cores NAME,...] --out bench/results/engine_cpu.json

PYTHON has torch and transformers. Both use all cores and compute in F32. Each round runs
one program after the other, in the next round in the opposite order.

- prefill, decode: wall clock of single passes. The ratio is of the best time of each, since
  another program on the machine can only make one slower.
- perplexity: CPU seconds per 1000 tokens, which other programs change little. Ours are those
  of a long text less those of a short one, so that loading the model does not count.

--cores also runs ours with OPENBLAS_CORETYPE set to each NAME. Prescott is what an OpenBLAS
that does not know the processor falls back to.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

LENGTHS = (512, 2048)
CONTEXT = 512
LONG_CHARS, SHORT_CHARS = 32000, 8000
PEER = """
import json, math, sys, time, torch, transformers
folder, threads, text = sys.argv[1], int(sys.argv[2]), open(sys.argv[3]).read()
lengths, context = json.loads(sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
tokens = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
result = {"torch": torch.__version__, "transformers": transformers.__version__}
def clock(call):
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
with torch.no_grad():
    for length in lengths:
        ids = torch.randint(0, model.config.vocab_size, (1, length))
        result[f"prefill {length}"] = [clock(
            lambda: model(ids, logits_to_keep=1, use_cache=True)) for _ in range(4)][1:]
        losses, n, start = 0.0, 0, time.process_time()
        for first in range(0, tokens.shape[1] - 1, length):
            window = tokens[:, first:first + length]
            if window.shape[1] < 2:
                break
            logits = model(window, use_cache=False).logits[0, :-1]
            losses += float(torch.nn.functional.cross_entropy(
                logits, window[0, 1:], reduction="sum"))
            n += window.shape[1] - 1
        result[f"cpu_s {length}"] = 1e3 * (time.process_time() - start) / n
        result[f"perplexity {length}"] = math.exp(losses / n)
    ids = torch.randint(0, model.config.vocab_size, (1, context - 1))
    past = model(ids, use_cache=True).past_key_values
    one, times = ids[:, :1], []
    for _ in range(36):
        times.append(clock(lambda: model(one, past_key_values=past, use_cache=True)))
    result["decode"] = times[4:]
print(json.dumps(result))
"""


def evaluate(args, core, *what):
    """The result of gac eval, and the CPU seconds it took."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    if core:
        env["OPENBLAS_CORETYPE"] = core
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([args.gac, "eval", args.model, *what, "--threads", str(args.threads),
                           "--json", "-q"], check=True, stdout=subprocess.PIPE, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(done.stdout), (after.ru_utime + after.ru_stime
                                     - before.ru_utime - before.ru_stime)


def ours(args, texts, core):
    result = {}
    for length in LENGTHS:
        timed, _ = evaluate(args, core, "--prefill", f"1x{length}")
        result[f"prefill {length}"] = timed["prefill"][0]["samples_ms"]
        (short, short_s), (long, long_s) = (
            evaluate(args, core, "--perplexity", text, "--window", str(length)) for text in texts)
        n_tokens = long["perplexity"]["n_tokens"] - short["perplexity"]["n_tokens"]
        result[f"cpu_s {length}"] = 1e3 * (long_s - short_s) / n_tokens
        result[f"perplexity {length}"] = long["perplexity"]["value"]
    timed, _ = evaluate(args, core, "--decode", f"1@{CONTEXT}")
    result["decode"] = timed["decode"][0]["samples_ms"]
    return result


def theirs(args, texts):
    done = subprocess.run([args.torch_python, "-c", PEER, args.model, str(args.threads), texts[1],
                           json.dumps(LENGTHS), str(CONTEXT)], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)


def gather(rounds, key):
    """What all rounds of one program have under a key."""
    found = [r[key] for r in rounds]
    return [x for r in found for x in r] if isinstance(found[0], list) else found


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [x.split(":", 1)[1].strip() for x in file if x.startswith("model name")]
    return {"kernel": os.uname().release, "cpu": lines[0] if lines else "", "n_cpus": len(lines)}


def summary(runs):
    """For each program and measure: best, median, worst, and PyTorch's best over its best."""
    rows = []
    for key in [k for k in runs["pytorch"][0] if k not in ("torch", "transformers")]:
        peer = gather(runs["pytorch"], key)
        for name, rounds in runs.items():
            samples = gather(rounds, key)
            row = {"measure": key, "program": name, "best": min(samples),
                   "median": statistics.median(samples), "worst": max(samples)}
            if not key.startswith("perplexity"):
                row["speed_by_pytorch"] = {
                    "of_best": min(peer) / min(samples),
                    "of_medians": statistics.median(peer) / statistics.median(samples)}
            rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", default="build/gac")
    parser.add_argument("--model", required=True)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--text", default="models/tiny/heldout.txt")
    parser.add_argument("--cores", default="")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    runs = {"gac": []}
    runs.update({f"gac, {core}": [] for core in args.cores.split(",") if core})
    runs["pytorch"] = []
    loads = []
    with tempfile.TemporaryDirectory() as folder:
        texts = [os.path.join(folder, name) for name in ("short", "long")]
        text = pathlib.Path(args.text).read_text(encoding="utf-8")
        for path, n in zip(texts, (SHORT_CHARS, LONG_CHARS)):
            pathlib.Path(path).write_text(text[:n], encoding="utf-8")
        for i in range(args.rounds):
            for name in list(runs)[::-1 if i % 2 else 1]:
                core = name.partition(", ")[2]
                runs[name].append(theirs(args, texts) if name == "pytorch"
                                  else ours(args, texts, core))
                loads.append(os.getloadavg()[0])
    rows = summary(runs)
    for row in rows:
        ratio = row.get("speed_by_pytorch")
        print(f"{row['measure']:16} {row['program']:14} best {row['best']:9.3f} median "
              f"{row['median']:9.3f} worst {row['worst']:9.3f}"
              + (f"   {ratio['of_best']:.2f} x PyTorch (medians {ratio['of_medians']:.2f})"
                 if ratio else ""))
    result = {"schema": "gac.bench-engine/2", "command": sys.argv,
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine(),
              "threads": args.threads, "load_after_each_run": loads, "summary": rows, "runs": runs}
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
