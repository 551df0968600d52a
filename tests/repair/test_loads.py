#!/usr/bin/env python3
"""What a repair writes so that other runtimes load the result, and what it says of them.

    python3 tests/repair/test_loads.py --gac build/gac
"""
import json
import os
import re
import shutil
import sys

import repair_support as support
from repair_case import RepairCase, main
from repair_support import mk
from small_models import MODELS

REMOTE = "AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)"
FACTORS = {"svdllm": (".{}_v_proj", ".{}_u_proj"), "asvd": ("BLinear", "ALinear"),
           "dobi": ("ALinear", "BLinear"), "lowrank-generic": ("first", "second")}


def shapes_of(folder):
    return {name: shape for name, (_, shape, _) in support.read_folder(folder).items()}


def stock_shapes(config):
    """{module: (out, in, bias)} of the family's own class, written down anew."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim", hidden // heads)
    q, kv, width = heads * size, config["num_key_value_heads"] * size, config["intermediate_size"]
    qkv_bias = config["model_type"] == "qwen2"
    one = {"self_attn.q_proj": (q, hidden, qkv_bias), "self_attn.k_proj": (kv, hidden, qkv_bias),
           "self_attn.v_proj": (kv, hidden, qkv_bias), "self_attn.o_proj": (hidden, q, False),
           "mlp.gate_proj": (width, hidden, False), "mlp.up_proj": (width, hidden, False),
           "mlp.down_proj": (hidden, width, False)}
    stock = {f"layers.{i}.{name}": layer for i in range(config["num_hidden_layers"])
             for name, layer in one.items()}
    if not config["tie_word_embeddings"]:
        stock["lm_head"] = (config["vocab_size"], hidden, False)
    return stock


def expected_modules(model, config, shapes):
    """gac_modules by the tensors alone."""
    modules = {}
    for name, (n_out, n_in, bias) in stock_shapes(config).items():
        full = name if name == "lm_head" else "model." + name
        if full + ".weight" in shapes:
            found = [*shapes[full + ".weight"]]
            has_bias = full + ".bias" in shapes
            if (found, has_bias) != ([n_out, n_in], bias):
                modules[name] = {"linear": found, "bias": has_bias}
        elif full + ".VT.weight" in shapes:
            ranks = [shapes[t][1] for t in sorted(shapes) if t.startswith(full + ".U.")
                     and t.endswith(".weight")]
            modules[name] = {"groups": [n_out, n_in], "ranks": ranks,
                             "bias": full + ".U.0.bias" in shapes}
        else:
            names = [n.format(name.split(".")[-1][:-5]) for n in FACTORS[model]]
            paths = [full.rsplit(".", 1)[0] + n if n[0] == "." else f"{full}.{n}" for n in names]
            first, second = (shapes[p + ".weight"] for p in paths)
            modules[name] = {"factors": [second[0], *first], "first": names[0],
                             "second": names[1], "bias": False}
    return modules


class Loads(RepairCase):
    def repair(self, model, *args, change=None, seed=1):
        """Makes a model and repairs it. Returns its loads_in by runtime."""
        ck = MODELS[model](support.seeded(model, seed))
        if change:
            change(ck)
        self.original, self.out = self.path("in"), self.path("out")
        support.write_folder(self.original, support.fill(ck, self.rng), json.dumps(ck.config))
        done = self.gac.json("repair", self.original, "-o", self.out, "--no-sync", *args)
        self.assertEqual([row["runtime"] for row in done["loads_in"]],
                         ["gac", "transformers", "vllm"])
        for row in done["loads_in"]:
            self.assertEqual(row["loads"], "how" in row)
            self.assertNotEqual(row["loads"], "why" in row)
        return {row["runtime"]: row for row in done["loads_in"]}

    def config(self, folder=None):
        return support.read_config(folder or self.out)

    def has_code(self, folder=None):
        return os.path.exists(os.path.join(folder or self.out, "modeling_gac.py"))

    def edit(self, name, change):
        path = os.path.join(self.out, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(change(text))

    def verified(self):
        self.assertTrue(self.gac.json("verify", self.original, self.out)["ok"])

    def undone(self):
        back = self.path("back")
        self.ok("repair", self.out, "-o", back, "--undo", "--no-sync", "-q")
        self.assertEqual(support.other_files(back), support.other_files(self.original))
        self.assertEqual(support.read_folder(back), support.read_folder(self.original))

    def test_every_convention(self):
        for model in ("svdllm", "asvd", "dobi", "lowrank-generic", "palu", "palu-qwen2",
                      "pruned-mlp", "per-layer-config", "flap"):
            with self.subTest(model):
                self.fresh()
                loads = self.repair(model)
                config, shapes = self.config(), shapes_of(self.out)
                name = {"qwen2": "Qwen2", "llama": "Llama"}[config["model_type"]]
                self.assertEqual(config["gac_modules"], expected_modules(model, config, shapes))
                self.assertEqual(config["architectures"], [f"Gac{name}ForCausalLM"])
                self.assertEqual(config["auto_map"], {
                    "AutoConfig": f"modeling_gac.Gac{name}Config",
                    "AutoModel": f"modeling_gac.Gac{name}Model",
                    "AutoModelForCausalLM": f"modeling_gac.Gac{name}ForCausalLM"})
                self.assertNotIn("per_layer_config", config)
                self.edit("modeling_gac.py", lambda text: compile(text, "code", "exec") and text)
                self.assertEqual(loads["gac"]["loads"], True)
                names = [self.gac.json("inspect", folder)["checkpoint"]["compressor"]
                         for folder in (self.original, self.out)]
                self.assertEqual(names[0], names[1])
                self.assertEqual(loads["transformers"]["how"], REMOTE)
                self.assertEqual(loads["vllm"]["loads"], model != "asvd")  # a factored head
                self.verified()
                self.undone()

    def test_a_plain_config_is_enough(self):
        for model, *args in (("llama",), ("qwen2",), ("mistral",), ("pruned-mlp", "--uniform"),
                             ("per-layer-config", "--uniform")):
            with self.subTest(model):
                self.fresh()
                loads = self.repair(model, "--copy", *args)
                config = self.config()
                for key in ("gac_modules", "auto_map", "per_layer_config"):
                    self.assertNotIn(key, config)
                self.assertFalse(self.has_code())
                self.assertEqual(loads["transformers"]["how"],
                                 "AutoModelForCausalLM.from_pretrained(DIR)")
                self.assertEqual(loads["vllm"]["how"], "LLM(DIR)")
                self.verified()
                self.undone()

    def test_code_of_somebody_else_stays(self):
        theirs = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"}
        loads = self.repair("asvd", change=lambda ck: ck.config.update(auto_map=theirs))
        self.assertEqual(self.config()["auto_map"], theirs)
        self.assertNotIn("gac_modules", self.config())
        self.assertFalse(self.has_code())
        self.assertEqual(loads["transformers"]["how"], REMOTE)
        self.assertIn("that gac does not know", loads["vllm"]["why"])
        self.verified()

    def test_a_file_of_that_name_stays(self):
        self.original, self.out = self.path("in"), self.path("out")
        ck = MODELS["svdllm"](self.rng)
        support.write_folder(self.original, support.fill(ck, self.rng), json.dumps(ck.config),
                             carried={"modeling_gac.py": b"mine"})
        self.ok("repair", self.original, "-o", self.out, "--no-sync", "-q")
        with open(os.path.join(self.out, "modeling_gac.py"), "rb") as file:
            self.assertEqual(file.read(), b"mine")
        self.assertNotIn("gac_modules", self.config())
        self.verified()
        self.undone()

    def test_what_no_code_serves(self):
        wide = ["--set", "layers.0.mlp.width=304"]
        for model, args, why in (
                ("basis-sharing", [], "shares a factor"),
                ("direct", wide, "per_layer_config"),
                ("modegpt-like", ["--widths", "uniform", "--uniform"], "heads of another size"),
                ("pruned-mlp", ["--widths", "per_layer_config"], "per_layer_config"),
                ("pruned-mlp", ["--widths", "block_configs"], "block_configs")):
            with self.subTest(model, args=args):
                self.fresh()
                loads = self.repair(model, *args)
                self.assertNotIn("gac_modules", self.config())
                self.assertFalse(self.has_code())
                for name in ("transformers", "vllm"):
                    self.assertIn(why, loads[name]["why"])
                self.assertTrue(loads["gac"]["loads"])
                self.verified()

    def test_families_without_code(self):
        loads = self.repair("gemma")
        self.assertEqual(loads["transformers"]["how"], "AutoModelForCausalLM.from_pretrained(DIR)")
        self.assertTrue(loads["gac"]["loads"])  # the engine runs it without code
        self.fresh()
        loads = self.repair("starcoder2")
        self.assertIn('model_type "starcoder2" is not supported', loads["gac"]["why"])
        self.fresh()

        def widths_differ(ck):
            for i in range(ck.config["num_hidden_layers"]):
                mk.set_mlp(ck, i, 40 + i)
        # Without modelling code, all layers get one width, which the config states.
        loads = self.repair("gemma", change=widths_differ, seed=3)
        self.assertEqual(self.config()["intermediate_size"], 48)  # one key for all layers
        self.assertTrue(loads["transformers"]["loads"])
        self.fresh()

        def factored(ck):
            name = "model.layers.0.mlp.up_proj"
            n_out, n_in = ck.tensors[name + ".weight"][1]
            ck.replace(name + ".weight", {name + ".first.weight": (13, n_in),
                                          name + ".second.weight": (n_out, 13)})
        loads = self.repair("gemma", change=factored, seed=3)
        self.assertFalse(self.has_code())
        for name in ("transformers", "vllm"):
            self.assertIn("no modelling code for the family gemma", loads[name]["why"])

    def test_a_tensor_that_was_not_understood(self):
        loads = self.repair("svdllm", change=lambda ck: ck.add("model.layers.0.extra.weight", 7))
        self.assertIn("1 tensors were not understood", loads["transformers"]["why"])
        self.assertFalse(self.has_code())

    def test_the_text(self):
        self.repair("svdllm")
        shutil.rmtree(self.out)
        said = self.ok("repair", self.original, "-o", self.out, "-q").stdout
        self.assertIn("loads in gac, transformers, vLLM (trust_remote_code=True)\n", said)
        again = self.ok("repair", self.original, "--dry-run", "-q").stdout
        self.assertNotIn("loads in", again)
        self.ok("repair", self.out, "-o", self.path("back"), "--undo", "-q")

    def test_a_copy_gets_no_code(self):
        self.repair("svdllm", "--strategy", "minimal")
        shutil.rmtree(self.original)
        self.ok("repair", self.out, "-o", self.original, "--undo", "-q")
        plan = self.write_plan([])
        self.ok("repair", self.original, "-o", self.path("copy"), "--plan", plan, "--copy", "-q")
        self.assertFalse(self.has_code(self.path("copy")))
        self.assertEqual(self.config(self.path("copy")), self.config(self.original))

    def test_twice(self):
        """The second repair brings the list up to date; undoing takes the code away."""
        for model, size in (("svdllm", "*.rank=64"), ("pruned-mlp", "*.width=256"),
                            ("palu", "*.rank.*=72"), ("flap", "*.width=256")):
            with self.subTest(model):
                self.fresh()
                self.repair(model)
                first, second = self.out, self.path("second")
                self.ok("repair", first, "-o", second, "--set", size, "--no-sync", "-q")
                config = self.config(second)
                self.assertNotEqual(config["gac_modules"], self.config(first)["gac_modules"])
                self.assertEqual(config["gac_modules"],
                                 expected_modules(model, config, shapes_of(second)))
                for before in (self.original, first):
                    self.assertTrue(self.gac.json("verify", before, second)["ok"])
                self.out = second
                self.undone()

    def test_code_in_the_second_repair(self):
        """Equal widths first, then widths that differ."""
        self.repair("pruned-mlp", "--uniform")
        self.assertFalse(self.has_code())
        second = self.path("second")
        self.ok("repair", self.out, "-o", second, "--set", "layers.1.mlp.width=304", "--no-sync",
                "-q")
        self.assertTrue(self.has_code(second))
        self.assertEqual([s["linear"][0] for n, s in self.config(second)["gac_modules"].items()
                          if n.endswith("up_proj")], [304])
        for before in (self.original, self.out):
            self.assertTrue(self.gac.json("verify", before, second)["ok"])
        self.out = second
        self.undone()

    def test_verify_compares_the_code(self):
        self.repair("svdllm")
        path = os.path.join(self.out, "modeling_gac.py")
        with open(path, "rb") as file:
            good = file.read()
        for what, says in ((good + b"\n", "differs from the code"), (b"", "differs"),
                           (None, "modeling_gac.py is missing")):
            os.unlink(path)
            if what is not None:
                with open(path, "wb") as file:
                    file.write(what)
            self.refused(5, "verify", self.original, self.out, says=says)
        with open(path, "wb") as file:
            file.write(good)
        self.verified()
        self.edit("config.json", lambda text: text.replace("modeling_gac.GacLlamaModel", "evil.X"))
        self.refused(5, "verify", self.original, self.out, says="auto_map.AutoModel")

    def test_extra_code_is_found(self):
        self.repair("llama", "--copy")
        with open(os.path.join(self.out, "modeling_gac.py"), "w", encoding="utf-8") as file:
            file.write("import os\n")
        self.refused(5, "verify", self.original, self.out, says="modeling_gac.py is extra")

    def metadata(self):
        path = os.path.join(self.out, support.tensor_files(self.out)[0])
        return path, support.read_tensors(path), support.read_header(path)[0]["__metadata__"]

    def test_without_the_record(self):
        for model in ("svdllm", "palu"):
            self.fresh()
            self.repair(model)
            path, tensors, metadata = self.metadata()
            support.write_tensors(path, tensors, {k: v for k, v in metadata.items()
                                                  if not k.startswith("gac_repair")})
            self.verified()
            self.edit("modeling_gac.py", lambda text: text + "\n")
            self.refused(5, "verify", self.original, self.out, says="differs from the code")

    def test_a_wrong_list_is_made_right(self):
        self.repair("svdllm")
        good = self.config()["gac_modules"]
        self.edit("config.json", lambda text: re.sub(r'"factors": \[\s+\d+', '"factors": [ 9',
                                                     text, count=1))
        self.assertNotEqual(self.config()["gac_modules"], good)
        self.ok("repair", self.out, "-o", self.path("copy"), "--copy", "--plan",
                self.write_plan([]), "-q")
        self.assertEqual(self.config(self.path("copy"))["gac_modules"], good)


if __name__ == "__main__":
    sys.exit(main(__doc__))
