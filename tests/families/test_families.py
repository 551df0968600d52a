#!/usr/bin/env python3
"""gac inspect over every recipe of tools/make_checkpoint.py: the graph it builds.

    python3 tests/families/test_families.py --gac build/gac [unittest options]

Expected graphs are written out for representative layers; over every tensor
of every recipe, places must stay in bounds, not overlap, and leave no part of
a weight without a dimension. Ends with a line "N passed, N failed".
"""
import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import make_checkpoint as mk  # noqa: E402

GAC = None  # set by main


def gac(*args):
    return subprocess.run([GAC, *args], capture_output=True, text=True, timeout=600)


def spell(*patterns):
    """Names from patterns with braces: 'a.{b,c}.d' gives a.b.d and a.c.d."""
    names = set()
    for pattern in patterns:
        parts = [p.split(",") for p in re.split(r"[{}]", pattern)]
        names.update("".join(choice) for choice in itertools.product(*parts))
    return names


class Graph:
    """What a recipe should give: family, compressor and dims of some layers."""

    def __init__(self, family, compressor, layers, hidden=("rescaled", 64), vocab=80,
                 no_hidden="$^"):
        """no_hidden matches factors whose head side has the hidden size by chance."""
        self.family, self.compressor, self.layers = family, compressor, layers
        self.hidden, self.vocab, self.no_hidden = hidden, vocab, no_hidden
        self.dims = {}  # name -> (role, size, exactness, aligned, tensors)

    def dim(self, name, role, size, exactness, *tensors, n_slices=1):
        """An expected dim. The bundled h200 contract asks for multiples of 8."""
        self.dims[name] = (role, size, exactness, n_slices * size % 8 == 0, spell(*tensors))
        return self

    def heads(self, attn, qk, v, exactness, qk_tensors, v_tensors, v_exactness=None):
        """qk_head and v_head of the module attn of the file, e.g. model.layers.0.self_attn."""
        short = re.sub(r"^(model\.decoder\.|model\.|transformer\.)", "", attn)
        self.dim(short + ".qk_head", "qk_head", qk, exactness, f"{attn}.{qk_tensors}")
        self.dim(short + ".v_head", "v_head", v, v_exactness or exactness, f"{attn}.{v_tensors}")
        return self

    def llama_heads(self, layer, qk, v=None, exactness="rescaled", v_exactness=None, norms=False):
        qk_tensors = "{q_proj,k_proj" + (",q_norm,k_norm" if norms else "") + "}.weight"
        return self.heads(f"model.layers.{layer}.self_attn", qk, v or qk, exactness, qk_tensors,
                          "{v_proj,o_proj}.weight", v_exactness)

    def llama_mlp(self, layer, width):
        return self.dim(f"layers.{layer}.mlp.width", "mlp_width", width, "exact",
                        f"model.layers.{layer}.mlp.{{gate,up,down}}_proj.weight")

    def llama(self, layer, head, width, **options):
        return self.llama_heads(layer, head, **options).llama_mlp(layer, width)

    def rank(self, module, size, *tensors):
        """Rank of a linear; tensors are patterns of whole names."""
        return self.dim(module + ".rank", "rank", size, "exact", *tensors)


def low_rank_graph(compressor, ranks, first, second):
    """Every linear X of layer 0 as X.first [r, in], X.second [out, r]."""
    graph = Graph("llama", compressor, ["layers.0"], hidden=("rescaled", 128),
                  no_hidden=rf"[qkv]_proj\.{second}|o_proj\.{first}")
    layer = "model.layers.0."
    for linear, rank in zip(mk.LINEARS, ranks):
        graph.rank("layers.0." + linear, rank, f"{layer}{linear}.{{{first},{second}}}.weight")
    graph.dim("layers.0.mlp.width", "mlp_width", 192, "exact",
              f"{layer}mlp.{{gate,up}}_proj.{second}.weight",
              f"{layer}mlp.down_proj.{first}.weight")
    graph.dim("layers.0.self_attn.qk_head", "qk_head", 32, "rescaled",
              f"{layer}self_attn.{{q,k}}_proj.{second}.weight")
    graph.dim("layers.0.self_attn.v_head", "v_head", 32, "rescaled",
              f"{layer}self_attn.v_proj.{second}.weight", f"{layer}self_attn.o_proj.{first}.weight")
    return graph


def svdllm_graph(hidden, vocab, head, width, ranks):
    graph = Graph("llama", "svd-llm", ["layers.1"], hidden=("rescaled", hidden), vocab=vocab,
                  no_hidden=r"[qkv]_u_proj|o_v_proj")
    layer = "model.layers.1."
    for linear, rank in zip(mk.LINEARS, ranks):
        graph.rank("layers.1." + linear, rank, f"{layer}{linear[:-5]}_{{u,v}}_proj.weight")
    graph.dim("layers.1.mlp.width", "mlp_width", width, "exact",
              layer + "mlp.{gate_u,up_u,down_v}_proj.weight")
    return graph.heads("model.layers.1.self_attn", head, head, "rescaled",
                       "{q,k}_u_proj.weight", "{v_u,o_v}_proj.weight")


def palu_graph(family, layer, hidden, vocab, head, width, k_ranks, v_ranks, bias=False):
    graph = Graph(family, "palu", [f"layers.{layer}"], hidden=("rescaled", hidden), vocab=vocab)
    attn = f"model.layers.{layer}.self_attn."
    groups = ",".join(str(g) for g in range(len(k_ranks)))
    kinds = "{weight,bias}" if bias else "weight"
    for p, ranks in (("k", k_ranks), ("v", v_ranks)):
        for g, r in enumerate(ranks):
            graph.dim(f"layers.{layer}.self_attn.{p}_proj.rank.{g}", "rank", r, "exact",
                      f"{attn}{p}_proj.{{VT,U.{g}}}.weight")
    graph.dim(f"layers.{layer}.self_attn.qk_head", "qk_head", head, "rescaled",
              f"{attn}q_proj.{kinds}", f"{attn}k_proj.U.{{{groups}}}.{kinds}")
    graph.dim(f"layers.{layer}.self_attn.v_head", "v_head", head, "rescaled",
              f"{attn}v_proj.U.{{{groups}}}.{kinds}", f"{attn}o_proj.weight")
    return graph.llama_mlp(layer, width)


def mixtral_graph():
    graph = Graph("mixtral", "dense", ["layers.1"]).llama_heads(1, 16)
    for e in range(4):
        graph.dim(f"layers.1.block_sparse_moe.experts.{e}.width", "expert_width", 100, "exact",
                  f"model.layers.1.block_sparse_moe.experts.{e}.{{w1,w2,w3}}.weight")
    return graph


