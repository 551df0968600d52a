#!/usr/bin/env python3
"""The library's tokenizer gives the ids of the `tokenizers` package.

    test_tokenizer.py --tokenize build/tests/tokenize [CASE…]

On WikiText-2 where ../shared has it, on nasty.txt, on random mixtures, on very long words and on
every character, in every style of reference_tokenizers.py.
"""
import argparse
import functools
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
sys.path.insert(0, os.path.join(ROOT, "tests", "data", "text"))
from tokenizers import normalizers  # noqa: E402
import reference_tokenizers as reference  # noqa: E402
import make_nasty  # noqa: E402
import tally  # noqa: E402

OPTIONS = argparse.Namespace()
WIKITEXT = os.path.join(ROOT, "..", "shared", "data", "wikitext-2", "wiki.test.raw")
NASTY = os.path.join(ROOT, "tests", "data", "text", "nasty.txt")

# Styles that see every character and the longest words; the others differ from them in less.
THOROUGH = ("gpt2", "llama3", "qwen2", "smollm", "digits_together", "llama2")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def wikitext():
    return read(WIKITEXT) if os.path.exists(WIKITEXT) else None


@functools.lru_cache
def training_text():
    """The same on every machine but for WikiText: our own documents and sources, and nasty.txt."""
    paths = sorted(glob.glob(os.path.join(ROOT, "*.md")) + glob.glob(os.path.join(ROOT, "docs", "*.md")) +
                   glob.glob(os.path.join(ROOT, "src", "base", "*.c")))
    text = [read(path).decode() for path in paths]
    text += (wikitext() or b"").decode()[:200000].split("\n")
    return tuple(text + [read(NASTY).decode("utf-8", "replace").replace("\0", "")] * 3)


def mixtures(rng, count):
    """Texts put together at random from words, odd characters, tokens and broken bytes."""
    bits = [w.encode() for w in "the of and don't We'LL 2024 3.5 x [LEFT] [RIGHT] [BOTH] [WORD] [NORM] <s> </s> "
            "<|endoftext|> <|im_start|> <|eot_id|> \u00e9t\u00e9 e\u0301t\u00e9 \u2581 \u4e2d\u6587 \U0001f600".split()]
    bits += [b" ", b" ", b"  ", b"\n", b"\r\n", b"\t", b"'", b"\xff", b"\xe4\xb8", b"\x00", "\u00a0".encode(),
             "\u3000".encode(), "\u0301".encode(), "\u0323".encode(), "\u200d".encode(), "\u180e".encode()]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 30)):
            parts.append(rng.choice(bits) if rng.random() < 0.8 else
                         chr(rng.choice((rng.randrange(0x80), rng.randrange(0x300), rng.randrange(0xd800),
                                         rng.randrange(0x10000, 0x1fb00)))).encode())
        texts.append(b"".join(parts))
    return [text for text in texts if not is_new(text)]


def is_new(text):
    """Has characters that Unicode 14, which PCRE2 10.42 knows, leaves free."""
    return any(unicodedata.category(c) == "Cn" and not is_noncharacter(ord(c))
               for c in text.decode("utf-8", "replace"))


def is_noncharacter(c):
    return c & 0xfffe == 0xfffe or 0xfdd0 <= c <= 0xfdef


def normalizes_alike(c):
    """Whether the reference knows c well enough to normalize it: its Unicode is older than ours."""
    if normalizers.NFKC().normalize_str(c) != unicodedata.normalize("NFKC", c):
        return False
    if unicodedata.combining(c) == 0:
        return True
    other = "\u0334" if unicodedata.combining(c) > 1 else "\u0301"
    text = "a" + (c + other if other == "\u0334" else other + c)
    return normalizers.NFD().normalize_str(text) == unicodedata.normalize("NFD", text)


