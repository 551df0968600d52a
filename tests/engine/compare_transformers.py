#!/usr/bin/env python3
"""Are our logits those of transformers?

    python3 tests/engine/compare_transformers.py --dump build/tests/dump_logits \
        [--devices reference,cpu,cuda] [--model DIR] --out result.json [--golden tests/data/logits]

Makes a small random model of every family and rotary type, runs it in
transformers in F32 on the CPU, and in our engine on the devices named (cuda is
run in F16 and in BF16). With --gac, 64 tokens of greedy continuation and a
perplexity of each as well, on the CPU. With --model, a real model too: logits and
continuation; and where cuda is named, with transformers on the GPU. The error is
the norm of the difference over the norm of the logits, the worst of all positions.
--golden keeps the small models and their logits for tests without transformers.
Exit 5 when a limit does not hold, 77 without transformers.
"""
import argparse
import json
import math
import pathlib
import string
import subprocess
import sys
import tempfile

# BF16 has three bits less than F16; these models, of large random weights, amplify.
LIMITS = {"reference": 1e-5, "cpu": 1e-5, "cuda F16": 2e-2, "cuda BF16": 1.6e-1}
BATCH = 3  # sequences side by side
WITH_EXPERTS = ("mixtral", "qwen2-moe", "qwen3-moe")  # cuda refuses them
WINDOW = 100  # of perplexities
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 128}
# The first pair that is slowed down lies between two: 1.3, which is rounded down.
YARN_LONG = {**YARN, "original_max_position_embeddings": 4096}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0,
            "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 1.5, 2.0, 3.0],
            "original_max_position_embeddings": 256}
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48,
         "max_position_embeddings": 512, "head_dim": 8, "initializer_range": 0.3}


def variants():
    """Name -> (class of the config, what it is told beside SMALL). Keys under "drop" are taken
    out of the file, so that both read their defaults."""
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    return {"llama": ("LlamaConfig", {}),
            "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
            "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
            "llama-linear": ("LlamaConfig", {"rope_parameters": linear}),
            "llama-dynamic": ("LlamaConfig", {"rope_parameters": dynamic}),
            "llama-llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
            "llama-yarn": ("LlamaConfig", {"rope_parameters": YARN}),
            "llama-yarn-long": ("LlamaConfig", {"rope_parameters": YARN_LONG,
                                                "max_position_embeddings": 16384}),
            "llama-longrope": ("LlamaConfig", {"rope_parameters": LONGROPE}),
            "mistral": ("MistralConfig", {"sliding_window": None}),
            "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
            "qwen3": ("Qwen3Config", {"rms_norm_eps": 1e-5}),
            **families()}


