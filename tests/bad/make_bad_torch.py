#!/usr/bin/env python3
"""Hostile files of torch.save, one per attack, named by what is wrong.

    make_bad_torch.py OUT [--big]

BAD and BIG are the tables test_bad.py runs through gac inspect, by the rules of
make_bad.py.
"""

import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from torch_files import (Call, Global, Member, Raw, Storage, Tensor, archive, dump,  # noqa: E402
                         legacy_file, members_of, module, tensor, zip_file)

SIX = bytes(range(24))


def state(**fields):
    """A state dict of one tensor a (2, 3) of F32."""
    return {"a": tensor("F32", (2, 3), SIX, **fields)}


def pickled(opcodes):
    """An archive whose pickle is these opcodes."""
    return archive(members_of(state(), pickle=opcodes))


def stated(opcodes):
    """The same with one value made by the opcodes, in a state dict."""
    return zip_file({"a": Raw(opcodes)})


def with_member(*changed, drop=(), **more):
    """An archive with members replaced or added by name."""
    members = {m.name: m for m in members_of(state()) if m.name.decode() not in drop}
    members.update({m.name: m for m in changed})
    return archive(list(members.values()), **more)


def a_storage(**fields):
    made = members_of(state())[2]
    return Member("archive/data/0", made.data, **fields)


def member_in_member():
    """The bytes of one member are another one, whole and well-formed."""
    inner = Member("archive/data/0", SIX)
    outer = Member("archive/x", inner.local(0) + SIX)
    rest = [m for m in members_of(state()) if m.name != inner.name]
    return archive([outer, *rest, Member("archive/data/0", b"", size=len(SIX),
                                         header=len(outer.local(0)))])


def view(shape, strides, offset=0, dtype="F32", numel=None):
    return zip_file({"a": Tensor(Storage(dtype, SIX, numel=numel), shape, strides, offset)})


def two_types():
    first = Storage("F32", SIX, key="0")
    return zip_file({"a": Tensor(first, (2, 3)), "b": Tensor(Storage("F16", SIX, key="0"), (12,))})


def two_sizes():
    return zip_file({"a": Tensor(Storage("F32", SIX, key="0"), (2, 3)),
                     "b": Tensor(Storage("F32", SIX, key="0", numel=3), (3,))})


def nested(n, start, step, end):
    return b"\x80\x02" + start + step * n + end + b"."


def laughs(n, inside):
    """Dicts in dicts: each holds the one before it twice, so there are 2^n ways down."""
    for _ in range(n):
        inside = {"x": inside, "y": inside}
    return inside


def memo(index):
    return b"\x80\x02}r" + struct.pack("<I", index) + b"."


def code(module_name, name, args=("touch /tmp/gac-was-here",), state_of_it=None):
    return {"a": Call(module_name, name, args, state=state_of_it)}


def end_less():
    return archive(members_of(state()))[:-1]


def pid(changed):
    """A tensor whose persistent id has some fields changed."""
    fields = {"kind": "storage", "type": Global("torch", "FloatStorage"), "key": "0",
              "where": "cpu", "n": 6}
    fields.update(changed)
    persistent = Raw(dump(tuple(fields.values()))[0][2:-1] + b"Q")
    return zip_file({"b": state()["a"], "a": Call("torch._utils", "_rebuild_tensor_v2", [
        persistent, 0, (2, 3), (3, 1), False, None])})


def odd_keys(key):
    return {key: tensor("F32", (2, 3), SIX)}


