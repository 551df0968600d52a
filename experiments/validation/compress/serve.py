#!/usr/bin/env python3
"""Do compressed models load in transformers and vLLM, and do they say the same there?

    serve.py GAC MODEL TEXT OUT.json [--ratios 0.1,0.3,0.5] [--more "--method energy"]
    serve.py GAC MODEL TEXT OUT.json --folders RESULT,RESULT

Compresses MODEL at every ratio with gac, calibrated on TEXT, and once by fewer heads only, with the
options of --more; or takes results that are there. The dense model and each result continue three prompts with the likeliest tokens: by gac, by
transformers and by vLLM, in float32 on the CPU. The token ids must be equal. transformers also
saves the model, loads it again, and compiles the forward pass. Exit 1 if anything differs.
"""
import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPTS = ["The file system", "A list of words is", "Run the command"]
N_TOKENS = 24


def gac(program, *arguments):
    done = subprocess.run([program, *arguments, "--json", "-q"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"gac {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def gac_ids(program, folder):
    """The prompts as ids, and what gac adds to each."""
    results = [gac(program, "generate", folder, prompt, "--max-tokens", str(N_TOKENS))
               for prompt in PROMPTS]
    return [r["prompt_ids"] for r in results], [r["ids"] for r in results]


def load(folder, remote):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=remote,
                                                dtype=torch.float32)


def continue_prompts(model, prompts):
    import torch
    out = []
    for ids in prompts:
        whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=N_TOKENS,
                               attention_mask=torch.ones(1, len(ids), dtype=torch.long))
        out.append(whole[0, len(ids):].tolist())
    return out


def in_transformers(folder, prompts, remote, compiling=True):
    import torch
    model = load(folder, remote)
    ids = continue_prompts(model, prompts)
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        saved = continue_prompts(load(again, remote), prompts)
    row = {"ids": ids, "saved_and_loaded": saved == ids}
    if compiling:
        with torch.no_grad():
            eager = model(torch.tensor([prompts[0]])).logits
            compiled = torch.compile(model)(torch.tensor([prompts[0]])).logits
        row["compiled_max_abs_diff"] = float((eager - compiled).abs().max())
    return row


def in_vllm(folder, prompts, remote):
    """Runs in a process of its own, since an engine of vLLM cannot be closed for sure."""
    from vllm import LLM, SamplingParams
    how = {"model_impl": "transformers"} if remote else {}
    llm = LLM(model=folder, dtype="float32", enforce_eager=True, max_model_len=256,
              trust_remote_code=remote, **how)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts],
                           SamplingParams(temperature=0, max_tokens=N_TOKENS))
    return {"ids": [list(o.outputs[0].token_ids) for o in outputs]}


def run_vllm(folder, prompts, remote):
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--vllm", folder,
                               json.dumps(prompts), str(int(remote)), answer.name],
                              capture_output=True, text=True)
        if done.returncode != 0:
            return {"error": done.stderr.strip().splitlines()[-12:]}
        return json.load(answer)


def without_end(ids, end):
    """vLLM and transformers report the end-of-text token, gac does not."""
    return ids[:-1] if ids and ids[-1] in end else ids


def try_model(folder, prompts, expected):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    end = config.get("eos_token_id")
    end = end if isinstance(end, list) else [end]
    remote = "auto_map" in config
    row = {"needs_modelling_code": remote, "gac": expected,
           "transformers": in_transformers(folder, prompts, remote),
           "vllm": run_vllm(folder, prompts, remote)}
    for name in ("transformers", "vllm"):
        ids = [without_end(i, end) for i in row[name].get("ids", [])]
        row[name]["equal"] = ids == [without_end(i, end) for i in expected]
    return row


def compress(args, work, name, options):
    out = os.path.join(work, name)
    chosen = gac(args.gac, "compress", args.model, "-o", out, "--text", args.text, "--work",
                 os.path.join(work, "layers"), *options, *args.more.split())
    return out, {"options": options + args.more.split(), **describe(chosen)}


def describe(chosen):
    counts = {}
    for module in chosen["modules"]:
        counts[module["choice"]] = counts.get(module["choice"], 0) + 1
    return {"choices": counts, "aligned_pct": chosen.get("aligned_pct"), "ratio": chosen["ratio"]}


def read_result(folder):
    with open(os.path.join(folder, "gac.json"), encoding="utf-8") as file:
        return folder, describe(json.load(file))


def versions():
    import torch
    import transformers
    import vllm
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "vllm": vllm.__version__, "python": platform.python_version()}


def main():
    if sys.argv[1:2] == ["--vllm"]:
        folder, prompts, remote, answer = sys.argv[2:6]
        result = in_vllm(folder, json.loads(prompts), remote == "1")
        with open(answer, "w", encoding="utf-8") as file:
            json.dump(result, file)
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("gac")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("out")
    parser.add_argument("--ratios", default="0.1,0.3,0.5")
    parser.add_argument("--more", default="")
    parser.add_argument("--folders", default="")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        jobs = [("dense", lambda: (args.model, {}))]
        for folder in filter(None, args.folders.split(",")):
            jobs.append((os.path.basename(folder), functools.partial(read_result, folder)))
        if not args.folders:
            made = [(r, ["--ratio", r]) for r in args.ratios.split(",")]
            made.append(("fewer heads", ["--ratio", "0.1", "--choices", "heads"]))
            jobs += [(n, functools.partial(compress, args, work, n, how)) for n, how in made]
        for name, job in jobs:
            folder, row = job()
            prompts, expected = gac_ids(args.gac, folder)
            row = {"name": name, **row, **try_model(folder, prompts, expected)}
            rows.append(row)
            print(name, "transformers", row["transformers"]["equal"], "vllm",
                  row["vllm"]["equal"], flush=True)
    good = all(r["transformers"]["equal"] and r["transformers"]["saved_and_loaded"] and
               r["vllm"]["equal"] for r in rows)
    result = {"command": ["serve.py", *sys.argv[1:]], "time": time.strftime("%Y-%m-%dT%H:%M:%SZ",
              time.gmtime()), "machine": platform.platform(), **versions(), "ok": good,
              "prompts": PROMPTS, "rows": rows}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
