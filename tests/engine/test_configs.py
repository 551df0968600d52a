#!/usr/bin/env python3
"""What a config may say, and a directory lack, before a model is run.

    python3 tests/engine/test_configs.py --gac build/gac [CASE...]

A model that would be computed otherwise than its config means is refused with
one line, never run with a default in place of what was not understood.
"""
import argparse
import json
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
        return subprocess.run([OPTIONS.gac, *map(str, args)], capture_output=True, timeout=120,
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gac", required=True)
    options, rest = parser.parse_known_args()
    vars(OPTIONS).update(vars(options))
    return tally.run(rest)


if __name__ == "__main__":
    sys.exit(main())
