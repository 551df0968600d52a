#!/usr/bin/env python3
"""Does a repaired LoRA adapter load in peft, and does it compute the same?

    peft_check.py GAC OUT.json

Adds adapters of odd ranks to a tiny Llama and a tiny GPT-2 with peft, with random weights in both
factors, and saves them. gac repairs each with every strategy; peft loads the result, and logits and
scales are compared with those of the original adapter in float32 and bfloat16. Every result is
verified and undone. Exit 1 if one case is not as it should be.
"""
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

WITHIN = 1e-5
STRATEGIES = ("minimal", "multiple-16", "predefined", "tradeoff", "solve")
QV = ["q_proj", "v_proj"]
ALL = QV + ["k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# name: (options of LoraConfig, "repaired" or a part of the reason why not)
CASES = {
    "r 13": (dict(r=13, lora_alpha=16, target_modules=QV), "repaired"),
    "r 20, alpha 7": (dict(r=20, lora_alpha=7, target_modules=ALL), "repaired"),
    "r 13, alpha 13.5": (dict(r=13, lora_alpha=13.5, target_modules=QV), "repaired"),
    "rank-stabilised": (dict(r=13, lora_alpha=16, target_modules=QV, use_rslora=True), "repaired"),
    "rank_pattern": (dict(r=12, lora_alpha=16, target_modules=ALL,
                          rank_pattern={"layers.1.self_attn.q_proj": 5, "down_proj": 9}),
                     "repaired"),
    "rank_pattern and alpha_pattern": (
        dict(r=12, lora_alpha=16, target_modules=ALL, rank_pattern={"q_proj": 5, "down_proj": 9},
             alpha_pattern={"q_proj": 3, "layers.0.mlp.down_proj": 7.25}), "repaired"),
    "both patterns, rank-stabilised": (
        dict(r=12, lora_alpha=16, target_modules=ALL, rank_pattern={"q_proj": 5},
             alpha_pattern={"v_proj": 3}, use_rslora=True), "repaired"),
    "embedding": (dict(r=13, lora_alpha=16, target_modules=["embed_tokens", "q_proj"]), "repaired"),
    "DoRA": (dict(r=13, lora_alpha=16, target_modules=QV, use_dora=True), "repaired"),
    "biases": (dict(r=13, lora_alpha=16, target_modules=QV, lora_bias=True), "repaired"),
    "a whole module": (dict(r=13, lora_alpha=16, target_modules=QV, modules_to_save=["lm_head"]),
                       "repaired"),
    "GPT-2": (dict(r=13, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True), "repaired"),
    "aligned": (dict(r=32, lora_alpha=16, target_modules=QV), "nothing"),
    "rank_pattern, an expression": (dict(r=12, lora_alpha=16, target_modules=QV,
                                         rank_pattern={r"layers\.\d+\.self_attn\.q_proj": 5}),
                                    "rank_pattern has keys that are not names"),
    "parameters": (dict(r=13, lora_alpha=16, target_modules=["v_proj"],
                        target_parameters=["q_proj.weight"]), "target_parameters"),
}


def base_of(name):
    torch.manual_seed(1)
    if name == "GPT-2":
        config = transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=2, n_head=4, n_positions=64)
    else:
        config = transformers.LlamaConfig(
            vocab_size=131, hidden_size=48, intermediate_size=101, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


def make(name, options, folder):
    model = get_peft_model(base_of(name), LoraConfig(task_type="CAUSAL_LM", **options))
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_" in key and "magnitude" not in key:
                value.copy_(0.3 * torch.randn(value.shape, generator=random))
    model.save_pretrained(folder)


def load(name, folder, dtype):
    model = PeftModel.from_pretrained(base_of(name).to(dtype), folder).eval()
    tokens = torch.randint(0, 131, (2, 17), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = model(tokens).logits.double()
        with model.disable_adapter():
            bare = model(tokens).logits.double()
    scales = {key: module.scaling["default"] for key, module in model.named_modules()
              if isinstance(getattr(module, "scaling", None), dict) and "default" in module.scaling}
    return logits, bare, scales


def gac(program, *args):
    done = subprocess.run([program, *args, "--json", "-q"], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.strip()


def same_adapter(one, other):
    """The same config, byte for byte, and the same tensors. The header of the file may be longer."""
    texts, tensors = [], []
    for folder in (one, other):
        with open(os.path.join(folder, "adapter_config.json"), "rb") as file:
            texts.append(file.read())
        tensors.append(load_file(os.path.join(folder, "adapter_model.safetensors")))
    return (texts[0] == texts[1] and tensors[0].keys() == tensors[1].keys() and
            all(torch.equal(tensor, tensors[1][key]) for key, tensor in tensors[0].items()))


def relative(after, before):
    return ((after - before).norm() / before.norm()).item()


def check_repaired(program, name, source, work, strategy, before):
    """Returns a row; "wrong" in it if something is not as it should be."""
    out, back = os.path.join(work, "out-" + strategy), os.path.join(work, "back-" + strategy)
    rc, done, line = gac(program, "repair", source, "-o", out, "--strategy", strategy)
    if rc:
        return {"wrong": line}
    row = {"strategy": strategy, "changed": done["n_dims_changed"], "dims": sorted(
        {f"{d['from']} to {d['to']}" for d in done["dims"] if d["from"] != d["to"]})}
    if not done["written"]:
        return row
    rc, verdict, line = gac(program, "verify", source, out)
    if rc or not verdict["ok"]:
        return dict(row, wrong=f"verify: {line or verdict}")
    for dtype in (torch.float32, torch.bfloat16):
        logits, _, scales = load(name, out, dtype)
        row[f"error_{str(dtype)[6:]}"] = relative(logits, before[dtype][0])
        off = max(abs(scales[key] / scale - 1) for key, scale in before[dtype][2].items())
    row["scales_off"] = off
    with open(os.path.join(out, "adapter_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    row["config"] = {k: config[k] for k in ("r", "lora_alpha", "rank_pattern", "alpha_pattern")}
    rc, _, line = gac(program, "repair", out, "--undo", "-o", back)
    if rc or not same_adapter(source, back):
        return dict(row, wrong=f"undo: {line or 'other bytes'}")
    if row["error_float32"] > WITHIN or off > 3e-16 or row["error_bfloat16"] > 1e-2:
        row["wrong"] = "differs"
    return row


def run_case(program, name, work):
    options, wanted = CASES[name]
    source = os.path.join(work, "adapter")
    make(name, options, source)
    os.remove(os.path.join(source, "README.md"))
    row = {"case": name, "options": {k: v for k, v in options.items() if k != "target_modules"}}
    before = {dtype: load(name, source, dtype) for dtype in (torch.float32, torch.bfloat16)}
    row["adapter_matters"] = relative(*before[torch.float32][:2])
    rc, found, line = gac(program, "inspect", source)
    if rc:
        return dict(row, wrong=line)
    row["compressor"] = found["checkpoint"]["compressor"]
    row["unexplained"] = found["unexplained"]
    reasons = {d["reason"] for d in found["dims"] if d["exactness"] == "refused"}
    row["repairs"] = [check_repaired(program, name, source, work, s, before) for s in STRATEGIES]
    changed = any(r.get("changed") for r in row["repairs"])
    good = {"repaired": changed, "nothing": not changed and not reasons}.get(
        wanted, not changed and any(wanted in r for r in reasons))
    row["refused"] = sorted(reasons)
    if not good or any("wrong" in r for r in row["repairs"]) or row["adapter_matters"] < 1e-3:
        row["wrong"] = f"wanted: {wanted}"
    return row


def main(program, out):
    transformers.logging.set_verbosity_error()
    rows = []
    for name in CASES:
        with tempfile.TemporaryDirectory() as work:
            rows.append(run_case(program, name, work))
        print(name, rows[-1].get("wrong", "ok"), [r.get("wrong") for r in rows[-1].get("repairs", [])
                                                  if "wrong" in r], flush=True)
    result = {"schema": "gac.experiment/1", "id": "lora", "command": "peft_check.py build/gac " + out,
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "machine": {"system": platform.platform(), "torch": torch.__version__,
                          "transformers": transformers.__version__, "peft": peft.__version__},
              "rows": rows}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    return 1 if any("wrong" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
