#!/usr/bin/env python3
"""C5: a Llama-3-8B end to end on one GPU, in our engine and in transformers.

    python3 experiments/published/C5/c5.py --gac build/gac --work /dev/shm/c5 --out experiments/published/C5/h200.json

adds to a result that is there the variants it does not have; --again measures all of them.
Checkpoints of the 8B shape in F16 with random weights, made here:
  dense      as it is
  falls      every linear layer factorised, 85 % of its parameters, another rank for each
  repaired   falls after `gac repair` (every rank to the next multiple of 8)
  allocated  factorised a little smaller, then grown by `gac plan --strategy solve` to at
             most the bytes of falls: every rank right from the start, same budget
  palu       k and v as PaLU stores them, the 512 ranks of PaLU-dist as they fall
  palu_repaired  palu after `gac repair`
Each is run by `gac eval` (falls and palu as they are, too, without the engine's own padding) and, from
the same files, by transformers: eager prefill, decode eager and replayed as a CUDA graph. Fixed
token counts, a real cache, prefill and decode apart, every model loaded once per stack.
"""
import argparse
import itertools
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "experiments" / "validation" / "advice")]
import make_checkpoint as mk  # noqa: E402

VARIANTS = "dense", "falls", "repaired", "allocated", "palu", "palu_repaired"
KEEP, SMALLER = 0.85, 0.83
PREFILL = "1x1024,1x4096,4x1024"
DECODE = "1@1024,16@1024"
WORKLOAD = ",".join(["prefill:" + p for p in PREFILL.split(",")] +
                    ["decode:" + d for d in DECODE.split(",")])


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE).stdout


def factorised(keep, layers):
    shift = itertools.cycle(range(-24, 25))  # 49 steps over 224 matrices: every residue, mean 0
    return mk.svdllm_modify(base(layers), keep, lambda rank: rank + next(shift))


def base(layers):
    return mk.llama_like(n_layers=layers, hidden=4096, n_heads=32, n_kv_heads=8, mlp=14336,
                         vocab=128256, dtype="F16")


def palu(layers):
    """k and v of eight groups each, with the ranks of PaLU-dist."""
    ranks = mk.palu_llama3_8b().config["head_wise_ranks"]
    return mk.palu_modify(base(layers), {m: ranks[m] for m in mk.palu_modules(layers)})


def random_bytes(n_bytes, at):
    """Normal F16 numbers, made once, from a place of their own."""
    import numpy
    if not hasattr(random_bytes, "pool"):
        pool = numpy.random.default_rng(1).standard_normal(1 << 26, dtype=numpy.float32) * 0.02
        random_bytes.pool = pool.astype(numpy.float16).view(numpy.uint8)
    pool = random_bytes.pool
    start = at * 7919 * 64 % (len(pool) // 2)
    return numpy.resize(pool[start:start + n_bytes], n_bytes)


def write(checkpoint, folder):
    """The files, with normal random numbers in them; norms are 1."""
    import numpy
    shutil.rmtree(folder, ignore_errors=True)
    checkpoint.write(folder)
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "r+b") as file:
            (n,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(n))
        data = numpy.memmap(path, dtype=numpy.uint8, mode="r+", offset=8 + n)
        for i, (name, tensor) in enumerate(header.items()):
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            if "norm" in name or "inv_freq" in name:
                dtype = numpy.float32 if tensor["dtype"] == "F32" else numpy.float16
                data[begin:end] = numpy.ones(tensor["shape"], dtype).view(numpy.uint8)
            else:
                data[begin:end] = random_bytes(end - begin, i)


def size_of(folder):
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))


def ranks_of(gac, folder):
    inspect = json.loads(run(gac, "inspect", folder, "--json", "-q"))
    return {"model." + d["name"][:-len(".rank")]: d["size"] for d in inspect["dims"]
            if d["name"].endswith(".rank")}


def engine_stack(args, folder, *more):
    device = ["--device", args.device] + (["--dtype", "F16"] if args.device != "cpu" else [])
    result = json.loads(run(args.gac, "eval", folder, *device, "--prefill", PREFILL, "--decode",
                            DECODE, "--json", "-q", *more))
    for part in ("prefill", "decode"):
        for row in result[part]:
            say(f"  ours{' as is' if more else ''} {part} {row['batch']} "
                f"{row.get('length', row.get('context'))}: {row['ms']:.2f} ms")
    return result


