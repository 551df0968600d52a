#!/usr/bin/env python3
"""Makes synthetic Hugging Face checkpoints with real-world names and shapes.

    make_checkpoint.py --list
    make_checkpoint.py llama-405b /tmp/405b              # sparse: no data on disk
    make_checkpoint.py svdllm /tmp/small --fill 7        # random finite values

Importable as well: build("llama") returns a Checkpoint that can be altered
(drop, rename, reshape, config) before it is written. Shapes are [out, in] as
stored, except GPT-2's Conv1D, which is [in, out].
"""
import argparse
import inspect
import os
import random
import sys

from synthetic_checkpoint import (  # noqa: F401: others import these from here
    MLP, ATTENTION, LINEARS, DTYPE_BYTES, RECIPES, Checkpoint, build, llama_like, recipe)
import family_recipes  # noqa: F401: registers its recipes


def llama3_8b(**changes):
    return llama_like(n_layers=32, hidden=4096, n_heads=32, n_kv_heads=8, mlp=14336, vocab=128256,
                      **changes)


@recipe("llama-405b")
def llama_405b():
    """Llama-3.1-405B: 126 layers, BF16, 191 shards, 812 GB apparent"""
    return llama_like(n_layers=126, hidden=16384, n_heads=128, n_kv_heads=8, mlp=53248,
                      vocab=128256)


# Compressors: factorised.


def low_rank(ck, module, rank, first, second):
    """Replaces module.weight [out, in] by first [rank, in] and second [out, rank]."""
    out, inn = ck.shape(module + ".weight")
    ck.replace(module + ".weight", {first: (rank, inn), second: (out, rank)})


def small_base(**changes):
    """What the small compressors start from: heads of 32, hidden 128, MLP 192."""
    return llama_like(**{**dict(hidden=128, mlp=192), **changes})


def layer_linears(ck):
    """(index, 'model.layers.i.mlp.up_proj') of all seven linears, layer by layer."""
    for i in range(ck.config["num_hidden_layers"]):
        for linear in LINEARS:
            yield i, f"model.layers.{i}.{linear}"


