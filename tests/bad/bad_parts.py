"""What hostile checkpoints are put together from: safetensors files, a tiny Llama, shards."""

import json
import os
import struct

HEADER_LIMIT = 100_000_000
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class Link(str):
    """A symbolic link to this target."""


class Fifo:
    pass


class Folder:
    pass


def wrap(header, data=b"", length=None):
    """A safetensors file. length: what it claims of its header, if not the truth."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(begin=0, end=4, dtype="U8", shape=None, **more):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape,
            "data_offsets": [begin, end], **more}


def one(name="a", data=b"abcd", **fields):
    """A file with one tensor of four bytes, some fields replaced."""
    made = entry()
    made.update(fields)
    return wrap({name: {k: v for k, v in made.items() if v is not ...}}, data)


def raw(text, data=b"abcd"):
    """A file whose one tensor's entry is this text."""
    return wrap(b'{"a":{' + text + b"}}", data)


# A tiny Llama, valid, to break in one place at a time.

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16,
    "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}
SHAPES = {
    "model.embed_tokens.weight": [8, 16], "model.norm.weight": [16],
    "model.layers.0.input_layernorm.weight": [16],
    "model.layers.0.post_attention_layernorm.weight": [16],
    "model.layers.0.self_attn.q_proj.weight": [16, 16],
    "model.layers.0.self_attn.k_proj.weight": [16, 16],
    "model.layers.0.self_attn.v_proj.weight": [16, 16],
    "model.layers.0.self_attn.o_proj.weight": [16, 16],
    "model.layers.0.mlp.gate_proj.weight": [24, 16], "model.layers.0.mlp.up_proj.weight": [24, 16],
    "model.layers.0.mlp.down_proj.weight": [16, 24],
}


def llama_tensors(shapes=None):
    header, position = {}, 0
    for name, shape in (shapes or SHAPES).items():
        size = 2
        for axis in shape:
            size *= axis
        header[name] = entry(position, position + size, "BF16", shape)
        position += size
    return header, bytes(position)


def llama(config=None, model=None, **changes):
    """A directory: path inside → content."""
    text = config if config is not None else json.dumps({**CONFIG, **changes}).encode()
    return {"config.json": text, SINGLE: model or wrap(*llama_tensors())}


def without(key):
    return llama(json.dumps({k: v for k, v in CONFIG.items() if k != key}).encode())


def sharded(weight_map=None, index=None, **files):
    """Two shards, tensors a.x and a.y in the first, b.x in the second."""
    made = {
        "config.json": json.dumps(CONFIG).encode(),
        SHARDS[0]: wrap({"a.x": entry(0, 4), "a.y": entry(4, 8)}, b"abcdefgh"),
        SHARDS[1]: wrap({"b.x": entry(0, 4)}, b"abcd"),
    }
    if weight_map is None:
        weight_map = {"a.x": SHARDS[0], "a.y": SHARDS[0], "b.x": SHARDS[1]}
    made[INDEX] = index if index is not None else json.dumps(
        {"metadata": {"total_size": 12}, "weight_map": weight_map}).encode()
    for name, content in files.items():
        made[{"first": SHARDS[0], "second": SHARDS[1]}.get(name, name)] = content
    return {name: content for name, content in made.items() if content is not None}


def mapped(shard, **extra):
    """The index sends b.x to this shard."""
    return sharded({"a.x": SHARDS[0], "a.y": SHARDS[0], "b.x": shard}, **extra)


OK_ENTRY = b'"dtype":"U8","shape":[4],"data_offsets":[0,4]'
OK_FILE = wrap({"a": entry()}, b"abcd")


# Writing them.

def write_one(path, content):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if isinstance(content, Link):
        os.symlink(content, path)
    elif isinstance(content, Fifo):
        os.mkfifo(path)
    elif isinstance(content, Folder):
        os.mkdir(path)
    else:
        with open(path, "wb") as file:
            file.write(content)


def write_case(out, name, content):
    """Writes a file, or a directory from {path inside: content}; returns its path."""
    path = os.path.join(out, name)
    if callable(content):
        content = content(path)
    if not isinstance(content, dict):
        write_one(path, content)
        return path
    os.makedirs(path)
    for inside, part in content.items():
        if part is not None:
            write_one(os.path.normpath(os.path.join(path, inside)), part)
    return path
