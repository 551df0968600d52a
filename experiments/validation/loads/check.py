#!/usr/bin/env python3
"""Do repaired models load in transformers and vLLM, and do they compute the same there?

    check.py GAC DUMP_LOGITS MODEL OUT.json [--only NAME] [--no-vllm] [--no-compile]

make.py writes MODEL as compressors would, with odd sizes, in float32. gac repairs each. The logits
of the repaired model in transformers are compared with those of gac's reference engine on the
model before the repair, and the likeliest 24 tokens after three prompts in gac, transformers and
vLLM. transformers also saves the model, loads it again, compiles it, uses a static cache, loads it
without its head and in 16 bits; and on the meta device, where its tensors must have the names and
shapes of the checkpoint. Exit 1 if gac says that a runtime loads a model and it does not, or that
it does not and it does.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "compress"), str(HERE)]
import make  # noqa: E402
import serve  # noqa: E402

WITHIN = 1e-5  # of the largest logit
COMPILED = {"svdllm", "palu", "flap"}  # two minutes each


def reference_logits(dump, folder, ids, work):
    import numpy
    numpy.array(ids, "int32").tofile(os.path.join(work, "ids"))
    out = os.path.join(work, "logits")
    subprocess.run([dump, folder, "reference", "-", "0", os.path.join(work, "ids"), out],
                   check=True)
    return numpy.fromfile(out, "float32").reshape(len(ids), -1)


def same_on_meta(folder, remote):
    """Are the tensors that the code makes those of the checkpoint?"""
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.from_pretrained(folder, trust_remote_code=remote)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=remote)
    made = {name: list(t.shape) for name, t in model.state_dict().items()}
    if config.tie_word_embeddings:
        made.pop("lm_head.weight", None)
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        there = {name: file.get_slice(name).get_shape() for name in file.keys()
                 if not name.endswith("inv_freq")}
    return made == there


def in_transformers(folder, prompts, expected, remote, compiling):
    """Loads it in every way. expected: logits of all tokens of the first prompt."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM
    row = {"meta": same_on_meta(folder, remote)}
    row.update(serve.in_transformers(folder, prompts, remote, compiling))
    model = serve.load(folder, remote)
    tokens = torch.tensor([prompts[0]])
    with torch.no_grad():
        logits = model(tokens).logits[0].double()
        row["max_abs_diff"] = float((logits - torch.tensor(expected).double()).abs().max())
        row["largest_logit"] = float(abs(expected).max())
        body = AutoModel.from_pretrained(folder, trust_remote_code=remote, dtype=torch.float32)
        row["without_head"] = bool(torch.equal(body(tokens).last_hidden_state,
                                               model.model(tokens).last_hidden_state))
        row["static_cache"] = model.generate(
            tokens, do_sample=False, max_new_tokens=serve.N_TOKENS, cache_implementation="static",
            attention_mask=torch.ones_like(tokens))[0, tokens.shape[1]:].tolist() == row["ids"][0]
        for name in ("float16", "bfloat16"):
            small = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=remote,
                                                         dtype=getattr(torch, name))
            row[name] = float((small(tokens).logits[0].double() - logits).abs().max())
    return row


def run_case(args, name, work):
    changes, options = make.CASES[name]
    before, after = os.path.join(work, "before"), os.path.join(work, "after")
    model = make.Model(args.model)
    for change in changes:
        change(model)
    model.write(before)
    done = serve.gac(args.gac, "repair", before, "-o", after, *options)
    checked = serve.gac(args.gac, "verify", before, after, "--forward")
    loads = {row["runtime"]: row["loads"] for row in done["loads_in"]}
    with open(os.path.join(after, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    remote = "auto_map" in config
    prompts, ids = serve.gac_ids(args.gac, after)
    long = [i for p, more in zip(prompts, ids) for i in p + more]
    expected = reference_logits(args.dump_logits, before, long, work)
    row = {"case": name, "options": options, "dims": done["n_dims_changed"],
           "verified": checked["ok"], "code": remote, "loads_in": done["loads_in"]}
    try:
        found = in_transformers(after, [long] + prompts, expected, remote,
                                name in COMPILED and not args.no_compile)
        found["equal"] = found["ids"][1:] == ids
        del found["ids"]
        row["transformers"] = found
    except Exception as error:  # the loader's own words are the finding
        row["transformers"] = {"error": str(error)[:300]}
    good = row["verified"] and ("error" not in row["transformers"]) == loads["transformers"]
    if loads["transformers"] and good:
        good = (found["equal"] and found["meta"] and found["saved_and_loaded"] and
                found["without_head"] and found["static_cache"] and
                found["max_abs_diff"] < WITHIN * found["largest_logit"])
    if not args.no_vllm:
        found = serve.run_vllm(after, prompts, remote)
        row["vllm"] = ({"error": found["error"][-1]} if "error" in found else
                       {"equal": found["ids"] == ids})
        good = good and row["vllm"].get("equal", False) == loads["vllm"]
    row["as_stated"] = good
    return row


def main():
    parser = argparse.ArgumentParser()
    for name in ("gac", "dump_logits", "model", "out"):
        parser.add_argument(name)
    parser.add_argument("--only", action="append")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-vllm", action="store_true")
    args = parser.parse_args()
    result = {"command": ["check.py", *sys.argv[1:]], "time": time.strftime("%Y-%m-%dT%H:%M:%SZ",
              time.gmtime()), "machine": platform.platform(), **serve.versions(), "ok": True,
              "rows": []}
    for name in args.only or make.CASES:
        with tempfile.TemporaryDirectory() as work:
            row = run_case(args, name, work)
        result["rows"].append(row)
        result["ok"] = result["ok"] and row["as_stated"]
        print(name, row["as_stated"], flush=True)
        with open(args.out, "w", encoding="utf-8") as file:  # after each: a run may be cut short
            json.dump(result, file, indent=1)
            file.write("\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
