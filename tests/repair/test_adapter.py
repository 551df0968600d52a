#!/usr/bin/env python3
"""LoRA adapters: inspected, repaired with the scale kept, verified, undone, or refused.

    python3 tests/repair/test_adapter.py --gac build/gac

The scale of a module is alpha over the rank, or over its root. What peft makes of a config is
computed here by peft's own rules. experiments/validation/lora compares with peft itself.
"""
import json
import math
import os
import re
import sys

import repair_support as support
import torch_files as tf
from repair_case import RepairCase, main

PREFIX = "base_model.model."
CONFIG = {"peft_type": "LORA", "base_model_name_or_path": "x", "r": 13, "lora_alpha": 16,
          "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "target_modules": ["q_proj"]}


def names(n_layers=2, linears=("self_attn.q_proj", "mlp.down_proj")):
    return [f"model.layers.{i}.{linear}" for i in range(n_layers) for linear in linears]


class Adapter(RepairCase):
    """Factors of random bytes for some modules, and a config."""

    def tensors(self, ranks, dtype="F16", names_of=(".lora_A.weight", ".lora_B.weight")):
        width = support.BITS[dtype] // 8
        tensors = {}
        for module, rank in ranks.items():
            for name, shape in zip(names_of, ((rank, 24), (40, rank))):
                data = self.rng.randbytes(shape[0] * shape[1] * width)
                tensors[PREFIX + module + name] = (dtype, shape, data)
        return tensors

    def write(self, tensors, name="adapter", config=None, **changes):
        folder = self.path(name)
        os.makedirs(folder)
        support.write_tensors(os.path.join(folder, "adapter_model.safetensors"), tensors)
        self.put_config(folder, CONFIG if config is None else config, **changes)
        return folder

    def put_config(self, folder, config, **changes):
        with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump({**config, **changes}, file, indent=1)

    def config(self, folder):
        with open(os.path.join(folder, "adapter_config.json"), encoding="utf-8") as file:
            return json.load(file)

    def stated(self, config, module):
        """Rank and scale that peft gives a module."""
        def value(pattern, default):
            for key, own in (config.get(pattern) or {}).items():
                if re.match(rf"(.*\.)?({key})$", module):
                    return own
            return config[default]
        rank, alpha = value("rank_pattern", "r"), value("alpha_pattern", "lora_alpha")
        return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)

    def check(self, folder, tensors, ranks, *args):
        """Repairs, verifies and undoes; the scales stay and the factors are padded."""
        out, back = self.path("out"), self.path("back")
        done = self.gac.json("repair", folder, "-o", out, "--no-sync", *args)
        self.assertTrue(done["written"])
        self.assertEqual(done["loads_in"][1]["runtime"], "peft")
        self.assertTrue(done["loads_in"][1]["loads"])
        self.assertEqual(sorted(os.listdir(out)), ["adapter_config.json", "adapter_model.safetensors"])
        repaired = support.read_tensors(os.path.join(out, "adapter_model.safetensors"))
        before, after = self.config(folder), self.config(out)
        for module, rank in ranks.items():
            a, b = (repaired[f"{PREFIX}{module}.lora_{x}.weight"] for x in "AB")
            to = a[1][0]
            self.assertGreaterEqual(to, rank)
            self.assertEqual(b[1], (40, to))
            self.assertEqual(self.stated(after, module)[0], to)
            old, new = self.stated(before, module)[1], self.stated(after, module)[1]
            self.assertLessEqual(abs(new - old), 2.3e-16 * abs(old))
            _, _, first = tensors[f"{PREFIX}{module}.lora_A.weight"]
            _, _, second = tensors[f"{PREFIX}{module}.lora_B.weight"]
            self.assertEqual(a[2], first + bytes(len(a[2]) - len(first)))
            row = rank * 2
            self.assertEqual(b[2], b"".join(second[i * row:(i + 1) * row] + bytes(2 * (to - rank))
                                            for i in range(40)))
        self.assertTrue(self.gac.json("verify", folder, out)["ok"])
        result = self.gac("repair", out, "--undo", "-o", back, "--no-sync")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(support.read_tensors(os.path.join(back, "adapter_model.safetensors")),
                         tensors)
        with open(os.path.join(folder, "adapter_config.json"), "rb") as one, \
                open(os.path.join(back, "adapter_config.json"), "rb") as other:
            self.assertEqual(one.read(), other.read())
        return after

    def test_one_rank(self):
        ranks = dict.fromkeys(names(), 13)
        tensors = self.tensors(ranks)
        folder = self.write(tensors)
        found = self.gac.json("inspect", folder, "--dtype", "F16")
        self.assertEqual((found["checkpoint"]["family"], found["checkpoint"]["compressor"],
                          found["checkpoint"]["n_layers"]), ("adapter", "lora", 2))
        self.assertEqual(found["unexplained"], [])
        self.assertEqual({d["name"]: (d["role"], d["size"], d["exactness"]) for d in found["dims"]},
                         {m[len("model."):] + ".rank": ("rank", 13, "exact") for m in names()})
        config = self.check(folder, tensors, ranks)
        self.assertEqual((config["r"], config["lora_alpha"]), (16, 16 / 13 * 16))
        self.assertEqual((config["rank_pattern"], config["alpha_pattern"]), ({}, {}))

    def test_whole_alpha_stays_whole(self):
        ranks = dict.fromkeys(names(), 12)
        tensors = self.tensors(ranks)
        config = self.check(self.write(tensors, r=12, lora_alpha=24), tensors, ranks)
        self.assertEqual(repr(config["lora_alpha"]), "32")

    def test_rank_stabilised(self):
        ranks = dict.fromkeys(names(), 13)
        tensors = self.tensors(ranks)
        config = self.check(self.write(tensors, use_rslora=True), tensors, ranks)
        self.assertEqual(config["r"], 16)

    def test_other_ranks_by_name(self):
        """Keys are the ends of names, and the first that matches counts."""
        ranks = dict.fromkeys(names(12), 12)
        ranks.update({m: 5 for m in ranks if m.endswith("down_proj")})
        ranks["model.layers.1.self_attn.q_proj"] = 7
        tensors = self.tensors(ranks)
        folder = self.write(tensors, r=12, rank_pattern={"down_proj": 5, "layers.1.self_attn.q_proj": 7},
                            alpha_pattern={"layers.11.mlp.down_proj": 3, "q_proj": 6.5})
        for strategy in ("minimal", "multiple-16", "predefined"):
            with self.subTest(strategy):
                self.check(folder, tensors, ranks, "--strategy", strategy, "--force")
                for name in ("out", "back"):
                    os.rename(self.path(name), self.path(name + strategy))

    def test_twice(self):
        """A repaired adapter is repaired again; one undo gives the first."""
        ranks = dict.fromkeys(names(), 13)
        tensors = self.tensors(ranks)
        folder, first = self.write(tensors), self.path("first")
        self.gac.json("repair", folder, "-o", first, "--no-sync")
        done = self.gac.json("repair", first, "-o", self.path("second"), "--strategy", "predefined",
                             "--no-sync")
        self.assertTrue(done["written"])
        self.assertTrue(self.gac.json("verify", folder, self.path("second"))["ok"])
        self.gac.json("repair", self.path("second"), "--undo", "-o", self.path("back"), "--no-sync")
        self.assertEqual(self.config(self.path("back")), self.config(folder))

    def test_other_factors(self):
        """Embeddings, biases and magnitudes; a whole module is left alone and named."""
        ranks = {"model.embed_tokens": 13}
        tensors = self.tensors(ranks, names_of=(".lora_embedding_A", ".lora_embedding_B"))
        tensors.update(self.tensors({names()[0]: 13}))
        for name in (".lora_B.bias", ".lora_magnitude_vector"):
            tensors[PREFIX + names()[0] + name] = ("F16", (40,), self.rng.randbytes(80))
        tensors[PREFIX + "lm_head.weight"] = ("F16", (11, 24), self.rng.randbytes(11 * 48))
        folder = self.write(tensors, modules_to_save=["lm_head"])
        found = self.gac.json("inspect", folder, "--dtype", "F16")
        self.assertEqual({d["name"] for d in found["dims"]},
                         {"embed_tokens.rank", "layers.0.self_attn.q_proj.rank"})
        self.assertEqual((found["unexplained"], found["checkpoint"]["understood_pct"]), ([], 100))
        self.gac.json("repair", folder, "-o", self.path("out"), "--no-sync")
        repaired = support.read_tensors(os.path.join(self.path("out"), "adapter_model.safetensors"))
        self.assertEqual(repaired[PREFIX + "model.embed_tokens.lora_embedding_A"][1], (16, 24))
        self.assertEqual(repaired[PREFIX + "lm_head.weight"], tensors[PREFIX + "lm_head.weight"])
        self.assertTrue(self.gac.json("verify", folder, self.path("out"))["ok"])

    def test_torch_file(self):
        ranks = dict.fromkeys(names(), 13)
        tensors = self.tensors(ranks)
        folder = self.write(tensors)
        os.remove(os.path.join(folder, "adapter_model.safetensors"))
        with open(os.path.join(folder, "adapter_model.bin"), "wb") as file:
            file.write(tf.zip_file({n: tf.tensor(*t) for n, t in tensors.items()}))
        self.check(folder, tensors, ranks)
        result = self.gac("convert", folder, "-o", self.path("made"), "--no-sync")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(os.listdir(self.path("made"))),
                         ["adapter_config.json", "adapter_model.safetensors"])

    def test_single_file(self):
        """A file by itself has the config beside it."""
        tensors = self.tensors(dict.fromkeys(names(), 13))
        path = os.path.join(self.write(tensors), "adapter_model.safetensors")
        self.gac.json("repair", path, "-o", self.path("out"), "--no-sync")
        self.assertEqual(self.config(self.path("out"))["r"], 16)

    def refused(self, folder):
        """The reason; repairing changes nothing."""
        found = self.gac.json("inspect", folder, "--dtype", "F16")
        self.assertEqual({d["exactness"] for d in found["dims"]}, {"refused"})
        self.assertNotIn("every size is aligned", found["summary"]["advice"])
        done = self.gac.json("repair", folder, "-o", self.path("never"), "--no-sync")
        self.assertFalse(done["written"])
        return found["dims"][0]["reason"]

    def test_refused(self):
        tensors = self.tensors(dict.fromkeys(names(), 13))
        cases = {
            "peft_type": dict(peft_type="LOHA"), "rank r": dict(r="13"), "lora_alpha": dict(lora_alpha=None),
            "use_rslora": dict(use_rslora=1), "rank_pattern": dict(rank_pattern={r"layers\.0": 13}),
            "alpha_pattern": dict(alpha_pattern={"q_proj": "3"}), "states rank 16": dict(r=16),
            "target_parameters": dict(target_parameters=["a.weight"]),
            "use_qalora": dict(use_qalora=True), "kasa_config": dict(kasa_config={"a": 1}),
        }
        for i, (reason, change) in enumerate(cases.items()):
            with self.subTest(reason):
                self.assertIn(reason, self.refused(self.write(tensors, f"case{i}", **change)))

    def test_refused_without_config(self):
        folder = self.write(self.tensors(dict.fromkeys(names(), 13)))
        os.remove(os.path.join(folder, "adapter_config.json"))
        self.assertIn("no adapter_config.json", self.refused(folder))

    def test_refused_with_unknown_factor(self):
        """A factor that is not understood shares the rank that the config states."""
        tensors = self.tensors(dict.fromkeys(names(), 13))
        tensors[PREFIX + "model.conv.lora_A.weight"] = ("F16", (13, 3, 2, 2), bytes(13 * 24))
        tensors[PREFIX + "model.conv.lora_B.weight"] = ("F16", (5, 13, 1, 1), bytes(130))
        self.assertIn("conv.lora_A.weight is not understood", self.refused(self.write(tensors)))

    def test_verify_sees_another_alpha(self):
        tensors = self.tensors(dict.fromkeys(names(), 13))
        folder, out = self.write(tensors), self.path("out")
        self.gac.json("repair", folder, "-o", out, "--no-sync")
        for change in (dict(lora_alpha=16), dict(r=13), dict(alpha_pattern={"q_proj": 1}),
                       dict(use_rslora=True)):
            with self.subTest(str(change)):
                good = self.config(out)
                self.put_config(out, good, **change)
                self.assertEqual(self.gac("verify", folder, out).returncode, 5)
                self.put_config(out, good)
        self.assertEqual(self.gac("verify", folder, out).returncode, 0)

    def test_bad_shapes(self):
        tensors = self.tensors({names()[0]: 13})
        name = PREFIX + names()[0] + ".lora_B.weight"
        tensors[name] = ("F16", (40, 12), bytes(960))
        result = self.gac("inspect", self.write(tensors))
        self.assertEqual(result.returncode, 3)
        self.assertIn("13 rows", result.stderr)

    def test_is_not_run(self):
        folder = self.write(self.tensors(dict.fromkeys(names(), 13)))
        result = self.gac("eval", folder, "--prefill", "1x4")
        self.assertEqual(result.returncode, 3)
        self.assertIn("adapter", result.stderr)


if __name__ == "__main__":
    sys.exit(main(__doc__))