def palu_modify(ck, ranks):
    """k_proj and v_proj as PaLU writes them; ranks: module -> rank per group."""
    for module, rs in ranks.items():
        out, inn = ck.shape(module + ".weight")
        shapes = {module + ".VT.weight": (sum(rs), inn)}
        for g, r in enumerate(rs):
            shapes[f"{module}.U.{g}.weight"] = (out // len(rs), r)
        ck.replace(module + ".weight", shapes)
        if module + ".bias" in ck.tensors:
            ck.replace(module + ".bias", {f"{module}.U.{g}.bias": (out // len(rs),)
                                          for g in range(len(rs))})
    ck.config["head_wise_ranks"] = ranks
    ck.config["model_type"] = "palu" + ck.config["model_type"]
    ck.config["architectures"] = [{"palullama": "PaluLlamaForCausalLM",
                                   "paluqwen2": "PaluQwen2ForCausalLM"}[ck.config["model_type"]]]
    return ck


def palu_modules(n_layers):
    return [f"model.layers.{i}.self_attn.{p}_proj" for i in range(n_layers) for p in "kv"]


@recipe("palu-llama3-8b")
def palu_llama3_8b():
    """Llama-3-8B with PaLU k and v: 512 ranks of 114...125, 16 of them 120"""
    others = (114, 116, 117, 118, 121, 122, 123, 124, 125)
    ranks = [120 if i % 32 == 0 else others[i % 9] for i in range(512)]
    modules = palu_modules(32)
    return palu_modify(llama3_8b(), {m: ranks[8 * i:8 * i + 8] for i, m in enumerate(modules)})


SMALL_PALU_RANKS = ([29, 40], [33, 48], [31, 24], [56, 57])


@recipe("palu")
def palu():
    """small PaLU: two groups of two heads per k_proj and v_proj"""
    return palu_modify(small_base(n_kv_heads=4), dict(zip(palu_modules(2), SMALL_PALU_RANKS)))


@recipe("palu-qwen2")
def palu_qwen2():
    """small PaLU over Qwen2: biases on every U"""
    base = small_base(n_kv_heads=4, model_type="qwen2", architecture="Qwen2ForCausalLM",
                      qkv_bias=True)
    return palu_modify(base, dict(zip(palu_modules(2), SMALL_PALU_RANKS)))


def svdllm_modify(ck, keep, change=lambda rank: rank):
    """SVD-LLM: q_proj becomes q_v_proj [r, in] then q_u_proj [out, r]."""
    head_dim = ck.config["hidden_size"] // ck.config["num_attention_heads"]
    for _, module in list(layer_linears(ck)):
        out, inn = ck.shape(module + ".weight")
        stem = module[:-len("_proj")]
        low_rank(ck, module, change(int(out * inn * keep / (out + inn))), stem + "_v_proj.weight",
                 stem + "_u_proj.weight")
    for i in range(ck.config["num_hidden_layers"]):
        ck.add(f"model.layers.{i}.self_attn.rotary_emb.inv_freq", head_dim // 2, dtype="F32")
    return ck


@recipe("svdllm-llama3-8b")
def svdllm_llama3_8b(keep=0.85):
    """Llama-3-8B by SVD-LLM, F16, --keep 0.85; stray rotary_emb.inv_freq"""
    return svdllm_modify(llama3_8b(dtype="F16"), keep)


@recipe("svdllm")
def svdllm(keep=0.8):
    """small SVD-LLM, --keep 0.8"""
    return svdllm_modify(small_base(dtype="F16"), keep)


# ASVD, Dobi-SVD and the generic pair take these in turn over the linears.
SMALL_RANKS = (37, 21, 24, 35, 51, 48, 50)


@recipe("asvd")
def asvd():
    """small ASVD: BLinear [r, in] then ALinear [out, r], truncation_ranks, lm_head too"""
    ck = small_base()
    modules = [m for _, m in layer_linears(ck)] + ["lm_head"]
    ranks = {m: SMALL_RANKS[i % 7] for i, m in enumerate(modules)}
    for module, rank in ranks.items():
        low_rank(ck, module, rank, module + ".BLinear.weight", module + ".ALinear.weight")
    ck.config.update(truncation_ranks=ranks, architectures=["ASVDLlamaForCausalLM"], auto_map={
        "AutoConfig": "configuration_asvd_llama.ASVDLlamaConfig",
        "AutoModelForCausalLM": "modeling_asvd_llama.ASVDLlamaForCausalLM"})
    return ck


@recipe("dobi")
def dobi():
    """small Dobi-SVD: ASVD's names in the other order, no metadata"""
    ck = small_base(dtype="F16")
    for i, (_, module) in enumerate(list(layer_linears(ck))):
        low_rank(ck, module, SMALL_RANKS[i % 7], module + ".ALinear.weight",
                 module + ".BLinear.weight")
    return ck


@recipe("lowrank-generic")
def lowrank_generic():
    """small, any other chained pair: first [r, in], second [out, r]"""
    ck = small_base()
    for i, (_, module) in enumerate(list(layer_linears(ck))):
        low_rank(ck, module, SMALL_RANKS[i % 7], module + ".first.weight",
                 module + ".second.weight")
    return ck


@recipe("basis-sharing")
def basis_sharing():
    """small Basis Sharing: a basis for two layers (o, down: one), coefficients per layer"""
    ck = small_base(n_layers=4)
    ranks = dict(zip(LINEARS, SMALL_RANKS))
    for linear in LINEARS:
        short = linear.split(".")[1][:-len("_proj")]
        groups = [[0], [1], [2], [3]] if short in ("o", "down") else [[0, 1], [2, 3]]
        for group in groups:
            inn = ck.shape(f"model.layers.{group[0]}.{linear}.weight")[1]
            ck.add(f"model.{short}_basis.{group[0]}.weight", ranks[linear], inn)
            for i in group:
                name = f"model.layers.{i}.{linear}.weight"
                ck.reshape(name, ck.shape(name)[0], ranks[linear])
        ck.config[f"num_basis_{short}"] = ranks[linear]
        ck.config[f"{short}_groups"] = groups
    return ck


# Compressors: pruned.


def set_mlp(ck, layer, width):
    hidden = ck.config["hidden_size"]
    mlp = f"model.layers.{layer}.mlp."
    ck.reshape(mlp + "gate_proj.weight", width, hidden)
    ck.reshape(mlp + "up_proj.weight", width, hidden)
    ck.reshape(mlp + "down_proj.weight", hidden, width)


def set_attention(ck, layer, n_heads, n_kv_heads, qk_head, v_head=None):
    hidden, v_head = ck.config["hidden_size"], v_head or qk_head
    attn = f"model.layers.{layer}.self_attn."
    ck.reshape(attn + "q_proj.weight", n_heads * qk_head, hidden)
    ck.reshape(attn + "k_proj.weight", n_kv_heads * qk_head, hidden)
    ck.reshape(attn + "v_proj.weight", n_kv_heads * v_head, hidden)
    ck.reshape(attn + "o_proj.weight", hidden, n_heads * v_head)


@recipe("pruned-mlp")
def pruned_mlp():
    """small, another odd MLP width in each layer, stale config"""
    ck = small_base(n_layers=3)
    for i, width in enumerate((131, 117, 176)):
        set_mlp(ck, i, width)
    return ck


@recipe("pruned-heads")
def pruned_heads():
    """small, whole heads removed in layers 1 and 2, stale config"""
    ck = small_base(n_layers=3, n_kv_heads=4)
    set_attention(ck, 1, 3, 3, 32)
    set_attention(ck, 2, 2, 2, 32)
    return ck


@recipe("direct")
def direct():
    """small, heads of 26 and 30 where the config says 32"""
    ck = small_base()
    set_attention(ck, 0, 4, 2, 26)
    set_attention(ck, 1, 4, 2, 30)
    return ck


@recipe("modegpt-like")
def modegpt_like():
    """small, heads of q and k of another size than those of v, config lists"""
    ck = small_base()
    qk, v, gate = [26, 28], [18, 22], [150, 163]
    for i in range(2):
        set_attention(ck, i, 4, 2, qk[i], v[i])
        set_mlp(ck, i, gate[i])
    ck.config.update(q_ranks=qk, k_ranks=qk, v_ranks=v, o_ranks=v, gate_ranks=gate)
    return ck


@recipe("flap")
def flap():
    """small FLAP: pruned MLPs and heads, new o_proj.bias and down_proj.bias"""
    ck = small_base(n_kv_heads=4, dtype="F16")
    for i, (width, n_heads) in enumerate(((131, 4), (117, 3))):
        set_mlp(ck, i, width)
        set_attention(ck, i, n_heads, n_heads, 32)
        ck.add(f"model.layers.{i}.self_attn.o_proj.bias", 128)
        ck.add(f"model.layers.{i}.mlp.down_proj.bias", 128)
    return ck


@recipe("deci")
def deci():
    """small DeciLM: block_configs with no-op blocks, other groups and widths"""
    ck = small_base(n_layers=4, model_type="nemotron-nas", architecture="DeciLMForCausalLM")
    # ffn_mult means round_up(2 * ffn_mult * hidden / 3, 256): here 256.
    attention = ({"n_heads_in_group": 2}, None, {"n_heads_in_group": 4}, {"n_heads_in_group": 1})
    ffn = ({"intermediate_size": 172}, {"intermediate_size": 100}, None, {"ffn_mult": 2.625})
    blocks = []
    for i, (a, f) in enumerate(zip(attention, ffn)):
        layer = f"model.layers.{i}."
        if a:
            set_attention(ck, i, 4, 4 // a["n_heads_in_group"], 32)
        else:
            ck.drop(layer + "input_layernorm.weight",
                    *(f"{layer}self_attn.{p}.weight" for p in ATTENTION))
        if f:
            set_mlp(ck, i, f.get("intermediate_size", 256))
        else:
            ck.drop(layer + "post_attention_layernorm.weight",
                    *(f"{layer}mlp.{p}.weight" for p in MLP))
        blocks.append({"attention": {"no_op": not a, "replace_with_linear": False,
                                     **(a or {"n_heads_in_group": None})},
                       "ffn": {"no_op": not f, "replace_with_linear": False,
                               **(f or {"ffn_mult": None})}})
    ck.config["block_configs"] = blocks
    for stale in ("intermediate_size", "num_key_value_heads"):
        del ck.config[stale]
    return ck


@recipe("per-layer-config")
def per_layer_config():
    """small, MLP widths of some layers in per_layer_config (transformers >= 5.15)"""
    ck = small_base(n_layers=4)
    widths = {1: 117, 3: 176}
    for layer, width in widths.items():
        set_mlp(ck, layer, width)
    ck.config["per_layer_config"] = {str(i): {"intermediate_size": w} for i, w in widths.items()}
    return ck


def main(argv=None):
    parser = argparse.ArgumentParser(description="Makes a synthetic Hugging Face checkpoint.")
    parser.add_argument("recipe", nargs="?", choices=RECIPES, metavar="RECIPE")
    parser.add_argument("out", nargs="?", metavar="OUT", help="directory to make")
    parser.add_argument("--list", action="store_true", help="name the recipes")
    parser.add_argument("--fill", type=int, metavar="SEED", help="random values, not a sparse file")
    parser.add_argument("--max-shard", type=int, metavar="BYTES", help="tensor bytes per shard")
    parser.add_argument("--keep", type=float, help="svdllm: share of the parameters kept")
    parser.add_argument("--prefix", action="store_true", default=None, help="gpt2: transformer.*")
    args = parser.parse_args(argv)
    if args.list:
        for name, function in RECIPES.items():
            print(f"{name:17} {function.__doc__.splitlines()[0]}")
        return 0
    if not args.recipe or not args.out:
        parser.error("RECIPE and OUT are needed (or --list)")
    if os.path.isdir(args.out) and os.listdir(args.out):
        parser.error(f"{args.out} exists and is not empty")
    options = {k: getattr(args, k) for k in ("keep", "prefix") if getattr(args, k) is not None}
    for name in options:
        if name not in inspect.signature(RECIPES[args.recipe]).parameters:
            parser.error(f"{args.recipe} takes no --{name}")
    ck = build(args.recipe, **options)
    if args.max_shard:
        ck.max_shard_bytes = args.max_shard
    ck.write(args.out, args.fill)
    return 0


if __name__ == "__main__":
    sys.exit(main())
