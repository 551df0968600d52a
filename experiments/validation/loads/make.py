"""Checkpoints as compressors write them, from one small trained model, all sizes odd.

Every case is a function that changes the tensors and config of a Model. The weights stay trained
ones: a factor pair is a truncated SVD, and channels and heads are cut by size.
"""
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class Model:
    def __init__(self, folder, seed=1):
        self.folder = folder
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        self.config["dtype"] = "float32"
        self.tensors = {name: t.float() for name, t in
                        load_file(os.path.join(folder, "model.safetensors")).items()}
        self.n_layers = self.config["num_hidden_layers"]
        self.random = torch.Generator().manual_seed(seed)

    def modules(self, *kinds):
        """(index, name) of linear modules; the index makes sizes differ."""
        for layer in range(self.n_layers):
            for i, linear in enumerate(kinds or LINEARS):
                yield 7 * layer + i, f"model.layers.{layer}.{linear}"

    def take(self, module):
        return self.tensors.pop(module + ".weight")

    def write(self, folder, dtype=torch.float32):
        os.makedirs(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(os.path.join(self.folder, name), folder)
        self.config["dtype"] = str(dtype).split(".")[1]
        save_file({n: t.to(dtype).contiguous() for n, t in self.tensors.items()},
                  os.path.join(folder, "model.safetensors"), {"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(self.config, file, indent=2)


def factors(weight, rank):
    """(rank, in) and (out, rank), the best pair of that rank."""
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    return (s[:rank].sqrt()[:, None] * v[:rank]), u[:, :rank] * s[:rank].sqrt()


def rank_of(weight, index):
    """An odd rank near nine tenths, another in every module."""
    return (min(weight.shape) * 9 // 10 - 2 * (index % 5)) | 1


def factorise(model, name_first, name_second, kinds=()):
    for i, module in model.modules(*kinds):
        weight = model.take(module)
        first, second = factors(weight, rank_of(weight, i))
        model.tensors[name_first(module)] = first
        model.tensors[name_second(module)] = second
        if module + ".bias" in model.tensors:
            bias = model.tensors.pop(module + ".bias")
            model.tensors[name_second(module).replace(".weight", ".bias")] = bias


def svdllm(model):
    """SVD-LLM: the factors stand beside the layer that they replace."""
    factorise(model, lambda m: m[:-5] + "_v_proj.weight", lambda m: m[:-5] + "_u_proj.weight")
    for layer in range(model.n_layers):  # a buffer that old transformers saved
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        model.tensors[name] = torch.arange(model.config["head_dim"] // 2).float()


def asvd(model):
    """ASVD: the factors stand below the layer; some layers stay dense."""
    factorise(model, lambda m: m + ".BLinear.weight", lambda m: m + ".ALinear.weight",
              LINEARS[1:6])
    model.config["truncation_ranks"] = {
        name[:-len(".BLinear.weight")]: t.shape[0] for name, t in model.tensors.items()
        if name.endswith(".BLinear.weight")}


def asvd_head(model):
    """ASVD also factors the output head."""
    asvd(model)
    model.config["tie_word_embeddings"] = False
    first, second = factors(model.tensors["model.embed_tokens.weight"], 171)
    model.tensors["lm_head.BLinear.weight"] = first
    model.tensors["lm_head.ALinear.weight"] = second
    model.config["truncation_ranks"]["lm_head"] = 171


def pair(model):
    """Any other tool's pair."""
    factorise(model, lambda m: m + ".first.weight", lambda m: m + ".second.weight")


def palu(model):
    """PaLU: k and v in groups of heads, another rank in every group."""
    ranks, n_groups = {}, model.config["num_key_value_heads"]
    for i, module in model.modules("self_attn.k_proj", "self_attn.v_proj"):
        weight, firsts, ranks[module] = model.take(module), [], []
        bias = model.tensors.pop(module + ".bias", None)
        for g, part in enumerate(weight.chunk(n_groups)):
            rank = (len(part) * 9 // 10 - 2 * (i % 3) - 4 * g) | 1
            first, second = factors(part, rank)
            firsts.append(first)
            ranks[module].append(rank)
            model.tensors[f"{module}.U.{g}.weight"] = second
            if bias is not None:
                model.tensors[f"{module}.U.{g}.bias"] = bias.chunk(n_groups)[g]
        model.tensors[module + ".VT.weight"] = torch.cat(firsts)
    model.config["head_wise_ranks"] = ranks
    model.config["model_type"] = "palu" + model.config["model_type"]
    model.config["architectures"] = ["Palu" + model.config["architectures"][0]]


def cut_width(model, layer, width):
    mlp = f"model.layers.{layer}.mlp."
    norms = model.tensors[mlp + "down_proj.weight"].norm(dim=0)
    keep = norms.topk(width).indices.sort().values
    for name in ("gate_proj", "up_proj"):
        model.tensors[f"{mlp}{name}.weight"] = model.tensors[f"{mlp}{name}.weight"][keep]
    down = model.tensors[mlp + "down_proj.weight"]
    model.tensors[mlp + "down_proj.weight"] = down[:, keep]
    return (down.sum(dim=1) - down[:, keep].sum(dim=1)) * 1e-3  # for a bias, as FLAP adds


def cut_groups(model, layer, n_kv):
    """Keeps the first KV heads, and the query heads that use them."""
    attn, size = f"model.layers.{layer}.self_attn.", model.config["head_dim"]
    per_group = model.config["num_attention_heads"] // model.config["num_key_value_heads"]
    for name, n in (("q_proj", n_kv * per_group), ("k_proj", n_kv), ("v_proj", n_kv)):
        for kind in ("weight", "bias"):
            key = f"{attn}{name}.{kind}"
            if key in model.tensors:
                model.tensors[key] = model.tensors[key][:n * size]
    o = model.tensors[attn + "o_proj.weight"]
    kept = n_kv * per_group * size
    model.tensors[attn + "o_proj.weight"] = o[:, :kept]
    return o[:, kept:].sum(dim=1) * 1e-3


def widths(model):
    """Per-layer widths; the config is stale, as after most pruning."""
    for layer in range(model.n_layers):
        cut_width(model, layer, model.config["intermediate_size"] - 9 - 14 * layer)


def per_layer_config(model):
    """Per-layer widths as transformers' per_layer_config states them."""
    widths(model)
    model.config["per_layer_config"] = {
        str(i): {"intermediate_size":
                 len(model.tensors[f"model.layers.{i}.mlp.up_proj.weight"])}
        for i in range(model.n_layers)}


def one_width(model):
    """One odd width: a plain config says it after the repair."""
    for layer in range(model.n_layers):
        cut_width(model, layer, 475)
    model.config["intermediate_size"] = 475


def heads(model):
    """Fewer heads in some layers, and per-layer widths."""
    widths(model)
    for layer in (1, 4, 6):
        cut_groups(model, layer, 1)


def unequal_groups(model):
    """Fewer KV heads, or fewer query heads, so that the heads of a group differ by layer."""
    size = model.config["head_dim"]
    for layer in (0, 3, 5):
        attn = f"model.layers.{layer}.self_attn."
        if layer == 3:  # one KV head for all query heads
            for name in ("k_proj", "v_proj"):
                model.tensors[f"{attn}{name}.weight"] = model.tensors[f"{attn}{name}.weight"][:size]
        else:  # four query heads for two KV heads
            model.tensors[attn + "q_proj.weight"] = model.tensors[attn + "q_proj.weight"][:4 * size]
            o = model.tensors[attn + "o_proj.weight"]
            model.tensors[attn + "o_proj.weight"] = o[:, :4 * size]
    widths(model)


def flap(model):
    """FLAP: channels and heads go, and biases make up for them."""
    for layer in range(model.n_layers):
        bias = cut_width(model, layer, model.config["intermediate_size"] - 9 - 14 * layer)
        model.tensors[f"model.layers.{layer}.mlp.down_proj.bias"] = bias
        bias = (cut_groups(model, layer, 1) if layer % 3 == 1 else
                torch.full((model.config["hidden_size"],), 1e-3))
        model.tensors[f"model.layers.{layer}.self_attn.o_proj.bias"] = bias


def flap_widths(model):
    """FLAP with every head kept."""
    for layer in range(model.n_layers):
        bias = cut_width(model, layer, model.config["intermediate_size"] - 9 - 14 * layer)
        model.tensors[f"model.layers.{layer}.mlp.down_proj.bias"] = bias


def mixed(model):
    """Factors in attention, widths in MLPs; some layers as they were."""
    widths(model)
    for layer in range(0, model.n_layers, 2):
        for i, linear in enumerate(LINEARS[:4]):
            module = f"model.layers.{layer}.{linear}"
            weight = model.take(module)
            first, second = factors(weight, rank_of(weight, layer + i))
            model.tensors[module + ".BLinear.weight"] = first
            model.tensors[module + ".ALinear.weight"] = second


def untied(model):
    model.config["tie_word_embeddings"] = False
    model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"].clone()


def as_mistral(model):
    model.config.update(model_type="mistral", architectures=["MistralForCausalLM"],
                        sliding_window=None)


def as_qwen2(model):
    """Qwen2: q, k and v have biases."""
    model.config.update(model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    for _, module in model.modules(*LINEARS[:3]):
        n = len(model.tensors[module + ".weight"])
        model.tensors[module + ".bias"] = 0.02 * torch.randn(n, generator=model.random)


def as_qwen3(model):
    """Qwen3: a norm over each head of q and k."""
    model.config.update(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    for layer in range(model.n_layers):
        for part in "qk":
            name = f"model.layers.{layer}.self_attn.{part}_norm.weight"
            size = model.config["head_dim"]
            model.tensors[name] = 1.5 + 0.1 * torch.randn(size, generator=model.random)


# name: what is done to the model, one after another; options of gac repair
CASES = {
    "svdllm": ([svdllm], []),
    "svdllm, untied": ([untied, svdllm], []),
    "asvd": ([asvd], []),
    "asvd with a factored head": ([asvd_head], []),
    "any pair": ([pair], []),
    "palu": ([palu], []),
    "widths": ([widths], []),
    "widths in per_layer_config": ([per_layer_config], []),
    "widths, --uniform": ([widths], ["--uniform"]),
    "one width": ([one_width], []),
    "heads and widths": ([heads], []),
    "unequal groups of heads": ([unequal_groups], []),
    "flap, all heads": ([flap_widths], []),
    "flap": ([flap], []),
    "factors and widths": ([mixed], []),
    "svdllm, heads of 64": ([svdllm], ["--allow", "rescaled", "--set", "*_head=64"]),
    "one width, heads of 64": ([one_width], ["--allow", "rescaled", "--set", "*_head=64"]),
    "mistral, svdllm": ([as_mistral, svdllm], []),
    "mistral, heads and widths": ([as_mistral, heads], []),
    "qwen2, svdllm": ([as_qwen2, svdllm], []),
    "qwen2, palu": ([as_qwen2, palu], []),
    "qwen2, heads and widths": ([as_qwen2, heads], []),
    "qwen3, svdllm": ([as_qwen3, svdllm], []),
    "qwen3, heads and widths": ([as_qwen3, heads], []),
}