def transformers_stack(args, folder):
    import safetensors.torch
    import torch
    import measure
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path, device="cuda"))
    with torch.no_grad():
        groups = config.get("head_wise_ranks", {})
        made, model = measure.build({"config": config, "groups": groups,
                                     "ranks": {} if groups else ranks_of(args.gac, folder)})
        for name, parameter in model.named_parameters():
            for suffix, factor in ((".0.weight", "_v_proj.weight"), (".1.weight", "_u_proj.weight")):
                if name.endswith("_proj" + suffix):
                    name = name[:-len("_proj" + suffix)] + factor
            parameter.copy_(tensors.pop(name))
        del tensors
        torch.cuda.reset_peak_memory_stats()
        rows = measure.measure(made, model)
        memory = torch.cuda.max_memory_allocated()
    del model
    torch.cuda.empty_cache()
    for key, row in rows.items():
        say(f"  transformers {key}: {row['ms']:.2f} ms")
    return {"times": rows, "memory_bytes": memory}


def both_stacks(args, name, folder, result):
    """Measures one variant, unless the result has it."""
    if name in result["variants"]:
        return
    say(f"{name}: {size_of(folder) / 1e9:.2f} GB")
    entry = {"bytes": size_of(folder), "command": sys.argv, "machine": machine(args),
             "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    entry["ours"] = engine_stack(args, folder)
    if name in ("falls", "palu"):
        entry["ours_as_is"] = engine_stack(args, folder, "--as-is")
    if not args.ours_only:
        entry["transformers"] = transformers_stack(args, folder)
    result["variants"][name] = entry
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def machine(args):
    if args.ours_only:
        return {}
    import torch
    import transformers
    driver = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {"gpu": torch.cuda.get_device_name(), "driver": driver.decode().strip(),
            "torch": torch.__version__, "transformers": transformers.__version__,
            "cudnn": torch.backends.cudnn.version()}


def start(args):
    """The result so far, or a new one."""
    out = pathlib.Path(args.out)
    if out.exists() and not args.again:
        return json.loads(out.read_text(encoding="utf-8"))
    return {"schema": "gac.c5/1", "command": sys.argv, **machine(args), "layers": args.layers,
            "variants": {}}


def repaired(args, work, result, name):
    """A variant and the same after gac repair; returns its bytes."""
    after = {"falls": "repaired", "palu": "palu_repaired"}[name]
    size = size_of(work / name)
    both_stacks(args, name, work / name, result)
    run(args.gac, "repair", work / name, "-o", work / after, "--force", "-q")
    shutil.rmtree(work / name)
    both_stacks(args, after, work / after, result)
    shutil.rmtree(work / after)
    return size


def allocated(args, work, result, budget):
    write(factorised(SMALLER, args.layers), work / "smaller")
    room = 100 * (budget / size_of(work / "smaller") - 1)
    run(args.gac, "plan", work / "smaller", "--strategy", "solve", "--gpu", "h200", "--workload",
        WORKLOAD, "--max-overhead", f"{room:.4f}", "-o", work / "plan.json", "--force", "-q")
    run(args.gac, "repair", work / "smaller", "-o", work / "allocated", "--plan",
        work / "plan.json", "--force", "-q")
    shutil.rmtree(work / "smaller")
    both_stacks(args, "allocated", work / "allocated", result)
    shutil.rmtree(work / "allocated")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--work", required=True, help="a folder with room for 45 GB")
    parser.add_argument("--out", required=True)
    parser.add_argument("--again", action="store_true", help="measure what --out has, too")
    parser.add_argument("--layers", type=int, default=32, help="fewer for a trial")
    parser.add_argument("--device", default="cuda", help="of gac eval; cpu for a trial")
    parser.add_argument("--ours-only", action="store_true")
    args = parser.parse_args()
    work = pathlib.Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    result = start(args)
    lacks = [name for name in VARIANTS if name not in result["variants"]]
    if "dense" in lacks:
        write(base(args.layers), work / "dense")
        both_stacks(args, "dense", work / "dense", result)
        shutil.rmtree(work / "dense")
    if {"falls", "repaired", "allocated"}.intersection(lacks):
        write(factorised(KEEP, args.layers), work / "falls")
        budget = repaired(args, work, result, "falls")
        if "allocated" in lacks:
            allocated(args, work, result, budget)
    if {"palu", "palu_repaired"}.intersection(lacks):
        write(palu(args.layers), work / "palu")
        repaired(args, work, result, "palu")


if __name__ == "__main__":
    main()