def families():
    """What differs from Llama. Windows are shorter than the tests' sequences."""
    window = {"sliding_window": 9}
    experts = {"moe_intermediate_size": 12, "num_experts": 6, "num_experts_per_tok": 2}
    stablelm = {"head_dim": None, "partial_rotary_factor": 0.5}
    gpt2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 512, "n_inner": 24}
    opt = {"ffn_dim": 24, "word_embed_proj_dim": 16, "num_key_value_heads": None}
    used = {**window, "use_sliding_window": True}
    unlisted = {"drop": ["layer_types"]}
    return {"mistral-window": ("MistralConfig", window),
            "qwen2-window": ("Qwen2Config", {**used, "max_window_layers": 1}),
            "qwen3-window": ("Qwen3Config", {**used, **unlisted, "max_window_layers": 1}),
            "gemma": ("GemmaConfig", {}),
            "gemma2": ("Gemma2Config", {**window, "query_pre_attn_scalar": 20,
                                        "attn_logit_softcapping": 2.0,
                                        "final_logit_softcapping": 3.0}),
            "gemma3": ("Gemma3TextConfig", {**window, "query_pre_attn_scalar": 20,
                                            "num_hidden_layers": 3,
                                            "layer_types": ["sliding_attention",
                                                            "full_attention",
                                                            "sliding_attention"]}),
            "gemma3-linear": ("Gemma3TextConfig", {
                **window, "num_hidden_layers": 7, "rope_theta": 50000.0,
                "rope_local_base_freq": 3000.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
            "gemma2-plain": ("Gemma2Config", {**window, "tie_word_embeddings": False}),
            "gemma2-unbounded": ("Gemma2Config", {**window, **unlisted, "num_hidden_layers": 3,
                                                  "attn_logit_softcapping": None,
                                                  "final_logit_softcapping": None}),
            "gemma3-published": ("Gemma3TextConfig", {
                "hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 4,
                "head_dim": 256, "num_hidden_layers": 7, "sliding_window": 9,
                "drop": ["num_attention_heads", "num_key_value_heads", "head_dim", "layer_types",
                         "query_pre_attn_scalar", "rms_norm_eps", "rope_parameters",
                         "tie_word_embeddings", "hidden_activation", "architectures"]}),
            "gemma3-images": ("Gemma3Config", {**window, "query_pre_attn_scalar": 20}),
            "phi3": ("Phi3Config", {**window, "pad_token_id": 0}),
            "phi3-longrope": ("Phi3Config", {
                "pad_token_id": 0, "head_dim": 4, "original_max_position_embeddings": 256,
                "rope_parameters": {**LONGROPE, "short_factor": [1.0, 2.0],
                                    "long_factor": [1.0, 2.0]}}),
            "phi3-partial": ("Phi3Config", {"pad_token_id": 0, "partial_rotary_factor": 0.5,
                                            "head_dim": 4}),
            "olmo2": ("Olmo2Config", {}),
            "granite": ("GraniteConfig", {"embedding_multiplier": 6.0, "residual_multiplier": 0.4,
                                          "attention_multiplier": 0.2, "logits_scaling": 3.0}),
            "stablelm": ("StableLmConfig", {**stablelm, "use_qkv_bias": True}),
            "stablelm-parallel": ("StableLmConfig", {**stablelm, "use_parallel_residual": True}),
            "stablelm-qk-norm": ("StableLmConfig", {**stablelm, "qk_layernorm": True,
                                                    "use_parallel_residual": True}),
            "cohere": ("CohereConfig", {"logit_scale": 0.3}),
            "cohere-qk-norm": ("CohereConfig", {"use_qk_norm": True}),
            "cohere-untied": ("CohereConfig", {"tie_word_embeddings": False,
                                               "attention_bias": True}),
            "smollm3-usual": ("SmolLM3Config", {"pad_token_id": 0, "num_hidden_layers": 5}),
            "smollm3": ("SmolLM3Config", {"pad_token_id": 0, "no_rope_layers": [1, 0]}),
            "smollm3-window": ("SmolLM3Config", {**used, **unlisted, "pad_token_id": 0,
                                                 "no_rope_layers": [1, 0]}),
            "gpt2": ("GPT2Config", gpt2),
            "gpt2-untied": ("GPT2Config", {**gpt2, "tie_word_embeddings": False,
                                           "scale_attn_weights": False}),
            "opt": ("OPTConfig", opt),
            "opt-plain": ("OPTConfig", {**opt, "enable_bias": False,
                                        "activation_function": "gelu",
                                        "tie_word_embeddings": False}),
            "mixtral": ("MixtralConfig", {"num_local_experts": 6, "sliding_window": 9}),
            "mixtral-defaults": ("MixtralConfig", {"num_local_experts": 6, "drop": [
                "sliding_window", "rope_parameters", "num_experts_per_tok", "rms_norm_eps"]}),
            "qwen2-moe-window": ("Qwen2MoeConfig", {
                **experts, **used, **unlisted, "shared_expert_intermediate_size": 20,
                "head_dim": 4, "num_hidden_layers": 4, "max_window_layers": 2,
                "decoder_sparse_step": 2}),
            "qwen3-moe-window": ("Qwen3MoeConfig", {**experts, **used}),
            "qwen2-moe": ("Qwen2MoeConfig", {**experts, "shared_expert_intermediate_size": 20,
                                             "head_dim": 4, "norm_topk_prob": False}),
            "qwen3-moe": ("Qwen3MoeConfig", {**experts, "norm_topk_prob": True,
                                             "mlp_only_layers": [1],
                                             "num_hidden_layers": 3})}


def make_config(kind, settings):
    import transformers
    settings = {key: value for key, value in settings.items()
                if value is not None or "softcapping" in key}
    if kind == "GPT2Config":  # whose keys are others
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "max_position_embeddings", "head_dim"):
            settings.pop(key, None)
    settings["eos_token_id"] = None  # so that nothing ends a text
    if kind != "Gemma3Config":
        return getattr(transformers, kind)(**settings)
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    return transformers.Gemma3Config(text_config=settings, vision_config=vision,
                                     mm_tokens_per_image=1, boi_token_index=48,
                                     eoi_token_index=49, image_token_index=50)


def make(name, folder):
    import torch
    import transformers
    kind, more = variants()[name]
    torch.manual_seed(sum(name.encode()))
    if kind == "Qwen2Config":  # whose heads are hidden / heads
        more = {**more, "head_dim": 4}
    drop = more.pop("drop", [])
    config = make_config(kind, {**SMALL, **more})
    # The other implementations leave out the bound on scores.
    model = transformers.AutoModelForImageTextToText if kind == "Gemma3Config" \
        else transformers.AutoModelForCausalLM
    made = model.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, p in made.named_parameters():
            if "norm" in key or "ln_" in key or key.endswith("bias"):
                p.add_(0.3 * torch.randn_like(p))
    made.generation_config.eos_token_id = None
    made.save_pretrained(folder)
    if not drop:
        return made
    path = folder / "config.json"
    text = json.loads(path.read_text(encoding="utf-8"))
    for key in drop:
        text.pop(key, None)
    path.write_text(json.dumps(text, indent=1), encoding="utf-8")
    return model.from_pretrained(folder, attn_implementation="eager",
                                 dtype=torch.float32).eval()


def ours(args, folder, device, dtype, per_pass, ids, vocab, batch=1):
    import numpy
    with tempfile.TemporaryDirectory() as scratch:
        source, target = pathlib.Path(scratch) / "ids", pathlib.Path(scratch) / "logits"
        numpy.asarray(ids, dtype=numpy.int32).tofile(source)
        subprocess.run([args.dump, folder, device, dtype, str(per_pass), source, target,
                        str(batch)], check=True)
        return numpy.fromfile(target, dtype=numpy.float32).reshape(len(ids), vocab)


def worst_error(mine, theirs):
    import numpy
    mine, theirs = mine.astype(numpy.float64), theirs.astype(numpy.float64)
    scale = numpy.linalg.norm(theirs, axis=1)
    return float((numpy.linalg.norm(mine - theirs, axis=1) / scale).max())


def compare(args, name, folder, model, ids, rows):
    import torch
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].float().numpy()
    runs = {"reference": ["-"], "cpu": ["-"], "cuda": ["F16", "BF16"]}
    for label, device, dtype in [(d if t == "-" else f"{d} {t}", d, t)
                                 for d in args.devices.split(",") for t in runs[d]]:
        if device == "cuda" and name.startswith(WITH_EXPERTS):
            rows.append(refusal(args, name, folder, label, dtype, ids))
            continue
        for per_pass in (0, 1):
            mine = ours(args, folder, device, dtype, per_pass, ids, theirs.shape[1])
            error = worst_error(mine, theirs)
            rows.append({"model": name, "device": label, "tokens": len(ids),
                         "per_pass": per_pass, "error": error, "limit": LIMITS[label],
                         "ok": error < LIMITS[label]})
            print(f"{name:16s} {label:10s} {len(ids):4d} tokens, "
                  f"{'all at once' if per_pass == 0 else 'one by one '}: {error:.2e}", flush=True)
        compare_batch(args, name, folder, model, ids[:BATCH * 24], label, device, dtype, rows)
    return theirs