def qwen3_moe_graph(fused):
    graph = Graph("qwen3-moe", "dense", ["layers.0", "layers.2"], hidden=("refused", 64))
    graph.llama(0, 32, 192, exactness="refused", norms=True)
    graph.llama_heads(2, 32, exactness="refused", norms=True)
    if fused:
        return graph.dim("layers.2.mlp.experts.width", "expert_width", 44, "exact",
                         "model.layers.2.mlp.experts.{gate_up,down}_proj")
    for e in range(4):
        graph.dim(f"layers.2.mlp.experts.{e}.width", "expert_width", 44, "exact",
                  f"model.layers.2.mlp.experts.{e}.{{gate,up,down}}_proj.weight")
    return graph


def gpt2_graph(top):
    graph = Graph("gpt2", "dense", ["h.1"], hidden=("refused", 64), vocab=50257)
    graph.dim("h.1.mlp.width", "mlp_width", 256, "exact", top + "h.1.mlp.c_fc.{weight,bias}",
              top + "h.1.mlp.c_proj.weight")
    graph.dim("h.1.attn.qk_head", "qk_head", 16, "refused", top + "h.1.attn.c_attn.{weight,bias}")
    return graph.dim("h.1.attn.v_head", "v_head", 16, "refused",
                     top + "h.1.attn.c_attn.{weight,bias}", top + "h.1.attn.c_proj.weight")


def opt_graph():
    graph = Graph("opt", "dense", ["layers.1"], hidden=("refused", 64))
    layer = "model.decoder.layers.1."
    graph.dim("layers.1.mlp.width", "mlp_width", 252, "exact", layer + "fc1.{weight,bias}",
              layer + "fc2.weight")
    graph.dim("layers.1.self_attn.qk_head", "qk_head", 16, "refused",
              layer + "self_attn.{q,k}_proj.{weight,bias}")
    return graph.dim("layers.1.self_attn.v_head", "v_head", 16, "refused",
                     layer + "self_attn.v_proj.{weight,bias}", layer + "self_attn.out_proj.weight")


def basis_sharing_graph():
    """Layers 0 and 1 share bases, except those of o and down."""
    graph = Graph("llama", "basis-sharing", ["layers.0", "layers.1"], hidden=("rescaled", 128),
                  no_hidden=r"[qkv]_proj\.weight|o_basis")
    for linear, rank in zip(mk.LINEARS, mk.SMALL_RANKS):
        short = linear.split(".")[1][:-len("_proj")]
        for group in ((0,), (1,)) if short in ("o", "down") else ((0, 1),):
            graph.rank(f"layers.{group[0]}.{linear}", rank,
                       f"model.{short}_basis.{group[0]}.weight",
                       *(f"model.layers.{i}.{linear}.weight" for i in group))
    for i in (0, 1):
        graph.dim(f"layers.{i}.mlp.width", "mlp_width", 192, "exact",
                  f"model.layers.{i}.mlp.{{gate,up}}_proj.weight", f"model.down_basis.{i}.weight")
        graph.dim(f"layers.{i}.self_attn.qk_head", "qk_head", 32, "rescaled",
                  f"model.layers.{i}.self_attn.{{q,k}}_proj.weight")
        graph.dim(f"layers.{i}.self_attn.v_head", "v_head", 32, "rescaled",
                  f"model.layers.{i}.self_attn.v_proj.weight", f"model.o_basis.{i}.weight")
    return graph


def new_family(family, *layers, vocab=80, no_hidden="$^"):
    """Families whose hidden and head sizes gac leaves alone."""
    return Graph(family, "dense", list(layers) or ["layers.1"], ("refused", 64), vocab, no_hidden)


def gpt_graph(family, layer, attn, up, down, width, exactness, qk="query_key_value", o="dense",
              bias="{weight,bias}"):
    """A family with the names of the GPTs; layer is the whole name of one."""
    short = layer.removeprefix("transformer.").removeprefix("gpt_neox.").removeprefix("model.")
    graph = new_family(family, short)
    graph.dim(f"{short}.mlp.width", "mlp_width", width, exactness, f"{layer}.mlp.{up}.{bias}",
              f"{layer}.mlp.{down}.weight")
    graph.dim(f"{short}.{attn}.qk_head", "qk_head", 16, "refused", f"{layer}.{attn}.{qk}.{bias}")
    return graph.dim(f"{short}.{attn}.v_head", "v_head", 16, "refused",
                     f"{layer}.{attn}.{qk if qk == 'query_key_value' else 'v_proj'}.{bias}",
                     f"{layer}.{attn}.{o}.weight")


def llama_names(family, width_exactness="exact", mlp="{gate,up,down}_proj.weight", kinds="weight",
                norms="", more=(), o_more=()):
    """Layer 1 of a family with Llama's names."""
    layer = "model.layers.1."
    graph = new_family(family)
    graph.dim("layers.1.mlp.width", "mlp_width", 172, width_exactness, layer + "mlp." + mlp, *more)
    graph.dim("layers.1.self_attn.qk_head", "qk_head", 16, "refused",
              f"{layer}self_attn.{{q_proj,k_proj}}.{kinds}",
              *([f"{layer}self_attn.{norms}.weight"] if norms else []))
    return graph.dim("layers.1.self_attn.v_head", "v_head", 16, "refused",
                     f"{layer}self_attn.v_proj.{kinds}", layer + "self_attn.o_proj.weight", *o_more)


def experts_of(graph, layer, mlp, width, files="{gate,up,down}_proj.weight"):
    for e in range(4):
        graph.dim(f"layers.{layer}.{mlp}.experts.{e}.width", "expert_width", width, "exact",
                  f"model.layers.{layer}.{mlp}.experts.{e}.{files}")
    return graph


def deepseek_graph():
    graph = new_family("deepseek", "layers.0", "layers.1")
    for i in (0, 1):
        attn, short = f"model.layers.{i}.self_attn.", f"layers.{i}.self_attn."
        graph.dim(short + "q_rank", "rank", 24, "refused", attn + "{q_a_proj,q_a_layernorm,"
                  "q_b_proj}.weight")
        graph.dim(short + "kv_rank", "rank", 20, "refused", attn + "{kv_a_proj_with_mqa,"
                  "kv_a_layernorm,kv_b_proj}.weight")
        graph.dim(short + "qk_head", "qk_head", 26, "refused", attn + "q_b_proj.weight")
        graph.dim(short + "qk_nope", "qk_head", 18, "refused", attn + "kv_b_proj.weight")
        graph.dim(short + "qk_rope", "qk_head", 8, "refused", attn + "kv_a_proj_with_mqa.weight")
        graph.dim(short + "v_head", "v_head", 10, "exact", attn + "{kv_b_proj,o_proj}.weight")
    graph.llama_mlp(0, 172)
    graph.dim("layers.1.mlp.shared_experts.width", "mlp_width", 44, "exact",
              "model.layers.1.mlp.shared_experts.{gate,up,down}_proj.weight", n_slices=2)
    return experts_of(graph, 1, "mlp", 44)


