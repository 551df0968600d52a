#!/usr/bin/env python3
"""Hostile GGUF files, one per attack, named by what is wrong.

    make_bad_gguf.py OUT [--big]

BAD, BIG and GOOD are the tables test_bad.py runs through gac convert, by the
rules of make_bad.py.
"""

import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q5_0, TYPE_Q8_0, TYPE_Q4_K, TYPE_BF16 = 0, 1, 2, 6, 8, 12, 30
HUGE = (1 << 64) - 1


def string(text, length=None):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data) if length is None else length) + data


def value(kind, content):
    formats = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B",
               U64: "Q", I64: "q", F64: "d"}
    if kind == STRING:
        return string(content)
    return struct.pack("<" + formats[kind], content)


def array(kind, items, length=None):
    """The value of an array: items are raw bytes, or Python values of kind."""
    raw = b"".join(i if isinstance(i, bytes) and kind != STRING else value(kind, i) for i in items)
    return struct.pack("<IQ", kind, len(items) if length is None else length) + raw


def pair(key, kind, content):
    raw = content if kind == ARRAY or isinstance(content, bytes) else value(kind, content)
    return string(key) + struct.pack("<I", kind) + raw


def tensor(name, dims, kind=TYPE_F32, offset=0, n_dims=None):
    """An entry of the list; dims in ggml's order, fastest first."""
    return (string(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims) +
            b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset))


def gguf(pairs=(), tensors=(), data=b"", version=3, n_tensors=None, n_pairs=None, magic=b"GGUF",
         alignment=32):
    head = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                               len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


# A tiny llama, valid, to break in one place at a time.

HIDDEN, WIDTH, VOCAB = 32, 64, 8
SIZES = {"llama.embedding_length": HIDDEN, "llama.feed_forward_length": WIDTH,
         "llama.block_count": 1, "llama.context_length": 16, "llama.attention.head_count": 2,
         "llama.attention.head_count_kv": 1}
