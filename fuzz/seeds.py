#!/usr/bin/env python3
"""Writes seed inputs for the fuzz targets: OUTDIR/TARGET/NAME.

    seeds.py OUTDIR
"""

import json
import os
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def header_of(shapes, dtype="F16"):
    """Header and data size for {name: shape}, or {name: (dtype, shape)}."""
    header, end = {}, 0
    for name, shape in shapes.items():
        kind, shape = shape if isinstance(shape, tuple) else (dtype, shape)
        size = BITS[kind]
        for axis in shape:
            size *= axis
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size // 8]}
        end += size // 8
    return header, end


def wrap(header, n_data):
    text = header if isinstance(header, bytes) else compact(header)
    return struct.pack("<Q", len(text)) + text + bytes(n_data)


# Models of one small layer.

HIDDEN, WIDTH, HEADS, KV, HEAD, VOCAB = 16, 24, 2, 1, 8, 10
LAYER = "model.layers.0."
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
    "intermediate_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "num_hidden_layers": 1, "vocab_size": VOCAB, "tie_word_embeddings": True,
}
FRAME = {
    "model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN],
    LAYER + "input_layernorm.weight": [HIDDEN],
    LAYER + "post_attention_layernorm.weight": [HIDDEN],
}
LINEARS = {
    "self_attn.q_proj": [HEADS * HEAD, HIDDEN], "self_attn.k_proj": [KV * HEAD, HIDDEN],
    "self_attn.v_proj": [KV * HEAD, HIDDEN], "self_attn.o_proj": [HIDDEN, HEADS * HEAD],
    "mlp.gate_proj": [WIDTH, HIDDEN], "mlp.up_proj": [WIDTH, HIDDEN],
    "mlp.down_proj": [HIDDEN, WIDTH],
}


def dense(skip=()):
    made = dict(FRAME)
    made.update({f"{LAYER}{name}.weight": shape for name, shape in LINEARS.items()
                 if not name.startswith(tuple(skip) or ("-",))})
    return made


def paired(first, second, rank=5):
    """Every linear as two factors; the names take the linear's own."""
    made = dict(FRAME)
    for name, (n_out, n_in) in LINEARS.items():
        made[LAYER + first(name) + ".weight"] = [rank, n_in]
        made[LAYER + second(name) + ".weight"] = [n_out, rank]
    return made


def experts(prefix, names, gate):
    made = dense(skip=("mlp",))
    made[LAYER + gate] = [2, HIDDEN]
    for i in range(2):
        for name, shape in zip(names, ([WIDTH, HIDDEN], [HIDDEN, WIDTH], [WIDTH, HIDDEN])):
            made[f"{LAYER}{prefix}.experts.{i}.{name}.weight"] = shape
    return made


def gpt2():
    h = "h.0."
    return {
        "wte.weight": [VOCAB, HIDDEN], "wpe.weight": [32, HIDDEN], "ln_f.weight": [HIDDEN],
        "ln_f.bias": [HIDDEN], h + "ln_1.weight": [HIDDEN], h + "ln_1.bias": [HIDDEN],
        h + "ln_2.weight": [HIDDEN], h + "ln_2.bias": [HIDDEN],
        h + "attn.c_attn.weight": [HIDDEN, 3 * HIDDEN], h + "attn.c_attn.bias": [3 * HIDDEN],
        h + "attn.c_proj.weight": [HIDDEN, HIDDEN], h + "attn.c_proj.bias": [HIDDEN],
        h + "mlp.c_fc.weight": [HIDDEN, 4 * HIDDEN], h + "mlp.c_fc.bias": [4 * HIDDEN],
        h + "mlp.c_proj.weight": [4 * HIDDEN, HIDDEN], h + "mlp.c_proj.bias": [HIDDEN],
    }


