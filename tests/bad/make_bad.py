#!/usr/bin/env python3
"""Writes hostile checkpoints, one per attack, named by what is wrong.

    make_bad.py OUT [--big]

BAD and GOOD below, and BIG in make_bad_big.py, are the tables test_bad.py runs.
A bad file must be refused with exit code 3 and one line that names the file and
contains every fragment. A big one must be handled within the limits, whatever
the verdict. A good one looks odd and must be accepted.
"""

import json
import os
import struct
import sys

import make_bad_big
from bad_parts import (CONFIG, HEADER_LIMIT, INDEX, OK_ENTRY, OK_FILE, SHAPES, SHARDS, SINGLE, Fifo,
                       Folder, Link, entry, llama, llama_tensors, mapped, one, raw, sharded, without,
                       wrap, write_case, write_one)

# Name, content, what the message must contain beside the last part of the name.
# A name without a suffix is a directory.
BAD = [
    # The file and the length of its header.
    ("empty.safetensors", b"", "0 bytes"),
    ("shorter_than_8_bytes.safetensors", b"\x02\0\0\0\0\0\0", "7 bytes"),
    ("header_length_zero.safetensors", wrap(b""), "'{'"),
    ("header_length_zero_with_data.safetensors", wrap(b"", b"abcd"), "'{'"),
    ("header_beyond_file.safetensors", wrap(b"{}", length=3), "header of 3 bytes"),
    ("header_length_is_file_size.safetensors", wrap(b"{}", length=10), "header of 10 bytes"),
    ("header_over_limit.safetensors", wrap(b"{}", length=HEADER_LIMIT + 1), "100000001"),
    ("header_length_2_pow_32.safetensors", wrap(b"{}", length=2 ** 32 + 2), "4294967298"),
    ("header_length_2_pow_63.safetensors", wrap(b"{}", length=2 ** 63), "9223372036854775808"),
    ("header_length_all_ones.safetensors", wrap(b"{}", length=2 ** 64 - 1),
     "18446744073709551615"),
    ("header_length_wraps_to_2.safetensors", wrap(b"{}", length=2 ** 64 - 6),
     "18446744073709551610"),
    ("only_a_length.safetensors", struct.pack("<Q", 2), "header of 2 bytes"),
    # JSON.
    ("header_is_array.safetensors", wrap(b"[]"), "'{'"),
    ("header_is_string.safetensors", wrap(b'"a"'), "'{'"),
    ("header_is_null.safetensors", wrap(b"null"), "'{'"),
    ("header_is_spaces.safetensors", wrap(b" " * 64), "'{'"),
    ("header_is_binary.safetensors", wrap(bytes(range(1, 65))), "JSON"),
    ("header_is_zeros.safetensors", wrap(bytes(64)), "JSON"),
    ("header_starts_with_bom.safetensors", wrap(b"\xef\xbb\xbf{}"), "JSON"),
    ("json_truncated.safetensors", wrap(b'{"a":{"dtype":"U8"'), "JSON"),
    ("json_truncated_in_string.safetensors", wrap(b'{"a'), "JSON"),
    ("json_truncated_after_entry.safetensors", wrap(b'{"a":{' + OK_ENTRY + b"}", b"abcd"), "JSON"),
    ("json_trailing_comma.safetensors", wrap(b'{"a":{' + OK_ENTRY + b"},}", b"abcd"), "JSON"),
    ("json_leading_comma.safetensors", wrap(b'{,"a":{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("json_missing_comma.safetensors",
     wrap(b'{"a":{' + OK_ENTRY + b'}"b":{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("json_missing_colon.safetensors", wrap(b'{"a"{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("json_key_not_string.safetensors", wrap(b"{1:{" + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("json_then_garbage.safetensors", wrap(b'{"a":{' + OK_ENTRY + b"}}x", b"abcd"), "JSON"),
    ("json_then_second_object.safetensors", wrap(b'{"a":{' + OK_ENTRY + b"}}{}", b"abcd"), "JSON"),
    ("json_then_zeros.safetensors", wrap(b'{"a":{' + OK_ENTRY + b"}}\0\0", b"abcd"), "JSON"),
    ("json_comment.safetensors", wrap(b'{/**/"a":{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("json_single_quotes.safetensors", wrap(b"{'a':{" + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("json_closed_by_bracket.safetensors", wrap(b'{"a":{' + OK_ENTRY + b"}]", b"abcd"), "JSON"),
    ("json_deep_arrays.safetensors", wrap(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
     "JSON"),
    ("json_deep_objects.safetensors", wrap(b'{"a":' + b'{"a":' * 100_000), "JSON"),
    ("json_deep_in_entry.safetensors",
     raw(OK_ENTRY + b',"x":' + b"[" * 3000 + b"]" * 3000), "JSON"),
    # Strings.
    ("name_invalid_utf8.safetensors", wrap(b'{"a\xff":{' + OK_ENTRY + b"}}", b"abcd"),
     "not UTF-8"),
    ("name_overlong_utf8.safetensors", wrap(b'{"\xc0\xaf":{' + OK_ENTRY + b"}}", b"abcd"),
     "not UTF-8"),
    ("name_utf8_surrogate.safetensors", wrap(b'{"\xed\xa0\x80":{' + OK_ENTRY + b"}}", b"abcd"),
     "not UTF-8"),
    ("name_utf8_cut_by_end.safetensors", wrap(b'{"a\xe2\x82'), "JSON"),
    ("name_lone_surrogate.safetensors", wrap(b'{"\\ud800":{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("name_nul_escaped.safetensors", wrap(b'{"a\\u0000b":{' + OK_ENTRY + b"}}", b"abcd"),
     "is NUL"),
    ("name_nul_hides_duplicate.safetensors",
     wrap(b'{"a":{' + OK_ENTRY + b'},"a\\u0000":{' + OK_ENTRY + b"}}", b"abcd"), "is NUL"),
    ("name_nul_raw.safetensors", wrap(b'{"a\0b":{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("name_control_raw.safetensors", wrap(b'{"a\nb":{' + OK_ENTRY + b"}}", b"abcd"), "JSON"),
    ("name_1025_bytes.safetensors", one("x" * 1025), "1025 bytes"),
    ("name_1_mb.safetensors", one("x" * 1_000_000), "more than"),
    ("name_513_two_byte_letters.safetensors", one("é" * 513), "1026 bytes"),
    ("name_with_escape_sequence.safetensors", one("\x1b[2J\r\n", data=b""), "\\x1b"),
    # Duplicates.
    ("tensor_twice.safetensors", wrap(b'{"a":{' + OK_ENTRY + b'},"a":{' + OK_ENTRY + b"}}",
                                      b"abcd"), ('"a"', "twice")),
    ("tensor_twice_escaped.safetensors",
     wrap(b'{"a":{' + OK_ENTRY + b'},"\\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}',
          b"abcdefgh"), ('"a"', "twice")),
    ("entry_key_twice.safetensors", raw(b'"dtype":"U8",' + OK_ENTRY), "duplicate"),
    ("metadata_twice.safetensors",
     wrap(b'{"__metadata__":{"x":"y"},"__metadata__":{},"a":{' + OK_ENTRY + b"}}", b"abcd"),
     ("__metadata__", "twice")),
    ("metadata_key_twice.safetensors",
     wrap(b'{"__metadata__":{"x":"y","x":"y"},"a":{' + OK_ENTRY + b"}}", b"abcd"), "duplicate"),
    # __metadata__.
    ("metadata_number.safetensors", wrap({"__metadata__": {"x": 1}}), "__metadata__"),
    ("metadata_null_value.safetensors", wrap({"__metadata__": {"x": None}}), "__metadata__"),
    ("metadata_nested.safetensors", wrap({"__metadata__": {"x": {"y": "z"}}}), "__metadata__"),
    ("metadata_array.safetensors", wrap({"__metadata__": ["x"]}), "__metadata__"),
    ("metadata_string.safetensors", wrap({"__metadata__": "x"}), "__metadata__"),
    ("metadata_is_a_tensor.safetensors", one("__metadata__"), "__metadata__"),
    # Fields of an entry.
    ("entry_is_null.safetensors", wrap({"a": None}), ('"a"', "object")),
    ("entry_is_number.safetensors", wrap({"a": 1}), ('"a"', "object")),
    ("entry_is_array.safetensors", wrap({"a": ["U8", [4], [0, 4]]}, b"abcd"), ('"a"', "object")),
    ("entry_is_empty.safetensors", wrap({"a": {}}), ('"a"', "dtype")),
    ("entry_unknown_key.safetensors", one(extra=1), ('"a"', "keys")),
    ("entry_over_16_kib.safetensors", raw(OK_ENTRY + b" " * 20_000), "more than"),
    ("dtype_missing.safetensors", one(dtype=...), ('"a"', "dtype")),
    ("dtype_number.safetensors", one(dtype=1), ('"a"', "dtype")),
    ("dtype_object.safetensors", one(dtype={"U8": None}), ('"a"', "dtype")),
    ("dtype_unknown.safetensors", one(dtype="Q4_K"), ('"a"', '"Q4_K"')),
    ("dtype_lower_case.safetensors", one(dtype="u8"), ('"a"', '"u8"')),
    ("dtype_empty.safetensors", one(dtype=""), ('"a"', '""')),
    ("dtype_long.safetensors", one(dtype="F" * 5000), ('"a"', "FFFF")),
    ("dtype_control_bytes.safetensors", one(dtype="U8\x1b[31m\n"), ('"a"', "\\x1b")),
    ("shape_missing.safetensors", one(shape=...), ('"a"', "shape")),
    ("shape_number.safetensors", one(shape=4), ('"a"', "shape")),
    ("shape_string.safetensors", one(shape="4"), ('"a"', "shape")),
    ("shape_null.safetensors", one(shape=None), ('"a"', "shape")),
    ("shape_object.safetensors", one(shape={"0": 4}), ('"a"', "shape")),
    ("shape_negative.safetensors", one(shape=[-4]), ('"a"', "shape")),
    ("shape_two_negatives.safetensors", one(shape=[-2, -2]), ('"a"', "shape")),
    ("shape_fraction.safetensors", one(shape=[4.5]), ('"a"', "shape")),
    ("shape_float.safetensors", one(shape=[4.0]), ('"a"', "shape")),
    ("shape_exponent.safetensors", raw(b'"dtype":"U8","shape":[4e0],"data_offsets":[0,4]'),
     ('"a"', "shape")),
    ("shape_true.safetensors", one(shape=[True, 4]), ('"a"', "shape")),
    ("shape_nested.safetensors", one(shape=[[4]]), ('"a"', "shape")),
    ("shape_string_inside.safetensors", one(shape=["4"]), ('"a"', "shape")),
    ("shape_2_pow_63.safetensors", one(shape=[2 ** 63]), "is not a size"),
    ("shape_10_pow_30.safetensors", one(shape=[10 ** 30]), "is not a size"),
    ("shape_1e400.safetensors", raw(b'"dtype":"U8","shape":[1e400],"data_offsets":[0,4]'), "JSON"),
    ("shape_leading_zero.safetensors", raw(b'"dtype":"U8","shape":[04],"data_offsets":[0,4]'),
     "JSON"),
    ("shape_65_axes.safetensors", one(shape=[1] * 64 + [4]), ('"a"', "65 axes")),
    ("shape_million_axes.safetensors", one(shape=[1] * 1_000_000 + [4]), "more than"),
    ("product_overflows.safetensors", one(shape=[2 ** 32, 2 ** 32]), ('"a"', "overflow")),
    ("product_wraps_to_4.safetensors", one(shape=[2 ** 62 + 1, 4]), ('"a"', "overflow")),
    ("product_overflows_before_zero.safetensors",
     wrap({"a": entry(0, 0, shape=[2 ** 62, 4, 0])}), ('"a"', "overflow")),
    ("product_times_size_overflows.safetensors",
     one(dtype="F64", shape=[2 ** 61]), ('"a"', "overflow")),
    ("product_times_size_wraps_to_0.safetensors",
     wrap({"a": entry(0, 0, "F64", [2 ** 61])}), ('"a"', "overflow")),
    ("bits_overflow.safetensors", one(dtype="F4", shape=[2 ** 62]), ('"a"', "overflow")),
    ("f4_of_3_elements.safetensors", one(dtype="F4", shape=[3], data=b"ab", data_offsets=[0, 2]),
     ('"a"', "F4", "whole bytes")),
    ("f4_of_3_elements_rounded_down.safetensors",
     one(dtype="F4", shape=[3], data=b"a", data_offsets=[0, 1]), ('"a"', "F4", "whole bytes")),
    ("f6_of_1_element.safetensors",
     one(dtype="F6_E2M3", shape=[], data=b"a", data_offsets=[0, 1]),
     ('"a"', "F6_E2M3", "whole bytes")),
    ("offsets_missing.safetensors", one(data_offsets=...), ('"a"', "data_offsets")),
    ("offsets_number.safetensors", one(data_offsets=4), ('"a"', "data_offsets")),
    ("offsets_one.safetensors", one(data_offsets=[4]), ('"a"', "data_offsets")),
    ("offsets_three.safetensors", one(data_offsets=[0, 4, 4]), ('"a"', "data_offsets")),
    ("offsets_strings.safetensors", one(data_offsets=["0", "4"]), ('"a"', "data_offsets")),
    ("offsets_fraction.safetensors", one(data_offsets=[0, 4.5]), ('"a"', "data_offsets")),
    ("offsets_negative.safetensors", one(data_offsets=[-4, 0]), ('"a"', "data_offsets")),
    ("offsets_2_pow_64.safetensors", one(data_offsets=[0, 2 ** 64]), "is not a pair of offsets"),
    ("begin_behind_end.safetensors", one(data_offsets=[4, 0]), ('"a"', "behind its end")),
    ("begin_near_2_pow_63.safetensors", one(data_offsets=[2 ** 63 - 1, 0]), ('"a"', "behind")),
    ("end_beyond_file.safetensors", one(shape=[5], data_offsets=[0, 5]), ('"a"', "ends at 5")),
    ("end_far_beyond_file.safetensors",
     one(shape=[2 ** 63 - 1], data_offsets=[0, 2 ** 63 - 1]), ('"a"', "9223372036854775807")),
    ("begin_and_end_beyond_file.safetensors",
     one(shape=[0], data_offsets=[2 ** 40, 2 ** 40]), ('"a"', "ends at")),
    ("size_too_small_for_shape.safetensors", one(shape=[5]), ('"a"', "5 bytes", "4")),
    ("size_too_large_for_shape.safetensors", one(shape=[3]), ('"a"', "3 bytes", "4")),
    ("size_of_other_dtype.safetensors", one(dtype="F64"), ('"a"', "32 bytes", "4")),
    # Tensors together.
    ("hole_at_start.safetensors", wrap({"a": entry(4, 8)}, b"abcdefgh"), ('"a"', "hole")),
    ("hole_between.safetensors", wrap({"a": entry(0, 4), "b": entry(5, 9)}, b"abcdefghi"),
     ('"b"', "hole")),
    ("overlap_by_one.safetensors", wrap({"a": entry(0, 4), "b": entry(3, 7)}, b"abcdefg"),
     ('"b"', "overlap")),
    ("overlap_listed_backwards.safetensors",
     wrap({"b": entry(3, 7), "a": entry(0, 4)}, b"abcdefg"), ('"b"', "overlap")),
    ("bytes_claimed_twice.safetensors", wrap({"a": entry(), "b": entry()}, b"abcd"), "overlap"),
    ("tensor_inside_tensor.safetensors", wrap({"a": entry(0, 4), "b": entry(1, 3)}, b"abcd"),
     ('"b"', "overlap")),
    ("zero_size_inside_tensor.safetensors", wrap({"a": entry(0, 4), "b": entry(2, 2)}, b"abcd"),
     ('"b"', "overlap")),
    ("zero_size_behind_hole.safetensors", wrap({"b": entry(4, 4)}, b"abcd"), ('"b"', "hole")),
    ("trailing_byte.safetensors", OK_FILE + b"\0", "1 bytes"),
    ("trailing_data_without_tensors.safetensors", wrap(b"{}", b"abcd"), "4 bytes"),
    ("truncated_by_one.safetensors", OK_FILE[:-1], ('"a"', "ends at 4")),
    ("truncated_to_header.safetensors", OK_FILE[:-4], ('"a"', "ends at 4")),
    # The index.
    ("index_not_json", sharded(index=b"not json"), ("'{'", INDEX)),
    ("index_empty", sharded(index=b""), ("'{'", INDEX)),
    ("index_truncated", sharded(index=b'{"weight_map":{"a.x":"mo'), ("JSON", INDEX)),
    ("index_is_array", sharded(index=b"[]"), ("'{'", INDEX)),
    ("index_invalid_utf8", sharded(index=b'{"weight_map":{"\xff":"x"}}'),
     ("not UTF-8", INDEX)),
    ("index_deep", sharded(index=b'{"x":' + b"[" * 100_000), ("JSON", INDEX)),
    ("index_without_weight_map", sharded(index=b'{"metadata":{}}'), ("weight_map", INDEX)),
    ("index_weight_map_null", sharded(index=b'{"weight_map":null}'),
     ("expected an object", INDEX)),
    ("index_weight_map_array", sharded(index=b'{"weight_map":["x"]}'),
     ("expected an object", INDEX)),
    ("index_weight_map_string", sharded(index=b'{"weight_map":"x"}'),
     ("expected an object", INDEX)),
    ("index_weight_map_twice", sharded(index=b'{"weight_map":{},"weight_map":{}}'),
     ("weight_map", INDEX)),
    ("index_value_number", mapped(1), ("b.x", INDEX)),
    ("index_value_null", mapped(None), ("b.x", INDEX)),
    ("index_value_object", mapped({}), ("b.x", INDEX)),
    ("index_tensor_twice", sharded(index=json.dumps({"weight_map": {
        "a.x": SHARDS[0], "a.y": SHARDS[0], "b.x": SHARDS[1]}}).encode()[:-2] +
        b',"a.x":"' + SHARDS[1].encode() + b'"}}'), ("a.x", "twice", INDEX)),
    ("index_name_1025_bytes", sharded({"x" * 1025: SHARDS[0]}), ("1024", INDEX)),
    ("index_name_nul", sharded({"a\0": SHARDS[0]}), ("is NUL", INDEX)),
    ("index_absolute_path", mapped("/etc/passwd"), "/etc/passwd"),
    ("index_absolute_path_to_own_shard", lambda folder: mapped(os.path.join(
        os.path.abspath(folder), SHARDS[1])), SHARDS[1]),
    ("index_dot_dot", mapped("../truncated_by_one.safetensors"), ".."),
    ("index_dot_dot_alone", mapped(".."), '".."'),
    ("index_dot", mapped("."), '"."'),
    ("index_empty_name", mapped(""), '""'),
    ("index_dot_dot_through_folder", mapped("sub/../../x.safetensors", **{"sub": Folder()}), ".."),
    ("index_subfolder", mapped("sub/b.safetensors", **{
        "second": None, "sub/b.safetensors": wrap({"b.x": entry()}, b"abcd")}),
     "sub/b.safetensors"),
    ("index_name_with_newline", mapped("x\ny.safetensors"), "x\\x0ay"),
    ("index_shard_name_nul", mapped(SHARDS[1] + "\0.txt"), ("is NUL", INDEX)),
    ("index_shard_name_4096_bytes", mapped("x" * 4096), "more than"),
    ("index_shard_name_300_bytes", mapped("x" * 300), "xxx"),
    ("index_link_out", sharded(second=Link("../index_link_out.target.safetensors")),
     (SHARDS[1], "link")),
    ("index_link_absolute_out", lambda folder: sharded(second=Link(os.path.join(
        os.path.abspath(folder), "..", "index_link_out.target.safetensors"))),
     (SHARDS[1], "link")),
    ("index_link_to_passwd", sharded(second=Link("/etc/passwd")), (SHARDS[1], "link")),
    ("index_link_chain_out", sharded(second=Link("step"), step=Link("/etc/passwd")),
     (SHARDS[1], "link")),
    ("index_link_through_folder", sharded(second=Link("up/etc/passwd"), up=Link("/")),
     (SHARDS[1], "link")),
    ("index_link_loop", sharded(second=Link(SHARDS[1])), SHARDS[1]),
    ("index_link_dangling", sharded(second=Link("nowhere")), SHARDS[1]),
    ("index_link_to_null_device", sharded(second=Link("/dev/null")), SHARDS[1]),
    ("index_is_a_link_out", sharded(index=Link("../index_link_out.target.json")), (INDEX, "link")),
    ("index_is_a_fifo", sharded(index=Fifo()), (INDEX, "regular")),
    ("index_is_a_folder", sharded(index=Folder()), (INDEX, "regular")),
    ("shard_missing", sharded(second=None), SHARDS[1]),
    ("shard_is_a_fifo", sharded(second=Fifo()), (SHARDS[1], "regular")),
    ("shard_is_a_folder", sharded(second=Folder()), (SHARDS[1], "regular")),
    ("shard_empty", sharded(second=b""), (SHARDS[1], "0 bytes")),
    ("shard_truncated", sharded(first=wrap({"a.x": entry(0, 4), "a.y": entry(4, 8)}, b"abcdef")),
     (SHARDS[0], "a.y", "ends at 8")),
    ("shard_header_truncated", sharded(second=wrap({"b.x": entry()}, b"abcd")[:20]),
     (SHARDS[1], "header")),
    ("shard_is_a_pointer_file", sharded(
        second=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"), SHARDS[1]),
    ("tensor_missing_from_shard", sharded(second=wrap(b"{}")), ("b.x", "missing", SHARDS[1])),
    ("tensor_in_other_shard", sharded({"a.x": SHARDS[0], "a.y": SHARDS[1], "b.x": SHARDS[1]}),
     ("a.y", SHARDS[0])),
    ("tensor_in_two_shards", sharded(second=wrap(
        {"b.x": entry(0, 4), "a.x": entry(4, 8)}, b"abcdefgh")), ("a.x", SHARDS[1])),
    ("tensor_not_in_index", sharded({"a.x": SHARDS[0], "b.x": SHARDS[1]}), ("a.y", SHARDS[0])),
    # One file in a directory.
    ("model_is_a_link_out", {"config.json": json.dumps(CONFIG).encode(), SINGLE: Link(
        "../index_link_out.target.safetensors")}, (SINGLE, "link")),
    ("model_is_a_fifo", {SINGLE: Fifo()}, (SINGLE, "regular")),
    ("model_is_a_folder", {SINGLE: Folder()}, (SINGLE, "regular")),
    ("directory_empty", {}, "no safetensors"),
    ("directory_without_weights", {"config.json": json.dumps(CONFIG).encode()}, "no safetensors"),
    ("directory_with_pytorch_file", {"config.json": json.dumps(CONFIG).encode(),
                                     "pytorch_model.bin": b"PK\x03\x04"}, "pytorch_model.bin"),
    ("directory_with_shards_without_index", sharded(index=b"") | {INDEX: None}, INDEX),
    # A snapshot may link to its cache's blobs and nowhere else.
    ("models--x--out/snapshots/rev", llama(model=Link("../../refs/blob")) | {
        "../../refs/blob": wrap(*llama_tensors())}, (SINGLE, "link")),
    ("models--x--beside/snapshots/rev", llama(model=Link("../../blobs-beside/blob")) | {
        "../../blobs-beside/blob": wrap(*llama_tensors())}, (SINGLE, "link")),
    ("models--x--through/snapshots/rev", llama(model=Link("../../blobs/blob")) | {
        "../../blobs/blob": Link("/etc/passwd")}, (SINGLE, "link")),
    # The config.
    ("config_not_json", llama(b"not json"), ("config.json", "JSON")),
    ("config_empty", llama(b""), ("config.json", "JSON")),
    ("config_truncated", llama(json.dumps(CONFIG).encode()[:-1]), ("config.json", "JSON")),
    ("config_with_garbage_behind", llama(json.dumps(CONFIG).encode() + b"x"),
     ("config.json", "JSON")),
    ("config_is_array", llama(b"[]"), ("config.json", "object")),
    ("config_is_string", llama(b'"x"'), "config.json"),
    ("config_is_null", llama(b"null"), "config.json"),
    ("config_invalid_utf8", llama(b'{"x":"\xff"}'), ("config.json", "not UTF-8")),
    ("config_nul", llama(b'{"x":"\\u0000"}'), ("config.json", "is NUL")),
    ("config_key_twice", llama(b'{"model_type":"llama","model_type":"gpt2"}'),
     ("config.json", "duplicate")),
    ("config_too_large", llama(b'{"x":"' + b"y" * (9 << 20) + b'"}'), ("config.json", "bytes")),
    ("config_deep_arrays", llama(b'{"x":' + b"[" * 1_000_000), ("config.json", "JSON")),
    ("config_deep_objects", llama(b'{"x":' + b'{"x":' * 1_000_000), ("config.json", "JSON")),
    ("config_is_a_link_out", llama() | {"config.json": Link("/etc/passwd")},
     ("config.json", "link")),
    ("config_is_a_fifo", llama() | {"config.json": Fifo()}, ("config.json", "regular")),
    ("config_is_a_folder", llama() | {"config.json": Folder()}, ("config.json", "regular")),
    ("config_model_type_number", llama(model_type=1), "model_type"),
    ("config_model_type_array", llama(model_type=["llama"]), "model_type"),
    ("config_model_type_control_bytes", llama(
        model=OK_FILE, model_type="\x1b[2J\n", architectures=["\x1b[2J\n"]), "\\x1b"),
    ("config_hidden_size_negative", llama(hidden_size=-16), "hidden_size"),
    ("config_hidden_size_fraction", llama(hidden_size=16.5), "hidden_size"),
    ("config_hidden_size_string", llama(hidden_size="16"), "hidden_size"),
    ("config_layers_10_pow_18", llama(num_hidden_layers=10 ** 18), "num_hidden_layers"),
    ("config_layers_negative", llama(num_hidden_layers=-1), "num_hidden_layers"),
    ("config_layers_string", llama(num_hidden_layers="1"), "num_hidden_layers"),
    ("config_heads_zero", llama(num_attention_heads=0), "num_attention_heads"),
    ("config_heads_negative", llama(num_attention_heads=-2), "num_attention_heads"),
    ("config_heads_array", llama(num_attention_heads=[2]), "num_attention_heads"),
    ("config_heads_10_pow_18", llama(num_attention_heads=10 ** 18), "num_attention_heads"),
    ("config_heads_do_not_divide", llama(num_attention_heads=3, num_key_value_heads=3),
     ("q_proj", "heads")),
    ("config_kv_heads_zero", llama(num_key_value_heads=0), "num_key_value_heads"),
    ("config_kv_heads_negative", llama(num_key_value_heads=-2), "num_key_value_heads"),
    ("config_head_dim_negative", llama(head_dim=-8), "head_dim"),
    ("config_head_dim_huge", llama(head_dim=2 ** 62), "head_dim"),
]

# What two of the cases above link to: fine in itself, but outside.
TARGETS = {
    "index_link_out.target.safetensors": wrap({"b.x": entry()}, b"abcd"),
    "index_link_out.target.json": json.dumps({"weight_map": {
        "a.x": SHARDS[0], "a.y": SHARDS[0], "b.x": SHARDS[1]}}).encode(),
}


# Good: odd, and to be accepted.

def odd_llama(before=b"", after=b"", extra=None, extra_data=b""):
    header, data = llama_tensors()
    for name, (begin, end, dtype, shape) in (extra or {}).items():
        header[name] = entry(len(data) + begin, len(data) + end, dtype, shape)
    return llama(model=wrap(before + json.dumps(header).encode() + after, data + extra_data))


def cache(absolute=False):
    """A Hugging Face cache: a snapshot of links into blobs."""
    def build(folder):
        up = os.path.join(os.path.abspath(folder), "..", "..") if absolute else "../.."
        return {"config.json": Link(f"{up}/blobs/c0ffee"), SINGLE: Link(f"{up}/blobs/beef"),
                "../../blobs/c0ffee": json.dumps(CONFIG).encode(),
                "../../blobs/beef": wrap(*llama_tensors())}
    return build


def sharded_llama():
    names = list(SHAPES)
    made = {"config.json": json.dumps(CONFIG).encode()}
    weight_map = {}
    for shard, part in zip(SHARDS, (names[:5], names[5:])):
        made[shard] = wrap(*llama_tensors({n: SHAPES[n] for n in part}))
        weight_map.update(dict.fromkeys(part, shard))
    made[INDEX] = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}).encode()
    return made


N_LLAMA = len(SHAPES)

# Name, content, number of tensors. Directories hold a Llama, which inspect
# must accept; bare files are only opened.
GOOD = [
    ("good_plain", llama(), N_LLAMA),
    ("good_leading_space", odd_llama(before=b" \n\t\r "), N_LLAMA),
    ("good_trailing_space", odd_llama(after=b" " * 4099), N_LLAMA),
    ("good_trailing_newline", odd_llama(after=b"\r\n\t "), N_LLAMA),
    ("good_zero_size_at_border", odd_llama(extra={"z": (0, 0, "F32", [0, 7])}), N_LLAMA + 1),
    ("good_scalar", odd_llama(extra={"s": (0, 8, "F64", [])}, extra_data=bytes(8)), N_LLAMA + 1),
    ("good_unknown_config_keys", llama(zzz={"deep": [[[{}]]]}, aaa=None), N_LLAMA),
    ("good_sharded_with_wrong_total", sharded_llama(), N_LLAMA),
    ("models--good--relative/snapshots/rev", cache(), N_LLAMA),
    ("models--good--absolute/snapshots/rev", cache(absolute=True), N_LLAMA),
    ("good_link_inside", llama(model=Link("weights")) | {"weights": wrap(*llama_tensors())},
     N_LLAMA),
    ("good_other_file_name", {"config.json": json.dumps(CONFIG).encode(),
                              "other.safetensors": wrap(*llama_tensors())}, N_LLAMA),
    ("good_no_tensors.safetensors", wrap(b"{}"), 0),
    ("good_only_metadata.safetensors", wrap(b'{"__metadata__":{"a":"b"}}'), 0),
    ("good_spaced_json.safetensors",
     wrap(b' { "a" : { "shape" : [ 4 ] , "data_offsets" : [ 0 , 4 ] , "dtype" : "U8" } } ',
          b"abcd"), 1),
    ("good_zero_sizes_at_every_border.safetensors", wrap(
        {"z0": entry(0, 0), "a": entry(0, 4), "z1": entry(4, 4, "F32", [3, 0]),
         "z2": entry(4, 4), "b": entry(4, 8), "z3": entry(8, 8)}, b"abcdefgh"), 6),
    ("good_zero_size_of_huge_axes.safetensors", wrap(
        {"z": entry(0, 0, "F64", [0, 2 ** 60, 2 ** 60])}), 1),
    ("good_listed_backwards.safetensors",
     wrap({"b": entry(4, 8), "a": entry(0, 4)}, b"abcdefgh"), 2),
    ("good_scalars.safetensors", wrap(
        {"a": entry(0, 1, shape=[]), "b": entry(1, 9, "F64", [])}, bytes(9)), 2),
    ("good_sub_byte.safetensors", wrap(
        {"a": entry(0, 2, "F4", [4]), "b": entry(2, 5, "F6_E3M2", [4]),
         "c": entry(5, 5, "F4", [0])}, bytes(5)), 3),
    ("good_name_1024_bytes.safetensors", one("x" * 1024), 1),
    ("good_name_empty.safetensors", one(""), 1),
    ("good_name_unicode.safetensors", one("grüße.模型.😀"), 1),
    ("good_64_axes.safetensors", one(shape=[1] * 63 + [4]), 1),
]


# Writing them.

def write_targets(out):
    for name, content in TARGETS.items():
        write_one(os.path.join(out, name), content)


def main(arguments):
    big = "--big" in arguments
    names = [a for a in arguments if a != "--big"]
    if len(names) != 1:
        print("usage: make_bad.py OUT [--big]", file=sys.stderr)
        return 2
    out = names[0]
    os.makedirs(out)
    write_targets(out)
    for name, content, _ in BAD + GOOD:
        write_case(out, name, content)
    if big:
        for name, pieces, _ in make_bad_big.BIG:
            make_bad_big.write_big(os.path.join(out, name + ".safetensors"), pieces())
        for name, file, pieces, _ in make_bad_big.BIG_FILES:
            make_bad_big.write_big_file(os.path.join(out, name), file, pieces())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
