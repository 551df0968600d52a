"""What the tests of repair share: checkpoints with data, and a judge of our own.

Nothing here asks gac what a repair should give, except for where a dimension
lives (gac inspect --json --places, which tests/families holds to account).
"""
import json
import os
import random
import struct
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "support")]
import make_checkpoint as mk  # noqa: E402

BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I8": 8, "U8": 8,
        "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F4": 4, "F6_E2M3": 6}
CARRIED = {"tokenizer.json": b'{"version": "1.0", "model": {"vocab": {"\xc3\xa4": 0}}}',
           "LICENSE": b"Do what you like.\r\n\0\xff", "generation_config.json": b'{ "top_p":0.9 }',
           "extra/notes.txt": b"carried", "extra/deep/vocab.txt": b"a\nb\n", "empty.txt": b""}


class Gac:
    """The program under test."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *args, **options):
        return subprocess.run([self.path, *map(str, args)], capture_output=True, text=True,
                              timeout=600, check=False, **options)

    def json(self, *args):
        result = self(*args, "--json", "-q")
        if result.returncode:
            raise AssertionError(f"gac {' '.join(map(str, args))}: {result.returncode} "
                                 f"{result.stderr[-2000:]}")
        return json.loads(result.stdout)

    def graph(self, path):
        """Dimensions by name, with every place."""
        found = self.json("inspect", path, "--places", "--dtype", "F16")
        return {d["name"]: d for d in found["dims"]}


def scratch_folder():
    """Where files cost little: in memory if there is room, else the usual place."""
    try:
        room = os.statvfs("/dev/shm")
        return "/dev/shm" if room.f_bavail * room.f_frsize > 1 << 30 else None
    except OSError:
        return None


def one_line(text):
    """Whether text is one diagnostic of gac and nothing else."""
    return text.startswith("gac: ") and text.count("\n") == 1 and text.endswith("\n")


# Files.


def n_bytes(dtype, shape):
    bits = BITS[dtype]
    for size in shape:
        bits *= size
    assert bits % 8 == 0, (dtype, shape)
    return bits // 8


def write_tensors(path, tensors, metadata=None):
    """One safetensors file of {name: (dtype, shape, data)}, in the order given."""
    header, end = {"__metadata__": metadata or {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read_header(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length)), 8 + length


def read_tensors(path):
    """{name: (dtype, shape, data)} of one file."""
    header, start = read_header(path)
    header.pop("__metadata__", None)
    with open(path, "rb") as file:
        data = file.read()
    return {name: (t["dtype"], tuple(t["shape"]),
                   data[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for name, t in header.items()}


def tensor_files(folder):
    return sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))


def read_folder(folder):
    """Tensors of all files; the index, where there is one, must tell the truth."""
    tensors, places = {}, {}
    for file in tensor_files(folder):
        for name, tensor in read_tensors(os.path.join(folder, file)).items():
            assert name not in tensors, name
            tensors[name], places[name] = tensor, file
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            stated = json.load(file)
        assert stated["weight_map"] == places
        assert stated["metadata"]["total_size"] == sum(len(t[2]) for t in tensors.values())
    else:
        assert tensor_files(folder) == ["model.safetensors"], tensor_files(folder)
    return tensors


def other_files(folder):
    """{relative path: bytes} of what is neither tensors, nor their index, nor gac's own."""
    found = {}
    for base, folders, files in os.walk(folder):
        if "gac_originals" in folders and base == folder:
            folders.remove("gac_originals")
        for file in files:
            path = os.path.join(base, file)
            if not file.endswith((".safetensors", ".safetensors.index.json")):
                with open(path, "rb") as stream:
                    found[os.path.relpath(path, folder)] = stream.read()
    return found


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def fill(ck, rng, dtype=None):
    """Random bytes for the shapes of a mk.Checkpoint; dtype replaces its main one."""
    tensors = {}
    for name, (own, shape) in ck.tensors.items():
        kind = dtype if dtype and own == ck.dtype else own
        data = bytearray(rng.randbytes(n_bytes(kind, shape)))
        if kind in ("F64", "F32", "F16", "BF16"):  # finite, below 2
            width = BITS[kind] // 8
            data[width - 1::width] = bytes(b & 0xBF for b in data[width - 1::width])
        tensors[name] = (kind, shape, bytes(data))
    return tensors


