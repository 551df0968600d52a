#!/usr/bin/env python3
"""Whatever is changed in a repaired checkpoint, gac verify says so and undo gives no wrong model.

    build/venv/bin/python tests/repair/test_same_model.py --gac build/gac [CASE...]

Needs the xxhash package, which is the reference for the checksums of a record.
"""
import copy
import json
import os
import shutil
import stat
import sys

import repair_support as support
import xxhash
from repair_case import main, RepairCase
from small_models import MODELS, mk

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


def xxh3(data):
    return xxhash.xxh3_64_hexdigest(data)


def tensor_xxh3(name, dtype, shape, data):
    """As a record has it: what a tensor is called, what it is, and its bytes."""
    head = f"{dtype} {','.join(map(str, shape))} {name}\0"
    return xxh3(head.encode() + data)


def other_value(value):
    """A value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2 if value else 1
    if isinstance(value, str):
        return value + "x"
    return {**value, "more": 1} if isinstance(value, dict) else [*(value or []), 1]


def modes(folder):
    """{path: permissions} of a folder and of all that is in it."""
    paths = [folder] + [os.path.join(base, name) for base, folders, files in os.walk(folder)
                        for name in folders + files]
    return {os.path.relpath(p, folder): stat.S_IMODE(os.lstat(p).st_mode) for p in paths}


def contents(folder):
    """{path: bytes} of every file in a folder."""
    found = {}
    for base, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(base, name), "rb") as file:
                found[os.path.relpath(os.path.join(base, name), folder)] = file.read()
    return found


def sealed(metadata, record):
    """The metadata of a file with another record, and the checksum that belongs to it."""
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    return {**metadata, "gac_repair": text, "gac_repair_xxh3": xxh3(text.encode())}


class SameModelCase(RepairCase):
    """An original, its repair, and ways to change the repair."""

    def write(self, ck, name="in", n_files=1, dtype=None, config=...):
        tensors = support.fill(ck, self.rng, dtype)
        text = json.dumps(ck.config) if config is ... else config
        support.write_folder(self.path(name), tensors, text, n_files)
        return self.path(name)

    def repair(self, ck=None, *args, **options):
        """Sets self.original and self.out."""
        self.original = self.write(ck or MODELS["llama"](self.rng), **options)
        self.out = self.path("out")
        self.ok("repair", self.original, "-o", self.out, "--no-sync", "--copy", *args)

    def put(self, name, data):
        """Writes a file of the repaired folder; None removes it."""
        path = os.path.join(self.out, name)
        if data is None:
            os.unlink(path)
            return
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else json.dumps(data).encode())

    def differs(self, *says):
        return self.refused(5, "verify", self.original, self.out, says=says)

    def verified(self):
        answer = self.gac.json("verify", self.original, self.out)
        self.assertTrue(answer["ok"], answer)
        return answer

    def undo(self, *args):
        return self.gac("repair", self.out, "-o", self.path("back"), "--undo", "--no-sync", *args)

    def header(self, number=0):
        """The path, tensors and metadata of a tensor file of the repair."""
        path = os.path.join(self.out, support.tensor_files(self.out)[number])
        return path, support.read_tensors(path), support.read_header(path)[0]["__metadata__"]


class Config(SameModelCase):
    """Every key of the config is the original's, or what the repair makes of it."""

    def edited(self, config, *says):
        self.put("config.json", config)
        self.differs("config.json", *says)

    def test_every_key(self):
        ck = MODELS["llama"](self.rng)
        ck.config.update(rope_scaling=LLAMA3, rope_theta=10000, hidden_act="silu",
                         tie_word_embeddings=False, big=2 ** 53 + 1)
        self.repair(ck)
        good = support.read_config(self.out)
        for key, value in good.items():
            # More heads of q alone contradict the tensors: no model, which is another error.
            if key != "num_attention_heads":
                with self.subTest(changed=key):
                    self.edited({**good, key: other_value(value)}, f'"{key}')
            with self.subTest(removed=key):
                self.edited({k: v for k, v in good.items() if k != key}, f'"{key}"', "missing")
        heads = {"num_attention_heads": 2 * good["num_attention_heads"],
                 "num_key_value_heads": 2 * good["num_key_value_heads"]}
        self.edited({**good, **heads}, "num_")
        self.edited({**good, "big": 2 ** 53}, '"big"')
        self.edited({**good, "attention_bias": True}, '"attention_bias"', "added")
        self.edited({**good, "rope_scaling": {**LLAMA3, "factor": 32.0}}, '"rope_scaling.factor"')
        self.put("config.json", None)
        self.refused(5, "verify", self.original, self.out, says="config.json is missing")

    def test_keys_of_other_families(self):
        """One change each, at the path given."""
        for model, *path, value in (
                ("mixtral", "num_local_experts", 8), ("mixtral", "num_experts_per_tok", 1),
                ("qwen3-moe", "norm_topk_prob", "x"), ("gpt2", "layer_norm_epsilon", 1.0),
                ("opt", "activation_function", "gelu"),
                ("palu", "head_wise_ranks", "model.layers.0.self_attn.k_proj", 0, 3),
                ("deci", "block_configs", 0, "attention", "extra", True),
                ("per-layer-config", "per_layer_config", "0", {"intermediate_size": 1})):
            with self.subTest(model, path=path):
                self.fresh()
                form = ["--widths", path[0]] if path[0] == "per_layer_config" else []
                self.repair(MODELS[model](support.seeded(model, 1)), *form)
                config = support.read_config(self.out)
                at = config
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = value
                self.edited(config, path[0])

    def test_large_integers(self):
        """Integers beyond 64 bits keep their value and their spelling."""
        big = {"seed": 2 ** 63, "low": -2 ** 63 - 1, "max_length": 10 ** 30, "last": 2 ** 64 + 1,
               "list": [2 ** 70, {"deep": 3 ** 60}], "name": "\\u0000123", "largest": 2 ** 63 - 1}
        ck = MODELS["llama"](self.rng)
        ck.config.update(big)
        self.repair(ck)
        self.assertNotEqual(support.read_config(self.out), ck.config)  # it was written anew
        for key, value in big.items():
            found = support.read_config(self.out)[key]
            self.assertEqual(repr(found), repr(value), key)
        self.verified()
        good = support.read_config(self.out)
        for change in ({"last": 2 ** 64}, {"list": [2 ** 70, {"deep": 3 ** 60 + 1}]},
                       {"seed": "9223372036854775808"}, {"seed": float(2 ** 63)}):
            with self.subTest(change):
                if change != {"seed": float(2 ** 63)}:
                    self.edited({**good, **change}, next(iter(change)))
        self.put("config.json", good)
        self.assertEqual(self.undo().returncode, 0)
        self.ok("repair", self.out, "-o", self.path("again"), "--no-sync", "--set",
                "layers.*.mlp.width=400")
        self.assertEqual(support.read_config(self.path("again"))["list"], big["list"])
        self.ok("verify", self.original, self.path("again"))

    def test_spelling_of_numbers(self):
        """Numbers that do not change keep their spelling."""
        original = self.write(mk.llama_like(n_layers=1, mlp=100, rms_norm_eps=1e-05), "in")
        path = os.path.join(original, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        text = json.dumps(config, indent=2).replace("500000.0", "5.00E+5")
        text = text[:-2] + ',\n  "list": [1.50, 2E-7, 1e-05, Infinity, 0.10]\n}'
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.assertIn('"rms_norm_eps": 1e-05', text)
        out = self.path("out")
        self.ok("repair", original, "-o", out, "--no-sync")
        with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
            found = file.read()
        self.assertEqual(" ".join(found.split()),
                         " ".join(text.replace('"intermediate_size": 100',
                                               '"intermediate_size": 104').split())
                         .replace("[1.50", "[ 1.50").replace("0.10]", "0.10 ]"))
        self.ok("verify", original, out)

    def test_blocks_that_cannot_state_a_width(self):
        for i, block in enumerate((None, 7, {}, {"ffn": None}, {"ffn": []})):
            with self.subTest(block):
                ck = mk.llama_like(n_layers=1, mlp=100, block_configs=[block])
                original = self.write(ck, f"in{i}")
                self.refused(3, "repair", original, "-o", self.path("out"), says="block_configs")
                self.assertFalse(os.path.exists(self.path("out")))

    def test_what_may_differ(self):
        ck = MODELS["llama"](self.rng)
        ck.config.update(rope_theta=10000, transformers_version="4.40.0", _name_or_path="a/b")
        self.repair(ck)
        good = support.read_config(self.out)
        plain = {k: v for k, v in good.items() if k not in ("transformers_version", "_name_or_path")}
        for config in ({**plain, "transformers_version": "5.17.0", "_name_or_path": "elsewhere"},
                       {**plain, "rope_theta": 10000.0}, dict(reversed(good.items()))):
            self.put("config.json", config)
            self.verified()

    def test_a_config_where_there_was_none(self):
        self.repair(config=None)
        self.verified()
        self.put("config.json", MODELS["llama"](self.rng).config)
        self.assertIn(self.gac("verify", self.original, self.out).returncode, (3, 5))
        self.put("config.json", {"architectures": ["LlamaForCausalLM"]})
        self.differs("config.json", "extra")


class Files(SameModelCase):
    """Every other file is the original's."""

    def test_files(self):
        self.repair()
        for name, data, what in (("tokenizer.json", b"{}", "length"), ("LICENSE", None, "missing"),
                                 ("generation_config.json", b'{ "top_p":0.8 }', "differs"),
                                 ("extra/deep/vocab.txt", b"a\nc\n", "differs"),
                                 ("tokenizer_config.json", b"{}", "extra"),
                                 ("extra/more.txt", b"", "extra"),
                                 ("pytorch_model.bin", b"\0", "extra"),
                                 ("model-00002-of-00002.safetensors", b"\0", "extra"),
                                 ("pytorch_model.bin.index.json", b"{}", "extra")):
            with self.subTest(name):
                path = os.path.join(self.out, name)
                before = contents(self.out).get(name)
                self.put(name, data)
                self.differs(name, what)
                if before is None:
                    os.unlink(path)
                else:
                    self.put(name, before)
        self.verified()

    def test_files_that_may_differ(self):
        self.repair()
        self.put("README.md", b"a model card")
        self.put(".gitattributes", b"*.safetensors")
        os.mkdir(os.path.join(self.out, ".git"))
        self.put(".git/config", b"[core]")
        self.verified()

    def test_a_stale_index(self):
        """A lone file of the usual name has none."""
        self.repair()
        _, tensors, _ = self.header()
        self.put("model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(
            tensors, "model.safetensors")})
        self.differs("model.safetensors.index.json", "extra")

    def test_links_to_folders(self):
        """A repair carries none, so one that is there was put there."""
        self.repair()
        os.mkdir(self.path("elsewhere"))
        for name in ("more", "extra/more"):
            with self.subTest(name):
                os.symlink(self.path("elsewhere"), os.path.join(self.out, name))
                self.differs(name, "extra")
                os.unlink(os.path.join(self.out, name))
        os.symlink(self.path("elsewhere"), os.path.join(self.out, ".cache"))
        self.verified()

    def test_tensors_and_metadata(self):
        self.repair()
        path, tensors, metadata = self.header()
        name = "model.norm.weight"
        support.write_tensors(path, {n: t for n, t in tensors.items() if n != name}, metadata)
        self.differs(name, "missing")
        support.write_tensors(path, {**tensors, "new": tensors[name]}, metadata)
        self.differs('"new"', "extra")
        for change in ({"format": ...}, {"format": "tf"}, {"part": ...}, {"more": "text"}):
            with self.subTest(change):
                support.write_tensors(path, tensors, {k: v for k, v in {**metadata, **change}.items()
                                                      if v is not ...})
                self.differs("model.safetensors", "metadata")