def refusal(args, name, folder, label, dtype, ids):
    """A model with experts is refused, in words that say so."""
    import numpy
    source = folder / "ids"
    numpy.asarray(ids, dtype=numpy.int32).tofile(source)
    done = subprocess.run([args.dump, folder, "cuda", dtype, "0", source, folder / "none"],
                          stderr=subprocess.PIPE, text=True, check=False)
    good = done.returncode != 0 and "experts" in done.stderr
    print(f"{name:16s} {label:10s} {'refused' if good else 'NOT REFUSED'}", flush=True)
    return {"model": name, "device": label, "refused": done.stderr.strip(), "ok": good}


def compare_batch(args, name, folder, model, ids, label, device, dtype, rows):
    """Sequences side by side: a first part, then token by token from the cache."""
    import torch
    with torch.no_grad():
        theirs = model(torch.tensor(ids).reshape(BATCH, -1)).logits.float().numpy()
    theirs = theirs.reshape(len(ids), -1)
    for per_pass in (0, 5, 1):
        mine = ours(args, folder, device, dtype, per_pass, ids, theirs.shape[1], BATCH)
        error = worst_error(mine, theirs)
        rows.append({"model": name, "device": label, "tokens": len(ids), "batch": BATCH,
                     "per_pass": per_pass, "error": error, "limit": LIMITS[label],
                     "ok": error < LIMITS[label]})
        print(f"{name:16s} {label:10s} {BATCH} sequences, {per_pass or 'all'} at a time: "
              f"{error:.2e}", flush=True)


