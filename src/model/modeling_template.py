"""Loads this checkpoint in transformers, and in vLLM and SGLang by their Transformers backends.

Written by gac (GPU-Aligned Compression). Some linear layers of this model differ from those of
a stock Llama. config.json lists them under "gac_modules", by their names below the
base model, and lm_head by its own:

    {"linear": [out, in], "bias": false}        a linear layer of another size
    {"factors": [out, rank, in], "first": NAME, "second": NAME, "bias": false}
                                                 two linear layers, one after the other; with a
                                                 dot before their names they stand beside it
    {"groups": [out, in], "ranks": [...], "bias": false}
                                                 PaLU: VT, then U.0, U.1, ... on slices of it

This file puts them in the place of the stock layers. All other code is transformers' own.
"""
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel


def n_outputs(spec):
    return next(spec[kind] for kind in ("linear", "factors", "groups") if kind in spec)[0]


class GacLlamaConfig(LlamaConfig):
    def __init__(self, gac_modules=None, **kwargs):
        self.gac_modules = gac_modules or {}
        super().__init__(**kwargs)
        heads = self.layers_with_other_heads()
        if heads:
            self.allow_global_per_layer_attribute_access = True
            self.per_layer_config = heads

    def layers_with_other_heads(self):
        """What runtimes read to make caches: the heads of layers that do not have the stated ones."""
        keys = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        size = getattr(self, "head_dim", None) or self.hidden_size // self.num_attention_heads
        layers = {}
        for path, spec in self.gac_modules.items():
            name = path.split(".")
            if name[-1] in keys and n_outputs(spec) != getattr(self, keys[name[-1]]) * size:
                layers.setdefault(int(name[1]), {})[keys[name[-1]]] = n_outputs(spec) // size
        return layers


class FactoredLinear(nn.Module):
    """A weight of a low rank: second(first(x)). The children have the names of the checkpoint."""

    def __init__(self, spec):
        super().__init__()
        n_out, rank, n_in = spec["factors"]
        self.names = (spec["first"], spec["second"])
        setattr(self, spec["first"], nn.Linear(n_in, rank, bias=False))
        setattr(self, spec["second"], nn.Linear(rank, n_out, bias=spec["bias"]))

    def forward(self, x):
        return getattr(self, self.names[1])(getattr(self, self.names[0])(x))


class GroupedLinear(nn.Module):
    """PaLU: one first factor for all groups of heads, a second factor for each."""

    def __init__(self, spec):
        super().__init__()
        n_out, n_in = spec["groups"]
        self.ranks = spec["ranks"]
        self.VT = nn.Linear(n_in, sum(self.ranks), bias=False)
        self.U = nn.ModuleList(nn.Linear(rank, n_out // len(self.ranks), bias=spec["bias"])
                               for rank in self.ranks)

    def forward(self, x):
        parts = torch.split(self.VT(x), self.ranks, dim=-1)
        return torch.cat([second(part) for second, part in zip(self.U, parts)], dim=-1)


class Beside:
    """Two factors that stand beside the layer they replace, as in SVD-LLM. It is no module: its
    parent has the factors as children."""

    def __init__(self, parent, first, second):
        self.parent, self.first, self.second = parent, first, second

    def __call__(self, x):
        return getattr(self.parent, self.second)(getattr(self.parent, self.first)(x))


def put_beside(parent, name, spec):
    n_out, rank, n_in = spec["factors"]
    first, second = spec["first"][1:], spec["second"][1:]
    delattr(parent, name)
    setattr(parent, first, nn.Linear(n_in, rank, bias=False))
    setattr(parent, second, nn.Linear(rank, n_out, bias=spec["bias"]))
    object.__setattr__(parent, name, Beside(parent, first, second))


SUBCLASSES = {}


def mark_class(parent, names):
    """vLLM remembers by class which layers it can fuse. A parent whose children are not all plain
    linear layers gets a class of its own, the same for the same children."""
    key = (type(parent), tuple(sorted(names)))
    if key not in SUBCLASSES:
        SUBCLASSES[key] = type(type(parent).__name__ + "_" + "_".join(key[1]), (type(parent),), {})
    parent.__class__ = SUBCLASSES[key]


def replace_layers(model, specs):
    changed = {}
    for path, spec in specs.items():
        above, _, name = path.rpartition(".")
        parent = model.get_submodule(above)
        if "linear" in spec:
            n_out, n_in = spec["linear"]
            setattr(parent, name, nn.Linear(n_in, n_out, bias=spec["bias"]))
            continue
        if above:
            changed.setdefault(above, []).append(name)
        if "groups" in spec:
            setattr(parent, name, GroupedLinear(spec))
        elif spec["first"].startswith("."):
            put_beside(parent, name, spec)
        else:
            setattr(parent, name, FactoredLinear(spec))
    for above, names in changed.items():
        mark_class(model.get_submodule(above), names)


class GacLlamaModel(LlamaModel):
    config_class = GacLlamaConfig

    def __init__(self, config):
        super().__init__(config)
        specs = config.gac_modules
        replace_layers(self, {p: s for p, s in specs.items() if p.startswith("layers.")})
        for i, heads in config.layers_with_other_heads().items():
            n_q = heads.get("num_attention_heads", config.num_attention_heads)
            n_kv = heads.get("num_key_value_heads", config.num_key_value_heads)
            self.layers[i].self_attn.num_key_value_groups = n_q // n_kv
        self.post_init()


class GacLlamaForCausalLM(LlamaForCausalLM):
    config_class = GacLlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = GacLlamaModel(config)
        specs = config.gac_modules
        replace_layers(self, {p: s for p, s in specs.items() if not p.startswith("layers.")})
        self.post_init()


GacLlamaConfig.register_for_auto_class()
GacLlamaModel.register_for_auto_class("AutoModel")
GacLlamaForCausalLM.register_for_auto_class("AutoModelForCausalLM")
