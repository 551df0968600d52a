"""A Llama in a few lines of numpy and FP64: the judge of what gac computes.

Dense or factorised as SVD-LLM stores it; any width, no biases, plain rotary
embedding. Also makes a badly sized variant of a dense model.
"""
import json
import os
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

LINEARS = ["self_attn." + p for p in ("q", "k", "v", "o")] + ["mlp." + p for p in
                                                             ("gate", "up", "down")]


class Llama:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        stored = load_file(os.path.join(folder, "model.safetensors"))
        self.tensors = {name: t.astype(np.float64) for name, t in stored.items()}
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.limit = self.config["max_position_embeddings"]

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def linear(self, layer, name, x):
        stem = f"model.layers.{layer}.{name}"
        if f"{stem}_proj.weight" in self.tensors:
            return x @ self.tensors[f"{stem}_proj.weight"].T
        return x @ self.tensors[f"{stem}_v_proj.weight"].T @ self.tensors[f"{stem}_u_proj.weight"].T

    def norm(self, name, x):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.tensors[name + ".weight"]

    def rotate(self, x):
        """x (heads, tokens, size), pairs half a head apart."""
        n, size = x.shape[1:]
        rope = self.config.get("rope_parameters") or {}
        theta = self.config.get("rope_theta") or rope.get("rope_theta", 10000)
        angles = np.outer(np.arange(n), theta ** (-np.arange(0, size, 2) / size))
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = x[..., :size // 2], x[..., size // 2:]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def attention(self, layer, x):
        n_heads = self.config["num_attention_heads"]
        n_groups = self.config.get("num_key_value_heads") or n_heads
        n = len(x)
        heads = []
        for name, count in (("q", n_heads), ("k", n_groups), ("v", n_groups)):
            y = self.linear(layer, "self_attn." + name, x)
            heads.append(y.reshape(n, count, -1).transpose(1, 0, 2))
        q, k = self.rotate(heads[0]), self.rotate(heads[1])
        k, v = (np.repeat(t, n_heads // n_groups, 0) for t in (k, heads[2]))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ v
        return self.linear(layer, "self_attn.o", out.transpose(1, 0, 2).reshape(n, -1))

    def logits(self, ids):
        """(tokens, vocab)"""
        x = self.tensors["model.embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            stem = f"model.layers.{layer}."
            x = x + self.attention(layer, self.norm(stem + "input_layernorm", x))
            y = self.norm(stem + "post_attention_layernorm", x)
            gate, up = (self.linear(layer, "mlp." + p, y) for p in ("gate", "up"))
            x = x + self.linear(layer, "mlp.down", gate / (1 + np.exp(-gate)) * up)
        tied = self.config.get("tie_word_embeddings")
        head = "model.embed_tokens.weight" if tied else "lm_head.weight"
        return self.norm("model.norm", x) @ self.tensors[head].T

    def losses(self, ids):
        logits = self.logits(ids[:-1])
        top = logits.max(-1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        return total - logits[np.arange(len(ids) - 1), ids[1:]]

    def perplexity(self, ids, window):
        windows = [ids[i:i + window] for i in range(0, len(ids), window)]
        losses = np.concatenate([self.losses(w) for w in windows if len(w) > 1])
        value = np.exp(losses.mean())
        return value, value * losses.std(ddof=1) / np.sqrt(len(losses)), len(losses)

    def greedy(self, ids, n):
        ids = list(ids)
        for _ in range(n):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[-n:]


def write_variant(folder, out, change):
    """A copy of a model with its tensors, as stored, changed by change(tensors, config)."""
    shutil.copytree(folder, out)
    path = os.path.join(out, "model.safetensors")
    tensors = load_file(path)
    with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    change(tensors, config)
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, path, {"format": "pt"})
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def make_odd(tensors, config):
    """Factorises every linear and cuts the MLPs, to sizes no GPU likes."""
    for layer in range(config["num_hidden_layers"]):
        width = tensors[f"model.layers.{layer}.mlp.gate_proj.weight"].shape[0] - 5 - 2 * layer
        for i, name in enumerate(LINEARS):
            stem = f"model.layers.{layer}.{name}"
            weight = tensors.pop(f"{stem}_proj.weight")
            dtype, weight = weight.dtype, weight.astype(np.float64)
            weight = weight[:width] if name in ("mlp.gate", "mlp.up") else weight
            weight = weight[:, :width] if name == "mlp.down" else weight
            u, s, v = np.linalg.svd(weight, full_matrices=False)
            rank = (len(s) - len(s) // 8 - i - layer) | 1
            root = np.sqrt(s[:rank])
            tensors[f"{stem}_u_proj.weight"] = (u[:, :rank] * root).astype(dtype)
            tensors[f"{stem}_v_proj.weight"] = (root[:, None] * v[:rank]).astype(dtype)