def greedy(model, prompts):
    """64 tokens after each prompt. All tokens count, also those of the id that pads."""
    import torch
    prompts = torch.tensor(prompts)
    with torch.no_grad():
        made = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=64,
                              do_sample=False, eos_token_id=None, pad_token_id=0)
    return made[:, prompts.shape[1]:].tolist()


def varied_prompt(model, ids):
    """The 40 tokens whose continuation has the most tokens that differ: a model that repeats
    one of them shows little."""
    prompts = [ids[at:at + 40] for at in range(0, 320, 40)]
    made = greedy(model, prompts)
    return max(zip(prompts, made), key=lambda pair: len(set(pair[1])))[0]


def continuation(args, folder, model, ids, rows, name):
    """64 tokens, greedily, in F32 on the CPU, by both."""
    theirs = greedy(model, [ids])[0]
    for device in ("cpu", "reference"):
        result = subprocess.run([args.gac, "generate", folder, "--ids",
                                 ",".join(map(str, ids)), "--max-tokens", "64", "--device",
                                 device, "--json", "-q"], check=True, stdout=subprocess.PIPE)
        mine = json.loads(result.stdout)["ids"]
        assert len(mine) == 64, "the continuation ended early: take another prompt"
        rows.append({"model": name, "device": device, "greedy_tokens": 64,
                     "theirs": theirs, "ours": mine, "ok": mine == theirs})
        print(f"{name:16s} {device:10s} greedy continuation: "
              f"{'identical' if mine == theirs else 'DIFFERS'}", flush=True)


def write_tokenizer(folder, n_tokens):
    """A letter for each token."""
    vocab = {letter: i for i, letter in enumerate(string.ascii_letters[:n_tokens])}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": bytes_, "post_processor": None, "decoder": bytes_,
                 "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def perplexity(args, folder, model, ids, rows, name):
    """exp of the mean loss over windows of WINDOW tokens, by both."""
    import torch
    losses = []
    for at in range(0, len(ids), WINDOW):
        window = torch.tensor(ids[at:at + WINDOW])
        with torch.no_grad():
            logits = model(window[None]).logits[0, :-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="none"))
    theirs = math.exp(torch.cat(losses).mean())
    write_tokenizer(folder, SMALL["vocab_size"])
    text = folder / "text"
    text.write_text("".join(string.ascii_letters[i] for i in ids), encoding="utf-8")
    for device in ("cpu", "reference"):
        result = subprocess.run([args.gac, "eval", folder, "--perplexity", text, "--window",
                                 str(WINDOW), "--device", device, "--json", "-q"], check=True,
                                stdout=subprocess.PIPE)
        found = json.loads(result.stdout)["perplexity"]
        assert found["n_tokens"] == sum(len(x) for x in losses), found
        error = abs(found["value"] / theirs - 1)
        rows.append({"model": name, "device": device, "perplexity": found["value"],
                     "theirs": theirs, "windows": found["n_windows"], "error": error,
                     "limit": LIMITS[device], "ok": error < LIMITS[device]})
        print(f"{name:16s} {device:10s} perplexity {found['value']:.4f}: {error:.2e}", flush=True)


