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
import json
import os
import random
import struct
import sys

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1,
               "BOOL": 1}
FILL_CHUNK = 1 << 20

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
LINEARS = tuple("self_attn." + p for p in ATTENTION) + tuple("mlp." + p for p in MLP)


class Checkpoint:
    """Tensors (name -> (dtype, shape)) in file order, and a config."""

    def __init__(self, config, dtype="BF16", max_shard_bytes=5_000_000_000):
        self.config = config
        self.dtype = dtype
        self.max_shard_bytes = max_shard_bytes
        self.tensors = {}

    def add(self, name, *shape, dtype=None):
        assert name not in self.tensors, name
        self.tensors[name] = (dtype or self.dtype, tuple(shape))

    def shape(self, name):
        return self.tensors[name][1]

    def drop(self, *names):
        for name in names:
            del self.tensors[name]

    def reshape(self, name, *shape):
        self.tensors[name] = (self.tensors[name][0], tuple(shape))

    def rename(self, old, new):
        self.replace(old, {new: self.shape(old)})

    def replace(self, name, shapes):
        """Puts the tensors of shapes (name -> shape) where name was."""
        dtype = self.tensors[name][0]
        new = {n: (dtype, tuple(s)) for n, s in shapes.items()}
        kept = [(n, t) for n, t in self.tensors.items() if n not in new or n == name]
        self.tensors = {}
        for n, tensor in kept:
            self.tensors.update(new if n == name else {n: tensor})

    @staticmethod
    def _n_elements(shape):
        n = 1
        for size in shape:
            n *= size
        return n

    def tensor_bytes(self, name):
        dtype, shape = self.tensors[name]
        return DTYPE_BYTES[dtype] * self._n_elements(shape)

    @property
    def n_params(self):
        return sum(self._n_elements(shape) for _, shape in self.tensors.values())

    @property
    def size_bytes(self):
        return sum(map(self.tensor_bytes, self.tensors))

    def shards(self):
        """Names per shard: filled in order, a new one when the limit is reached."""
        shards, room = [], 0
        for name in self.tensors:
            size = self.tensor_bytes(name)
            if not shards or size > room:
                shards.append([])
                room = self.max_shard_bytes
            shards[-1].append(name)
            room -= size
        return shards

    def write_file(self, path, names=None, fill=None):
        """One safetensors file. fill: None (sparse) or a random.Random."""
        names = list(self.tensors) if names is None else names
        names.sort(key=lambda n: (-DTYPE_BYTES[self.tensors[n][0]], n))
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name in names:
            begin, end = end, end + self.tensor_bytes(name)
            dtype, shape = self.tensors[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            if fill is None:
                file.truncate(8 + len(text) + end)
            else:
                for name in names:
                    for chunk in self._random_chunks(name, fill):
                        file.write(chunk)

    def _random_chunks(self, name, rng):
        """Random bytes; floating values are finite and below 2 in magnitude."""
        dtype, left = self.tensors[name][0], self.tensor_bytes(name)
        width = DTYPE_BYTES[dtype]
        no_top_exponent_bit = bytes(b & 0xBF for b in range(256))
        while left:
            chunk = bytearray(rng.randbytes(min(left, FILL_CHUNK)))
            if dtype in ("F64", "F32", "F16", "BF16"):
                chunk[width - 1::width] = chunk[width - 1::width].translate(no_top_exponent_bit)
            left -= len(chunk)
            yield chunk

    def write(self, directory, seed=None):
        """The whole directory: config, one file or shards with their index."""
        os.makedirs(directory, exist_ok=True)
        fill = None if seed is None else random.Random(seed)
        shards = self.shards()
        weight_map = {}
        for i, names in enumerate(shards):
            file = "model.safetensors"
            if len(shards) > 1:
                file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            weight_map.update(dict.fromkeys(names, file))
            self.write_file(os.path.join(directory, file), names, fill)
        if len(shards) > 1:
            index = {"metadata": {"total_size": self.size_bytes}, "weight_map": weight_map}
            _write_json(os.path.join(directory, "model.safetensors.index.json"), index)
        if self.config is not None:
            _write_json(os.path.join(directory, "config.json"), self.config)


def _write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


RECIPES = {}


def recipe(name):
    """Registers a function that returns a Checkpoint; its docstring describes it."""
    def register(function):
        RECIPES[name] = function
        return function
    return register


def build(name, **options):
    return RECIPES[name](**options)


# ---- Families: Llama and those that differ from it in a few tensors ---------


def gated_mlp(ck, prefix, hidden, width):
    """prefix.{gate,up,down}_proj of a SwiGLU MLP or of one expert."""
    ck.add(prefix + ".gate_proj.weight", width, hidden)
    ck.add(prefix + ".up_proj.weight", width, hidden)
    ck.add(prefix + ".down_proj.weight", hidden, width)


def llama_like(n_layers=2, hidden=64, n_heads=4, n_kv_heads=2, head_dim=None, mlp=172, vocab=80,
               dtype="BF16", tied=False, qkv_bias=False, qk_norm=False, add_mlp=None,
               model_type="llama", architecture="LlamaForCausalLM", **config):
    """A decoder with RMSNorm, rotary embedding and a gated MLP.

    head_dim is written to the config only where given. add_mlp(ck, layer,
    prefix) replaces the MLP's tensors."""
    stated = {} if head_dim is None else {"head_dim": head_dim}
    head_dim = head_dim or hidden // n_heads
    ck = Checkpoint({
        "architectures": [architecture], "model_type": model_type, "hidden_size": hidden,
        "intermediate_size": mlp, "num_hidden_layers": n_layers, "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads, **stated, "hidden_act": "silu", "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0, "max_position_embeddings": 8192, "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "torch_dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype], **config,
    }, dtype)
    ck.add("model.embed_tokens.weight", vocab, hidden)
    for i in range(n_layers):
        layer = f"model.layers.{i}"
        for p, n in zip("qkv", (n_heads, n_kv_heads, n_kv_heads)):
            ck.add(f"{layer}.self_attn.{p}_proj.weight", n * head_dim, hidden)
            if qkv_bias:
                ck.add(f"{layer}.self_attn.{p}_proj.bias", n * head_dim)
        ck.add(f"{layer}.self_attn.o_proj.weight", hidden, n_heads * head_dim)
        if qk_norm:
            ck.add(f"{layer}.self_attn.q_norm.weight", head_dim)
            ck.add(f"{layer}.self_attn.k_norm.weight", head_dim)
        if add_mlp:
            add_mlp(ck, i, layer)
        else:
            gated_mlp(ck, layer + ".mlp", hidden, mlp)
        ck.add(f"{layer}.input_layernorm.weight", hidden)
        ck.add(f"{layer}.post_attention_layernorm.weight", hidden)
    ck.add("model.norm.weight", hidden)
    if not tied:
        ck.add("lm_head.weight", vocab, hidden)
    return ck