def glm4_moe_graph():
    graph = llama_names("glm4-moe", kinds="{weight,bias}")
    del graph.dims["layers.1.mlp.width"]
    graph.dim("layers.1.mlp.shared_experts.width", "mlp_width", 44, "exact",
              "model.layers.1.mlp.shared_experts.{gate,up,down}_proj.weight", n_slices=2)
    return experts_of(graph, 1, "mlp", 44)


def without_mlp(graph):
    del graph.dims["layers.1.mlp.width"]
    return graph


def fused_graph(family, name, *tensors):
    return without_mlp(llama_names(family)).dim(f"layers.1.{name}.width", "expert_width", 44,
                                                "exact", *("model.layers.1." + t for t in tensors))


FEED_FORWARD = "model.layers.1.feed_forward."
NEW_GRAPHS = {
    "gpt-neox": gpt_graph("gpt-neox", "gpt_neox.layers.1", "attention", "dense_h_to_4h",
                          "dense_4h_to_h", 172, "exact"),
    "falcon": gpt_graph("falcon", "transformer.h.1", "self_attention", "dense_h_to_4h",
                        "dense_4h_to_h", 172, "exact", bias="weight"),
    "bloom": gpt_graph("bloom", "transformer.h.1", "self_attention", "dense_h_to_4h",
                       "dense_4h_to_h", 256, "refused"),
    "phi": gpt_graph("phi", "model.layers.1", "self_attn", "fc1", "fc2", 172, "exact",
                     qk="{q,k}_proj"),
    "starcoder2": gpt_graph("starcoder2", "model.layers.1", "self_attn", "c_fc", "c_proj", 172,
                            "exact", qk="{q,k}_proj", o="o_proj"),
    "olmo2": llama_names("olmo2", norms="{q_norm,k_norm}"),
    "glm4": llama_names("glm", mlp="{gate_up,down}_proj.weight", kinds="{weight,bias}"),
    "bitnet": llama_names("bitnet", "refused", more=["model.layers.1.mlp.ffn_sub_norm.weight"],
                          o_more=["model.layers.1.self_attn.attn_sub_norm.weight"]),
    "arcee": Graph("arcee", "dense", ["layers.1"], ("refused", 64)).llama_heads(1, 16).dim(
        "layers.1.mlp.width", "mlp_width", 172, "exact",
        "model.layers.1.mlp.{up,down}_proj.weight"),
    "deepseek-v3": deepseek_graph(),
    "glm4-moe": glm4_moe_graph(),
    "olmoe": experts_of(without_mlp(llama_names("olmoe", norms="{q_norm,k_norm}")), 1, "mlp", 44),
    "gpt-oss": fused_graph("gpt-oss", "mlp.experts",
                           "mlp.experts.{gate_up_proj,gate_up_proj_bias,down_proj}"),
    "llama4": fused_graph("llama4", "feed_forward.experts",
                          "feed_forward.experts.{gate_up_proj,down_proj}").dim(
        "layers.1.feed_forward.shared_expert.width", "mlp_width", 44, "exact",
        FEED_FORWARD + "shared_expert.{gate,up,down}_proj.weight"),
    "granite-moe": fused_graph("granite-moe", "block_sparse_moe",
                               "block_sparse_moe.{input,output}_linear.weight").dim(
        "layers.1.shared_mlp.width", "mlp_width", 172, "exact",
        "model.layers.1.shared_mlp.{input,output}_linear.weight"),
}


def small(compressor, *layers):
    return Graph("llama", compressor, [f"layers.{i}" for i in layers], hidden=("rescaled", 128))


GRAPHS = {
    "llama-405b": Graph("llama", "dense", ["layers.0", "layers.125"], ("rescaled", 16384), 128256)
    .llama(0, 128, 53248).llama(125, 128, 53248),
    "llama": Graph("llama", "dense", ["layers.1"]).llama(1, 16, 172),
    "mistral": Graph("mistral", "dense", ["layers.1"]).llama(1, 24, 192),
    "qwen2": Graph("qwen2", "dense", ["layers.1"]).llama_mlp(1, 172).heads(
        "model.layers.1.self_attn", 16, 16, "rescaled", "{q,k}_proj.{weight,bias}",
        "{v_proj.weight,v_proj.bias,o_proj.weight}"),
    "qwen3": Graph("qwen3", "dense", ["layers.1"], hidden=("refused", 64)).llama(
        1, 32, 192, exactness="refused", norms=True),
    "gemma": Graph("gemma", "dense", ["layers.1"], hidden=("refused", 64)).llama(1, 32, 172),
    "phi3": Graph("phi3", "dense", ["layers.1"]).heads(
        "model.layers.1.self_attn", 16, 16, "rescaled", "qkv_proj.weight", "{qkv,o}_proj.weight")
    .dim("layers.1.mlp.width", "mlp_width", 172, "exact",
         "model.layers.1.mlp.{gate_up,down}_proj.weight"),
    "mixtral": mixtral_graph(),
    "qwen3-moe": qwen3_moe_graph(fused=False),
    "qwen3-moe-fused": qwen3_moe_graph(fused=True),
    "gpt2": gpt2_graph(""),
    "opt": opt_graph(),
    "opt-350m": opt_graph().dim("word_embed", "hidden", 40, "refused", "model.decoder."
                                "{embed_tokens,project_in,project_out}.weight"),
    "palu-llama3-8b": palu_graph("llama", 1, 4096, 128256, 128, 14336,
                                 [124, 125, 114, 116, 117, 118, 121, 122],
                                 [123, 124, 125, 114, 116, 117, 118, 121]),
    "palu": palu_graph("llama", 1, 128, 80, 32, 192, [31, 24], [56, 57]),
    "palu-qwen2": palu_graph("qwen2", 1, 128, 80, 32, 192, [31, 24], [56, 57], bias=True),
    "svdllm-llama3-8b": svdllm_graph(4096, 128256, 128, 14336,
                                     (1740, 696, 696, 1740, 2707, 2707, 2707)),
    "svdllm": svdllm_graph(128, 80, 32, 192, (51, 34, 34, 51, 61, 61, 61)),
    "asvd": low_rank_graph("asvd", mk.SMALL_RANKS, "BLinear", "ALinear").rank(
        "lm_head", 37, "lm_head.{A,B}Linear.weight"),
    "dobi": low_rank_graph("dobi-svd", mk.SMALL_RANKS, "ALinear", "BLinear"),
    "lowrank-generic": low_rank_graph("low-rank", mk.SMALL_RANKS, "first", "second"),
    "basis-sharing": basis_sharing_graph(),
    "pruned-mlp": small("pruned", 0, 1, 2).llama(0, 32, 131).llama(1, 32, 117).llama(2, 32, 176),
    "pruned-heads": small("pruned", 0, 1, 2).llama(0, 32, 192).llama(1, 32, 192).llama(2, 32, 192),
    # Head sizes that differ between layers: a config cannot state their rotations.
    "direct": small("direct", 0, 1).llama(0, 26, 192, exactness="refused")
    .llama(1, 30, 192, exactness="refused"),
    "modegpt-like": small("direct", 0, 1)
    .llama(0, 26, 150, v=18, exactness="refused", v_exactness="exact")
    .llama(1, 28, 163, v=22, exactness="refused", v_exactness="exact"),
    "flap": small("pruned", 0, 1).llama(0, 32, 131).llama(1, 32, 117),
    "deci": small("block-configs", 0, 1, 2, 3).llama(0, 32, 172).llama_mlp(1, 100)
    .llama_heads(2, 32).llama(3, 32, 256),
    "per-layer-config": small("pruned", 0, 1, 3).llama(0, 32, 192).llama(1, 32, 117)
    .llama(3, 32, 176),
}

