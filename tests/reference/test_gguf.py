#!/usr/bin/env python3
"""Checks gac convert on GGUF files, with the gguf package as the reference.

    test_gguf.py --gac build/gac [--smollm2 FILE.gguf]

Models of random blocks must come out bit for bit as gguf dequantises them, with
the rows of q and k where Hugging Face has them. The real SmolLM2 is checked
where tools/get_smollm2.sh has put it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest

import gguf
import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import gguf_models as models  # noqa: E402
import tally  # noqa: E402

OPTIONS = argparse.Namespace()


def read_tensors(folder):
    """{name: array}; BF16, which numpy lacks, as its 16 bits."""
    made = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as stream:
            data = stream.read()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[entry["dtype"]]
            begin, end = (8 + size + x for x in entry["data_offsets"])
            made[name] = np.frombuffer(data[begin:end], kind).reshape(entry["shape"])
    return made


def to_bf16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gac-gguf-")
        self.addCleanup(self.folder.cleanup)
        self.file = os.path.join(self.folder.name, "model.gguf")
        self.out = os.path.join(self.folder.name, "out")
        self.rng = np.random.default_rng(7)

    def gac(self, *arguments, status=0):
        result = subprocess.run([OPTIONS.gac, *arguments], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr if status else result.stdout

    def convert(self, *arguments, status=0):
        return self.gac("convert", self.file, "-o", self.out, "--no-sync", *arguments,
                        status=status)

    def config(self):
        with open(os.path.join(self.out, "config.json"), encoding="utf-8") as file:
            return json.load(file)

    def same(self, got, expected, name):
        self.assertEqual(got.shape, expected.shape, name)
        self.assertEqual(got.dtype, expected.dtype, name)
        self.assertTrue(np.array_equal(got, expected, equal_nan=got.dtype != np.uint16), name)
        numbers = ~np.isnan(expected) if got.dtype != np.uint16 else np.ones(got.shape, bool)
        kind = {4: np.uint32, 2: np.uint16}[got.dtype.itemsize]
        self.assertTrue(np.array_equal(got.view(kind)[numbers], expected.view(kind)[numbers]),
                        f"{name}: signs of zero")

    def random_model(self, arch, **options):
        """Float weights in Hugging Face's order, written as arch stores them."""
        pairs = arch == "llama"
        head = options.get("head", models.HEAD)
        layout = models.shapes(arch, head, options.pop("tied", True), options.pop("biases", ()))
        weights = {name: self.rng.standard_normal(shape).astype(np.float32)
                   for name, (_, shape) in layout.items()}
        stored = {}
        for name, (short, _) in layout.items():
            n_heads = models.rotated_heads(name) if pairs else 0
            stored[short] = models.permute(weights[name], n_heads) if n_heads else weights[name]
        stored.update(options.pop("more", {}))
        models.write(self.file, arch, stored, **options)
        return weights

    def check_inspect(self, family, n_tensors):
        result = json.loads(self.gac("inspect", "--json", self.out))
        self.assertEqual(result["checkpoint"]["family"], family)
        self.assertEqual(result["checkpoint"]["n_tensors"], n_tensors)
        self.assertEqual(result["unexplained"], [])


class QuantTest(Case):
    def check(self, quant):
        """Every matrix of a llama in one type, from random bytes, bit for bit."""
        kind = models.TYPES[quant]
        layout = models.shapes("llama", tied=False)
        stored, kinds, expected = {}, {}, {}
        for name, (short, shape) in layout.items():
            own = kind if len(shape) == 2 else models.TYPES.F32
            stored[short] = models.random_blocks(self.rng, shape, own)
            kinds[short] = own
            floats = models.to_floats(stored[short], own)
            n_heads = models.rotated_heads(name)
            expected[name] = models.unpermute(floats, n_heads) if n_heads else floats
        models.write(self.file, "llama", stored, kinds, alignment=64 if quant == "Q6_K" else None)
        self.convert("--dtype", "F32")
        got = read_tensors(self.out)
        self.assertEqual(set(got), set(expected))
        for name, value in expected.items():
            self.same(got[name], value, f"{quant} {name}")

    def test_types(self):
        for quant in models.QUANTS:
            with self.subTest(quant):
                self.check(quant)
                os.rename(self.out, self.out + quant)

    def test_nan_does_occur(self):
        """The test above is about scales that are NaN too."""
        blocks = models.random_blocks(self.rng, (512, 512), models.TYPES.Q4_1)
        self.assertTrue(np.isnan(models.to_floats(blocks, models.TYPES.Q4_1)).any())

    def test_rounding(self):
        """Halves of the last place, subnormals and the largest numbers."""
        special = np.array([0.0, -0.0, 2.0 ** -24, 2.0 ** -25, 1.5 * 2.0 ** -25, 2.0 ** -14,
                            65504, 65519.99, 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11, 6e-5, 1e-45,
                            1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8, np.inf, -np.inf, np.nan],
                           np.float32)
        weights = self.random_model("qwen2", biases=("self_attn.q_proj", "self_attn.k_proj",
                                                     "self_attn.v_proj"))
        layout = models.shapes("qwen2", biases=("self_attn.q_proj", "self_attn.k_proj",
                                                "self_attn.v_proj"))
        embed = weights["model.embed_tokens.weight"]
        embed[0, :len(special)] = special
        embed[1:] *= np.exp2(self.rng.integers(-30, 12, embed[1:].shape)).astype(np.float32)
        models.write(self.file, "qwen2", {layout[n][0]: w for n, w in weights.items()})
        self.convert("--dtype", "F16")
        for name, got in read_tensors(self.out).items():
            self.same(got, weights[name].astype(np.float16), name)
        self.convert("--dtype", "BF16", "--force")
        embed[np.isnan(embed)] = 0
        got = read_tensors(self.out)["model.embed_tokens.weight"].copy()
        got[0, len(special) - 1] = 0
        self.same(got, to_bf16(embed), "BF16")
        self.assertEqual(self.config()["torch_dtype"], "bfloat16")

    def test_too_large_for_f16(self):
        weights = self.random_model("llama")
        weights["model.norm.weight"][3] = 65520
        layout = models.shapes("llama")
        models.write(self.file, "llama", {layout[n][0]: w for n, w in weights.items()})
        message = self.convert("--dtype", "F16", status=2)
        self.assertIn("model.norm.weight", message)
        self.assertEqual(os.listdir(self.folder.name), ["model.gguf"])


