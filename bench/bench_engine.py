#!/usr/bin/env python3
"""Prefill on the CPU against PyTorch: the same model, the same machine, in turns.

    python3 bench/bench_engine.py --gac build/gac --model DIR --torch-python PYTHON \
        --out bench/results/engine_cpu.json

PYTHON has torch and transformers. Both use all cores and compute in F32. Each round runs
one program, then the other; the ratio is of the best time of each, since another program
on the machine can only make one slower.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

LENGTHS = (512, 2048)
PEER = """
import json, sys, time, torch, transformers
torch.set_num_threads(int(sys.argv[3]))
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
ids = torch.randint(0, model.config.vocab_size, (1, int(sys.argv[2])))
times = []
with torch.no_grad():
    for _ in range(4):
        start = time.perf_counter()
        model(ids, logits_to_keep=1, use_cache=True)
        times.append(1e3 * (time.perf_counter() - start))
print(json.dumps({"ms": times[1:], "torch": torch.__version__,
                  "transformers": transformers.__version__}))
"""


def ours(args, length):
    result = subprocess.run([args.gac, "eval", args.model, "--prefill", f"1x{length}", "--threads",
                             str(args.threads), "--json", "-q"], check=True,
                            stdout=subprocess.PIPE)
    return json.loads(result.stdout)["prefill"][0]["samples_ms"]


def theirs(args, length):
    result = subprocess.run([args.torch_python, "-c", PEER, args.model, str(length),
                             str(args.threads)], check=True, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", default="build/gac")
    parser.add_argument("--model", required=True)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    result = {"schema": "gac.bench-engine/1", "command": sys.argv,
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "machine": os.uname().release, "threads": args.threads, "prefill": []}
    for length in LENGTHS:
        mine, peer = [], []
        for _ in range(args.rounds):
            mine += ours(args, length)
            answer = theirs(args, length)
            peer += answer["ms"]
            result["peer"] = {k: answer[k] for k in ("torch", "transformers")}
        row = {"length": length, "ours_ms": mine, "peer_ms": peer,
               "speed_ratio_of_best": min(peer) / min(mine),
               "speed_ratio_of_medians": statistics.median(peer) / statistics.median(mine),
               "load": os.getloadavg()[0]}
        result["prefill"].append(row)
        print(f"{length} tokens: ours {min(mine):.0f} ms, PyTorch {min(peer):.0f} ms at best: "
              f"{row['speed_ratio_of_best']:.2f} times its speed "
              f"(medians {row['speed_ratio_of_medians']:.2f})", flush=True)
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
