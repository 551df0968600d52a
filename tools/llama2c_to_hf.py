#!/usr/bin/env python3
"""Converts a llama2.c model (legacy format) to a Hugging Face Llama directory.

    llama2c_to_hf.py MODEL.bin TOKENIZER.bin OUT

OUT must not exist; it appears complete or not at all. Weights stay F32. The
tokenizer is copied unchanged as tokenizer.bin.

llama2.c rotates neighbouring rows (0,1), (2,3), … of a query or key head;
Hugging Face rotates row i with row i + head_dim/2. Rows of q and k are
therefore put in the order 0, 2, 4, …, 1, 3, 5, … inside each head.
"""

import json
import os
import shutil
import struct
import sys
import tempfile

FLOAT_BYTES = 4
HEADER = struct.Struct("<7i")


class BadModel(Exception):
    pass


class Shape:
    """The seven numbers at the start of the file, checked."""

    def __init__(self, header):
        if len(header) < HEADER.size:
            raise BadModel(f"{len(header)} bytes, shorter than the header of {HEADER.size}")
        (self.dim, self.hidden_dim, self.n_layers, self.n_heads, self.n_kv_heads,
         vocab_size, self.max_seq_len) = HEADER.unpack(header[:HEADER.size])
        self.tied = vocab_size > 0  # a negative size says that lm_head is stored too
        self.vocab_size = abs(vocab_size)
        for name, value in vars(self).items():
            if name != "tied" and not 0 < value < 1 << 24:
                raise BadModel(f"{name} is {value}")
        if self.dim % self.n_heads or self.n_heads % self.n_kv_heads:
            raise BadModel(f"heads do not divide: dim {self.dim}, {self.n_heads} heads, "
                           f"{self.n_kv_heads} key heads")
        self.head_dim = self.dim // self.n_heads
        if self.head_dim % 2:
            raise BadModel(f"head size {self.head_dim} is odd, rotary embedding needs pairs")
        self.kv_dim = self.head_dim * self.n_kv_heads

    def blocks(self):
        """Name, number of layers (0: not per layer), shape; in the file's order."""
        per_layer, half = self.n_layers, self.head_dim // 2
        blocks = [
            ("model.embed_tokens.weight", 0, (self.vocab_size, self.dim)),
            ("input_layernorm.weight", per_layer, (self.dim,)),
            ("self_attn.q_proj.weight", per_layer, (self.dim, self.dim)),
            ("self_attn.k_proj.weight", per_layer, (self.kv_dim, self.dim)),
            ("self_attn.v_proj.weight", per_layer, (self.kv_dim, self.dim)),
            ("self_attn.o_proj.weight", per_layer, (self.dim, self.dim)),
            ("post_attention_layernorm.weight", per_layer, (self.dim,)),
            ("mlp.gate_proj.weight", per_layer, (self.hidden_dim, self.dim)),
            ("mlp.down_proj.weight", per_layer, (self.dim, self.hidden_dim)),
            ("mlp.up_proj.weight", per_layer, (self.hidden_dim, self.dim)),
            ("model.norm.weight", 0, (self.dim,)),
            (None, 0, (self.max_seq_len, half)),  # cosines and sines: computed
            (None, 0, (self.max_seq_len, half)),  # anew by every reader
        ]
        if not self.tied:
            blocks.append(("lm_head.weight", 0, (self.vocab_size, self.dim)))
        return blocks

    def file_bytes(self):
        n_floats = 0
        for _, n_layers, shape in self.blocks():
            n_elements = 1
            for size in shape:
                n_elements *= size
            n_floats += n_elements * (n_layers or 1)
        return HEADER.size + n_floats * FLOAT_BYTES

    def config(self):
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.dim,
            "initializer_range": 0.02,
            "intermediate_size": self.hidden_dim,
            "max_position_embeddings": self.max_seq_len,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.n_heads,
            "num_hidden_layers": self.n_layers,
            "num_key_value_heads": self.n_kv_heads,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float32",
            "vocab_size": self.vocab_size,
        }


def split_halves(data, n_heads, head_dim, row_bytes):
    """Rows of each head from pairs to halves: (n_heads * head_dim, …) both ways."""
    order = list(range(0, head_dim, 2)) + list(range(1, head_dim, 2))
    rows = []
    for head in range(n_heads):
        for row in order:
            start = (head * head_dim + row) * row_bytes
            rows.append(data[start:start + row_bytes])
    return b"".join(rows)


def read_model(path):
    """The shape, and {name: (shape, bytes)} in Hugging Face's convention."""
    with open(path, "rb") as file:
        data = file.read()
    shape = Shape(data)
    if len(data) != shape.file_bytes():
        raise BadModel(f"{len(data)} bytes where its header asks for {shape.file_bytes()}")
    tensors = {}
    position = HEADER.size
    for name, n_layers, sizes in shape.blocks():
        size = FLOAT_BYTES
        for axis in sizes:
            size *= axis
        for layer in range(n_layers or 1):
            part = data[position:position + size]
            position += size
            if name is None:
                continue
            row_bytes = FLOAT_BYTES * shape.dim
            if name.endswith("q_proj.weight"):
                part = split_halves(part, shape.n_heads, shape.head_dim, row_bytes)
            elif name.endswith("k_proj.weight"):
                part = split_halves(part, shape.n_kv_heads, shape.head_dim, row_bytes)
            full = f"model.layers.{layer}.{name}" if n_layers else name
            tensors[full] = (sizes, part)
    return shape, tensors


def write_safetensors(path, tensors):
    header = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in sorted(tensors):
        sizes, data = tensors[name]
        header[name] = {"dtype": "F32", "shape": list(sizes),
                        "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(tensors[name][1])


def convert(model_path, tokenizer_path, out):
    if os.path.lexists(out):
        raise BadModel(f"{out} exists")
    try:
        shape, tensors = read_model(model_path)
    except BadModel as error:
        raise BadModel(f"{model_path}: {error}") from None
    parent = os.path.dirname(os.path.abspath(out))
    temporary = tempfile.mkdtemp(prefix=".llama2c-", dir=parent)
    try:
        write_safetensors(os.path.join(temporary, "model.safetensors"), tensors)
        with open(os.path.join(temporary, "config.json"), "w", encoding="utf-8") as file:
            json.dump(shape.config(), file, indent=2)
            file.write("\n")
        shutil.copyfile(tokenizer_path, os.path.join(temporary, "tokenizer.bin"))
        os.chmod(temporary, 0o755)
        os.rename(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def main(arguments):
    if len(arguments) != 3:
        print("usage: llama2c_to_hf.py MODEL.bin TOKENIZER.bin OUT", file=sys.stderr)
        return 2
    try:
        convert(*arguments)
    except (BadModel, OSError) as error:
        print(f"llama2c_to_hf.py: {error}", file=sys.stderr)
        return 3 if isinstance(error, BadModel) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
