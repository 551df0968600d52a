"""Safetensors files for tests: made by hand, and by the reference package.

A tensor is (name, dtype, shape, data) with dtype as the format spells it.
"""

import ctypes
import json
import struct

import safetensors

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

# How the reference's writer spells them; it has no name for the two F6 types.
REFERENCE_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}


def n_bytes(dtype, shape):
    n_bits = BITS[dtype]
    for size in shape:
        n_bits *= size
    if n_bits % 8:
        raise ValueError(f"{dtype} {shape} does not fill bytes")
    return n_bits // 8


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def wrap(header, data=b""):
    """A file from header text and data."""
    return struct.pack("<Q", len(header)) + header + data


def by_hand(tensors, metadata=None):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, part in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return wrap(json.dumps(header, ensure_ascii=False).encode(), data)


def by_reference(tensors, metadata=None):
    """Bytes from the reference's writer."""
    specs, keep = {}, []
    for name, dtype, shape, data in tensors:
        shape = list(shape)
        if not hasattr(safetensors, "TensorSpec"):  # before 0.8
            specs[name] = {"dtype": REFERENCE_NAMES[dtype], "shape": shape, "data": data}
            continue
        if dtype == "F4":  # told in pairs
            shape[-1] //= 2
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        keep.append(buffer)  # the writer borrows it
        specs[name] = safetensors.TensorSpec(dtype=REFERENCE_NAMES[dtype], shape=shape,
                                             data_ptr=ctypes.addressof(buffer),
                                             data_len=len(data))
    return safetensors.serialize(specs, metadata)


def read_by_reference(data):
    """{name: (dtype, shape, bytes)}; raises what the reference raises."""
    return {name: (info["dtype"], list(info["shape"]), bytes(info["data"]))
            for name, info in safetensors.deserialize(data)}


def split(data):
    """Header text and data start of a file, without judging it."""
    length = struct.unpack("<Q", data[:8])[0]
    return data[8:8 + length], 8 + length
