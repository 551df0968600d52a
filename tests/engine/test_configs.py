#!/usr/bin/env python3
"""What a config may say, and a directory lack, before a model is run.

    python3 tests/engine/test_configs.py --gac build/gac [CASE...]

A model that would be computed otherwise than its config means is refused with
one line, never run with a default in place of what was not understood.
"""
import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import tally  # noqa: E402

OPTIONS = argparse.Namespace()
MODELS = os.path.join(ROOT, "tests", "data", "logits")


def read_tensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as file:
        data = file.read()
    n = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:n])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[n + t["data_offsets"][0]:n + t["data_offsets"][1]])
            for name, t in header.items()}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


class ConfigCase(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-configs-")
        self.addCleanup(holder.cleanup)
        self.folder = os.path.join(holder.name, "m")

    def make(self, model, change=None, change_tensors=None):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(os.path.join(MODELS, model), self.folder)
        path = os.path.join(self.folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        if change:
            change(config)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        if change_tensors:
            path = os.path.join(self.folder, "model.safetensors")
            tensors = read_tensors(path)
            change_tensors(tensors)
            write_tensors(path, tensors)

    def gac(self, *args):
        return subprocess.run([OPTIONS.gac, *map(str, args)], capture_output=True, timeout=600,
                              check=False, encoding="utf-8")

    def generate(self):
        return self.gac("generate", self.folder, "--ids", "1,2,3", "--max-tokens", 4, "-q",
                        "--device", "reference")

    def refused(self, says, result=None, code=3):
        result = result or self.generate()
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Agac: [^\n]*\n\Z")
        self.assertIn(says, result.stderr)

    def runs(self):
        result = self.generate()
        self.assertEqual(result.returncode, 0, result.stderr)


class Rotary(ConfigCase):
    def setting(self, model, key, value):
        self.make(model, lambda c: c["rope_parameters"].update({key: value}))

    def test_not_a_number(self):
        for model, key in (("llama-linear", "factor"), ("llama-llama3", "low_freq_factor"),
                           ("llama-yarn", "attention_factor"), ("llama", "rope_theta"),
                           ("llama-longrope", "original_max_position_embeddings")):
            for value in ("2", [1], True, {}):
                with self.subTest(model=model, key=key, value=value):
                    self.setting(model, key, value)
                    self.refused(f'"{key}" is not a number')
        self.make("llama", lambda c: c.update(max_position_embeddings="512"))
        self.refused('"max_position_embeddings" is not a number')
        self.make("llama", lambda c: c.update(max_position_embeddings=-5))
        self.refused("config.json: max_position_embeddings is not a length")

    def test_needed(self):
        for model in ("linear", "dynamic", "llama3", "yarn"):
            with self.subTest(model=model):
                self.make("llama-" + model, lambda c: c["rope_parameters"].pop("factor"))
                self.refused(f'type {model} needs "factor"')

    def test_not_settings(self):
        for value in ([], "default", 5):
            self.make("llama", lambda c, v=value: c.update(rope_parameters=v))
            self.refused("not an object")
        for value in (5, ["linear"]):
            self.setting("llama-linear", "rope_type", value)
            self.refused("not a string")

    def test_of_two_settings_rope_scaling_counts(self):
        """As in transformers: rope_scaling unless it is empty."""
        def state(scaling):
            self.make("llama-linear", lambda c: c.update(
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                rope_scaling=scaling))
            return self.gac("verify", os.path.join(MODELS, "llama-linear"), self.folder,
                            "--forward")
        # The configs differ, so it is the logits that tell.
        self.assertIn("bit-exact, all", state({"rope_type": "linear", "factor": 2.0}).stdout)
        self.assertIn("NOT bit-exact", state({"rope_type": "linear", "factor": 4.0}).stdout)
        self.assertIn("NOT bit-exact", state({}).stdout)
        state({"rope_type": "linear"})
        self.refused('type linear needs "factor"')
        state({"rope_type": "new"})
        self.refused('type "new" is not known')

    def test_null_is_nothing(self):
        self.make("llama", lambda c: c.update(rope_parameters=None, rope_scaling=None))
        self.runs()
        self.setting("llama-yarn", "attention_factor", None)
        self.runs()

    def test_lengths_and_factors(self):
        for model in ("llama-llama3", "llama-yarn", "llama-longrope"):
            for value in (0, -5):
                self.setting(model, "original_max_position_embeddings", value)
                self.refused("original_max_position_embeddings is not a length")
        self.setting("llama-longrope", "original_max_position_embeddings", 1)
        self.refused("no finite attention factor")
        for value in (1e308, -1):
            self.setting("llama-yarn", "attention_factor", value)
            self.refused("no finite attention factor")


class Layout(ConfigCase):
    def test_family_not_known(self):
        """Names of tensors do not tell what is computed between them."""
        for kind in ("olmo", "nemotron", "minicpm"):
            self.make("llama", lambda c, k=kind: c.update(model_type=k))
            self.refused(f'model_type "{kind}" is not supported')

    def test_numbers(self):
        for value in ("1e-5", [], True):
            self.make("llama", lambda c, v=value: c.update(rms_norm_eps=v))
            self.refused("rms_norm_eps is not a small number")
        self.make("llama", lambda c: c.pop("rms_norm_eps"))
        self.runs()

    def test_activation(self):
        for value in (5, ["silu"]):
            self.make("llama", lambda c, v=value: c.update(hidden_act=v))
            self.refused("hidden_act is not a string")

    def test_layers(self):
        for value in (1, 3):
            self.make("llama", lambda c, v=value: c.update(num_hidden_layers=v))
            self.refused(f"num_hidden_layers is {value}, but the tensors have 2 layers")

    def test_window(self):
        for value in (0, -1, 2.5, "8", True):
            self.make("mistral", lambda c, v=value: c.update(sliding_window=v))
            self.refused("sliding_window is not a length")
        self.make("qwen2", lambda c: c.update(sliding_window=0, use_sliding_window=False))
        self.runs()

    def test_window_of_mistral(self):
        """4096 where nothing is said, as transformers has it; null is none."""
        def stated(folder, change):
            self.make("mistral", lambda c: (c.update(max_position_embeddings=8192), change(c)))
            shutil.move(self.folder, self.folder + folder)
        stated("-unsaid", lambda c: c.pop("sliding_window"))
        stated("-4096", lambda c: c.update(sliding_window=4096))
        stated("-none", lambda c: c.update(sliding_window=None))
        for other, says in (("-4096", "the same bits"), ("-none", "other bits")):
            result = self.gac("verify", self.folder + "-unsaid", self.folder + other, "--forward",
                              "--n-tokens", 4100, "--device", "cpu", "--json", "-q")
            found = json.loads(result.stdout)["forward"]
            self.assertEqual(found["n_tokens"], 4100)
            self.assertEqual("the same bits" if found["bit_exact"] else "other bits", says)
        self.refused("the model allows 8192",
                     self.gac("eval", self.folder + "-none", "--prefill", "1x8193"), 2)

    def test_layer_without_a_block(self):
        recipe = os.path.join(ROOT, "tools", "make_checkpoint.py")
        subprocess.run([sys.executable, recipe, "deci", self.folder, "--fill", "7"], check=True,
                       capture_output=True)
        self.refused("is missing; layers without one of the blocks are not supported")

    def test_head_is_missing(self):
        for model in ("llama", "llama-tied"):
            self.make(model, lambda c: c.update(tie_word_embeddings=False),
                      lambda t: t.pop("lm_head.weight", None))
            self.refused("lm_head is missing")
        self.make("llama", lambda c: c.update(tie_word_embeddings=True),
                  lambda t: t.pop("lm_head.weight"))
        self.runs()

    def test_head_beside_a_tied_one(self):
        """The same numbers run; runtimes would not agree on others."""
        self.make("llama", lambda c: c.update(tie_word_embeddings=True))
        self.refused("one is stored that differs")
        self.make("llama", lambda c: c.update(tie_word_embeddings=True),
                  lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
        self.runs()

    def test_norms_of_heads(self):
        for name in ("q_norm", "k_norm"):
            full = f"model.layers.1.self_attn.{name}.weight"
            self.make("qwen3", None, lambda t, n=full: t.pop(n))
            self.refused(f'"{full}" is missing')
        self.make("llama", None, lambda t: t.update({full: ("F32", [8], bytes(32))}))
        self.refused(f'"{full}": family llama has no such tensor')


class Families(ConfigCase):
    def says(self, model, key, value, says):
        with self.subTest(model=model, key=key, value=value):
            self.make(model, lambda c: c.update({key: value}))
            self.refused(says)

    def test_what_is_not_computed(self):
        for model, key, value, says in (
                ("gpt2", "scale_attn_by_inverse_layer_idx", True, "is true, which is not supp"),
                ("gpt2", "activation_function", "quick_gelu", '"quick_gelu" is not supported'),
                ("gpt2", "layer_norm_epsilon", "1", "layer_norm_epsilon is not a small number"),
                ("opt", "do_layer_norm_before", False, "is false, which is not supported"),
                ("opt", "word_embed_proj_dim", 8, "differs from hidden_size"),
                ("stablelm", "qk_layernorm", True, "q_layernorm.norms.0.weight\" is missing"),
                ("stablelm", "partial_rotary_factor", "1", "is not a number"),
                ("gemma2", "attn_logit_softcapping", -1, "is not a positive number"),
                ("gemma2", "query_pre_attn_scalar", 0, "is not a positive number"),
                ("gemma3", "use_bidirectional_attention", True, "which is not supported"),
                ("gemma3", "layer_types", ["full_attention"], "too few"),
                ("gemma3", "layer_types", ["chunked_attention"] * 3, "other entries"),
                ("granite", "logits_scaling", 0, "is not a positive number"),
                ("granite", "residual_multiplier", [], "is not a number"),
                ("granite", "residual_multiplier", 0, "is 0, which is not supported"),
                ("granite", "attention_multiplier", 0, "is 0, which is not supported"),
                ("gemma", "use_bidirectional_attention", True, "which is not supported"),
                ("gemma2", "sliding_window", None, "sliding_window is null"),
                ("cohere", "logit_scale", 0, "is 0, which is not supported"),
                ("mixtral", "num_local_experts", 8, "6 experts, but config.json states 8"),
                ("qwen3-moe", "num_local_experts", 1 << 40, "is not a length"),
                ("qwen3-moe", "decoder_sparse_step", 0, "is not a length"),
                ("qwen3-moe", "decoder_sparse_step", 2, "layer 0 has experts, but"),
                ("qwen3-moe", "mlp_only_layers", [], "layer 1 has no experts, but"),
                ("smollm3", "no_rope_layers", [1], "with a number for each layer"),
                ("cohere", "use_qk_norm", True, "q_norm"),
                ("mixtral", "num_experts_per_tok", 9, "6 experts, of which 9 are chosen"),
                ("mixtral", "num_experts_per_tok", 0, "num_experts_per_tok"),
                ("qwen2-moe", "norm_topk_prob", 1, "is neither true nor false")):
            self.says(model, key, value, says)
        self.make("phi3", lambda c: c["rope_parameters"].update(rope_type="linear", factor=2.0))
        self.refused('type "linear" is not known in this family')
        self.make("phi3-partial", lambda c: c["rope_parameters"].update(
            partial_rotary_factor=0.8))
        self.refused("3 of 4 numbers of a head would be rotated")

    def test_steps_of_layers(self):
        """A pattern of 0 is refused; nothing is divided by it."""
        for model, lists, step in (("gemma3", "layer_types", "sliding_window_pattern"),
                                   ("smollm3", "no_rope_layers", "no_rope_layer_interval"),
                                   ("qwen3-moe", "mlp_only_layers", "decoder_sparse_step")):
            for value in (0, -3, 1 << 31, 1.5, "2", [2]):
                with self.subTest(model=model, value=value):
                    self.make(model, lambda c, v=value: (c.pop(lists), c.update({step: v})))
                    self.refused(f"{step} is not a length")

    def test_windows_that_a_family_has_not(self):
        """Llama's relatives without windows run as transformers runs them: with none."""
        for model in ("llama", "granite", "olmo2", "stablelm", "gemma"):
            self.make(model, lambda c: c.update(sliding_window=3))
            result = self.gac("verify", os.path.join(MODELS, model), self.folder, "--forward",
                              "--json", "-q")
            self.assertTrue(json.loads(result.stdout)["forward"]["bit_exact"], result.stderr)

    def test_hostile_values(self):
        """Any value under any key: the model runs, or is refused with one line."""
        values = [0, -1, 3, 2.5, 1e300, -1e-5, 1 << 31, 10 ** 30, "x", [], {}, True, [None] * 3,
                  ["sliding_attention"] * 8, {"rope_type": "yarn", "factor": 0}]
        n = 0
        for model in ("gemma3", "gpt2", "opt", "smollm3", "mixtral", "qwen2-moe", "phi3-longrope",
                      "stablelm-qk-norm", "cohere-qk-norm", "granite"):
            with open(os.path.join(MODELS, model, "config.json"), encoding="utf-8") as file:
                keys = sorted(json.load(file))
            for key in keys + ["sliding_window", "rope_scaling", "head_dim", "num_experts"]:
                value = values[n % len(values)]
                n += 1
                with self.subTest(model=model, key=key, value=value):
                    self.make(model, lambda c, k=key, v=value: c.update({k: v}))
                    result = self.generate()
                    overflows = "is not finite" in result.stderr
                    self.assertIn(result.returncode, (0, 1 if overflows else 0, 2, 3, 4),
                                  result.stderr)
                    if result.returncode:
                        self.refused("", result, result.returncode)

    def test_tensors_that_the_family_lacks_or_needs(self):
        for model, name in (("gemma2", "pre_feedforward_layernorm"), ("olmo2", "self_attn.q_norm"),
                            ("mixtral", "block_sparse_moe.experts.3.w2"),
                            ("qwen2-moe", "mlp.shared_expert_gate")):
            full = f"model.layers.1.{name}.weight"
            self.make(model, None, lambda t, n=full: t.pop(n))
            self.refused(f"{name}")
        self.make("opt", None, lambda t: t.pop("model.decoder.layers.0.final_layer_norm.bias"))
        self.refused("final_layer_norm.bias\" is missing")
        for name, says in (("q_layernorm.norms.3", "is missing"),
                           ("k_layernorm.norms.0", "is missing")):
            full = f"model.layers.1.self_attn.{name}.weight"
            self.make("stablelm-qk-norm", None, lambda t, n=full: t.pop(n))
            self.refused(f'{name}.weight" {says}')
        full = "model.layers.1.self_attn.k_layernorm.norms.2.weight"
        self.make("stablelm-qk-norm", None, lambda t: t.update({full: ("F32", [8], bytes(32))}))
        self.refused("there are 2 heads")
        full = "model.layers.0.input_layernorm.bias"
        self.make("cohere", None, lambda t: t.update({full: ("F32", [16], bytes(64))}))
        self.refused(f'"{full}": family cohere has no such tensor')

    def test_settings_of_older_files(self):
        """As transformers wrote them before version 5; Gemma has two rotations."""
        def older(config):
            ropes = config.pop("rope_parameters")
            full, local = ropes["full_attention"], ropes["sliding_attention"]
            config.update(rope_theta=full.pop("rope_theta"), rope_scaling=full,
                          rope_local_base_freq=local["rope_theta"], sliding_window_pattern=6)
            config.pop("layer_types")
        self.make("gemma3-linear", older)
        result = self.gac("verify", os.path.join(MODELS, "gemma3-linear"), self.folder, "--forward",
                          "--json", "-q")
        self.assertTrue(json.loads(result.stdout)["forward"]["bit_exact"], result.stderr)
        self.make("gemma3-linear", lambda c: (older(c), c["rope_scaling"].update(factor=2.0)))
        result = self.gac("verify", os.path.join(MODELS, "gemma3-linear"), self.folder, "--forward",
                          "--json", "-q")
        self.assertFalse(json.loads(result.stdout)["forward"]["bit_exact"])

    def test_repaired(self):
        """Widths of 24 become 32; the same bits on reference."""
        for model in ("gemma2", "gemma3", "phi3", "olmo2", "granite", "stablelm", "cohere",
                      "smollm3", "gpt2", "opt", "mixtral", "qwen2-moe", "qwen3-moe"):
            with self.subTest(model=model):
                out = self.folder + "-" + model
                source = os.path.join(MODELS, model)
                result = self.gac("repair", source, "-o", out, "--set", "*.width=32", "-q")
                self.assertEqual(result.returncode, 0, result.stderr)
                result = self.gac("verify", source, out, "--forward", "--json", "-q")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertTrue(json.loads(result.stdout)["forward"]["bit_exact"])

    def test_compress_is_for_others(self):
        for model in ("gemma", "phi3", "gpt2", "mixtral", "smollm3"):
            self.make(os.path.join(ROOT, "models", "tiny"))
            for name in ("config.json", "model.safetensors"):
                shutil.copy(os.path.join(MODELS, model, name), self.folder)
            text = os.path.join(ROOT, "models", "tiny", "heldout.txt")
            self.refused("can be run, but not compressed", self.gac(
                "compress", self.folder, "-o", self.folder + "-out", "--text", text, "--ratio", 0.5,
                "-q"))


class Texts(ConfigCase):
    """Texts that a model cannot be given."""

    def write(self, name, data):
        path = os.path.join(os.path.dirname(self.folder), name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def test_tokens_of_another_model(self):
        def cut(tensors):
            dtype, shape, data = tensors["model.embed_tokens.weight"]
            tensors["model.embed_tokens.weight"] = (dtype, [300, shape[1]],
                                                    data[:300 * shape[1] * 2])
        self.make(os.path.join(ROOT, "models", "tiny"), lambda c: c.update(vocab_size=300), cut)
        text = self.write("text", b"The file system is mounted by the kernel. " * 4)
        says = (r"/m: the tokenizer gives id \d+ to token \d+ of the text, "
                r"but the embedding has 300 rows")
        for result in (self.gac("generate", self.folder, "The file system", "-q"),
                       self.gac("eval", self.folder, "--perplexity", text, "-q"),
                       self.gac("verify", self.folder, self.folder, "--forward", "--tokens", text,
                                "-q")):
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertRegex(result.stderr, says)
        self.refused("token 1 is 300, outside 0 to 299", code=2, result=self.gac(
            "generate", self.folder, "--ids", "1,300", "-q"))

    def test_no_text(self):
        path = self.write("text", b"")
        self.refused(f"{path}: a text of ", result=self.gac(
            "eval", os.path.join(ROOT, "models", "tiny"), "--perplexity", path, "-q"))

    def test_notes_say_what_is_run(self):
        """head_dim contradicts the number of heads; tensors fit both."""
        self.make(os.path.join(ROOT, "models", "tiny"), lambda c: c.update(head_dim=64))
        run = ("generate", self.folder, "The file", "--max-tokens", 2)
        result = self.gac(*run)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("self_attn: read as 3 heads of 64; 6 heads of 32 would fit", result.stderr)
        self.assertEqual(self.gac(*run, "-q").stderr, "")

    def test_gguf_is_not_safetensors(self):
        path = self.write("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
        for command in (("inspect", path), ("eval", path, "--prefill", "1x4")):
            self.refused("m.gguf: a GGUF file; gac convert makes a directory of it",
                         result=self.gac(*command, "-q"))


class Repaired(ConfigCase):
    def test_larger_heads_turn_as_before(self):
        """What a repair states for another head size is the rule that is run."""
        for model in ("llama", "llama-linear", "llama-llama3"):
            self.make(model)
            out = self.folder + "-" + model
            result = self.gac("repair", self.folder, "-o", out, "--allow", "rescaled", "--set",
                              "*.qk_head=24", "--set", "*.v_head=24", "-q")
            self.assertEqual(result.returncode, 0, result.stderr)
            result = self.gac("verify", self.folder, out, "--forward", "--json", "-q")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLess(json.loads(result.stdout)["forward"]["relative"], 2e-6, model)


class NotFinite(ConfigCase):
    def test_verify_refuses_it(self):
        """Logits that overflow, even where both models agree and no bits are promised."""
        def enlarge(tensors):
            for name in ("model.norm.weight", "lm_head.weight"):
                shape = tensors[name][1]
                tensors[name] = ("F32", shape, struct.pack("<f", 3e38) * math.prod(shape))
        self.make("llama", None, enlarge)
        for device in ("reference", "cpu"):
            result = self.gac("verify", self.folder, self.folder, "--forward", "--device", device)
            self.assertEqual(result.returncode, 5, result.stderr)
            self.assertIn("a logit is NOT FINITE", result.stdout)
            self.assertIn("logits are not finite at position 0", result.stderr)


class Memory(ConfigCase):
    def test_more_than_there_is(self):
        self.make("llama", lambda c: c.update(max_position_embeddings=1 << 30))
        for args in (["--prefill", "256x4194304"], ["--decode", f"256@{1 << 30}"]):
            self.refused("no memory for", self.gac("eval", self.folder, *args), 4)

    def test_working_memory_is_counted(self):
        """Beside the rows of a pass, what linear calls work in: gate and up at least."""
        self.make("llama")
        result = self.gac("eval", self.folder, "--prefill", "1x256", "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = 256 * (16 + 64 + 32) * 4
        self.assertGreater(json.loads(result.stdout)["memory"]["work"], rows + 256 * 24 * 2 * 4)

    def memory(self, *args):
        result = self.gac("eval", self.folder, *args, "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual(found["memory_bytes"], sum(found["memory"].values()))
        return found["memory"]

    def test_rows_of_unlike_layers_share_memory(self):
        def cut(tensors):
            for name, keep in (("gate", [20, 16]), ("up", [20, 16]), ("down", [16, 20])):
                full = f"model.layers.1.mlp.{name}_proj.weight"
                dtype, _, data = tensors[full]
                tensors[full] = (dtype, keep, data[:len(data) * 20 // 24])
        self.make("llama")
        alike = self.memory("--prefill", "1x256")
        self.make("llama", None, cut)
        unlike = self.memory("--prefill", "1x256")
        self.assertEqual(alike["work"], unlike["work"])
        self.assertGreater(alike["weights"], unlike["weights"])

    def test_cache_has_room_for_one_at_a_time(self):
        """Batch times context of the largest, and not the largest of both."""
        self.make("llama")
        one = self.memory("--prefill", "1x1")["cache"]
        shapes = ("--prefill", "1x16,3x9,1x40", "--decode", "1@8,2@30")
        self.assertEqual(self.memory(*shapes)["cache"], one * 2 * (30 - 1 + 32))
        self.assertEqual(self.memory("--prefill", "1x100,3x9", "--decode", "2@1")["cache"],
                         one * 100)

    def test_comparison_has_room_for_what_it_keeps(self):
        """No cache for tokens whose logits would not be kept anyway."""
        n = 1 << 20
        self.make("llama-tied", lambda c: c.update(max_position_embeddings=1 << 30),
                  lambda t: t.update({"model.embed_tokens.weight": ("F16", [n, 16],
                                                                    bytes(n * 32))}))
        result = self.gac("verify", self.folder, self.folder, "--forward", "--device", "cpu",
                          "--n-tokens", 1 << 30, "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("64 tokens on cpu", result.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    options, rest = parser.parse_known_args()
    vars(OPTIONS).update(vars(options))
    return tally.run(rest)


if __name__ == "__main__":
    sys.exit(main())