def compare_on_gpu(args, model, ids, rows):
    """Theirs on the GPU: F32 against our reference, F16 against our cuda."""
    import torch
    for dtype, device, name in ((torch.float32, "reference", "-"), (torch.float16, "cuda", "F16")):
        with torch.no_grad():
            theirs = model.to("cuda", dtype)(torch.tensor([ids], device="cuda")).logits[0]
        mine = ours(args, args.model, device, name, 0, ids, theirs.shape[1])
        error, limit = worst_error(mine, theirs.float().cpu().numpy()), LIMITS[
            device if name == "-" else f"{device} {name}"]
        rows.append({"model": args.model, "device": device, "theirs": f"cuda {dtype}",
                     "tokens": len(ids), "error": error, "limit": limit, "ok": error < limit})
        print(f"theirs on cuda in {dtype}, ours on {device}: {error:.2e}", flush=True)


def real_model(args, rows):
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    text = ("The quick brown fox jumps over the lazy dog. In 1969, people walked on the Moon "
            "for the first time, and the whole world watched. ") * 4
    ids = tokenizer(text)["input_ids"]
    compare(args, args.model, args.model, model.eval(), ids, rows)
    if args.gac:
        continuation(args, args.model, model, ids[:32], rows, args.model)
    if "cuda" in args.devices:
        compare_on_gpu(args, model, ids, rows)


def keep(args, name, folder, ids, logits):
    """The model and its logits, for tests/engine/test_logits.py."""
    target = pathlib.Path(args.golden) / name
    target.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        (target / file).write_bytes((folder / file).read_bytes())
    expected = {"ids": ids, "logits": [[float(f"{x:.8g}") for x in row] for row in logits]}
    (target / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", required=True, help="the program tests/dump_logits")
    parser.add_argument("--gac", help="compare greedy continuations and perplexities too")
    parser.add_argument("--model", help="a directory with a real model")
    parser.add_argument("--only", help="small models whose names begin so")
    parser.add_argument("--model-only", action="store_true", help="without the small models")
    parser.add_argument("--devices", default="reference,cpu")
    parser.add_argument("--out", required=True)
    parser.add_argument("--golden")
    args = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError:
        print("skipped: no torch and transformers")
        return 77
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in [] if args.model_only else variants():
            if not name.startswith(args.only or ""):
                continue
            folder = pathlib.Path(scratch) / name
            model = make(name, folder)
            torch.manual_seed(7)
            ids = torch.randint(0, SMALL["vocab_size"], (400,)).tolist()
            compare(args, name, folder, model, ids, rows)
            if args.gac:
                continuation(args, folder, model, varied_prompt(model, ids), rows, name)
                perplexity(args, folder, model, ids, rows, name)
            if args.golden:
                with torch.no_grad():
                    logits = model(torch.tensor([ids[:24]])).logits[0].tolist()
                keep(args, name, folder, ids[:24], logits)
        if args.model:
            real_model(args, rows)
    result = {"schema": "gac.logits-check/1", "command": sys.argv, "torch": torch.__version__,
              "transformers": transformers.__version__,
              "gpu": torch.cuda.get_device_name() if "cuda" in args.devices else None,
              "ok": all(r["ok"] for r in rows), "rows": rows}
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("all within their limits" if result["ok"] else "A LIMIT DOES NOT HOLD")
    return 0 if result["ok"] else 5


if __name__ == "__main__":
    sys.exit(main())