GRAPHS.update(NEW_GRAPHS)

# Axes that carry no dimension: buffers, positions, and the number of experts.
NO_DIMENSION = re.compile(r"(inv_freq|\.attn\.bias|router\.bias|correction_bias|sinks)$")
FIRST_AXIS_FREE = re.compile(r"(\.gate|wpe|embed_positions|router|router\.layer)\.weight$|"
                             r"experts\.\w+_proj(_bias)?$|moe\.\w+_linear\.weight$")
# Biases and norms of heads, whose sizes together may be the hidden size.
HEAD_BIAS = re.compile(r"([qkv]_proj|c_attn|query_key_value)(\.U\.\d+)?\.bias$|"
                       r"([qk]_norm|attn_sub_norm)\.weight$")


def hidden_tensors(ck, graph):
    """Tensors with an axis of hidden size, less those that have it by chance."""
    return {n for n, (_, shape) in ck.tensors.items() if graph.hidden[1] in shape
            and not re.search(graph.no_hidden, n) and not HEAD_BIAS.search(n)
            and not NO_DIMENSION.search(n)}


class InspectCase(unittest.TestCase):
    """Writes checkpoints and inspects them."""

    maxDiff = None

    def run_inspect(self, ck, *options):
        with tempfile.TemporaryDirectory() as directory:
            ck.write(directory)
            return gac("inspect", directory, *options)

    def inspect(self, ck, *options):
        run = self.run_inspect(ck, "--json", "--places", "--gpu", "h200", *options)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return json.loads(run.stdout)


class Families(InspectCase):
    """One test per recipe, added below."""

    def check(self, ck, graph):
        result = self.inspect(ck)
        about = result["checkpoint"]
        self.assertEqual((result["schema"], about["family"], about["compressor"]),
                         ("gac.inspect/1", graph.family, graph.compressor))
        self.assertEqual((about["n_params"], about["n_tensors"], about["bytes"], about["n_files"]),
                         (ck.n_params, len(ck.tensors), ck.size_bytes, len(ck.shards())))
        self.assertEqual(result["unexplained"], [])
        self.check_dims(ck, graph, result["dims"])
        self.check_places(ck, result["dims"])

    def check_dims(self, ck, graph, dims):
        expected = dict(graph.dims)
        exactness, size = graph.hidden
        expected["hidden"] = ("hidden", size, exactness, size % 8 == 0, hidden_tensors(ck, graph))
        expected["vocab"] = ("vocab", graph.vocab, "refused", graph.vocab % 8 == 0,
                             {n for n, (_, shape) in ck.tensors.items() if graph.vocab in shape})
        got, tied = {}, {d["tied_to"] for d in dims}
        for d in dims:
            layer = re.match(r"(layers|h)\.\d+", d["name"])
            if layer is None or layer[0] in graph.layers:
                got[d["name"]] = (d["role"], d["size"], d["exactness"], d["aligned"],
                                  set(d["tensors"]))
            self.assertTrue(d["reason"], d["name"])
            if d["name"] in tied or d["tied_to"]:  # moves with another one
                self.assertGreaterEqual(d["suggest"], d["size"], d["name"])
            elif d["aligned"]:
                self.assertEqual(d["suggest"], d["size"], d["name"])
            else:
                self.assertGreater(d["suggest"], d["size"], d["name"])
        self.assertEqual(got, expected)

    def check_places(self, ck, dims):
        """Places are in bounds, do not overlap, and leave no part of a weight uncovered."""
        covered = {}
        for d in dims:
            self.assertEqual(set(d["tensors"]), {p["tensor"] for p in d["places"]}, d["name"])
            for p in d["places"]:
                end = p["start"] + p["n_slices"] * d["size"]
                covered.setdefault((p["tensor"], p["axis"]), []).append((p["start"], end))
        for name, (_, shape) in ck.tensors.items():
            if NO_DIMENSION.search(name):
                continue
            for axis, size in enumerate(shape):
                if axis == 0 and FIRST_AXIS_FREE.search(name):
                    continue
                at = 0
                for start, end in sorted(covered.get((name, axis), [])):
                    self.assertEqual(start, at, f"{name} axis {axis}: hole or overlap")
                    at = end
                self.assertEqual(at, size, f"{name} axis {axis}: covered up to {at}")


def add_recipe_test(name, ck_name, graph, **options):
    def test(self):
        self.check(mk.build(ck_name, **options), graph)
    setattr(Families, "test_" + name.replace("-", "_"), test)


for _name, _graph in GRAPHS.items():
    add_recipe_test(_name, _name, _graph)
add_recipe_test("gpt2-prefix", "gpt2", gpt2_graph("transformer."), prefix=True)


