"""Files as torch.save writes them, made without torch.

Pickler writes protocol 2 opcode by opcode, so that hostile pickles can be put
together from the same parts. zip_file and legacy_file wrap an object of Tensors,
Modules and plain values; st_to_torch makes one of a safetensors file.
"""

import json
import struct
import zlib

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
STORAGES = {"F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage",
            "BF16": "BFloat16Storage", "I64": "LongStorage", "I32": "IntStorage",
            "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage",
            "BOOL": "BoolStorage", "C64": "ComplexFloatStorage"}
NEW = {"U16": "uint16", "U32": "uint32", "U64": "uint64", "F8_E4M3": "float8_e4m3fn",
       "F8_E5M2": "float8_e5m2"}
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
         "BOOL": 1, "C64": 8, "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1}


class Storage:
    """Bytes that tensors are views of. numel: what the pickle claims, if not the truth."""

    def __init__(self, dtype, data, key=None, numel=None, view=None):
        self.dtype, self.data, self.key, self.view = dtype, data, key, view
        self.numel = len(data) // BYTES[dtype] if numel is None else numel


class Tensor:
    def __init__(self, storage, shape, strides=None, offset=0, parameter=False):
        self.storage, self.shape, self.offset = storage, tuple(shape), offset
        self.parameter = parameter
        if strides is None:
            strides, step = [], 1
            for size in reversed(self.shape):
                strides.insert(0, step)
                step *= max(size, 1)
        self.strides = tuple(strides)


def tensor(dtype, shape, data, **more):
    return Tensor(Storage(dtype, data), shape, **more)


class Global:
    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """An object: callable(*args), with a state."""

    def __init__(self, module, name, args=(), state=None, new=False):
        self.callable = module if isinstance(module, Global) else Global(module, name)
        self.args, self.state, self.new = tuple(args), state, new


class Raw(bytes):
    """Opcodes as they are."""


def module(name, parameters=None, buffers=None, modules=None, not_saved=(), **attributes):
    """An object of the class name, as pickle writes a torch.nn.Module."""
    where, _, short = name.rpartition(".")
    state = {"training": False, "_parameters": parameters or {}, "_buffers": buffers or {},
             "_non_persistent_buffers_set": Call("__builtin__", "set", [list(not_saved)]),
             "_modules": modules or {}, **attributes}
    return Call(where, short, state=state, new=True)


class Pickler:
    def __init__(self, legacy=False):
        self.out, self.legacy = bytearray(b"\x80\x02"), legacy
        self.memo, self.storages, self.keys = {}, {}, {}

    def put(self, value):
        """Memoizes the value on top of the stack, as pickle does, and keeps it alive."""
        index = len(self.memo)
        self.memo[id(value)] = (index, value)
        self.out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)

    def get(self, value):
        index = self.memo[id(value)][0]
        self.out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)

    def text(self, value):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        self.out += b"X" + struct.pack("<I", len(data)) + data

    def name(self, module, name):
        self.out += f"c{module}\n{name}\n".encode()

    def integer(self, value):
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"\x8a" + bytes([len(data)]) + data

    def items(self, values):
        self.out += b"("
        for value in values:
            self.add(value)

    def tensor(self, value):
        if value.parameter:
            self.name("torch._utils", "_rebuild_parameter")
            self.out += b"("
        storage = value.storage
        new = storage.dtype in NEW
        self.name("torch._utils", "_rebuild_tensor_v3" if new else "_rebuild_tensor_v2")
        self.out += b"("
        self.storage(storage)
        self.integer(value.offset)
        self.add(value.shape)
        self.add(value.strides)
        self.out += b"\x89ccollections\nOrderedDict\n)R"
        if new:
            self.name("torch", NEW[storage.dtype])
        self.out += b"tR"
        if value.parameter:
            self.out += b"\x88ccollections\nOrderedDict\n)RtR"

    def storage(self, storage):
        key = self.keys.setdefault(id(storage), storage.key or str(len(self.storages)))
        self.storages.setdefault(key, storage)
        self.out += b"("
        self.text("storage")
        if storage.dtype in NEW:
            self.name("torch.storage", "UntypedStorage")
        else:
            self.name("torch", STORAGES.get(storage.dtype, storage.dtype))
        self.text(key)
        self.text("cpu")
        self.integer(storage.numel)
        if self.legacy:
            self.add(storage.view)
        self.out += b"tQ"

    def add(self, value):
        if isinstance(value, Raw):
            self.out += value
        elif value is None:
            self.out += b"N"
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self.integer(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, (str, bytes)):
            self.text(value)
        elif isinstance(value, Global):
            self.name(value.module, value.name)
        elif id(value) in self.memo:
            self.get(value)
        else:
            self.container(value)

    def container(self, value):
        if isinstance(value, Tensor):
            self.tensor(value)
            self.put(value)
        elif isinstance(value, Storage):
            self.storage(value)
        elif isinstance(value, Call):
            self.name(value.callable.module, value.callable.name)
            self.add(tuple(value.args))
            self.out += b"\x81" if value.new else b"R"
            self.put(value)
            if value.state is not None:
                self.add(value.state)
                self.out += b"b"
        elif isinstance(value, dict):
            self.out += b"}"
            self.put(value)
            self.items(part for pair in value.items() for part in pair)
            self.out += b"u"
        elif isinstance(value, list):
            self.out += b"]"
            self.put(value)
            self.items(value)
            self.out += b"e"
        else:
            self.items(value)
            self.out += b"t"

    def finish(self):
        return bytes(self.out) + b"."