@functools.lru_cache
def every_character():
    """All that Unicode assigns, in texts of 200, plain and each with letters and spaces around."""
    chars = [chr(c) for c in range(1, 0x110000) if not 0xd800 <= c < 0xe000 and
             unicodedata.category(chr(c)) not in ("Cn", "Co")]
    chars = [c for c in chars if normalizes_alike(c)]
    groups = [chars[i:i + 200] for i in range(0, len(chars), 200)]
    return (["".join(g).encode() for g in groups] +
            ["".join(f"a{c}1 {c} " for c in g).encode() for g in groups[:120]])


def long_words():
    rng = random.Random(5)
    letters = "".join(rng.choice("etaoinshr") for _ in range(300000))
    return [text.encode() for text in ("a" * 1000000, letters, "ab" * 200000, " " * 300000 + "x",
                                       "\n" * 200000, "\u4e2d" * 100000, "\U0001f600" * 50000, "=" * 250000)]


class Style(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.directory = holder.name

    def put(self, name, data):
        path = os.path.join(self.directory, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def run_tool(self, texts, *flags):
        path = self.put("texts", b"".join(struct.pack("<I", len(t)) + t for t in texts))
        done = subprocess.run([OPTIONS.tokenize, *flags, self.directory, path], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout

    def ids(self, texts, *flags):
        return [[int(i) for i in line.split()] for line in self.run_tool(texts, *flags).decode().split("\n")[:-1]]

    def round(self, texts, *flags):
        data, texts = self.run_tool(texts, "--round", *flags), []
        while data:
            n = struct.unpack("<I", data[:4])[0]
            texts.append(data[4:4 + n])
            data = data[4 + n:]
        return texts

    def same(self, tokenizer, texts, special):
        got = self.ids(texts, *(["--special"] if special else []))
        self.assertEqual(len(got), len(texts))
        for text, ours in zip(texts, got):
            wanted = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=special).ids
            if ours != wanted:
                at = next((i for i, (a, b) in enumerate(zip(ours, wanted)) if a != b), min(len(ours), len(wanted)))
                self.fail(f"{text[:300]!r}: token {at} of {len(wanted)}: ours {ours[at:at + 8]}, "
                          f"reference {wanted[at:at + 8]} {tokenizer.decode(wanted[max(0, at - 3):at + 8])!r}")
        return got

    def same_decoded(self, tokenizer, texts):
        """Where bytes are whole characters, the reference's text is ours."""
        for skip, flags in ((True, []), (False, ["--special"])):
            for text, ours in zip(texts, self.round(texts, *flags)):
                wanted = tokenizer.decode(tokenizer.encode(text.decode("utf-8", "replace"),
                                                           add_special_tokens=not skip).ids,
                                          skip_special_tokens=skip)
                self.assertEqual(ours.decode("utf-8", "replace"), wanted, text)


def style_test(name):
    def test(self):
        text, tokenizer = reference.make(name, training_text())
        self.put("tokenizer.json", text.encode())
        nasty = read(NASTY)
        cases = [b"", nasty] + nasty.split(b"\n%%\n") + mixtures(random.Random(7), 400)
        for special in (False, True):
            self.same(tokenizer, cases, special)
        if name not in ("half_the_bytes", "merged_bytes"):  # theirs replace runs of bytes as a whole
            self.same_decoded(tokenizer, cases)
        if name in THOROUGH:
            self.same(tokenizer, every_character(), False)
            self.same(tokenizer, long_words(), False)
        if wikitext() and not name.startswith("split_"):
            ids = self.same(tokenizer, [wikitext()], True)
            print(f"{name}: WikiText-2 in {len(ids[0])} tokens", flush=True)
    return test


for _name in reference.styles:
    setattr(Style, f"test_{_name}", style_test(_name))


class Files(unittest.TestCase):
    def test_nasty_is_what_the_script_writes(self):
        self.assertEqual(read(NASTY), make_nasty.nasty())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenize", required=True)
    parser.add_argument("cases", nargs="*")
    OPTIONS = parser.parse_args()
    sys.exit(tally.run(OPTIONS.cases))