TENSOR = "tensor \"a\""
BAD = [
    # The archive
    ("zip_empty_archive", archive([], zip64=False), "data.pkl"),
    ("zip_no_pickle", with_member(drop=("archive/data.pkl",)), "data.pkl"),
    ("zip_two_pickles", with_member(Member("other/data.pkl", b"N.")), "two data.pkl"),
    ("zip_pickle_deep_inside", archive([Member("a/b/data.pkl", b"N.")]), "data.pkl"),
    ("zip_torchscript", with_member(Member("archive/constants.pkl", b"N.")), "TorchScript"),
    ("zip_big_endian", with_member(Member("archive/byteorder", b"big")), "little-endian"),
    ("zip_no_end", end_less(), "end record"),
    ("zip_cut_in_half", zip_file(state())[:600], "end record"),
    ("zip_tail", zip_file(state(), tail=b"x"), "end record"),
    ("zip_comment", zip_file(state(), end={7: 1}, tail=b"x"), "end record"),
    ("zip_list_elsewhere", zip_file(state(), zip64=False, end={6: 0}), "list of members"),
    ("zip_list_too_short", zip_file(state(), zip64=False, end={5: 46}), "list of members"),
    ("zip_two_disks", zip_file(state(), zip64=False, end={1: 1}), "several parts"),
    ("zip_entries_differ", zip_file(state(), zip64=False, end={3: 1}), "several parts"),
    ("zip_too_many_entries", zip_file(state(), zip64=False, n_entries=60000), "list of"),
    ("zip_too_few_entries", zip_file(state(), zip64=False, n_entries=1), "more bytes"),
    ("zip64_too_many_entries", zip_file(state(), n_entries=(1 << 16) - 1,
                                        end64={6: 1 << 40, 7: 1 << 40}), "a list of"),
    ("zip64_ends_differ", zip_file(state(), end64={9: 5}), "differ"),
    ("zip64_no_record", zip_file(state(), end64={0: 7}), "64-bit end record"),
    ("zip64_longer_record", zip_file(state(), end64={1: 1 << 62}), "64-bit end record"),
    ("zip64_disks", zip_file(state(), end64={4: 1}), "several parts"),
    ("zip64_offset_overflows", zip_file(state(), end={6: 0xffffffff}, end64={9: (1 << 64) - 1}),
     "list of members"),
    ("zip_deflated_pickle", with_member(Member("archive/data.pkl", dump(state())[0], method=8)),
     "packed"),
    ("zip_deflated_storage", with_member(a_storage(method=8)), "packed"),
    ("zip_packed_size_differs", with_member(a_storage(packed=20)), "packed"),
    ("zip_encrypted", with_member(a_storage(flags=1)), "encrypted"),
    ("zip_same_name_twice", archive(members_of(state()) + [a_storage()]), "twice"),
    ("zip_overlap", with_member(a_storage(), Member("archive/data/1", b"", header=0)), "differs"),
    ("zip_member_in_member", member_in_member(), "overlaps"),
    ("zip_header_at_the_list", with_member(a_storage(header=0xfffffff0)), "outside"),
    ("zip_size_beyond_the_list", with_member(a_storage(size=1 << 20, local_size=1 << 20)),
     "behind the list"),
    ("zip_size_64_missing", with_member(a_storage(size=0xffffffff, local_size=0xffffffff)), "ends behind"),
    ("zip_size_64_cut", with_member(a_storage(size=0xffffffff, extra=b"\1\0\4\0abcd")), "64-bit"),
    ("zip_size_64_huge", with_member(a_storage(size=0xffffffff, local_size=0xffffffff,
                                                 extra=struct.pack("<HHQQ", 1, 16, 1 << 63,
                                                                   1 << 63))), "ends behind"),
    ("zip_extra_too_long", with_member(a_storage(extra=b"\1\0\xff\xffabcd")), "extra field"),
    ("zip_other_local_name", with_member(a_storage(local_name=b"archive/data/9")), "differs"),
    ("zip_other_local_size", with_member(a_storage(local_size=23)), "differs"),
    ("zip_no_local_header", with_member(a_storage(local_magic=1)), "differs"),
    ("zip_name_not_utf8", archive([Member("archive/\udcff".encode("utf-8", "surrogateescape")
                                          .decode("latin-1"), b"")]), "data.pkl"),
    ("zip_name_with_nul", with_member(Member("archive/a\0b", b"")), "UTF-8"),
    ("zip_name_empty", with_member(Member("", b"")), "empty"),
    ("zip_name_long", with_member(Member("a" * 2000, b"")), "too long"),
    ("zip_no_storage", with_member(drop=("archive/data/0",)), "no member data/0"),
    ("zip_storage_short", with_member(Member("archive/data/0", SIX[:23])), "24 bytes"),
    ("zip_storage_long", with_member(Member("archive/data/0", SIX + b"x")), "24 bytes"),
    # The pickle
    ("pickle_empty", pickled(b""), "STOP"),
    ("pickle_no_stop", pickled(b"\x80\x02}"), "STOP"),
    ("pickle_only_stop", pickled(b"\x80\x02."), "stack"),
    ("pickle_two_values", pickled(b"\x80\x02NN."), "stack"),
    ("pickle_mark_left", pickled(b"\x80\x02(N."), "stack"),
    ("pickle_protocol_9", pickled(b"\x80\x09N."), "protocol 9"),
    ("pickle_text_opcodes", pickled(b"I42\n."), "protocol 0"),
    ("pickle_ext", pickled(b"\x80\x02\x82\x01."), "0x82"),
    ("pickle_next_buffer", pickled(b"\x80\x05\x97."), "0x97"),
    ("pickle_opcode_unknown", pickled(b"\x80\x02\xff."), "0xff"),
    ("pickle_pop_nothing", pickled(b"\x80\x020."), "stack"),
    ("pickle_pop_mark_nothing", pickled(b"\x80\x021."), "mark"),
    ("pickle_dup_nothing", pickled(b"\x80\x022."), "stack"),
    ("pickle_tuple_no_mark", pickled(b"\x80\x02t."), "mark"),
    ("pickle_tuple3_of_two", pickled(b"\x80\x02NN\x87."), "stack"),
    ("pickle_reduce_nothing", pickled(b"\x80\x02R."), "stack"),
    ("pickle_reduce_number", pickled(b"\x80\x02K\1)R."), "no class"),
    ("pickle_reduce_list", pickled(b"\x80\x02cos\nsystem\n]R."), "no class"),
    ("pickle_build_nothing", pickled(b"\x80\x02}b."), "stack"),
    ("pickle_build_dict", pickled(b"\x80\x02}}b."), "state"),
    ("pickle_build_twice", pickled(b"\x80\x02ca\nb\n)R}b}b."), "state"),
    ("pickle_append_to_dict", pickled(b"\x80\x02}Na."), "takes none"),
    ("pickle_setitem_on_list", pickled(b"\x80\x02]NNs."), "takes none"),
    ("pickle_setitems_odd", pickled(b"\x80\x02}(Nu."), "without a value"),
    ("pickle_setitems_on_mark", pickled(b"\x80\x02((NNu."), "no container"),
    ("pickle_dict_odd", pickled(b"\x80\x02(Nd."), "without a value"),
    ("pickle_obj_nothing", pickled(b"\x80\x02(o."), "nothing"),
    ("pickle_memo_empty", pickled(b"\x80\x02h\5."), "memo 5"),
    ("pickle_memo_bomb", pickled(memo(0xffffffff)), "memo"),
    ("pickle_memo_far", pickled(memo(1 << 20)), "memo"),
    ("pickle_put_nothing", pickled(b"\x80\x02q\0."), "stack"),
    ("pickle_text_cut", pickled(b"\x80\x02X\xff\0\0\0ab."), "bytes"),
    ("pickle_text8_huge", pickled(b"\x80\x04\x8d" + b"\xff" * 8 + b"."), "bytes"),
    ("pickle_bytes_huge", pickled(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"."), "bytes"),
    ("pickle_long4_negative", pickled(b"\x80\x02\x8b\xff\xff\xff\xff."), "bytes"),
    ("pickle_global_no_newline", pickled(b"\x80\x02cabc"), "bytes"),
    ("pickle_global_of_numbers", pickled(b"\x80\x04K\1K\2\x93."), "not a text"),
    ("pickle_frame_cut", pickled(b"\x80\x04\x95\1\2"), "bytes"),
    ("pickle_deep_lists", pickled(nested(100000, b"]", b"]", b"a" * 100000)), "nested"),
    ("pickle_deep_tuples", pickled(nested(100000, b")", b"\x85", b"")), ("nested", "64")),
    ("pickle_list_in_itself", pickled(b"\x80\x02]q\0h\0a."), "nested"),
    ("pickle_dict_in_itself", pickled(b"\x80\x02}q\0X\1\0\0\0ah\0s."), "nested"),
    ("pickle_laughs", zip_file(laughs(30, {"a": tensor("F32", (0,), b"")})), "times the bytes"),
    ("pickle_laughs_for_nothing", zip_file(laughs(60, {"a": Call("evil", "Thing")})), "evil.Thing"),
    ("pickle_of_nothing", zip_file(Call("evil", "Thing", state={"a": 1})), "evil.Thing"),
    ("pickle_marks", pickled(b"\x80\x02" + b"(" * 100000 + b"."), "stack"),
    # Code
    ("code_os_system", zip_file(code("os", "system")), "os.system"),
    ("code_posix_system", zip_file(Call("posix", "system", ("touch /tmp/gac-was-here",))),
     "posix.system"),
    ("code_eval", zip_file(Call("builtins", "eval", ("1/0",))), "builtins.eval"),
    ("code_in_a_module", zip_file(module("a.B", {"w": Call("os", "system", ("x",))})),
     ("tensor \"w\"", "os.system")),
    ("code_as_callable", zip_file(Call("os", "popen", ("x",), state={})), "os.popen"),
    # Storages
    ("storage_number", stated(b"K\1Q"), "no storage"),
    ("storage_of_modules", stated(dump(("modules", 1, 2, 3, 4))[0][2:-1] + b"Q"), "no storage"),
    ("storage_unknown_type", pid({"type": Global("torch", "QInt8Storage")}), "QInt8Storage"),
    ("storage_negative", pid({"n": -1}), "negative"),
    ("storage_overflow", pid({"n": 1 << 62}), "overflows"),
    ("storage_size_big", pid({"n": 1 << 100}), "negative"),
    ("storage_key_number", pid({"key": 7}), "key"),
    ("storage_key_long", pid({"key": "k" * 2000}), "key"),
    ("storage_key_elsewhere", pid({"key": "../version"}), "no member"),
    ("storage_lies", view((2, 3), (3, 1), numel=7), "28 bytes"),
    ("storage_two_types", two_types(), "two types"),
    ("storage_two_sizes", two_sizes(), "two types or sizes"),
    # Tensors
    ("tensor_no_storage", zip_file({"a": Call("torch._utils", "_rebuild_tensor_v2",
                                              [5, 0, (2,), (1,)])}), (TENSOR, "storage")),
    ("tensor_few_arguments", zip_file({"a": Call("torch._utils", "_rebuild_tensor_v2", [1])}),
     (TENSOR, "no plain tensor")),
    ("tensor_sparse", zip_file({"a": Call("torch._utils", "_rebuild_sparse_tensor", [1])}),
     (TENSOR, "_rebuild_sparse_tensor")),
    ("tensor_quantized", zip_file({"a": Call("torch._utils", "_rebuild_qtensor", [1])}),
     (TENSOR, "_rebuild_qtensor")),
    ("tensor_meta", zip_file({"a": Call("torch._utils", "_rebuild_meta_tensor_no_storage", [1])}),
     TENSOR),
    ("tensor_of_tensor_of_tensor", zip_file({"a": Call(
        "torch._utils", "_rebuild_parameter", [Call("torch._utils", "_rebuild_parameter", [1])])}),
     TENSOR),
    ("tensor_subclass", zip_file({"a": Call("torch._tensor", "_rebuild_from_type_v2", [
        Global("torch._utils", "_rebuild_tensor_v2"), Global("mine", "Tensor"), (), None])}),
     (TENSOR, "_rebuild_from_type_v2")),
    ("tensor_negative_size", view((2, -3), (3, 1)), (TENSOR, "negative")),
    ("tensor_negative_stride", view((2, 3), (3, -1), 5), (TENSOR, "negative")),
    ("tensor_negative_offset", view((2, 3), (3, 1), -1), (TENSOR, "outside")),
    ("tensor_offset_beyond", view((2, 3), (3, 1), 1), (TENSOR, "last element")),
    ("tensor_offset_huge", view((2, 3), (3, 1), 1 << 62), (TENSOR, "outside")),
    ("tensor_too_large", view((2, 4), (4, 1)), (TENSOR, "last element")),
    ("tensor_shape_overflows", view((1 << 32, 1 << 32), (0, 0)), (TENSOR, "overflows")),
    ("tensor_strides_overflow", view((2, 3), (1 << 62, 1 << 62)), (TENSOR, "overflow")),
    ("tensor_stride_beyond", view((2, 3), (4, 1)), (TENSOR, "last element")),
    ("tensor_expanded", view((1 << 40,), (0,)), (TENSOR, "share")),
    ("tensor_more_strides", view((2, 3), (3, 1, 1)), (TENSOR, "3 strides")),
    ("tensor_fewer_strides", view((2, 3), (3,)), (TENSOR, "1 strides")),
    ("tensor_65_axes", view((1,) * 65, (1,) * 65), (TENSOR, "65 axes")),
    ("tensor_size_text", zip_file({"a": Tensor(Storage("F32", SIX), ("x",), (1,))}),
     (TENSOR, "no number")),
    ("tensor_no_name", zip_file(state()["a"]), "another name"),
    ("tensor_name_metadata", zip_file(odd_keys("__metadata__")), "another name"),
    ("tensor_name_empty", zip_file(odd_keys("")), "another name"),
    ("tensor_name_nul", zip_file(odd_keys("a\0b")), "UTF-8"),
    ("tensor_name_surrogate", zip_file(odd_keys("a\ud800")), "UTF-8"),
    ("tensor_name_long", zip_file(odd_keys("a" * 1100)), "too long"),
    ("tensor_name_tuple", zip_file({(1, 2): state()["a"]}), "neither a text"),
    ("tensor_name_twice", zip_file({"a": {"b": state()["a"]}, "a.b": tensor("F32", (1,), b"abcd")}),
     "twice"),
    ("tensor_sharing", zip_file({f"t{i}": t for t in [tensor("U8", (4096,), bytes(4096))]
                                 for i in range(3000)}), "times the bytes"),
    ("module_parameter_number", zip_file(module("a.B", {"w": 5})), "tensor \"w\""),
    ("module_module_number", zip_file(module("a.B", {}, {}, {"m": 5})), "without tensors"),
    ("module_in_itself", zip_file(Call("a", "B", state={
        "_parameters": {}, "_buffers": {}, "_modules": Raw(b"}X\1\0\0\0ah\0s")}, new=True)),
     "nested"),
    # The legacy format
    ("legacy_cut_in_storage", legacy_file(state(), cut=1), "cut off"),
    ("legacy_cut_in_pickle", legacy_file(state())[:150], "wants 9 bytes"),
    ("legacy_cut_after_magic", legacy_file(state())[:15], "STOP"),
    ("legacy_tail", legacy_file(state(), tail=b"xx"), "2 bytes behind"),
    ("legacy_other_magic", legacy_file(state()).replace(b"\x6c\xfc", b"\x6c\xfd", 1), "number"),
    ("legacy_other_protocol", legacy_file(state()).replace(b"J\xe9\x03", b"J\xea\x03", 1)
     .replace(b"\xe9\x03", b"\xea\x03", 1), "1001"),
    ("legacy_big_endian", legacy_file(state(), system={"little_endian": False}), "little-endian"),
    ("legacy_system_number", legacy_file(state(), system=5), "little-endian"),
    ("legacy_count_differs", legacy_file(state(), counts={"0": 7}), "7 are stated"),
    ("legacy_count_negative", legacy_file(state(), counts={"0": -1}), "are stated"),
    ("legacy_key_missing", legacy_file(state(), keys=[]), "list of storages"),
    ("legacy_key_unknown", legacy_file(state(), keys=["1"]), "no tensor uses"),
    ("legacy_key_twice", legacy_file({"a": state()["a"], "b": tensor("F32", (1,), b"abcd")},
                                     keys=["0", "0"]), "twice"),
    ("legacy_keys_number", legacy_file(state(), keys=[7]), "no tensor uses"),
    ("legacy_lies", legacy_file({"a": Tensor(Storage("F32", SIX, numel=1 << 40), (2, 3))}),
     "cut off"),
    ("legacy_view_outside", legacy_file({"a": Tensor(Storage("F32", SIX, view=("1", 4, 3)), (3,))}),
     "view"),
    ("legacy_view_negative", legacy_file({"a": Tensor(Storage("F32", SIX, view=("1", -1, 3)),
                                                      (3,))}), "view"),
    ("not_torch_text", b"hello, this is a text file\n", "torch.save did not"),
    ("not_torch_plain_pickle", dump({"a": list(range(9)), "text": "x" * 40})[0], "number"),
    ("not_torch_empty", b"", "torch.save did not"),
]


