"""Hostile checkpoints of 100 MB, by the rules of make_bad.py: made in pieces, never in memory."""

import os
import struct

from bad_parts import HEADER_LIMIT, INDEX, OK_ENTRY, SINGLE, llama, write_one


def fill(prefix, unit, suffix, limit=HEADER_LIMIT):
    """Pieces of a header of at most limit bytes; unit is bytes, or a function of i."""
    yield prefix
    left = limit - len(prefix) - len(suffix)
    if isinstance(unit, bytes):
        piece = unit * max(1, (1 << 20) // len(unit))
        while left >= len(unit):
            part = piece[:min(left, len(piece)) // len(unit) * len(unit)]
            left -= len(part)
            yield part
    else:
        i, batch, size = 0, [], 0
        while True:
            item = unit(i)
            if left < len(item):
                break
            left -= len(item)
            size += len(item)
            batch.append(item)
            i += 1
            if size > 1 << 20:
                yield b"".join(batch)
                batch, size = [], 0
        yield b"".join(batch)
    yield suffix


def zero_size_entry(i):
    return b'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' % i


def many_axes_entry(i):
    return b'"%x":{"dtype":"U8","shape":[%s0],"data_offsets":[0,0]},' % (i, b"0," * 63)


def long_name_entry(i):
    return b'"%01024x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' % i


def spaced_entry(i):
    return b'"%x":{%s"dtype":"U8","shape":[0],"data_offsets":[0,0]},' % (i, b" " * 16000)


def deep_entry(name):
    """An empty matrix that a model would know what to do with."""
    return lambda i: b'"%s":{%s"dtype":"U8","shape":[0,0],"data_offsets":[0,0]},' % (
        name % i, b" " * 50)


LAST_ENTRY = b'"last":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'

# Name, pieces of the header, and exit codes allowed.
BIG = [
    ("big_two_million_empty_tensors", lambda: fill(b"{", zero_size_entry, LAST_ENTRY), (0, 3)),
    ("big_empty_tensors_of_64_axes", lambda: fill(b"{", many_axes_entry, LAST_ENTRY), (0, 3)),
    ("big_empty_tensors_of_long_names", lambda: fill(b"{", long_name_entry, LAST_ENTRY), (0, 3)),
    ("big_empty_tensors_of_spaces", lambda: fill(b"{", spaced_entry, LAST_ENTRY), (0, 3)),
    ("big_number_of_layers",
     lambda: fill(b"{", deep_entry(b"model.layers.%d.self_attn.q_proj.weight"), LAST_ENTRY), (0, 3)),
    ("big_number_of_experts",
     lambda: fill(b"{", deep_entry(b"model.layers.0.mlp.experts.%d.down_proj.weight"), LAST_ENTRY),
     (0, 3)),
    ("big_ten_million_metadata_entries",
     lambda: fill(b'{"__metadata__":{', lambda i: b'"%06x":"",' % i, b'"z":""}}'), (0, 3)),
    ("big_one_metadata_value",
     lambda: fill(b'{"__metadata__":{"x":"', b"y", b'"}}'), (0, 3)),
    ("big_open_brackets", lambda: fill(b"", b"[", b""), (3,)),
    ("big_open_brackets_in_entry", lambda: fill(b'{"a":', b"[", b""), (3,)),
    ("big_open_objects", lambda: fill(b"", b'{"a":', b""), (3,)),
    ("big_empty_arrays", lambda: fill(b'{"a":[', b"[],", b"[]]}"), (3,)),
    ("big_empty_arrays_in_shape",
     lambda: fill(b'{"a":{"dtype":"U8","shape":[', b"[],", b'0],"data_offsets":[0,0]}}'), (3,)),
    ("big_one_name", lambda: fill(b'{"', b"x", b'":{"dtype":"U8","shape":[0],'
                                  b'"data_offsets":[0,0]}}'), (3,)),
    ("big_one_name_of_escapes", lambda: fill(b'{"', b"\\u00e9", b'":1}'), (3,)),
    ("big_one_open_string", lambda: fill(b'{"', b"x", b""), (3,)),
    ("big_one_number", lambda: fill(b'{"a":', b"9", b"}"), (3,)),
    ("big_one_dtype", lambda: fill(b'{"a":{"dtype":"', b"F", b'"}}'), (3,)),
    ("big_spaces", lambda: fill(b"", b" ", b""), (3,)),
    ("big_spaces_then_object", lambda: fill(b"", b" ", b"{}"), (0, 3)),
    ("big_object_then_spaces", lambda: fill(b"{}", b" ", b""), (0, 3)),
    ("big_spaces_in_entry", lambda: fill(b'{"a":{', b" ", OK_ENTRY + b"}}"), (3,)),
    ("big_same_key_numbers", lambda: fill(b"{", b'"a":1,', b'"a":1}'), (3,)),
    ("big_same_key_in_metadata",
     lambda: fill(b'{"__metadata__":{', b'"a":"",', b'"a":""}}'), (3,)),
    ("big_same_key_in_entry", lambda: fill(b'{"a":{', b'"a":1,', b'"a":1}}'), (3,)),
    ("big_distinct_keys_in_entry",
     lambda: fill(b'{"a":{', lambda i: b'"%06x":1,' % i, b'"z":1}}'), (3,)),
    ("big_commas", lambda: fill(b"{", b",", b"}"), (3,)),
    ("big_zeros", lambda: fill(b"", b"\0", b""), (3,)),
    ("big_invalid_utf8_at_the_end",
     lambda: fill(b"{", zero_size_entry, b'"\xff":{"dtype":"U8","shape":[0],'
                  b'"data_offsets":[0,0]}}'), (3,)),
    ("big_duplicate_at_the_end",
     lambda: fill(b"{", zero_size_entry, b'"0":{"dtype":"U8","shape":[0],'
                  b'"data_offsets":[0,0]}}'), (3,)),
]

# The same against the index and the config: name, file, pieces, codes.
BIG_FILES = [
    ("big_index_of_many_tensors", INDEX, lambda: fill(
        b'{"weight_map":{', lambda i: b'"%x":"model-1.safetensors",' % i,
        b'"z":"model-1.safetensors"}}'), (3,)),
    ("big_index_of_many_shards", INDEX, lambda: fill(
        b'{"weight_map":{', lambda i: b'"%x":"%x",' % (i, i), b'"z":"z"}}'), (3,)),
    ("big_index_over_limit", INDEX, lambda: fill(b"", b" ", b"{}", HEADER_LIMIT + 1), (3,)),
    ("big_config_just_under_limit", "config.json", lambda: fill(
        b"{", lambda i: b'"%x":[],' % i, b'"z":1}', 8 << 20), (0, 3)),
    ("big_config_over_limit", "config.json", lambda: fill(b"", b" ", b"{}"), (3,)),
]


def write_big(path, pieces):
    """A safetensors file from the pieces of its header."""
    with open(path, "wb") as file:
        file.write(bytes(8))
        for piece in pieces:
            file.write(piece)
        length = file.tell() - 8
        file.seek(0)
        file.write(struct.pack("<Q", length))
    return path


def write_big_file(folder, name, pieces):
    """A directory with one big file beside a valid Llama."""
    os.makedirs(folder)
    content = llama()
    if name == INDEX:
        del content[SINGLE]
    for inside, part in content.items():
        write_one(os.path.join(folder, inside), part)
    with open(os.path.join(folder, name), "wb") as file:
        for piece in pieces:
            file.write(piece)
    return folder