class ModelTest(Case):
    def check(self, arch, family, **options):
        weights = self.random_model(arch, **options)
        self.convert()
        got = read_tensors(self.out)
        self.assertEqual(set(got), set(weights))
        for name, value in weights.items():
            self.same(got[name], value, name)
        self.check_inspect(family, len(weights))
        config = self.config()
        self.assertEqual(config["torch_dtype"], "float32")
        for key, value in (("hidden_size", models.HIDDEN), ("intermediate_size", models.WIDTH),
                           ("num_attention_heads", models.N_HEADS), ("rms_norm_eps", 1e-5),
                           ("num_key_value_heads", models.N_KV_HEADS), ("rope_theta", 500000.0),
                           ("num_hidden_layers", models.N_LAYERS), ("vocab_size", models.VOCAB),
                           ("max_position_embeddings", 128), ("hidden_act", "silu"),
                           ("tie_word_embeddings", options.get("tied", True))):
            self.assertEqual(config[key], value, key)
        return config

    def test_llama(self):
        config = self.check("llama", "llama")
        self.assertEqual(config["architectures"], ["LlamaForCausalLM"])
        self.assertNotIn("head_dim", config)
        self.assertNotIn("rope_scaling", config)

    def test_untied(self):
        weights = self.random_model("llama", tied=False)
        self.convert()
        self.assertFalse(self.config()["tie_word_embeddings"])
        self.same(read_tensors(self.out)["lm_head.weight"], weights["lm_head.weight"], "lm_head")

    def test_head_dim(self):
        self.assertEqual(self.check("llama", "llama", head=32)["head_dim"], 32)

    def test_biases(self):
        linears = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                   "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        config = self.check("llama", "llama", biases=linears)
        self.assertTrue(config["attention_bias"] and config["mlp_bias"])

    def test_mistral(self):
        config = self.check("llama", "mistral", name="Tiny-Mistral-7B")
        self.assertEqual(config["model_type"], "mistral")
        self.assertIsNone(config["sliding_window"])

    def test_qwen2(self):
        config = self.check("qwen2", "qwen2", biases=("self_attn.q_proj", "self_attn.k_proj",
                                                      "self_attn.v_proj"))
        self.assertEqual(config["architectures"], ["Qwen2ForCausalLM"])

    def test_qwen3(self):
        self.assertEqual(self.check("qwen3", "qwen3", head=128)["head_dim"], 128)

    def test_usual_head_of_qwen3(self):
        """Readers take 128 where nothing is stated, so hidden size / heads is stated, too."""
        self.assertEqual(self.check("qwen3", "qwen3")["head_dim"], models.HEAD)

    def test_shards(self):
        weights = self.random_model("llama")
        self.convert("--max-shard-size", "1000000")
        self.assertIn("model.safetensors.index.json", os.listdir(self.out))
        for name, value in read_tensors(self.out).items():
            self.same(value, weights[name], name)
        self.check_inspect("llama", len(weights))

    def test_rope_scaling(self):
        self.random_model("llama", keys={"add_rope_scaling_type": gguf.RopeScalingType.LINEAR,
                                         "add_rope_scaling_factor": 2.5})
        self.convert()
        self.assertEqual(self.config()["rope_scaling"], {"rope_type": "linear", "factor": 2.5})
        self.random_model("llama", tokens=lambda writer: writer.add_float32(
            "llama.rope.scale_linear", 3.0))  # the key of old files
        self.convert("--force")
        self.assertEqual(self.config()["rope_scaling"], {"rope_type": "linear", "factor": 3.0})
        self.random_model("llama", keys={"add_rope_scaling_type": gguf.RopeScalingType.YARN,
                                         "add_rope_scaling_factor": 4.0,
                                         "add_rope_scaling_orig_ctx_len": 32})
        self.convert("--force")
        self.assertEqual(self.config()["rope_scaling"],
                         {"rope_type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 32})

    def test_rope_factors(self):
        half = models.HEAD // 2
        frequencies = 500000.0 ** (-np.arange(half) / half)
        wavelengths = 2 * np.pi / frequencies
        smooth = (8192 / wavelengths - 1) / 3
        factors = np.where(wavelengths < 2048, 1, np.where(
            wavelengths > 8192, 8, 1 / ((1 - smooth) / 8 + smooth))).astype(np.float32)
        self.random_model("llama", more={"rope_freqs.weight": factors})
        self.convert()
        self.assertEqual(self.config()["rope_scaling"],
                         {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})
        odd = np.linspace(1, 3, half, dtype=np.float32)
        self.random_model("llama", more={"rope_freqs.weight": odd})
        self.convert("--force")
        scaling = self.config()["rope_scaling"]
        self.assertEqual(scaling["rope_type"], "longrope")
        self.assertTrue(np.array_equal(np.array(scaling["long_factor"], np.float32), odd))

    def test_refusals(self):
        extra = {"blk.0.ffn_gate_inp.weight": np.zeros((4, models.HIDDEN), np.float32)}
        for options, word in (({"more": extra}, "ffn_gate_inp"),
                              ({"keys": {"add_expert_count": 4}}, "experts"),
                              ({"keys": {"add_rope_dimension_count": 32}}, "rope.dimension_count"),
                              ({"biases": ("self_attn.q_proj",)}, "attn_q.bias")):
            self.random_model("llama", **options)
            message = self.convert(status=3)
            self.assertIn(word, message)
            self.assertEqual(message.count("\n"), 1)
        self.random_model("gemma")
        self.assertIn("gemma", self.convert(status=3))
        self.assertEqual(os.listdir(self.folder.name), ["model.gguf"])

    def test_existing_target(self):
        self.random_model("llama")
        self.convert()
        self.assertIn("exists", self.convert(status=1))
        self.convert("--force")

    def test_truncated(self):
        self.random_model("llama")
        with open(self.file, "rb") as file:
            data = file.read()
        with open(self.file, "wb") as file:
            file.write(data[:-4096])
        self.assertIn("not in the file", self.convert(status=3))
        self.assertEqual(os.listdir(self.folder.name), ["model.gguf"])


class SmolLM2Test(Case):
    """The real one: SmolLM2-135M-Instruct in Q4_1."""

    def setUp(self):
        super().setUp()
        if not os.path.exists(OPTIONS.smollm2):
            self.skipTest(f"{OPTIONS.smollm2} is not here; tools/get_smollm2.sh gets it")
        self.file = OPTIONS.smollm2

    def test_weights(self):
        self.convert()
        config = self.config()
        self.assertEqual(config["hidden_size"], 576)
        self.assertEqual(config["rope_theta"], 100000.0)
        self.check_inspect("llama", 272)
        names = {}
        for i in range(30):
            for name, (short, _) in models.shapes("llama").items():
                if ".layers.0." in name:
                    names[short.replace("blk.0.", f"blk.{i}.")] = name.replace(".0.", f".{i}.")
                elif ".layers." not in name:
                    names[short] = name
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        n_seen = 0
        with safe_open(os.path.join(self.out, "model.safetensors"), framework="np") as file:
            for tensor in gguf.GGUFReader(self.file).tensors:
                name = names[tensor.name]
                expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                n_heads = heads.get(name.split(".")[-2])
                if n_heads:
                    expected = models.unpermute(expected, n_heads)
                self.same(file.get_tensor(name), expected.astype(np.float16), name)
                n_seen += 1
            self.assertEqual(n_seen, len(list(file.keys())))

    def test_tokenizer(self):
        self.convert()
        tokenizer = Tokenizer.from_file(os.path.join(self.out, "tokenizer.json"))
        tokens = gguf.GGUFReader(self.file).fields["tokenizer.ggml.tokens"].contents()
        self.assertEqual(tokenizer.get_vocab_size(), len(tokens))
        for i in range(0, len(tokens), 97):
            self.assertEqual(tokenizer.id_to_token(i), tokens[i])
        text = "The year 2024 isn't\n\n  over: 3.14159 \t日本語 🙂 naïve\r\n"
        self.assertEqual(tokenizer.decode(tokenizer.encode(text).ids), text)
        # Its split rule gives every digit a token of its own; marks of chats stay whole.
        self.assertEqual(tokenizer.encode("<|im_start|>user").tokens, ["<|im_start|>", "user"])
        self.assertEqual(tokenizer.encode("in 1984").tokens, ["in", "Ġ", "1", "9", "8", "4"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gac", required=True)
    parser.add_argument("--smollm2", default=os.path.join(
        HERE, "..", "..", "build", "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("cases", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    return tally.run(OPTIONS.cases)


if __name__ == "__main__":
    sys.exit(main())
