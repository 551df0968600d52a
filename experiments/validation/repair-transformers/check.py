#!/usr/bin/env python3
"""Does a repaired checkpoint load in transformers and give the same logits?

    check.py GAC OUT.json

Makes small random models of several families with transformers, saves them,
repairs them with gac, loads both and compares logits in float32 on the CPU.
Exact repairs may differ by the order of sums only; rescaled ones by rounding.
"""
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from transformers import AutoModelForCausalLM

VOCAB = 96


def llama(**changes):
    base = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=172, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
    return {**base, **changes}


CASES = [
    # name, config class, config, options of gac repair
    ("llama, MLP width 172", "LlamaConfig", llama(), []),
    ("mistral, MLP width 172", "MistralConfig", llama(), []),
    ("qwen2, MLP width 172", "Qwen2Config", llama(), []),
    ("qwen3, MLP width 172", "Qwen3Config", llama(head_dim=16), []),
    ("gemma, MLP width 172", "GemmaConfig", llama(head_dim=16), []),
    ("phi3, MLP width 172", "Phi3Config", llama(pad_token_id=0), []),
    ("mixtral, expert width 44", "MixtralConfig",
     llama(intermediate_size=44, num_local_experts=4, num_experts_per_tok=2), []),
    ("gpt2, MLP width 172", "GPT2Config",
     dict(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_inner=172, n_positions=256), []),
    ("opt, FFN width 172", "OPTConfig",
     dict(vocab_size=VOCAB, hidden_size=64, ffn_dim=172, num_hidden_layers=3,
          num_attention_heads=4, max_position_embeddings=256, word_embed_proj_dim=64), []),
    ("llama, one layer wider: modelling code", "LlamaConfig", llama(intermediate_size=176),
     ["--set", "layers.1.mlp.width=192"]),
    ("llama, one layer wider: per_layer_config", "LlamaConfig", llama(intermediate_size=176),
     ["--set", "layers.1.mlp.width=192", "--widths", "per_layer_config"]),
    ("llama, head 12 to 16, rescaled", "LlamaConfig", llama(head_dim=12),
     ["--allow", "rescaled", "--set", "hidden=64"]),
    ("llama, head 12 to 32, rescaled", "LlamaConfig", llama(head_dim=12),
     ["--allow", "rescaled", "--set", "hidden=64", "--set", "*_head=32"]),
    ("llama, head 12 to 16, rope llama3, rescaled", "LlamaConfig",
     llama(head_dim=12, rope_parameters=dict(
         rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
         high_freq_factor=4.0, original_max_position_embeddings=64)),
     ["--allow", "rescaled", "--set", "hidden=64"]),
    ("qwen2, head 12 to 16, rescaled", "Qwen2Config", llama(head_dim=12),
     ["--allow", "rescaled", "--set", "hidden=64"]),
    ("llama, hidden 60 to 64, rescaled", "LlamaConfig", llama(hidden_size=60, head_dim=16),
     ["--allow", "rescaled"]),
]


def logits(directory, tokens):
    with open(f"{directory}/config.json") as stream:
        code = "auto_map" in json.load(stream)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                 trust_remote_code=code)
    model.eval()
    with torch.no_grad():
        return model(tokens).logits.double(), sum(p.numel() for p in model.parameters())


def run_case(gac, name, config_class, config, options, scratch):
    torch.manual_seed(1)
    made = getattr(transformers, config_class)(**config)
    model = AutoModelForCausalLM.from_config(made).float()
    for parameter in model.parameters():  # biases and norms start at 0 and 1: too easy
        torch.nn.init.normal_(parameter, std=0.1) if parameter.ndim > 1 else \
            torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
    source, fit = f"{scratch}/source", f"{scratch}/fit"
    model.save_pretrained(source)
    done = subprocess.run([gac, "repair", source, "-o", fit, "--json", "-q", *options],
                          capture_output=True, text=True)
    if done.returncode:
        return {"case": name, "error": done.stderr.strip()}
    changed = json.loads(done.stdout)
    said = {row["runtime"]: row["loads"] for row in changed["loads_in"]}["transformers"]
    verified = subprocess.run([gac, "verify", source, fit, "--json"], capture_output=True,
                              text=True)
    tokens = torch.randint(0, VOCAB, (2, 64), generator=torch.Generator().manual_seed(2))
    before, n_before = logits(source, tokens)
    try:
        after, n_after = logits(fit, tokens)
    except Exception as error:  # the loader's own words are the finding
        return {"case": name, "error": f"does not load: {error}"[:300], "gac_says_loads": said}
    return {"case": name, "options": options, "gac_says_loads": said, "dims": len(changed["dims"]),
            "verified": verified.returncode == 0, "params_before": n_before,
            "params_after": n_after,
            "relative_error": ((after - before).norm() / before.norm()).item(),
            "max_abs_difference": (after - before).abs().max().item()}


def main(gac, out):
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(run_case(gac, *case, scratch))
        print(json.dumps(rows[-1]), flush=True)
    result = {"schema": "gac.experiment/1", "id": "repair-transformers",
              "command": "check.py " + " ".join(map(os.path.relpath, sys.argv[1:])), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ",
                                                                   time.gmtime()),
              "machine": {"system": platform.platform(), "torch": torch.__version__,
                          "transformers": transformers.__version__, "device": "cpu"},
              "rows": rows}
    with open(out, "w") as stream:
        json.dump(result, stream, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
