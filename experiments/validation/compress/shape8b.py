#!/usr/bin/env python3
"""gac compress of the Llama-3-8B shape with random weights: how long it takes, and how fast the
results are, in our engine and in transformers.

    shape8b.py GAC WORK TOKENIZER_DIR CALIBRATION.txt OUT.json [--layers 32] [--ratio 0.2]

Makes the dense model in WORK (a folder with room for 80 GB), compresses it twice from one
calibration (--align gac and --align none), and times prefill and decode of all three.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "experiments" / "published" / "C5"),
                str(ROOT / "experiments" / "validation" / "advice")]
import c5  # noqa: E402

PREFILL, DECODE = "1x1024,1x2048,1x4096", "1@1024,16@1024"


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def watch_memory(process):
    """Waits for a process. Returns the most memory that it held at any half second, mapped files
    not counted."""
    most = 0
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            break
        most = max([most] + [1024 * int(line.split()[1]) for line in status.splitlines()
                             if line.startswith("RssAnon")])
        time.sleep(0.5)
    process.wait()
    return most


def compress(args, dense, out, align, work):
    began = time.monotonic()
    command = [args.gac, "compress", dense, "-o", out, "--text", args.text, "--ratio", args.ratio,
               "--align", align, "--work", work, "--device", args.device, "--gpu", "h200",
               "--calib-tokens", args.tokens, "--no-sync", "--force", "--json"]
    answer, log = pathlib.Path(f"{out}.json"), pathlib.Path(f"{out}.log")
    with open(answer, "wb") as stdout, open(log, "wb") as stderr:
        process = subprocess.Popen([str(c) for c in command], stdout=stdout, stderr=stderr)
        most = watch_memory(process)
    if process.returncode != 0:
        raise SystemExit(f"gac compress --align {align}: {log.read_text()[-2000:]}")
    made = json.loads(answer.read_text(encoding="utf-8"))
    made["took_s"] = time.monotonic() - began
    made["memory_bytes"] = most
    say(f"compress --align {align}: {made['took_s']:.0f} s, {most / 2**30:.2f} GiB, "
        f"{made['aligned_pct']:.1f} % aligned")
    return made


def in_engine(args, folder):
    command = [args.gac, "eval", folder, "--device", args.device, "--prefill", PREFILL, "--decode",
               DECODE, "--json", "-q"]
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)
    for part in ("prefill", "decode"):
        for row in result[part]:
            say(f"  ours {part} {row['batch']} {row.get('length', row.get('context'))}: "
                f"{row['ms']:.3f} ms")
    return {part: result[part] for part in ("prefill", "decode")}


def in_transformers(folder):
    """Loads the files as a user would, and times the model."""
    import measure
    import torch
    from transformers import AutoModelForCausalLM
    measure.PREFILLS = [(1, 1024), (1, 2048), (1, 4096)]
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True,
                                                     dtype=torch.float16, device_map="cuda").eval()
        rows = measure.measure(model.config, model)
    del model
    torch.cuda.empty_cache()
    for key, row in rows.items():
        say(f"  transformers {key}: {row['ms']:.3f} ms")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gac")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("text")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--ratio", default="0.2")
    parser.add_argument("--tokens", default="131072")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-transformers", action="store_true")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    dense = args.work / "dense"
    say("making the dense model")
    c5.write(c5.base(args.layers), dense)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(args.tokenizer / name, dense)
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                         capture_output=True, text=True, check=False).stdout.strip()
    result = {"command": sys.argv, "gpu": gpu, "layers": args.layers,
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "models": {}}

    def keep(name, entry):
        result["models"][name] = entry
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    jobs = [("dense", dense, None), ("gac", args.work / "gac", "gac"),
            ("none", args.work / "none", "none")]
    for name, folder, align in jobs:
        entry = {}
        if align:
            entry["compress"] = compress(args, dense, folder, align, args.work / "layers")
        entry["bytes"] = c5.size_of(folder)
        keep(name, entry)
        entry["ours"] = in_engine(args, folder)
        keep(name, entry)
    shutil.rmtree(args.work / "layers")
    for name, folder, _ in jobs:
        if not args.no_transformers:
            say(f"transformers: {name}")
            result["models"][name]["transformers"] = in_transformers(folder)
            keep(name, result["models"][name])


if __name__ == "__main__":
    main()
