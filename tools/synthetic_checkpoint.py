"""Synthetic checkpoints: tensors with names and shapes, a config, and files of them.

Recipes are functions that return a Checkpoint. make_checkpoint.py is the program."""
import json
import os
import random
import struct

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
            write_json(os.path.join(directory, "model.safetensors.index.json"), index)
        if self.config is not None:
            write_json(os.path.join(directory, "config.json"), self.config)


def write_json(path, value):
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


# Llama, from which most others differ in a few tensors.


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
