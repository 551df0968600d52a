#!/usr/bin/env python3
"""gac compress on the small trained model: budgets, sizes, losses, resuming, refusals.

    python3 tests/compress/test_compress.py --gac build/gac
"""
import argparse
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "support"))
import tally  # noqa: E402

TINY = ROOT / "models" / "tiny"
TEXT = TINY / "heldout.txt"
BLOCKS = 3145728  # parameters of the linear weights of its blocks


def header(path):
    """The tensors of a safetensors file: name to shape."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        found = json.loads(file.read(size))
    found.pop("__metadata__", None)
    return {name: entry["shape"] for name, entry in found.items()}


def read_tensors(path):
    """The tensors of a safetensors file: name to shape and bytes."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8:8 + size])
    entries.pop("__metadata__", None)
    return {name: (e["shape"], data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in entries.items()}


def read_floats(path):
    """The F32 tensors of a safetensors file: name to shape and numbers."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8:8 + size])
    entries.pop("__metadata__", None)
    return {name: (e["shape"], list(memoryview(data)[8 + size + e["data_offsets"][0]:
                                                     8 + size + e["data_offsets"][1]].cast("f")))
            for name, e in entries.items() if e["dtype"] == "F32"}


def write_model(folder, tensors, **config):
    """A copy of the small model with other tensors, all of F16, and changes to its config."""
    entries, body = {}, b""
    for name, (shape, data) in tensors.items():
        entries[name] = {"dtype": "F16", "shape": shape,
                         "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(entries).encode()
    shutil.copytree(TINY, folder)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    new = {**json.loads((TINY / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps(new))


def first_layers(n_layers):
    """The tensors of the small model without its last layers."""
    return {name: tensor for name, tensor in read_tensors(TINY / "model.safetensors").items()
            if ".layers." not in name or int(name.split(".")[2]) < n_layers}


def repeated_heads():
    """The tensors of the small model with each head of keys and values three times, one for each
    head of queries: the same model."""
    tensors = read_tensors(TINY / "model.safetensors")
    for name, (shape, data) in tensors.items():
        if ".k_proj." in name or ".v_proj." in name:
            half = len(data) // 2
            tensors[name] = ([3 * shape[0], shape[1]], 3 * data[:half] + 3 * data[half:])
    return tensors


def product(a, b):
    return sum(x * y for x, y in zip(a, b))


def narrow_mlps(width):
    """The tensors of the small model, whose MLPs have lost their last channels."""
    tensors = read_tensors(TINY / "model.safetensors")
    for name, ((n_out, *n_in), data) in tensors.items():
        if "gate_proj" in name or "up_proj" in name:
            tensors[name] = ([width, *n_in], data[:2 * width * n_in[0]])
        elif "down_proj" in name:
            rows = [data[2 * n_in[0] * i:][:2 * width] for i in range(n_out)]
            tensors[name] = ([n_out, width], b"".join(rows))
    return tensors


def are_close(a, b):
    """Whether two results are equal but for the last digits: standard output has nine."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(are_close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(are_close, a, b))
    return math.isclose(a, b, rel_tol=1e-8) if isinstance(a, float) else a == b


def linear_params(folder):
    return sum(shape[0] * shape[1] for name, shape in header(folder / "model.safetensors").items()
               if ".layers." in name and len(shape) == 2)


class Compress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="gac-compress-")
        cls.addClassCleanup(holder.cleanup)
        cls.shared = pathlib.Path(holder.name)
        cls.work = cls.shared / "work"  # measured once, used for many ratios

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="gac-compress-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.out = self.folder / "out"

    def gac(self, *args, status=0, **more):
        done = subprocess.run([OPTIONS.gac, *map(str, args)], capture_output=True, text=True,
                              timeout=1200, check=False, **more)
        self.assertEqual(done.returncode, status, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def compress(self, *args, model=TINY, text=TEXT, **more):
        return self.gac("compress", model, "-o", self.out, "--text", text, "--no-sync", "-q", *args,
                        **more)

    def result(self, *args):
        return json.loads(self.compress("--work", self.work, "--json", "--calib-tokens", "8192",
                                        *args).stdout)

    def perplexity(self, folder):
        done = self.gac("eval", folder, "--perplexity", TEXT, "--max-windows", "12", "--json", "-q")
        return json.loads(done.stdout)["perplexity"]["value"]

    def test_budgets_and_sizes(self):
        losses = []
        for ratio in (0.05, 0.2, 0.35, 0.5, 0.7):
            found_by = {}
            for align, multiple in (("gac", 32), ("none", 1), ("round:8", 8)):
                with self.subTest(ratio=ratio, align=align):
                    found = self.result("--ratio", ratio, "--align", align, "--force")
                    self.assertEqual(found["params_before"], BLOCKS)
                    self.assertEqual(found["budget_params"], int((1 - ratio) * BLOCKS))
                    self.assertLessEqual(found["params_after"], found["budget_params"])
                    self.assertGreater(found["params_after"], 0.97 * found["budget_params"])
                    self.assertEqual(found["params_after"], linear_params(self.out))
                    self.assertEqual(found["params_after"],
                                     sum(m["params"] for m in found["modules"]))
                    self.assertTrue(found["optimal"])
                    self.assertAlmostEqual(found["objective"], found["bound"], 12)
                    self.assertAlmostEqual(found["objective"],
                                           sum(m["loss"] for m in found["modules"]), 6)
                    for module in found["modules"]:
                        if module["choice"] in ("rank", "width"):
                            self.assertEqual(module["size"] % multiple, 0, module)
                    found_by[align] = found["objective"]
            self.assertLess(found_by["none"], 1.001 * found_by["gac"])
            self.assertLess(found_by["none"], 1.001 * found_by["round:8"])
            losses.append(found_by["gac"])
        self.assertEqual(losses, sorted(losses))

    def test_the_result_runs_and_is_better_than_its_peers(self):
        before = self.perplexity(TINY)
        found = {}
        for method in ("gac", "svd-llm", "svd"):
            work = ["--work", self.work] if method == "gac" else []
            self.compress("--ratio", 0.3, "--method", method, "--force", "--calib-tokens", "8192",
                          *work)
            found[method] = self.perplexity(self.out)
        self.assertLess(before, found["gac"])
        self.assertLess(found["gac"], found["svd-llm"])
        self.assertLess(found["svd-llm"], found["svd"])

    def test_outputs_are_weighed_by_gradients(self):
        """With H the sums of g g^T and their ridge, the second factor S and the basis B of the
        first one have S^T H S = B^T S = 1: then B^T W and S are the best factors under H."""
        self.compress("--ratio", 0.3, "--work", self.work, "--calib-tokens", 8192)
        for layer, projection in ((0, 0), (3, 2), (7, 3)):  # q, v, o
            found = read_floats(self.work / f"layer-{layer:03}" / "model.safetensors")
            (n, _), sums = read_floats(self.work / f"gradients-{layer:03}" /
                                       "model.safetensors")[f"sums.{projection}"]
            (_, n_basis), basis = found[f"basis.{projection}"]
            second = found[f"second.{projection}"][1]
            ridge = 1e-3 * sum(sums[i * n + i] for i in range(n)) / n
            for a in range(0, n_basis, 7):
                column = [second[i * n_basis + a] for i in range(n)]
                weighed = [ridge * column[i] + product(sums[i * n:(i + 1) * n], column)
                           for i in range(n)]
                for b in range(0, n_basis, 5):
                    should = float(a == b)
                    self.assertAlmostEqual(product(second[b::n_basis], weighed), should, 3)
                    self.assertAlmostEqual(product(basis[b::n_basis], column), should, 4)

    def test_gradients_pay(self):
        found = [json.loads(self.compress("--ratio", 0.35, "--json", "--calib-tokens", 8192,
                                          "--dry-run", *how).stdout)["objective"]
                 for how in ([], ["--no-gradients"])]
        self.assertLess(found[0], 0.97 * found[1])

    def test_asvd(self):
        """All matrices take the smallest share below one limit. Two layers only: it is slow."""
        args = ("--ratio", 0.1, "--layers", "6-7", "--calib-tokens", 4096, "--align", "none")
        found = json.loads(self.compress("--method", "asvd", "--json", *args).stdout)
        self.assertGreater(found["ratio"]["reached"], 0.1)
        self.assertLess(found["ratio"]["reached"], 0.12)
        losses, n_ranks = [], 0
        for module in found["modules"]:
            if module["choice"] == "dense":
                continue
            n_in = 512 if "down" in module["name"] else 192
            n_out = {"q": 192, "k": 64, "v": 64, "o": 192, "gate": 512, "up": 512, "down": 192}[
                module["name"].split(".")[-1].removesuffix("_proj")]
            self.assertRegex(module["name"], "^layers.[67].")
            self.assertIn(module["size"], [n_out * n_in * i // (10 * (n_out + n_in))
                                           for i in range(1, 10)])
            losses.append(module["loss"])
            n_ranks += 1
        self.assertGreater(n_ranks, 5)
        self.assertLess(max(losses), 0.5 * sum(losses))
        better = self.perplexity(self.out)
        record = json.loads(self.compress("--method", "svd", "--force", "--json", *args).stdout)
        self.assertGreaterEqual(record["ratio"]["reached"], 0.1)
        self.assertLess(better, self.perplexity(self.out))

    def test_the_expected_loss_is_about_the_measured_one(self):
        found = self.result("--ratio", 0.2)
        measured = math.log(self.perplexity(self.out) / self.perplexity(TINY))
        self.assertLess(measured / 4, found["objective"])
        self.assertLess(found["objective"], measured * 4)

    def test_the_config_states_what_the_tensors_have(self):
        """For other runtimes, and after a repair too."""
        self.compress("--ratio", 0.4, "--align", "none", "--work", self.work, "--calib-tokens",
                      "8192")
        fit = self.folder / "fit"
        self.gac("repair", self.out, "-o", fit, "-q")
        self.gac("verify", self.out, fit, "--forward", "-q")
        for folder in (self.out, fit):
            shapes = header(folder / "model.safetensors")
            modules = json.loads((folder / "config.json").read_text())["gac_modules"]
            self.assertGreater(len(modules), 20)
            for name, spec in modules.items():
                if "linear" in spec:
                    self.assertEqual(spec["linear"], shapes[f"model.{name}.weight"])
                    continue
                second = shapes[f"model.{name}.{spec['second']}.weight"]
                first = shapes[f"model.{name}.{spec['first']}.weight"]
                self.assertEqual(spec["factors"], [second[0], first[0], first[1]])
        self.assertIn("gac,", self.gac("inspect", fit, "-q").stdout)

    def test_other_heads_in_some_layers(self):
        """There is no doubt about them, so that there is no note."""
        self.compress("--ratio", 0.2, "--choices", "heads,width", "--calib-tokens", "2048",
                      "--no-gradients")
        modules = json.loads((self.out / "config.json").read_text())["gac_modules"]
        self.assertTrue(any("q_proj" in name for name in modules), modules)
        self.assertNotIn("would fit as well", self.gac("inspect", self.out).stdout)

    def test_one_width_needs_no_code(self):
        """A model of one layer, whose MLP gets narrower: a plain config can say that."""
        model = self.folder / "one"
        write_model(model, first_layers(1), num_hidden_layers=1)
        self.compress("--ratio", 0.2, "--choices", "width", "--calib-tokens", "4096", model=model)
        self.assertFalse((self.out / "modeling_gac.py").exists())
        config = json.loads((self.out / "config.json").read_text())
        width = header(self.out / "model.safetensors")["model.layers.0.mlp.up_proj.weight"][0]
        self.assertEqual(config["intermediate_size"], width)
        self.assertEqual(width % 32, 0)
        self.assertNotIn("gac_modules", config)

    def test_one_number_of_heads_needs_no_code(self):
        """Every layer loses one of its two heads of keys and values."""
        self.compress("--ratio", 0.125, "--choices", "heads", "--calib-tokens", "4096")
        self.assertFalse((self.out / "modeling_gac.py").exists())
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual([config["num_attention_heads"], config["num_key_value_heads"],
                          config["head_dim"]], [3, 1, 32])
        self.assertNotIn("gac_modules", config)
        self.assertIn("from_pretrained(DIR)", (self.out / "README.md").read_text())
        self.perplexity(self.out)
        model, out = self.folder / "old", self.folder / "of_old"
        write_model(model, read_tensors(TINY / "model.safetensors"), head_dim=None)
        self.compress("--ratio", 0.125, "--choices", "heads", "--calib-tokens", "4096", "-o", out,
                      model=model)  # not every runtime reads head_dim where it was not stated
        self.assertTrue((out / "modeling_gac.py").exists())

    def test_a_model_that_lost_channels_before(self):
        """What differed from the stock layers still does, changed or not."""
        before = self.folder / "before"
        args = ("--calib-tokens", 1024, "--align", "none")
        self.compress("--ratio", 0.2, "--choices", "width", "-o", before, *args)
        for name, options in (("heads", ["--ratio", 0.05, "--choices", "heads"]),
                              ("none", ["--target-ms", 1000])):
            out = self.folder / name
            found = json.loads(self.compress(*options, "-o", out, "--json", *args,
                                             model=before).stdout)
            self.assertEqual({entry["runtime"]: entry["loads"] for entry in found["loads_in"]},
                             {"gac": True, "transformers": True, "vllm": True})
            shapes = header(out / "model.safetensors")
            modules = json.loads((out / "config.json").read_text())["gac_modules"]
            self.assertTrue(any(".mlp." in module for module in modules))
            for module, spec in modules.items():
                self.assertEqual(spec["linear"], shapes[f"model.{module}.weight"])
            self.assertTrue((out / "modeling_gac.py").exists())

    def test_an_original_that_is_not_aligned(self):
        """Its widths do not stay. Sizes that cannot change are mentioned."""
        model = self.folder / "model"
        write_model(model, narrow_mlps(500), intermediate_size=500)
        args = ("--ratio", 0.05, "--calib-tokens", 1024)
        found = json.loads(self.compress(*args, "--json", model=model).stdout)
        self.assertEqual(found["aligned_pct"], 100)
        self.assertEqual([m["choice"] for m in found["modules"] if ".mlp" in m["name"]],
                         8 * ["width"])
        self.assertIn("All sizes are aligned", (self.out / "README.md").read_text())
        self.gac("inspect", self.out, "--fail-on", "misaligned", "-q")
        said = self.compress(*args, "--exclude", "*.mlp.*", "--force", model=model).stdout
        self.assertRegex(said, "aligned +[0-9.]+ % of the sizes; .* gac repair")
        card = (self.out / "README.md").read_text()
        self.assertNotIn("All sizes are aligned", card)
        self.assertIn("gac repair", card)

    def test_code_of_another_family(self):
        model = self.folder / "mistral"
        shutil.copytree(TINY, model)
        config = json.loads((model / "config.json").read_text())
        config.update(model_type="mistral", architectures=["MistralForCausalLM"],
                      sliding_window=None)
        (model / "config.json").write_text(json.dumps(config))
        self.compress("--ratio", 0.3, "--calib-tokens", "4096", model=model)
        code = (self.out / "modeling_gac.py").read_text()
        self.assertIn("class GacMistralForCausalLM(MistralForCausalLM):", code)
        self.assertNotIn("Llama", code)
        compile(code, "modeling_gac.py", "exec")
        written = json.loads((self.out / "config.json").read_text())
        self.assertEqual(written["architectures"], ["GacMistralForCausalLM"])
        self.assertEqual(written["auto_map"]["AutoModelForCausalLM"],
                         "modeling_gac.GacMistralForCausalLM")
        card = (self.out / "README.md").read_text()
        self.assertIn("| parameters of the blocks' linear layers | 3145728 |", card)

    def judged(self, folder):
        """What inspect says of a directory, as the table has it."""
        found = json.loads(self.gac("inspect", folder, "--json", "-q").stdout)
        return (found["checkpoint"]["n_params"], found["checkpoint"]["bytes"],
                [phase["now_ms"] for phase in found["summary"]["phases"]])

    def test_the_table(self):
        """Predictions of models that are not written are those of models that are."""
        dry = self.result("--ratio", 0.3, "--dry-run")
        self.assertFalse(self.out.exists())
        rows = {row["row"]: row for row in dry["table"]}
        self.assertEqual(list(rows), ["dense", "unaligned", "rounded", "result"])
        aligned, any_size, repaired = (self.folder / name for name in ("gac", "any", "repaired"))
        again = self.result("--ratio", 0.3, "-o", aligned, "--test", TEXT)
        of_any = self.result("--ratio", 0.3, "-o", any_size, "--align", "none")
        self.gac("repair", any_size, "-o", repaired, "--strategy", "minimal", "-q")
        for name, folder in (("dense", TINY), ("unaligned", any_size), ("rounded", repaired),
                             ("result", aligned)):
            params, size, times = self.judged(folder)
            row = rows[name]
            self.assertEqual([row["params"], row["bytes"]], [params, size], name)
            for phase, time_ms in zip(row["phases"], times):
                self.assertAlmostEqual(phase["predicted_ms"] / time_ms, 1,
                                       3 if name == "rounded" else 7, name)
                self.assertIsNone(phase["measured_ms"])
        self.assertEqual(rows["result"]["aligned_pct"], 100)
        self.assertEqual(rows["rounded"]["aligned_pct"], 100)
        self.assertLess(rows["unaligned"]["aligned_pct"], 90)
        self.assertEqual(rows["unaligned"]["loss"], of_any["objective"])
        self.assertEqual(rows["result"]["loss"], dry["objective"])
        self.assertEqual([row["row"] for row in of_any["table"]], ["dense", "rounded", "result"])
        measured = {row["row"]: row["perplexity"] for row in again["table"]}
        self.assertEqual([measured["unaligned"], measured["rounded"]], [None, None])
        for name, folder in (("dense", TINY), ("result", aligned)):
            done = self.gac("eval", folder, "--perplexity", TEXT, "--json", "-q")
            self.assertEqual(measured[name], json.loads(done.stdout)["perplexity"]["value"])
        said = self.compress("--work", self.work, "--ratio", 0.3, "--calib-tokens", 8192, "-n").stdout
        for label in ("dense", "as compressed", "rounded", "gac", "predicted"):
            self.assertIn(label, said)
        self.assertNotIn("measured", said)

    def test_palu(self):
        """Six heads make two groups of three. The rows of a group have rank 32 at most, so nothing
        is lost down to there."""
        model = self.folder / "six"
        write_model(model, repeated_heads(), num_key_value_heads=6)
        found = json.loads(self.compress("--method", "palu", "--ratio", 0.08, "--calib-tokens", 4096,
                                         "--json", model=model).stdout)
        self.assertLess(found["objective"], 1e-3)
        self.assertAlmostEqual(self.perplexity(self.out) / self.perplexity(TINY), 1, 2)
        shapes = header(self.out / "model.safetensors")
        config = json.loads((self.out / "config.json").read_text())
        self.assertEqual(config["model_type"], "llama")
        self.assertTrue(config["head_wise_ranks"])
        for module in found["modules"]:
            name = "model." + module["name"]
            if module["choice"] == "dense":
                self.assertIn(name + ".weight", shapes)
                continue
            self.assertRegex(name, "[kv]_proj$")
            rank = module["size"]
            self.assertEqual(rank % 32, 0)
            self.assertEqual(config["head_wise_ranks"][name], [rank, rank])
            self.assertEqual(shapes[name + ".VT.weight"], [2 * rank, 192])
            self.assertEqual(shapes[name + ".U.1.weight"], [96, rank])
            self.assertEqual(module["params"], 2 * rank * (192 + 96))
        shutil.rmtree(self.out)
        self.refused(2, "can be reached", "--method", "palu", "--ratio", 0.3, "--calib-tokens", 4096,
                     model=model)

    def test_palu_repaired(self):
        self.compress("--method", "palu", "--ratio", 0.03, "--align", "none", "--calib-tokens", 4096)
        fit = self.folder / "fit"
        self.gac("repair", self.out, "-o", fit, "-q")
        self.gac("verify", self.out, fit, "--forward", "-q")
        shapes = header(fit / "model.safetensors")
        config = json.loads((fit / "config.json").read_text())
        for name, spec in config["gac_modules"].items():
            self.assertEqual(spec["ranks"], [shapes[f"model.{name}.VT.weight"][0]])
            self.assertEqual(spec["ranks"][0] % 8, 0)
            self.assertEqual(config["head_wise_ranks"]["model." + name], spec["ranks"])

    def test_palu_with_biases(self):
        tensors = repeated_heads()
        for layer in range(8):
            for p in "qkv":
                bias = struct.pack("<192e", *[(i % 7 + layer) / 64 for i in range(192)])
                tensors[f"model.layers.{layer}.self_attn.{p}_proj.bias"] = ([192], bias)
        model = self.folder / "qwen2"
        write_model(model, tensors, num_key_value_heads=6, model_type="qwen2",
                    architectures=["Qwen2ForCausalLM"], sliding_window=None)
        self.compress("--method", "palu", "--ratio", 0.08, "--calib-tokens", 4096, model=model)
        self.assertAlmostEqual(self.perplexity(self.out) / self.perplexity(model), 1, 2)
        written, n = read_tensors(self.out / "model.safetensors"), 0
        for name, (shape, data) in written.items():
            if name.endswith(".U.1.bias"):
                self.assertEqual(shape, [96])
                first = written[name.replace("U.1", "U.0")][1]
                self.assertEqual(first + data, tensors[name.replace(".U.1", "")][1])
                n += 1
        self.assertGreater(n, 8)

    def test_biases_that_go_with_their_rows(self):
        tensors = read_tensors(TINY / "model.safetensors")
        for layer in range(8):
            for p, n in (("q", 192), ("k", 64), ("v", 64)):
                bias = struct.pack(f"<{n}e", *[(i % 7 + layer) / 64 for i in range(n)])
                tensors[f"model.layers.{layer}.self_attn.{p}_proj.bias"] = ([n], bias)
        model = self.folder / "qwen2"
        write_model(model, tensors, model_type="qwen2", architectures=["Qwen2ForCausalLM"],
                    sliding_window=None)
        found = json.loads(self.compress("--ratio", 0.3, "--choices", "width,heads", "--json",
                                         "--calib-tokens", 4096, model=model).stdout)
        self.assertIn("heads", {module["choice"] for module in found["modules"]})
        for folder, n in ((model, found["total_before"]), (self.out, found["total_after"])):
            self.assertEqual(n, sum(math.prod(shape) for shape in
                                    header(folder / "model.safetensors").values()))

    def test_choices_and_exclusions(self):
        found = json.loads(self.compress("--ratio", 0.15, "--choices", "dense,width", "--dry-run",
                                         "--calib-tokens", "4096", "--json").stdout)
        self.assertFalse(self.out.exists())
        self.assertLessEqual({m["choice"] for m in found["modules"]}, {"dense", "width"})
        found = json.loads(self.compress("--ratio", 0.15, "--exclude", "layers.[0-5].*", "--exclude",
                                         "*.self_attn.q_proj", "--json", "--dry-run",
                                         "--calib-tokens", "4096").stdout)
        for module in found["modules"]:
            layer = int(module["name"].split(".")[1])
            if layer < 6 or module["name"].endswith("q_proj"):
                self.assertEqual(module["choice"], "dense", module)

    def test_a_time_that_is_long_enough_changes_nothing(self):
        found = self.result("--target-ms", 1e300, "--dry-run")
        self.assertEqual(found["params_after"], found["params_before"])

    def test_total_ratio(self):
        found = self.result("--total-ratio", 0.2, "--dry-run")
        self.assertGreaterEqual(found["ratio"]["reached_total"], 0.2)
        self.assertLess(found["ratio"]["reached_total"], 0.21)
        self.assertEqual(found["total_before"] - found["total_after"],
                         found["params_before"] - found["params_after"])

    def test_the_same_bytes_again_and_after_a_kill(self):
        args = ["--ratio", "0.25", "--calib-tokens", "4096"]
        self.compress(*args)
        files = {p.name: p.read_bytes() for p in self.out.iterdir()}
        self.assertEqual(sorted(os.listdir(self.folder)), ["out"])
        shutil.rmtree(self.out)
        done = self.folder / "out.work" / "layer-002"
        child = subprocess.Popen([OPTIONS.gac, "compress", TINY, "-o", self.out, "--text", TEXT,
                                  "--no-sync", "-q", "--resume", *args], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 600
        while not done.exists() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        child.kill()
        child.wait()
        self.assertTrue(done.exists())
        self.assertFalse(self.out.exists())
        self.compress(*args, "--resume")
        self.assertEqual({p.name: p.read_bytes() for p in self.out.iterdir()}, files)
        self.assertEqual(os.listdir(self.folder), ["out"])

    def test_a_resumed_job_uses_only_what_is_of_the_same_job(self):
        work = self.folder / "work"
        args = ["--calib-tokens", "4096", "--work", work, "--json", "--dry-run"]
        first = json.loads(self.compress("--ratio", 0.3, *args).stdout)
        times = {p: p.stat().st_mtime_ns for p in work.rglob("*.safetensors")}
        self.assertEqual(len(times), 16)  # the curves and the gradients of each layer
        again = json.loads(self.compress("--ratio", 0.3, *args).stdout)
        self.assertEqual(again["modules"], first["modules"])
        self.assertEqual({p: p.stat().st_mtime_ns for p in times}, times)
        args[1] = "4608"  # another text: measured anew
        self.compress("--ratio", 0.3, *args)
        self.assertTrue(all(p.stat().st_mtime_ns > t for p, t in times.items()))

    def test_layers_of_another_model_or_place_are_not_used(self):
        """The same weights with another config, layers that changed places, and damaged ones."""
        work, good = self.folder / "work", self.folder / "good"
        args = ["--calib-tokens", "1024", "--ratio", "0.3", "--force", "--work", work]
        self.compress(*args)
        expected = (self.out / "model.safetensors").read_bytes()
        shutil.copytree(work, good)

        def changed(layer):
            self.compress(*args)
            self.assertEqual((self.out / "model.safetensors").read_bytes(), expected)
            path = f"{layer}/model.safetensors"
            self.assertEqual((work / path).read_bytes(), (good / path).read_bytes())
        (work / "layer-002").rename(work / "layer-x")
        (work / "layer-003").rename(work / "layer-002")
        (work / "layer-x").rename(work / "layer-003")
        changed("layer-002")
        for size in (0, 100, 100000):
            for layer in ("layer-004", "gradients-004"):
                os.truncate(work / layer / "model.safetensors", size)
            changed("layer-004")
            changed("gradients-004")
        model = self.folder / "model"
        shutil.copytree(TINY, model)
        config = json.loads((model / "config.json").read_text())
        config["rope_parameters"]["rope_theta"] = 500.0
        (model / "config.json").write_text(json.dumps(config))
        self.compress(*args, model=model)
        found = (self.out / "model.safetensors").read_bytes()
        self.compress(*args[:-1], self.folder / "new", model=model)
        self.assertEqual((self.out / "model.safetensors").read_bytes(), found)

    def test_what_a_killed_job_left_is_in_nobodys_way(self):
        for name in (".layer-001.gac-0123456789abcdef", ".sizes.gac-0123456789abcdef"):
            (self.folder / "out.work" / name).mkdir(parents=True)
            (self.folder / "out.work" / name / "model.safetensors").touch()
        self.compress("--ratio", 0.2, "--calib-tokens", 1024)
        self.assertEqual(os.listdir(self.folder), ["out"])

    def test_the_original_and_the_work_folder_are_apart_from_the_result(self):
        model = self.folder / "model"
        shutil.copytree(TINY, model)
        files = sorted(os.listdir(model))
        for out, *more in ((model, "--force"), (model / "out",), (self.folder, "--force"),
                           (self.out, "--work", self.out), (self.out, "--work", model / "work"),
                           (self.out, "--work", self.folder),
                           (self.out, "--work", model / "work", "--dry-run"),
                           (self.folder / "work" / "out", "--work", self.folder / "work")):
            (self.folder / "work").mkdir(exist_ok=True)
            self.refused(2, "must lie outside of", "--ratio", 0.2, "-o", out, *more, model=model)
            self.assertEqual(sorted(os.listdir(model)), files)

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            child = subprocess.Popen([OPTIONS.gac, "compress", TINY, "-o", self.out, "--text", TEXT,
                                      "-q", "--ratio", "0.2"], stderr=subprocess.PIPE, text=True)
            end = time.monotonic() + 600
            while not (self.folder / "out.work").exists() and time.monotonic() < end:
                time.sleep(0.01)
            child.send_signal(number)
            said = child.communicate(timeout=600)[1]
            self.assertEqual(child.returncode, 1, said)
            self.assertEqual(said, "gac: interrupted; nothing was left behind\n")
            self.assertEqual(os.listdir(self.folder), [])

    def refused(self, status, message, *args, **more):
        done = self.compress(*args, status=status, **more)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertFalse(self.out.exists())
        self.assertFalse((self.folder / "out.work").exists())

    def test_refusals(self):
        short = self.folder / "short.txt"
        short.write_text("Too short to learn anything from.")
        self.refused(2, "at least 1024 are needed", "--ratio", 0.2, text=short)
        short.write_text("")
        self.refused(2, "the text has 1 tokens", "--ratio", 0.2, text=short)
        self.refused(3, "perplexity needs two", "--ratio", 0.2, "--test", short)
        self.refused(2, "the text has", "--ratio", 0.2, "--calib-tokens", 10 ** 9)
        self.refused(2, "--ratio", "--ratio", 1.5)
        self.refused(2, "one of --ratio, --total-ratio and --target-ms")
        self.refused(2, "is none of gac, none and round:N", "--ratio", 0.2, "--align", "some")
        self.refused(2, "dense, rank, width, heads", "--ratio", 0.2, "--choices", "holes")
        self.refused(2, "can be reached", "--ratio", 0.6, "--method", "svd", "--calib-tokens", 4096)
        self.refused(2, "--choices without rank", "--ratio", 0.2, "--method", "svd", "--choices",
                     "width")
        self.refused(2, "layers 7 to 9 are asked for, but the model has 0 to 7", "--ratio", 0.1,
                     "--layers", "7-9")
        self.refused(2, 'no module is called "layer.1.*"', "--ratio", 0.1, "--exclude", "layer.1.*")
        self.refused(2, "the text has", "--ratio", 0.2, "--calib-tokens", 2 ** 63 - 1)
        self.refused(2, "no choice makes the blocks' linear weights fewer", "--ratio", 0.1,
                     "--exclude", "*", "--calib-tokens", 4096)
        self.refused(2, "the fastest choices take", "--target-ms", 1e-4)
        self.refused(1, "No such file", "--ratio", 0.2, "-o", self.folder / "none" / "out")
        self.refused(3, "No such file", "--ratio", 0.2, "--test", self.folder / "none.txt")
        self.refused(3, "No such file", "--ratio", 0.2, text=self.folder / "none.txt")
        self.refused(2, "can be reached", "--ratio", 0.97, "--choices", "width", "--exclude",
                     "layers.[0-6].*", "--calib-tokens", "4096")

    def test_what_is_impossible_is_refused_before_the_work(self):
        work = self.folder / "work"
        for args in (["--ratio", 0.9], ["--target-ms", 3], ["--ratio", 0.9, "--method", "asvd"],
                     ["--ratio", 0.6, "--method", "svd"], ["--ratio", 0.3, "--method", "palu"]):
            self.compress(*args, "--work", work, status=2)
            self.assertFalse(work.exists())

    def test_the_record_says_how_to_repeat_the_job(self):
        said = self.result("--ratio", 0.1, "--choices", "width,rank", "--layers", "2-6", "--seed", 7,
                           "--exclude", "layers.3.*", "--workload", "prefill:2x512*3,decode:1@300")
        record = json.loads((self.out / "gac.json").read_text())
        self.assertEqual(record["choices"], ["rank", "width"])
        self.assertEqual(record["layers"], [2, 6])
        self.assertEqual(record["excluded"], ["layers.3.*"])
        self.assertEqual(record["target_ms"], None)
        self.assertEqual(record["calibration"]["seed"], 7)
        self.assertEqual([record["model"], record["calibration"]["text"]], ["tiny", "heldout.txt"])
        self.assertEqual(record["predicted"]["workload"], "prefill:2x512*3,decode:1@300")
        for key in set(said) - {"time", "machine", "arguments", "tool", "loads_in"}:
            if key != "table":  # measurements are made later
                self.assertTrue(are_close(record[key], said[key]), key)
        self.result("--target-ms", 2.5, "--workload", "prefill:1x2048", "--force")
        record = json.loads((self.out / "gac.json").read_text())
        self.assertEqual([record["target_ms"], record["layers"]], [2.5, None])

    def test_two_jobs_in_one_place(self):
        args = ["--ratio", "0.2", "--calib-tokens", "4096"]
        for option in ((), ("--resume",)):
            first = subprocess.Popen([OPTIONS.gac, "compress", TINY, "-o", self.out, "--text", TEXT,
                                      "--no-sync", "-q", *args, *option], stdout=subprocess.DEVNULL)
            end = time.monotonic() + 600
            while not (self.folder / "out.work" / "layer-000").exists():
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            done = self.compress(*args, *option, status=1)
            self.assertIn("out.work: another job is at work here", done.stderr)
            self.assertEqual(first.wait(timeout=600), 0)
            self.assertEqual(os.listdir(self.folder), ["out"])
            shutil.rmtree(self.out)

    def test_what_is_said_to_be_possible_is(self):
        args = ("--calib-tokens", 4096, "--work", self.folder / "work", "-n")
        for options in (["--choices", "width"], ["--method", "svd-llm"], ["--method", "palu"]):
            with self.subTest(options=options):
                said = self.compress("--ratio", 0.98, *options, *args, status=2).stderr
                ratio, total = re.search("at most ([0-9.]+) can be reached, of the whole model ([0-9.]+)",
                                         said).groups()
                self.compress("--ratio", ratio, *options, *args)
                self.compress("--total-ratio", total, *options, *args)
        for options in ([], ["--choices", "rank"], ["--workload", "decode:64@512"]):
            said = self.compress("--target-ms", 1e-4, *options, *args, status=2).stderr
            least_ms = float(re.search("choices take ([0-9.]+)", said)[1])  # rounded up
            found = json.loads(self.compress("--target-ms", least_ms, "--json", *options,
                                             *args).stdout)
            self.assertLessEqual(found["predicted"]["compressed_ms"], least_ms)
            self.assertGreater(found["predicted"]["compressed_ms"], least_ms - 0.0011)

    def test_a_target_that_exists_is_refused_before_the_work(self):
        self.out.mkdir()
        done = self.compress("--ratio", 0.2, "-v", status=1)
        self.assertIn("already exists", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["out"])
        self.assertEqual(os.listdir(self.out), [])

    def test_families_that_do_not_fit(self):
        for family in ("gpt2", "phi3", "mixtral"):
            model = self.folder / family
            subprocess.run([sys.executable, ROOT / "tools" / "make_checkpoint.py", family, model],
                           check=True, stdout=subprocess.DEVNULL)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(TINY / name, model)
            self.refused(3, f"family {family} can be run, but not compressed", "--ratio", 0.2, model=model)

    def test_a_model_with_code_of_its_own(self):
        model = self.folder / "strange"
        write_model(model, read_tensors(TINY / "model.safetensors"),
                    auto_map={"AutoModelForCausalLM": "modeling_strange.Strange"})
        self.refused(3, "modelling code of its own", "--ratio", 0.2, model=model)

    def test_a_tied_head_that_is_stored_counts_once(self):
        """models/tiny is tied. With a copy of the embedding as head, all counts are the same."""
        model, tensors = self.folder / "stored", read_tensors(TINY / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        write_model(model, tensors)
        wanted, found = (json.loads(self.compress(
            "--json", "--total-ratio", 0.2, "--calib-tokens", 1024, "--dry-run", model=m).stdout)
            for m in (TINY, model))
        for key in ("total_before", "total_after", "budget_params", "modules"):
            self.assertEqual(found[key], wanted[key])
        self.assertEqual([r["params"] for r in found["table"]], [r["params"] for r in wanted["table"]])

    def test_a_compressed_model_is_refused(self):
        small = self.folder / "small"
        self.gac("compress", TINY, "-o", small, "--text", TEXT, "--no-sync", "-q", "--ratio", 0.5,
                 "--calib-tokens", "4096", "--choices", "rank")
        self.refused(3, "is not one plain weight", "--ratio", 0.2, model=small)

    def test_weights_that_are_not_finite(self):
        bad = self.folder / "bad"
        shutil.copytree(TINY, bad)
        path = bad / "model.safetensors"
        data = bytearray(path.read_bytes())
        size, = struct.unpack("<Q", data[:8])
        entry = json.loads(data[8:8 + size])["model.layers.3.mlp.up_proj.weight"]
        at = 8 + size + entry["data_offsets"][0] + 20
        data[at:at + 2] = struct.pack("<H", 0x7C00)
        path.write_bytes(data)
        self.refused(3, "model.layers.3.mlp.up_proj.weight: the weight at row 0, column 10",
                     "--ratio", 0.2, model=bad)

    def test_a_full_disk(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (200 << 10, 200 << 10))
        done = self.compress("--ratio", 0.2, status=1, preexec_fn=limit)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    OPTIONS, rest = parser.parse_known_args()
    sys.exit(tally.run(rest))