def dump(value, legacy=False):
    """The pickle, and its storages by key."""
    pickler = Pickler(legacy)
    pickler.add(value)
    return pickler.finish(), pickler.storages


# Zip archives.


class Member:
    """A member of an archive; what its headers claim can be replaced."""

    def __init__(self, name, data, align=64, **fields):
        self.name, self.data, self.align, self.fields = name.encode(), data, align, fields
        self.at = None

    def field(self, name, value):
        return self.fields.get(name, value)

    def local(self, at):
        """The header and the padding before the data at its aligned offset."""
        name = self.field("local_name", self.name)
        size = self.field("local_size", len(self.data))
        pad = -(at + 30 + len(name) + 4) % self.align + 4
        extra = b"FB" + struct.pack("<H", pad - 4) + b"Z" * (pad - 4)
        return struct.pack("<IHHHHHIIIHH", self.field("local_magic", 0x04034B50), 0,
                           self.field("flags", 0), self.field("method", 0), 0, 0,
                           zlib.crc32(self.data), size, size, len(name), len(extra)) + name + extra

    def entry(self):
        size = self.field("size", len(self.data))
        extra = self.field("extra", b"")
        return struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, self.field("flags", 0),
                           self.field("method", 0), 0, 0, zlib.crc32(self.data),
                           self.field("packed", size), size, len(self.name), len(extra), 0, 0, 0, 0,
                           self.field("header", self.at)) + self.name + extra


def archive(members, zip64=True, end=None, end64=None, tail=b"", between=b"", n_entries=None):
    """A zip file. end, end64: replace fields of the end records by their position."""
    out = bytearray()
    for member in members:
        member.at = len(out)
        out += member.local(len(out)) + member.data
    out += between
    start, entries = len(out), b"".join(m.entry() for m in members)
    n = len(members) if n_entries is None else n_entries
    out += entries
    if zip64:
        fields = [0x06064B50, 44, 0x1E, 0x2D, 0, 0, n, n, len(entries), start]
        for i, value in (end64 or {}).items():
            fields[i] = value
        where = len(out)
        out += struct.pack("<IQHHIIQQQQ", *fields)
        out += struct.pack("<IIQI", 0x07064B50, 0, where, 1)
    n = min(n, 0xffff)
    fields = [0x06054B50, 0, 0, n, n, len(entries), start, 0]
    for i, value in (end or {}).items():
        fields[i] = value
    return bytes(out) + struct.pack("<IHHHHIIH", *fields) + tail


def members_of(value, folder="archive", pickle=None):
    data, storages = dump(value)
    made = [Member(f"{folder}/data.pkl", data if pickle is None else pickle),
            Member(f"{folder}/byteorder", b"little")]
    made += [Member(f"{folder}/data/{key}", s.data) for key, s in storages.items()]
    return made + [Member(f"{folder}/version", b"3\n")]


def zip_file(value, **more):
    return archive(members_of(value), **more)


# The legacy format.


def legacy_file(value, keys=None, counts=None, cut=0, system=None, tail=b"", pickle=None):
    data, storages = dump(value, legacy=True)
    order = sorted(storages) if keys is None else keys
    out = b"\x80\x02\x8a\x0a" + MAGIC.to_bytes(10, "little") + b"."
    out += dump(PROTOCOL)[0]
    out += dump(system or {"protocol_version": 1001, "little_endian": True,
                           "type_sizes": {"short": 2, "int": 4, "long": 4}})[0]
    out += (data if pickle is None else pickle) + dump(order)[0]
    for key in order:
        if key in storages:
            storage = storages[key]
            count = len(storage.data) // (1 if storage.dtype in NEW else BYTES[storage.dtype])
            out += struct.pack("<q", (counts or {}).get(key, count)) + storage.data
    out += tail
    return out[:len(out) - cut] if cut else out


# From safetensors.


def state_of(path, wanted=lambda name: True):
    """The tensors of a safetensors file: {name: Tensor}."""
    with open(path, "rb") as file:
        (n,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(n)), file.read()
    return {name: tensor(e["dtype"], e["shape"], data[slice(*e["data_offsets"])])
            for name, e in header.items() if name != "__metadata__" and wanted(name)}


def transposed(value):
    """The same tensor of two axes, stored the other way round."""
    n, m = value.shape
    size = BYTES[value.storage.dtype]
    data = value.storage.data
    turned = b"".join(data[(i * m + j) * size:(i * m + j + 1) * size]
                      for j in range(m) for i in range(n))
    return tensor(value.storage.dtype, (n, m), turned, strides=(1, n))


def as_model(state, name="transformers.models.llama.modeling_llama.LlamaForCausalLM"):
    """A whole model of the tensors of a state dict."""
    own, below = {}, {}
    for key, value in state.items():
        head, dot, rest = key.partition(".")
        if dot:
            below.setdefault(head, {})[rest] = value
        else:
            value.parameter = True
            own[head] = value
    return module(name, own, {}, {k: as_model(v, "torch.nn.modules.module.Module")
                                  for k, v in below.items()})
