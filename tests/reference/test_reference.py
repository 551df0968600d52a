#!/usr/bin/env python3
"""Compares our reader and writer with the reference safetensors package.

    test_reference.py --rewrite build/tests/rewrite --gac build/gac [CASE…]
"""

import argparse
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import safetensors

import st
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tally  # noqa: E402

OPTIONS = argparse.Namespace()
SEED = 20240607


def random_bytes(rng, count):
    return rng.getrandbits(8 * count).to_bytes(count, "little") if count else b""


def make_tensor(rng, name, dtype, shape):
    return name, dtype, list(shape), random_bytes(rng, st.n_bytes(dtype, shape))


def as_map(tensors):
    return {name: (dtype, list(shape), data) for name, dtype, shape, data in tensors}


def supported_by_reader(dtype):
    try:
        st.read_by_reference(st.by_hand([("a", dtype, [8], bytes(st.n_bytes(dtype, [8])))]))
        return True
    except safetensors.SafetensorError:
        return False


def supported_by_writer(dtype):
    try:
        st.by_reference([("a", dtype, [8], bytes(st.n_bytes(dtype, [8])))])
        return True
    except (KeyError, safetensors.SafetensorError):
        return False


class ReferenceCase(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.rng = random.Random(f"{SEED} {self.id()}")

    def path(self, name):
        return os.path.join(self.folder, name)

    def put(self, name, data):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def run_rewrite(self, *arguments):
        return subprocess.run([OPTIONS.rewrite, *arguments], capture_output=True, check=False,
                              timeout=600)

    def list_ours(self, path):
        result = self.run_rewrite("--list", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def rewrite(self, source, *options):
        """Path of a new directory that our writer made."""
        out = self.path(f"out{len(os.listdir(self.folder))}")
        result = self.run_rewrite(source, out, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, b"")
        return out

    def check_we_read(self, data, tensors):
        path = self.put("in.safetensors", data)
        listed = self.list_ours(path)
        self.assertEqual({t["name"]: (t["dtype"], t["shape"], t["fnv"]) for t in listed},
                         {name: (dtype, shape, st.fnv(part))
                          for name, dtype, shape, part in tensors})
        self.assertEqual(len(listed), len(tensors))
        return path

    def check_it_reads(self, folder, tensors):
        """The reference reads our directory, by index where there is one."""
        self.assertEqual(self.load_folder(folder), as_map(tensors))

    def load_folder(self, folder):
        index_path = os.path.join(folder, "model.safetensors.index.json")
        if not os.path.exists(index_path):
            return self.load_file(os.path.join(folder, "model.safetensors"))
        with open(index_path, encoding="utf-8") as file:
            index = json.load(file)
        loaded, n_bytes = {}, 0
        shards = {name: self.load_file(os.path.join(folder, name))
                  for name in set(index["weight_map"].values())}
        for name, shard in index["weight_map"].items():
            loaded[name] = shards[shard].pop(name)
            n_bytes += len(loaded[name][2])
        for shard, rest in shards.items():
            self.assertEqual(rest, {}, f"{shard} holds tensors the index does not give it")
        self.assertEqual(index["metadata"]["total_size"], n_bytes)
        return loaded

    def load_file(self, path):
        with open(path, "rb") as file:
            data = file.read()
        self.check_layout(data)
        with safetensors.safe_open(path, framework="np") as opened:
            names = set(opened.keys())
        tensors = st.read_by_reference(data)
        self.assertEqual(names, set(tensors))
        return tensors

    def check_layout(self, data):
        """What formats.md asks of a file we write."""
        text, start = st.split(data)
        self.assertEqual(start % 4096, 0)
        self.assertEqual(text[:1], b"{")
        stripped = text.rstrip(b" ")
        header = json.loads(stripped)
        self.assertEqual(header.pop("__metadata__", {}).get("format"), "pt")
        by_offset = sorted(header, key=lambda n: (header[n]["data_offsets"],
                                                  list(header).index(n)))
        wanted = sorted(header, key=lambda n: (-st.BITS[header[n]["dtype"]], n.encode()))
        self.assertEqual(by_offset, wanted)
        self.assertEqual(list(header), wanted, "header order differs from data order")
        compact = json.dumps(json.loads(stripped), separators=(",", ":"), ensure_ascii=False)
        self.assertLessEqual(len(stripped), max(len(compact.encode()), len(json.dumps(
            json.loads(stripped), separators=(",", ":")))), "header is not compact")

    def check_both_ways(self, tensors, metadata=None):
        writer = st.by_reference if all(supported_by_writer(t[1]) for t in tensors) else st.by_hand
        path = self.check_we_read(writer(tensors, metadata), tensors)
        out = self.rewrite(path)
        self.check_it_reads(out, tensors)
        return out


class Dtypes(ReferenceCase):
    def test_reference_supports_what_we_expect(self):
        self.assertEqual([d for d in st.BITS if not supported_by_reader(d)], [])
        self.assertEqual([d for d in st.BITS if not supported_by_writer(d)],
                         ["F6_E2M3", "F6_E3M2"])

    def test_each_alone(self):
        for dtype in st.BITS:
            with self.subTest(dtype=dtype):
                self.check_both_ways([make_tensor(self.rng, "a", dtype, [3, 8])])

    def test_all_together(self):
        tensors = [make_tensor(self.rng, f"t.{i}", dtype, [2, 4, 1 + i % 3])
                   for i, dtype in enumerate(st.BITS)]
        self.check_both_ways(tensors)
        self.check_both_ways([t for t in tensors if supported_by_writer(t[1])])


class Shapes(ReferenceCase):
    def test_scalar(self):
        for dtype in st.BITS:
            if st.BITS[dtype] % 8 == 0:
                with self.subTest(dtype=dtype):
                    self.check_both_ways([make_tensor(self.rng, "scalar", dtype, [])])

    def test_zero_size(self):
        for shape in ([0], [0, 5], [5, 0], [3, 0, 7], [0, 0]):
            for dtype in ("F32", "BF16", "U8", "F6_E2M3"):
                with self.subTest(shape=shape, dtype=dtype):
                    self.check_both_ways([make_tensor(self.rng, "empty", dtype, shape)])

    def test_zero_size_among_others(self):
        self.check_both_ways([
            make_tensor(self.rng, name, dtype, shape) for name, dtype, shape in (
                ("a", "F32", [0]), ("b", "F32", [4]), ("c", "F32", [0, 9]), ("d", "U8", [3]),
                ("e", "U8", [0]), ("f", "F64", []), ("g", "F64", [2, 0]))])

    def test_no_tensors(self):
        self.check_both_ways([])
        self.check_we_read(st.wrap(b"{}"), [])
        self.check_we_read(st.wrap(b'{"__metadata__":{}}'), [])

    def test_many_axes(self):
        self.check_both_ways([make_tensor(self.rng, "a", "I16", [1] * 62 + [3, 2])])

    def test_larger_than_a_piece(self):
        self.check_both_ways([make_tensor(self.rng, "a", "U8", [1000003 * 2 + 1]),
                              make_tensor(self.rng, "b", "F16", [1000, 777])])


class Names(ReferenceCase):
    NAMES = ["", " ", "a b", "a.b.c", "grüße", "模型.层.0", "😀", "é", "\"quoted\"", "back\\slash",
             "tab\there", "line\nbreak", "slash/es", "\u007f", "\u2028", "\uffff", "__metadata",
             "__metadata__ ", "x" * 1024, "é" * 512]

    def test_names_survive(self):
        for name in self.NAMES:
            with self.subTest(name=name[:20]):
                self.check_both_ways([make_tensor(self.rng, name, "U8", [3])])

    def test_all_names_in_one_file(self):
        self.check_both_ways([make_tensor(self.rng, name, "U8", [i % 4])
                              for i, name in enumerate(self.NAMES)])

    def test_escaped_names(self):
        data = st.wrap(b'{"\\u0061\\/\\ud83d\\ude00":{"dtype":"U8","shape":[1],'
                       b'"data_offsets":[0,1]}}', b"x")
        self.assertEqual(list(st.read_by_reference(data)), ["a/😀"])
        self.check_we_read(data, [("a/😀", "U8", [1], b"x")])


class Metadata(ReferenceCase):
    def check(self, metadata):
        tensors = [make_tensor(self.rng, "a", "F32", [2])]
        out = self.check_both_ways(tensors, metadata)
        path = os.path.join(out, "model.safetensors")
        with safetensors.safe_open(path, framework="np") as opened:
            self.assertEqual(opened.metadata(), {"format": "pt", **(metadata or {})})

    def test_kept(self):
        self.check(None)
        self.check({})
        self.check({"format": "pt"})
        self.check({"a": "b", "": "", "größe": "😀\n\"\\", "long": "x" * 5000})

    def test_none_at_all(self):
        self.check_we_read(st.by_hand([("a", "U8", [1], b"x")]), [("a", "U8", [1], b"x")])


class Sharding(ReferenceCase):
    def tensors(self):
        return [make_tensor(self.rng, f"layers.{i}.weight", ("F32", "BF16", "U8")[i % 3], [100 + i])
                for i in range(30)] + [make_tensor(self.rng, "empty", "F32", [0]),
                                       make_tensor(self.rng, "scalar", "F64", [])]

    def test_limits(self):
        tensors = self.tensors()
        total = sum(len(t[3]) for t in tensors)
        source = self.put("in.safetensors", st.by_reference(tensors))
        for limit in (1, 400, 516, 1000, 4096, total // 2, total - 1, total, total + 1):
            with self.subTest(limit=limit):
                out = self.rewrite(source, "--max-shard-bytes", str(limit))
                self.check_it_reads(out, tensors)
                self.check_shards(out, limit, total)
                again = self.rewrite(out)
                self.check_it_reads(again, tensors)

    def check_shards(self, out, limit, total):
        files = sorted(name for name in os.listdir(out) if name.endswith(".safetensors"))
        if total <= limit:
            self.assertEqual(files, ["model.safetensors"])
            self.assertEqual(os.listdir(out), files)
            return
        n = len(files)
        self.assertGreaterEqual(n, -(-total // limit) if limit > 1 else 2)
        self.assertEqual(files, [f"model-{i:05}-of-{n:05}.safetensors" for i in range(1, n + 1)])
        with open(os.path.join(out, "model.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        self.assertEqual(set(index["weight_map"].values()), set(files), "a shard has no tensors")
        sizes = {}
        for name in files:
            with open(os.path.join(out, name), "rb") as file:
                sizes[name] = [len(t[2]) for t in st.read_by_reference(file.read()).values()]
        for name, parts in sizes.items():
            if sum(1 for size in parts if size) > 1:
                self.assertLessEqual(sum(parts), limit, name)

    def test_reads_a_sharded_directory(self):
        tensors = self.tensors()
        weight_map = {}
        for part in range(3):
            name = f"model-{part + 1:05}-of-00003.safetensors"
            chosen = tensors[part::3]
            self.put(f"sharded/{name}", st.by_reference(chosen, {"format": "pt"}))
            weight_map.update({t[0]: name for t in chosen})
        total = sum(len(t[3]) for t in tensors)
        self.put("sharded/model.safetensors.index.json", json.dumps(
            {"metadata": {"total_size": total}, "weight_map": weight_map}).encode())
        listed = self.list_ours(self.path("sharded"))
        self.assertEqual({t["name"]: (t["dtype"], t["shape"], t["fnv"], t["file"])
                          for t in listed},
                         {n: (d, s, st.fnv(b), weight_map[n]) for n, d, s, b in tensors})
        self.check_it_reads(self.rewrite(self.path("sharded")), tensors)

    def test_existing_target_is_refused(self):
        source = self.put("in.safetensors", st.by_reference(self.tensors()))
        os.mkdir(self.path("there"))
        result = self.run_rewrite(source, self.path("there"))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count(b"\n"), 1)
        self.assertIn(b"there", result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.safetensors", "there"])


class Interrupted(ReferenceCase):
    """Nothing half-written appears under the target's name."""

    def setUp(self):
        super().setUp()
        size = 64 << 20
        header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
        self.source = self.put("in.safetensors", st.wrap(header.encode()))
        os.truncate(self.source, os.path.getsize(self.source) + size)

    def test_no_room(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for options in ([], ["--max-shard-bytes", "1"]):
            result = subprocess.run([OPTIONS.rewrite, self.source, self.path("out"), *options],
                                    capture_output=True, check=False, timeout=600,
                                    preexec_fn=limit, restore_signals=False)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
            self.assertEqual(os.listdir(self.folder), ["in.safetensors"])

    def test_killed(self):
        for milliseconds in (0, 5, 20, 40, 80):
            out = self.path(f"out{milliseconds}")
            with subprocess.Popen([OPTIONS.rewrite, self.source, out]) as process:
                time.sleep(milliseconds / 1000)
                process.kill()
            if os.path.exists(out):
                self.assertEqual(os.listdir(out), ["model.safetensors"])
                self.assertEqual(len(self.list_ours(out)), 1)


class Config(ReferenceCase):
    def test_unknown_keys_and_order_survive(self):
        config = ('{"zeta": 1, "model_type": "llama", "nested": {"b": [1, 2.5, null, true], '
                  '"a": "grüße"}, "alpha": 1e-05, "big": 9007199254740993}')
        self.put("dir/config.json", config.encode())
        self.put("dir/model.safetensors", st.by_reference([("a", "U8", [1], b"x")]))
        out = self.rewrite(self.path("dir"))
        with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
            kept = json.load(file, object_pairs_hook=list)
        self.assertEqual(kept, json.loads(config, object_pairs_hook=list))

    def test_inspect_counts_what_the_reference_wrote(self):
        hidden, width, n_heads, vocab = 32, 44, 4, 64
        tensors = [make_tensor(self.rng, name, "BF16", shape) for name, shape in (
            ("model.embed_tokens.weight", [vocab, hidden]), ("model.norm.weight", [hidden]),
            ("lm_head.weight", [vocab, hidden]))]
        for layer in range(2):
            tensors += [make_tensor(self.rng, f"model.layers.{layer}.{name}.weight", "BF16", shape)
                        for name, shape in (
                            ("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]),
                            ("self_attn.q_proj", [hidden, hidden]),
                            ("self_attn.k_proj", [hidden, hidden]),
                            ("self_attn.v_proj", [hidden, hidden]),
                            ("self_attn.o_proj", [hidden, hidden]),
                            ("mlp.gate_proj", [width, hidden]), ("mlp.up_proj", [width, hidden]),
                            ("mlp.down_proj", [hidden, width]))]
        self.put("llama/model.safetensors", st.by_reference(tensors, {"format": "pt"}))
        self.put("llama/config.json", json.dumps({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
            "intermediate_size": width, "num_attention_heads": n_heads,
            "num_key_value_heads": n_heads, "num_hidden_layers": 2, "vocab_size": vocab,
            "tie_word_embeddings": False}).encode())
        result = subprocess.run([OPTIONS.gac, "inspect", "--json", self.path("llama")],
                                capture_output=True, check=False, timeout=600)
        self.assertEqual(result.returncode, 0, result.stderr)
        checkpoint = json.loads(result.stdout)["checkpoint"]
        n_bytes = sum(len(t[3]) for t in tensors)
        self.assertEqual((checkpoint["family"], checkpoint["compressor"]), ("llama", "dense"))
        self.assertEqual((checkpoint["n_tensors"], checkpoint["n_params"], checkpoint["bytes"]),
                         (len(tensors), n_bytes // 2, n_bytes))


class RandomProperty(ReferenceCase):
    """Any set of tensors survives reference → us → reference at any limit."""

    def random_tensor(self, index):
        rng = self.rng
        dtype = rng.choice([d for d in st.BITS if supported_by_writer(d)])
        shape = [rng.choice((0, 1, 1, 2, 3, 5, 8, 13)) for _ in range(rng.randrange(5))]
        if dtype == "F4":
            shape = (shape or [1])[:-1] + [rng.randrange(4) * 2]
        name = f"{rng.choice(('layer', 'grüße', '层', 'a.b', 'Z'))}.{index}"
        return make_tensor(rng, name, dtype, shape)

    def test_round_trips(self):
        for case in range(60):
            with self.subTest(case=case):
                tensors = [self.random_tensor(i) for i in range(self.rng.randrange(12))]
                # Without tensors the reference writes empty metadata as broken JSON.
                metadata = self.rng.choice((None, {} if tensors else None, {"k": "v"}))
                path = self.check_we_read(st.by_reference(tensors, metadata), tensors)
                limit = self.rng.choice((1, 64, 1000, 10 ** 9))
                out = self.rewrite(path, "--max-shard-bytes", str(limit))
                self.check_it_reads(out, tensors)


class Pairs(list):
    """The members of a JSON object, duplicates included."""


def all_values(value):
    yield value
    children = [v for _, v in value] if isinstance(value, Pairs) else (
        value if isinstance(value, list) else [])
    for child in children:
        yield from all_values(child)


def all_objects(value):
    return (v for v in all_values(value) if isinstance(v, Pairs))


def entries(header):
    return [(k, v) for k, v in header if k != "__metadata__"]


def entry_fields(header):
    return [(k, v) for _, entry in entries(header) if isinstance(entry, Pairs) for k, v in entry]


# What the reference lets pass and we refuse, each with how to tell. The header
# comes as Pairs. Everything else must be judged alike.
STRICTER = {
    "duplicate key": lambda header: any(
        len({k for k, _ in obj}) < len(obj) for obj in all_objects(header)),
    "tensor name over 1024 bytes": lambda header: any(
        len(k.encode()) > 1024 for k, _ in entries(header)),
    "NUL in a string": lambda header: any(
        "\0" in k or (isinstance(v, str) and "\0" in v)
        for obj in all_objects(header) for k, v in obj),
    "more than 64 axes": lambda header: any(
        k == "shape" and isinstance(v, list) and len(v) > 64 for k, v in entry_fields(header)),
    "unknown key in a tensor's entry": lambda header: any(
        k not in ("dtype", "shape", "data_offsets") for k, _ in entry_fields(header)),
    "tensor's entry is a list": lambda header: any(
        not isinstance(v, Pairs) and isinstance(v, list) for _, v in entries(header)),
    "dtype is {name: null}": lambda header: any(
        k == "dtype" and isinstance(v, Pairs) for k, v in entry_fields(header)),
    "__metadata__ is null": lambda header: any(
        k == "__metadata__" and v is None for k, v in header),
    "number over 2^63 - 1": lambda header: any(
        isinstance(v, int) and v > 2 ** 63 - 1 for v in all_values(header)),
    "sizes multiply to over 2^63 - 1 before a zero": lambda header: any(
        k == "shape" and any(math.prod(v[:i]) > 2 ** 63 - 1 for i in range(len(v)))
        for k, v in entry_fields(header)),
}


def stricter_rules(data):
    """Names of the stricter rules this file breaks."""
    text, _ = st.split(data)
    header = json.loads(text, object_pairs_hook=Pairs)
    return [name for name, breaks in STRICTER.items() if breaks(header)]


class Mutator:
    """Valid files with one to three things changed."""

    NUMBERS = [0, 1, 2, 3, 7, 8, 64, 255, 2 ** 31, 2 ** 32, 2 ** 53 + 1, 2 ** 62, 2 ** 63 - 1,
               2 ** 63, 2 ** 64 - 1, 2 ** 64, 10 ** 30, -1, -2 ** 63, 0.0, 1.5, 1e3, True, None,
               "1", [], [0], {}]
    TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"0", b"-", b"9", b".", b"e", b" ",
              b"\n", b"\t", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\u0000", b"\\ud800",
              b"\\u00e9", b"null", b"true", b"1e5", b"-0", b"\xef\xbb\xbf", b"/", b"//", b"'"]

    def __init__(self, rng):
        self.rng = rng

    def base(self):
        rng, header, position = self.rng, Pairs(), 0
        if rng.random() < 0.5:
            header.append(("__metadata__", Pairs([("format", "pt")])))
        for i in range(rng.randrange(1, 5)):
            dtype = rng.choice(list(st.BITS))
            shape = [rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(3))] + [8]
            size = st.n_bytes(dtype, shape)
            header.append((f"t{i}", Pairs([("dtype", dtype), ("shape", shape),
                                           ("data_offsets", [position, position + size])])))
            position += size
        return header, bytes(position)

    def to_text(self, value):
        if isinstance(value, Pairs):
            return "{" + ",".join(f"{json.dumps(k)}:{self.to_text(v)}" for k, v in value) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self.to_text, value)) + "]"
        return json.dumps(value)

    def change_tree(self, header):
        rng = self.rng
        tensors = [i for i, (k, v) in enumerate(header)
                   if k != "__metadata__" and isinstance(v, Pairs) and v]
        if not tensors:
            return
        where = rng.choice(tensors)
        name, entry = header[where]
        entry = Pairs(entry)
        field = rng.randrange(len(entry))
        key, value = entry[field]
        kind = rng.randrange(14)
        if kind == 0:
            header.append((name, entry))
        elif kind == 1:
            entry.append((key, value))
        elif kind == 2:
            entry.pop(field)
        elif kind == 3:
            entry.insert(field, (rng.choice(("extra", "Dtype", "", "shape ")), rng.choice((1, []))))
        elif kind == 4:
            entry[field] = (key, rng.choice(self.NUMBERS))
        elif kind in (5, 6, 7) and isinstance(value, list):
            value = list(value)
            if value and rng.random() < 0.7:
                value[rng.randrange(len(value))] = rng.choice(self.NUMBERS)
            else:
                value.insert(0, rng.choice((0, 1, 2, 2 ** 63)))
            entry[field] = (key, value)
        elif kind == 8:
            dtype = rng.choice(list(st.BITS) + ["f32", "F128", "", "F32 ", {"F32": None}])
            dtype = Pairs(dtype.items()) if isinstance(dtype, dict) else dtype
            entry = Pairs((k, dtype if k == "dtype" else v) for k, v in entry)
        elif kind == 9:
            name = rng.choice(("x" * 1024, "x" * 1025, "a\0b", "__metadata__", "t0", "é"))
        elif kind == 10:
            entry = Pairs((k, [1] * rng.choice((10, 60, 61, 62, 63, 64, 70)) + v
                           if k == "shape" and isinstance(v, list) else v) for k, v in entry)
        elif kind == 11:
            header[where] = (name, rng.choice([[v for _, v in entry], None, 1, "x", []]))
            return
        elif kind == 12:
            header.append(("__metadata__", rng.choice(
                [None, [], 1, "x", Pairs(), Pairs([("a", 1)]), Pairs([("a", None)]),
                 Pairs([("a", "b"), ("a", "c")]), Pairs([("a", "\0")]), Pairs([("a", Pairs())])])))
        elif kind == 13:
            rng.shuffle(entry)
        header[where] = (name, entry)
        if kind == 13:
            rng.shuffle(header)

    def change_text(self, text):
        rng = self.rng
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            return text[:at] + rng.choice(self.TOKENS) + text[at:]
        if kind == 1:
            return text[:at] + text[at + rng.randrange(1, 4):]
        if kind == 2:
            return text[:at] + rng.choice(self.TOKENS) + text[at + 1:]
        if kind == 3:
            end = min(len(text), at + rng.randrange(1, 30))
            return text[:at] + text[at:end] * 2 + text[end:]
        return rng.choice((b" ", b"\n\t\r ", b"\0", b"x", b"")) + text + rng.choice(
            (b" ", b"\n", b"\0", b"{}", b""))

    def file(self):
        rng = self.rng
        header, data = self.base()
        for _ in range(rng.randrange(3)):
            self.change_tree(header)
        text = self.to_text(header).encode()
        if rng.random() < 0.4:
            text = self.change_text(text)
        if rng.random() < 0.1:
            data = rng.choice((data + b"\0", data[:-1], b"", data * 2))
        made = st.wrap(text, data)
        if rng.random() < 0.05:
            length = rng.choice((0, 1, len(text) - 1, len(text) + 1, len(made), 10 ** 8 + 1,
                                 2 ** 31, 2 ** 32 + len(text), 2 ** 63, 2 ** 64 - 1))
            made = length.to_bytes(8, "little") + made[8:]
        return made


class Differential(ReferenceCase):
    N_CASES = 800

    def verdict(self, data):
        try:
            return st.read_by_reference(data)
        except safetensors.SafetensorError:
            return None

    def check_alike(self, data):
        """Returns 'both', 'neither' or the stricter rule that explains us."""
        theirs = self.verdict(data)
        path = self.put("case.safetensors", data)
        result = self.run_rewrite("--list", path)
        shown = f"{data[:8].hex()} {data[8:900]!r}, {result.stderr!r}"
        self.assertIn(result.returncode, (0, 3), shown)
        if result.returncode == 0:
            self.assertIsNotNone(theirs, f"the reference rejects, we accept: {shown}")
            ours = {t["name"]: (t["dtype"], t["shape"], t["fnv"])
                    for t in map(json.loads, result.stdout.splitlines())}
            self.assertEqual(ours, {n: (d, s, st.fnv(b)) for n, (d, s, b) in theirs.items()}, shown)
            return "both"
        self.assertEqual(result.stdout, b"", shown)
        self.assertEqual(result.stderr.count(b"\n"), 1, shown)
        self.assertIn(b"case.safetensors", result.stderr)
        if theirs is None:
            return "neither"
        rules = stricter_rules(data)
        self.assertTrue(rules, f"we reject, the reference accepts: {shown}")
        return rules[0]

    def test_mutated_headers(self):
        mutator = Mutator(self.rng)
        seen = {}
        for case in range(self.N_CASES):
            with self.subTest(case=case):
                verdict = self.check_alike(mutator.file())
                seen[verdict] = seen.get(verdict, 0) + 1
        print("differential:", ", ".join(f"{v} {k}" for k, v in sorted(seen.items())))
        self.assertGreater(seen.get("both", 0), self.N_CASES // 20)
        self.assertGreater(seen.get("neither", 0), self.N_CASES // 20)

    def test_each_stricter_rule_is_needed_and_kept(self):
        good = b'"dtype":"U8","shape":[1],"data_offsets":[0,1]'
        cases = {
            "duplicate key": b'{"a":{%s},"a":{%s}}' % (good, good),
            "tensor name over 1024 bytes": b'{"%s":{%s}}' % (b"x" * 1025, good),
            "NUL in a string": b'{"a\\u0000":{%s}}' % good,
            "more than 64 axes": b'{"a":{"dtype":"U8","shape":[%s1],"data_offsets":[0,1]}}'
                                 % (b"1," * 64),
            "unknown key in a tensor's entry": b'{"a":{%s,"x":0}}' % good,
            "tensor's entry is a list": b'{"a":["U8",[1],[0,1]]}',
            "dtype is {name: null}": b'{"a":{"dtype":{"U8":null},"shape":[1],'
                                     b'"data_offsets":[0,1]}}',
            "__metadata__ is null": b'{"__metadata__":null,"a":{%s}}' % good,
            "sizes multiply to over 2^63 - 1 before a zero":
                b'{"a":{%s},"b":{"dtype":"U8","shape":[%d,2,0],"data_offsets":[1,1]}}'
                % (good, 2 ** 63 - 1),
            "number over 2^63 - 1": b'{"a":{%s},"b":{"dtype":"U8","shape":[0,%d],'
                                    b'"data_offsets":[1,1]}}' % (good, 2 ** 63),
        }
        self.assertEqual(set(cases), set(STRICTER))
        for name, header in cases.items():
            with self.subTest(rule=name):
                data = st.wrap(header, b"x")
                self.assertIsNotNone(self.verdict(data), "the reference rejects this now")
                self.assertEqual(self.check_alike(data), name)

    def test_the_reference_rejects_and_so_do_we(self):
        """The reference's own bad-file cases, and near ones."""
        entry = b'{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
        for header, data in (
                (b"", b""), (b"{", b""), (b"[]", b""), (b"null", b""), (b'"x"', b""), (b" ", b""),
                (b'{"a":%s,}' % entry, b"xy"), (b'{"a":%s}x' % entry, b"xy"),
                (b'{"a":%s}\0' % entry, b"xy"), (b'\xef\xbb\xbf{"a":%s}' % entry, b"xy"),
                (b'{"a":%s}' % entry, b"x"), (b'{"a":%s}' % entry, b"xyz"),
                (b'{"a":%s,"b":%s}' % (entry, entry), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[0,2]", b"[1,3]"), b"xyz"),
                (b'{"a":%s}' % entry.replace(b"[0,2]", b"[2,0]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[2.0]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[2e0]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[-2]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[02]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[2,-0]").replace(b"0,2", b"0,0"), b""),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[4611686018427387904,4]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"[2]", b"[9223372036854775807,4,0]")
                 .replace(b"0,2", b"0,0"), b""),
                (b'{"a":%s}' % entry.replace(b"U8", b"F4").replace(b"[2]", b"[3]"), b"xy"),
                (b'{"a":%s}' % entry.replace(b"U8", b"F8"), b"xy"),
                (b'{"a":%s,"b":%s}' % (entry, entry.replace(b"[2]", b"[0]").replace(
                    b"[0,2]", b"[1,1]")), b"xy"),
                (b'{"a\x01":%s}' % entry, b"xy"), (b'{"a\xff":%s}' % entry, b"xy"),
                (b'{"\\ud800":%s}' % entry, b"xy"), (b'{"\\udc00":%s}' % entry, b"xy"),
                (b'{"\xed\xa0\x80":%s}' % entry, b"xy"), (b'{"\xc0\xaf":%s}' % entry, b"xy"),
                (b'{"__metadata__":{"a":1},"a":%s}' % entry, b"xy")):
            with self.subTest(header=header[:70]):
                made = st.wrap(header, data)
                self.assertIsNone(self.verdict(made), "the reference accepts this now")
                self.assertEqual(self.check_alike(made), "neither")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rewrite", required=True)
    parser.add_argument("--gac", required=True)
    parser.add_argument("cases", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    print(f"reference: safetensors {safetensors.__version__}")
    return tally.run(OPTIONS.cases)


if __name__ == "__main__":
    sys.exit(main())