def values(n):
    """A pickle of n NONEs: 32 bytes of memory for each byte."""
    return b"\x80\x02" + b"N" * n + b"."


def many_keys(n):
    """A dict of n tensors that share a storage of one byte."""
    out = bytearray(b"\x80\x02}(")
    first, _ = dump({"x": tensor("U8", (1,), b"a")})
    head = first[first.index(b"ctorch"):first.rindex(b"q")]
    for i in range(n):
        out += b"X\x07\0\0\0%07d" % i + (head + b"q\x01" if i == 0 else b"h\x01")
    return bytes(out) + b"u."


BIG = [
    ("big_values", lambda: pickled(values(60 << 20)), (3,)),
    ("big_pickle", lambda: pickled(values(65 << 20)), (3,)),
    ("big_gets", lambda: pickled(b"\x80\x02Nq\0" + b"h\0" * (30 << 20) + b"."), (3,)),
    ("big_dups", lambda: pickled(b"\x80\x02N" + b"2" * (60 << 20) + b"."), (3,)),
    ("big_marks", lambda: pickled(b"\x80\x02" + b"(" * (60 << 20) + b"."), (3,)),
    ("big_appends", lambda: pickled(b"\x80\x02]q\0" + b"h\0a" * (20 << 20) + b"."), (3,)),
    ("big_names", lambda: archive(members_of({"x": tensor("U8", (1,), b"a")},
                                             pickle=many_keys(1200000))), (3,)),
    ("big_members", lambda: archive(members_of(state()) + [
        Member(f"archive/data/x{i}", b"", align=1) for i in range(300000)]), (0, 3)),
    ("big_long", lambda: pickled(b"\x80\x02\x8b" + struct.pack("<I", 60 << 20) + bytes(60 << 20)
                                 + b"."), (3,)),
    ("big_legacy_no_end", lambda: b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
     + dump({"little_endian": True})[0] + b"\x80\x02" + b"N0" * (40 << 20), (3,)),
]


def write(folder, name, content):
    path = os.path.join(folder, name + ".pt")
    with open(path, "wb") as file:
        file.write(content)
    return path


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, content, _ in BAD:
        write(sys.argv[1], name, content)
    for name, content, _ in BIG if "--big" in sys.argv else ():
        write(sys.argv[1], name, content())
    return 0


if __name__ == "__main__":
    sys.exit(main())
