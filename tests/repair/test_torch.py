#!/usr/bin/env python3
"""Files of torch.save: read, judged, repaired and converted like the same safetensors.

    python3 tests/repair/test_torch.py --gac build/gac

tests/support/torch_files.py writes the files; tests/bad has the hostile ones, and
experiments/validation/torch-files compares with torch itself.
"""
import json
import os
import shutil
import struct
import sys

import repair_support as support
import torch_files as tf
from repair_case import RepairCase, main
from small_models import MODELS
from torch_files import Call, Storage, Tensor, module, tensor


def numbers(n, size=4):
    return b"".join(struct.pack("<I", i * 2654435761 % (1 << 32))[:size] for i in range(n))


def elements(value):
    """The bytes of a tensor in order, by its strides."""
    size = tf.BYTES[value.storage.dtype]
    places = [value.offset]
    for n, stride in zip(value.shape, value.strides):
        places = [p + i * stride for p in places for i in range(n)]
    return b"".join(value.storage.data[p * size:(p + 1) * size] for p in places)


def state_of(tensors):
    """A state dict of what repair_support reads and writes."""
    return {name: tensor(dtype, shape, data) for name, (dtype, shape, data) in tensors.items()}


class TorchCase(RepairCase):
    def write(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def converted(self, path):
        """What gac convert makes of a file: {name: (dtype, shape, data)}."""
        out = self.path("converted")
        shutil.rmtree(out, ignore_errors=True)
        result = self.gac("convert", path, "-o", out, "--no-sync")
        self.assertEqual(result.returncode, 0, result.stderr)
        return support.read_folder(out)

    def check_same(self, value, expected):
        """value, in both formats, holds these Tensors by name."""
        wanted = {name: (t.storage.dtype, t.shape, elements(t)) for name, t in expected.items()}
        for kind, content in (("zip", tf.zip_file(value)), ("legacy", tf.legacy_file(value)),
                              ("plain zip", tf.zip_file(value, zip64=False))):
            with self.subTest(kind):
                self.assertEqual(self.converted(self.write("in.pt", content)), wanted)

    def folder_of(self, name, files, config, carried=True):
        for file, content in files.items():
            self.write(os.path.join(name, file), content)
        self.write(os.path.join(name, "config.json"), config.encode())
        for file, content in support.CARRIED.items() if carried else ():
            self.write(os.path.join(name, file), content)
        return self.path(name)


class Reading(TorchCase):
    def test_dtypes(self):
        state = {d: tensor(d, (2, 3), numbers(6 * tf.BYTES[d], 1)) for d in tf.STORAGES}
        self.check_same(state, state)

    def test_new_dtypes(self):
        state = {d: tensor(d, (2, 3), numbers(6 * tf.BYTES[d], 1)) for d in tf.NEW}
        for value in state.values():  # an untyped storage is counted in bytes
            value.storage.numel = len(value.storage.data)
        self.check_same(state, state)

    def test_views(self):
        base = Storage("F32", numbers(24 * 32))
        state = {"all": Tensor(base, (24, 32)), "t": Tensor(base, (32, 24), (1, 32)),
                 "rows": Tensor(base, (6, 32), (32, 1), 96),
                 "columns": Tensor(base, (24, 6), (32, 1), 5),
                 "steps": Tensor(base, (8, 7), (96, 5), 1),
                 "cube": Tensor(base, (32, 4, 6), (1, 192, 32)), "one": Tensor(base, (), (), 767),
                 "row": Tensor(base, (1, 32), (999, 1), 32), "none": Tensor(base, (0, 5), (7, 7)),
                 "tied": Tensor(base, (24, 32))}
        self.check_same(state, state)

    def test_large_transposed(self):
        """More than a buffer of the copy, at offsets that are no multiples of it."""
        base = Storage("F16", numbers(1001 * 701, 2))
        state = {"t": Tensor(base, (701, 1001), (1, 701)), "p": Tensor(base, (1001, 701))}
        self.check_same(state, state)

    def test_legacy_views(self):
        state = {"a": Tensor(Storage("F32", numbers(9), view=("v", 3, 5)), (2, 2), None, 1)}
        made = self.converted(self.write("in.pt", tf.legacy_file(state)))
        self.assertEqual(made["a"], ("F32", (2, 2), numbers(9)[16:32]))

    def test_long_pickle(self):
        """A legacy pickle beyond what is loaded at first."""
        state = {"text": "x" * (3 << 20), "a": tensor("F32", (2,), numbers(2))}
        self.check_same(state, {"a": state["a"]})

    def test_many(self):
        state = {f"t{i}": tensor("U8", (1,), bytes([i % 256])) for i in range(5000)}
        self.check_same(state, state)

    def test_module(self):
        """Names and order of Module.state_dict()."""
        shared = module("torch.nn.Linear", {"weight": tensor("F16", (2, 3), numbers(6, 2)),
                                            "bias": None})
        rotary = module("mine.Rotary", {}, {"inv_freq": tensor("F32", (2,), numbers(2)),
                                            "kept": tensor("I64", (1,), numbers(8, 1)),
                                            "none": None}, not_saved=["inv_freq"],
                        cache=tensor("F32", (2,), numbers(2)))
        weight = tensor("F32", (3, 2), numbers(6), parameter=True)
        root = module("mine.Model", {"scale": weight}, {}, {
            "first": shared, "rotary": rotary, "missing": None, "second": shared},
            config=Call("mine", "Config", state={"a": [1, 2.5, None], "b": ("x", 1 << 90)}))
        expected = {"scale": weight, "first.weight": shared.state["_parameters"]["weight"],
                    "rotary.kept": rotary.state["_buffers"]["kept"],
                    "second.weight": shared.state["_parameters"]["weight"]}
        self.check_same(root, expected)
        self.check_same({"model": root, "tokenizer": Call("mine", "Tokenizer", state={"v": 1})},
                        expected)

    def test_wrappers(self):
        state = {"a": tensor("F32", (2,), numbers(2))}
        other = {"state": {0: {"step": tensor("F32", (), numbers(1))}}, "param_groups": [{"lr": 1}]}
        for wrapped in ({"model": state, "optimizer": other, "epoch": 3}, {"state_dict": state},
                        {"state_dict": {"model": state}, "optimizer": other},
                        Call("collections", "OrderedDict", [])):
            self.check_same(wrapped, {} if isinstance(wrapped, Call) else state)
        result = self.gac("inspect", self.write("in.pt", tf.zip_file(
            {"model": MODEL, "optimizer": other, "epoch": 3})))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn('the tensors of "model" are read, 2 other entries are not', result.stdout)

    def test_nested(self):
        a, b, c = (tensor("F32", (2,), numbers(2)) for _ in range(3))
        self.check_same({"x": a, "deep": {"er": {7: b}}, "list": ["text", (c,)], "n": 5},
                        {"x": a, "deep.er.7": b, "list.1.0": c})

    def test_marks(self):
        """A tensor that torch would negate or conjugate when it is used."""
        for mark in ("neg", "conj"):
            for value, status in ((True, 3), (False, 0)):
                storage = Storage("F32", numbers(4))
                call = Call("torch._utils", "_rebuild_tensor_v2",
                            (storage, 0, (4,), (1,), False, None, {mark: value}))
                path = self.write("in.pt", tf.zip_file({"w": call}))
                with self.subTest(mark=mark, value=value):
                    result = self.gac("convert", path, "-o", self.path("marked"), "--no-sync",
                                      "--force")
                    self.assertEqual(result.returncode, status, result.stderr)
                    if status:
                        self.assertIn(f'torch\'s mark "{mark}"', result.stderr)

    def test_objects_are_named(self):
        state = dict(MODEL, extra=Call("mine", "Thing", [1], state={"a": 2}))
        result = self.gac("inspect", self.write("in.pt", tf.zip_file(state)))
        self.assertIn("such as mine.Thing", result.stdout)


MODEL = {}  # a dense model's state dict; set below


class Directory(TorchCase):
    def setUp(self):
        super().setUp()
        ck = MODELS["llama"](self.rng)
        self.tensors, self.config = support.fill(ck, self.rng), json.dumps(ck.config)
        self.state = state_of(self.tensors)

    def refused(self, folder, *words):
        result = self.gac("inspect", folder)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertTrue(support.one_line(result.stderr), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def n_tensors(self, folder):
        return self.gac.json("inspect", folder)["checkpoint"]["n_tensors"]

    def test_prefix_of_a_wrapper(self):
        for prefix in ("module.", "_orig_mod."):
            state = {prefix + name: value for name, value in self.state.items()}
            folder = self.folder_of("in-" + prefix, {"pytorch_model.bin": tf.zip_file(state)},
                                    self.config)
            self.assertIn(f'all names start with "{prefix}", which a wrapper of torch left there; no '
                          "family has such names", self.gac.json("inspect", folder)["notes"])

    def test_code_of_its_own(self):
        config = json.dumps({**json.loads(self.config), "auto_map": {"AutoModel": "mine.Model"}})
        for folder, n_notes in ((self.folder_of("ours", {"pytorch_model.bin": tf.zip_file(self.state)},
                                                self.config), 0),
                                (self.folder_of("theirs", {
                                    "pytorch_model.bin": tf.zip_file(self.state)}, config), 1)):
            notes = self.gac.json("inspect", folder)["notes"]
            self.assertEqual(len([n for n in notes if "modelling code of its own" in n]), n_notes)

    def test_lone_file(self):
        folder = self.folder_of("in", {"consolidated.00.pth": tf.zip_file(self.state),
                                       "optimizer.pt": b"not read",
                                       "training_args.bin": b"not read"}, self.config)
        self.assertEqual(self.n_tensors(folder), len(self.state))
        self.write("in/other.pt", tf.zip_file(self.state))
        self.refused(folder, "2 torch files", "pytorch_model.bin.index.json")

    def test_safetensors_come_first(self):
        folder = self.folder_of("in", {"pytorch_model.bin": b"not read"}, self.config)
        support.write_tensors(os.path.join(folder, "model.safetensors"), self.tensors)
        self.assertEqual(self.n_tensors(folder), len(self.state))

    def test_pytorch_model_comes_first(self):
        folder = self.folder_of("in", {"pytorch_model.bin": tf.zip_file(self.state),
                                       "other.bin": b"not read"}, self.config)
        self.assertEqual(self.n_tensors(folder), len(self.state))

    def test_index_must_agree(self):
        names = sorted(self.state)
        files = shards(self.state, 3, tf.zip_file)
        folder = self.folder_of("in", files, self.config)
        self.assertEqual(self.n_tensors(folder), len(self.state))
        index = json.loads(files["pytorch_model.bin.index.json"])
        index["weight_map"]["more"] = index["weight_map"][names[0]]
        self.write("in/pytorch_model.bin.index.json", json.dumps(index).encode())
        self.refused(folder, '"more"', "is missing from")
        os.unlink(os.path.join(folder, "pytorch_model-00002-of-00003.bin"))
        self.refused(folder, "pytorch_model-00002-of-00003.bin")

    def test_single_file_has_config_beside(self):
        folder = self.folder_of("in", {"a.pt": tf.legacy_file(self.state)}, self.config)
        path = os.path.join(folder, "a.pt")
        self.assertEqual(self.gac.json("inspect", path)["checkpoint"]["family"], "llama")
        out = self.path("out")
        self.gac.json("repair", path, "-o", self.path("fixed"), "--strategy", "minimal",
                      "--no-sync")
        self.gac.json("repair", self.path("fixed"), "-o", self.path("back"), "--undo", "--no-sync")
        self.ok("convert", path, "-o", out, "--no-sync")
        for made in (out, self.path("back")):
            self.assertEqual(support.read_folder(made), self.tensors)
            self.assertEqual(support.other_files(made), {"config.json": self.config.encode()})


def shards(state, n, write):
    names, files, places = sorted(state), {}, {}
    for i in range(n):
        file = f"pytorch_model-{i + 1:05}-of-{n:05}.bin"
        part = {name: state[name] for name in names[i::n]}
        files[file] = write(part)
        places.update(dict.fromkeys(part, file))
    files["pytorch_model.bin.index.json"] = json.dumps(
        {"metadata": {"total_size": sum(len(t.storage.data) for t in state.values())},
         "weight_map": places}).encode()
    return files


class LikeSafetensors(TorchCase):
    """Every command says and does the same as with safetensors."""

    def forms(self, tensors):
        state = state_of(tensors)
        for storage in (t.storage for t in state.values()):
            if storage.dtype in tf.NEW:
                storage.numel = len(storage.data)
        turned = {k: tf.transposed(t) if len(t.shape) == 2 else t for k, t in state.items()}
        yield "zip", {"pytorch_model.bin": tf.zip_file(state)}
        yield "legacy", {"pytorch_model.bin": tf.legacy_file(state)}
        yield "zip shards", shards(state, 3, tf.zip_file)
        yield "legacy shards", shards(state, 2, tf.legacy_file)
        yield "transposed", {"pytorch_model.bin": tf.zip_file(turned)}
        yield "whole model", {"model.pt": tf.zip_file(
            {"model": tf.as_model(state_of(tensors)), "tokenizer": Call("a", "B", state={"c": 1})})}

    def same_inspection(self, torch, plain):
        found = [self.gac.json("inspect", folder) for folder in (torch, plain)]
        for one in found:
            for key in ("time", "arguments", "machine", "file_alignment", "notes"):
                one.pop(key, None)
            one["checkpoint"].pop("path")
            one["checkpoint"].pop("n_files")
            for dim in one["dims"]:
                dim["tensors"].sort()
        self.assertEqual(*found)

    def round_trip(self, torch, tensors, expected, dims):
        """repair, verify and undo; expected: what repair makes of the same safetensors."""
        out, back = self.path("out"), self.path("back")
        before = {f: os.path.getmtime(os.path.join(torch, f)) for f in os.listdir(torch)}
        made = self.gac.json("repair", torch, "-o", out, "--strategy", "minimal", "--no-sync")
        self.assertEqual(made["dims"], dims)
        self.assertEqual(support.read_folder(out), expected)
        self.assertFalse([f for f in os.listdir(out) if f.endswith((".bin", ".pt"))])
        found = self.gac.json("verify", torch, out)
        self.assertTrue(found["ok"], found)
        made = self.gac.json("repair", out, "-o", back, "--undo", "--no-sync")
        self.assertTrue(made["proved"])
        self.assertEqual(support.read_folder(back), tensors)
        self.assertEqual(support.other_files(back),
                         {k: v for k, v in support.other_files(torch).items()
                          if not k.endswith((".bin", ".pt", ".bin.index.json"))})
        self.assertEqual(before, {f: os.path.getmtime(os.path.join(torch, f))
                                  for f in os.listdir(torch)})

    def check(self, name, dtype=None):
        ck = MODELS[name](self.rng)
        tensors, config = support.fill(ck, self.rng, dtype), json.dumps(ck.config)
        self.fresh()
        plain, fixed = self.path("plain"), self.path("fixed")
        support.write_folder(plain, tensors, config)
        dims = self.gac.json("repair", plain, "-o", fixed, "--strategy", "minimal",
                             "--no-sync")["dims"]
        self.assertTrue(dims)
        expected = support.read_folder(fixed)
        for form, files in self.forms(tensors):
            with self.subTest(f"{name}, {form}"):
                torch = self.folder_of("torch", files, config)
                self.same_inspection(torch, plain)
                self.round_trip(torch, tensors, expected, dims)
                for folder in ("torch", "out", "back"):
                    shutil.rmtree(self.path(folder))

    def test_llama(self):
        self.check("llama")

    def test_svdllm(self):
        self.check("svdllm")

    def test_qwen2(self):
        self.check("qwen2", "F16")

    def test_palu(self):
        self.check("palu", "F32")

    def test_verify_sees_a_change(self):
        ck = MODELS["llama"](self.rng)
        tensors, config = support.fill(ck, self.rng), json.dumps(ck.config)
        torch = self.folder_of("torch", {"pytorch_model.bin": tf.zip_file(state_of(tensors))},
                               config)
        out = self.path("out")
        self.gac.json("repair", torch, "-o", out, "--strategy", "minimal", "--no-sync")
        name = "model.norm.weight"
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
        self.write("torch/pytorch_model.bin", tf.zip_file(state_of(tensors)))
        result = self.gac("verify", torch, out)
        self.assertEqual(result.returncode, 5)
        self.assertIn(name, result.stderr)

    def test_forward(self):
        """Weights reach the engine: the same logits, from maps and from copies."""
        ck = MODELS["llama"](self.rng)
        tensors, config = support.fill(ck, self.rng, "F32"), json.dumps(ck.config)
        small = {k: (d, s, bytes(b if i % 4 < 3 else b & 0x80 | 0x3C for i, b in enumerate(data)))
                 for k, (d, s, data) in tensors.items()}
        plain = self.folder_of("plain", {}, config)
        support.write_tensors(os.path.join(plain, "model.safetensors"), small)
        for form, files in self.forms(small):
            with self.subTest(form):
                torch = self.folder_of("torch", files, config)
                found = self.gac.json("verify", torch, plain, "--forward", "--device", "cpu")
                self.assertTrue(found["forward"]["bit_exact"], found)
                shutil.rmtree(torch)

    def test_convert_keeps_other_files(self):
        ck = MODELS["llama"](self.rng)
        tensors, config = support.fill(ck, self.rng), json.dumps(ck.config)
        torch = self.folder_of("torch", shards(state_of(tensors), 2, tf.zip_file), config)
        out = self.path("out")
        made = self.gac.json("convert", torch, "-o", out, "--no-sync")
        self.assertEqual((made["n_tensors"], made["model_type"]), (len(tensors), None))
        self.assertEqual(support.read_folder(out), tensors)
        self.assertEqual(support.other_files(out), {**support.CARRIED,
                                                    "config.json": config.encode()})
        for arguments in ((torch, "-o", torch, "--force"), (torch, "-o", out, "--dtype", "F16")):
            self.assertEqual(self.gac("convert", *arguments).returncode, 2)
        result = self.gac("convert", out, "-o", self.path("again"))
        self.assertEqual((result.returncode, "already safetensors" in result.stderr), (3, True))


def dense_state():
    ck = MODELS["llama"](support.seeded(1, "torch"))
    return state_of(support.fill(ck, support.seeded(2, "torch")))


if __name__ == "__main__":
    MODEL.update(dense_state())
    sys.exit(main(__doc__))
