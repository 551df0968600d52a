#!/usr/bin/env python3
"""Checks gac convert on a model in llama2.c's format.

    test_llama2c.py --gac build/gac [CASE...]

Both conventions are computed here, straight from their definitions: the
llama2.c file with neighbouring pairs rotated, the Hugging Face directory with
halves rotated. The logits must agree.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from safetensors import safe_open

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import llama2c_models as models  # noqa: E402
import tally  # noqa: E402

OPTIONS = argparse.Namespace()


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def rotate_pairs(x):
    """x (n_tokens, n_heads, head_dim); rows 2i and 2i+1 turn together."""
    cos, sin = angles(x)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def rotate_halves(x):
    """x (n_tokens, n_heads, head_dim); rows i and i + head_dim/2 turn together."""
    cos, sin = angles(x)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def angles(x):
    n_tokens, _, head_dim = x.shape
    frequency = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.arange(n_tokens)[:, None, None] * frequency
    return np.cos(angle), np.sin(angle)


def forward(weights, shape, tokens, rotate):
    """Logits (n_tokens, vocab). weights[name] is float64; layers have a leading axis."""
    dim, n_layers, n_heads, n_kv_heads = shape
    head_dim = dim // n_heads
    x = weights["embed"][tokens]
    n_tokens = len(tokens)
    mask = np.triu(np.full((n_tokens, n_tokens), -np.inf), 1)
    for i in range(n_layers):
        h = rms_norm(x, weights["att_norm"][i])
        q = rotate((h @ weights["q"][i].T).reshape(n_tokens, n_heads, head_dim))
        k = rotate((h @ weights["k"][i].T).reshape(n_tokens, n_kv_heads, head_dim))
        v = (h @ weights["v"][i].T).reshape(n_tokens, n_kv_heads, head_dim)
        k, v = (np.repeat(t, n_heads // n_kv_heads, 1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", scores, v).reshape(n_tokens, dim) @ weights["o"][i].T
        h = rms_norm(x, weights["mlp_norm"][i])
        gate = h @ weights["gate"][i].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weights["up"][i].T)) @ weights["down"][i].T
    return rms_norm(x, weights["norm"]) @ weights.get("lm_head", weights["embed"]).T


HF_NAMES = {
    "att_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}


def read_hugging_face(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    with safe_open(os.path.join(folder, "model.safetensors"), framework="np") as file:
        tensors = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}
    n_layers = config["num_hidden_layers"]
    weights = {"embed": tensors.pop("model.embed_tokens.weight"),
               "norm": tensors.pop("model.norm.weight")}
    for short, long in HF_NAMES.items():
        weights[short] = np.stack(
            [tensors.pop(f"model.layers.{i}.{long}.weight") for i in range(n_layers)])
    if not config["tie_word_embeddings"]:
        weights["lm_head"] = tensors.pop("lm_head.weight")
    if tensors:
        raise AssertionError(f"tensors left over: {sorted(tensors)}")
    return weights, (config["hidden_size"], n_layers, config["num_attention_heads"],
                     config["num_key_value_heads"]), config


class Llama2cTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "model.bin")
        cls.tokenizer = os.path.join(cls.folder.name, "tokenizer.bin")
        tokens, scores = models.vocabulary()
        cls.vocab = len(tokens)
        models.write_tokenizer(cls.tokenizer, tokens, scores)
        cls.weights = models.write_model(cls.model, cls.vocab)
        cls.n_bytes = sum(4 * w.size for w in cls.weights.values())
        cls.out = os.path.join(cls.folder.name, "out")
        cls.convert(cls.model, cls.out)
        cls.files = sorted(os.listdir(cls.folder.name))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def convert(cls, model, out, status=0):
        result = subprocess.run([OPTIONS.gac, "convert", model, "--tokenizer", cls.tokenizer, "-o",
                                 out], capture_output=True, text=True, check=False)
        if result.returncode != status:
            raise AssertionError(f"exit {result.returncode}: {result.stderr}")
        return result.stderr

    def test_config(self):
        _, _, config = read_hugging_face(self.out)
        self.assertEqual(config["intermediate_size"], models.WIDTH)
        self.assertEqual(config["num_key_value_heads"], models.N_KV_HEADS)
        self.assertTrue(config["tie_word_embeddings"])

    def test_byte_count(self):
        path = os.path.join(self.out, "model.safetensors")
        with open(path, "rb") as file:
            header = struct.unpack("<Q", file.read(8))[0]
        self.assertEqual(os.path.getsize(path) - 8 - header, self.n_bytes)
        self.assertEqual(os.path.getsize(self.model), 28 + self.n_bytes + models.TABLE_BYTES)

    def check_function(self, weights, out):
        tokens = np.array([1, 403, 407, 261, 378, 5, 511, 0, 37, 99])
        theirs, shape, _ = read_hugging_face(out)
        self.assertEqual(shape, (models.DIM, models.N_LAYERS, models.N_HEADS, models.N_KV_HEADS))
        expected = forward(weights, shape, tokens, rotate_pairs)
        got = forward(theirs, shape, tokens, rotate_halves)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
        unconverted = forward(weights, shape, tokens, rotate_halves)
        self.assertGreater(np.abs(unconverted - expected).max(), 0.1)

    def test_same_function(self):
        self.check_function(self.weights, self.out)

    def test_untied(self):
        with tempfile.TemporaryDirectory() as folder:
            model, out = os.path.join(folder, "untied.bin"), os.path.join(folder, "out")
            weights = models.write_model(model, self.vocab, tied=False, seed=5)
            self.convert(model, out)
            self.check_function(weights, out)

    def test_bad_sizes_are_refused(self):
        with open(self.model, "rb") as file:
            data = file.read()
        bad = os.path.join(self.folder.name, "bad.bin")
        for change in (data[:-4], data + b"\0", data[:20], struct.pack("<i", -1) + data[4:],
                       struct.pack("<i", models.DIM + 1) + data[4:]):
            with open(bad, "wb") as file:
                file.write(change)
            message = self.convert(bad, os.path.join(self.folder.name, "refused"), 3)
            self.assertIn("bad.bin", message)
            self.assertEqual(message.count("\n"), 1)
        os.unlink(bad)
        self.assertEqual(sorted(os.listdir(self.folder.name)), self.files)

    def test_existing_target_is_refused(self):
        self.assertIn("exists", self.convert(self.model, self.out, 1))

    def test_bad_tokenizer_is_refused(self):
        with open(self.tokenizer, "rb") as file:
            data = file.read()
        bad = os.path.join(self.folder.name, "bad_tok.bin")
        out = os.path.join(self.folder.name, "refused")
        for change, word in ((data[:-1], f"token {self.vocab - 1}"),
                             (data + b"\0", "behind"), (data[:8], f"{self.vocab} tokens"),
                             (data[:4] + struct.pack("<fi", float("nan"), 5) + data[12:], "score"),
                             (data[:8] + struct.pack("<i", -1) + data[12:], "token 0"),
                             (data.replace(b"the", b"\xff\xfex", 1), "UTF-8")):
            with open(bad, "wb") as file:
                file.write(change)
            result = subprocess.run([OPTIONS.gac, "convert", self.model, "--tokenizer", bad, "-o",
                                     out], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn(word, result.stderr)
            self.assertIn("bad_tok.bin", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
        os.unlink(bad)
        self.assertFalse(os.path.exists(out))

    def test_wrapping_sizes_are_refused(self):
        """Sizes whose product is the size of the file only modulo 2^64."""
        bad = os.path.join(self.folder.name, "wrap.bin")
        with open(bad, "wb") as file:
            file.write(struct.pack("<7i", 1 << 24, 1 << 24, 4096, 2, 1, 1 << 24, 1 << 24))
            file.truncate(1 << 20)
        message = self.convert(bad, os.path.join(self.folder.name, "refused"), 3)
        self.assertIn("wrap.bin", message)
        os.unlink(bad)

    def test_inspect(self):
        result = subprocess.run([OPTIONS.gac, "inspect", "--json", self.out],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        inspected = json.loads(result.stdout)
        self.assertEqual(inspected["checkpoint"]["family"], "llama")
        self.assertEqual(inspected["checkpoint"]["bytes"], self.n_bytes)
        widths = [d for d in inspected["dims"] if d["role"] == "mlp_width"]
        self.assertEqual([d["size"] for d in widths],
                         [models.WIDTH] * models.N_LAYERS)
        self.assertFalse(any(d["aligned"] for d in widths))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("cases", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    return tally.run(OPTIONS.cases)


if __name__ == "__main__":
    sys.exit(main())