def llama3_8b(**changes):
    return llama_like(n_layers=32, hidden=4096, n_heads=32, n_kv_heads=8, mlp=14336, vocab=128256,
                      **changes)


@recipe("llama-405b")
def llama_405b():
    """Llama-3.1-405B: 126 layers, BF16, 191 shards, 812 GB apparent"""
    return llama_like(n_layers=126, hidden=16384, n_heads=128, n_kv_heads=8, mlp=53248,
                      vocab=128256)


@recipe("llama")
def llama():
    """small Llama, MLP width 172"""
    return llama_like()


@recipe("mistral")
def mistral():
    """small Mistral, head_dim stated in the config"""
    return llama_like(model_type="mistral", architecture="MistralForCausalLM", head_dim=24, mlp=192,
                      sliding_window=None)


@recipe("qwen2")
def qwen2():
    """small Qwen2: biases on q, k and v"""
    return llama_like(model_type="qwen2", architecture="Qwen2ForCausalLM", qkv_bias=True)


@recipe("qwen3")
def qwen3():
    """small Qwen3: a norm over each head of q and k"""
    return llama_like(model_type="qwen3", architecture="Qwen3ForCausalLM", head_dim=32, mlp=192,
                      qk_norm=True)


@recipe("gemma")
def gemma():
    """small Gemma: tied embeddings, one kv head"""
    return llama_like(model_type="gemma", architecture="GemmaForCausalLM", head_dim=32,
                      n_kv_heads=1, tied=True, hidden_activation="gelu_pytorch_tanh")


@recipe("phi3")
def phi3():
    """small Phi-3: fused qkv_proj and gate_up_proj"""
    ck = llama_like(model_type="phi3", architecture="Phi3ForCausalLM")
    for i in range(2):
        attn, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        ck.drop(attn + "k_proj.weight", attn + "v_proj.weight", mlp + "up_proj.weight")
        ck.replace(attn + "q_proj.weight", {attn + "qkv_proj.weight": ((4 + 2 + 2) * 16, 64)})
        ck.replace(mlp + "gate_proj.weight", {mlp + "gate_up_proj.weight": (2 * 172, 64)})
    return ck


@recipe("mixtral")
def mixtral():
    """small Mixtral: block_sparse_moe, experts.{e}.w1/w2/w3"""
    def moe(ck, _, layer):
        ck.add(f"{layer}.block_sparse_moe.gate.weight", 4, 64)
        for e in range(4):
            expert = f"{layer}.block_sparse_moe.experts.{e}"
            ck.add(expert + ".w1.weight", 100, 64)
            ck.add(expert + ".w2.weight", 64, 100)
            ck.add(expert + ".w3.weight", 100, 64)
    return llama_like(model_type="mixtral", architecture="MixtralForCausalLM", mlp=100, add_mlp=moe,
                      num_local_experts=4, num_experts_per_tok=2)