class Behaviour(InspectCase):
    """What inspect does with altered checkpoints and its options."""

    def assert_contradiction(self, ck, *names):
        run = self.run_inspect(ck, "--json", "--places")
        self.assertEqual(run.returncode, 3, run.stderr)
        self.assertEqual(len(run.stderr.strip().splitlines()), 1, run.stderr)
        for name in names:
            self.assertIn(name, run.stderr)

    def test_every_recipe_has_a_graph(self):
        self.assertEqual(set(GRAPHS), set(mk.RECIPES))

    def test_contradicting_mlp(self):
        ck = mk.build("llama")
        ck.reshape("model.layers.1.mlp.down_proj.weight", 64, 171)
        self.assert_contradiction(ck, "model.layers.1.mlp.gate_proj.weight",
                                  "model.layers.1.mlp.down_proj.weight")

    def test_contradicting_gate_and_up(self):
        ck = mk.build("llama")
        ck.reshape("model.layers.0.mlp.up_proj.weight", 173, 64)
        self.assert_contradiction(ck, "model.layers.0.mlp.gate_proj.weight",
                                  "model.layers.0.mlp.up_proj.weight")

    def test_contradicting_hidden(self):
        ck = mk.build("llama")
        ck.reshape("model.layers.1.self_attn.q_proj.weight", 64, 60)
        self.assert_contradiction(ck, "model.layers.1.self_attn.q_proj.weight")

    def test_contradicting_rank(self):
        ck = mk.build("palu")
        ck.reshape("model.layers.0.self_attn.k_proj.U.1.weight", 64, 41)
        self.assert_contradiction(ck, "model.layers.0.self_attn.k_proj.VT.weight",
                                  "model.layers.0.self_attn.k_proj.U.")

    def test_contradicting_pair(self):
        for name, attn, layout in (("asvd", "self_attn.q_proj.", ("BLinear", "ALinear")),
                                   ("dobi", "self_attn.k_proj.", ("ALinear", "BLinear")),
                                   ("svdllm", "self_attn.", ("q_v_proj", "q_u_proj"))):
            with self.subTest(name):
                first, second = (f"model.layers.1.{attn}{part}.weight" for part in layout)
                ck = mk.build(name)
                rank, inn = ck.shape(first)
                ck.reshape(first, rank + 1, inn)
                self.assert_contradiction(ck, first, second)

    def test_contradicting_heads(self):
        ck = mk.build("llama")
        ck.reshape("model.layers.1.self_attn.v_proj.weight", 33, 64)
        self.assert_contradiction(ck, "model.layers.1.self_attn.v_proj.weight")

    def test_contradicting_fused_qkv(self):
        ck = mk.build("phi3")
        ck.reshape("model.layers.1.self_attn.qkv_proj.weight", 129, 64)
        self.assert_contradiction(ck, "model.layers.1.self_attn.qkv_proj.weight")

    def test_contradicting_fused_experts(self):
        for shape in ((4, 65, 44), (4, 64, 45), (3, 64, 44)):
            with self.subTest(shape):
                ck = mk.build("qwen3-moe-fused")
                ck.reshape("model.layers.1.mlp.experts.down_proj", *shape)
                self.assert_contradiction(ck, "model.layers.1.mlp.experts.down_proj")

    def test_contradicting_router(self):
        """A router that scores another number of experts than there are."""
        for name, gate in (("mixtral", "block_sparse_moe.gate"), ("qwen3-moe", "mlp.gate"),
                           ("qwen3-moe-fused", "mlp.gate")):
            with self.subTest(name):
                ck = mk.build(name)
                ck.reshape(f"model.layers.1.{gate}.weight", 5, 64)
                self.assert_contradiction(ck, f"model.layers.1.{gate}.weight")

    def test_renamed_norm_is_unexplained(self):
        ck = mk.build("llama")
        ck.rename("model.layers.1.input_layernorm.weight", "model.layers.1.input_lnorm.weight")
        self.assertEqual(self.inspect(ck)["unexplained"], ["model.layers.1.input_lnorm.weight"])

    def test_renamed_linear_is_unexplained(self):
        ck = mk.build("llama")
        ck.rename("model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.dwn_proj.weight")
        self.assertEqual(self.inspect(ck)["unexplained"], ["model.layers.1.mlp.dwn_proj.weight"])

    def test_added_tensor_is_unexplained(self):
        ck = mk.build("gpt2")
        ck.add("h.0.attn.sinks", 4)
        self.assertEqual(self.inspect(ck)["unexplained"], ["h.0.attn.sinks"])

    def dims_of(self, ck, *options):
        return {d["name"]: d for d in self.inspect(ck, *options)["dims"]}

    def test_understood_share(self):
        """Parameters outside the vocabulary, in tensors that some rule explained."""
        ck = mk.build("llama")
        self.assertEqual(self.inspect(ck)["checkpoint"]["understood_pct"], 100)
        known = ck.n_params - 2 * 80 * 64
        ck.add("model.layers.1.adapter.weight", 5, 7)
        share = self.inspect(ck)["checkpoint"]["understood_pct"]
        self.assertAlmostEqual(share, 100 * known / (known + 35), places=5)

    def test_little_understood_is_not_judged(self):
        ck = mk.build("mistral")
        ck.add("model.layers.1.adapter.weight", 150, 150)
        result = self.inspect(ck)
        self.assertLess(result["checkpoint"]["understood_pct"], 90)
        self.assertTrue(result["summary"]["advice"].startswith("not judged"), result["summary"])
        run = self.run_inspect(ck, "--fail-on", "misaligned")
        self.assertEqual(run.returncode, 5)
        self.assertIn("not judged", run.stderr)

    def test_most_understood_is_said(self):
        ck = mk.build("mistral")
        ck.add("model.layers.1.adapter.weight", 5, 7)
        advice = self.inspect(ck)["summary"]["advice"]
        self.assertIn("every size that was understood (99.9 %) is aligned", advice)

    def test_shared_axis_is_refused(self):
        """A tensor that was not understood has an axis of the MLP width."""
        ck = mk.build("llama")
        ck.add("model.layers.1.mlp.scaler", 172)
        for name, dim in self.dims_of(ck).items():
            if name.endswith("mlp.width"):
                self.assertEqual(dim["exactness"], "refused", name)
                self.assertIn("model.layers.1.mlp.scaler", dim["reason"])
        with tempfile.TemporaryDirectory() as directory:
            ck.write(directory, seed=1)
            for command in ("plan", "repair"):
                run = gac(command, directory, "--json", *(["-o", directory + "/x"] * (
                    command == "repair")))
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertEqual([d for d in json.loads(run.stdout)["dims"]
                                  if d["from"] != d["to"] and d["from"] == 172], [])

    def test_shared_key_is_refused(self):
        """One expert may share its width with something: then no expert can change."""
        ck = mk.build("olmoe")
        ck.add("model.layers.1.mlp.experts.2.scaler", 44)
        reasons = {d["reason"] for d in self.dims_of(ck).values() if d["role"] == "expert_width"}
        self.assertEqual({d["exactness"] for d in self.dims_of(ck).values()
                          if d["role"] == "expert_width"}, {"refused"})
        self.assertTrue(any("model.layers.1.mlp.experts.2.scaler" in r for r in reasons), reasons)

    def test_guessed_family_changes_ranks_only(self):
        ck = mk.build("svdllm")
        ck.config["model_type"] = "new_llama"
        for name, dim in self.dims_of(ck).items():
            want = "exact" if dim["role"] == "rank" else "refused"
            self.assertEqual(dim["exactness"], want, name)

    def test_families_refused_by_name(self):
        for model_type, why in (("mamba", "state-space"), ("rwkv", "recurrent"),
                                ("kimi_linear", "linear attention")):
            ck = mk.build("llama")
            ck.config["model_type"] = model_type
            run = self.run_inspect(ck)
            self.assertEqual(run.returncode, 3)
            self.assertIn(model_type, run.stderr)
            self.assertIn(why, run.stderr)

    def repaired(self, ck, *options):
        """Repairs a checkpoint. Returns the JSON and the config of the result."""
        with tempfile.TemporaryDirectory() as directory:
            ck.write(directory + "/in", seed=1)
            run = gac("repair", directory + "/in", "-o", directory + "/out", "--json", *options)
            self.assertEqual(run.returncode, 0, run.stderr)
            with open(directory + "/out/config.json", encoding="utf-8") as file:
                return json.loads(run.stdout), json.load(file)

    def hybrid(self):
        """A Granite 4: the first layer is a state-space layer instead of attention."""
        ck = mk.build("granite-moe")
        ck.config["model_type"] = "granitemoehybrid"
        ck.drop(*[n for n in ck.tensors if n.startswith("model.layers.0.self_attn.")])
        ck.add("model.layers.0.mamba.in_proj.weight", 216, 64)
        ck.add("model.layers.0.mamba.out_proj.weight", 64, 96)
        return ck

    def test_beside_layers_that_are_not_understood(self):
        """MLPs and experts change, and the state-space layer keeps its tensors."""
        ck = self.hybrid()
        dims = self.dims_of(ck)
        self.assertEqual({n: d["exactness"] for n, d in dims.items()
                          if n.startswith("layers.0") or n == "hidden"},
                         {"layers.0.block_sparse_moe.width": "exact",
                          "layers.0.shared_mlp.width": "exact", "hidden": "refused"})
        self.assertEqual(self.inspect(ck)["unexplained"],
                         ["model.layers.0.mamba.in_proj.weight",
                          "model.layers.0.mamba.out_proj.weight"])
        result, config = self.repaired(ck)
        self.assertEqual((config["intermediate_size"], config["shared_intermediate_size"]), (48, 176))
        loads = {r["runtime"]: r["loads"] for r in result["loads_in"]}
        self.assertTrue(loads["transformers"])
        ck.add("model.layers.0.stranger", 3)
        result, _ = self.repaired(ck)
        self.assertFalse({r["runtime"]: r["loads"] for r in result["loads_in"]}["transformers"])

    def test_layers_that_predict_further_tokens(self):
        """DeepSeek-V3 has one behind the last layer that runs. Its experts move with the others."""
        ck = mk.build("deepseek-v3")
        for name in [n for n in ck.tensors if n.startswith("model.layers.1.")]:
            ck.add(name.replace("layers.1.", "layers.2."), *ck.tensors[name][1])
        ck.add("model.layers.2.eh_proj.weight", 64, 128)
        loads = {}
        for n_predict in (0, 1):
            ck.config["num_nextn_predict_layers"] = n_predict
            result, _ = self.repaired(ck)
            self.assertTrue(any(d["name"].startswith("layers.2.mlp.experts")
                                for d in result["dims"] if d["from"] != d["to"]))
            loads[n_predict] = {r["runtime"]: r["loads"] for r in result["loads_in"]}["transformers"]
        self.assertEqual(loads, {0: False, 1: True})

    def test_a_state_space_layer_may_share_the_width(self):
        ck = self.hybrid()
        ck.add("model.layers.0.mamba.norm.weight", 44)
        dims = self.dims_of(ck)
        self.assertEqual(dims["layers.1.block_sparse_moe.width"]["exactness"], "refused")
        self.assertEqual(dims["layers.1.shared_mlp.width"]["exactness"], "exact")

    def test_gated_queries(self):
        """q_proj of Qwen3-Next has a query and a gate for each head."""
        ck = mk.build("qwen3")
        ck.config["model_type"] = "qwen3_next"
        for i in range(2):
            name = f"model.layers.{i}.self_attn.q_proj.weight"
            ck.replace(name, {name: (2 * 4 * 32, 64)})
        result = self.inspect(ck)
        dims = {d["name"]: d for d in result["dims"]}
        head = dims["layers.1.self_attn.qk_head"]
        self.assertEqual((head["size"], head["exactness"]), (32, "refused"))
        self.assertEqual({p["tensor"].split(".")[4]: p["n_slices"] for p in head["places"]},
                         {"q_proj": 8, "k_proj": 2, "q_norm": 1, "k_norm": 1})
        self.assertEqual(result["checkpoint"]["compressor"], "dense")

    def test_width_that_the_runtime_adjusts(self):
        """LFM2 makes its MLP width from intermediate_size unless the config says that it does not."""
        ck = mk.build("llama")
        ck.config["model_type"] = "lfm2"
        names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
        for i in range(2):
            for old, new in names.items():
                block = f"model.layers.{i}."
                name = f"{block}mlp.{old}.weight"
                ck.replace(name, {f"{block}feed_forward.{new}.weight": ck.tensors[name][1]})
        ck.config["intermediate_size"] = 256
        for adjusts, exactness in ((None, "refused"), (True, "refused"), (False, "exact")):
            if adjusts is not None:
                ck.config["block_auto_adjust_ff_dim"] = adjusts
            result = self.inspect(ck)
            dim = {d["name"]: d for d in result["dims"]}["layers.1.feed_forward.width"]
            self.assertEqual((dim["size"], dim["exactness"]), (172, exactness))
            stale = any("intermediate_size 256" in note for note in result["notes"])
            self.assertEqual(stale, adjusts is False)

    def test_width_that_is_doubled(self):
        """Layers of Gemma 4 that share keys have twice the width that the config states."""
        ck = mk.build("gemma")
        ck.config.update(model_type="gemma4_text", use_double_wide_mlp=True, num_kv_shared_layers=1,
                         intermediate_size=86)  # and that is out of date
        block = "model.layers.1.mlp."
        for name, shape in (("gate", (344, 64)), ("up", (344, 64)), ("down", (64, 344))):
            ck.replace(f"{block}{name}_proj.weight", {f"{block}{name}_proj.weight": shape})
        ck.drop("model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight")
        dims = self.dims_of(ck)
        self.assertEqual([dims[f"layers.{i}.mlp.width"]["size"] for i in range(2)], [172, 172])
        result, config = self.repaired(ck)
        self.assertEqual(config["intermediate_size"], 176)
        self.assertTrue(all("missing" not in note for note in self.inspect(ck)["notes"]))

    def test_inside_of_another_model(self):
        """Vision-language models nest the config; the tower's tensors are not understood."""
        for prefix, model_type in (("model.language_model.", "qwen2_5_vl_text"),
                                   ("model.text_model.", "llama"), ("language_model.model.", "llama"),
                                   ("model.language_model.", "qwen3_vl_text")):
            with self.subTest(model_type):
                ck = mk.build("llama")
                for name in list(ck.tensors):
                    if name.startswith("model."):
                        ck.replace(name, {prefix + name[6:]: ck.tensors[name][1]})
                ck.add("model.visual.blocks.0.mlp.fc1.weight", 40, 20)
                ck.config = {"model_type": "whole", "text_config": {**ck.config,
                                                                    "model_type": model_type}}
                result, config = self.repaired(ck)
                self.assertEqual(config["text_config"]["intermediate_size"], 176)
                why = {r["runtime"]: r.get("why") for r in result["loads_in"]}["transformers"]
                self.assertIn("part of another model", why)

    def test_layer_numbers_with_zeros(self):
        """transformers writes them so in per_layer_config of a model with ten layers or more."""
        ck = mk.build("per-layer-config")
        plain = ck.config["per_layer_config"]
        dims = self.dims_of(ck)
        ck.config["per_layer_config"] = {"0" + number: own for number, own in plain.items()}
        self.assertEqual(self.dims_of(ck), dims)
        _, config = self.repaired(ck, "--widths", "per_layer_config")
        self.assertEqual(sorted(config["per_layer_config"]), sorted("0" + n for n in plain))

    def test_slicegpt_is_refused_by_name(self):
        ck = mk.build("llama")
        ck.add("model.layers.0.attn_shortcut_Q", 64, 48)
        run = self.run_inspect(ck)
        self.assertEqual(run.returncode, 3)
        self.assertIn("SliceGPT", run.stderr)

    def test_widths_of_one_key_are_tied(self):
        """All experts have one key; so have the layers of a family without modelling code."""
        for name, role, leader in (("mixtral", "expert_width",
                                    "layers.0.block_sparse_moe.experts.0.width"),
                                   ("gpt-neox", "mlp_width", "layers.0.mlp.width"),
                                   ("llama4", "expert_width",
                                    "layers.1.feed_forward.shared_expert.width")):
            with self.subTest(name):
                ties = {d["name"]: d["tied_to"] for d in self.dims_of(mk.build(name)).values()
                        if d["role"] == role}
                self.assertEqual({t for n, t in ties.items() if n != leader}, {leader})
        widths = [d for d in self.dims_of(mk.build("llama")).values() if d["role"] == "mlp_width"]
        self.assertEqual({d["tied_to"] for d in widths}, {None})

    def test_experts_that_do_not_run(self):
        """Rows of experts that are no multiple of 16 bytes, for torch's grouped_mm."""
        reason = self.inspect(mk.build("qwen3-moe"))["summary"]["reason"]
        self.assertIn("experts of width 44 do not run", reason)
        self.assertIsNone(self.inspect(mk.build("qwen3"))["summary"]["reason"])

    def test_hidden_stays_a_multiple_of_the_heads(self):
        ck = mk.llama_like(hidden=252, n_heads=6, n_kv_heads=6, head_dim=42)
        self.assertEqual(self.dims_of(ck)["hidden"]["suggest"], 264)
        with tempfile.TemporaryDirectory() as directory:
            ck.write(directory + "/m", seed=1)
            for options, text in ((["--set", "hidden=256"], "no multiple of the 6 heads"),
                                  (["--strategy", "minimal"], "")):
                run = gac("repair", directory + "/m", "-o", directory + "/x", "--json",
                          "--allow", "rescaled", *options)
                self.assertIn(text, run.stderr)
                self.assertEqual(run.returncode, 2 if text else 0, run.stderr)
            sizes = {d["name"]: d["to"] for d in json.loads(run.stdout)["dims"]}
            self.assertEqual(sizes["hidden"], 264)

    def test_experts_interleave_gate_and_up(self):
        dims = self.dims_of(mk.build("gpt-oss"))
        place = next(p for p in dims["layers.0.mlp.experts.width"]["places"]
                     if p["tensor"].endswith("gate_up_proj"))
        self.assertEqual((place["axis"], place["start"], place["n_slices"], place["repeat"]),
                         (2, 0, 2, "pairs"))

    def test_heads_inside_one_projection(self):
        """GPT-NeoX: q, k and v of head 0, then those of head 1. Falcon: groups of q, k, v."""
        for name, tensor, qk, v in (
                ("gpt-neox", "gpt_neox.layers.0.attention.query_key_value.weight",
                 [(48 * h, 2) for h in range(4)], [(48 * h + 32, 1) for h in range(4)]),
                ("falcon", "transformer.h.0.self_attention.query_key_value.weight",
                 [(0, 3), (64, 3)], [(48, 1), (112, 1)])):
            dims = self.dims_of(mk.build(name))
            for role, want in (("qk_head", qk), ("v_head", v)):
                got = [(p["start"], p["n_slices"]) for d in dims.values() if d["role"] == role
                       for p in d["places"] if p["tensor"] == tensor]
                self.assertEqual(sorted(got), want, (name, role))

    def test_falcon_with_one_kv_head(self):
        dims = self.dims_of(mk.build("falcon", grouped=False))
        places = dims["h.0.self_attention.v_head"]["places"]
        self.assertIn((80, 1), [(p["start"], p["n_slices"]) for p in places])

    def test_repair_corrects_a_stale_config(self):
        """The tensors are aligned, and the config states what was there before pruning."""
        ck = mk.small_base(n_layers=2)
        for i, width in enumerate((176, 160)):
            mk.set_mlp(ck, i, width)
        with tempfile.TemporaryDirectory() as directory:
            ck.write(directory + "/m", seed=1)
            run = gac("repair", directory + "/m", "-o", directory + "/x", "-q")
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("config.json states intermediate_size 192, but layers.0.mlp.width has "
                          "176: corrected", run.stdout)
            with open(directory + "/x/config.json", encoding="utf-8") as file:
                self.assertIn("gac_modules", json.load(file))
            self.assertEqual(gac("verify", directory + "/m", directory + "/x").returncode, 0)

    def test_repair_corrects_every_size_of_a_stale_config(self):
        """Also those that a repair does not change; head_dim it cannot know."""
        ck = mk.build("qwen2")
        ck.config.update(hidden_size=128, vocab_size=99)
        dims = self.dims_of(ck)
        self.assertEqual(dims["layers.1.self_attn.qk_head"]["size"], 16)  # 64 / 4, not 128 / 4
        result, config = self.repaired(ck)
        self.assertEqual((config["hidden_size"], config["vocab_size"]), (64, 80))
        self.assertTrue(result["config_corrected"])
        self.assertTrue(all(r["loads"] for r in result["loads_in"]), result["loads_in"])
        ck.config["head_dim"] = 24
        with tempfile.TemporaryDirectory() as directory:
            ck.write(directory + "/m", seed=1)
            said = gac("repair", directory + "/m", "-o", directory + "/x", "-q").stdout
        self.assertIn("hidden_size 128, but hidden has 64: corrected", said)
        self.assertIn("head_dim 24, but layers.0.self_attn.qk_head has 16: not corrected", said)

    def test_fail_on_misaligned(self):
        for name, code in (("svdllm", 5), ("mistral", 0)):
            run = self.run_inspect(mk.build(name), "--fail-on", "misaligned")
            self.assertEqual(run.returncode, code, name)

    def test_tensor_parallel_and_quantisation_groups(self):
        ck = mk.llama_like(n_layers=1, hidden=8192, n_heads=64, n_kv_heads=8, mlp=29568,
                           vocab=152064, model_type="qwen2", architecture="Qwen2ForCausalLM")
        for options, aligned, suggest in (((), True, 29568),
                                          (("--tp", "8", "--quant-group", "128"), False, 29696)):
            dims = {d["name"]: d for d in self.inspect(ck, *options)["dims"]}
            width = dims["layers.0.mlp.width"]
            self.assertEqual((width["aligned"], width["suggest"]), (aligned, suggest), options)

    def test_bare_file_without_config(self):
        for name, family, dim in (("llama", "llama", "layers.1.mlp.width"),
                                  ("palu", "llama", "layers.1.self_attn.k_proj.rank.1")):
            with self.subTest(name), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "weights.safetensors")
                mk.build(name).write_file(path)
                run = gac("inspect", path, "--json")
                self.assertEqual(run.returncode, 0, run.stderr)
                result = json.loads(run.stdout)
                self.assertEqual(result["checkpoint"]["family"], family)
                self.assertEqual(result["unexplained"], [])
                self.assertIn(dim, [d["name"] for d in result["dims"]])

    def test_published_palu_share(self):
        summary = self.inspect(mk.build("palu-llama3-8b"))["summary"]
        self.assertEqual((summary["n_dims"], summary["n_misaligned"]), (512, 496))
        self.assertAlmostEqual(summary["misaligned_pct"], 96.875, delta=0.05)

    def test_summary_counts_what_the_compressor_chose(self):
        for name in ("svdllm", "basis-sharing", "pruned-mlp"):
            with self.subTest(name):
                result = self.inspect(mk.build(name))
                summary, dims = result["summary"], result["dims"]
                chosen = [d for d in dims if d["compressed"]]
                self.assertEqual(summary["n_dims"], len(chosen))
                self.assertEqual(summary["n_misaligned"], sum(not d["aligned"] for d in chosen))
                self.assertEqual(summary["n_dims_all"], len(dims))
                self.assertEqual(summary["n_misaligned_all"], sum(not d["aligned"] for d in dims))
                roles = {d["role"] for d in chosen}
                self.assertEqual(roles, {"mlp_width"} if name == "pruned-mlp" else {"rank"})

    def test_roles_add_up(self):
        result = self.inspect(mk.build("pruned-mlp"))
        widths = next(r for r in result["roles"] if r["role"] == "mlp_width")
        self.assertEqual((widths["n_dims"], widths["n_misaligned"]), (3, 2))
        self.assertEqual({(s["size"], s["count"], s["aligned"]) for s in widths["sizes"]},
                         {(117, 1, False), (131, 1, False), (176, 1, True)})

    def test_tied_head_sizes(self):
        for name, tied in (("llama", True), ("modegpt-like", False)):
            dims = {d["name"]: d for d in self.inspect(mk.build(name))["dims"]}
            with self.subTest(name):
                self.assertEqual(bool(dims["layers.0.self_attn.v_head"]["tied_to"]), tied)

    def test_half_split_of_rotary_heads(self):
        dims = {d["name"]: d for d in self.inspect(mk.build("direct"))["dims"]}
        places = dims["layers.0.self_attn.qk_head"]["places"]
        self.assertEqual({(p["tensor"].split(".")[-2], p["axis"], p["start"], p["n_slices"],
                           p["repeat"]) for p in places},
                         {("q_proj", 0, 0, 4, "half"), ("k_proj", 0, 0, 2, "half")})

    def test_palu_groups_share_the_rows_of_vt(self):
        dims = {d["name"]: d for d in self.inspect(mk.build("palu"))["dims"]}
        place = next(p for p in dims["layers.1.self_attn.k_proj.rank.1"]["places"]
                     if p["tensor"].endswith("VT.weight"))
        self.assertEqual((place["axis"], place["start"], place["n_slices"], place["repeat"]),
                         (0, 31, 1, "group"))

    def test_head_count_of_pruned_heads(self):
        dims = {d["name"]: d for d in self.inspect(mk.build("pruned-heads"))["dims"]}
        slices = [dims[f"layers.{i}.self_attn.v_head"]["places"][0]["n_slices"] for i in range(3)]
        self.assertEqual(slices, [4, 3, 2])


def main():
    global GAC
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True, help="the program to test")
    args, rest = parser.parse_known_args()
    GAC = os.path.abspath(args.gac)
    program = unittest.main(argv=[sys.argv[0], *rest], exit=False)
    result = program.result
    failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
    sys.stderr.flush()
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