def opt():
    d = "model.decoder."
    made = {d + "embed_tokens.weight": [VOCAB, HIDDEN], d + "embed_positions.weight": [34, HIDDEN]}
    for name in ("final_layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"):
        made[f"{d}{name}.weight"] = made[f"{d}{name}.bias"] = [HIDDEN]
    for name in ("q", "k", "v", "out"):
        made[f"{d}layers.0.self_attn.{name}_proj.weight"] = [HIDDEN, HIDDEN]
        made[f"{d}layers.0.self_attn.{name}_proj.bias"] = [HIDDEN]
    for name, shape in (("fc1", [WIDTH, HIDDEN]), ("fc2", [HIDDEN, WIDTH])):
        made[f"{d}layers.0.{name}.weight"] = shape
        made[f"{d}layers.0.{name}.bias"] = shape[:1]
    return made


def palu():
    made = dense(skip=("self_attn.k_proj", "self_attn.v_proj"))
    for name in ("k_proj", "v_proj"):
        made[f"{LAYER}self_attn.{name}.VT.weight"] = [5, HIDDEN]
        made[f"{LAYER}self_attn.{name}.U.0.weight"] = [HEAD, 5]
    return made


def models():
    """Name → config changes, shapes."""
    q = LAYER + "self_attn.q_norm.weight"
    k = LAYER + "self_attn.k_norm.weight"
    phi = dense(skip=("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up"))
    phi[LAYER + "self_attn.qkv_proj.weight"] = [(HEADS + 2 * KV) * HEAD, HIDDEN]
    phi[LAYER + "mlp.gate_up_proj.weight"] = [2 * WIDTH, HIDDEN]
    flap = {**dense(), LAYER + "self_attn.o_proj.bias": [HIDDEN],
            LAYER + "mlp.down_proj.bias": [HIDDEN]}
    pruned = {**dense(), LAYER + "mlp.gate_proj.weight": [21, HIDDEN],
              LAYER + "mlp.up_proj.weight": [21, HIDDEN],
              LAYER + "mlp.down_proj.weight": [HIDDEN, 21]}
    ranks = {f"{LAYER}self_attn.{n}": [5] for n in ("k_proj", "v_proj")}
    basis = dict(FRAME)
    for name, (n_out, n_in) in LINEARS.items():
        basis[f"model.{name.split('.')[1].split('_')[0]}_basis.0.weight"] = [5, n_in]
        basis[f"{LAYER}{name}.weight"] = [n_out, 5]
    moe = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1,
           "moe_intermediate_size": WIDTH}
    block = {"attention": {"no_op": False, "n_heads_in_group": 2},
             "ffn": {"no_op": False, "ffn_mult": 1.5}}
    return {
        "llama": ({}, dense()),
        "llama_untied": ({"tie_word_embeddings": False},
                         {**dense(), "lm_head.weight": [VOCAB, HIDDEN]}),
        "mistral": ({"model_type": "mistral", "architectures": ["MistralForCausalLM"],
                     "head_dim": HEAD}, dense()),
        "qwen2": ({"model_type": "qwen2"}, {
            **dense(), LAYER + "self_attn.q_proj.bias": [HEADS * HEAD],
            LAYER + "self_attn.k_proj.bias": [KV * HEAD],
            LAYER + "self_attn.v_proj.bias": [KV * HEAD]}),
        "qwen3": ({"model_type": "qwen3", "head_dim": HEAD}, {**dense(), q: [HEAD], k: [HEAD]}),
        "gemma": ({"model_type": "gemma", "head_dim": HEAD}, dense()),
        "phi3": ({"model_type": "phi3"}, phi),
        "mixtral": ({"model_type": "mixtral", **moe}, experts(
            "block_sparse_moe", ("w1", "w2", "w3"), "block_sparse_moe.gate.weight")),
        "qwen3_moe": ({"model_type": "qwen3_moe", **moe}, {**experts(
            "mlp", ("gate_proj", "down_proj", "up_proj"), "mlp.gate.weight"),
            q: [HEAD], k: [HEAD]}),
        "gpt2": ({"model_type": "gpt2", "n_embd": HIDDEN, "n_head": HEADS, "n_layer": 1}, gpt2()),
        "opt": ({"model_type": "opt", "ffn_dim": WIDTH}, opt()),
        "palu": ({"model_type": "palullama", "head_wise_ranks": ranks}, palu()),
        "svd_llm": ({}, {**paired(lambda n: n.replace("_proj", "_v_proj"),
                                  lambda n: n.replace("_proj", "_u_proj")),
                         LAYER + "self_attn.rotary_emb.inv_freq": [HEAD // 2]}),
        "asvd": ({"truncation_ranks": {LAYER + n: 5 for n in LINEARS}},
                 paired(lambda n: n + ".BLinear", lambda n: n + ".ALinear")),
        "dobi": ({}, paired(lambda n: n + ".ALinear", lambda n: n + ".BLinear")),
        "low_rank": ({}, paired(lambda n: n + ".down", lambda n: n + ".up")),
        "basis": ({"num_basis_k": 5, "k_groups": [[0]]}, basis),
        "flap": ({}, flap),
        "pruned": ({}, pruned),
        "deci": ({"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"],
                  "block_configs": [block]}, dense()),
        "per_layer": ({"per_layer_config": {"0": {"intermediate_size": 21}}}, pruned),
    }


# Seeds per target.

def header_seeds():
    yield "no_tensors", wrap(b"{}", 0)
    yield "metadata", wrap({"__metadata__": {"format": "pt", "a": "é\n"}}, 0)
    yield "every_dtype", wrap(*header_of({f"t{i}": (d, [2, 4]) for i, d in enumerate(BITS)}))
    yield "scalar_and_empty", wrap(*header_of({"s": [], "z": [0, 3], "e": ("U8", [0])}))
    yield "spaces", wrap(b' \n{ "a" : { "shape" : [ 1 ] , "dtype" : "U8" , "data_offsets" : '
                         b'[ 0 , 1 ] } } \t\r', 1)
    yield "escapes", wrap(b'{"\\u0061\\ud83d\\ude00\\/":{"dtype":"I8","shape":[],'
                          b'"data_offsets":[0,1]}}', 1)
    yield "backwards", wrap(b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},'
                            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 2)
    yield "llama", wrap(*header_of(dense()))
    yield "huge_shape", wrap(b'{"a":{"dtype":"F64","shape":[0,1152921504606846976],'
                             b'"data_offsets":[0,0]}}', 0)


def index_seeds():
    good = {"a.x": SHARDS[0], "a.y": SHARDS[0], "b.x": SHARDS[1]}
    yield "good", compact({"metadata": {"total_size": 9}, "weight_map": good})
    yield "first_only", compact({"weight_map": {"a.x": SHARDS[0], "a.y": SHARDS[0]}})
    yield "empty", compact({"weight_map": {}})
    yield "outside", compact({"weight_map": {"a.x": "../x", "b.x": "/etc/passwd"}})
    yield "swapped", compact({"weight_map": {"a.x": SHARDS[1], "b.x": SHARDS[0]}})
    yield "extra_keys", compact({"x": [1.5, None, {"y": "z"}], "weight_map": good,
                                 "metadata": {"total_size": 9.0, "more": True}})
    yield "index_as_shard", compact({"weight_map": {"a": "model.safetensors.index.json"}})


def config_seeds():
    for name, (changes, _) in models().items():
        yield name, compact({**CONFIG, **changes})
    yield "empty", b"{}"


FAMILIES = ("gpt-neox", "falcon", "bloom", "phi", "starcoder2", "olmo2", "glm4", "bitnet", "arcee",
            "deepseek-v3", "glm4-moe", "olmoe", "gpt-oss", "llama4", "granite-moe")


def model_seeds():
    for name, (changes, shapes) in models().items():
        yield name, compact({**CONFIG, **changes}) + b"\0" + compact(header_of(shapes)[0])
    yield "no_config_values", b'{"model_type":"llama"}\0' + compact(header_of(dense())[0])
    sys.path.insert(0, os.path.join(ROOT, "tools"))
    import make_checkpoint as mk
    for name in FAMILIES:
        made = mk.build(name)
        shapes = {n: list(shape) for n, (_, shape) in made.tensors.items()}
        yield "recipe_" + name, compact(made.config) + b"\0" + compact(header_of(shapes)[0])


def experiment_seeds():
    folder = os.path.join(ROOT, "experiments", "published")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "spec.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                spec = json.load(stream)
            for claim in spec["claims"]:
                claim.pop("published", None)
            yield name, compact(spec)


def shrink_table(table):
    """The first two sizes of each axis, so that a seed is small."""
    axes = [key for key in ("m", "n", "k", "rows", "length", "head") if key in table]
    sizes = [len(table[key]) for key in axes]
    kept = [min(n, 2) for n in sizes]
    us = [table["us"][(i * sizes[1] + j) * sizes[2] + k]
          for i in range(kept[0]) for j in range(kept[1]) for k in range(kept[2])]
    return {**table, **{key: table[key][:2] for key in axes}, "us": us}


def shrink(contract):
    """A measured contract with the same parts and small tables."""
    for gemm in contract["gemm"].values():
        if "grid" in gemm:
            gemm["grid"] = [shrink_table(t) for t in gemm["grid"]]
            some = {key: gemm["grid"][0][key] for key in ("n_multiple", "k_multiple", "n", "k")}
            gemm["every_n"] = [{**some, "m": [7, 2048], "us": [10 + i for i in range(2 * 2 * 2)]}]
    for sdpa in contract["sdpa"].values():
        sdpa["points"] = sdpa.get("points", [])[:12]
        for tier in sdpa.get("tiers", []):
            if "prefill" in tier:
                tier["prefill"] = [shrink_table(t) for t in tier["prefill"]]
                tier["decode"] = shrink_table(tier["decode"])
        if not sdpa["points"]:
            del sdpa["points"]
    contract.pop("accuracy", None)
    return contract


def contract_seeds():
    folder = os.path.join(ROOT, "contracts")
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not file.endswith(".json"):
            continue
        with open(os.path.join(folder, file), encoding="utf-8") as stream:
            contract = json.load(stream)
        contract["points"] = contract.get("points", [])[:3]
        contract = shrink(contract)
        yield file, compact(contract)
        for key in contract:
            yield f"{file}.without_{key}", compact({k: v for k, v in contract.items() if k != key})
    yield "empty", b"{}"


def gguf_seeds():
    sys.path.insert(0, os.path.join(ROOT, "tests", "bad"))
    import make_bad_gguf as made
    for name, content, *_ in [*made.BAD, *made.GOOD]:
        if len(content) <= 4096:
            yield name, content
    small = {"kind": made.TYPE_Q4_0, "fill": b"\x35"}
    yield "llama", made.llama(**small)
    yield "byte_level", made.llama(made.tokens(), **small)
    yield "scored", made.llama(made.tokens("llama"), **small)
    yield "linear", made.llama({"llama.rope.scaling.type": (made.STRING, "linear"),
                                "llama.rope.scaling.factor": (made.F32, 2.0)}, **small)
    yield "untied", made.llama(shapes={"output.weight": (made.HIDDEN, made.VOCAB)}, **small)


def torch_seeds():
    sys.path.insert(0, os.path.join(ROOT, "tests", "bad"))
    import make_bad_torch as made
    import torch_files
    for name, content, _ in made.BAD:
        if len(content) <= 8192:
            yield name, content
    zeros = {"0": made.Storage("F32", bytes(64)), "1": made.Storage("F16", bytes(24))}
    first, second = zeros["0"], zeros["1"]
    views = {"a": made.Tensor(first, (4, 4)), "t": made.Tensor(first, (4, 3), (1, 4), 1),
             "b": made.Tensor(second, (12,)), "e": made.Tensor(second, (0, 3))}
    models = {"views": views, "model": {"model": torch_files.as_model({"x.y.weight": views["a"]}),
                                        "tokenizer": made.Call("a", "B", state={"c": [1.5, None]})},
              "module": made.module("a.B", {"w": views["t"], "n": None},
                                    {"kept": views["b"], "lost": views["a"]}, not_saved=["lost"]),
              "nested": {"state_dict": {"l": [views["a"], (views["b"], True)], 3: views["e"]}}}
    for name, value in models.items():
        yield name + "_zip", made.zip_file(value)
        yield name + "_legacy", made.legacy_file(value)
        yield name + "_pickle", b"\0" + made.dump(value)[0]


def tokenizer_seeds():
    flags = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    vocab = {c: i for i, c in enumerate(["a", "b", "ab", "\u0120", "\u2581", "<unk>", "<s>", "\u2581a", "d"])}
    vocab.update({f"<0x{b:02X}>": 20 + b for b in (0, 10, 0xc3, 0xff)})
    made = {"version": "1.0", "added_tokens": [{"id": 6, "content": "<s>", **flags}],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                      "ignore_merges": True, "vocab": vocab, "merges": [["a", "b"], ["\u2581", "a"]]}}
    text = "\0ab <s> a\u0301\n12 don't".encode()
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "behavior": "MergedWithNext", "invert": False,
             "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+(?!\\S)|\\w\\u0041"}}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    template = {"type": "TemplateProcessing", "pair": [], "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}}
    yield "gpt2", compact({**made, "pre_tokenizer": byte_level, "decoder": byte_level,
                           "post_processor": byte_level}) + text
    yield "llama3", compact({**made, "normalizer": {"type": "NFC"}, "post_processor": template,
                             "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                                 split, {"type": "Digits", "individual_digits": True},
                                 {**byte_level, "use_regex": False}]}, "decoder": byte_level}) + text
    yield "llama2", compact({**made, "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, replace]}, "decoder": {"type": "Sequence", "decoders": [
            {**replace, "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}) + text
    yield "metaspace", compact({**made, "pre_tokenizer": meta, "decoder": meta}) + text


def json_seeds():
    yield "values", compact({"a": [1, -2.5e3, True, None, "\u00e9\n"], "b": {}})
    yield "big", b'{"model_max_length": 1000000000000000019884624838656}'
    yield "pair", b'["\\ud83d\\ude00\\/\\u0041"]'


def report_seeds():
    folder = os.path.join(ROOT, "tests", "data", "results")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), "rb") as stream:
                yield name[:-5], stream.read()


def chat_seeds():
    with open(os.path.join(ROOT, "tests", "data", "chat", "cases.json"), "rb") as stream:
        for i, case in enumerate(json.load(stream)):
            yield str(i), case["template"].encode()


SEEDS = {"json": json_seeds, "header": header_seeds, "index": index_seeds, "config": config_seeds,
         "model": model_seeds, "contract": contract_seeds, "experiment": experiment_seeds,
         "gguf": gguf_seeds, "torch": torch_seeds, "tokenizer": tokenizer_seeds, "chat": chat_seeds,
         "report": report_seeds}


MAX_BYTES = 32768  # -max_len of run.sh


def main(arguments):
    if len(arguments) != 1:
        print("usage: seeds.py OUTDIR", file=sys.stderr)
        return 2
    for target, seeds in SEEDS.items():
        folder = os.path.join(arguments[0], target)
        os.makedirs(folder, exist_ok=True)
        for name, data in seeds():
            if len(data) > MAX_BYTES:
                print(f"{target}/{name}: {len(data)} bytes, of which fuzz/run.sh cuts off all but "
                      f"{MAX_BYTES}", file=sys.stderr)
                return 1
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        if not os.listdir(folder):
            print(f"{target}: no seeds", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