def qwen3_moe_like(add_experts):
    """Layer 0 keeps a dense MLP (mlp_only_layers), the others have experts."""
    def mlp(ck, i, layer):
        if i == 0:
            gated_mlp(ck, layer + ".mlp", 64, 192)
        else:
            ck.add(layer + ".mlp.gate.weight", 4, 64)
            add_experts(ck, layer + ".mlp.experts")
    return llama_like(model_type="qwen3_moe", architecture="Qwen3MoeForCausalLM", n_layers=3,
                      head_dim=32, mlp=192, qk_norm=True, add_mlp=mlp, num_experts=4,
                      num_experts_per_tok=2, moe_intermediate_size=44, decoder_sparse_step=1,
                      mlp_only_layers=[0])


@recipe("qwen3-moe")
def qwen3_moe():
    """small Qwen3-MoE: mlp.experts.{e}.gate_proj/up_proj/down_proj, layer 0 dense"""
    def experts(ck, prefix):
        for e in range(4):
            gated_mlp(ck, f"{prefix}.{e}", 64, 44)
    return qwen3_moe_like(experts)


@recipe("qwen3-moe-fused")
def qwen3_moe_fused():
    """small Qwen3-MoE with fused experts as transformers 5 keeps them in memory"""
    def experts(ck, prefix):
        ck.add(prefix + ".gate_up_proj", 4, 2 * 44, 64)
        ck.add(prefix + ".down_proj", 4, 64, 44)
    return qwen3_moe_like(experts)


# ---- Families with LayerNorm -------------------------------------------------


def add_affine(ck, name, *shape, n_bias):
    ck.add(name + ".weight", *shape)
    ck.add(name + ".bias", n_bias)


@recipe("gpt2")
def gpt2(prefix=False):
    """small GPT-2: Conv1D [in, out], vocab 50257, mask buffers; --prefix for transformer.*"""
    hidden, n_positions = 64, 32
    ck = Checkpoint({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": hidden, "n_head": 4,
        "n_layer": 2, "n_positions": n_positions, "n_ctx": n_positions, "vocab_size": 50257,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}, "F32")
    top = "transformer." if prefix else ""
    ck.add(top + "wte.weight", 50257, hidden)
    ck.add(top + "wpe.weight", n_positions, hidden)
    for i in range(2):
        h = f"{top}h.{i}."
        add_affine(ck, h + "ln_1", hidden, n_bias=hidden)
        if not prefix:  # the published file carries the causal mask
            ck.add(h + "attn.bias", 1, 1, n_positions, n_positions)
        add_affine(ck, h + "attn.c_attn", hidden, 3 * hidden, n_bias=3 * hidden)
        add_affine(ck, h + "attn.c_proj", hidden, hidden, n_bias=hidden)
        add_affine(ck, h + "ln_2", hidden, n_bias=hidden)
        add_affine(ck, h + "mlp.c_fc", hidden, 4 * hidden, n_bias=4 * hidden)
        add_affine(ck, h + "mlp.c_proj", 4 * hidden, hidden, n_bias=hidden)
    add_affine(ck, top + "ln_f", hidden, n_bias=hidden)
    return ck


def opt_like(embed, norm_before):
    hidden, mlp, vocab, n_positions = 64, 252, 80, 32
    ck = Checkpoint({
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": hidden,
        "ffn_dim": mlp, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": vocab,
        "word_embed_proj_dim": embed, "max_position_embeddings": n_positions,
        "activation_function": "relu", "do_layer_norm_before": norm_before,
        "torch_dtype": "float16"}, "F16")
    top = "model.decoder."
    ck.add(top + "embed_tokens.weight", vocab, embed)
    ck.add(top + "embed_positions.weight", n_positions + 2, hidden)
    if embed != hidden:
        ck.add(top + "project_in.weight", hidden, embed)
        ck.add(top + "project_out.weight", embed, hidden)
    for i in range(2):
        layer = f"{top}layers.{i}."
        for p in ("k_proj", "v_proj", "q_proj", "out_proj"):
            add_affine(ck, layer + "self_attn." + p, hidden, hidden, n_bias=hidden)
        add_affine(ck, layer + "self_attn_layer_norm", hidden, n_bias=hidden)
        add_affine(ck, layer + "fc1", mlp, hidden, n_bias=mlp)
        add_affine(ck, layer + "fc2", hidden, mlp, n_bias=hidden)
        add_affine(ck, layer + "final_layer_norm", hidden, n_bias=hidden)
    if norm_before:
        add_affine(ck, top + "final_layer_norm", hidden, n_bias=hidden)
    return ck


@recipe("opt")
def opt():
    """small OPT: ReLU, biases everywhere, learned positions"""
    return opt_like(embed=64, norm_before=True)


@recipe("opt-350m")
def opt_350m():
    """small OPT in the manner of opt-350m: project_in, project_out, norm after"""
    return opt_like(embed=40, norm_before=False)


# ---- Compressors: factorised -------------------------------------------------


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


# ---- Compressors: pruned -----------------------------------------------------


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