def write_folder(folder, tensors, config, n_files=1, metadata=None, carried=None):
    """A directory as Hugging Face has it; config is text, or None."""
    os.makedirs(folder)
    names = list(tensors)
    per_file = -(-len(names) // n_files)
    groups = [names[i:i + per_file] for i in range(0, len(names), per_file)]
    weight_map = {}
    for i, group in enumerate(groups):
        file = f"model-{i + 1:05}-of-{len(groups):05}.safetensors"
        if len(groups) == 1:
            file = "model.safetensors"
        weight_map.update(dict.fromkeys(group, file))
        write_tensors(os.path.join(folder, file), {n: tensors[n] for n in group},
                      {"format": "pt", **(metadata or {}), "part": str(i)})
    files = dict(CARRIED if carried is None else carried)
    if len(groups) > 1:
        total = sum(len(t[2]) for t in tensors.values())
        files["model.safetensors.index.json"] = json.dumps(
            {"metadata": {"total_size": total}, "weight_map": weight_map}).encode()
    if config is not None:
        files["config.json"] = config.encode()
    for name, data in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


# What a repair must give.


def axis_sources(size, growths):
    """For each index of an enlarged axis the original index, or None for a zero.

    growths: (start, n_slices, from, to, n_parts), where each slice is made of
    n_parts equal parts and zeros go at the end of each part."""
    sources, at = [], 0
    for start, n_slices, old, new, n_parts in sorted(growths):
        sources.extend(range(at, start))
        at = start
        for _ in range(n_slices * n_parts):
            sources.extend(range(at, at + old // n_parts))
            sources.extend([None] * (new // n_parts - old // n_parts))
            at += old // n_parts
    sources.extend(range(at, size))
    return sources


def as_runs(sources):
    """(first source or None, length) of the stretches of an axis."""
    runs = []
    for s in sources:
        if runs and (s is None) == (runs[-1][0] is None) and \
                (s is None or s == runs[-1][0] + runs[-1][1]):
            runs[-1][1] += 1
        else:
            runs.append([s, 1])
    return runs


def enlarge(data, bits, axes):
    """Tensor data with its axes (lists of sources, and the old size) enlarged."""
    if not axes:
        return data
    (sources, old), inner = axes[0], axes[1:]
    if any(len(s) != o or s != list(range(o)) for s, o in inner):
        step = len(data) // old if old else 0
        new_step = bits
        for s, _ in inner:
            new_step *= len(s)
        zero = bytes(new_step // 8)
        rows = [enlarge(data[i * step:(i + 1) * step], bits, inner) for i in range(old)]
        return b"".join(zero if s is None else rows[s] for s in sources)
    inner_bits = bits
    for _, o in inner:
        inner_bits *= o
    parts = []
    for first, length in as_runs(sources):
        assert length * inner_bits % 8 == 0
        n = length * inner_bits // 8
        begin = 0 if first is None else first * inner_bits // 8
        parts.append(bytes(n) if first is None else data[begin:begin + n])
    return b"".join(parts)


def enlarged(tensors, graph, sizes):
    """What a repair of exact dimensions must give: {name: (dtype, shape, data)}.

    sizes: {dimension: new size} of those that change."""
    growths = {}
    for dim, to in sizes.items():
        for p in graph[dim]["places"]:
            n, size = p["n_slices"], graph[dim]["size"]
            growths.setdefault((p["tensor"], p["axis"]), []).append(
                (p["start"], 1, n * size, n * to, 1) if p["repeat"] == "pairs" else
                (p["start"], n, size, to, 2 if p["repeat"] == "half" else 1))
    result = {}
    for name, (dtype, shape, data) in tensors.items():
        axes = [(axis_sources(n, growths.get((name, a), [])), n) for a, n in enumerate(shape)]
        new_shape = tuple(len(s) for s, _ in axes)
        result[name] = (dtype, new_shape,
                        data if new_shape == shape else enlarge(data, BITS[dtype], axes))
    return result


def scaled_rows(graph, sizes):
    """{tensor: {row: factor}} of the rows, as they were, that a rescaled repair multiplies."""
    factors = {}
    for dim, to in sizes.items():
        old, role = graph[dim]["size"], graph[dim]["role"]
        for p in graph[dim]["places"]:
            norm = role == "hidden" and "norm" in p["tensor"]
            if p["axis"] == 0 and (norm or role == "qk_head"):
                factor = (old / to) ** 0.5 if norm else (to / old) ** 0.25
                rows = range(p["start"], p["start"] + p["n_slices"] * old)
                factors.setdefault(p["tensor"], {}).update(dict.fromkeys(rows, factor))
    return factors


# What a config must state.


def layer_of(name):
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def module_of(dim, marks):
    for p in dim["places"]:
        for mark in marks:
            if mark in p["tensor"]:
                return p["tensor"].split(mark)[0]
    return None


# Families of which every size has one key for all layers.
ONE_KEY = ("gpt_neox", "falcon", "phi", "starcoder2", "olmo2", "glm4", "arcee", "deepseek_v3",
           "glm4_moe", "olmoe", "gpt_oss", "llama4_text", "granitemoeshared", "bloom", "bitnet")


def stated_size(config, dim):
    """The size a config states for a dimension, or None where it has no key."""
    role, name = dim["role"], dim["name"]
    if config["model_type"] in ONE_KEY:
        return config.get(dim["config_key"])
    if role == "mlp_width":
        layer = layer_of(name)
        listed = config.get("gac_modules", {}).get(f"layers.{layer}.mlp.up_proj", {})
        if listed:
            return listed.get("linear", listed.get("factors"))[0]
        if "block_configs" in config:
            return config["block_configs"][layer]["ffn"].get("intermediate_size", "ffn_mult")
        for key in ("intermediate_size", "ffn_dim", "n_inner"):
            own = config.get("per_layer_config", {}).get(str(layer), {})
            if key in own or key in config:
                return own.get(key, config.get(key))
        return 4 * config["n_embd"] if "n_embd" in config else None
    if role == "expert_width":
        return config.get("moe_intermediate_size", config.get("intermediate_size"))
    if role == "rank" and "head_wise_ranks" in config:
        module = module_of(dim, [".VT."])
        return config["head_wise_ranks"][module][int(name.rsplit(".", 1)[1])] if module else None
    if role == "rank" and "truncation_ranks" in config:
        return config["truncation_ranks"][module_of(dim, [".ALinear.", ".BLinear."])]
    if role == "rank":
        return config.get("num_basis_" + name.split(".")[-2].replace("_proj", ""))
    return {"hidden": config.get("hidden_size"), "qk_head": config.get("head_dim")}.get(role)


def seeded(*what):
    return random.Random("/".join(map(str, what)))