class Records(SameModelCase):
    """A record that was changed is noticed, with its checksum or with the original's."""

    def setUp(self):
        super().setUp()
        self.repair(mk.llama_like(n_layers=1, mlp=100, qkv_bias=True, model_type="qwen2",
                                 architecture="Qwen2ForCausalLM"))
        self.file, self.tensors, self.metadata = self.header()
        self.record = json.loads(self.metadata["gac_repair"])
        self.others = sorted(os.listdir(self.folder))

    def put_record(self, record, seal):
        """seal: with the checksum that belongs to it."""
        metadata = sealed(self.metadata, record)
        if not seal:
            metadata = {**self.metadata, "gac_repair": metadata["gac_repair"]}
        support.write_tensors(self.file, self.tensors, metadata)

    def test_checksums(self):
        """They are XXH3 of the record, of the config and of each tensor, by the order of names."""
        self.assertEqual(self.record["schema"], "gac.record/2")
        self.assertEqual(self.metadata["gac_repair_xxh3"],
                         xxh3(self.metadata["gac_repair"].encode()))
        with open(os.path.join(self.original, "config.json"), "rb") as file:
            self.assertEqual(self.record["config_xxh3"], xxh3(file.read()))
        before = support.read_folder(self.original)
        self.assertEqual(self.record["tensors_xxh3"],
                         "".join(tensor_xxh3(name, *before[name]) for name in sorted(before)))

    def edits(self):
        """Changed records by what was changed."""
        def edit(change):
            record = copy.deepcopy(self.record)
            change(record)
            return record
        dim = len(self.record["dims"]) - 1
        n_places = len(self.record["dims"][dim]["places"])
        self.assertGreater(n_places, 2)
        hashes = self.record["tensors_xxh3"]

        def place(index, part, value):
            return edit(lambda r: r["dims"][dim]["places"][index].__setitem__(part, value))
        return {
            "a place removed": edit(lambda r: r["dims"][dim]["places"].pop()),
            "a place twice": edit(lambda r: r["dims"][dim]["places"].append(
                r["dims"][dim]["places"][0])),
            "one for another": edit(lambda r: r["dims"][dim]["places"].__setitem__(
                0, r["dims"][dim]["places"][1])),
            "tensor": place(0, 0, "lm_head.weight"), "axis": place(0, 1, 1), "start": place(0, 2, 8),
            "slices": place(0, 3, 2), "parts": place(0, 4, 2),
            "from": edit(lambda r: r["dims"][dim].update({"from": 96})),
            "to": edit(lambda r: r["dims"][dim].update(to=112)),
            "a dimension dropped": edit(lambda r: r["dims"].pop()),
            "no dimensions": edit(lambda r: r["dims"].clear()),
            "a hash": edit(lambda r: r.update(tensors_xxh3="0" * 16 + hashes[16:])),
            "a hash less": edit(lambda r: r.update(tensors_xxh3=hashes[16:])),
            "config": edit(lambda r: r.update(config=r["config"].replace("qwen2", "mamba"))),
            "no config": edit(lambda r: r.update(config=None)),
            "config's hash": edit(lambda r: r.update(config_xxh3="0" * 16)),
            "rescaled": edit(lambda r: r.update(rescaled=True)),
            "scaled": edit(lambda r: r.update(scaled=["model.norm.weight"])),
            "a record before": edit(lambda r: r.update(before=self.record)),
        }

    def undo_is_true_or_nothing(self):
        result = self.undo("-q")
        if result.returncode == 0:
            self.assertEqual(support.read_folder(self.path("back")),
                             support.read_folder(self.original))
            self.assertEqual(support.other_files(self.path("back")),
                             support.other_files(self.original))
            shutil.rmtree(self.path("back"))
        else:
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertTrue(support.one_line(result.stderr), result.stderr)
        self.nothing_left(self.others)
        return result.returncode

    def test_without_the_checksum(self):
        for what, record in self.edits().items():
            with self.subTest(what):
                self.put_record(record, seal=False)
                self.refused(3, "verify", self.original, self.out, says="checksum")
                self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo",
                             says="checksum")
                self.nothing_left(self.others)

    def test_with_the_checksum(self):
        for what, record in self.edits().items():
            with self.subTest(what):
                self.put_record(record, seal=True)
                self.differs()
                self.undo_is_true_or_nothing()

    def test_parts_are_missing(self):
        for key in ("gac_repair", "gac_repair_xxh3"):
            with self.subTest(key):
                support.write_tensors(self.file, self.tensors,
                                      {k: v for k, v in self.metadata.items() if k != key})
                self.refused(3, "verify", self.original, self.out)
                self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo")
                self.nothing_left(self.others)

    def test_a_tensor_changed(self):
        """The record's checksums tell what undoing must give."""
        name = "model.layers.0.mlp.up_proj.weight"
        dtype, shape, data = self.tensors[name]
        support.write_tensors(self.file, {**self.tensors, name: (
            dtype, shape, bytes([data[0] ^ 1]) + data[1:])}, self.metadata)
        self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo",
                     says=(name, "checksum"))
        self.nothing_left(self.others)

    def test_what_a_tensor_is(self):
        """The same bytes under another name, dtype or shape are another model."""
        norm, up = "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
        query = "model.layers.0.self_attn.q_proj.weight"
        (dtype, (n,), data), (_, (rows, columns), weights) = self.tensors[norm], self.tensors[query]
        self.assertEqual(dtype, "BF16")

        def with_tensor(name, *tensor):
            return {**self.tensors, name: tensor}
        renamed = {("model.norm.weighs" if k == norm else k): t for k, t in self.tensors.items()}
        for what, tensors in (("dtype", with_tensor(norm, "F16", (n,), data)),
                              ("shape", with_tensor(norm, dtype, (n // 2, 2), data)),
                              ("more axes", with_tensor(norm, dtype, (n, 1), data)),
                              ("transposed", with_tensor(query, dtype, (columns * 2, rows // 2),
                                                         weights)),
                              ("a changed one's dtype", with_tensor(up, "F16",
                                                                    *self.tensors[up][1:])),
                              ("name", renamed)):
            with self.subTest(what):
                support.write_tensors(self.file, tensors, self.metadata)
                self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo",
                             says="checksum")
                self.nothing_left(self.others)

    def old_record(self):
        return {**{k: v for k, v in self.record.items() if not k.endswith("_xxh3")
                   and k != "widths"}, "schema": "gac.record/1"}

    def put_old_record(self, record):
        self.metadata.pop("gac_repair_xxh3", None)
        self.put_record(record, seal=False)

    def test_version_0_1(self):
        """Its records have no checksums; they are read, and the difference is told."""
        self.put_old_record(self.old_record())
        self.assertTrue(self.verified()["old_record"])
        self.assertIn("version 0.1", self.ok("verify", self.original, self.out).stdout)
        result = self.undo("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("version 0.1", result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIs(json.loads(result.stdout)["proved"], False)
        self.assertEqual(support.read_folder(self.path("back")), support.read_folder(self.original))

    def test_version_0_1_changed(self):
        """What it tells of is compared all the same."""
        edited = self.old_record()
        edited["dims"][-1]["places"].pop()
        self.put_old_record(edited)
        self.differs("dims")

    def test_another_original(self):
        """The same sizes and other values: the record's checksums are of another model."""
        other = self.write(mk.llama_like(n_layers=1, mlp=100, qkv_bias=True, model_type="qwen2",
                                 architecture="Qwen2ForCausalLM"), "other")
        self.refused(5, "verify", other, self.out)

    def test_tensors_in_another_order(self):
        """The same model, written by a program that sorts its tensors otherwise."""
        path = os.path.join(self.original, "model.safetensors")
        tensors = support.read_tensors(path)
        support.write_tensors(path, dict(reversed(tensors.items())),
                              support.read_header(path)[0]["__metadata__"])
        self.verified()


class Chains(SameModelCase):
    """Repairs of repairs."""

    def plan(self, folder, role, more):
        return self.write_plan({n: (d["size"], d["size"] + more)
                                for n, d in self.gac.graph(folder).items()
                                if d["role"] == role and not d["tied_to"]})

    def check(self, *steps):
        """steps: (role, growth) of each repair."""
        folders = [self.write(mk.svdllm_modify(mk.small_base(mlp=150), 0.8))]
        for i, (role, more) in enumerate(steps):
            folders.append(self.path(f"step{i}"))
            self.ok("repair", folders[-2], "-o", folders[-1], "--no-sync", "--copy", "--plan",
                    self.plan(folders[-2], role, more))
        for i, folder in enumerate(folders[:-1]):
            with self.subTest(steps=steps, verified_against=i):
                self.assertTrue(self.gac.json("verify", folder, folders[-1])["ok"])
        result = self.gac.json("repair", folders[-1], "-o", self.path("back"), "--undo",
                               "--no-sync")
        self.assertIs(result["proved"], True)
        self.assertEqual(support.read_folder(self.path("back")), support.read_folder(folders[0]))
        self.assertEqual(support.other_files(self.path("back")), support.other_files(folders[0]))
        self.assertTrue(self.gac.json("verify", self.path("back"), folders[-1])["ok"])

    def test_chains(self):
        for steps in ((("mlp_width", 2), ("mlp_width", 8)),  # one dimension twice
                      (("mlp_width", 2), ("rank", 8)),       # two that have nothing in common
                      (("rank", 5), ("none", 0)),            # the last changes nothing
                      (("none", 0), ("rank", 5)),            # the first
                      (("mlp_width", 2), ("rank", 8), ("mlp_width", 8))):
            self.check(*steps)
            self.fresh()


    def test_a_link_changed(self):
        """A place removed or changed in one link, whichever, with the right checksum."""
        self.original = self.write(mk.svdllm_modify(mk.small_base(mlp=150, n_layers=1), 0.8))
        middle, self.out = self.path("middle"), self.path("out")
        self.ok("repair", self.original, "-o", middle, "--no-sync", "--copy", "--plan",
                self.plan(self.original, "mlp_width", 2))
        self.ok("repair", middle, "-o", self.out, "--no-sync", "--copy", "--plan",
                self.plan(middle, "rank", 8))
        path, tensors, metadata = self.header()
        others = sorted(os.listdir(self.folder))
        for last, halves in ((True, False), (False, False), (True, True), (False, True)):
            with self.subTest(last=last, halves=halves):
                record = json.loads(metadata["gac_repair"])
                places = (record if last else record["before"])["dims"][0]["places"]
                if halves:  # the same shapes, zeros elsewhere, where the size is even
                    places[0][4] = 2
                else:
                    places.pop()
                support.write_tensors(path, tensors, sealed(metadata, record))
                for original in (self.original, middle):
                    self.refused(5, "verify", original, self.out, says="record")
                self.assertEqual(self.undo().returncode, 3)
                self.nothing_left(others)
        record = json.loads(metadata["gac_repair"])
        first = record["before"]
        first["config"] = first["config"].replace("silu", "gelu")
        first["config_xxh3"] = xxh3(first["config"].encode())
        support.write_tensors(path, tensors, sealed(metadata, record))
        self.refused(5, "verify", self.original, self.out, says=("record", "config"))


class ChainConfigs(SameModelCase):
    """After several repairs the config is what they make of it, one after the other."""

    def chain(self, ck):
        """Two repairs: self.original, self.path("middle") and self.out."""
        self.original, self.out = self.write(ck), self.path("out")
        self.ok("repair", self.original, "-o", self.path("middle"), "--no-sync", "--copy")
        widths = {n: (d["size"], d["size"] + 16 + 16 * (i % 2)) for i, (n, d) in enumerate(
            self.gac.graph(self.path("middle")).items())
            if d["role"] == "mlp_width" and d["exactness"] == "exact" and not d["tied_to"]}
        result = self.gac("repair", self.path("middle"), "-o", self.out, "--no-sync", "--copy", "--plan",
                          self.write_plan(widths))
        if result.returncode:  # a config that has one width for all layers
            self.ok("repair", self.path("middle"), "-o", self.out, "--no-sync", "--copy", "--strategy",
                    "optimal")
        return support.read_config(self.out)

    def test_every_model_verifies(self):
        for model in MODELS:
            with self.subTest(model):
                self.fresh()
                self.chain(MODELS[model](support.seeded(model, 2)))
                self.verified()
                self.original = self.path("middle")
                self.verified()

    def edited(self, config, what):
        """Verifying notices, or the config is of no model any more."""
        self.put("config.json", config)
        result = self.gac("verify", self.original, self.out, "-q")
        self.assertIn(result.returncode, (3, 5), f"{what}: {result.stdout}")
        self.assertTrue(support.one_line(result.stderr), result.stderr)

    def test_what_was_accepted(self):
        override = {"rms_norm_eps": 0.5, "rope_theta": 1.0, "num_attention_heads": 8}
        good = self.chain(mk.build("llama"))
        for key, value in (("per_layer_config", {"0": override}), ("per_layer_config", {}),
                           ("block_configs", [1, 2, 3]), ("block_configs", [])):
            with self.subTest(key, value=value):
                merged = {**good.get(key, {}), **value} if isinstance(value, dict) else value
                if merged != good.get(key):
                    self.put("config.json", {**good, key: merged})
                    self.differs(key)
        self.put("config.json", good)
        self.verified()

    def test_every_value(self):
        def paths(value, path=()):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield (*path, key)
                if isinstance(value[key], (dict, list)):
                    yield from paths(value[key], (*path, key))
        for model in ("deci", "per-layer-config", "pruned-mlp"):
            self.fresh()
            good = self.chain(MODELS[model](support.seeded(model, 3)))
            for path in paths(good):
                for remove in (False, True):
                    config = copy.deepcopy(good)
                    at = config
                    for key in path[:-1]:
                        at = at[key]
                    if remove:
                        del at[path[-1]]
                    else:
                        at[path[-1]] = other_value(at[path[-1]])
                    with self.subTest(model, path=path, remove=remove):
                        self.edited(config, path)


class Undo(SameModelCase):
    """What else undoing must notice."""

    def test_trained_on(self):
        """A value in each kind of pad: inside a row, in the rows behind, in both."""
        ck = mk.svdllm_modify(mk.small_base(n_layers=1, mlp=150, dtype="F16"), 0.8)
        rank, hidden = ck.tensors["model.layers.0.mlp.up_v_proj.weight"][1]
        self.repair(ck, "--set", "*.rank=72", "--set", "*.mlp.width=160")
        path, tensors, metadata = self.header()
        for name, shape, elements in (
                ("up_v_proj", (72, hidden), (rank * hidden, 72 * hidden - 1)),
                ("up_u_proj", (160, 72), (rank, 149 * 72 + 71, 150 * 72, 160 * 72 - 1)),
                ("down_u_proj", (hidden, 72), (rank, hidden * 72 - 1))):
            name = f"model.layers.0.mlp.{name}.weight"
            self.assertEqual(tensors[name][1], shape)
            for element in elements:
                with self.subTest(name, element=element):
                    data = bytearray(tensors[name][2])
                    self.assertEqual(data[element * 2], 0)
                    data[element * 2] = 1
                    support.write_tensors(path, {**tensors, name: ("F16", shape, bytes(data))},
                                          metadata)
                    self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo",
                                 says=(name, "inserted zeros"))
                    self.nothing_left(["in", "out"])

    def test_record_in_new_files(self):
        """Where files are divided anew, the first one has the record."""
        self.repair(None, "--max-shard-size", "20KB")
        files = support.tensor_files(self.out)
        self.assertGreater(len(files), 2)
        having = [f for f in files if "gac_repair" in
                  support.read_header(os.path.join(self.out, f))[0]["__metadata__"]]
        self.assertEqual(having, files[:1])
        self.assertTrue(self.verified()["has_record"])
        self.assertEqual(self.undo().returncode, 0)
        self.assertEqual(support.read_folder(self.path("back")), support.read_folder(self.original))

    def test_record_in_the_second_file(self):
        self.repair(n_files=2)
        path, tensors, metadata = self.header(0)
        other_path, other_tensors, other_metadata = self.header(1)
        moved = {k: metadata.pop(k) for k in list(metadata) if k.startswith("gac_repair")}
        self.assertEqual(len(moved), 2)
        self.assertNotIn("gac_repair", other_metadata)
        support.write_tensors(path, tensors, metadata)
        support.write_tensors(other_path, other_tensors, {**other_metadata, **moved})
        self.assertTrue(self.verified()["has_record"])
        self.assertEqual(self.undo().returncode, 0)
        self.assertEqual(support.read_folder(self.path("back")), support.read_folder(self.original))
        for file in support.tensor_files(self.path("back")):
            header = support.read_header(os.path.join(self.path("back"), file))[0]
            self.assertFalse([k for k in header["__metadata__"] if k.startswith("gac_")])


class Rescaled(SameModelCase):
    """Repairs that scale values."""

    def setUp(self):
        super().setUp()
        ck = mk.llama_like(n_layers=1, hidden=64, rms_norm_eps=0.25)
        self.repair(ck, "--allow", "rescaled", "--set", "hidden=80", dtype="F32")
        self.kept = os.path.join(self.out, "gac_originals", "model.safetensors")

    def test_eps(self):
        """mean(x²) + eps keeps its proportion when the mean is over more elements."""
        self.assertEqual(support.read_config(self.original)["rms_norm_eps"], 0.25)
        self.assertEqual(support.read_config(self.out)["rms_norm_eps"], 0.25 * 64 / 80)

    def test_shape_of_a_kept_original(self):
        tensors = support.read_tensors(self.kept)
        name = "model.norm.weight"
        dtype, (n,), data = tensors[name]
        for kind, shape in ((dtype, (n // 2, 2)), (dtype, (n // 2,)), ("I32", (n,))):
            with self.subTest(kind, shape=shape):
                support.write_tensors(self.kept, {**tensors, name: (
                    kind, shape, data[:support.n_bytes(kind, shape)])})
                self.differs(name, "not kept")
                self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo",
                             says=(name, "shape"))
                self.nothing_left(["in", "out"])

    def test_more_is_kept_than_was_scaled(self):
        """Only scaled tensors are kept, and only their files are there."""
        tensors = support.read_tensors(self.kept)
        for name in ("model.layers.0.mlp.down_proj.weight", "lm_head.weight", "new.weight"):
            dtype, shape, data = support.read_folder(self.original).get(name, ("F32", (1,), bytes(4)))
            with self.subTest(name):
                support.write_tensors(self.kept, {**tensors, name: (dtype, shape, bytes(len(data)))})
                self.differs("gac_originals", name)
                self.assertEqual(self.undo().returncode, 0)
                self.assertEqual(support.read_folder(self.path("back")),
                                 support.read_folder(self.original))
                shutil.rmtree(self.path("back"))
        support.write_tensors(self.kept, tensors)
        self.verified()
        for name in ("tokenizer.json", "config.json", "model.safetensors.index.json",
                     "pytorch_model.bin", "more/vocab.txt"):
            with self.subTest(name):
                path = os.path.join(os.path.dirname(self.kept), name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write("{}")
                self.differs("gac_originals/" + name, "extra")
                os.unlink(path)
        self.verified()

    def test_a_kept_original_is_gone(self):
        tensors = support.read_tensors(self.kept)
        name = "model.norm.weight"
        support.write_tensors(self.kept, {n: t for n, t in tensors.items() if n != name})
        self.differs(name, "not kept")
        self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo",
                     says=(name, "not kept"))
        self.nothing_left(["in", "out"])

    def test_kept_originals_are_gone(self):
        shutil.rmtree(os.path.dirname(self.kept))
        self.differs("not kept")
        self.refused(3, "repair", self.out, "-o", self.path("back"), "--undo", says="gac_originals")
        self.nothing_left(["in", "out"])


class Folders(SameModelCase):
    """Permissions, links, lone files and targets that are something else."""

    def test_permissions(self):
        """What others may not read stays so, kept originals and the way back included."""
        for file_mode, folder_mode in ((0o600, 0o700), (0o640, 0o750)):
            self.fresh()
            original = self.write(mk.llama_like(n_layers=1), n_files=2)
            for path in modes(original):
                path = os.path.join(original, path)
                os.chmod(path, folder_mode if os.path.isdir(path) else file_mode)
            self.ok("repair", original, "-o", self.path("out"), "--allow", "rescaled", "--set",
                    "hidden=80", "--no-sync")
            self.out = self.path("out")
            self.assertEqual(self.undo().returncode, 0)
            self.assertIn("gac_originals/model.safetensors", modes(self.out))
            for folder in (self.out, self.path("back")):
                for path, mode in modes(folder).items():
                    wanted = folder_mode if os.path.isdir(os.path.join(folder, path)) else file_mode
                    self.assertEqual(mode, wanted, f"{folder}/{path}")

    def test_permissions_of_each_file(self):
        """Each file has those of its source; one that is made of several has the strictest."""
        original = self.write(mk.llama_like(n_layers=1, mlp=100), n_files=2)
        shards = support.tensor_files(original)
        special = {"config.json": 0o600, shards[0]: 0o644, shards[1]: 0o600, "LICENSE": 0o640,
                   "model.safetensors.index.json": 0o664}
        for name in contents(original):
            os.chmod(os.path.join(original, name), special.get(name, 0o644))
        wanted = modes(original)
        for args in (["--set", "hidden=80"], ["--max-shard-size", "20KB", "--set", "hidden=80"]):
            with self.subTest(args):
                self.out = self.path(f"out{len(args)}")
                self.ok("repair", original, "-o", self.out, "--allow", "rescaled", "--no-sync", *args)
                found = modes(self.out)
                self.assertEqual(found["gac_originals/model.safetensors"], 0o600)
                for name in contents(self.out):
                    new = name.endswith(".safetensors") and len(args) > 2
                    if not name.startswith("gac_originals/"):
                        self.assertEqual(found[name], 0o600 if new else wanted[name], name)
        self.out = self.path("out2")
        self.assertEqual(self.undo().returncode, 0)
        self.assertEqual(modes(self.path("back")), wanted)

    def test_permissions_of_a_lone_file(self):
        """Its config lies beside it and has its own."""
        original = self.write(mk.llama_like(n_layers=1))
        lone = os.path.join(original, "model.safetensors")
        os.chmod(os.path.join(original, "config.json"), 0o600)
        os.chmod(lone, 0o644)
        self.ok("repair", lone, "-o", self.path("out"), "--no-sync", "--copy")
        found = modes(self.path("out"))
        self.assertEqual((found["config.json"], found["model.safetensors"]), (0o600, 0o644))

    def test_dangling_link(self):
        original = self.write(mk.llama_like(n_layers=1))
        os.symlink("gone.json", os.path.join(original, "extra", "vocab.json"))
        self.refused(3, "repair", original, "-o", self.path("out"), says="extra/vocab.json")
        self.nothing_left(["in"])

    def test_force_on_something_else(self):
        original = self.write(mk.llama_like(n_layers=1))
        os.mkdir(self.path("mine"))
        with open(self.path("mine/thesis.txt"), "w", encoding="utf-8") as file:
            file.write("years of work")
        self.refused(1, "repair", original, "-o", self.path("mine"), "--force", says="no checkpoint")
        self.nothing_left(["in", "mine"])
        self.assertEqual(contents(self.path("mine")), {"thesis.txt": b"years of work"})
        with open(self.path("mine/a.safetensors"), "w", encoding="utf-8"):
            pass  # a name is no checkpoint
        self.refused(1, "repair", original, "-o", self.path("mine"), "--force", says="no checkpoint")
        self.assertEqual(sorted(contents(self.path("mine"))), ["a.safetensors", "thesis.txt"])
        os.unlink(self.path("mine/a.safetensors"))
        os.unlink(self.path("mine/thesis.txt"))
        for _ in range(2):  # an empty folder, then a checkpoint
            self.ok("repair", original, "-o", self.path("mine"), "--force", "--no-sync", "--copy")

    def test_a_lone_file(self):
        """The config beside it describes it, and goes into the folder made of it."""
        original = self.write(mk.llama_like(n_layers=1))
        for args in ([], ["--plan", self.write_plan({})]):
            out = self.path(f"out{len(args)}")
            lone = os.path.join(original, "model.safetensors")
            self.ok("repair", lone, "-o", out, "--no-sync", "--copy", *args)
            self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
            self.assertEqual(support.read_config(out)["model_type"], "llama")
            self.assertTrue(self.gac.json("verify", lone, out)["ok"])

    def test_a_lone_shard(self):
        """Its name is not the usual one, so the result needs an index too."""
        original = self.write(mk.llama_like(n_layers=1))
        name = "model-00001-of-00001.safetensors"
        os.rename(os.path.join(original, "model.safetensors"), os.path.join(original, name))
        tensors = support.read_tensors(os.path.join(original, name))
        self.out = original
        self.put("model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(
            tensors, name)})
        self.ok("repair", original, "-o", self.path("out"), "--no-sync", "--copy")
        self.original, self.out = original, self.path("out")
        self.assertEqual(support.tensor_files(self.out), [name])
        self.assertIn("model.safetensors.index.json", os.listdir(self.out))
        support.read_folder(self.out)  # the index tells the truth
        self.verified()


if __name__ == "__main__":
    sys.exit(main(__doc__))