SHAPES = {
    "token_embd.weight": (HIDDEN, VOCAB), "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,), "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN), "blk.0.attn_k.weight": (HIDDEN, HIDDEN // 2),
    "blk.0.attn_v.weight": (HIDDEN, HIDDEN // 2), "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate.weight": (HIDDEN, WIDTH), "blk.0.ffn_up.weight": (HIDDEN, WIDTH),
    "blk.0.ffn_down.weight": (WIDTH, HIDDEN),
}


def tokens(kind="gpt2", **changes):
    made = {"model": (STRING, kind), "tokens": (ARRAY, array(STRING, ["a", "b", "ab"])),
            "token_type": (ARRAY, array(I32, [1, 1, 1])), "pre": (STRING, "gpt-2"),
            "merges": (ARRAY, array(STRING, ["a b"])), "scores": (ARRAY, array(F32, [0, 0, 1])),
            "bos_token_id": (U32, 0)}
    made.update(changes)
    return {"tokenizer.ggml." + k: v for k, v in made.items() if v}


def llama(keys=None, shapes=None, kind=TYPE_F32, fill=b"\0", drop=(), **options):
    """keys: {key: (kind, content) or None}, put in place of what was there."""
    content = {"general.architecture": (STRING, "llama"),
               "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
               **{k: (U32, v) for k, v in SIZES.items()}, **(keys or {})}
    pairs = [pair(k, *v) for k, v in content.items() if v]
    entries, data = [], b""
    block, size = {TYPE_F32: (1, 4), TYPE_Q4_0: (32, 18), TYPE_Q8_0: (32, 34)}[kind]
    for name, dims in {**SHAPES, **(shapes or {})}.items():
        if name in drop:
            continue
        entries.append(tensor(name, dims, kind, len(data)))
        n = 1
        for d in dims:
            n *= d
        raw = fill * (n // block * size)
        data += raw[:n // block * size] + bytes(-(n // block * size) % 32)
    return gguf(pairs, entries, data, **options)


def two(first=0, second=32, dims=(8,), n_data=64, **options):
    """Two tensors of 32 bytes."""
    return gguf([], [tensor("a", dims, offset=first), tensor("b", (8,), offset=second)],
                bytes(n_data), **options)


def one_tensor(**fields):
    entry = {"name": "a", "dims": (8,), **fields}
    return gguf([], [tensor(**entry)], bytes(64))


def one_pair(raw):
    return gguf([raw])


def nested(depth):
    raw = array(U8, [1])
    for _ in range(depth - 1):
        raw = struct.pack("<IQ", ARRAY, 1) + raw
    return pair("deep", ARRAY, raw)


GOOD_FILE = llama()

BAD = [
    ("empty", b"", "not a GGUF file"),
    ("three_bytes", b"GGU", "not a GGUF file"),
    ("wrong_magic", gguf(magic=b"GGML"), "not a GGUF file"),
    ("version_1", gguf(version=1), "version 1"),
    ("version_4", gguf(version=4), "version 4"),
    ("big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    ("only_magic", b"GGUF", "version"),
    ("no_counts", gguf()[:12], "number of tensors"),
    ("huge_tensor_count", gguf(n_tensors=HUGE), ("offset 8", "tensors")),
    ("million_tensors", gguf(n_tensors=10 ** 6), "tensors"),
    ("huge_key_count", gguf(n_pairs=HUGE), ("offset 16", "keys")),
    ("one_key_missing", gguf(n_pairs=1), "key"),
    ("one_tensor_missing", GOOD_FILE.replace(struct.pack("<Q", len(SHAPES)),
                                             struct.pack("<Q", len(SHAPES) + 1), 1), ()),
    ("key_length_huge", one_pair(string("k", HUGE) + bytes(99)), "key of 18446744073709551615"),
    ("key_length_beyond", one_pair(string("k", 1000) + bytes(50)), "left"),
    ("key_of_1_MB", one_pair(pair("k" * (1 << 20), U8, 1)), "key of 1048576 bytes"),
    ("key_with_nul", one_pair(pair("a\0b", U8, 1)), "NUL"),
    ("key_empty", one_pair(pair("", U8, 1)), "empty"),
    ("key_not_utf8", one_pair(pair("\0", U8, 1).replace(b"\0" + b"\0\0\0\0\1", b"\xff\0\0\0\0\1")),
     "UTF-8"),
    ("key_twice", gguf([pair("k", U8, 1), pair("k", U8, 2)]), '"k" appears twice'),
    ("value_type_13", one_pair(string("k") + struct.pack("<IB", 13, 1)), "number 13"),
    ("value_type_huge", one_pair(string("k") + struct.pack("<IB", 1 << 31, 1)), "2147483648"),
    ("bool_of_2", one_pair(pair("k", BOOL, 2)), "2 is no bool"),
    ("bool_of_2_in_array", one_pair(pair("k", ARRAY, array(BOOL, [0, 1, 2]))), "2 is no bool"),
    ("string_beyond", one_pair(pair("k", STRING, string("x", 1 << 40))), "left"),
    ("array_huge", one_pair(pair("k", ARRAY, array(U8, [1], HUGE))), "array of"),
    ("array_wraps", one_pair(pair("k", ARRAY, array(U64, [1], 1 << 61))), "array of"),
    ("strings_huge", one_pair(pair("k", ARRAY, array(STRING, ["x"], 1 << 40))), "array of"),
    ("string_in_array_beyond",
     one_pair(pair("k", ARRAY, struct.pack("<IQ", STRING, 1) + string("x", 1 << 50))), "left"),
    ("array_of_type_99", one_pair(pair("k", ARRAY, struct.pack("<IQ", 99, 0))), "number 99"),
    ("arrays_5_deep", one_pair(nested(5)), "nested deeper than 4"),
    ("arrays_5000_deep", one_pair(nested(5000)), "nested deeper than 4"),
    ("arrays_of_huge_arrays",
     one_pair(pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + array(U8, [], 1 << 60))), "array of"),
    ("alignment_0", gguf([pair("general.alignment", U32, 0)]), "power of two"),
    ("alignment_48", gguf([pair("general.alignment", U32, 48)]), "power of two"),
    ("alignment_u64", gguf([pair("general.alignment", U64, 32)]), "not of type U32"),
    ("alignment_string", gguf([pair("general.alignment", STRING, "32")]), "not of type U32"),
    ("alignment_beyond", llama({"general.alignment": (U32, 1 << 31)}), ()),
    ("name_twice", gguf([], [tensor("a", (8,)), tensor("a", (8,), offset=32)], bytes(64)),
     ('"a"', "appears twice")),
    ("name_of_1_MB", one_tensor(name="n" * (1 << 20)), "name of a tensor"),
    ("name_control_bytes", gguf([], [tensor("\x1b[2J\n", (8,), TYPE_Q5_0)], bytes(64)), "\\x1b"),
    ("axes_5", one_tensor(dims=(1, 1, 1, 1, 1)), "5 axes"),
    ("axes_huge", one_tensor(n_dims=0xFFFFFFFF), "axes"),
    ("axis_0", one_tensor(dims=(8, 0)), "size 0"),
    ("axis_negative", one_tensor(dims=(HUGE,)), "an axis of size"),
    ("elements_overflow", one_tensor(dims=(1 << 40, 1 << 40)), "overflows"),
    ("bytes_overflow", one_tensor(dims=(1 << 62,)), "overflows"),
    ("type_unknown", one_tensor(kind=99), "unknown type 99"),
    ("type_removed", one_tensor(kind=4), "unknown type 4"),
    ("type_not_read", one_tensor(kind=TYPE_Q5_0), "Q5_0"),
    ("rows_not_blocks", one_tensor(dims=(40, 2), kind=TYPE_Q8_0), "rows of 40"),
    ("rows_not_superblocks", one_tensor(dims=(128,), kind=TYPE_Q4_K), "rows of 128"),
    ("offset_unaligned", one_tensor(offset=8), "alignment"),
    ("offset_beyond", one_tensor(offset=1 << 40), "not in the file"),
    ("offset_wraps", one_tensor(offset=HUGE - 31), "not in the file"),
    ("end_beyond", one_tensor(dims=(17,)), "not in the file"),
    ("overlap", two(dims=(9,)), ("overlaps", '"a"')),
    ("same_place", two(second=0), "overlaps"),
    ("inside", gguf([], [tensor("a", (32,)), tensor("b", (8,), offset=32)], bytes(128)),
     "overlaps"),
    ("truncated_data", GOOD_FILE[:-1], "not in the file"),
    ("truncated_list", GOOD_FILE[:700], ()),
    ("truncated_keys", GOOD_FILE[:100], ()),
    # What is a proper GGUF file and no proper llama.
    ("no_architecture", llama({"general.architecture": None}), "general.architecture"),
    ("architecture_number", llama({"general.architecture": (U32, 7)}), "general.architecture"),
    ("architecture_unknown", llama({"general.architecture": (STRING, "bert\n")}), "bert\\x0a"),
    ("no_layers_key", llama({"llama.block_count": None}), "llama.block_count"),
    ("layers_string", llama({"llama.block_count": (STRING, "1")}), "llama.block_count"),
    ("layers_huge", llama({"llama.block_count": (U64, 1 << 60)}), "llama.block_count"),
    ("layers_many", llama({"llama.block_count": (U32, 100000)}), "blk.1."),
    ("heads_0", llama({"llama.attention.head_count": (U32, 0)}), "head_count"),
    ("heads_per_layer", llama({"llama.attention.head_count": (ARRAY, array(U32, [2]))}),
     "head_count"),
    ("heads_do_not_divide", llama({"llama.attention.head_count_kv": (U32, 3)}), "heads"),
    ("head_odd", llama({"llama.attention.key_length": (U32, 15)}), "key length 15"),
    ("more_heads_than_hidden", llama({"llama.attention.head_count": (U32, 1000)}), ()),
    ("eps_nan", llama({"llama.attention.layer_norm_rms_epsilon": (F32, float("nan"))}), "epsilon"),
    ("theta_negative", llama({"llama.rope.freq_base": (F32, -1.0)}), "freq_base"),
    ("theta_nan", llama({"llama.rope.freq_base": (F32, float("nan"))}), "freq_base"),
    ("rope_type_odd", llama({"llama.rope.scaling.type": (STRING, "odd")}), "rope.scaling.type"),
    ("rope_factor_0", llama({"llama.rope.scaling.type": (STRING, "linear"),
                             "llama.rope.scaling.factor": (F32, 0.0)}), "rope.scaling.factor"),
    ("rope_freqs_short", llama(shapes={"rope_freqs.weight": (4,)}), "rope_freqs.weight"),
    ("rope_freqs_zero", llama(shapes={"rope_freqs.weight": (8,)}), "positive"),
    ("tensor_missing", llama(drop=("blk.0.ffn_up.weight",)), "blk.0.ffn_up.weight"),
    ("embedding_missing", llama(drop=("token_embd.weight",)), "token_embd.weight"),
    ("tensor_left_over", llama(shapes={"blk.1.ffn_up.weight": (32, 64)}), "blk.1.ffn_up.weight"),
    ("shape_wrong", llama(shapes={"blk.0.attn_k.weight": (32, 32)}), "(32, 32)"),
    ("shape_transposed", llama(shapes={"blk.0.ffn_up.weight": (64, 32)}), "(32, 64)"),
    ("norm_of_2_axes", llama(shapes={"output_norm.weight": (32, 1)}), "output_norm.weight"),
    ("tokenizer_unknown", llama(tokens("bert")), "bert"),
    ("tokens_missing", llama(tokens(tokens=None)), "tokenizer.ggml.tokens"),
    ("tokens_numbers", llama(tokens(tokens=(ARRAY, array(U32, [1, 2])))), "tokenizer.ggml.tokens"),
    ("tokens_too_many", llama(tokens(tokens=(ARRAY, array(STRING, ["x"] * 9)))), "9 tokens"),
    ("token_not_utf8", llama(tokens(tokens=(ARRAY, array(STRING, ["a", "b", b"\xff"])))),
     "token 2"),
    ("token_with_nul", llama(tokens(tokens=(ARRAY, array(STRING, ["a", "b", "a\0b"])))),
     "token 2"),
    ("token_types_few", llama(tokens(token_type=(ARRAY, array(I32, [1])))), "token_type"),
    ("token_type_odd", llama(tokens(token_type=(ARRAY, array(I32, [1, 1, 77])))), "token_type 2"),
    ("bos_beyond", llama(tokens(bos_token_id=(U32, 3))), "bos_token_id"),
    ("pre_unknown", llama(tokens(pre=(STRING, "x\ny"))), "x\\x0ay"),
    ("merges_missing", llama(tokens(merges=None)), "tokenizer.ggml.merges"),
    ("merge_of_one", llama(tokens(merges=(ARRAY, array(STRING, ["ab"])))), "merge 0"),
    ("merge_of_strangers", llama(tokens(merges=(ARRAY, array(STRING, ["a c"])))), "merge 0"),
    ("scores_missing", llama(tokens("llama", scores=None)), "scores"),
    ("scores_nan", llama(tokens("llama", scores=(ARRAY, array(F32, [0, float("nan"), 0])))),
     "score of token 1"),
    ("scores_strings", llama(tokens("llama", scores=(ARRAY, array(STRING, ["0"] * 3)))), "scores"),
]

# Odd, and accepted.
GOOD = [
    ("tiny", GOOD_FILE),
    ("version_2", llama(version=2)),
    ("trailing_bytes", GOOD_FILE + bytes(100)),
    ("nan_scales", llama(kind=TYPE_Q4_0, fill=b"\xff")),
    ("infinite_scales", llama(kind=TYPE_Q8_0, fill=b"\x00\x7c")),
    ("arrays_4_deep", llama({"deep": (ARRAY, nested(4)[16:])})),
    ("empty_array", llama({"none": (ARRAY, array(U8, []))})),
    ("alignment_8", llama({"general.alignment": (U32, 8)})),
    ("byte_level", llama(tokens())),
    ("scored", llama(tokens("llama"))),
    ("token_twice", llama(tokens(tokens=(ARRAY, array(STRING, ["a", "b", "ab", "a"])),
                                 token_type=None))),
    ("no_bos", llama(tokens(bos_token_id=(U32, 0xFFFFFFFF)))),
]


def big_strings():
    n = 4_000_000
    return [gguf(n_pairs=1, alignment=1), string("k"), struct.pack("<IIQ", ARRAY, STRING, n),
            bytes(8 * n)]


def big_arrays():
    n = 3_000_000
    return [gguf(n_pairs=1, alignment=1), string("k"), struct.pack("<IIQ", ARRAY, ARRAY, n),
            bytes(12 * n)]


def big_header():
    """An array of 70 MB, more than a header may have."""
    n = 70_000_000
    return [gguf(n_pairs=1, alignment=1), string("k"), struct.pack("<IIQ", ARRAY, U8, n), bytes(n)]


def many_tensors():
    n = 400_000
    yield gguf(n_tensors=n, alignment=1)
    for i in range(n):
        yield tensor(f"t{i}", (8,), offset=32 * i)
    yield bytes(32 * n + 32)


def many_keys():
    n = 60_000
    yield gguf(n_pairs=n, alignment=1)
    for i in range(n):
        yield pair(f"k{i}", STRING, "x" * 500)


def slow_tokens():
    """Long tokens, each cut in two at every place."""
    text = [("a" * 900 + str(i)) for i in range(40_000)]
    keys = tokens("llama", tokens=(ARRAY, array(STRING, text)), token_type=None,
                  scores=(ARRAY, array(F32, [0.0] * len(text))))
    return [llama(keys, shapes={"token_embd.weight": (HIDDEN, len(text))})]


def many_merges():
    """All of one letter: every cut of every token is a merge."""
    text = ["a" * (i + 1) for i in range(1200)]
    keys = tokens("llama", tokens=(ARRAY, array(STRING, text)), token_type=None,
                  scores=(ARRAY, array(F32, [0.0] * len(text))))
    return [llama(keys, shapes={"token_embd.weight": (HIDDEN, len(text))})]


def many_tokens():
    """As many tokens as there may be."""
    n = 1 << 20
    text = ["a", "b", "ab", *(f"{i:x}" for i in range(n - 3))]
    keys = tokens(tokens=(ARRAY, array(STRING, text)), token_type=None)
    return [llama(keys, shapes={"token_embd.weight": (HIDDEN, n)})]


# name, pieces, exit codes
BIG = [("big_strings", big_strings, (3,)), ("big_arrays", big_arrays, (3,)),
       ("big_header", big_header, (3,)), ("many_tensors", many_tensors, (3,)),
       ("many_keys", many_keys, (3,)), ("slow_tokens", slow_tokens, (3,)),
       ("many_merges", many_merges, (3,)), ("many_tokens", many_tokens, (0,))]


def write(folder, name, pieces):
    path = os.path.join(folder, name + ".gguf")
    with open(path, "wb") as file:
        for piece in [pieces] if isinstance(pieces, bytes) else pieces:
            file.write(piece)
    return path


def main(arguments):
    names = [a for a in arguments if a != "--big"]
    if len(names) != 1:
        print("usage: make_bad_gguf.py OUT [--big]", file=sys.stderr)
        return 2
    os.makedirs(names[0])
    for name, content, *_ in [*BAD, *GOOD]:
        write(names[0], name, content)
    for name, pieces, _ in BIG if "--big" in arguments else ():
        write(names[0], name, pieces())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
